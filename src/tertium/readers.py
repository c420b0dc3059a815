"""Label files: the forms that Tertium reads, and writes back."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError, did_you_mean, nearest, some
from tertium.files import replacing
from tertium.labels import ContradictionError, Labels

Unlisted = Literal["unknown", "absent"]
UNLISTED: tuple[Unlisted, ...] = ("unknown", "absent")
SEPARATOR = ";"
_VALUES = {"present": 1, "1": 1, "+1": 1, "absent": -1, "-1": -1}
_LONG, _COMPACT = ("image", "label", "value"), ("image", "present")
_COLUMNS = ("image", "label", "value", "present", "absent", "split")
_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow")


def read_labels(
    path: str | Path, *, unlisted: Unlisted = "unknown", classes: Sequence[str] | None = None
) -> Labels:
    """Read a label file: long form, compact form, or one that Tertium wrote.

    Long form has the columns ``image,label,value`` with value present/absent or 1/-1; compact form has
    ``image,present[,absent]`` with names separated by ``;``. Both may have a column ``split``. The forms are
    told apart by their columns; CSV, TSV (also gzipped) and Parquet are read. An ``.arrow`` file is mapped.

    ``unlisted`` says what a label means that the file does not mention. ``classes`` fixes the classes and
    their order; otherwise they are the names in the file, sorted.

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
    if path.suffix == ".arrow":
        labels = _restrict(Labels.load(path), classes, path)
    else:
        labels = _from_table(_read_table(path), path, classes)
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
        options = pa.csv.WriteOptions(delimiter=_delimiter(path))
        with replacing(path) as temporary:
            pa.csv.write_csv(table, temporary, options)
    else:
        raise InputError(f"{path}: labels are written as {', '.join(_SUFFIXES)}")


# ---- tables ----------------------------------------------------------------------------------------------


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes else ","


