"""What a model learns first and what it memorises later, measured with the hidden labels.

Kim et al. 2022 call every unknown label absent and ask what becomes of it. Three kinds of labels result:

- true positives: known to be present;
- true negatives: called absent, and absent in truth, whether that was known or not;
- false negatives: unknown and so called absent, but present in truth.

A label's loss is ℓ⁺ for the first kind and ℓ⁻ for the others, whatever loss the method itself minimises. What
neither the labels nor the truth tell belongs to no kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.distributed import all_sum
from tertium.errors import InputError, did_you_mean
from tertium.labels import Labels

Cells = npt.NDArray[np.int64]  # row · C + column of entries
Mask = npt.NDArray[np.bool_]
Figures = dict[str, Any]

KINDS = ("true_positive", "true_negative", "false_negative")
_NEGATIVES = 100_000  # true negatives that are followed; their shares are then off by 0.2 % at most (1 σ)


class Memorisation:
    """Follows the loss of each kind of label through the epochs, and what a method makes of unknown labels.

    Give it each training batch with `see`, take each epoch's figures from `end_epoch` and those of the whole
    run from `summary`. All true positives and false negatives are followed and, being most of a full truth,
    100,000 of the true negatives (the same in every run): ten bytes for each and eight for an image, besides
    the truth itself.

    >>> labels = Labels.from_dense([[1, 0, 0]], classes=["cat", "dog", "fox"])
    >>> truth = Labels.from_dense([[-1, 1, 1]], classes=["dog", "fox", "cat"])
    >>> memory = Memorisation(labels, truth)
    >>> batch = Batch(torch.empty(1, 0), torch.tensor([[1, 0, 0]], dtype=torch.int8), torch.tensor([0]))
    >>> memory.see(torch.zeros(1, 3), batch, torch.tensor([[False, False, True]]))
    >>> figures = memory.end_epoch()
    >>> [figures[name] for name in ("altered", "precision", "base_rate")]
    [1, 1.0, 0.5]
    """

    def __init__(self, labels: Labels, truth: Labels) -> None:
        self._truth = aligned(labels, truth)
        known, told = _cells(labels), _cells(self._truth)
        untold, hidden = _unshared(labels, self._truth, known, told)
        present = self._truth.entries > 0
        # What the labels know counts as true also where the truth does not tell.
        negative = np.concatenate([told[~present], known[untold & (labels.entries < 0)]])
        kinds = (known[labels.entries > 0], _sample(negative), told[hidden & present])
        cells = np.concatenate(kinds)
        order = np.argsort(cells)
        rows, columns = np.divmod(cells[order], len(labels.classes))
        self._offsets = torch.from_numpy(np.searchsorted(rows, np.arange(len(labels) + 1)))  # [N + 1]
        self._columns = torch.from_numpy(columns.astype(np.int32))  # [F] of the labels that are followed
        kind = np.repeat(np.arange(len(KINDS), dtype=np.int8), [len(part) for part in kinds])
        self._kind = torch.from_numpy(kind[order])
        self._peak = torch.full((len(cells),), -torch.inf)  # the highest loss so far
        self._late = torch.zeros(len(cells), dtype=torch.bool)  # whether that was after epoch 1
        self._base_rate = _share(int((hidden & present).sum()), int(hidden.sum()))
        self._epoch = 1
        self._clear()

    def _clear(self) -> None:
        self._loss = torch.zeros(len(KINDS), dtype=torch.float64)
        self._seen = torch.zeros(len(KINDS), dtype=torch.int64)
        self._counts = torch.zeros(3, dtype=torch.int64)  # altered labels: all, told by the truth, present

    def to_dict(self) -> dict[str, Tensor]:
        """Return what was seen so far, to be saved."""
        names = ("_peak", "_late", "_loss", "_seen", "_counts")
        return {name[1:]: getattr(self, name) for name in names} | {"epoch": torch.tensor(self._epoch)}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take over what `to_dict` gave."""
        self._peak, self._late, self._counts = saved["peak"], saved["late"], saved["counts"]
        self._loss, self._seen, self._epoch = saved["loss"], saved["seen"], int(saved["epoch"])

    def see(self, logits: Tensor, batch: Batch, altered: Tensor | None = None) -> None:
        """Take in a training step: its logits [B, C], and which labels [B, C] the method altered, if any."""
        rows = batch.index.cpu()
        starts = self._offsets[rows]
        counts = self._offsets[rows + 1] - starts
        slots = torch.repeat_interleave(counts)  # [f] rows of the batch
        places = (starts - counts.cumsum(0) + counts)[slots] + torch.arange(len(slots))
        kind = self._kind[places].long()
        at = (slots.to(logits.device), self._columns[places].to(logits.device))
        scores = logits.detach()[at].float().cpu()
        loss = F.softplus(torch.where(kind == 0, -scores, scores))  # ℓ⁺ of the first kind, else ℓ⁻
        self._loss += torch.bincount(kind, loss.double(), len(KINDS))
        self._seen += torch.bincount(kind, minlength=len(KINDS))
        if self._epoch > 1:
            self._late[places[loss > self._peak[places]]] = True
        self._peak.scatter_reduce_(0, places, loss, "amax")  # an image may be in a batch twice
        if altered is not None:
            self._judge(rows, (altered & (batch.labels == 0)).cpu())

    def _judge(self, rows: Tensor, altered: Tensor) -> None:
        told = self._truth.dense(rows) * altered.numpy()
        found = (int(altered.count_nonzero()), np.count_nonzero(told), np.count_nonzero(told > 0))
        self._counts += torch.tensor(found)

    def end_epoch(self) -> Figures:
        """Return the figures of the epoch that ends, ready for JSON; None where there is nothing to tell.

        ``loss``: the mean of each kind. ``altered``: how many unknown labels the method altered, of which
        the truth tells ``judged``, and calls ``present`` that many; ``precision`` is their share, and
        ``base_rate`` what altering at random would give. A method that alters for good counts anew in each
        epoch all it has altered so far.
        """
        loss, every = all_sum(self._loss), all_sum(self._seen)
        altered, judged, present = all_sum(self._counts).tolist()
        means = (loss / every).tolist()
        figures = {
            "loss": {
                name: mean if seen else None
                for name, mean, seen in zip(KINDS, means, every.tolist(), strict=True)
            },
            "altered": altered,
            "judged": judged,
            "present": present,
            "precision": _share(present, judged),
            "base_rate": self._base_rate,
        }
        self._epoch += 1
        self._clear()
        return figures

    def summary(self) -> Figures:
        """Return how many labels of each kind were followed, and the share with the highest loss in epoch 1.

        Of equal losses the first counts.
        """
        seen = self._peak > -torch.inf
        followed, late = (
            all_sum(torch.bincount(self._kind[chosen], minlength=len(KINDS))).tolist()
            for chosen in (seen, seen & self._late)
        )
        shares = [_share(count - after, count) for count, after in zip(followed, late, strict=True)]
        return {
            "followed": dict(zip(KINDS, followed, strict=True)),
            "highest_in_first_epoch": dict(zip(KINDS, shares, strict=True)),
        }


