"""CUB-200-2011: birds with 312 attributes, each with how certain the annotator was, and 200 species."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.text import read_bytes, read_lines
from tertium.labels.labels import Rule
from tertium.labels.reading import Reading, settle

Certainty = Literal["not-visible", "guessing", "probably", "definitely"]
CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)  # numbered from 1 in certainties.txt
_COLUMNS = ("image", "attribute", "present", "certainty", "time")
_CHOICES = {"present": ("0", "1"), "certainty": ("1", "2", "3", "4")}


def read(
    folder: str | Path,
    *,
    certainty: Certainty = "guessing",
    species: bool = False,
    contradictions: Rule = "error",
) -> Reading:
    """Read the folder ``CUB_200_2011``: attributes/image_attribute_labels.txt and the lists beside it.

    An attribute is **present** where is_present is 1 and **absent** where it is 0, if the annotator was at
    least as certain as ``certainty`` ("not-visible" < "guessing" < "probably" < "definitely"); else it is
    **unknown**. By default only "not-visible" is unknown: annotators who could not see the part wrote
    is_present 0, which says nothing about the bird. An attribute without a line is unknown too.

    ``species`` adds the 200 species of image_class_labels.txt as classes; a bird has one, so the others are
    absent. An image's id is its path below ``images/``; train_test_split.txt gives the splits.

    In the published file hundreds of lines (of images 2275 and 9364) have a needless column "0" before the
    time; it is dropped, and a note counts them.
    """
    if certainty not in CERTAINTIES:
        raise InputError(f'there is no certainty "{certainty}"; {did_you_mean(certainty, CERTAINTIES)}')
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder CUB_200_2011")
    images = _read_list(folder / "images.txt")
    names = _read_list(_attributes_list(folder))
    source = folder / "attributes" / "image_attribute_labels.txt"
    mentions = _read_mentions(source, images, names)
    sure = mentions.certainty >= CERTAINTIES.index(certainty)
    rows, columns, present = (part[sure] for part in (mentions.row, mentions.column, mentions.present))
    classes = list(names.values())
    notes = list(mentions.notes)
    if (~sure).any():
        notes.append(f"{(~sure).sum():,} labels are less certain than “{certainty}” and count as unknown")
    if species:
        kinds = _read_list(folder / "classes.txt")
        kind = _read_pairs(folder / "image_class_labels.txt", images, list(kinds))
        grid = np.arange(len(images) * len(kinds))
        rows = np.concatenate([rows, grid // len(kinds)])
        columns = np.concatenate([columns, grid % len(kinds) + len(classes)])
        present = np.concatenate([present, grid % len(kinds) == kind[grid // len(kinds)]])
        classes += kinds.values()
    return settle(
        rows,
        columns,
        np.where(present, 1, -1),
        classes=classes,
        images=list(images.values()),
        splits=_read_splits(folder / "train_test_split.txt", images),
        contradictions=contradictions,
        source=str(source),
        notes=notes,
    )


def _attributes_list(folder: Path) -> Path:
    """Find attributes.txt: the published archive has it beside the folder."""
    places = [
        folder / "attributes" / "attributes.txt",
        folder / "attributes.txt",
        folder.parent / "attributes.txt",
    ]
    for place in places:
        if place.exists():
            return place
    raise InputError(f"{places[0]}: no such file, nor is attributes.txt in {folder} or beside it")


def _read_list(path: Path) -> dict[str, str]:
    """Read lines "id name" as id → name; both are unique."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split(maxsplit=1)
        if len(parts) != 2 or not parts[0].isdecimal():
            raise InputError(f'{path}: line {number}: needs a number and a name, not "{line[:60]}"')
        if parts[0] in found:
            raise InputError(f"{path}: line {number}: the number {parts[0]} is there twice")
        found[parts[0]] = parts[1].rstrip()
    if len(set(found.values())) < len(found):
        names = list(found.values())
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InputError(f'{path}: the name "{twice}" is there twice')
    return found


