"""The training loop."""

from __future__ import annotations

import copy
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from tertium.annotation.frequencies import Frequencies
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together
from tertium.config import Phase, Plan, Settings
from tertium.data.batches import Batch, Loader
from tertium.distributed import all_mean, share_buffers
from tertium.errors import InputError, some
from tertium.labels import Labels
from tertium.methods import Method
from tertium.methods.state import SampleState
from tertium.models.classifier import Average, Classifier
from tertium.processes import rank, world
from tertium.progress import Progress
from tertium.threads import suited_to
from tertium.training.choosing import Best, Judge, Record, Verdict
from tertium.training.engine import Engine, engine_for
from tertium.training.memorisation import Memorisation

TIMEOUT = 600  # seconds after which a process that waits in vain for another gives up
_STEPS = (10 / 36, 20 / 36)  # after which shares of the training a rate falls to a tenth
_UNREAD = 32  # losses that a GPU may leave unread: reading one waits until all its work is done


def _unavailable(*_: Any) -> Any:
    raise InputError("this method needs more than a bare fit: call tertium.train")


@dataclass(frozen=True)
class Offers:
    """What a method may ask of its `Run` that takes more than a fit."""

    features: Callable[[], npt.NDArray[Any]] = _unavailable
    predictions: Callable[[Method], npt.NDArray[np.float32]] = _unavailable
    held_out: Callable[[Method, int], npt.NDArray[np.float32]] = _unavailable


