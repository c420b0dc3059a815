"""Data sets of Hugging Face `datasets`: Arrow as `save_to_disk` writes it, or Parquet files, also of the hub.

What the columns mean is in the schema's metadata, under "huggingface"; the library itself is not needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tertium.errors import InputError, did_you_mean, some
from tertium.hub import data_files, data_place, is_address
from tertium.labels.formats.listing import (
    Empty,
    Ints,
    Listing,
    Unlisted,
    check_choice,
    flattened,
    settle_listing,
)
from tertium.labels.formats.text import read_bytes
from tertium.labels.reading import Reading
from tertium.progress import Progress

Numbers = Literal["classes", "multi-hot"]
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError)
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")  # train-00000-of-00002.parquet
_NUMBERED = re.compile(r"\d{4,}\.parquet")  # train/0000.parquet, as the hub itself converts data sets
_CLASS = "ClassLabel"


def read(
    path: str | Path,
    *,
    column: str,
    image: str = "image",
    classes: Sequence[str] | None = None,
    numbers: Numbers | None = None,
    unlisted: Unlisted = "unknown",
    empty: Empty = "unknown",
    progress: Progress | None = None,
) -> Reading:
    """Read a folder that ``save_to_disk`` wrote, a folder of Parquet files, or one .parquet or .arrow file.

    ``path`` may also be a data set of the hub, ``owner/name`` or ``owner/name@revision``, or its address
    ``hf://datasets/owner/name/…``, where a folder or a pattern may follow: its Parquet files are downloaded
    into Hugging Face's cache.

    ``column`` holds the classes of each image: a list of ClassLabel or of text, or a single one of these.
    Listed is **present**; every other class is **unknown**, or **absent** if ``unlisted`` says so. A missing
    list, and ClassLabel −1, say nothing. Plain numbers need ``classes``, and ``numbers`` says what they are:
    the numbers of classes from 0, or a 1 or 0 for each class ("multi-hot"; a 0 is a class not listed).

    ``image`` is the column with the names of the images, or with images that have a path. The splits are
    those of the folder, or of files named as train-00000-of-00002.parquet.
    """
    check_choice("unlisted labels", unlisted, get_args(Unlisted))
    parts, notes = parts_of(path)
    if progress is not None:
        progress.start("Reading tables", len(parts), "files")
    ids: list[str] = []
    splits: list[str | None] = []
    record, names = [np.empty(0, dtype=np.int64)], []
    declared: list[str] | None = None if classes is None else list(classes)
    for part in parts:
        table, feature = _columns(part.file, image, column)
        own = _listed(part.file, table[column].combine_chunks(), feature, column, classes, numbers)
        if own.classes is not None:
            if declared is not None and declared != own.classes:
                raise InputError(f"{part.file}: its classes are not those of the files before")
            declared = own.classes
        record.append(own.record + len(ids))
        names.append(own.names)
        ids += _image_names(part.file, table[image].combine_chunks(), image)
        splits += [part.split] * len(table)
        if progress is not None:
            progress.advance()
    listing = Listing.of_images(
        ids, np.concatenate(record), pa.chunked_array(names, pa.string()).combine_chunks(), str(path)
    )
    hot = numbers == "multi-hot" and unlisted == "absent"  # a row of zeros says that nothing is there
    return settle_listing(
        listing,
        source=str(path),
        classes=declared,
        unlisted=unlisted,
        empty="absent" if hot else empty,
        splits=pa.array(splits, pa.string()).dictionary_encode() if any(splits) else None,
        notes=notes,
    )


# ---- files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A table of a data set, and the split that it is of."""

    file: Path
    split: str | None


def parts_of(place: str | Path) -> tuple[list[Part], list[str]]:
    """Return the tables of a data set, with their splits; and a note on those that come from the hub."""
    path, named = Path(place), data_place(place)
    if named is None or path.exists():
        return _parts_on_disk(path), []
    try:
        found = data_files(named, (".parquet",))
    except InputError as error:
        if is_address(place):
            raise
        raise InputError(f"{place}: no such file or folder, and as a name: {error}") from None
    if not named.inside:
        _check_complete(found.names, named.repository)
    inside = named.inside if named.inside.endswith(".parquet") else f"{named.inside}/*.parquet".lstrip("/")
    where = f"hf://datasets/{named.repository}@{found.commit}/{inside}"
    note = f"these are the labels of commit {found.commit}; its images are at '{where}'"
    return [Part(found.folder / name, _split_of(Path(name))) for name in found.names], [note]


