"""Feature files: a ``.npy`` array, and beside it the image of each row. Nothing here needs torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, some
from tertium.files import read_json, write_json

_FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))  # what torch can take as they are
_FORMAT = "tertium_features"  # the key that tells our file of row names from a user's own


def load_features(path: str | Path, images: int | Sequence[str] | None = None) -> npt.NDArray[Any]:
    """Map a ``.npy`` array [images, width] of floats into memory.

    ``images`` are their names, or how many there are. Where a file beside the array names its rows, as
    `tertium features` writes it, rows are found by name; otherwise they must be as many, in the same order.
    """
    array = _mapped(Path(path))
    if images is None:
        return array
    if not isinstance(images, int):
        names = _row_names(path, array)
        if names is not None:
            return _by_name(path, array, names, images)
        images = len(images)
    if len(array) != images:
        raise InputError(f"{path}: {len(array):,} rows of features for {images:,} labelled images")
    return array


def _mapped(path: Path) -> npt.NDArray[Any]:
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        # Copy on write: torch wants it writable. A header may also mean an array of Python objects, but
        # those cannot be mapped.
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # NumPy raises anything at all for damaged headers
        if is_zipfile(path):
            raise InputError(f"{path}: an .npz archive; save its array by itself with numpy.save") from None
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: not a .npy array of numbers ({reason})") from None
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype not in _FLOATS:
        kinds = ", ".join(map(str, _FLOATS))
        raise InputError(
            f"{path}: features must be [images, width] of {kinds} in this machine's byte order, "
            f"not {list(array.shape)} of {array.dtype}"
        )
    return array


def feature_names(path: str | Path) -> list[str] | None:
    """Return the image of each row of a feature file, if a file beside it says so."""
    return _row_names(path, load_features(path))


def write_feature_names(
    path: str | Path, array: npt.NDArray[Any], names: Sequence[str], about: Mapping[str, Any]
) -> None:
    """Write beside a feature file which image each row is of, and what the array was made with."""
    rows = {"array": fingerprint(array), "images": list(names)}
    write_json(names_file(path), {_FORMAT: 1, "model": dict(about), **rows})


def fingerprint(array: npt.NDArray[Any]) -> str:
    """Return a checksum of up to a thousand rows, evenly spread: enough to tell another array."""
    rows = spread(len(array))
    found = hashlib.sha256(f"{len(array)}{array.dtype} {array.shape}".encode())
    found.update(np.ascontiguousarray(array[rows]).data)
    return found.hexdigest()


def spread(count: int) -> npt.NDArray[np.int64]:
    """Return up to a thousand of so many rows, evenly spread."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, 1000)).astype(np.int64))


def names_file(path: str | Path) -> Path:
    """Return where the names of the rows of a feature file are."""
    return Path(f"{path}.json")


def is_written_by_us(path: str | Path) -> bool:
    """Return whether a feature file has the file beside it that `tertium features` writes."""
    try:
        about = read_json(names_file(path))
    except InputError:
        return False
    return isinstance(about, dict) and _FORMAT in about


def _row_names(path: str | Path, array: npt.NDArray[Any]) -> list[str] | None:
    beside = names_file(path)
    if not beside.is_file():
        return None
    about = read_json(beside)
    if not isinstance(about, dict) or _FORMAT not in about:
        return None  # a file of the user's own
    names = about.get("images")
    if about.get("array") != fingerprint(array) or not _are_names(names, len(array)):
        raise InputError(
            f"{beside}: names the rows of another array than {path}; "
            "run tertium features again, or remove it if rows are in the order of the labels"
        )
    return list(names or ())


def _are_names(names: Any, count: int) -> bool:
    return isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names)


def _by_name(
    path: str | Path, array: npt.NDArray[Any], names: list[str], images: Sequence[str]
) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pc.index_in(pa.array(images, pa.string()), value_set=pa.array(names, pa.string()))
    if rows.null_count:
        missing = [name for name, row in zip(images, rows.to_pylist(), strict=True) if row is None]
        raise InputError(
            f"{path}: {len(missing):,} of {len(images):,} images have no features in it: {some(missing)}"
        )
    found: npt.NDArray[np.int32] = rows.to_numpy()
    if len(found) == len(array) and (found == np.arange(len(array))).all():
        return array  # still mapped
    chosen: npt.NDArray[Any] = np.asarray(array)[found]
    return chosen
