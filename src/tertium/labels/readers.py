"""Label files: the forms that Tertium reads, and writes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError, did_you_mean, nearest, some
from tertium.files import replacing
from tertium.labels.labels import ContradictionError, Labels, Rule
from tertium.labels.tables import (
    Columns,
    Runs,
    TextTable,
    Vocabulary,
    Words,
    delimiter,
    number_ids,
    open_bytes,
    reading,
    runs,
    words,
)

Unlisted = Literal["unknown", "absent"]
UNLISTED: tuple[Unlisted, ...] = ("unknown", "absent")
SEPARATOR = ";"
_VALUES = {"present": 1, "1": 1, "+1": 1, "absent": -1, "-1": -1}
_LONG, _COMPACT = ("image", "label", "value"), ("image", "present")
_COLUMNS = ("image", "label", "value", "present", "absent", "split")
_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow")
_DAMAGE = (pa.ArrowException, OSError, KeyError, ValueError, TypeError, MemoryError)
_JSON_BLOCK = 50_000  # lines
_READ = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")


def read_labels(
    path: str | Path,
    *,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    contradictions: Rule = "error",
) -> Labels:
    """Read a label file: long form, compact form, or one that Tertium wrote.

    Long form has the columns ``image,label,value`` with value present/absent or 1/-1; compact form has
    ``image,present[,absent]`` with names separated by ``;``. Both may have a column ``split``. The forms are
    told apart by their columns; CSV, TSV and JSON lines (also gzipped) and Parquet are read. An ``.arrow``
    file is mapped.

    ``unlisted`` says what a label means that the file does not mention. ``classes`` fixes the classes and
    their order; otherwise they are the names in the file, sorted. ``contradictions`` says what a label is
    that the file lists both as present and as absent.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("image,present,absent\\na.jpg,cat;dog,\\nb.jpg,,cat\\n")
    >>> read_labels(path)
    Labels(2 images, 2 classes, 2 present, 1 absent)
    >>> read_labels(path, unlisted="absent")
    Labels(2 images, 2 classes, 2 present, 2 absent)
    """
    path = Path(path)
    if unlisted not in UNLISTED:
        raise InputError(f'unlisted labels cannot be "{unlisted}"; {did_you_mean(unlisted, UNLISTED)}')
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder, not a label file' if path.is_dir() else 'no such file'}")
    labels = _written(path)
    if labels is not None:
        labels = _restrict(labels, classes, path)
    else:
        labels = _gathered(_source(path), classes, contradictions)
    return labels.unlisted_absent() if unlisted == "absent" else labels


def read_classes(path: str | Path) -> list[str]:
    """Read class names, one a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: {_where_not_utf8(Path(path))}") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(f"{path}: there are no class names in it, one a line")
    return names


def write_labels(labels: Labels, path: str | Path) -> None:
    """Write ``.csv`` or ``.tsv`` (compact form), ``.parquet`` or ``.arrow``, by the ending of ``path``."""
    path = Path(path)
    if path.suffix == ".arrow":
        labels.save(path)
    elif path.suffix == ".parquet":
        with replacing(path) as temporary:
            pa.parquet.write_table(labels.to_arrow(), temporary)
    elif path.suffix in (".csv", ".tsv"):
        table = _compact_table(labels)
        options = pa.csv.WriteOptions(delimiter=delimiter(path))
        with replacing(path) as temporary:
            pa.csv.write_csv(table, temporary, options)
    else:
        raise InputError(f"{path}: labels are written as {', '.join(_SUFFIXES)}")


# ---- where rows come from ----------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Some rows of a file; a mention is a label that a row names."""

    image: Runs
    row: npt.NDArray[np.int64] | None  # [mentions] counted from the block's first; None: every row has one
    label: Words  # [mentions]
    value: npt.NDArray[np.int8]  # [mentions] ±1
    split: Words | None  # [rows]
    fault: tuple[int, str] | None = None  # the first row that cannot be understood, and why

    @property
    def rows(self) -> int:
        return int(self.image.lengths.sum())


@dataclass(frozen=True)
class _Source:
    """A file as blocks of rows, and how a row is named to a person."""

    path: Path
    blocks: Iterator[_Block]
    at: Callable[[int], str]


