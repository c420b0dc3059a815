"""The loss of a method as a module, for training loops of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor, nn

from tertium import methods
from tertium.annotation.frequencies import Frequencies
from tertium.annotation.record import Annotation
from tertium.data.batches import Batch
from tertium.distributed import all_mean, all_rows
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods import Method
from tertium.methods.state import SampleState, Table
from tertium.processes import rank, world
from tertium.progress import Progress

Array = npt.NDArray[Any]
Rows = npt.ArrayLike | Tensor | Callable[[], npt.ArrayLike | Tensor]  # a row for each training image

_LABELS = "pass labels=, a Labels or an array [N, C] of +1, −1 and 0"
_NEEDS = {
    "labels": f"needs the labels of all training images: {_LABELS}",
    "lr": "moves its estimates at the learning rate of the head: call loss.step(lr=…)",
    "table": f"keeps a row for each training image: {_LABELS}",
    "index": (
        "keeps a row for each training image: call loss(logits, labels, index) with the row numbers [B] of "
        "the batch, which a dataset can return beside each image"
    ),
    "step": "remembers what each step taught: call loss.step() after each step of the optimizer",
    "features": (
        "compares training images by their features: pass features=, an array [N, D], or call tertium.train"
    ),
    "held_out": (
        "needs the frequencies of the classes: pass frequencies=tertium.prior(…).frequencies, or "
        "predictions=, the probabilities [N, C] that models give to training images they have not seen, or "
        "call tertium.train"
    ),
}


class Loss(nn.Module):
    """The loss of a method, for any training loop.

    ``method`` is a name, whose parameters are given by name (``delta=0.5``), or a `Method`. ``labels`` are
    those of all training images: a `Labels`, or +1 present, −1 absent, 0 unknown in an array or tensor
    [N, C]. Many methods do not need them. ``epochs`` is how long you will train, for methods with a schedule.

    Some methods also need ``features`` [N, D] of the training images, ``predictions`` [N, C] (probabilities
    of another model) or ``frequencies`` (how often each class occurs, and how often it was annotated). An
    error says what is missing.

    >>> labels = torch.tensor([[1, 0, -1], [0, 1, 0], [-1, 0, 1], [0, 0, 0]])
    >>> inputs, head = torch.ones(4, 5), nn.Linear(5, 3)
    >>> loss = Loss("ll_cp", labels=labels, epochs=2)
    >>> loss.start(head)
    >>> optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    >>> for _ in range(2):
    ...     loss.epoch()
    ...     for index in torch.arange(4).split(2):
    ...         value = loss(head(inputs[index]), labels[index], index)
    ...         value.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...         loss.step()
    >>> sorted(loss.terms)
    ['bce']
    """

    def __init__(
        self,
        method: str | Method,
        *,
        labels: Labels | Tensor | npt.ArrayLike | None = None,
        epochs: int = 10,
        seed: int = 0,
        features: Rows | None = None,
        predictions: Rows | None = None,
        frequencies: Frequencies | Annotation | None = None,
        progress: Progress | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__()
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, not {epochs}")
        self.method = _method(method, parameters)
        self.terms: dict[str, Tensor] = {}
        known = None if labels is None else _labels(labels)
        if known is not None and frequencies is None:
            self.method.check(known)
        self._seed, self._calls = seed, 0  # of the loss, while training
        self._drawn_by = (torch.device("cpu"), 0)  # where the generator is, and of which process
        self._resumed: tuple[int, Tensor] | None = None  # a process, and the saved state of its generator
        self._taken: list[_Taken] = []  # steps that are not written back yet
        self._run = LoopRun(
            name=self.method.name,
            labels=known,
            epochs=epochs,
            rng=Generator().manual_seed(seed),
            given={"features": features, "predictions": predictions},
            frequencies=None if frequencies is None else _frequencies(frequencies, labels),
            note=(progress or Progress()).note,
        )
        self.method.prepare(self._run)

    def extra_repr(self) -> str:
        """Say which method it is, and how far it has come."""
        return f"{self.method}, epoch {self._run.epoch} of {self._run.epochs}"

    # ---- where to start ----------------------------------------------------------------------------------

    def initial_rate(self) -> Tensor:
        """Return per class [C] the probability that a model should begin with; its bias is the logit.

        It is what the loss itself would settle on if it could not see the images. A bias that starts far
        from it hardly gets there at the usual learning rates.
        """
        return torch.from_numpy(self.method.starting_rate(self._run))

    @torch.no_grad()
    def start(self, head: nn.Module) -> None:
        """Begin a new linear head at `initial_rate`: set its bias, and its weights to zero."""
        rate, bias, weight = self.initial_rate(), getattr(head, "bias", None), getattr(head, "weight", None)
        if not isinstance(bias, Tensor) or not isinstance(weight, Tensor) or bias.shape != rate.shape:
            raise InputError(
                f"loss.start needs a linear layer with a bias for each of {len(rate)} classes, not {head}"
            )
        weight.zero_()
        bias.copy_(torch.logit(rate))

    # ---- a step ------------------------------------------------------------------------------------------

    def forward(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss [] of logits [B, C] under labels [B, C] of +1 present, −1 absent, 0 unknown.

        ``index`` [B] says which rows of the training labels the batch holds; only methods that keep a row for
        each image ask for it. The parts of the loss are then in ``terms``, by name.
        """
        run = self._run
        if run.epoch == 0:
            self.epoch()
        with torch.autocast(logits.device.type, enabled=False):
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            batch = self._batch(logits, labels, index)
            run.rng = self._generator(logits.device)
            run.scratch = {}
            terms = self.method.terms(logits, batch, run)
            loss = reduce(add, terms.values())
        self.terms = {name: value.detach() for name, value in terms.items()}
        if self.training and torch.is_grad_enabled():
            self._calls += 1
            if self.method.remembers:
                self._remember(loss, _Taken(logits.detach(), batch, run.scratch))
        return loss

    def _batch(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Batch:
        run = self._run
        if logits.ndim != 2 or logits.shape != labels.shape:
            raise InputError(
                "logits and labels must both have the shape [B, C], but have "
                f"{list(logits.shape)} and {list(labels.shape)}"
            )
        if run.classes not in (None, logits.shape[1]):
            raise InputError(f"there are {logits.shape[1]} logits for {run.classes} classes")
        labels = labels.to(logits.device)
        signs = labels.to(torch.int8)
        wrong = signs.clamp(-1, 1) != labels
        if wrong.any():
            raise InputError(
                f"labels must be +1 present, −1 absent or 0 unknown, not {labels[wrong][0].item():g}"
            )
        rows = self._rows(index, len(logits)).to(logits.device)
        return Batch(logits.new_empty((len(logits), 0)), signs, rows)

    def _rows(self, index: Tensor | None, count: int) -> Tensor:
        run = self._run
        if index is None:
            if run.state.tables:
                run.lacks("index")
            return torch.full((count,), -1)
        rows = torch.as_tensor(index)
        if rows.shape != (count,) or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InputError(
                f"index must hold {count} whole numbers, one for each row of the batch, but is "
                f"{rows.dtype} of shape {list(rows.shape)}"
            )
        if run.classes is not None:
            strange = rows[(rows < 0) | (rows >= len(run.labels))]
            if len(strange):
                raise InputError(
                    f"index holds {strange[0].item()}, but the rows of the training labels go from 0 to "
                    f"{len(run.labels) - 1}"
                )
        return rows.long()

    def _generator(self, device: torch.device) -> Generator:
        """Return what draws for this process; it must be where the logits are."""
        here, rng = (device, rank()), self._run.rng
        if self._drawn_by != here or self._resumed is not None:
            rng = Generator(device).manual_seed(self._seed + rank() + (self._calls << 32))
            if self._resumed is not None:
                saved_by, state = self._resumed
                if saved_by == rank() and len(state) == len(rng.get_state()):  # of the same kind of device
                    rng.set_state(state)
            self._drawn_by, self._resumed = here, None
        return rng

    def _remember(self, loss: Tensor, taken: _Taken) -> None:
        """Keep a step until `step` writes it back; several, where gradients are accumulated."""
        if loss.requires_grad:
            loss.register_hook(partial(setattr, taken, "factor"))  # type: ignore[no-untyped-call]
        seen = sum(len(each.logits) for each in self._taken)
        if self._run.classes is not None and seen > len(self._run.labels):
            self._run.lacks("step")
        self._taken.append(taken)

    @torch.no_grad()
    def step(self, lr: float | None = None) -> None:
        """Write back what the last step taught: call it after the optimizer's, in every process.

        ``lr``, the learning rate of the head, is asked for by `role` alone.
        """
        run, own = self._run, self._run.rng
        if lr is not None:
            run.lr = float(lr)
        if world() > 1:  # all write the same, and must round the same way
            run.rng = Generator().manual_seed(self._seed + (self._calls << 32))
        for taken in self._taken:
            whole = taken.whole()
            run.scratch = whole.scratch
            self.method.after_step(whole.logits, whole.batch, run)
        run.rng, run.scratch = own, {}
        self._taken.clear()

    @torch.no_grad()
    def epoch(self) -> None:
        """Move on to the next epoch: call it at the beginning of each one, or at the end of each one."""
        if self._taken:
            self._run.lacks("step")
        self._run.epoch += 1
        self.method.before_epoch(self._run)

    # ---- saving and loading ------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Give tensors only, so that any kind of file can hold them."""
        drawn_by, rng = self._resumed or (self._drawn_by[1], self._run.rng.get_state())
        counts = {"epoch": self._run.epoch, "calls": self._calls, "rank": drawn_by}
        parts = self._run.state.to_dict() | {name: torch.tensor(count) for name, count in counts.items()}
        destination |= {prefix + name: value for name, value in (parts | {"rng": rng}).items()}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        saved = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        own = {name: saved.pop(name) for name in ("epoch", "calls", "rank", "rng") if name in saved}
        strange = [prefix + name for name in saved if not name.startswith(("table.", "tensor."))]
        if len(own) < 4 or strange:
            missing_keys += [prefix + name for name in ("epoch", "calls", "rank", "rng") if name not in own]
            unexpected_keys += strange
            return
        self._run.state.load_dict(saved)
        self._run.epoch, self._calls = int(own["epoch"]), int(own["calls"])
        # Each process draws for itself: one that was not saved starts anew, further on.
        self._resumed = (int(own["rank"]), own["rng"].cpu())
        self._taken.clear()


@dataclass
class _Taken:
    """A step that the method has not written back yet."""

    logits: Tensor  # [B, C] detached
    batch: Batch
    scratch: dict[str, Tensor]
    factor: Tensor | None = None  # by which the loss was multiplied before it went backward

    def whole(self) -> _Taken:
        """Return the step of all processes, gradients as if the plain loss had gone backward."""
        scratch = {name: self._settled(value) for name, value in self.scratch.items()}
        if world() == 1:
            return _Taken(self.logits, self.batch, scratch)
        logits = all_rows(self.logits)
        batch = Batch(logits[:, :0], all_rows(self.batch.labels), all_rows(self.batch.index))
        return _Taken(logits, batch, scratch)

    def _settled(self, value: Tensor) -> Tensor:
        if not value.requires_grad:
            return all_rows(value)
        if value.grad is None or self.factor is None:
            raise InputError("call loss.step() after backward(): its method learns from the gradient too")
        rows = all_rows(value.detach())
        # The gradients of processes are averaged, so that each has a share in the whole one.
        rows.grad = all_rows(value.grad / self.factor) / world()
        return rows


class LoopRun:
    """What a method may touch (`tertium.methods.Run`), as far as somebody's training loop has given it."""

    labels: Labels  # if given
    lr: float  # likewise
    whole = False

    def __init__(
        self,
        *,
        name: str,
        labels: Labels | None,
        epochs: int,
        rng: Generator,
        given: Mapping[str, Rows | None],
        frequencies: Frequencies | None,
        note: Callable[[str], None],
    ) -> None:
        self.name, self.epochs, self.rng, self.note = name, epochs, rng, note
        self.epoch = 0  # before the first
        self.scratch: dict[str, Tensor] = {}
        self.classes = None if labels is None else len(labels.classes)
        self.given, self.frequencies = given, frequencies
        if frequencies is not None and self.classes not in (None, len(frequencies.rate)):
            raise InputError(f"frequencies are of {len(frequencies.rate)} classes, not of {self.classes}")
        # Every process holds all rows: other people's loops may give an image to any of them.
        self.state = _NoTables(self) if labels is None else SampleState(*labels.shape)
        if labels is not None:
            self.labels = labels

    def __getattr__(self, name: str) -> NoReturn:
        """Say that what a method asks for was not given."""
        if name in ("labels", "lr"):
            self.lacks(name)
        raise AttributeError(name)

    @property
    def unasked(self) -> Labels:
        """All labels: a loop of your own does not say which of them were asked about."""
        return self.labels

    def lacks(self, what: str) -> NoReturn:
        """Say what is missing, and how to give it."""
        raise InputError(f'"{self.name}" {_NEEDS[what]}')

    def features(self) -> Array:
        """Return the features [N, D] that were given."""
        return self._array("features") if self.given["features"] is not None else self.lacks("features")

    def predictions(self, method: Method) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C] that were given."""
        if self.given["predictions"] is None:
            raise InputError(
                f'"{self.name}" needs what a model trained with "{method.name}" says of the training images: '
                "pass predictions=, the probabilities [N, C], or call tertium.train"
            )
        return self._array("predictions")

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C] that were given."""
        if self.given["predictions"] is None:
            self.lacks("held_out")
        return self._array("predictions")

    def _array(self, name: str) -> Array:
        given = self.given[name]
        found = given() if callable(given) else given
        rows = np.asarray(found.detach().cpu() if isinstance(found, Tensor) else found)
        expected: tuple[int, ...] = rows.shape[:2]
        if self.classes is not None:
            expected = (len(self.labels), *((self.classes,) if name == "predictions" else rows.shape[1:2]))
        if rows.ndim != 2 or rows.shape != expected:
            raise InputError(f"{name} must have the shape {list(expected)}, not {list(rows.shape)}")
        return rows

    def all_mean(self, value: Tensor) -> Tensor:
        """Return the mean over all processes; gradients flow through it."""
        return all_mean(value)


class _NoTables(SampleState):
    """The state where nobody said how many images there are."""

    def __init__(self, run: LoopRun) -> None:
        super().__init__(0, 0)
        self._run = run

    def _add(self, *_: Any) -> Table:
        self._run.lacks("table")


def _method(method: str | Method, parameters: Mapping[str, Any]) -> Method:
    if isinstance(method, str):
        return methods.make(method, parameters)
    if parameters:
        raise InputError(f"give {', '.join(parameters)} to {type(method).__name__}(…) itself")
    return method


def _labels(given: Labels | Tensor | npt.ArrayLike) -> Labels:
    if isinstance(given, Labels):
        return given
    return Labels.from_dense(given.cpu().numpy() if isinstance(given, Tensor) else given)


def _frequencies(given: Frequencies | Annotation, labels: object) -> Frequencies:
    """Return frequencies in the order of the classes: by name, where both sides have names."""
    if isinstance(given, Frequencies):
        return given
    found = given.for_classes(labels.classes) if isinstance(labels, Labels) else given
    return Frequencies(found.rate, found.low, found.high, found.present, found.absent, spread=0.0)
