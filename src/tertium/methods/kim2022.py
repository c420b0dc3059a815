"""Kim et al. 2022, "Large Loss Matters in Weakly Supervised Multi-Label Classification"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.methods.base import Method, Run
from tertium.methods.losses.curves import known_entries
from tertium.methods.losses.known import absent_except
from tertium.methods.state import Table

if TYPE_CHECKING:
    from torch import Tensor

Threshold = Literal["relative", "absolute"]
RateOf = Literal["unknown", "all"]

_SAMPLED = 61  # one logit in so many: a prime, so that every class has its turn


def large_losses(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """Choose the ``count`` unknown labels that cost the most when called absent: a Boolean mask [B, C].

    Exactly that many are chosen, or all unknown ones if they are fewer; known labels never. Of entries with
    the same logit those that come first, row by row, are taken.

    >>> large_losses(torch.tensor([[3.0, 1.0, 2.0, 1.0]]), torch.tensor([[1, 0, 0, 0]]), 2)
    tensor([[False,  True,  True, False]])
    """
    # bfloat16 fits into float32 without new ties; float32 and float64 stay as they are.
    values = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    known = known_entries(labels)
    count = min(count, labels.numel() - len(known))
    if count <= 0:
        return torch.zeros_like(labels, dtype=torch.bool)
    least = _nth_largest(values, known, count)
    chosen = (values >= least).contiguous()
    chosen.view(-1)[known] = False
    surplus = int(chosen.count_nonzero()) - count
    if surplus > 0:
        tied = (chosen & (values == least)).nonzero()[-surplus:]  # the last ones, row by row
        chosen[tied[:, 0], tied[:, 1]] = False
    return chosen


def _nth_largest(values: Tensor, known: Tensor, count: int) -> float:
    """ℓ⁻ rises with the logit, so the order of the losses is the order of the logits."""
    candidates = values.flatten().index_fill(0, known, -math.inf)  # the copy that the partition needs
    if values.device.type != "cpu":
        return float(candidates.topk(count).values[-1])
    ordered = _highest(candidates.numpy(), count)
    ordered.partition(len(ordered) - count)  # many times faster than torch's
    return float(ordered[-count])


def _highest(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return every value from some level on, ``count`` or more: few of many if a sample tells that level."""
    sample = values[::_SAMPLED]
    rank = math.ceil(count / _SAMPLED + 4 * math.sqrt(count / _SAMPLED) + 8)  # rarely too high a level
    if rank >= len(sample):
        return values
    level = np.partition(sample, len(sample) - rank)[-rank]
    found = values[np.flatnonzero(values >= level)]
    return found if len(found) >= count else values


