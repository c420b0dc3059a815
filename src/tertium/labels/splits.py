"""Dividing images into two parts so that rare classes occur in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.split_names import TEST, TRAIN, VALIDATION

__all__ = ["TEST", "TRAIN", "VALIDATION", "divide"]
Rows = npt.NDArray[np.int64]


def divide(
    labels: Labels, fraction: float, seed: int, same: npt.NDArray[Any] | None = None
) -> tuple[Rows, Rows]:
    """Return the rows of two parts, the second holding about ``fraction`` of them.

    Rows that are the ``same`` [N], copies of one image, stay together; the first of them speaks for all.

    Each image is grouped with its rarest known-present class and the groups are divided one by one, so that
    rare classes occur in both parts. A class known to be present in two or more images always does, unless
    that would take the last image of another class.

    >>> divide(Labels.from_dense([[1], [1], [-1], [-1]]), 0.5, seed=0)
    (array([0, 2]), array([1, 3]))
    """
    if not 0 < fraction < 1:
        raise InputError(f"the share of the second part must lie between 0 and 1, not {fraction}")
    if same is not None:
        _, first, copy_of = np.unique(same, return_index=True, return_inverse=True)
        if len(first) < len(labels):
            one_each = np.sort(first)
            apart = np.zeros(len(labels), dtype=bool)
            apart[one_each[divide(labels[one_each], fraction, seed)[1]]] = True
            apart = apart[first[copy_of]]
            return np.flatnonzero(~apart), np.flatnonzero(apart)
    rng = np.random.default_rng(seed)
    rows, columns, values = labels.coo()
    present = rows[values > 0], columns[values > 0]
    order = rng.permutation(len(labels))
    group = _rarest_class(labels, *present)[order]
    order = order[np.argsort(group, kind="stable")]  # by group, at random inside
    # Along this order the running count of the second part never strays from its share by more than one.
    steps = np.floor((np.arange(len(labels) + 1) + rng.random()) * fraction)
    second = np.zeros(len(labels), dtype=bool)
    second[order[np.diff(steps) > 0]] = True
    _reach_both(labels, *present, second)
    return np.flatnonzero(~second), np.flatnonzero(second)


def _rarest_class(labels: Labels, rows: Rows, columns: Rows) -> Rows:
    """Return for each image its known-present class with the fewest images; C where there is none."""
    rank = np.empty(len(labels.classes), dtype=np.int64)
    rank[np.argsort(labels.class_counts[0], kind="stable")] = np.arange(len(labels.classes))
    rarest = np.full(len(labels), len(labels.classes))
    np.minimum.at(rarest, rows, rank[columns])
    return rarest


def _reach_both(labels: Labels, rows: Rows, columns: Rows, second: npt.NDArray[np.bool_]) -> None:
    """Move single images until every class occurs in both parts, if it can."""
    by_class = rows[np.argsort(columns, kind="stable")]
    total = labels.class_counts[0]
    ends = np.cumsum(total)
    inside = np.bincount(columns[second[rows]], minlength=len(total))  # in the second part
    for number in np.flatnonzero((total >= 2) & ((inside == 0) | (inside == total))):
        for row in by_class[ends[number] - total[number] : ends[number]]:
            entries = labels.entries[labels.offsets[row] : labels.offsets[row + 1]]
            mine = entries[entries > 0].astype(np.int64) - 1
            left_behind = (inside if second[row] else total - inside)[mine] - 1
            if (left_behind[total[mine] >= 2] >= 1).all():
                inside[mine] += -1 if second[row] else 1
                second[row] = not second[row]
                break
