"""Focal (Lin 2017) and asymmetric (Ridnik 2021) losses, unknown labels taken as absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional as F

from tertium.data import Batch
from tertium.errors import InputError
from tertium.methods.base import Method, Run
from tertium.methods.curves import power

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Focal(Method):
    """Unknown labels are absent; entries that are already right count less."""

    gamma: float = 2.0
    name: ClassVar[str] = "focal"
    paper: ClassVar[str] = "Lin 2017"

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of (1 − p_t)^γ · −log p_t, p_t being the probability of the target."""
        toward = torch.where(batch.labels.gt(0), logits, -logits)
        # (1 − p_t)^γ as exp(γ·log(1 − p_t)): its gradient is finite for every γ and every logit.
        return {"focal": ((self.gamma * F.logsigmoid(-toward)).exp() * -F.logsigmoid(toward)).mean()}


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
        if not (self.gamma_negative == 0 or self.gamma_negative >= 1):
            raise InputError(f"gamma_negative of asl must be 0 or at least 1, not {self.gamma_negative}")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of (1 − p)^γ⁺ ℓ⁺ where present, p_m^γ⁻ · −log(1 − p_m) elsewhere.

        p_m = max(p − clip, 0). With clip > 0 the logarithm stays finite without help.
        """
        chance = logits.sigmoid()
        if self.clip > 0:
            shifted = (chance - self.clip).clamp(min=0)
            absent = -power(shifted, self.gamma_negative) * torch.log1p(-shifted)
        else:
            absent = -power(chance, self.gamma_negative) * F.logsigmoid(-logits)
        present = -F.logsigmoid(logits)
        if self.gamma_positive:
            present = (self.gamma_positive * F.logsigmoid(-logits)).exp() * present
        positive = batch.labels.gt(0)
        return {"asl": torch.where(positive, present, absent).mean()}
