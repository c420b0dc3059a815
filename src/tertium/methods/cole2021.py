"""Cole et al. 2021, "Multi-Label Learning from Single Positive Labels": its baselines, `epr` and `role`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar, Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run, observed_rate
from tertium.methods.baselines import require_full
from tertium.methods.losses.known import agreement, assumed_bce, known_bce_and_scores
from tertium.methods.starts import rest

if TYPE_CHECKING:
    from torch import Tensor


def _even_share(classes: int) -> float:
    """One positive against C − 1 assumed negatives: this weight gives both sides the same say."""
    return 1 / max(classes - 1, 1)


@dataclass(frozen=True)
class Wan(Method):
    """Unknown labels are weak negatives: all but the positives count 1/(C − 1)."""

    name: ClassVar[str] = "wan"
    paper: ClassVar[str] = "Cole 2021"

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ on the known positives and the weak ℓ⁻ elsewhere."""
        return {"bce": assumed_bce(logits, batch.labels, absent_weight=_even_share(logits.shape[1]))}


@dataclass(frozen=True)
class AnLs(Method):
    """Unknown labels are absent, with smoothed targets."""

    smoothing: float = 0.1
    name: ClassVar[str] = "an_ls"
    paper: ClassVar[str] = "Cole 2021"
    aliases: ClassVar[tuple[str, ...]] = ("lsan",)

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 0.5:  # beyond, present labels would be called absent
            raise InputError(f"the smoothing of {self.name} must lie in [0, 0.5), not {self.smoothing}")

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The observed rate, not the smoothed one at which the loss rests: models are a little better.

        The figures are in docs/readings.md (``python -m bench.readings DATA starts``).
        """
        return observed_rate(labels)

    def starting_rate(self, run: Run) -> npt.NDArray[np.float64]:
        """Where the loss rests if a network is trained: it would give up its features to get there."""
        return rest(self, run.labels) if run.whole else self.initial_rate(run.labels)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries against 1 − s on the known positives, s elsewhere."""
        return {"bce": assumed_bce(logits, batch.labels, smoothing=self.smoothing)}


@dataclass(frozen=True)
class BceLs(AnLs):
    """Binary cross-entropy on full labels with smoothed targets."""

    name: ClassVar[str] = "bce_ls"

    def check(self, labels: Labels) -> None:
        """Refuse labels that are not all known."""
        require_full(labels, self.name)


@dataclass(frozen=True)
class SampledNegative(Method):
    """Each unknown label enters as absent with a small probability, drawn anew each time.

    The default rate is 1/(C − 1): the same balance as `wan`, in expectation.
    """

    rate: float | None = None
    name: ClassVar[str] = "sampled_negative"
    paper: ClassVar[str] = "Cole 2021"

    @property
    def alone(self) -> str:
        """Each process draws for its images."""
        return "each process draws its own negatives"

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate <= 1:
            raise InputError(f"the rate of sampled negatives must lie in (0, 1], not {self.rate}")

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The share of positives among what enters: known labels and sampled negatives."""
        present, absent = labels.class_counts
        sampled = (len(labels) - present - absent) * self._rate(len(labels.classes))
        entering: npt.NDArray[np.float64] = present + absent + sampled + 1
        return (present + 0.5) / entering

    def _rate(self, classes: int) -> float:
        return _even_share(classes) if self.rate is None else self.rate

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Sum over known entries and drawn unknown ones, divided by B·C."""
        drawn = torch.rand(logits.shape, generator=run.rng, device=logits.device) < self._rate(
            logits.shape[1]
        )
        enters = (batch.labels.ne(0) | drawn).to(logits.dtype)
        target = batch.labels.gt(0).to(logits.dtype)
        return {"bce": F.binary_cross_entropy_with_logits(logits, target, enters)}


@dataclass(frozen=True)
class Ranking(Method):
    """Every known positive should score above every other label, by a margin of 1."""

    name: ClassVar[str] = "ranking"
    paper: ClassVar[str] = "Cole 2021"

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The observed rate: pairs say nothing about how high all scores lie."""
        return observed_rate(labels)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Sum over an image's pairs of max(0, 1 − p_pos + p_neg), divided by B·C.

        Probabilities differ by at most 1, so the maximum is never cut off and the sum over pairs splits into
        n_neg·Σ(1 − p_pos) + n_pos·Σ p_neg: linear in C instead of quadratic.
        """
        positive = batch.labels.gt(0).to(logits.dtype)  # [B, C]
        score = logits.sigmoid()
        count = positive.sum(dim=1)  # [B] positives
        caught = (positive * score).sum(dim=1)  # [B] Σ p_pos
        others = logits.shape[1] - count
        pairs = others * (count - caught) + count * (score.sum(dim=1) - caught)
        return {"ranking": pairs.sum() / logits.numel()}