def _written(path: Path) -> Labels | None:
    """Return the labels of a file that Tertium wrote, None if it is another."""
    if path.suffix == ".arrow":
        return Labels.load(path)
    if path.suffix == ".parquet":
        try:
            if b"format" in (pa.parquet.read_schema(path).metadata or {}):
                return Labels.from_arrow(pa.parquet.read_table(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except _DAMAGE as error:
            raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None
    return None


def _source(path: Path) -> _Source:
    if path.suffix == ".parquet":
        return _Source(path, _parquet_blocks(path), lambda row: f"row {row + 1}")
    if ".jsonl" in path.suffixes:
        return _Source(
            path,
            _json_blocks(path),
            lambda row: f"line {next(islice(_json_lines(path), row, None))[0]}",
        )
    if {".csv", ".tsv"} & set(path.suffixes):
        table = TextTable.open(path)
        wanted = _check_columns(table.columns, path)
        return _Source(path, table.blocks(wanted, _block), lambda row: f"line {table.line(row)}")
    raise InputError(f"{path}: labels are read from {', '.join(_READ)}")


def _parquet_blocks(path: Path) -> Iterator[_Block]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            wanted = _check_columns(tuple(file.schema_arrow.names), path)
            for batch in file.iter_batches(columns=list(wanted)):
                yield _block({name: _text(batch[name]) for name in wanted})
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None


class _Record(NamedTuple):
    image: str
    mentions: list[tuple[str, int]]
    split: str


def _json_blocks(path: Path) -> Iterator[_Block]:
    records = (_record(path, number, line) for number, line in _json_lines(path))
    while block := list(islice(records, _JSON_BLOCK)):
        mentions = [(row, *each) for row, record in enumerate(block) for each in record.mentions]
        row, label, value = zip(*mentions, strict=True) if mentions else ((), (), ())
        yield _Block(
            runs(pa.array([record.image for record in block], pa.string())),
            np.array(row, dtype=np.int64),
            words(pa.array(label, pa.string())),
            np.array(value, dtype=np.int8),
            words(pa.array([record.split for record in block], pa.string())),
        )


def _json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    with reading(path), open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                yield number, text


def _record(path: Path, number: int, line: bytes) -> _Record:
    where = f"{path}: line {number}"
    try:
        pairs = json.loads(line.decode("utf-8"), object_pairs_hook=_Pairs)
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 (byte 0x{line[error.start]:02x})") from None
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None
    keys = [key for key, _ in pairs] if isinstance(pairs, _Pairs) else []
    found = dict(pairs) if isinstance(pairs, _Pairs) else {}
    if len(found) < len(keys):
        raise InputError(f"{where}: a key stands twice in {', '.join(keys)}")
    try:
        _check_columns(keys, path)
    except InputError as error:
        raise InputError(f"{where}{str(error).removeprefix(str(path))}") from None
    image, split = found["image"], found.get("split") or ""
    if not isinstance(image, str) or not isinstance(split, str):
        raise InputError(f"{where}: image and split must be text in quotes")
    if "label" in found:
        said = [(found["label"], str(found["value"]).strip())]
    else:
        lists = [(found.get(name) or [], name) for name in ("present", "absent")]
        if not all(isinstance(names, list) for names, _ in lists):
            raise InputError(f"{where}: present and absent must be lists of names")
        said = [(label, name) for names, name in lists for label in names]
    for label, value in said:
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"{where}: a label must be a name in quotes, not {json.dumps(label)[:60]}")
        if value not in _VALUES:
            raise InputError(f"{where}: {_not_a_value(value)}")
    return _Record(image, [(label, _VALUES[value]) for label, value in said], split)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, in order and with repeated keys."""


def _text(column: pa.Array) -> pa.StringArray:
    try:
        return pc.fill_null(column.cast(pa.string()), "")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"a column holds {column.type}, not text") from None


def _check_columns(columns: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the columns to read."""
    for name in columns:  # other columns are the user's own, unless one looks like a slip of the pen
        near = nearest(name, _COLUMNS)
        if near is not None and near not in columns:
            raise InputError(f'{path}: unknown column "{name}"; did you mean "{near}"?')
    required = _LONG if "label" in columns or "value" in columns else _COMPACT
    for name in required:
        if name not in columns:
            raise InputError(
                f'{path}: there is no column "{name}" among {", ".join(columns)} '
                f"(long form: {','.join(_LONG)}; compact form: {','.join(_COMPACT)}[,absent][,split])"
            )
    used = (*_LONG, "split") if required is _LONG else (*_COMPACT, "absent", "split")
    return tuple(name for name in used if name in columns)


def _block(columns: Columns) -> _Block:
    """Return what the rows say; this runs in a thread."""
    row, label, value, fault = _long(columns) if "label" in columns else _compact(columns)
    split = words(columns["split"]) if "split" in columns else None
    return _Block(runs(columns["image"]), row, label, value, split, fault)


_Mentions = tuple[
    npt.NDArray[np.int64] | None, Words, npt.NDArray[np.int8], tuple[int, str] | None
]  # row, label, value, fault


def _long(columns: Columns) -> _Mentions:
    label, value = words(columns["label"]), words(columns["value"])
    sign = np.array([_VALUES.get(word, 0) for word in value.names], dtype=np.int8)[value.codes]
    named = np.array([bool(word) for word in label.names], dtype=bool)[label.codes]
    blank = np.array([not word for word in value.names], dtype=bool)[value.codes]
    fault = None
    strange, unnamed = np.flatnonzero((sign == 0) & (named | ~blank)), np.flatnonzero((sign != 0) & ~named)
    if strange.size:
        fault = int(strange[0]), _not_a_value(value.names[value.codes[strange[0]]])
    elif unnamed.size:
        fault = int(unnamed[0]), "there is a value but no label"
    if named.all():
        return None, label, sign, fault
    # A row with neither label nor value only says that the image exists.
    return np.flatnonzero(named), Words(label.codes[named], label.names), sign[named], fault


def _not_a_value(shown: str) -> str:
    return (
        f'the value is "{shown}"; it must be present or 1, absent or -1 (leave a label out if it is unknown)'
    )


def _compact(columns: Columns) -> _Mentions:
    parts = []
    for name, sign in (("present", 1), ("absent", -1)):
        if name not in columns:
            continue
        lists = pc.split_pattern(columns[name], SEPARATOR)
        row, label = pc.list_parent_indices(lists), pc.utf8_trim_whitespace(pc.list_flatten(lists))
        named = pc.not_equal(label, "")
        label = label.filter(named)
        parts.append((np.asarray(row.filter(named)), label, np.full(len(label), sign, dtype=np.int8)))
    rows, labels, values = zip(*parts, strict=True)
    return np.concatenate(rows), words(pa.concat_arrays(labels)), np.concatenate(values), None


# ---- rows to labels ----------------------------------------------------------------------------------------


@dataclass
class _Said:
    """What a file says, as numbers."""

    image: npt.NDArray[np.int32]  # [rows]
    images: pa.StringArray
    row: npt.NDArray[np.int64] | None  # [mentions]; None: every row has one
    label: npt.NDArray[np.int32]  # [mentions]
    labels: list[str]
    value: npt.NDArray[np.int8]  # [mentions]
    split: npt.NDArray[np.int32] | None  # [rows]
    splits: list[str]

    def row_of(self, mention: int) -> int:
        return mention if self.row is None else int(self.row[mention])

    def image_of_mentions(self) -> npt.NDArray[np.int32]:
        return self.image if self.row is None else self.image[self.row]


def _gathered(source: _Source, classes: Sequence[str] | None, contradictions: Rule) -> Labels:
    path, at = source.path, source.at
    said = _gather(source)
    names = list(classes) if classes is not None else sorted(name for name in said.labels if name)
    if not names:
        raise InputError(f"{path}: it names no label, so there are no classes (give them with --classes)")
    place = {name: number for number, name in enumerate(names)}
    column = np.array([place.get(name, -1) for name in said.labels], dtype=np.int32)
    columns = column[said.label]
    strange = np.flatnonzero(columns < 0) if (column < 0).any() else columns[:0]
    if strange.size:
        first = int(strange[0])
        name = said.labels[said.label[first]]
        raise InputError(
            f'{path}: {at(said.row_of(first))}: there is no class "{name}"; {did_you_mean(name, names)}'
        )
    try:
        return Labels.merged(
            said.image_of_mentions(),
            columns,
            said.value,
            classes=names,
            images=said.images,
            splits=_splits(said, source),
            contradictions=contradictions,
        )[0]
    except ContradictionError as error:
        about = said.image_of_mentions() == said.images.index(error.image).as_py()
        about &= columns == place[error.label]
        found = [np.flatnonzero(about & (said.value == value))[0] for value in (1, -1)]
        where = " and ".join(at(row) for row in sorted(said.row_of(int(mention)) for mention in found))
        raise InputError(f"{path}: {error} ({where})") from None


def _gather(source: _Source) -> _Said:
    labels, splits = Vocabulary(), Vocabulary()
    images, rows, label, value, split = [], [], [], [], []
    before, everywhere = 0, True
    for block in source.blocks:
        _check(block, before, source)
        images.append(block.image)
        rows.append(np.arange(block.rows) if block.row is None else block.row)
        rows[-1] += before
        if everywhere and block.row is not None:  # until here every row had a label
            rows.insert(0, np.arange(before))
        everywhere &= block.row is None
        label.append(labels.take(block.label))
        value.append(block.value)
        if block.split is not None:
            split.append(splits.take(block.split))
        if everywhere:
            rows.clear()
        before += block.rows
    if not before:
        raise InputError(f"{source.path}: there are no rows below the header")
    number, ids = number_ids(images)
    return _Said(
        number,
        ids,
        None if everywhere else np.concatenate(rows),
        np.concatenate(label),
        list(labels.numbers),
        np.concatenate(value),
        np.concatenate(split) if split else None,
        list(splits.numbers),
    )


def _check(block: _Block, before: int, source: _Source) -> None:
    if not isinstance(block.image.ids, np.ndarray):
        blank = np.flatnonzero(np.asarray(pc.equal(block.image.ids, "").cast(pa.uint8())))
        if blank.size:
            row = before + int(block.image.lengths[: blank[0]].sum())
            raise InputError(f"{source.path}: {source.at(row)}: the image is empty")
    if block.fault is not None:
        row, reason = block.fault
        raise InputError(f"{source.path}: {source.at(before + row)}: {reason}")


def _splits(said: _Said, source: _Source) -> pa.DictionaryArray | None:
    if said.split is None or not any(said.splits):
        return None
    code = np.empty(len(said.images), dtype=np.int32)
    code[said.image] = said.split  # the last row of an image decides, …
    clash = np.flatnonzero(code[said.image] != said.split)
    if clash.size:  # … and all must agree
        name = said.images[int(said.image[clash[0]])].as_py()
        where = source.at(int(clash[0]))
        raise InputError(f'{source.path}: {where}: image "{name}" is in another split elsewhere')
    return pa.DictionaryArray.from_arrays(pa.array(code), pa.array(said.splits, pa.string()))


def _restrict(labels: Labels, classes: Sequence[str] | None, path: Path) -> Labels:
    if classes is None:
        return labels
    extra = sorted(set(labels.classes) - set(classes))
    if extra:
        raise InputError(f'{path}: there is no class "{extra[0]}"; {did_you_mean(extra[0], classes)}')
    return labels.with_classes(classes)


def _where_not_utf8(path: Path) -> str:
    """Say which line is not UTF-8; read again only because there is an error to explain."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); save the file as UTF-8"
    return "the file is not UTF-8"


def _compact_table(labels: Labels) -> pa.Table:
    unwritable = [name for name in labels.classes if SEPARATOR in name]
    if unwritable:
        raise InputError(f'class names with "{SEPARATOR}" need .parquet or .arrow: {some(unwritable)}')
    columns = {"image": labels.images}
    for name, sign in (("present", 1), ("absent", -1)):
        part = labels.with_entries(np.sign(labels.entries) == sign)
        names = pa.array(labels.classes, pa.string()).take(pa.array(np.abs(part.entries) - 1))
        columns[name] = pc.binary_join(pa.ListArray.from_arrays(part.offsets, names), SEPARATOR)
    if labels.splits is not None:
        columns["split"] = labels.splits.cast(pa.string())
    return pa.table(columns)
