"""Zhang et al. 2023, on label imbalance in partially labelled data: pseudo-labels with a balanced loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.state import Table

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BETA = 0.05  # keeps α from drowning the negatives where positives are rare
SILENT = math.log(0.1 / 0.9)  # the logit of p = 0.1: an image below it everywhere says "nothing at all"


@dataclass(frozen=True)
class Pseudo(Method):
    """Unknown labels are what the model said the last time it saw the image.

    Known and unknown labels are averaged apart for each image, so that neither drowns the other. ``balance``
    weights presence by α and absence by β, from the share of known positives in the batch; ``exposure`` lets
    the unknown part in slowly, until it counts as much as the known one ``margin`` epochs before the end;
    ``penalty`` doubles the loss of images where the model finds nothing. Of an image's unknown labels each
    enters with probability ``share``, drawn anew each time; None takes them all.

    The paper does not give its share; taking all is the default (docs/readings.md compares).
    """

    balance: bool = True
    exposure: Literal["exponential", "linear"] | None = "exponential"
    margin: int = 3
    penalty: bool = True
    share: float | None = None
    name: ClassVar[str] = "pseudo"
    paper: ClassVar[str] = "Zhang 2023"
    aliases: ClassVar[tuple[str, ...]] = ("pal",)

    @property
    def alone(self) -> str:
        """Only a share is drawn."""
        return "" if self.share is None else "each process draws its own share"

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise InputError(f"the margin of pseudo must not be negative, but is {self.margin}")
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"the share of pseudo must lie in (0, 1], not {self.share}")

    def check(self, labels: Labels) -> None:
        """Refuse labels of which none is known: the model would only learn from itself."""
        if labels.known == 0:
            raise InputError(f'"{self.name}" needs some known labels, but there are none')

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The share of positives among the known labels, moved by α and β over the whole training set."""
        present, absent = labels.class_counts
        alpha, beta = 1.0, 1.0
        if self.balance:
            beta = max(float(present.sum()) / (len(labels) * len(labels.classes)), LEAST_BETA)
            alpha = 1 - beta
        weighed: npt.NDArray[np.float64] = alpha * present + beta * absent + 1
        return (alpha * present + 0.5) / weighed

    def prepare(self, run: Run) -> None:
        """Make the table of what the model said last."""
        self._table(run)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over images of pen·(mean of the known + d·mean of the unknown) of α·t·ℓ⁺ + β·(1 − t)·ℓ⁻."""
        known = batch.labels.ne(0)
        # An image that was never seen says nothing: one half.
        pseudo = self._table(run).read(batch.index).nan_to_num_(0.0).sigmoid_().to(logits.dtype)
        target = torch.where(known, batch.labels.gt(0).to(logits.dtype), pseudo)
        weight = self._weights(logits, known, run)
        if not self.balance:
            return {"bce": F.binary_cross_entropy_with_logits(logits, target, weight, reduction="sum")}
        beta = run.all_mean(batch.labels.gt(0).sum() / logits.numel()).clamp(min=LEAST_BETA).to(logits.dtype)
        balanced = F.binary_cross_entropy_with_logits(
            logits, target, weight, pos_weight=(1 - beta) / beta, reduction="sum"
        )
        return {"bce": beta * balanced}

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Keep what the model said: the targets of the next time these images are seen."""
        self._table(run).write(batch.index, logits)

    def trust(self, run: Run) -> float:
        """Return d, how much the unknown part counts in this epoch; 1 at the epoch E − m, from 0."""
        done = (run.epoch - 1 + self.margin) / run.epochs
        return {"exponential": math.exp(done - 1), "linear": done, None: 1.0}[self.exposure]

    def _weights(self, logits: Tensor, known: Tensor, run: Run) -> Tensor:
        """The weight [B, C] of each entry: its image's, over how many entries its part has."""
        image = logits.new_full((len(logits), 1), 1 / len(logits))
        if self.penalty:
            silent = logits.detach().amax(dim=1, keepdim=True) < SILENT
            image = image * (1 + silent.to(logits.dtype))
        count = known.sum(dim=1, keepdim=True)  # [B, 1]
        of_known, of_unknown = image / count.clamp(min=1), self.trust(run) * image
        if self.share is None:
            return torch.where(known, of_known, of_unknown / (logits.shape[1] - count).clamp(min=1))
        drawn = torch.rand(logits.shape, generator=run.rng, device=logits.device) < self.share
        drawn &= ~known
        of_unknown = of_unknown / drawn.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(known, of_known, of_unknown * drawn)

    def _table(self, run: Run) -> Table:
        return run.state.table("pseudo", kind="logit", fill=math.nan)
