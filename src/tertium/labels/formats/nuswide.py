"""NUS-WIDE: 81 concepts in Flickr images, one file of zeros and ones for each concept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError, some
from tertium.labels.formats.text import read_bytes, read_lines, read_names
from tertium.labels.labels import Rule
from tertium.labels.reading import Reading, settle
from tertium.progress import Progress

Part = Literal["all", "split"]
_SPLITS = {"train": "Train", "test": "Test"}


def read(
    folder: str | Path,
    *,
    part: Part = "all",
    contradictions: Rule = "error",
    progress: Progress | None = None,
) -> Reading:
    """Read the folder NUS-WIDE: Concepts81.txt, ImageList and Groundtruth, there or one folder below.

    A concept is **present** where its file has 1 and **absent** where it has 0: every image was looked at
    for every concept, so nothing is **unknown**.

    ``part`` "all" reads AllLabels/Labels_<concept>.txt for Imagelist.txt, and takes the splits from
    TrainImagelist.txt and TestImagelist.txt if they are there; "split" reads
    TrainTestLabels/Labels_<concept>_Train.txt and _Test.txt for these two lists.

    An image's id is its path in the list with "/" for "\\": below the folder of the images (Flickr).
    """
    folder, progress = Path(folder), progress or Progress()
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that holds ImageList and Groundtruth")
    concepts = read_names(_find(folder, "Concepts81.txt", "ConceptsList"))
    lists = (
        {"": "Imagelist.txt"}
        if part == "all"
        else {f"_{name}": f"{name}Imagelist.txt" for name in _SPLITS.values()}
    )
    labels = _find(folder, "AllLabels" if part == "all" else "TrainTestLabels", "Groundtruth")
    names: list[str] = []
    blocks = []
    progress.start("Reading NUS-WIDE", len(concepts) * len(lists), "files")
    for ending, name in lists.items():
        images = _read_images(_find(folder, name, "ImageList"))
        blocks.append(_read_concepts(labels, concepts, ending, len(images), progress))
        names += images
    values = np.concatenate(blocks)  # [N, C]
    coded = pa.array(names, pa.string()).dictionary_encode()
    cells = np.arange(values.size)
    splits, notes = _read_splits(folder, coded.dictionary)
    return settle(
        np.asarray(coded.indices)[cells // len(concepts)],
        cells % len(concepts),
        values.reshape(-1),
        classes=concepts,
        images=coded.dictionary,
        splits=splits,
        contradictions=contradictions,
        source=str(labels),
        notes=[*notes, *_left_out(labels, concepts, tuple(lists))],
    )


def _find(folder: Path, name: str, below: str) -> Path:
    """Find a file in the folder, or in the one that the archive unpacks into."""
    for place in (folder / below / name, folder / name):
        if place.exists():
            return place
    raise InputError(f"{folder / below / name}: no such file, nor {folder / name}")


def _read_images(path: Path) -> list[str]:
    names = [line.strip().replace("\\", "/") for line in read_lines(path)]
    while names and not names[-1]:
        names.pop()
    if not all(names):
        raise InputError(f"{path}: line {names.index('') + 1}: the name is empty")
    if not names:
        raise InputError(f"{path}: there are no images in it")
    return names


def _read_concepts(
    folder: Path, concepts: list[str], ending: str, count: int, progress: Progress
) -> npt.NDArray[np.int8]:
    paths = [folder / f"Labels_{name}{ending}.txt" for name in concepts]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise InputError(f"{folder}: {len(missing)} files of concepts are missing: {some(missing, 10)}")
    values = np.empty((count, len(concepts)), dtype=np.int8)
    for column, path in enumerate(paths):
        found = _read_values(path)
        if len(found) != count:
            raise InputError(f"{path}: has {len(found):,} lines for {count:,} images in the list")
        values[:, column] = found
        progress.advance()
    return values


def _read_values(path: Path) -> npt.NDArray[np.int8]:
    """Read one 0 or 1 a line as ±1."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n \t")
    if b" " in data:
        data = b"\n".join(line.strip() for line in data.split(b"\n"))
    both = np.frombuffer(data + b"\n", dtype=np.uint8)
    digits, ends = both[0::2], both[1::2]
    if (
        len(digits) != len(ends)
        or (ends != ord("\n")).any()
        or not np.isin(digits, (ord("0"), ord("1"))).all()
    ):
        lines = data.split(b"\n")
        line = next(number for number, text in enumerate(lines) if text not in (b"0", b"1"))
        raise InputError(f"{path}: line {line + 1}: needs 0 or 1, not {lines[line][:60].decode('latin-1')!r}")
    signs: npt.NDArray[np.int8] = digits.astype(np.int8) * np.int8(2) - np.int8(2 * ord("0") + 1)
    return signs


def _read_splits(folder: Path, images: pa.StringArray) -> tuple[pa.DictionaryArray | None, list[str]]:
    """Return the split of each image, where the two lists are there and name the same images."""
    parts = {}
    for split, name in _SPLITS.items():
        try:
            path = _find(folder, f"{name}Imagelist.txt", "ImageList")
        except InputError:
            return None, [
                "there is no TrainImagelist.txt and TestImagelist.txt, so the labels have no splits"
            ]
        parts[split] = set(_read_images(path))
        strangers = sorted(parts[split] - set(images.to_pylist()))
        if strangers:
            raise InputError(f"{path}: images that Imagelist.txt does not name: {some(strangers, 10)}")
    both = sorted(parts["train"] & parts["test"])
    if both:
        raise InputError(f"{folder}: images that are in both the train and the test list: {some(both, 10)}")
    names = [next((split for split in parts if image in parts[split]), None) for image in images.to_pylist()]
    without = names.count(None)
    return pa.array(names, pa.string()).dictionary_encode(), (
        [f"{without:,} images are in neither the train nor the test list and have no split"]
        if without
        else []
    )


def _left_out(folder: Path, concepts: list[str], endings: tuple[str, ...]) -> list[str]:
    wanted = {f"Labels_{name}{ending}.txt" for name in concepts for ending in endings}
    others = sorted({path.name for path in folder.glob("Labels_*.txt")} - wanted)
    return [f"{len(others)} files are of no concept in Concepts81.txt: {some(others, 10)}"] if others else []