@dataclass
class FitRun:
    """What a method may touch while it trains (`tertium.methods.Run`)."""

    labels: Labels
    state: SampleState
    epochs: int
    rng: torch.Generator
    offers: Offers
    note: Callable[[str], None]
    whole: bool = False  # whether the backbone is trained too
    epoch: int = 1
    lr: float = 0.0
    share: float = 1.0  # of this process's batch (`Batch.share`)
    frequencies: Frequencies | None = None  # are the method's to find out
    scratch: dict[str, Tensor] = field(default_factory=dict)  # of one step
    before: Labels | None = None  # anybody was asked, if anybody was

    @property
    def unasked(self) -> Labels:
        """The labels without what people were asked about: how labels were annotated shows in these."""
        return self.labels if self.before is None else self.before

    def features(self) -> npt.NDArray[Any]:
        """Return frozen features [N, D] of the training images."""
        return self.offers.features()

    def predictions(self, method: Method) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C] that a temporary model, trained with another method, gives."""
        return self.offers.predictions(method)

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        """Return probabilities [N, C], each from a temporary model that has not trained on that image."""
        return self.offers.held_out(method, epochs)

    def all_mean(self, value: Tensor) -> Tensor:
        """Return the mean over all processes, weighted by their rows; gradients flow through it."""
        return all_mean(value * self.share) if world() > 1 else value


Validate = Callable[[Classifier, Judge], Verdict]


@dataclass(frozen=True)
class Fitted:
    """The best model of a fit, and what each epoch gave."""

    model: Classifier
    records: list[Record]
    best_epoch: int
    kept: Verdict  # on the model as it is
    judge: Judge | None = None  # by which it was chosen
    annotation: Annotation | None = None  # of the training labels, if the method models it
    together: Together | None = None  # how those go together, likewise


def make_fabric(settings: Settings) -> Fabric:
    """Return the engine: one device or several, in bfloat16 where the hardware has it.

    Under torchrun the environment says how many processes there are; else ``devices`` and ``nodes`` do.
    """
    precision: Any = settings.precision
    if precision == "auto":
        on_gpu = settings.device != "cpu" and torch.cuda.is_available()
        precision = "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices))
    nodes = int(os.environ.get("WORLD_SIZE", devices * settings.nodes)) // devices
    several = devices * nodes > 1
    if not torch.cuda.is_available():
        # Lightning sets this to 1: then each step of an optimizer looks for a driver, on disk and in vain.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    return Fabric(
        accelerator=settings.device,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy=DDPStrategy(timeout=timedelta(seconds=TIMEOUT)) if several else "auto",
    )


class _Loss(NamedTuple):
    """What a step gave, still on its device."""

    epoch: int
    step: int
    images: Tensor  # their rows
    terms: dict[str, Tensor]
    total: Tensor


class Losses:
    """The losses since they were last read; one that is not finite ends the training.

    On the CPU each is read at once. On a GPU that would let it idle at every step, so that a few wait; they
    are read before anything of the model is validated or written.
    """

    def __init__(self, labels: Labels, device: torch.device) -> None:
        self._labels, self._waits = labels, device.type != "cpu"
        self._unread: list[_Loss] = []

    def add(self, loss: _Loss) -> None:
        """Take the loss of a step."""
        if not self._waits:
            self._check(loss, loss.total.item())
            return
        self._unread.append(loss)
        if len(self._unread) == _UNREAD:
            self.read()

    def read(self) -> None:
        """Raise `InputError` for the first of them that is not finite; it names the images of the batch."""
        unread, self._unread = self._unread, []
        totals = torch.stack([loss.total for loss in unread]).tolist() if unread else []  # one wait for all
        for loss, total in zip(unread, totals, strict=True):
            self._check(loss, total)

    def _check(self, loss: _Loss, total: float) -> None:
        if math.isfinite(total):
            return
        values = {name: value.item() for name, value in loss.terms.items()}
        strange = {name: value for name, value in values.items() if not math.isfinite(value)}
        told = strange or {"sum": total}
        which = ", ".join(f'"{name}" is {value}' for name, value in told.items())
        ids = self._labels.images.take(pa.array(loss.images.cpu().numpy())).to_pylist()
        raise InputError(
            f"the loss is not finite in epoch {loss.epoch}, step {loss.step}: {which}; the images of this "
            f"batch are {some(ids, 8)}; look at their inputs, or try a smaller lr"
        )


class Course:
    """All that changes while a model is fitted: what a checkpoint keeps."""

    def __init__(
        self, model: Classifier, phase: Plan, run: FitRun, memory: Memorisation | None = None
    ) -> None:
        self.model, self.run, self.memory = model, run, memory
        self.optimizer = _optimizer(model, phase)
        self.average = Average(model, phase.ema) if phase.ema else None
        self.best = Best(later=run.whole)
        self.losses = Losses(run.labels, model.head.weight.device)
        self.records: list[Record] = []
        self.step = 0  # done in this epoch
        self.totals: dict[str, Tensor] = {}  # of this epoch, each term summed over its steps
        self.seconds = 0.0  # of this epoch

    @property
    def judged(self) -> Classifier:
        """The model that is validated and kept."""
        return self.average.model if self.average else self.model

    def after_step(self, terms: Mapping[str, Tensor], seconds: float) -> None:
        """Count a step."""
        if self.average:
            self.average.update()
        for name, value in terms.items():
            part = value if self.run.share == 1 else value * self.run.share
            self.totals[name] = self.totals[name] + part if name in self.totals else part
        self.step, self.seconds = self.step + 1, seconds

    def check_finite(self) -> None:
        """Raise `InputError` if a loss or a weight is not finite: nothing of that is validated or kept."""
        self.losses.read()
        if not all(bool(value.isfinite().all()) for value in self.model.parameters()):
            raise InputError(
                f"the weights are not finite after epoch {self.run.epoch}, step {self.step}; try a smaller lr"
            )

    def after_epoch(self, verdict: Verdict) -> None:
        """Keep an epoch's figures, and the weights if they are the best; go on to the next epoch."""
        self.records.append(verdict.figures)
        self.best.offer(self.run.epoch, verdict, self.judged)
        self.run.epoch += 1
        self.step, self.totals, self.seconds = 0, {}, 0.0

    def best_is_old(self, patience: int) -> bool:
        """Return whether so many epochs have brought nothing better."""
        return len(self.records) - self.best.epoch >= patience

    def figures(self) -> dict[str, Any]:
        """Return the plain values that say how far the fit has come."""
        return {
            "epoch": self.run.epoch,
            "step": self.step,
            "seconds": self.seconds,
            "terms": list(self.totals),  # in their order: the last bit of their sum depends on it
            "records": self.records,
            "best_epoch": self.best.epoch,
            "averaged": self.average.steps if self.average else 0,
        }

    def shared(self) -> dict[str, Tensor]:
        """Return the tensors that are the same in all processes."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "best": self.best.state,
            "optimizer": {
                f"{number}.{name}": value
                for number, held in self.optimizer.state_dict()["state"].items()
                for name, value in held.items()
            },
            "total": {name: all_mean(value) for name, value in self.totals.items()},
        }
        if self.average:
            parts["average"] = self.average.model.state_dict()
        parts["judged"] = self.best.judgements()
        return _flat(parts)

    def own(self) -> dict[str, Tensor]:
        """Return what differs between processes: the random streams, and what is known of their images."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "rng": {"method": self.run.rng.get_state(), "torch": torch.get_rng_state()},
            "total": self.totals,  # the mean, which all share, would round once more
            "memory": self.memory.to_dict() if self.memory else {},
        }
        return _flat(parts)

    def restore(
        self, figures: Mapping[str, Any], shared: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> None:
        """Take over what `figures`, `shared` and `own` gave."""
        parts, mine = _nested(shared), _nested(own)
        self.model.load_state_dict(parts["model"])
        if self.average:
            self.average.model.load_state_dict(parts["average"])
            self.average.steps = figures["averaged"]
        self._restore_optimizer(parts["optimizer"])
        device = self.model.head.weight.device
        totals = mine["total"] if own else parts["total"]
        self.totals = {name: totals[name].to(device) for name in figures["terms"]}
        self.records, self.step, self.seconds = figures["records"], figures["step"], figures["seconds"]
        self.best.restore(figures["best_epoch"], parts["best"], self.records, parts["judged"])
        self.run.epoch = figures["epoch"]
        if own:  # with another number of processes the streams start anew
            self.run.rng.set_state(mine["rng"]["method"])
            torch.set_rng_state(mine["rng"]["torch"])
            if self.memory:
                self.memory.load(mine["memory"])

    def _restore_optimizer(self, saved: Mapping[str, Tensor]) -> None:
        whole = self.optimizer.state_dict()
        weights = [value for group in self.optimizer.param_groups for value in group["params"]]
        for key, value in saved.items():
            number, _, name = key.partition(".")
            weight = weights[int(number)]
            # The fused step takes a weight and its moments to lie in memory alike.
            alike = torch.empty_like(weight) if value.shape == weight.shape else torch.empty_like(value)
            whole["state"].setdefault(int(number), {})[name] = alike.copy_(value)
        self.optimizer.load_state_dict(whole)


def _flat(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}.{name}": value for part, held in parts.items() for name, value in held.items()}


def _nested(flat: Mapping[str, Tensor]) -> defaultdict[str, dict[str, Tensor]]:
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in flat.items():
        part, _, name = key.partition(".")
        parts[part][name] = value
    return parts


class Keeper:
    """Saves the course of a fit and restores it; this one does neither."""

    def restore(self, course: Course) -> None:
        """Take up what was kept."""

    def offer(self, course: Course) -> None:
        """Write a checkpoint, if it is time to; called after each step and each epoch."""


def fit(
    model: Classifier,
    method: Method,
    loader: Loader,
    phase: Plan,
    *,
    labels: Labels,
    before: Labels | None = None,
    fabric: Fabric,
    validate: Validate,
    seed: int = 0,
    state: SampleState | None = None,
    offers: Offers | None = None,
    new: bool = False,
    record: Callable[[Record], None] = lambda _: None,
    memory: Memorisation | None = None,
    keeper: Keeper | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train ``model`` and return it as it was after its best epoch, finished by its method.

    ``before`` are the labels before anybody was asked, if answers are among them.
    ``validate`` gives a verdict on a model after each epoch; if it has neither a judgement nor a score,
    nothing is chosen and the last epoch counts. ``record`` gets the figures of each epoch. ``state`` outlives
    a phase. The bias of a ``new`` head starts where the method says. ``memory`` observes the training if the
    truth is known; it does not influence it.
    """
    progress, keeper = progress or Progress(), keeper or Keeper()
    rng = torch.Generator(fabric.device).manual_seed(seed)
    state = state or SampleState(*labels.shape, rank=rank(), world=world())
    whole = model.backbone is not None
    run = FitRun(labels, state, phase.epochs, rng, offers or Offers(), progress.note, whole, before=before)
    _prepare(model.to(fabric.device), method, run, seed, new=new)
    course = Course(model, phase, run, memory)
    judge = partial(method.judge, run=run)
    step = partial(_step, course, method, engine_for(fabric, model, course.optimizer), phase)
    keeper.restore(course)
    progress.start(f"training {method.name}", phase.epochs * len(loader), "batches")
    progress.advance((run.epoch - 1) * len(loader) + course.step)
    product = model.width * len(model.classes) * phase.batch_size
    with nullcontext() if whole else suited_to(product):
        while run.epoch <= phase.epochs:
            started = time.perf_counter() - course.seconds
            if course.step == 0:
                method.before_epoch(run)
            model.train()
            for batch in loader.epoch(run.epoch, course.step):
                done = ((run.epoch - 1) * len(loader) + course.step + 0.5) / (phase.epochs * len(loader))
                terms = step(batch.to(fabric.device), done)
                course.after_step(terms, time.perf_counter() - started)
                progress.advance()
                keeper.offer(course)
            course.check_finite()
            share_buffers(course.judged)
            verdict = validate(course.judged, judge)
            verdict = Verdict(_epoch_record(course, len(loader)) | verdict.figures, verdict.each)
            record(verdict.figures)
            course.after_epoch(verdict)
            if course.best_is_old(phase.patience):
                how = "better" if verdict.each is None else "judged clearly better"
                progress.note(f"stopped early: nothing {how} since epoch {course.best.epoch}")
                break
            keeper.offer(course)
    kept = _finish(course, method, lambda model: validate(model, judge))
    found = method.annotation(run), method.together(run)
    return Fitted(course.judged.eval(), course.records, course.best.epoch, kept, judge, *found)


def _step(
    course: Course, method: Method, engine: Engine, phase: Plan, batch: Batch, done: float
) -> dict[str, Tensor]:
    """Take one step, at this share of all of them; return the named parts of its loss."""
    run = course.run
    run.share, run.lr = batch.share, _set_rate(course.optimizer, rate_factor(phase, done))
    logits = engine.forward(batch.inputs)
    terms = method.terms(logits, batch, run)
    loss = reduce(add, terms.values())
    values = {name: value.detach() for name, value in terms.items()}
    course.losses.add(_Loss(run.epoch, course.step + 1, batch.index, values, loss.detach()))
    engine.backward(loss if batch.share == 1 else loss * batch.share)
    if phase.clip:
        clip_grad_norm_(course.model.parameters(), phase.clip)
    engine.move()
    with torch.no_grad():
        if course.memory:
            course.memory.see(logits, batch, method.corrected(logits, batch, run))
        method.after_step(logits, batch, run)
    run.scratch.clear()
    return values


def _finish(course: Course, method: Method, validate: Callable[[Classifier], Verdict]) -> Verdict:
    """Go back to the best epoch, let the method finish the model, and return what is true of it."""
    model, best = course.judged, course.best
    assert best.verdict is not None
    model.load_state_dict(best.state)
    kept, state = best.verdict, best.state
    for number, said in enumerate(method.finish(model.eval(), course.run)):
        verdict = validate(model)
        gain = verdict.gain(kept)
        if number == 0:
            is_good = gain is None or gain.mean >= -gain.error  # unless it is clearly worse
        else:
            # Twice the error: it is itself unsure where few labels are known. Nor may these be ranked worse.
            is_good = gain is not None and gain.mean > 2 * gain.error and not verdict.ranks_below(kept)
        if is_good:
            kept, state = verdict, copy.deepcopy(model.state_dict())
            if said:
                course.run.note(said)
    model.load_state_dict(state)
    return kept


def _prepare(model: Classifier, method: Method, run: FitRun, seed: int, *, new: bool) -> None:
    method.prepare(run)
    if new:
        model.start_at(method.starting_rate(run))
    if rank() > 0:  # what is drawn before is for all images, from here on for those of a process
        run.rng.manual_seed(seed + rank())


def _optimizer(model: Classifier, phase: Plan) -> torch.optim.AdamW:
    groups = model.groups(phase.lr, phase.backbone_lr, phase.weight_decay)
    for group in groups:
        group["peak"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Set the rates of all groups; return that of the head, which comes first."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return float(optimizer.param_groups[0]["lr"])


def rate_factor(phase: Phase, done: float) -> float:
    """Return the learning rate at a share of the steps, relative to its peak.

    It rises linearly over ``warmup``; then it stays (constant), or falls along a cosine to 0. One-cycle
    starts and ends lower: at 1/25 of the peak, and at nothing. Steps are to a tenth and to a hundredth, where
    Kundu 2020 has them: after 10 and 20 of 36 epochs.

    >>> from tertium.config import HEAD
    >>> [round(rate_factor(HEAD, done), 2) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    floor = 0.04 if phase.schedule == "one_cycle" else 0.0
    if done < phase.warmup:
        return floor + (1 - floor) * done / phase.warmup
    if phase.schedule == "constant":
        return 1.0
    if phase.schedule == "steps":
        return 0.1 ** sum(done >= step for step in _STEPS)
    return (1 + math.cos(math.pi * (done - phase.warmup) / (1 - phase.warmup))) / 2


def _epoch_record(course: Course, batches: int) -> Record:
    terms = {name: float(all_mean(value)) / batches for name, value in course.totals.items()}
    figures = {"epoch": course.run.epoch, "loss": sum(terms.values()), "terms": terms}
    if course.memory:
        figures["memory"] = course.memory.end_epoch()
    return figures | {"seconds": round(course.seconds, 3)}
