"""Images that look nearly the same: re-encoded, resized or slightly cropped copies.

An image becomes a thumbnail of 32 × 32 grey pixels. Two images are near copies if their thumbnails, or one
of them and a slight crop of the other, correlate by `ALIKE` or more. Pairs are first screened by 8 × 8
pixels, as products of matrices, block by block: memory stays small, and time, which grows with the product of
the two sides, is bounded by looking at `MOST` images of each at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from tertium.data.pictures import Pictures, ahead
from tertium.errors import InputError
from tertium.progress import Progress
from tertium.threads import cores

ALIKE = 0.95  # correlation of thumbnails; docs/evaluate.md has what it finds
MOST = 10_000  # images of either side
_SIDE, _SMALL = 32, 8  # pixels of a thumbnail, and of what screens
_SCREEN = 0.9  # correlation of the small ones from which on a pair is looked at
_DETAIL = 0.85  # correlation that the fine detail must have, too
_CROPS = (0.05, 0.1)  # shares of the width that are cut off, from either or both sides
_BLOCK, _ROWS = 2**22, 4096  # products, and thumbnails, at a time

Looks = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Taught:
    """How training images look, or evenly spread ones of them."""

    names: tuple[str, ...]
    looks: Looks

    @classmethod
    def of(cls, pictures: Pictures, names: Sequence[str], progress: Progress | None) -> Taught:
        """Look at the training images."""
        rows, found = looks(pictures, progress)
        return cls(tuple(names[row] for row in rows.tolist()), found)

    def like(
        self, pictures: Pictures, names: Sequence[str], progress: Progress | None
    ) -> list[tuple[str, str, float]]:
        """Return which of other images look nearly the same as training images, as which, and how alike."""
        rows, found = looks(pictures, progress)
        pairs = near(found, self.looks)
        return [(names[rows[pair.row]], self.names[pair.other], pair.likeness) for pair in pairs]


class Near(NamedTuple):
    """An image that looks nearly the same as another."""

    row: int
    other: int
    likeness: float


def looks(pictures: Pictures, progress: Progress | None = None) -> tuple[npt.NDArray[np.int64], Looks]:
    """Return which rows were looked at, all or evenly spread ones, and their thumbnails [M, 1024].

    An image that cannot be read is like no other.
    """
    progress = progress or Progress()
    rows = np.unique(np.linspace(0, len(pictures) - 1, min(len(pictures), MOST)).astype(np.int64))
    found = np.zeros((len(rows), _SIDE * _SIDE), dtype=np.uint8)

    def look(place: int) -> npt.NDArray[np.uint8]:
        try:
            image = pictures.open(int(rows[place]), 8 * _SIDE)
        except InputError:
            return np.zeros(_SIDE * _SIDE, dtype=np.uint8)
        return np.asarray(image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)).reshape(-1)

    progress.start("looking for near copies", len(rows), "images")
    for place, thumbnail in ahead(look, range(len(rows)), cores()):
        found[place] = thumbnail
        progress.advance()
    return rows, found


def near(first: Looks, second: Looks) -> list[Near]:
    """Return for each image of the first list the most similar of the second, if it is a near copy.

    >>> rng = np.random.default_rng(0)
    >>> images = rng.integers(0, 256, size=(5, 1024), dtype=np.uint8)
    >>> [(pair.row, pair.other) for pair in near(images[3:] // 2 + 9, images)]
    [(0, 3), (1, 4)]
    """
    best = np.full(len(first), -1.0, dtype=np.float32)
    other = np.zeros(len(first), dtype=np.int64)
    whole = _small(first, None), _small(second, None)
    for crop in _crops():
        for one, two in ((crop, None), (None, crop)) if crop is not None else ((None, None),):
            left = whole[0] if one is None else _small(first, one)
            right = whole[1] if two is None else _small(second, two)
            for rows, columns in _screened(left, right):
                likeness = _compared(_cut(first[rows], one), _cut(second[columns], two))
                better = np.argsort(likeness, kind="stable")  # the last to be written is the best
                better = better[likeness[better] > best[rows[better]]]
                best[rows[better]], other[rows[better]] = likeness[better], columns[better]
    return [Near(row, int(other[row]), float(best[row])) for row in np.flatnonzero(best >= ALIKE).tolist()]


def _crops() -> list[tuple[Floats, Floats] | None]:
    """Return how rows and columns of a crop come from those of the whole; None for the whole itself."""
    found: list[tuple[Floats, Floats] | None] = [None]
    for share in _CROPS:
        for down, across in ((0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
            found.append((_axis(share, down), _axis(share, across)))
    return found


def _axis(share: float, at: float) -> Floats:
    """Return the weights [side, side] of pixels, if a share is cut off: at the end (0) to the start (1)."""
    centre = (np.arange(_SIDE) + 0.5) * (1 - share) + at * share * _SIDE - 0.5
    low = np.clip(np.floor(centre).astype(np.int64), 0, _SIDE - 1)
    high = np.clip(low + 1, 0, _SIDE - 1)
    weights = np.zeros((_SIDE, _SIDE), dtype=np.float32)
    part = np.clip(centre - low, 0, 1)
    np.add.at(weights, (np.arange(_SIDE), low), 1 - part)
    np.add.at(weights, (np.arange(_SIDE), high), part)
    return weights


def _cut(thumbnails: Looks, crop: tuple[Floats, Floats] | None) -> Floats:
    square = thumbnails.reshape(-1, _SIDE, _SIDE).astype(np.float32)
    cut = square if crop is None else crop[0] @ square @ crop[1].T
    return np.asarray(cut.reshape(len(thumbnails), -1), dtype=np.float32)


def _compared(first: Floats, second: Floats) -> Floats:
    """Return the correlation of thumbnails, 0 if their fine detail differs: many beaches have one layout."""
    detail = (_unit(_detail(first)) * _unit(_detail(second))).sum(axis=1)
    whole = (_unit(first) * _unit(second)).sum(axis=1)
    return np.where(detail >= _DETAIL, whole, np.float32(0))


def _detail(thumbnails: Floats) -> Floats:
    """Return what each pixel adds to the mean of the 4 × 4 around it."""
    factor = _SIDE // _SMALL
    parts = thumbnails.reshape(-1, _SMALL, factor, _SMALL, factor)
    return np.asarray((parts - parts.mean(axis=(2, 4), keepdims=True)).reshape(len(thumbnails), -1))


def _small(thumbnails: Looks, crop: tuple[Floats, Floats] | None) -> Floats:
    """Return thumbnails, or crops of them, of 8 × 8 pixels: one product, block by block."""
    mean = np.kron(np.eye(_SMALL), np.full(_SIDE // _SMALL, _SMALL / _SIDE)).astype(np.float32)
    down, across = (mean, mean) if crop is None else (mean @ crop[0], mean @ crop[1])
    weights = np.kron(down, across).T
    found = [
        _unit(thumbnails[start : start + _ROWS].astype(np.float32) @ weights)
        for start in range(0, len(thumbnails), _ROWS)
    ]
    return np.concatenate([np.zeros((0, _SMALL**2), dtype=np.float32), *found])


def _unit(rows: Floats) -> Floats:
    """Return rows of mean 0 and length 1; a plain picture is like no other."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 1, length, np.inf), dtype=np.float32)


def _screened(first: Floats, second: Floats) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the pairs that may be alike, block by block."""
    size = max(1, _BLOCK // max(len(second), 1))
    found = []
    for start in range(0, len(first), size):
        rows, columns = np.nonzero(first[start : start + size] @ second.T >= _SCREEN)
        if rows.size:
            found.append((rows + start, columns))
    return found
