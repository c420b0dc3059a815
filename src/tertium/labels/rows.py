"""The rows of a label file in any form, block by block: what they say, as numbers and distinct names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tertium.errors import InputError, nearest, some
from tertium.labels.formats.wide import wide_hint
from tertium.labels.tables import (
    Columns,
    Runs,
    TextTable,
    Words,
    open_bytes,
    reading,
    runs,
    text_lines,
    words,
)

DAMAGE = (pa.ArrowException, OSError, KeyError, ValueError, TypeError, MemoryError)
_TOOLS = {".json": "label-studio, coco, lvis or fiftyone", ".xml": "cvat"}
_READ = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
_VALUES = {"present": 1, "1": 1, "+1": 1, "absent": -1, "-1": -1}
_LONG, _COMPACT = ("image", "label", "value"), ("image", "present")
_COLUMNS = ("image", "label", "value", "present", "absent", "split")
_JSON_BLOCK = 50_000  # lines
_FIRST = 100  # columns whose names are looked at closely


class Block(NamedTuple):
    """Some rows of a file; a mention is a label that a row names."""

    image: Runs
    row: npt.NDArray[np.int64] | None  # [mentions] counted from the block's first; None: every row has one
    label: Words  # [mentions]
    value: npt.NDArray[np.int8]  # [mentions] ±1
    split: Words | None  # [rows]
    fault: tuple[int, str] | None = None  # the first row that cannot be understood, and why
    separated: bool | None = None  # compact form: whether the separator stands in a cell
    values: Mapping[str, int] = {}  # long form: what stands in the column value, and how often

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.image.lengths.sum())


@dataclass(frozen=True)
class Rows:
    """A file as blocks of rows, and how a row is named to a person."""

    path: Path
    blocks: Iterator[Block]
    at: Callable[[int], str]


def open_rows(path: Path, separator: str) -> Rows:
    """Open a label file; ``separator`` stands between the names of the compact form."""
    work = partial(_block, separator=separator)
    if path.suffix == ".parquet":
        return Rows(path, _parquet_blocks(path, work), lambda row: f"row {row + 1}")
    if ".jsonl" in path.suffixes:
        return Rows(
            path,
            _json_blocks(path),
            lambda row: f"line {next(islice(_json_lines(path), row, None))[0]}",
        )
    if {".csv", ".tsv"} & set(path.suffixes):
        table = TextTable.open(path)
        wanted = _check_columns(table.columns, path, table.start)
        return Rows(path, table.blocks(wanted, work), lambda row: f"line {table.line(row)}")
    raise InputError(f"{path}: labels are read from {', '.join(_READ)}{_converted(path)}")


def _converted(path: Path) -> str:
    """Return how files with an ending that annotation tools use become label files."""
    for ending, formats in _TOOLS.items():
        if ending in path.suffixes:
            return f"; make such a file of an annotation tool's with tertium convert {formats}"
    return ""


# ---- columns -----------------------------------------------------------------------------------------------


def is_list(columns: Sequence[str]) -> bool:
    """Whether the columns are those of a file that lists labels, in the long or the compact form."""
    return set(_LONG) <= set(columns) or set(_COMPACT) <= set(columns)


def _check_columns(
    columns: Sequence[str], path: Path, start: Callable[[], Columns] | None = None
) -> tuple[str, ...]:
    """Return the columns to read; ``start`` gives the first rows, to see what other table it may be."""
    if start is not None and not {"present", "label", "value"} & set(columns):
        hint = wide_hint(start())
        if hint is not None:
            raise InputError(f"{path}: {hint}")
    # Other columns are the user's own, unless one looks like a slip of the pen; thousands are no such slips.
    for name in columns[:_FIRST]:
        near = nearest(name, _COLUMNS)
        if near is not None and near not in columns:
            raise InputError(f'{path}: unknown column "{name}"; did you mean "{near}"?')
    required = _LONG if "label" in columns or "value" in columns else _COMPACT
    for name in required:
        if name not in columns:
            raise InputError(
                f'{path}: there is no column "{name}" among {some(columns, 12)} '
                f"(long form: {','.join(_LONG)}; compact form: {','.join(_COMPACT)}[,absent][,split])"
            )
    used = (*_LONG, "split") if required is _LONG else (*_COMPACT, "absent", "split")
    return tuple(name for name in used if name in columns)


def _block(columns: Columns, separator: str) -> Block:
    """Return what the rows say; this runs in a thread."""
    image = runs(columns["image"])
    split = words(columns["split"]) if "split" in columns else None
    if "label" in columns:
        values = words(columns["value"])
        row, label, value, fault = _long(columns, values)
        counts = np.bincount(values.codes, minlength=len(values.names)).tolist()
        return Block(
            image, row, label, value, split, fault, values=dict(zip(values.names, counts, strict=True))
        )
    row, label, value, separated = _compact(columns, separator)
    return Block(image, row, label, value, split, separated=separated)


def _long(
    columns: Columns, value: Words
) -> tuple[npt.NDArray[np.int64] | None, Words, npt.NDArray[np.int8], tuple[int, str] | None]:
    label = words(columns["label"])
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


def _compact(
    columns: Columns, separator: str
) -> tuple[npt.NDArray[np.int64], Words, npt.NDArray[np.int8], bool]:
    parts, separated = [], False
    for name, sign in (("present", 1), ("absent", -1)):
        if name not in columns:
            continue
        lists = pc.split_pattern(columns[name], separator)
        row, label = pc.list_parent_indices(lists), pc.utf8_trim_whitespace(pc.list_flatten(lists))
        separated |= len(label) > len(lists)
        named = pc.not_equal(label, "")
        label = label.filter(named)
        parts.append((np.asarray(row.filter(named)), label, np.full(len(label), sign, dtype=np.int8)))
    rows, labels, values = zip(*parts, strict=True)
    return np.concatenate(rows), words(pa.concat_arrays(labels)), np.concatenate(values), separated


# ---- Parquet -----------------------------------------------------------------------------------------------


def _parquet_blocks(path: Path, work: Callable[[Columns], Block]) -> Iterator[Block]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
            wanted = _check_columns(names, path, lambda: _texts(path, next(file.iter_batches(), None), names))
            for batch in file.iter_batches(columns=list(wanted)):
                yield work(_texts(path, batch, wanted))
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None


def _texts(path: Path, batch: pa.RecordBatch | None, names: Sequence[str]) -> Columns:
    return {} if batch is None else {name: _text(path, name, batch[name]) for name in names}


def _text(path: Path, name: str, column: pa.Array) -> pa.StringArray:
    try:
        return pc.fill_null(column.cast(pa.string()), "")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        lists = (
            "; tertium convert huggingface reads lists of classes" if pa.types.is_nested(column.type) else ""
        )
        raise InputError(f'{path}: the column "{name}" holds {column.type}, not text{lists}') from None


# ---- JSON lines --------------------------------------------------------------------------------------------


class _Record(NamedTuple):
    image: str
    mentions: list[tuple[str, int]]
    split: str


def _json_blocks(path: Path) -> Iterator[Block]:
    records = (_record(path, number, line) for number, line in _json_lines(path))
    while block := list(islice(records, _JSON_BLOCK)):
        mentions = [(row, *each) for row, record in enumerate(block) for each in record.mentions]
        row, label, value = zip(*mentions, strict=True) if mentions else ((), (), ())
        yield Block(
            runs(pa.array([record.image for record in block], pa.string())),
            np.array(row, dtype=np.int64),
            words(pa.array(label, pa.string())),
            np.array(value, dtype=np.int8),
            words(pa.array([record.split for record in block], pa.string())),
        )


def _json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    with reading(path), open_bytes(path) as stream:
        for number, line in enumerate(text_lines(path, stream), start=1):
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
    if b"\\u" in line and not _is_unicode(pairs):
        raise InputError(f"{where} holds half of a surrogate pair, such as \\ud800, which is no character")
    keys = [key for key, _ in pairs] if isinstance(pairs, _Pairs) else []
    found = dict(pairs) if isinstance(pairs, _Pairs) else {}
    if len(found) < len(keys):
        raise InputError(f"{where}: a key stands twice in {', '.join(keys)}")
    try:
        _check_columns(keys, path, partial(_record_texts, found) if number == 1 else None)
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


def _record_texts(record: Mapping[str, Any]) -> Columns:
    """Return a record as the first row of a table."""
    texts = {key: "" if value is None else json.dumps(value).strip('"') for key, value in record.items()}
    return {key: pa.array([text]) for key, text in texts.items()}


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, in order and with repeated keys."""


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