def _read_pairs(path: Path, images: Mapping[str, str], choices: Sequence[str]) -> npt.NDArray[np.int64]:
    """Read lines "image choice", one for each image, as the choice's place for each image."""
    place = {choice: number for number, choice in enumerate(choices)}
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        parts = line.split()
        if len(parts) != 2 or parts[0] not in images or parts[1] not in place:
            raise InputError(
                f"{path}: line {number}: needs an image of images.txt and one of {some(choices)}, "
                f'not "{line[:60]}"'
            )
        if found.setdefault(parts[0], place[parts[1]]) != place[parts[1]]:
            raise InputError(f"{path}: line {number}: image {parts[0]} already has another value")
    missing = [image for image in images if image not in found]
    if missing:
        raise InputError(f"{path}: {len(missing):,} images of images.txt are missing: {some(missing, 10)}")
    return np.array([found[image] for image in images], dtype=np.int64)


def _read_splits(path: Path, images: Mapping[str, str]) -> pa.DictionaryArray | None:
    if not path.exists():
        return None
    codes = pa.array(_read_pairs(path, images, ["0", "1"]), pa.int32())
    return pa.DictionaryArray.from_arrays(codes, pa.array(["test", "train"]))


# ---- the attributes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mentions:
    """One element for each line."""

    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]
    certainty: npt.NDArray[np.int64]  # counted from 0
    notes: tuple[str, ...]


def _read_mentions(path: Path, images: Mapping[str, str], attributes: Mapping[str, str]) -> _Mentions:
    table, odd = _read_table(path)
    places = {}
    choices = {"image": list(images), "attribute": list(attributes), **_CHOICES}
    for name, allowed in choices.items():
        coded = table[name].combine_chunks()
        place = pc.index_in(coded.dictionary, value_set=pa.array(allowed, pa.string()))
        if place.null_count:
            raise InputError(
                _explain(path, name, coded.dictionary.filter(place.is_null()).to_pylist(), allowed)
            )
        places[name] = np.asarray(place, dtype=np.int64)[np.asarray(coded.indices)]
    notes = []
    if odd:
        notes.append(f"{odd:,} lines have a needless column before the time, which was dropped")
    seen = np.zeros(len(images) * len(attributes), dtype=bool)
    seen[places["image"] * len(attributes) + places["attribute"]] = True
    gaps = seen.size - int(seen.sum())
    if gaps:
        notes.append(f"{gaps:,} attributes of images have no line and are unknown")
    return _Mentions(
        places["image"], places["attribute"], places["present"] == 1, places["certainty"], tuple(notes)
    )


def _read_table(path: Path) -> tuple[pa.Table, int]:
    """Read the first four columns as codes of text; return how many lines had a needless fifth."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if not data.isascii():
        raise InputError(f"{path}: {_first_bad_line(path)}")
    repaired: list[list[str]] = []

    def repair(row: pa.csv.InvalidRow) -> str:
        cells = row.text.split()
        if len(cells) == 6 and cells[4] == "0":
            repaired.append(cells[:4])
            return "skip"
        return "error"

    text = pa.dictionary(pa.int32(), pa.string())
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(column_names=list(_COLUMNS)),
            parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=repair),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(_COLUMNS[:4], text) | {"time": pa.float64()},
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: {_first_bad_line(path) or error}") from None
    table = table.drop_columns("time")
    if repaired:
        columns = zip(*repaired, strict=True)
        extra = {name: pa.array(cells).cast(text) for name, cells in zip(_COLUMNS[:4], columns, strict=True)}
        table = pa.concat_tables([table, pa.table(extra)])
    if not len(table):
        raise InputError(f"{path}: there are no lines in it")
    return table.unify_dictionaries().combine_chunks(), len(repaired)


def _first_bad_line(path: Path) -> str | None:
    """Say which line is wrong; read again only because there is an error to explain."""
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split()
        if len(cells) == 6 and cells[4] == "0":
            continue
        if line and (not line.isascii() or len(line.split(" ")) != 5 or not _is_number(cells[-1])):
            return (
                f"line {number}: needs image, attribute, is_present, certainty and time between "
                f'single spaces, not "{line[:60]}"'
            )
    return None


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _explain(path: Path, name: str, values: Sequence[str], allowed: Sequence[str]) -> str:
    shown = some(map(repr, values), 10)
    if name in _CHOICES:
        return f"{path}: {name} is one of {', '.join(allowed)}, not {shown}"
    return f"{path}: no {name} in the list has the number {shown}"
