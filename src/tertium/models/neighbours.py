"""Nearest images and the distances between classes, from features [N, D] of a frozen network."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tertium.errors import InputError
from tertium.labels import Labels

Distance = Literal["cosine", "euclidean"]
Floats = npt.NDArray[Any]

_BLOCK = 1 << 23  # similarities held at a time: 32 MB, beyond which each allocation faults its pages in anew


def normalise(features: npt.ArrayLike) -> Floats:
    """Return the rows scaled to length 1, in float32 or better; a row of zeros stays as it is.

    Features that have this form already are returned themselves, not copied.

    >>> normalise([[3.0, 4.0], [0.0, 0.0]])
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    rows = np.asarray(features)
    rows = rows.astype(np.result_type(rows, np.float32), copy=False)
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows))  # [N]
    if not np.isfinite(length).all():
        raise InputError("the features hold values that are not finite numbers")
    if (np.abs(length - 1) < 4 * np.finfo(rows.dtype).eps).all():
        return rows
    unit: Floats = rows / np.where(length > 0, length, 1)[:, None]
    return unit


def nearest(
    features: npt.ArrayLike, k: int, *, distance: Distance = "cosine"
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return for each row its k nearest other rows, nearest first, and how far they are: both [N, k].

    Exact: block by block, similarities by a matrix product, then the k largest. With N rows nothing has more
    than N − 1 neighbours, so k is cut to that.

    >>> nearest([[0.0], [1.0], [5.0]], k=1, distance="euclidean")
    (array([[1],
           [0],
           [1]]), array([[1.],
           [1.],
           [4.]]))
    """
    rows = np.asarray(features)
    rows = (
        normalise(rows) if distance == "cosine" else rows.astype(np.result_type(rows, np.float32), copy=False)
    )
    count = len(rows)
    k = max(min(k, count - 1), 0)
    points = torch.from_numpy(np.ascontiguousarray(rows))
    best = _Nearest(points, k)
    # |a − b|² = |a|² + |b|² − 2ab, so among all b the nearest have the largest ab − |b|²/2.
    offset = points.square().sum(dim=1) / -2 if distance == "euclidean" else points.new_zeros(count)
    size = max(1, _BLOCK // max(count, 1))
    similar = points.new_empty(min(size, count) * count)
    for start in range(0, count if k else 0, size):
        stop = min(start + size, count)
        found = similar[: (stop - start) * (count - start)].view(stop - start, -1)
        torch.mm(points[start:stop], points[start:].T, out=found)
        found.diagonal().fill_(-torch.inf)  # itself
        # a is as near to b as b to a: half of all products are enough.
        best.offer(range(stop, count), start, found[:, stop - start :].T + offset[start:stop])
        best.offer(range(start, stop), start, found.add_(offset[start:]))
    if distance == "cosine":
        return best.index.numpy(), (1 - best.similar).clamp(min=0).numpy()
    blocks = range(0, count, size)
    far = [_straight(points[at : at + size], points, best.index[at : at + size]) for at in blocks]
    return best.index.numpy(), torch.cat([best.similar[:0], *far]).numpy()


class _Nearest:
    """The k most similar rows [N, k] that each row has met so far."""

    def __init__(self, points: torch.Tensor, k: int) -> None:
        self.similar = points.new_full((len(points), k), -torch.inf)
        self.index = torch.zeros((len(points), k), dtype=torch.int64)

    def offer(self, rows: range, first: int, similar: torch.Tensor) -> None:
        """Let a range of rows meet all from ``first`` on, that are so similar [rows, met]."""
        here, k = slice(rows.start, rows.stop), self.index.shape[1]
        largest, chosen = similar.contiguous().topk(min(k, similar.shape[1]))
        largest = torch.cat([self.similar[here], largest], dim=1)
        chosen = torch.cat([self.index[here], chosen + first], dim=1)
        self.similar[here], places = largest.topk(k)
        self.index[here] = chosen.gather(1, places)


def _straight(block: torch.Tensor, points: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the distances [B, k] to the chosen points, without the rounding of |a|² + |b|² − 2ab.

    One neighbour rank at a time, so that no more than [B, D] numbers are held.
    """
    far = block.new_empty(chosen.shape)
    for rank, column in enumerate(chosen.T):
        torch.linalg.vector_norm(block - points[column], dim=1, out=far[:, rank])
    return far


def class_medians(features: npt.ArrayLike, labels: Labels) -> Floats:
    """Return for each class the coordinate-wise median [C, D] over the images where it is known present.

    The row of a class that is known present nowhere is NaN.
    """
    rows = np.asarray(features)
    rows = rows if rows.dtype == np.float64 else rows.astype(np.float32, copy=False)
    images, columns, values = labels.coo()
    images, columns = images[values > 0], columns[values > 0]
    order = np.argsort(columns, kind="stable")
    # Classes have different numbers of images, so each is its own median: C calls, once.
    groups = np.split(images[order], np.cumsum(labels.class_counts[0])[:-1])
    medians = np.full((len(labels.classes), rows.shape[1]), np.nan, dtype=rows.dtype)
    for column, group in enumerate(groups):
        if len(group):
            medians[column] = np.median(rows[group], axis=0)
    return medians


def distances(points: npt.ArrayLike, *, distance: Distance = "cosine") -> Floats:
    """Return the distances [P, P] between points [P, D]; NaN where one of the two is NaN.

    >>> distances([[1.0, 0.0], [0.0, 2.0]])
    array([[0., 1.],
           [1., 0.]])
    """
    given = np.asarray(points, dtype=np.float64)
    length = np.sqrt(np.einsum("pd,pd->p", given, given))
    if distance == "cosine":
        given = given / np.where(length == 0, 1, length)[:, None]
        found = given @ given.T
        np.subtract(1, found, out=found)  # in place: of thousands of classes this is large
        return np.maximum(found, 0, out=found)
    both = torch.from_numpy(given)
    straight: Floats = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return straight
