"""Cole et al. 2021, "Multi-Label Learning from Single Positive Labels": its baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tertium.data import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.baselines import require_full

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
        target = batch.labels.gt(0).to(logits.dtype)
        weak = _even_share(logits.shape[1])
        return {"bce": F.binary_cross_entropy_with_logits(logits, target, target * (1 - weak) + weak)}


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
        target = batch.labels.gt(0).to(logits.dtype) * (1 - 2 * self.smoothing) + self.smoothing
        return {"bce": F.binary_cross_entropy_with_logits(logits, target)}


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
