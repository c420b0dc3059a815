"""Dividing images into two parts by their names, so that nothing else moves an image to the other part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError
from tertium.labels.split_names import TEST, TRAIN, VALIDATION

__all__ = ["TEST", "TRAIN", "VALIDATION", "divide", "places", "set_of"]
Rows = npt.NDArray[np.int64]
_WORD = 8  # bytes of a checksum that are used


def divide(
    images: Sequence[str] | pa.StringArray,
    fraction: float,
    seed: int,
    same: npt.NDArray[Any] | None = None,
    *,
    purpose: str = VALIDATION,
) -> tuple[Rows, Rows]:
    """Return the rows of two parts, the second holding about ``fraction`` of the images.

    An image belongs to the second part if its place (see `places`) lies below ``fraction``. So its part
    depends on its name, the seed and the purpose alone: other labels, more images or another order change
    nothing, and a larger fraction only adds images. Rows that are the ``same`` [N], copies of one image, have
    the place of the name that comes first in the alphabet.

    If a part would be empty, as it may in a handful of images, it gets the image nearest to it; only where
    all are one image, the second part stays empty.

    >>> divide(["a.jpg", "b.jpg", "c.jpg", "d.jpg"], 0.5, seed=0)
    (array([0, 1, 2]), array([3]))
    """
    if not 0 < fraction < 1:
        raise InputError(f"the share of the second part must lie between 0 and 1, not {fraction}")
    names = images.to_pylist() if isinstance(images, pa.Array | pa.ChunkedArray) else list(images)
    place = places(names, seed, purpose)
    if same is not None:
        place = _of_first_names(place, names, same)
    second = place < fraction
    if not second.any():
        second = place == place.min(initial=1)
    if second.all():
        second = place < place.max(initial=0)
    return np.flatnonzero(~second), np.flatnonzero(second)


def places(names: Sequence[str], seed: int, purpose: str = VALIDATION) -> npt.NDArray[np.float64]:
    """Return where each name lies between 0 and 1: a number that looks random and never changes.

    It is the first eight bytes of SHA-256 over "purpose/seed/name" in UTF-8 (the name in Unicode's normal
    form C), read as a big-endian number, divided by 2⁶⁴. Each purpose has its own places: what is divided
    twice by one seed is divided independently.

    >>> places(["a.jpg", "b.jpg"], seed=0).round(6).tolist()
    [0.717262, 0.741676]
    """
    start = hashlib.sha256(f"{purpose}/{seed}/".encode())
    found = bytearray()
    for name in names:
        each = start.copy()
        each.update(normalize("NFC", name).encode())
        found += each.digest()[:_WORD]
    high = np.frombuffer(found, dtype=">u8").astype(np.uint64) >> np.uint64(11)  # as much as a float holds
    return high.astype(np.float64) * 2.0**-53


def set_of(names: Iterable[str]) -> str:
    """Return a checksum that two lists share if they name the same images, in whatever order.

    >>> set_of(["b.jpg", "a.jpg"]) == set_of(["a.jpg", "b.jpg"]) != set_of(["a.jpg"])
    True
    """
    return hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:16]


def _of_first_names(
    place: npt.NDArray[np.float64], names: Sequence[str], same: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the places, copies of one image having that of the first of their names."""
    _, first, group = np.unique(same, return_index=True, return_inverse=True)
    if len(first) == len(place):
        return place
    speaker = first.tolist()  # of each group
    for row in np.flatnonzero(np.bincount(group)[group] > 1).tolist():
        if names[row] < names[speaker[group[row]]]:
            speaker[group[row]] = row
    return place[np.array(speaker, dtype=np.int64)[group]]
