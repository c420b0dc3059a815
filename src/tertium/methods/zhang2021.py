"""Zhang et al. 2021, "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.losses.curves import Curve, bce, focal, mean_loss


def _check_focal(name: str, gamma: float, margin: float) -> None:
    if gamma < 0:
        raise InputError(f"gamma of {name} must be at least 0, not {gamma}")
    if not math.isfinite(margin):
        raise InputError(f"the margin of {name} must be a finite number, not {margin}")


@dataclass(frozen=True)
class Hill(Method):
    """Unknown labels are absent, but the more confident the model is of one, the less it is pushed down.

    Unknown: (λ − p)·p², whose gradient 3p²(1 − p)² (for λ = 1.5) is largest at p = 1/2 and fades beyond it.
    That is the loss itself, not a weight, so all of it is differentiated. The paper knows no verified
    absences and has this curve for all negatives; a rule for unknown labels must not make a known one
    fade, so known absences carry plain ℓ⁻. Positives: focal with a margin, (1 − p_m)^γ · −log p_m where
    p_m = sigmoid(z − margin). Its weight is detached; the authors differentiate it (``detached=false``).
    """

    lam: float = 1.5
    margin: float = 1.0
    gamma: float = 2.0
    detached: bool = True
    name: ClassVar[str] = "hill"
    paper: ClassVar[str] = "Zhang 2021 (robust losses)"

    def __post_init__(self) -> None:
        _check_focal(self.name, self.gamma, self.margin)
        if self.lam < 1:
            raise InputError(f"lam of hill must be at least 1, not {self.lam}: losses would be negative")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries."""
        return {"hill": mean_loss(logits, batch.labels, self._unknown, self._known)}

    def _unknown(self, logits: Tensor) -> Curve:
        p = logits.sigmoid()
        square = p * p
        loss = (self.lam - p).mul_(square)
        # (2λp − 3p²)·p(1 − p)
        return loss, (2 * self.lam - 3 * p).mul_(square).mul_(p.neg_().add_(1))

    def _known(self, logits: Tensor, signs: Tensor) -> Curve:
        present = focal(logits, signs, gamma=self.gamma, margin=self.margin, detached=self.detached)
        absent = bce(logits, signs)
        loss, slope = (torch.where(signs > 0, *both) for both in zip(present, absent, strict=True))
        return loss, slope


@dataclass(frozen=True)
class Splc(Method):
    """Unknown labels are absent at first; from the second epoch on, those the model believes in are present.

    An unknown label with p > ``threshold`` counts as present from epoch ``start`` (from 1) on, for that step
    only. Present: focal with a margin, (1 − p_m)^γ · −log p_m where p_m = sigmoid(z − margin). Absent, known
    or not: focal, p^γ · ℓ⁻. The focal weights are detached; the authors' code differentiates them
    (``detached=false``). A known absence is never corrected, and a corrected label has the margin too (in the
    authors' code it has not, though the paper's loss⁺ is one).
    """

    threshold: float = 0.6
    start: int = 2
    margin: float = 1.0
    gamma: float = 2.0
    detached: bool = True
    name: ClassVar[str] = "splc"
    paper: ClassVar[str] = "Zhang 2021 (robust losses)"

    def __post_init__(self) -> None:
        _check_focal(self.name, self.gamma, self.margin)
        if not 0 < self.threshold < 1:
            raise InputError(f"the threshold of splc must lie in (0, 1), not {self.threshold}")
        if self.start < 1:
            raise InputError(f"splc cannot start before epoch 1, not at {self.start}")

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the losses balance before any correction: well above the observed rate, as p^γ fades.

        Not above the threshold, where a model that has seen nothing would believe in every unknown label.
        """
        return np.minimum(super().initial_rate(labels), self.threshold)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries."""
        unknown = self._believing if run.epoch >= self.start else self._absent
        return {"splc": mean_loss(logits, batch.labels, unknown, self._curve)}

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """The unknown labels that the model believes in, from epoch ``start`` on."""
        if run.epoch < self.start:
            return None
        return (logits.detach() > self._limit) & (batch.labels == 0)

    @property
    def _limit(self) -> float:
        """The logit above which the model believes."""
        return math.log(self.threshold / (1 - self.threshold))

    def _believing(self, logits: Tensor) -> Curve:
        return self._curve(logits, (logits > self._limit).to(logits.dtype).mul_(2).sub_(1))

    def _absent(self, logits: Tensor) -> Curve:
        return self._curve(logits, -torch.ones_like(logits))

    def _curve(self, logits: Tensor, signs: Tensor) -> Curve:
        return focal(logits, signs, gamma=self.gamma, margin=self.margin, detached=self.detached)