# ---- the expected number of positives as a regulariser ---------------------------------------------------


def expected_positives(labels: Labels) -> float:
    """Estimate how many classes an image truly has, from its labels alone.

    Of the present labels let a share a be known, of the absent ones a share b, whatever the class. Then a
    class that N·p of the N images have is known present in x = a·N·p and known absent in y = b·N·(1 − p) of
    them, so y = b·N − (b/a)·x: a line through the classes, whose slope tells how much more eagerly presences
    were noted than absences.

    - The slope is −1 within three standard errors, or there are too few classes to tell: known labels are a
      fair sample. A class counts with its share of positives among them, as if one more image had shown the
      average share.
    - Otherwise presences were sought out, or left out: a class counts with x/(a·N), at most 1.
    - The line falls so little that a would be above 1 (say as many absences as presences for each class), or
      nothing is known to be absent: frequency has left no trace. The mean number of known positives of the
      images that have any, at least 1; too low by what is hidden: 1 for single positive labels, always.

    >>> expected_positives(Labels.from_dense([[1, 0, 0], [0, 1, 1], [0, 0, 0]]))
    1.5
    """
    present, absent = labels.class_counts
    seen = labels.image_counts[0]
    both, known = absent > 0, present + absent
    slope, error, start = _line(present[both], absent[both])
    noted = -start / slope if slope < 0 else math.inf  # presences of a class that all images have: a·N
    if both.any() and not abs(slope + 1) > 3 * error + 1e-9:  # not: nor where the slope is NaN
        average = (present[both].sum() + 0.5) / (known[both].sum() + 1)
        rate = np.where(both, (present + average) / (known + 1), present / len(labels))
    elif 0 < noted < len(labels) * (1 - 1e-9):
        rate = (present / noted).clip(max=1)
    else:
        return float(max(seen.sum() / max(np.count_nonzero(seen), 1), 1))
    return float(max(rate.sum(), seen.mean()))


