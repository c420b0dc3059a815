"""Baselines: count unknown labels as absent or present, or leave them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.losses.known import assumed_bce, known_bce

if TYPE_CHECKING:
    from torch import Tensor


def require_full(labels: Labels, name: str) -> None:
    """Raise `InputError` if any label is unknown."""
    if not labels.is_full:
        total = len(labels) * len(labels.classes)
        raise InputError(
            f'"{name}" needs full labels, but {total - labels.known:,} of {total:,} are unknown; '
            'choose another method, or "--unlisted absent" if unlisted means absent'
        )


def check_weight(positive_weight: float) -> None:
    """Refuse a weight of known positives that would leave them out, turn them around, or drown the rest."""
    if not 0 < positive_weight < math.inf:
        raise InputError(f"positive_weight must be above 0 and finite, not {positive_weight}")


def require_absent(labels: Labels, name: str) -> None:
    """Raise `InputError` if no label is known to be absent."""
    if not (labels.entries < 0).any():
        raise InputError(
            f'"{name}" needs some labels that are known to be absent, but there are none; '
            'with positives only choose "negative", "an_ls" or "wan"'
        )


@dataclass(frozen=True)
class Bce(Method):
    """Binary cross-entropy on full labels; an unknown label is an error."""

    name: ClassVar[str] = "bce"
    paper: ClassVar[str] = "baseline"

    def check(self, labels: Labels) -> None:
        """Refuse labels that are not all known."""
        require_full(labels, self.name)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ where present, ℓ⁻ where absent."""
        return {"bce": assumed_bce(logits, batch.labels)}


@dataclass(frozen=True)
class Ignore(Method):
    """Learn from known labels only; unknown ones carry no loss."""

    name: ClassVar[str] = "ignore"
    paper: ClassVar[str] = "baseline (Kundu's NE, Cole's IU)"
    aliases: ClassVar[tuple[str, ...]] = ("ne", "iu")

    def check(self, labels: Labels) -> None:
        """Refuse labels with nothing absent: calling everything present would be perfect."""
        require_absent(labels, self.name)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Sum over known entries, divided by B·C."""
        return {"known": known_bce(logits, batch.labels)}


@dataclass(frozen=True)
class Negative(Method):
    """Call every unknown label absent."""

    positive_weight: float = 1.0
    name: ClassVar[str] = "negative"
    paper: ClassVar[str] = "baseline (Cole's AN; Kundu's FE has positive_weight 5)"
    aliases: ClassVar[tuple[str, ...]] = ("an", "fe")

    def __post_init__(self) -> None:
        check_weight(self.positive_weight)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries; ℓ⁺ counts ``positive_weight`` times."""
        return {"bce": assumed_bce(logits, batch.labels, positive_weight=self.positive_weight)}


@dataclass(frozen=True)
class Positive(Method):
    """Call every unknown label present."""

    name: ClassVar[str] = "positive"
    paper: ClassVar[str] = "baseline (CheXpert's U-ones)"

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁻ where known absent, ℓ⁺ elsewhere."""
        return {"bce": F.binary_cross_entropy_with_logits(logits, batch.labels.ge(0).to(logits.dtype))}