def _share(percent: float, times: int, total: int) -> int:
    """Return ⌈times · percent/100 · total⌉, exact for the percentage as it is written."""
    share = _as_written(percent)
    return -(-share.numerator * times * total // (100 * share.denominator))


@cache
def _as_written(percent: float) -> Fraction:
    return Fraction(str(percent))


@dataclass(frozen=True)
class LargeLoss(Method):
    """What the three methods share: choosing, after the first epoch, unknown labels of large loss.

    ``delta`` is a percentage: relative to ``rate_of``, (t − 1)·delta % of a batch are chosen in epoch t. The
    absolute threshold is start − t·step instead. The authors do not say their values: with ours an unknown
    label is chosen in epoch 2 if the model gives it more than 85 %, in epoch 26 more than 50 %; at or below
    a threshold of 0 (from epoch 40 on) every unknown label is.
    """

    delta: float = 0.2
    threshold: Threshold = "relative"
    start: float = 2.0
    step: float = 0.05
    rate_of: RateOf = "unknown"

    @property
    def alone(self) -> str:
        """A relative threshold is one of the process's own batch."""
        return (
            "the largest losses are chosen in each process's own batch"
            if self.threshold == "relative"
            else ""
        )

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 100:
            raise InputError(
                f"delta of {self.name} is a percentage and must lie in [0, 100], not {self.delta}"
            )
        if not 0 < self.start < math.inf:
            raise InputError(f"start of {self.name} is a loss and must be above 0, not {self.start}")
        if not 0 <= self.step < math.inf:
            raise InputError(f"step of {self.name} must not be negative, but is {self.step}")
        for key, kind in (("threshold", Threshold), ("rate_of", RateOf)):
            if getattr(self, key) not in get_args(kind):
                raise InputError(
                    f"{key} of {self.name} must be one of {get_args(kind)}, not {getattr(self, key)!r}"
                )

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries, rejected ones too, of ℓ⁺ where present, ℓ⁻ elsewhere, as modified."""
        chosen = self._choose(logits, batch.labels, run.epoch)
        return {"bce": self._modified(logits, batch.labels, chosen)}

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """What is chosen at this step."""
        return self._choose(logits, batch.labels, run.epoch)

    def _modified(self, logits: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        """Return the loss, in which the chosen entries do not simply count as absent."""
        raise NotImplementedError

    def _choose(self, logits: Tensor, labels: Tensor, epoch: int) -> Tensor:
        """Return the mask [B, C] of what is modified: in epoch 1, while what is clean is learnt, nothing."""
        if epoch == 1:
            return torch.zeros_like(labels, dtype=torch.bool)
        if self.threshold == "absolute":
            return (labels == 0) & (logits.detach() > self._limit(epoch))
        total = labels.numel()
        if self.rate_of == "unknown":
            total -= int(labels.count_nonzero())
        return large_losses(logits, labels, _share(self.delta, self._times(epoch), total))

    def _times(self, epoch: int) -> int:
        """How often delta counts."""
        return epoch - 1

    def _limit(self, epoch: int) -> float:
        """The logit at which ℓ⁻ reaches the threshold."""
        loss = self.start - epoch * self.step
        return loss + math.log(-math.expm1(-loss)) if loss > 0 else -math.inf


@dataclass(frozen=True)
class LlR(LargeLoss):
    """Unknown labels are absent, but those of largest loss are left out, more of them each epoch."""

    delta: float = 0.4
    name: ClassVar[str] = "ll_r"
    paper: ClassVar[str] = "Kim 2022"

    def _modified(self, logits: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        return absent_except(logits, labels, chosen, weight=0.0)


@dataclass(frozen=True)
class LlCt(LargeLoss):
    """Unknown labels are absent, but those of largest loss count as present, more of them each epoch."""

    name: ClassVar[str] = "ll_ct"
    paper: ClassVar[str] = "Kim 2022"

    def _modified(self, logits: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        return absent_except(logits, labels, chosen, weight=1.0)


@dataclass(frozen=True)
class LlCp(LlCt):
    """Unknown labels are absent, but in each batch a few of largest loss become present for good.

    Each time delta % of those not yet corrected; they count as present from that very step on.
    """

    name: ClassVar[str] = "ll_cp"

    def prepare(self, run: Run) -> None:
        """Make the table of corrections."""
        self._corrected(run)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ where present or corrected, ℓ⁻ elsewhere."""
        labels = self._labels(batch, run)
        chosen = self._choose(logits, labels, run.epoch)
        run.scratch["chosen"] = chosen
        return {"bce": self._modified(logits, labels, chosen)}

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """All that was ever corrected, this step's choice included."""
        labels = self._labels(batch, run)
        return (labels != batch.labels) | self._choose(logits, labels, run.epoch)

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Write down what was corrected. Entry by entry: an image may be in a batch twice."""
        places, columns = run.scratch["chosen"].nonzero(as_tuple=True)
        images, image = torch.unique(batch.index, return_inverse=True)
        corrected = self._corrected(run).read(images)
        corrected[image[places], columns] = True
        self._corrected(run).write(images, corrected)

    def _labels(self, batch: Batch, run: Run) -> Tensor:
        """The labels as corrected so far."""
        return batch.labels.masked_fill(self._corrected(run).read(batch.index), 1)

    def _corrected(self, run: Run) -> Table:
        return run.state.table("corrected", kind="flag")

    def _times(self, epoch: int) -> int:
        return 1
