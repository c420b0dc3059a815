"""CIFAR-100: small images with a fine and a coarse class, from the binary or the Python version."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError, some
from tertium.labels.formats.inert_pickle import InertArray, read_pickle
from tertium.labels.formats.text import read_bytes, read_names
from tertium.labels.reading import Reading, settle
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_SPLITS = ("train", "test")
_NAMES = {"fine_label_names": 100, "coarse_label_names": 20}


def read(
    folder: str | Path, *, images: str | Path | None = None, progress: Progress | None = None
) -> Reading:
    """Read CIFAR-100's folder: the binary version (train.bin …) or the Python version (train, test, meta).

    An image's fine class and the coarse class above it are **present**; the data set gives each image one
    class, so every other class is **absent** and nothing is **unknown**. The tree has the coarse classes
    above the fine ones. The Python version is pickled; it is read without unpickling.

    The files have no names that both versions share: image ids are ``train/00000.png`` and so on, in the
    order of the file. ``images`` names a new folder to write these images to.
    """
    folder, progress = Path(folder), progress or Progress()
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the one that holds train.bin, or train and meta")
    binary = any((folder / f"{split}.bin").exists() for split in _SPLITS)
    if not binary and not any((folder / split).exists() for split in _SPLITS):
        raise InputError(f"{folder}: there is neither train.bin or test.bin nor train or test in it")
    names = (
        {name: read_names(folder / f"{name}.txt") for name in _NAMES} if binary else _pickled_names(folder)
    )
    for name, count in _NAMES.items():
        if len(names[name]) != count:  # a name too many would shift those below it
            raise InputError(f"{folder}: {len(names[name])} names in {name}; CIFAR-100 has {count}")
    fine_names, coarse_names = names.values()
    parts = {}
    for split in _SPLITS:
        path = folder / (f"{split}.bin" if binary else split)
        if path.exists():
            parts[split] = _read_binary(path) if binary else _read_pickled(path)
            _check(parts[split], path, len(fine_names), len(coarse_names))
    fine = np.concatenate([part.fine for part in parts.values()])
    coarse = np.concatenate([part.coarse for part in parts.values()])
    tree = _read_tree(folder, fine, coarse, fine_names, coarse_names)
    ids = [f"{split}/{number:05}.png" for split, part in parts.items() for number in range(len(part.fine))]
    if images is not None:
        _write_images(parts, Path(images), progress)
    classes = [*fine_names, *coarse_names]
    values = np.full((len(ids), len(classes)), -1, dtype=np.int8)
    values[np.arange(len(ids)), fine] = 1
    values[np.arange(len(ids)), coarse + len(fine_names)] = 1
    rows, columns = np.nonzero(values)
    return settle(
        rows,
        columns,
        values.reshape(-1),
        classes=classes,
        images=ids,
        splits=pa.array([name.split("/")[0] for name in ids]).dictionary_encode(),
        source=str(folder),
        notes=[f"there is no {split} part" for split in _SPLITS if split not in parts],
        tree=tree,
    )


@dataclass(frozen=True)
class _Part:
    fine: npt.NDArray[np.int64]  # [N]
    coarse: npt.NDArray[np.int64]  # [N]
    pixels: npt.NDArray[np.uint8]  # [N, 3072]: 1,024 red, then green, then blue


def _read_binary(path: Path) -> _Part:
    data = np.frombuffer(read_bytes(path), dtype=np.uint8)
    if len(data) % (2 + _PIXELS):
        raise InputError(
            f"{path}: {len(data):,} bytes are not whole records of {2 + _PIXELS:,}; it is damaged"
        )
    records = data.reshape(-1, 2 + _PIXELS)
    return _Part(records[:, 1].astype(np.int64), records[:, 0].astype(np.int64), records[:, 2:])


def _pickled_names(folder: Path) -> dict[str, list[str]]:
    path = folder / "meta"
    meta = _read_dict(path)
    found = {}
    for key in _NAMES:
        names = meta.get(key)
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise InputError(f'{path}: "{key}" is not a list of names')
        found[key] = names
    return found


def _read_pickled(path: Path) -> _Part:
    batch = _read_dict(path)
    data = batch.get("data")
    if not isinstance(data, InertArray) or data.shape[1:] != (_PIXELS,):
        raise InputError(f'{path}: "data" is not an array of {_PIXELS:,} pixel bytes for each image')
    parts = []
    for key in ("fine_labels", "coarse_labels"):
        numbers = batch.get(key)
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise InputError(f'{path}: "{key}" is not a list of numbers')
        if len(numbers) != data.shape[0]:
            raise InputError(f'{path}: {len(numbers):,} "{key}" for {data.shape[0]:,} images')
        parts.append(np.array(numbers, dtype=np.int64))
    return _Part(parts[0], parts[1], data.values())


def _read_dict(path: Path) -> dict[Any, Any]:
    found = read_pickle(path)
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds no dictionary, so it is not a file of CIFAR-100")
    return found


def _check(part: _Part, path: Path, fine: int, coarse: int) -> None:
    if not len(part.fine):
        raise InputError(f"{path}: there are no images in it")
    for what, numbers, count in (("fine", part.fine, fine), ("coarse", part.coarse, coarse)):
        strange = np.flatnonzero((numbers < 0) | (numbers >= count))
        if strange.size:
            shown = numbers[strange[0]]
            raise InputError(f"{path}: image {strange[0]}: the {what} label {shown} has no name (of {count})")


def _read_tree(
    folder: Path,
    fine: npt.NDArray[np.int64],
    coarse: npt.NDArray[np.int64],
    below: list[str],
    above: list[str],
) -> LabelTree:
    """Return the coarse class above each fine one; two for one mean that a file is damaged."""
    pairs = np.unique(np.stack([fine, coarse], axis=1), axis=0)
    twice = np.flatnonzero(np.diff(pairs[:, 0]) == 0)
    if twice.size:
        names = [f'"{below[number]}"' for number in np.unique(pairs[twice, 0])]
        raise InputError(f"{folder}: fine classes with two coarse classes: {some(names, 10)}")
    return LabelTree({below[child]: above[parent] for child, parent in pairs})


def _write_images(parts: dict[str, _Part], folder: Path, progress: Progress) -> None:
    """Write PNG files into a new folder, which appears when all of them are there."""
    from PIL import Image

    if folder.exists():
        raise InputError(f"{folder}: is there already; name a new folder for the images")
    if not folder.parent.is_dir():
        raise InputError(f"{folder}: the folder {folder.parent} does not exist")
    progress.start("Writing images", sum(len(part.fine) for part in parts.values()), "images")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        whole = Path(scratch) / folder.name
        for split, part in parts.items():
            (whole / split).mkdir(parents=True)
            for number, pixels in enumerate(part.pixels):
                picture = np.moveaxis(pixels.reshape(3, _SIDE, _SIDE), 0, -1)
                Image.fromarray(np.ascontiguousarray(picture)).save(whole / split / f"{number:05}.png")
                progress.advance()
        whole.rename(folder)
