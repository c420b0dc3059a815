"""Zhou et al. 2022, "Acknowledging the Unknown": entropy maximisation and asymmetric pseudo-labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.starts import rest
from tertium.methods.state import Table

if TYPE_CHECKING:
    from torch import Tensor

Keys = npt.NDArray[Any]  # uint8 or uint32
Counts = npt.NDArray[np.int64]
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

    @property
    def remembers(self) -> bool:
        """Only pseudo-labels are kept."""
        return self.apl

    def check(self, labels: Labels) -> None:
        """Refuse labels of which none is known: nothing would pull anywhere."""
        if labels.known == 0:
            raise InputError(f'"{self.name}" needs some known labels, but there are none')

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where the known labels and the pull of the entropy towards one half balance.

        With absences that is close to the share of positives among the known labels. With positives only it
        lies above one half: from the observed rate training would have to lift every class first.
        """
        return rest(replace(self, apl=False), labels)

    def prepare(self, run: Run) -> None:
        """Make the tables of pseudo-labels."""
        if self.apl:
            self._tables(run)

    def before_epoch(self, run: Run) -> None:
        """Freeze the next of each class's least likely unknown labels."""
        if not self.apl or not self.warmup < run.epoch <= run.epochs:
            return
        prediction, frozen = self._tables(run)
        present, absent = run.labels.class_counts
        unknown = len(run.labels) - present - absent
        # A running total from integers: equal steps without rounding errors that add up, and calling this
        # twice in an epoch freezes nothing twice.
        due = self.frozen * unknown * (run.epoch - self.warmup) / (run.epochs - self.warmup)
        held = run.state.tensors.setdefault("frozen", torch.zeros(len(unknown), dtype=torch.int64)).numpy()
        count = np.floor(due + 1e-9).astype(np.int64) - held

        def free(rows: Tensor) -> Keys:
            keys: Keys = prediction.keys(rows)
            keys *= (run.labels.dense(rows) == 0) & ~frozen.read(rows).numpy()
            return keys

        bits = 8 * prediction.form.dtype.itemsize
        lowest = Lowest(lambda: map(free, run.state.blocks()), bits, count, run)
        for rows in run.state.blocks():
            chosen = lowest.next(free(rows))
            frozen.write(rows, frozen.read(rows) | torch.from_numpy(chosen))
        held += lowest.count

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
            target = torch.where(held, prediction.read(batch.index).sigmoid_().to(logits.dtype), target)
            weight = weight.masked_fill(held, self.beta)
        target = torch.where(known, batch.labels.gt(0).to(logits.dtype), target)
        return {"em": F.binary_cross_entropy_with_logits(logits, target, weight)}

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """The unknown labels that are held as pseudo-labels: the least likely ones, so few are present."""
        if not self.apl:
            return None
        return self._tables(run)[1].read(batch.index) & (batch.labels == 0)

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Keep the predictions that the next epoch chooses from; frozen ones stay as they are."""
        if self.apl:
            prediction, frozen = self._tables(run)
            held = prediction.read(batch.index)
            now = logits.to(held.dtype)
            prediction.write(batch.index, torch.where(frozen.read(batch.index), held, now))

    def _tables(self, run: Run) -> tuple[Table, Table]:
        """The last prediction of each label, as a logit, and whether it is frozen there."""
        state = run.state
        return state.table("prediction", kind="logit", fill=UNSEEN), state.table("frozen", kind="flag")


class Lowest:
    """The lowest ``count[c]`` keys of each column c, over the rows of all processes.

    ``blocks`` goes over this process's keys [B, C], unsigned integers of which 0 is never chosen. The limits
    are found digit by digit, from how often each of 256 digits occurs in each column: a pass for each byte
    of the keys, in the same memory whatever the number of rows. Of keys equal to the limit those of the
    first rows are taken, and of process 0 before those of process 1.
    """

    def __init__(self, blocks: Callable[[], Iterable[Keys]], bits: int, count: Counts, run: Run) -> None:
        columns = np.arange(len(count))
        self.limit = np.zeros(len(count), np.uint32)  # [C] the highest key that is chosen
        left = count.clip(min=0)
        for shift in range(bits - 8, -1, -8):
            mine = np.zeros((len(count), 256), np.int64)
            for keys in blocks():
                mine += _digits(keys, shift, self.limit)
            seen = _total(mine, run)
            running = seen.cumsum(axis=1)
            left = np.minimum(left, running[:, -1])
            if shift == bits - 8:
                self.count = left  # [C] of the whole training set
            digit = (running < left[:, None]).sum(axis=1)
            left = left - (running - seen)[columns, digit]
            self.limit = self.limit << 8 | digit.astype(np.uint32)
        ties = np.zeros((run.state.world, len(count)), np.int64)
        ties[run.state.rank] = mine[columns, digit]
        earlier = _total(ties, run)[: run.state.rank].sum(axis=0)
        self._left = (left - earlier).clip(0, ties[run.state.rank])

    def next(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which keys of the next block are chosen; blocks come in the order of the rows."""
        limit = self.limit.astype(keys.dtype)
        chosen: npt.NDArray[np.bool_] = (keys < limit) & (keys > 0)
        ties = keys == limit
        found = np.count_nonzero(ties, axis=0)
        whole = found <= self._left
        chosen |= ties & whole
        part = np.flatnonzero(~whole & (self._left > 0))  # once for each column, in the block where it ends
        chosen[:, part] |= ties[:, part] & (ties[:, part].cumsum(axis=0) <= self._left[part])
        self._left -= np.minimum(found, self._left)
        return chosen


def _digits(keys: Keys, shift: int, prefix: npt.NDArray[np.uint32]) -> Counts:
    """Count [C, 256] the digits at ``shift`` of the keys above 0 whose digits before are the prefix."""
    size = keys.shape[1]
    if keys.dtype == np.uint8:
        flat = np.add(keys, np.arange(size) * 256, dtype=np.int64).reshape(-1)
    else:
        rows, columns = np.nonzero((keys > 0) & (keys >> (shift + 8) == prefix))
        flat = columns * 256 + (keys[rows, columns] >> shift & 255)
    counts = np.bincount(flat, minlength=256 * size).reshape(size, 256)
    if keys.dtype == np.uint8:
        counts[:, 0] = 0
    return counts


def _total(counts: Counts, run: Run) -> Counts:
    """Return the sum over all processes."""
    if run.state.world == 1:
        return counts
    shared = torch.from_numpy(counts).to(run.rng.device, torch.float64)  # NCCL wants it on the GPU
    return (run.all_mean(shared) * run.state.world).round().long().cpu().numpy()