def _check_complete(names: Sequence[str], source: str) -> None:
    """Refuse a part of a split: its files say how many there are."""
    shards = [found.groups() for name in names if (found := _SHARD.fullmatch(name))]
    for split, _, count in shards:
        own = sum(each[0] == split and each[2] == count for each in shards)
        if own < int(count):
            raise InputError(f"{source}: {int(count) - own:,} of {int(count):,} files of {split} are missing")


def _parts_on_disk(path: Path) -> list[Part]:
    if path.is_file():
        if path.suffix not in (".parquet", ".arrow"):
            raise InputError(f"{path}: data sets are read from folders, .parquet and .arrow")
        return [Part(path, _split_of(path))]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder")
    if (path / "dataset_dict.json").exists():
        splits = _json(path / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise InputError(f'{path / "dataset_dict.json"}: "splits" is not a list of names')
        return [Part(file, name) for name in splits for file in _saved(path / Path(name).name)]
    if (path / "state.json").exists():
        return [Part(file, None) for file in _saved(path)]
    found = [Part(file, _split_of(file)) for file in sorted(path.rglob("*.parquet"))]
    _check_complete([str(part.file.relative_to(path)) for part in found], str(path))
    if not found:
        raise InputError(
            f"{path}: neither written by save_to_disk (there is no state.json or dataset_dict.json) nor a "
            "folder with Parquet files"
        )
    return found


def _saved(folder: Path) -> list[Path]:
    """Return the files that a folder written by ``save_to_disk`` says it has."""
    state = folder / "state.json"
    files = _json(state).get("_data_files")
    if not isinstance(files, list) or not files:
        raise InputError(f'{state}: "_data_files" is not a list of files')
    names = [each.get("filename") if isinstance(each, dict) else None for each in files]
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f'{state}: a file of "_data_files" has no name')
    return [folder / Path(str(name)).name for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: must hold an object")
    return found


def _split_of(path: Path) -> str | None:
    if _NUMBERED.fullmatch(path.name):
        return path.parent.name or None
    found = _SHARD.fullmatch(path.name)
    return found[1] if found else None


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError:
        raise
    except _DAMAGE as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a table, or a damaged one ({said})") from None


def _columns(path: Path, image: str, column: str) -> tuple[pa.Table, dict[str, Any]]:
    """Return two columns of a table, and what its metadata says about the labels."""
    with _damage_of(path):
        schema = _schema(path)
        for name, option in ((image, "--image"), (column, "--column")):
            if name not in schema.names:
                hint = did_you_mean(name, schema.names)
                raise InputError(f'{path}: there is no column "{name}" ({option}); {hint}')
        if path.suffix == ".parquet":
            table = pa.parquet.read_table(path, columns=[image, column])
        else:
            with pa.memory_map(str(path)) as mapped:
                batches = [batch.select([image, column]) for batch in _arrow(mapped)]
            table = pa.Table.from_batches(batches, pa.schema([schema.field(image), schema.field(column)]))
        table.validate(full=True)
        about = _element(json.loads((schema.metadata or {}).get(b"huggingface", b"{}")))
        feature = _element(_element(about.get("info")).get("features")).get(column)
    return table, _element(feature)


def _element(feature: Any) -> dict[str, Any]:
    """Return what is said about a column; old versions put a list around what is in a list."""
    found = feature[0] if isinstance(feature, list) and feature else feature
    return found if isinstance(found, dict) else {}


def _schema(path: Path) -> pa.Schema:
    if path.suffix == ".parquet":
        return pa.parquet.read_schema(path)
    with pa.memory_map(str(path)) as mapped:
        return _arrow(mapped).schema


def _arrow(mapped: Any) -> Any:
    """Return a reader of Arrow's stream, which ``save_to_disk`` writes, or of its file."""
    try:
        return pa.ipc.open_stream(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        file = pa.ipc.open_file(mapped)
        return pa.RecordBatchReader.from_batches(
            file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
        )


# ---- columns -----------------------------------------------------------------------------------------------


def _image_names(path: Path, column: pa.Array, name: str) -> list[str]:
    if pa.types.is_struct(column.type) and column.type.get_field_index("path") >= 0:
        column = pc.struct_field(column, "path")
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InputError(f'{path}: the column "{name}" has {column.type}, not names of images')
    if column.null_count:
        raise InputError(
            f'{path}: {column.null_count:,} images have no path in "{name}"; name another column with --image'
        )
    found: list[str] = column.to_pylist()
    return found


@dataclass(frozen=True)
class _Listed:
    """What is listed: the row and the class of each mention; the classes, if the table declares them."""

    record: Ints
    names: pa.StringArray
    classes: list[str] | None


def _listed(
    path: Path,
    column: pa.Array,
    feature: dict[str, Any],
    name: str,
    classes: Sequence[str] | None,
    numbers: Numbers | None,
) -> _Listed:
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        rows, values = flattened(column)
        feature = _element(feature.get("feature", feature))
    else:
        said = column.is_valid()
        if pa.types.is_integer(column.type) and feature.get("_type") == _CLASS:
            said = pc.and_(said, pc.not_equal(pc.fill_null(column, -1), -1))
        rows, values = np.flatnonzero(np.asarray(said)), column.filter(said)
    if values.null_count:
        raise InputError(f'{path}: a list in the column "{name}" has an empty place')
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return _Listed(rows, values.cast(pa.string()), None)
    if not (
        pa.types.is_integer(values.type)
        or pa.types.is_boolean(values.type)
        or pa.types.is_floating(values.type)
    ):
        raise InputError(f'{path}: the column "{name}" has {kind}, not lists of classes')
    declared = feature.get("names") if feature.get("_type") == _CLASS else None
    if declared is not None and numbers is None:
        return _by_number(path, rows, values, [str(each) for each in declared], name)
    if classes is None or numbers is None:
        raise InputError(
            f'{path}: the column "{name}" has plain numbers ({kind}); name the classes with --classes, and '
            "say with --numbers whether they are classes or multi-hot"
        )
    if numbers == "classes":
        return _by_number(path, rows, values, list(classes), name)
    return _multi_hot(path, column, rows, values, list(classes), name)


def _by_number(path: Path, rows: Ints, values: pa.Array, classes: list[str], name: str) -> _Listed:
    found = _whole(path, values, name)
    strange = found[(found < 0) | (found >= len(classes))]
    if strange.size:
        raise InputError(
            f'{path}: the column "{name}" has {strange[0]}; there are {len(classes)} classes, from 0 on'
        )
    return _Listed(rows, pa.array(classes, pa.string()).take(pa.array(found)), classes)


def _multi_hot(
    path: Path, column: pa.Array, rows: Ints, values: pa.Array, classes: list[str], name: str
) -> _Listed:
    lengths = pc.unique(pc.list_value_length(column).drop_null()).to_pylist()
    if lengths != [len(classes)]:
        shown = some(map(str, sorted(lengths)))
        raise InputError(
            f'{path}: lists in "{name}" have {shown} numbers, and there are {len(classes)} classes'
        )
    found = _whole(path, values, name)
    strange = found[(found != 0) & (found != 1)]
    if strange.size:
        raise InputError(f'{path}: the column "{name}" has {strange[0]}; multi-hot is 1 or 0')
    places: npt.NDArray[np.int64] = np.flatnonzero(found)
    names = pa.array(classes, pa.string()).take(pa.array(places % len(classes)))
    return _Listed(rows[places], names, classes)


def _whole(path: Path, values: pa.Array, name: str) -> Ints:
    numbers = np.asarray(values).astype(np.float64)
    if not (numbers == np.floor(numbers)).all():
        raise InputError(f'{path}: the column "{name}" has numbers that are not whole')
    return numbers.astype(np.int64)