def true_counts(labels: Labels, truth: Labels) -> Cells:
    """Return in how many of the labelled images each class [C] is present in truth.

    >>> labels = Labels.from_dense([[1, 0], [0, 0]], classes=["cat", "dog"])
    >>> true_counts(labels, Labels.from_dense([[-1, 1], [1, 1]], classes=["dog", "cat"]))
    array([2, 1])
    """
    return aligned(labels, truth).class_counts[0]


def aligned(labels: Labels, truth: Labels) -> Labels:
    """Return the truth in the order of the labels' images and classes."""
    missing = [name for name in labels.classes if name not in truth.classes]
    if missing:
        hint = did_you_mean(missing[0], truth.classes)
        raise InputError(f'the truth has no class "{missing[0]}"; {hint}')
    try:
        rows = truth.rows_of(labels.images)
    except InputError as error:
        raise InputError(f"the truth has {error}") from None
    return truth[rows].with_classes(labels.classes)


def _cells(labels: Labels) -> Cells:
    rows, columns, _ = labels.coo()
    return rows * len(labels.classes) + columns


def _unshared(labels: Labels, truth: Labels, known: Cells, told: Cells) -> tuple[Mask, Mask]:
    """Return which entries of the labels the truth lacks, and of the truth the labels; others must agree."""
    shared = np.isin(known, told, assume_unique=True)
    places = np.searchsorted(told, known[shared])
    clash = np.flatnonzero(labels.entries[shared] != truth.entries[places])
    if clash.size:
        row, column = divmod(int(told[places[clash[0]]]), len(labels.classes))
        said, true = ("absent", "present") if truth.entries[places[clash[0]]] > 0 else ("present", "absent")
        raise InputError(
            f'the labels call "{labels.classes[column]}" {said} in image "{labels.images[row].as_py()}", '
            f"but in truth it is {true}"
        )
    hidden = np.ones(len(told), dtype=bool)
    hidden[places] = False
    return ~shared, hidden


def _sample(cells: Cells) -> Cells:
    """Return at most _NEGATIVES of them, always the same."""
    if len(cells) <= _NEGATIVES:
        return cells
    return np.random.default_rng(0).choice(cells, _NEGATIVES, replace=False, shuffle=False)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
