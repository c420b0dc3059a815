"""The one door for inputs: images or features, in the order of the names that a caller asks for.

Every command and function, with torch or without, gets its inputs from `open_inputs`.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.data.feature_files import feature_names, fingerprint, load_features, spread
from tertium.data.in_memory import count_images, pictures_of
from tertium.data.pictures import Pictures, SourcePictures
from tertium.data.sources.opening import Place, is_place, names_in, open_source
from tertium.errors import InputError

# A folder or another place (docs/images.md); or images in memory, as `tertium.data.in_memory` reads them.
Images = Place | npt.NDArray[Any] | Sequence[Any]
Features = str | Path | npt.NDArray[Any]  # a .npy file, or an array [N, D]
BATCH = 256  # rows that are read at once
_WINDOW, _PICTURES = 2**24, 2**16  # bytes of features, and images, that are opened at a time


def open_inputs(
    images: Images | None = None, features: Features | None = None, names: Sequence[str] | None = None
) -> Inputs:
    """Find the inputs of these images, in the order of their names; without names, all that there are.

    A folder has its images by name, and so has a feature file with names beside it. An array, or a file
    without names, must have one row for each name, in the same order.

    >>> open_inputs(features=np.zeros((2, 3)), names=["a.jpg", "b.jpg"]).names
    ['a.jpg', 'b.jpg']
    """
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    if is_place(images):
        source = open_source(images)
        wanted = names_in(source) if names is None else list(names)
        return Inputs(wanted, SourcePictures.of(source, wanted), None)
    wanted = names_of(images, features) if names is None else list(names)
    if images is not None:
        _check_rows(count_images(images), len(wanted))
        return Inputs(wanted, pictures_of(images), None)
    if isinstance(features, str | Path):
        return Inputs(wanted, None, load_features(features, wanted))
    array = features if isinstance(features, np.ndarray) else np.asarray(features)  # a map stays one
    _check_rows(len(array), len(wanted))
    return Inputs(wanted, None, array)


def open_fitting(
    images: Images | None,
    features: Features | None,
    names: Sequence[str] | None,
    *,
    width: int,
    pictures: bool,
) -> Inputs:
    """Find inputs for a model, which takes pictures, or features of this width."""
    check_kind(images, features, pictures)
    found = open_inputs(images, features, names)
    if found.features is not None and found.features.shape[1] != width:
        given = found.features.shape[1]
        raise InputError(f"the model was trained on features of width {width}, not {given}")
    return found


def check_kind(images: object, features: object, pictures: bool) -> None:
    """Raise `InputError` unless what is given is what a model takes: pictures, or features."""
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    if (images is not None) != pictures:
        kind = "images" if pictures else "features"
        raise InputError(f"the model was trained on {kind}; give {kind}")


def names_of(images: Images | None, features: Features | None) -> list[str]:
    """Return ids for inputs that come without labels: file names, or row numbers."""
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    if is_place(images):
        return names_in(open_source(images))
    if isinstance(features, str | Path):
        names = feature_names(features)
        if names is not None:
            return names
        features = load_features(features)
    rows = len(features) if images is None and features is not None else count_images(images)
    return [str(row) for row in range(rows)]


@dataclass(frozen=True)
class Inputs:
    """What a model is fed, in the order of some image ids: pictures or features."""

    names: list[str]
    pictures: Pictures | None
    features: npt.NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.names)

    def select(self, rows: npt.NDArray[np.int64]) -> Inputs:
        """Return these rows only."""
        pictures = None if self.pictures is None else self.pictures.select(rows)
        features = None if self.features is None else self.features[rows]
        return Inputs([self.names[row] for row in rows], pictures, features)

    def with_features(self, features: npt.NDArray[Any]) -> Inputs:
        """Return the same images by their features, a row for each."""
        return Inputs(self.names, None, features)

    def window(self, rows: range) -> Inputs:
        """Return a range of rows; a mapped file is mapped anew, so that rows read before leave memory."""
        names = self.names[rows.start : rows.stop]
        if self.pictures is not None:
            return Inputs(names, self.pictures.select(np.arange(rows.start, rows.stop)), None)
        found = self.features
        assert found is not None
        base: Any = found.base  # of a slice, another array; and it would give the offset of the whole
        whole = isinstance(base, mmap.mmap) and found.flags.c_contiguous and len(rows) > 0
        if isinstance(found, np.memmap) and whole and found.filename:
            begin, shape = found.offset + rows.start * found.strides[0], (len(rows), found.shape[1])
            return Inputs(names, None, np.memmap(found.filename, found.dtype, "c", begin, shape))
        return Inputs(names, None, found[rows.start : rows.stop])

    def windows(self, rows: range) -> Iterator[Inputs]:
        """Divide a range of rows into windows of whole batches that take little memory."""
        size = _PICTURES
        if self.features is not None:
            width = self.features.shape[1] * self.features.itemsize
            size = max(1, _WINDOW // max(width * BATCH, 1)) * BATCH
        for start in range(rows.start, rows.stop, size):
            yield self.window(range(start, min(start + size, rows.stop)))

    def fingerprint(self) -> str:
        """Return a checksum of up to a thousand inputs, evenly spread: enough to tell other data."""
        if self.features is not None:
            return fingerprint(self.features)
        assert self.pictures is not None
        found = hashlib.sha256(f"{len(self)}".encode())
        for row in spread(len(self)):
            found.update(self.pictures.checksum(int(row)))
        return found.hexdigest()


def _check_rows(given: int, wanted: int) -> None:
    if given != wanted:
        raise InputError(f"{given:,} rows of inputs for {wanted:,} labelled images")