def _line(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """Return the slope of the straight line through points, its standard error, and where it starts.

    Fewer than three points leave the slope open (NaN); three or more with the same x have slope 0.
    """
    if len(x) < 3:
        return math.nan, math.nan, math.nan
    aside = x - x.mean()
    spread = float((aside**2).sum())
    slope = float((aside * y).sum() / spread) if spread else 0.0
    rest = y - y.mean() - slope * aside
    error = math.sqrt(float((rest**2).sum()) / (len(x) - 2) / spread) if spread else 0.0
    return slope, error, float(y.mean() - slope * x.mean())


def _resting_rate(labels: Labels, k: float, strength: float) -> npt.NDArray[np.float64]:
    """Where the objective of `epr` rests if the prediction may not depend on the image.

    With a, b the shares of images known to have and to lack the class, a/p − b/(1 − p) = s there, s being
    the slope 2·strength·(Σp − k)/C of the regulariser: a quadratic for each class, whose sum falls with s.
    """
    present, absent = ((count + 0.5) / (len(labels) + 1) for count in labels.class_counts)
    absent = absent * (labels.class_counts[1] > 0)
    classes = len(labels.classes)

    def rate(slope: float) -> npt.NDArray[np.float64]:
        middle = slope + present + absent
        root = np.sqrt(np.maximum(middle**2 - 4 * slope * present, 0))
        return np.asarray(2 * present / (middle + root))

    # The slope where no class is predicted, and one above that where all are.
    low, high = -2 * strength * k / classes, 2 * strength
    for _ in range(60):  # halves the interval until float64 has no more digits
        slope = (low + high) / 2
        if 2 * strength * (rate(slope).sum() - k) / classes > slope:
            low = slope
        else:
            high = slope
    least = 0.5 / (len(labels) + 1)
    return rate(high).clip(least, 1 - least)


@dataclass(frozen=True)
class Epr(Method):
    """Learn from known labels only, while the mean number of predicted positives is held near k.

    Without ``k``, it is estimated from the labels by `expected_positives`, which is good where presences and
    absences are each known at random, and too low with positives only or with a fixed number of labels for
    each class: give ``k`` then, if you know it.
    """

    k: float | None = None
    strength: float = 1.0
    name: ClassVar[str] = "epr"
    paper: ClassVar[str] = "Cole 2021"

    def __post_init__(self) -> None:
        if self.k is not None and not self.k > 0:
            raise InputError(f"the expected positives k must be above 0, not {self.k}")
        if not self.strength > 0:
            raise InputError(f"the strength of {self.name} must be above 0, not {self.strength}")

    def check(self, labels: Labels) -> None:
        """Refuse labels with nothing present, and a k that no image can reach."""
        if not (labels.entries > 0).any():
            raise InputError(
                f'"{self.name}" needs some labels that are known to be present, but there are none'
            )
        if self.k is not None and self.k > len(labels.classes):
            raise InputError(
                f"k = {self.k:g} positives are expected, but there are {len(labels.classes)} classes"
            )

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the known labels' pull and the regulariser's are in balance."""
        k = expected_positives(labels) if self.k is None else self.k
        return _resting_rate(labels, k, self.strength)

    def prepare(self, run: Run) -> None:
        """Fix k for the run."""
        k = expected_positives(run.labels) if self.k is None else self.k
        run.state.tensors["expected_positives"] = torch.tensor(k, dtype=torch.float64)

    def _excess(self, predicted: Tensor, shape: torch.Size, run: Run) -> Tensor:
        """λ·((mean number of predicted positives − k)/C)², the mean being over the global batch."""
        rows, classes = shape
        k = float(run.state.tensors["expected_positives"])
        return self.strength * ((run.all_mean(predicted / rows) - k) / classes) ** 2

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """ℓ⁺ and ℓ⁻ on known entries, divided by B·C, and the regulariser."""
        known, predicted = known_bce_and_scores(logits, batch.labels)
        return {"known": known, "count": self._excess(predicted, logits.shape, run)}


# ---- an estimate of every label, learnt along with the model ---------------------------------------------

_START = float(np.log(0.6 / 0.4))  # unknown labels start between the logits of 0.4 and 0.6
_SURE = float(np.log(0.995 / 0.005))  # known labels start at this logit
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam, as the authors leave them
_WHOLE = 0.3  # the rate of a head, as a share of that of a whole network: estimates move alike with either


def _first_estimates(
    labels: Labels, seed: int, center: npt.NDArray[np.float32] | float
) -> Callable[[Tensor], Tensor]:
    """Return what gives the logits of some rows: ±logit(0.995) where known, else ``center`` [C] ± logit(0.6).

    What seems drawn is a hash of the seed, the image's name and the class's: it is the same wherever they
    stand in the file, and in however many processes and blocks the rows are asked for.
    """
    columns = _hashes(labels.classes, seed)

    def rows_of(rows: Tensor) -> Tensor:
        names = labels.images.take(pa.array(rows.numpy())).to_pylist()
        bits = _mixed(_hashes(names, seed)[:, None] ^ columns)
        values = (bits >> 8).astype(np.float32)
        values *= 2 * _START / 2**24
        values += center - _START
        known = labels.dense(rows)
        np.copyto(values, known * np.float32(_SURE), where=known != 0)
        return torch.from_numpy(values)

    return rows_of


def _hashes(names: Iterable[str], seed: int) -> npt.NDArray[np.uint32]:
    return _mixed(np.array([crc32(name.encode(), seed) for name in names], dtype=np.uint32))


def _mixed(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Change the bits in place so that near numbers come out unrelated (lowbias32 of C. Wellons)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits ^= bits >> shift
        bits *= np.uint32(factor)
    bits ^= bits >> 16
    return bits


def _shared_seed(run: Run) -> int:
    """Draw a number that is the same in all processes: that of process 0."""
    drawn = torch.randint(2**20, (), generator=run.rng, device=run.rng.device).float()
    return round(float(run.all_mean(drawn * (run.state.rank == 0)) * run.state.world))


@dataclass(frozen=True)
class Role(Epr):
    """An estimate of every training label is learnt along with the model; each is the other's target.

    Both are held to the known labels and to k expected positives (see `epr`). The estimates are the table
    "role" of logits. With the optimizer "rows" a batch's images are updated, and an estimate moves by about
    ``lr_factor`` times the head's rate each time it is seen: with the defaults by nearly 1 while the rate is
    highest, so that ten epochs are enough for it to make up its mind (docs/readings.md). At the rates of a
    whole network, three times as high, it would jump from one side to the other: it moves as with a head.
    "dense" is the authors' Adam, in which momentum moves all images at every step: N·C operations. It takes
    an estimate √T times as far in an epoch of T batches, up to 32 times, and wants a factor that much
    smaller: theirs is 10.
    """

    lr_factor: float = 3000.0
    optimizer: Literal["rows", "dense"] = "rows"
    name: ClassVar[str] = "role"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr_factor > 0:
            raise InputError(f"the lr_factor of role must be above 0, not {self.lr_factor}")

    def prepare(self, run: Run) -> None:
        """Draw the estimates, unless an earlier phase left its own."""
        if run.state.compact and self.optimizer == "dense":
            raise InputError(
                'the optimizer "dense" of role moves every estimate at every step, which is too much for '
                f'{run.state.shape[0]:,} images and {run.state.shape[1]:,} classes; choose "rows"'
            )
        if "expected_positives" not in run.state.tensors:
            start = _first_estimates(run.labels, _shared_seed(run), self._center(run))
            run.state.table("role", kind="logit", values=start)
        run.state.table("role.square", kind="size")
        if self.optimizer == "rows":
            run.state.table("role.steps", width=1)
        else:
            run.state.table("role.mean")
        super().prepare(run)

    def _center(self, run: Run) -> npt.NDArray[np.float32] | float:
        """Return the logits about which the estimates of unknown labels start.

        That is one half. In the few epochs of a network that is trained at once they would not come down from
        there, and the network would give up its features to meet them: there they start where it does.
        """
        if not (run.whole and self.optimizer == "rows"):
            return 0.0
        rate = self.initial_rate(run.labels)
        return np.log(rate / (1 - rate)).astype(np.float32)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Half of each term is the model's, half the estimates'; neither moves as the other's target."""
        estimate = run.state.table("role").read(batch.index).to(logits.dtype).requires_grad_()  # [B, C]
        run.scratch["estimate"] = estimate
        known, agree, *predicted = agreement(logits, estimate, batch.labels)
        count = reduce(add, [self._excess(each, logits.shape, run) for each in predicted])
        return {"known": known / 2, "agree": agree / 2, "count": count / 2}

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Move the estimates."""
        estimate = run.scratch["estimate"]
        assert estimate.grad is not None  # the loss has gone backward
        update = _move_rows if self.optimizer == "rows" else _adam_dense
        # Each process's loss is a mean over its own rows: that of all has a gradient w times smaller.
        gradient = estimate.grad / run.state.world
        rate = self.lr_factor * run.lr
        if self.optimizer == "rows" and run.whole:
            rate *= _WHOLE
        update(run, batch.index, estimate.detach(), gradient, rate)


def _move_rows(run: Run, rows: Tensor, estimate: Tensor, gradient: Tensor, lr: float) -> None:
    """One step for these rows: the gradient over its root mean square in all the row's batches so far.

    That is Adam without momentum, in which each row counts its own steps. Momentum would average over a row's
    last ten batches, which are as many as it gets in ten epochs.
    """
    squares, counts = run.state.table("role.square"), run.state.table("role.steps")
    count = counts.read(rows) + 1
    counts.write(rows, count)
    slope = gradient.float()
    square = squares.read(rows).mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
    squares.write(rows, square, run.rng)
    size = (square / (1 - _BETAS[1] ** count)).sqrt_().add_(_EPSILON)
    run.state.table("role").write(rows, estimate - lr * slope / size, run.rng)


def _adam_dense(run: Run, rows: Tensor, estimate: Tensor, gradient: Tensor, lr: float) -> None:
    """One step of Adam for the whole table; rows outside the batch have gradient 0 but keep momentum."""
    table, means, squares = (run.state.table(name) for name in ("role", "role.mean", "role.square"))
    count = run.state.tensors.setdefault("role.steps", torch.zeros(())).add_(1)
    step = lr / (1 - _BETAS[0] ** float(count))
    rows, gradient = rows.cpu(), gradient.float().cpu()
    for block in run.state.blocks():
        inside = (rows >= block[0]) & (rows <= block[-1])
        places, slope = (rows[inside] - block[0]) // run.state.world, gradient[inside]
        mean = means.read(block).mul_(_BETAS[0]).index_add_(0, places, slope, alpha=1 - _BETAS[0])
        square = squares.read(block).mul_(_BETAS[1]).index_add_(0, places, slope**2, alpha=1 - _BETAS[1])
        size = (square / (1 - _BETAS[1] ** count)).sqrt_().add_(_EPSILON)
        table.write(block, table.read(block).addcdiv_(mean, size, value=-step))
        means.write(block, mean)
        squares.write(block, square)
