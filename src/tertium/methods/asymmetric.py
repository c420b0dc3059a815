"""Focal (Lin 2017) and asymmetric (Ridnik 2021) losses, unknown labels taken as absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.methods.base import Method, Run
from tertium.methods.losses.compiled import softplus_and_sigmoid
from tertium.methods.losses.curves import Curve, focal, mean_except, mean_loss, positive_entries, power

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Focal(Method):
    """Unknown labels are absent; entries that are already right count less."""

    gamma: float = 2.0
    name: ClassVar[str] = "focal"
    paper: ClassVar[str] = "Lin 2017"

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise InputError(f"gamma of focal must not be negative, but is {self.gamma}")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of (1 − p_t)^γ · −log p_t, p_t being the probability of the target."""
        return {"focal": mean_loss(logits, batch.labels, self._absent, self._curve)}

    def _absent(self, logits: Tensor) -> Curve:
        return self._curve(logits, -torch.ones_like(logits))

    def _curve(self, logits: Tensor, signs: Tensor) -> Curve:
        return focal(logits, signs, gamma=self.gamma, margin=0.0, detached=False)


@dataclass(frozen=True)
class Asl(Method):
    """Unknown labels are absent; easy negatives are down-weighted, the easiest dropped."""

    gamma_positive: float = 0.0
    gamma_negative: float = 4.0
    clip: float = 0.05
    name: ClassVar[str] = "asl"
    paper: ClassVar[str] = "Ridnik 2021"

    def __post_init__(self) -> None:
        if not 0 <= self.clip < 1:
            raise InputError(f"the clip of asl must lie in [0, 1), not {self.clip}")
        if not self.gamma_positive >= 0:
            raise InputError(f"gamma_positive of asl must not be negative, but is {self.gamma_positive}")
        if not (self.gamma_negative == 0 or self.gamma_negative >= 1):
            raise InputError(f"gamma_negative of asl must be 0 or at least 1, not {self.gamma_negative}")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of (1 − p)^γ⁺ ℓ⁺ where present, p_m^γ⁻ · −log(1 − p_m) elsewhere.

        p_m = max(p − clip, 0).
        """
        places = positive_entries(batch.labels)
        return {"asl": mean_except(logits, self._absent, places, self._present)}

    def _absent(self, logits: Tensor) -> Curve:
        if self.clip == 0:
            loss, chance = softplus_and_sigmoid(logits)
            focus = power(chance, self.gamma_negative)
            rise = self.gamma_negative * loss * (1 - chance) + chance
            return focus * loss, focus * rise
        chance = logits.sigmoid()
        shifted = (chance - self.clip).relu_()  # below 1: its logarithm stays finite without help
        loss = -torch.log1p(-shifted)
        focus = power(shifted, self.gamma_negative)
        slope = focus / (1 - shifted)
        if self.gamma_negative:
            slope += self.gamma_negative * shifted ** (self.gamma_negative - 1) * loss
        return focus * loss, slope.mul_(chance > self.clip).mul_(chance).mul_(1 - chance)

    def _present(self, logits: Tensor) -> Curve:
        return focal(logits, torch.ones_like(logits), gamma=self.gamma_positive, margin=0.0, detached=False)
