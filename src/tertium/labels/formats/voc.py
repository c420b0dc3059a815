"""Pascal VOC: a year's folder with Annotations/*.xml and ImageSets/Main/*.txt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.coco import Boxes
from tertium.labels.formats.text import read_lines
from tertium.labels.formats.xml_events import parse
from tertium.labels.labels import Rule, check_rule
from tertium.labels.reading import Reading, settle
from tertium.progress import Progress

From = Literal["annotations", "lists"]
Difficult = Literal["unknown", "present", "absent"]

_SPLITS = ("train", "val", "test")
_WHOLE = "trainval"  # train and val together; a split of its own only where they are not given apart
_SHOWN = 10
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MEANS = {"unknown": 0, "present": 1, "absent": -1}
_VALUES = {"1": 1, "+1": 1, "-1": -1, "0": 0}


def read(
    folder: str | Path,
    *,
    source: From = "annotations",
    difficult: Difficult = "unknown",
    contradictions: Rule = "error",
    progress: Progress | None = None,
) -> Reading:
    """Read a year's folder, such as VOCdevkit/VOC2007.

    With ``source`` "annotations" the labels are the objects in Annotations/*.xml. Images are annotated fully:
    a class with an object is **present**, every other is **absent**. A class of which all objects are marked
    difficult (hard to see, and left out of VOC's scores) is **unknown**, or what ``difficult`` says. With
    "lists" they are those of ImageSets/Main/<class>_<split>.txt: 1 is present, -1 absent, 0 difficult, and a
    label that stands in no list is unknown. ``contradictions`` says what a label is on which lists disagree.

    ImageSets/Main/{train,val,test}.txt say which images there are, and are the splits; without them, every
    annotation file is an image. (VOC2012 has further annotation files, for tasks in which not every class was
    marked.) If a split has no annotation files at all, it is unpublished: all its labels are unknown.

    An image's id is its file name in JPEGImages, or its name in the lists with ".jpg".
    """
    folder = Path(folder)
    check_rule(contradictions)
    for what, value, choices in (("source", source, From), ("difficult", difficult, Difficult)):
        if value not in get_args(choices):
            raise InputError(f'{what} cannot be "{value}"; {did_you_mean(value, get_args(choices))}')
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give a year's, such as VOCdevkit/VOC2007")
    if source == "lists":
        return _from_lists(folder, difficult, contradictions, progress or Progress())
    found = _annotations(folder, progress or Progress())
    rows = np.repeat(np.arange(len(found.files)), [len(file.names) for file in found.files])
    columns = found.columns()
    unsure = np.array([mark for file in found.files for mark in file.difficult], dtype=bool)
    values = np.full((len(found.stems), len(found.classes)), -1, dtype=np.int8)
    values[~found.published] = 0
    values[rows[unsure], columns[unsure]] = _MEANS[difficult]
    values[rows[~unsure], columns[~unsure]] = 1
    return _reading(folder, values, found.classes, found.stems, found.splits, found.notes)


def read_boxes(folder: str | Path, *, progress: Progress | None = None) -> Boxes:
    """Read the boxes of a year's folder; rows and columns are those of the labels that `read` gives.

    VOC counts pixels from 1 and names the last one inside the object; the boxes begin at 0 and end after it.
    """
    folder = Path(folder)
    found = _annotations(folder, progress or Progress())
    for what, lacking in (
        ("no size of the image", [file for file in found.files if file.path and file.size is None]),
        (
            "an object without a box xmin ≤ xmax, ymin ≤ ymax",
            [file for file in found.files if None in file.boxes],
        ),
    ):
        if lacking:
            raise InputError(
                f"{folder}: {what} in {some((str(file.path.name) for file in lacking if file.path), _SHOWN)}"
            )
    corners = np.array([box for file in found.files for box in file.boxes], dtype=np.float64).reshape(-1, 4)
    corners[:, :2] -= 1
    names = _file_names(folder)
    return Boxes(
        images=pa.array([names.get(stem, f"{stem}.jpg") for stem in found.stems], pa.string()),
        sizes=np.array([file.size or (0, 0) for file in found.files], dtype=np.int64),
        classes=tuple(found.classes),
        rows=np.repeat(np.arange(len(found.files)), [len(file.names) for file in found.files]),
        columns=found.columns(),
        corners=corners,
        unsure=np.array([mark for file in found.files for mark in file.difficult], dtype=bool),
    )


def _reading(
    folder: Path,
    values: npt.NDArray[np.int8],
    classes: Sequence[str],
    stems: Sequence[str],
    splits: Mapping[str, str],
    notes: Sequence[str],
) -> Reading:
    names = _file_names(folder)
    rows, columns = np.nonzero(values)
    named = pa.array([splits.get(stem) for stem in stems], pa.string()).dictionary_encode()
    return settle(
        rows,
        columns,
        values[rows, columns],
        classes=classes,
        images=[names.get(stem, f"{stem}.jpg") for stem in stems],
        splits=named if splits else None,
        source=str(folder),
        notes=notes,
    )


def _file_names(folder: Path) -> dict[str, str]:
    """Return the name of each image file by its name without the ending."""
    images = folder / "JPEGImages"
    return {path.stem: path.name for path in sorted(images.iterdir())} if images.is_dir() else {}


# ---- annotation files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """What an annotation file says; one element a list an object."""

    path: Path | None = None  # none for an image whose annotations are not published
    names: tuple[str, ...] = ()
    difficult: tuple[bool, ...] = ()
    boxes: tuple[tuple[float, ...] | None, ...] = ()
    size: tuple[int, int] | None = None
    image: str | None = None  # what the file says its image is


@dataclass(frozen=True)
class _Annotations:
    stems: list[str]
    files: list[_File]
    classes: list[str]
    splits: dict[str, str]
    notes: list[str]

    @property
    def published(self) -> npt.NDArray[np.bool_]:
        return np.array([file.path is not None for file in self.files], dtype=bool)

    def columns(self) -> npt.NDArray[np.int64]:
        place = {name: number for number, name in enumerate(self.classes)}
        return np.array([place[name] for file in self.files for name in file.names], dtype=np.int64)


def _annotations(folder: Path, progress: Progress) -> _Annotations:
    inside = folder / "Annotations"
    if not inside.is_dir():
        other = " (lists are there: read them with --source lists)" if _lists(folder) else ""
        raise InputError(f"{folder}: there is no folder Annotations in it{other}")
    there = {path.stem: path for path in sorted(inside.glob("*.xml"))}
    if not there:
        raise InputError(f"{inside}: there are no .xml files in it")
    splits, notes = _splits(folder)
    stems = list(splits) or list(there)
    notes += _check_files(inside, stems, splits, there)
    progress.start("Reading annotations", len(stems), "files")
    files = []
    for stem in stems:
        files.append(_read_file(there[stem]) if stem in there else _File())
        progress.advance()
    stray = [
        file for stem, file in zip(stems, files, strict=True) if file.image and Path(file.image).stem != stem
    ]
    if stray:
        notes.append(f"{len(stray):,} annotation files name another image inside; their own name counts")
    return _Annotations(stems, files, _classes(folder, files), splits, notes)


def _check_files(
    inside: Path, stems: Sequence[str], splits: Mapping[str, str], there: Iterable[str]
) -> list[str]:
    """Return notes on files without an image; a split that lacks some of its files is an error."""
    known = set(there)
    notes = []
    for split in dict.fromkeys(splits.values()):
        listed = [stem for stem in stems if splits[stem] == split]
        missing = [stem for stem in listed if stem not in known]
        if len(missing) == len(listed):
            notes.append(
                f'none of the {len(listed):,} images of "{split}" has an annotation file; all is unknown'
            )
        elif missing:
            files = some((f"{stem}.xml" for stem in missing), _SHOWN)
            raise InputError(f'{inside}: images of "{split}" have no annotation file: {files}')
    unused = len(known - set(stems))
    if unused:
        notes.append(f"{unused:,} annotation files are of images that ImageSets/Main does not list; left out")
    return notes


def _classes(folder: Path, files: Sequence[_File]) -> list[str]:
    """Return the classes: those of the lists, else the names of the objects."""
    seen = sorted({name for file in files for name in file.names})
    listed = sorted({name for name, _ in _lists(folder)})
    unknown = [name for name in seen if name not in set(listed)]
    if listed and unknown:
        first = next(file.path for file in files if unknown[0] in file.names)
        raise InputError(
            f"{first}: ImageSets/Main has no list for the class {some(unknown, _SHOWN)}; "
            f"{did_you_mean(unknown[0], listed)}"
        )
    if not seen and not listed:
        raise InputError(f"{folder}: no object in any annotation file, and no class list, so no classes")
    return listed or seen


def _read_file(path: Path) -> _File:
    root = _parse(path)
    if root.tag != "annotation":
        raise InputError(f"{path}: the XML is <{root.tag}>; it must be <annotation>")
    objects = root.findall("object")  # parts, such as heads, are deeper
    size = root.find("size")
    return _File(
        path=path,
        names=tuple(_name(path, number, item) for number, item in enumerate(objects, start=1)),
        difficult=tuple(_is_difficult(path, number, item) for number, item in enumerate(objects, start=1)),
        boxes=tuple(_box(item) for item in objects),
        size=None if size is None else _size(size),
        image=(root.findtext("filename") or "").strip() or None,
    )


def _parse(path: Path) -> ElementTree.Element:
    builder = ElementTree.TreeBuilder()
    parse(path, builder.start, builder.end, builder.data)
    return builder.close()


def _name(path: Path, number: int, item: ElementTree.Element) -> str:
    name = (item.findtext("name") or "").strip()
    if not name:
        raise InputError(f"{path}: object {number} has no name")
    return name


def _is_difficult(path: Path, number: int, item: ElementTree.Element) -> bool:
    text = (item.findtext("difficult") or "0").strip()
    if text not in ("0", "1"):
        raise InputError(f'{path}: object {number}: difficult is "{text}"; it must be 0 or 1')
    return text == "1"


def _box(item: ElementTree.Element) -> tuple[float, ...] | None:
    """Return the corners; none if they make no box, which is an error only to those who want boxes."""
    try:
        found = tuple(float(item.findtext(f"bndbox/{name}") or "") for name in _CORNERS)
    except ValueError:
        return None
    return found if np.isfinite(found).all() and found[0] <= found[2] and found[1] <= found[3] else None


def _size(size: ElementTree.Element) -> tuple[int, int] | None:
    try:
        return int(size.findtext("width") or ""), int(size.findtext("height") or "")
    except ValueError:
        return None


# ---- lists -------------------------------------------------------------------------------------------------


def _splits(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the split of each image that ImageSets/Main lists, and notes."""
    found: dict[str, str] = {}
    repeated = 0
    for split in (*_SPLITS, _WHOLE):
        path = folder / "ImageSets" / "Main" / f"{split}.txt"
        if not path.exists():
            continue
        here: set[str] = set()
        for number, line in enumerate(read_lines(path), start=1):
            if len(line.split()) > 1:
                raise InputError(f'{path}: line {number}: "{line.strip()}"; it must be the name of one image')
            stem = line.strip()
            if stem and found.setdefault(stem, split) != split and split != _WHOLE:
                raise InputError(f'{path}: line {number}: "{stem}" is in {found[stem]}.txt too')
            repeated += stem in here
            here |= {stem} if stem else set()
    return found, [f"{repeated:,} images stand more than once in a list of a split"] if repeated else []


def _lists(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the lists of ImageSets/Main by class and split."""
    found = {}
    for path in sorted((folder / "ImageSets" / "Main").glob("*_*.txt")):
        name, _, split = path.stem.rpartition("_")
        if name and split in (*_SPLITS, _WHOLE):
            found[name, split] = path
    return found


def _from_lists(folder: Path, difficult: Difficult, contradictions: Rule, progress: Progress) -> Reading:
    lists = _lists(folder)
    if not lists:
        raise InputError(f"{folder}: there are no lists ImageSets/Main/<class>_<split>.txt in it")
    splits, notes = _splits(folder)
    found: dict[tuple[str, str], int] = {}  # (image, class) → 1, -1 or 0
    clashes: dict[tuple[str, str], str] = {}
    progress.start("Reading lists", len(lists), "files")
    for (name, split), path in sorted(lists.items(), key=lambda item: item[0][1] == _WHOLE):  # trainval last
        for number, stem, value in _read_list(path):
            if found.setdefault((stem, name), value) != value:
                clashes.setdefault((stem, name), f'"{name}" in "{stem}" ({path.name}, line {number})')
            splits.setdefault(stem, split)
        progress.advance()
    if clashes and contradictions == "error":
        raise InputError(
            f"{folder}: the lists of ImageSets/Main disagree on {some(clashes.values(), _SHOWN)}; "
            "say which holds with --contradictions absent, present or unknown"
        )
    if clashes:
        notes.append(f"the lists disagree on {len(clashes):,} labels; taken as {contradictions}")
    stems, classes = list(splits), sorted({name for name, _ in lists})
    means = {1: 1, -1: -1, 0: _MEANS[difficult], None: 0}
    values = np.array([[means[found.get((stem, name))] for name in classes] for stem in stems], dtype=np.int8)
    for stem, name in clashes:
        values[stems.index(stem), classes.index(name)] = _MEANS[contradictions]
    gaps = len(stems) * len(classes) - len(found)
    if gaps:
        notes.append(f"{gaps:,} labels stand in no list; unknown")
    return _reading(folder, values, classes, stems, splits, notes)


def _read_list(path: Path) -> Iterable[tuple[int, str, int]]:
    """Yield line number, image and value."""
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 2 or parts[1] not in _VALUES:
            raise InputError(f'{path}: line {number}: "{line.strip()}"; it must be an image and 1, -1 or 0')
        yield number, parts[0], _VALUES[parts[1]]