def _read_table(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        try:
            return pa.parquet.read_table(path)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path}: not a Parquet file ({error})") from None
    if not {".csv", ".tsv"} & set(path.suffixes):
        raise InputError(f"{path}: labels are read from {', '.join(_SUFFIXES)}")
    try:
        with pa.input_stream(str(path)) as stream:
            if not stream.read(1):
                raise InputError(f"{path}: the file is empty")
        parse = pa.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
        convert = pa.csv.ConvertOptions(  # names stay text, "nan" and "null" too
            column_types={name: pa.string() for name in _COLUMNS}, strings_can_be_null=False
        )
        return pa.csv.read_csv(str(path), parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid as error:
        reason = str(error)
        raise InputError(f"{path}: {_where_not_utf8(path) if 'UTF8' in reason.upper() else reason}") from None


def _where_not_utf8(path: Path) -> str:
    """Say which line is not UTF-8; read again only because there is an error to explain."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); save the file as UTF-8"
    return "the file is not UTF-8"


@dataclass(frozen=True)
class _Mentions:
    """What a table says, one element a mention; ``row`` is the table's row it stands in."""

    row: npt.NDArray[np.int64]
    label: pa.StringArray
    value: npt.NDArray[np.int8]


def _from_table(table: pa.Table, path: Path, classes: Sequence[str] | None) -> Labels:
    if (table.schema.metadata or {}).get(b"format"):
        return _restrict(Labels.from_arrow(table), classes, path)
    _check_columns(table.column_names, path)
    if not len(table):
        raise InputError(f"{path}: there are no rows below the header")
    image = _text(table, "image")
    blank = np.flatnonzero(np.asarray(pc.equal(image, "")))
    if blank.size:
        raise InputError(f"{path}: {_at(path, blank[0])}: the image is empty")
    mentions = _read_long(table, path) if "label" in table.column_names else _read_compact(table)
    coded = image.dictionary_encode()
    names = list(classes) if classes is not None else sorted(pc.unique(mentions.label).to_pylist())
    if not names:
        raise InputError(f"{path}: it names no label, so there are no classes (give them with --classes)")
    columns = pc.index_in(mentions.label, value_set=pa.array(names, pa.string()))
    if columns.null_count:
        first = int(np.flatnonzero(np.asarray(pc.is_null(columns)))[0])
        name = mentions.label[first].as_py()
        hint = did_you_mean(name, names)
        raise InputError(f'{path}: {_at(path, mentions.row[first])}: there is no class "{name}"; {hint}')
    try:
        return Labels.from_entries(
            np.asarray(coded.indices)[mentions.row],
            columns,
            mentions.value,
            classes=names,
            images=coded.dictionary,
            splits=_read_splits(table, coded, path),
        )
    except ContradictionError as error:
        about = np.asarray(pc.equal(image, error.image))[mentions.row]
        about &= np.asarray(pc.equal(mentions.label, error.label))
        rows = [mentions.row[about & (mentions.value == value)][0] for value in (1, -1)]
        where = " and ".join(_at(path, row) for row in sorted(rows))
        raise InputError(f"{path}: {error} ({where})") from None


def _check_columns(columns: list[str], path: Path) -> None:
    required = _LONG if "label" in columns or "value" in columns else _COMPACT
    for name in required:
        if name not in columns:
            raise InputError(
                f'{path}: there is no column "{name}" among {", ".join(columns)} '
                f"(long form: {','.join(_LONG)}; compact form: {','.join(_COMPACT)}[,absent][,split])"
            )
    for name in columns:  # other columns are the user's own, unless one looks like a slip of the pen
        near = nearest(name, _COLUMNS)
        if near is not None and near not in columns:
            raise InputError(f'{path}: unknown column "{name}"; did you mean "{near}"?')


def _text(table: pa.Table, name: str) -> pa.StringArray:
    column = pc.utf8_trim_whitespace(pc.fill_null(table[name].cast(pa.string()), "")).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _read_long(table: pa.Table, path: Path) -> _Mentions:
    label, value = _text(table, "label"), _text(table, "value")
    signs = np.array([0, *_VALUES.values()], dtype=np.int8)
    known = pa.array(list(_VALUES), pa.string())
    sign = signs[np.asarray(pc.fill_null(pc.index_in(value, value_set=known), -1)) + 1]
    named = np.asarray(pc.not_equal(label, ""))
    strange = np.flatnonzero((sign == 0) & (named | np.asarray(pc.not_equal(value, ""))))
    if strange.size:
        shown = value[strange[0]].as_py()
        raise InputError(
            f'{path}: {_at(path, strange[0])}: the value is "{shown}"; it must be present or 1, absent or -1'
            " (leave a label out if it is unknown)"
        )
    unnamed = np.flatnonzero((sign != 0) & ~named)
    if unnamed.size:
        raise InputError(f"{path}: {_at(path, unnamed[0])}: there is a value but no label")
    # A row with neither label nor value only says that the image exists.
    return _Mentions(np.flatnonzero(named), label.filter(pa.array(named)), sign[named])


def _read_compact(table: pa.Table) -> _Mentions:
    parts = []
    for name, sign in (("present", 1), ("absent", -1)):
        if name not in table.column_names:
            continue
        lists = pc.split_pattern(_text(table, name), SEPARATOR)
        row, label = pc.list_parent_indices(lists), pc.utf8_trim_whitespace(pc.list_flatten(lists))
        named = pc.not_equal(label, "")
        label = label.filter(named)
        parts.append((np.asarray(row.filter(named)), label, np.full(len(label), sign, dtype=np.int8)))
    rows, labels, values = zip(*parts, strict=True)
    return _Mentions(np.concatenate(rows), pa.concat_arrays(labels), np.concatenate(values))


def _read_splits(table: pa.Table, image: pa.DictionaryArray, path: Path) -> pa.DictionaryArray | None:
    if "split" not in table.column_names:
        return None
    split = _text(table, "split").dictionary_encode()
    code = np.empty(len(image.dictionary), dtype=np.int32)
    code[np.asarray(image.indices)] = np.asarray(split.indices)  # the last row of an image decides, …
    clash = np.flatnonzero(code[np.asarray(image.indices)] != np.asarray(split.indices))
    if clash.size:  # … and all must agree
        name = image[clash[0]].as_py()
        raise InputError(f'{path}: {_at(path, clash[0])}: image "{name}" is in another split elsewhere')
    return pa.DictionaryArray.from_arrays(pa.array(code), split.dictionary)


def _at(path: Path, row: int | np.integer[npt.NBitBase]) -> str:
    """Name the line of a CSV file that holds a row; read again only because there is an error to explain."""
    if path.suffix not in (".csv", ".tsv"):
        return f"row {int(row) + 1}"
    with open(path, newline="", encoding="utf-8-sig") as text:
        lines = csv.reader(text, delimiter=_delimiter(path))
        filled = (lines.line_num for line in lines if line)
        return f"line {next(number for place, number in enumerate(filled) if place == row + 1)}"


def _restrict(labels: Labels, classes: Sequence[str] | None, path: Path) -> Labels:
    if classes is None:
        return labels
    extra = sorted(set(labels.classes) - set(classes))
    if extra:
        raise InputError(f'{path}: there is no class "{extra[0]}"; {did_you_mean(extra[0], classes)}')
    return labels.with_classes(classes)


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
