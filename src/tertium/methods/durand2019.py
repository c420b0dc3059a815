"""Durand et al. 2019, "Learning a Deep ConvNet for Multi-label Classification with Partial Labels"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Run
from tertium.methods.baselines import Ignore
from tertium.methods.losses.known import known_bce
from tertium.methods.starts import rest
from tertium.methods.state import Table

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WeightedIgnore(Ignore):
    """Learn from known labels only, each image weighted by α·r^γ + β, r being its share of known labels."""

    alpha: float = -4.45
    beta: float = 5.45
    gamma: float = 1.0
    name: ClassVar[str] = "weighted_ignore"
    paper: ClassVar[str] = "Durand 2019"
    aliases: ClassVar[tuple[str, ...]] = ("wne", "wce")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Sum over known entries, each with its image's weight, divided by B·C."""
        return {"known": known_bce(logits, batch.labels, self._image_weight(logits, batch.labels))}

    def _image_weight(self, logits: Tensor, labels: Tensor) -> Tensor:
        share = labels.ne(0).sum(dim=1).to(logits.dtype) / logits.shape[1]  # [B]
        return self.alpha * share**self.gamma + self.beta


@dataclass(frozen=True)
class Curriculum(WeightedIgnore):
    """Learn from known labels, and in each later round also from the model's most confident predictions.

    The epochs are divided into ``rounds``. At the beginning of each but the first, unknown labels whose
    latest logit lies beyond ±``confidence`` are taken as labels, and the others are unknown again.
    """

    rounds: int = 3
    confidence: float = 2.0
    name: ClassVar[str] = "curriculum"

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the known labels rest: in the first round there are no others."""
        return rest(Ignore(), labels)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"curriculum needs at least 1 round, not {self.rounds}")
        if not self.confidence >= 0:
            raise InputError(f"the confidence of curriculum must not be negative, but is {self.confidence}")

    def prepare(self, run: Run) -> None:
        """Make the tables: the latest logits, and the labels taken over in this round."""
        self._latest(run)
        self._adopted(run)

    def _latest(self, run: Run) -> Table:
        return run.state.table("curriculum.latest", kind="logit", fill=math.nan)

    def _adopted(self, run: Run) -> tuple[Table, Table]:
        """Which labels are taken as present, and which as absent."""
        state = run.state
        return state.table("curriculum.present", kind="flag"), state.table("curriculum.absent", kind="flag")

    def before_epoch(self, run: Run) -> None:
        """Choose anew which predictions count as labels, where a round begins."""
        starts = {1 + round_ * run.epochs // self.rounds for round_ in range(1, self.rounds)}
        if run.epoch in starts:
            present, absent = self._adopted(run)
            for rows in run.state.blocks():
                latest = self._latest(run).read(rows)  # NaN, of an image that was not seen, is neither
                present.write(rows, latest > self.confidence)
                absent.write(rows, latest < -self.confidence)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """The loss of `weighted_ignore` on known and adopted labels; what is known is never replaced."""
        labels = self._labels(batch, run)
        return {"known": known_bce(logits, labels, self._image_weight(logits, labels))}

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """The labels adopted in this round, present or absent."""
        return self._labels(batch, run) != batch.labels

    def _labels(self, batch: Batch, run: Run) -> Tensor:
        present, absent = (table.read(batch.index) for table in self._adopted(run))
        return torch.where(batch.labels == 0, present.to(torch.int8) - absent.to(torch.int8), batch.labels)

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Remember what the model said."""
        self._latest(run).write(batch.index, logits)
