"""Zhou et al. 2022, "Acknowledging the Unknown": entropy maximisation and asymmetric pseudo-labels."""

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
from tertium.methods.curves import rate_at_rest
from tertium.state import Table

if TYPE_CHECKING:
    from torch import Tensor

UNSEEN = float("nan")  # the prediction of an image that no step has seen yet


@dataclass(frozen=True)
class Em(Method):
    """Unknown labels should stay uncertain: the entropy of their predictions is maximised.

    The weight ``alpha`` is 0.2 for VOC, 0.1 for COCO and NUS, 0.01 for CUB in the paper. With ``apl`` the
    least likely unknown labels become pseudo-labels after ``warmup`` epochs: in equal steps, until in the
    last epoch the share ``frozen`` of each class's unknown labels is held at the probability it had, by a
    cross-entropy of weight ``beta``. The authors' beta is 0.02 for VOC, 0.9 for COCO, 0.2 for NUS, 0.4 for
    CUB; their warm-up 3 to 5 of 10 epochs.

    The defaults are the authors' for COCO.
    """

    alpha: float = 0.1
    apl: bool = False
    warmup: int = 5
    frozen: float = 0.9
    beta: float = 0.9
    name: ClassVar[str] = "em"
    paper: ClassVar[str] = "Zhou 2022"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "warmup"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} of em must not be negative, but is {getattr(self, name)}")
        if not 0 <= self.frozen <= 1:
            raise InputError(f"the frozen share of em must lie in [0, 1], not {self.frozen}")

    def check(self, labels: Labels) -> None:
        """Refuse labels of which none is known: nothing would pull anywhere."""
        if labels.known == 0:
            raise InputError(f'"{self.name}" needs some known labels, but there are none')

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the known labels and the pull of the entropy towards one half balance.

        With absences that is close to the share of positives among the known labels. With positives only it
        lies above one half: from the observed rate training would have to lift every class first.
        """
        present, absent = (torch.from_numpy(count + 0.5) for count in labels.class_counts)
        pull = self.alpha * (len(labels) + 1 - present - absent).clamp(min=0)

        def slope(logit: Tensor) -> Tensor:
            p = logit.sigmoid()
            return absent * p - present * (1 - p) + pull * logit * p * (1 - p)

        return rate_at_rest(slope, len(labels.classes))

    def prepare(self, run: Run) -> None:
        """Make the tables of pseudo-labels."""
        if self.apl:
            self._tables(run)

    def before_epoch(self, run: Run) -> None:
        """Freeze the next of each class's least likely unknown labels."""
        if not self.apl or not self.warmup < run.epoch <= run.epochs:
            return
        prediction, frozen = (table.values.numpy() for table in self._tables(run))
        unknown = run.labels.dense() == 0
        # A running total from integers: equal steps without rounding errors that add up, and calling this
        # twice in an epoch freezes nothing twice.
        due = self.frozen * unknown.sum(axis=0) * (run.epoch - self.warmup) / (run.epochs - self.warmup)
        count = np.floor(due + 1e-9).astype(np.int64) - frozen.sum(axis=0)
        scores = np.where(unknown & ~frozen, prediction, UNSEEN)  # NaN sorts last
        rows, columns = lowest(scores, count)
        frozen[rows, columns] = True

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ and ℓ⁻ where known, −α·H(p) where unknown, β·BCE where frozen.

        The entropy is the cross-entropy of p with itself, so that one formula on logits covers all three;
        the gradient flows through both.
        """
        known = batch.labels.ne(0)
        target = logits.sigmoid()
        weight = torch.where(known, 1.0, -self.alpha).to(logits.dtype)
        if self.apl:
            prediction, frozen = self._tables(run)
            held = frozen.read(batch.index)
            target = torch.where(held, prediction.read(batch.index).to(logits.dtype), target)
            weight = weight.masked_fill(held, self.beta)
        target = torch.where(known, batch.labels.gt(0).to(logits.dtype), target)
        return {"em": F.binary_cross_entropy_with_logits(logits, target, weight)}

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Keep the predictions that the next epoch chooses from; frozen ones stay as they are."""
        if self.apl:
            prediction, frozen = self._tables(run)
            held = prediction.read(batch.index)
            now = logits.sigmoid().to(held.dtype)
            prediction.write(batch.index, torch.where(frozen.read(batch.index), held, now))

    def _tables(self, run: Run) -> tuple[Table, Table]:
        """The last prediction of each label, and whether it is frozen there."""
        state = run.state
        return state.table("prediction", fill=UNSEEN), state.table("frozen", dtype=torch.bool)


def lowest(
    scores: npt.NDArray[np.float32], count: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows and columns of the ``count[c]`` lowest scores of each column c; NaN is never chosen.

    >>> scores = np.array([[0.3, 0.1], [0.2, np.nan], [0.1, 0.1]], dtype=np.float32)
    >>> rows, columns = lowest(scores, np.array([2, 1]))
    >>> sorted(zip(columns.tolist(), rows.tolist()))
    [(0, 1), (0, 2), (1, 0)]
    """
    count = np.minimum(count, np.isfinite(scores).sum(axis=0))
    most = int(count.max(initial=0))
    if most <= 0:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing
    # Indices rather than a threshold: equal scores (saturated predictions) would make it more than asked.
    order = np.argpartition(scores, np.unique(count[count > 0] - 1), axis=0)[:most]
    place, columns = np.nonzero(np.arange(most)[:, None] < count)
    return order[place, columns], columns
