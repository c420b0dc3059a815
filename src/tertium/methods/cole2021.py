"""Cole et al. 2021, "Multi-Label Learning from Single Positive Labels": its baselines, `epr` and `role`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from torch.nn import functional as F

from tertium.data import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.baselines import require_full
from tertium.methods.known import assumed_bce, known_bce

if TYPE_CHECKING:
    from torch import Tensor


def _even_share(classes: int) -> float:
    """One positive against C − 1 assumed negatives: this weight gives both sides the same say."""
    return 1 / max(classes - 1, 1)


def _weighted_rate(rate: npt.NDArray[np.float64], weight: float) -> npt.NDArray[np.float64]:
    """The rate at which BCE rests when negatives count only ``weight``."""
    return rate / (rate + (1 - rate) * weight)


@dataclass(frozen=True)
class Wan(Method):
    """Unknown labels are weak negatives: all but the positives count 1/(C − 1)."""

    name: ClassVar[str] = "wan"
    paper: ClassVar[str] = "Cole 2021"

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The observed rate, moved by the weight of the negatives."""
        return _weighted_rate(super().initial_rate(labels), _even_share(len(labels.classes)))

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

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The smoothed observed rate."""
        return super().initial_rate(labels) * (1 - 2 * self.smoothing) + self.smoothing

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries against 1 − s on the known positives, s elsewhere."""
        return {"bce": assumed_bce(logits, batch.labels, smoothing=self.smoothing)}


@dataclass(frozen=True)
class BceLs(AnLs):
    """Binary cross-entropy on full labels with smoothed targets."""

    name: ClassVar[str] = "bce_ls"
    aliases: ClassVar[tuple[str, ...]] = ()

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

    A class with known absences counts with its share of positives among what is known, as if one more image
    had shown the average share of such classes. That takes known labels for a fair sample: where positives
    were sought out (say one positive and one negative for each image) it is far too high. A class without
    known absences counts with the images where it is known to be present.

    Where nothing at all is known to be absent: the mean number of known positives of the images that have
    any, at least 1. That is too low by what is hidden: 1 for single positive labels, whatever the truth.

    >>> expected_positives(Labels.from_dense([[1, 0, 0], [0, 1, 1], [0, 0, 0]]))
    1.5
    """
    present, absent = labels.class_counts
    seen = labels.image_counts[0]
    if not absent.any():
        return float(max(seen.sum() / max(np.count_nonzero(seen), 1), 1))
    both, known = absent > 0, present + absent
    average = (present[both].sum() + 0.5) / (known[both].sum() + 1)
    rate = np.where(both, (present + average) / (known + 1), present / len(labels))
    return float(max(rate.sum(), seen.mean()))


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

    Without ``k``, it is estimated from the labels by `expected_positives`, which is good where labels are
    known at random, too low with positives only, too high where positives were sought out: give ``k`` then.
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

    def _expected(self, labels: Labels) -> float:
        return expected_positives(labels) if self.k is None else self.k

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the known labels' pull and the regulariser's are in balance."""
        return _resting_rate(labels, self._expected(labels), self.strength)

    def prepare(self, run: Run) -> None:
        """Fix k for the run."""
        run.state.tensors["expected_positives"] = torch.tensor(
            self._expected(run.labels), dtype=torch.float64
        )

    def _excess(self, scores: Tensor, run: Run) -> Tensor:
        """λ·((mean number of predicted positives − k)/C)², the mean being over the global batch."""
        rows, classes = scores.shape
        k = float(run.state.tensors["expected_positives"])
        return self.strength * ((run.all_mean(scores.sum() / rows) - k) / classes) ** 2

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """ℓ⁺ and ℓ⁻ on known entries, divided by B·C, and the regulariser."""
        return {"known": known_bce(logits, batch.labels), "count": self._excess(logits.sigmoid(), run)}


# ---- an estimate of every label, learnt along with the model ---------------------------------------------

_START = float(np.log(0.6 / 0.4))  # unknown labels start between the logits of 0.4 and 0.6
_SURE = float(np.log(0.995 / 0.005))  # known labels start at this logit
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam, as the authors leave them


