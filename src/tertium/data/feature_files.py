"""Feature files: a ``.npy`` array, and beside it the image of each row. Nothing here needs torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, some
from tertium.files import read_json, write_json

_FORMAT = "tertium_features"  # the key that tells our file of row names from a user's own


def load_features(path: str | Path, images: int | Sequence[str] | None = None) -> npt.NDArray[Any]:
    """Map a ``.npy`` array [images, width] of floats into memory.

    ``images`` are their names, or how many there are. Where a file beside the array names its rows, as
    `tertium features` writes it, rows are found by name; otherwise they must be as many, in the same order.
    """
    try:
        array: npt.NDArray[Any] = np.load(
            path, mmap_mode="c", allow_pickle=False
        )  # copy on write: torch wants it writable
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a .npy array of numbers ({error})") from None
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(f"{path}: features must be floats [images, width], not {array.dtype} {array.shape}")
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


def feature_names(path: str | Path) -> list[str] | None:
    """Return the image of each row of a feature file, if a file beside it says so."""
    return _row_names(path, load_features(path))


def write_feature_names(
    path: str | Path, array: npt.NDArray[Any], names: Sequence[str], about: Mapping[str, Any]
) -> None:
    """Write beside a feature file which image each row is of, and what the array was made with."""
    rows = {"array": fingerprint(array), "images": list(names)}
    write_json(_beside(path), {_FORMAT: 1, "model": dict(about), **rows})


def fingerprint(array: npt.NDArray[Any]) -> str:
    """Return a checksum of up to a thousand rows, evenly spread: enough to tell another array."""
    rows = spread(len(array))
    found = hashlib.sha256(f"{len(array)}{array.dtype} {array.shape}".encode())
    found.update(np.ascontiguousarray(array[rows]).data)
    return found.hexdigest()


def spread(count: int) -> npt.NDArray[np.int64]:
    """Return up to a thousand of so many rows, evenly spread."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, 1000)).astype(np.int64))


def _beside(path: str | Path) -> Path:
    return Path(f"{path}.json")


def _row_names(path: str | Path, array: npt.NDArray[Any]) -> list[str] | None:
    beside = _beside(path)
    if not beside.is_file():
        return None
    about = read_json(beside)
    if not isinstance(about, dict) or _FORMAT not in about:
        return None  # a file of the user's own
    names = about.get("images")
    if about.get("array") != fingerprint(array) or not isinstance(names, list) or len(names) != len(array):
        raise InputError(
            f"{beside}: names the rows of another array than {path}; "
            "run tertium features again, or remove it if rows are in the order of the labels"
        )
    return names


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
