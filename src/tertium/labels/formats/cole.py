"""The arrays of Cole et al. 2021 (single positive labels): formatted_train_labels.npy and so on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.text import read_array
from tertium.labels.reading import Reading, settle

Which = Literal["observed", "full"]
_PARTS = {"train": "train", "val": "test"}  # their name → our split


def read(folder: str | Path, *, which: Which = "observed", classes: Sequence[str] | None = None) -> Reading:
    """Read a folder with formatted_{train,val}_images.npy, _labels.npy and _labels_obs.npy.

    ``which`` "observed" takes the training labels from _labels_obs.npy: 1 is **present**, -1 **absent** and
    0 **unknown** (generate_observed_labels.py writes them so). "full" takes them from _labels.npy: 1 is
    present, 0 absent and nothing is unknown. The part "val" is always read from the full labels, and is
    the split "test": the authors test on it, and validate on images taken from "train".

    The arrays have no names of classes: ``classes`` gives them in the order of the columns, else they are
    numbered from 0. An image's id is its name in _images.npy.
    """
    if which not in get_args(Which):
        raise InputError(f'there are no "{which}" labels; {did_you_mean(which, get_args(Which))}')
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the one that holds formatted_train_labels.npy")
    parts = [name for name in _PARTS if (folder / f"formatted_{name}_images.npy").exists()]
    if not parts:
        raise InputError(
            f"{folder}: there is no formatted_train_images.npy or formatted_val_images.npy in it"
        )
    blocks, images, splits = [], [], []
    for name in parts:
        observed = which == "observed" and name == "train"
        path = folder / f"formatted_{name}_labels{'_obs' if observed else ''}.npy"
        found = _read_images(folder / f"formatted_{name}_images.npy")
        blocks.append(_read_values(path, observed, len(found)))
        images += found
        splits += [_PARTS[name]] * len(found)
    widths = {block.shape[1] for block in blocks}
    if len(widths) > 1:
        raise InputError(f"{folder}: the parts have {' and '.join(map(str, sorted(widths)))} classes")
    width = widths.pop()
    if classes is not None and len(classes) != width:
        raise InputError(f"{folder}: {len(classes)} class names were given for {width} columns")
    values = np.concatenate(blocks)
    rows, columns = np.nonzero(values)
    return settle(
        rows,
        columns,
        values[rows, columns],
        classes=[str(number) for number in range(width)] if classes is None else classes,
        images=images,
        splits=pa.array(splits).dictionary_encode(),
        source=str(folder),
        notes=[] if classes is not None else ["the classes are numbered; name them with --classes"],
    )


def _read_images(path: Path) -> list[str]:
    names = read_array(path)
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise InputError(f"{path}: needs a list of names as text, not {names.dtype} of shape {names.shape}")
    if names.dtype.kind == "U":  # NumPy does not check what it calls a character
        characters = np.dtype(np.uint32).newbyteorder(names.dtype.byteorder)
        if np.frombuffer(names.tobytes(), characters).max() > sys.maxunicode:
            raise InputError(f"{path}: a name is not text, so the file is damaged")
    try:
        texts: list[str] = [
            name.decode("utf-8") if isinstance(name, bytes) else name for name in names.tolist()
        ]
        "".join(texts).encode("utf-8")
    except ValueError as error:
        raise InputError(f"{path}: a name is not text ({error})") from None
    if not all(texts):
        raise InputError(f"{path}: the name of image {texts.index('')} is empty")
    if len(set(texts)) < len(texts):
        twice = [name for name, times in Counter(texts).items() if times > 1]
        raise InputError(f"{path}: {len(twice):,} images are there twice: {some(twice, 10)}")
    return texts


def _read_values(path: Path, observed: bool, count: int) -> npt.NDArray[np.int8]:
    """Read labels as +1, −1, 0."""
    values: npt.NDArray[Any] = read_array(path)
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise InputError(
            f"{path}: needs numbers [images, classes], not {values.dtype} of shape {values.shape}"
        )
    if len(values) != count:
        raise InputError(f"{path}: {len(values):,} rows for {count:,} images")
    allowed = (-1, 0, 1) if observed else (0, 1)
    strange = np.argwhere(~np.isin(values, allowed))
    if strange.size:
        row, column = strange[0]
        meaning = "1, 0 or -1" if observed else "1 or 0"
        raise InputError(f"{path}: row {row}, column {column}: {values[row, column]} is not {meaning}")
    signs = values.astype(np.int8)
    return signs if observed else signs * np.int8(2) - np.int8(1)