def _first_estimates(labels: Labels, rng: torch.Generator) -> Tensor:
    """Logits [N, C]: ±logit(0.995) where known, uniform in ±logit(0.6) elsewhere.

    Drawn in the order of the sorted names, so an image keeps its numbers wherever it stands in the file.
    """
    drawn = torch.rand(labels.shape, generator=rng, device=rng.device).cpu().mul_(2 * _START).sub_(_START)
    rows = np.argsort(pc.array_sort_indices(labels.images).to_numpy())
    columns = np.argsort(np.argsort(np.array(labels.classes)))
    values = drawn[torch.from_numpy(rows)[:, None], torch.from_numpy(columns)]
    known_rows, known_columns, signs = (torch.from_numpy(part) for part in labels.coo())
    values[known_rows, known_columns] = signs * _SURE
    return values


@dataclass(frozen=True)
class Role(Epr):
    """An estimate of every training label is learnt along with the model; each is the other's target.

    Both are held to the known labels and to k expected positives (see `epr`). The estimates are the table
    "role" of logits; Adam trains them at ``lr_factor`` times the head's rate. With the optimizer "rows" only
    a batch's images are updated; "dense" is the authors' Adam, whose momentum moves all images at every
    step, which takes N·C operations.
    """

    lr_factor: float = 10.0
    optimizer: Literal["rows", "dense"] = "rows"
    name: ClassVar[str] = "role"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr_factor > 0:
            raise InputError(f"the lr_factor of role must be above 0, not {self.lr_factor}")

    def prepare(self, run: Run) -> None:
        """Draw the estimates, unless an earlier phase left its own."""
        if "expected_positives" not in run.state.tensors:
            run.state.table("role", values=_first_estimates(run.labels, run.rng))
        super().prepare(run)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Half of each term is the model's, half the estimates'; neither moves as the other's target."""
        estimate = run.state.table("role").read(batch.index).to(logits.dtype).requires_grad_()  # [B, C]
        run.state.tensors["role.batch"] = estimate  # until after_step
        scores, guesses = logits.sigmoid(), estimate.sigmoid()
        known = known_bce(logits, batch.labels) + known_bce(estimate, batch.labels)
        agree = F.binary_cross_entropy_with_logits(logits, guesses.detach())
        agree = agree + F.binary_cross_entropy_with_logits(estimate, scores.detach())
        count = self._excess(scores, run) + self._excess(guesses, run)
        return {"known": known / 2, "agree": agree / 2, "count": count / 2}

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Move the estimates by Adam."""
        estimate = run.state.tensors.pop("role.batch")
        assert estimate.grad is not None  # the loss has gone backward
        update = _adam_rows if self.optimizer == "rows" else _adam_dense
        update(run, batch.index, estimate.detach(), estimate.grad, self.lr_factor * run.lr)


def _adam_rows(run: Run, rows: Tensor, estimate: Tensor, gradient: Tensor, lr: float) -> None:
    """One step of Adam for these rows, each with its own count of steps."""
    tables = [run.state.table(f"role.{name}") for name in ("mean", "square")]
    counts = run.state.table("role.steps", values=torch.zeros(run.state.shape[0], 1))
    count = counts.read(rows) + 1
    counts.write(rows, count)
    mean = tables[0].read(rows).lerp_(gradient.float(), 1 - _BETAS[0])
    square = tables[1].read(rows).mul_(_BETAS[1])
    square.addcmul_(gradient.float(), gradient.float(), value=1 - _BETAS[1])
    tables[0].write(rows, mean)
    tables[1].write(rows, square)
    size = (square / (1 - _BETAS[1] ** count)).sqrt_().add_(_EPSILON)
    step = lr / (1 - _BETAS[0] ** count)
    run.state.table("role").write(rows, estimate - step * mean / size)


def _adam_dense(run: Run, rows: Tensor, estimate: Tensor, gradient: Tensor, lr: float) -> None:
    """One step of Adam for the whole table; rows outside the batch have gradient 0 but keep momentum."""
    mean, square = (run.state.table(f"role.{name}").values for name in ("mean", "square"))
    count = run.state.tensors.setdefault("role.steps", torch.zeros(())).add_(1)
    places, slope = rows.cpu(), gradient.to("cpu", mean.dtype)
    mean.mul_(_BETAS[0]).index_add_(0, places, slope, alpha=1 - _BETAS[0])
    square.mul_(_BETAS[1]).index_add_(0, places, slope**2, alpha=1 - _BETAS[1])
    size = (square / (1 - _BETAS[1] ** count)).sqrt_().add_(_EPSILON)
    step = lr / (1 - _BETAS[0] ** float(count))
    run.state.table("role").values.addcdiv_(mean, size, value=-step)
