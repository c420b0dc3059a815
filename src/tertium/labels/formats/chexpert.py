"""CheXpert: one row for each radiograph, one column for each finding, with uncertain and blank cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.reading import Reading, settle
from tertium.labels.formats.text import read_bytes, read_lines
from tertium.labels.labels import Rule

Blank = Literal["unknown", "absent"]
Uncertain = Literal["unknown", "present", "absent"]
_IMAGE = "Path"
_ABOUT = (_IMAGE, "Sex", "Age", "Frontal/Lateral", "AP/PA")  # columns that are no findings
_PRESENT, _ABSENT, _UNCERTAIN = ("1.0", "1"), ("0.0", "0"), ("-1.0", "-1")
_SIGNS = {"present": 1, "absent": -1, "unknown": 0}


def read(
    path: str | Path,
    *,
    blank: Blank = "unknown",
    uncertain: Uncertain = "unknown",
    classes: Sequence[str] | None = None,
    contradictions: Rule = "error",
) -> Reading:
    """Read a CSV file with the column ``Path`` and one for each finding: 1.0, 0.0, -1.0 or nothing.

    1.0 is **present** and 0.0 **absent**: the report says so. -1.0 is uncertain: the report does not decide,
    so the label is **unknown**, or ``uncertain`` says what it is (CheXpert's U-Ones and U-Zeros). A blank
    cell is a finding that the report does not mention: **unknown**, unless ``blank`` says "absent".

    The classes are the columns other than Path, Sex, Age, Frontal/Lateral and AP/PA, or those of ``classes``.
    An image's id is its Path.
    """
    for what, value, kind in (("blank", blank, Blank), ("uncertain", uncertain, Uncertain)):
        if value not in get_args(kind):
            raise InputError(f'{what} cells cannot be "{value}"; {did_you_mean(value, get_args(kind))}')
    path = Path(path)
    table = _read_table(path)
    names = _class_columns(table.column_names, classes, path)
    images = _text(table, _IMAGE)
    empty = np.flatnonzero(np.asarray(pc.equal(images, "")))
    if empty.size:
        raise InputError(f"{path}: row {empty[0] + 1}: the {_IMAGE} is empty")
    signs = np.array([1, 1, -1, -1, _SIGNS[uncertain], _SIGNS[uncertain], _SIGNS[blank]], dtype=np.int8)
    values = np.stack([signs[_codes(table, name, path)] for name in names], axis=1)
    coded = images.dictionary_encode()
    rows, columns = np.nonzero(values)
    return settle(
        np.asarray(coded.indices)[rows],
        columns,
        values[rows, columns],
        classes=names,
        images=coded.dictionary,
        contradictions=contradictions,
        source=str(path),
    )


def _read_table(path: Path) -> pa.Table:
    data = read_bytes(path)
    try:
        header = pa.csv.open_csv(pa.BufferReader(data)).schema.names
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(use_threads=False),  # names the row of an error
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: pa.string() for name in header}, strings_can_be_null=False
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        read_lines(path)  # names the line that is not UTF-8, if there is one
        raise InputError(f"{path}: {error}") from None
    if not len(table):
        raise InputError(f"{path}: there are no rows below the header")
    return table


def _class_columns(columns: list[str], classes: Sequence[str] | None, path: Path) -> list[str]:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(f"{path}: columns that are there twice: {some(twice, 10)}")
    if _IMAGE not in columns:
        raise InputError(f'{path}: there is no column "{_IMAGE}" among {some(columns, 10)}')
    if classes is None:
        found = [name for name in columns if name not in _ABOUT]
        if not found:
            raise InputError(f"{path}: there is no column of a finding beside {', '.join(columns)}")
        return found
    for name in classes:
        if name not in columns:
            raise InputError(f'{path}: there is no column "{name}"; {did_you_mean(name, columns)}')
    return list(classes)


def _text(table: pa.Table, name: str) -> pa.StringArray:
    column = pc.utf8_trim_whitespace(table[name]).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _codes(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.int64]:
    """Return which of the allowed texts each cell of a column is."""
    column = _text(table, name)
    places = pc.index_in(column, value_set=pa.array([*_PRESENT, *_ABSENT, *_UNCERTAIN, ""]))
    if places.null_count:
        row = int(np.flatnonzero(np.asarray(places.is_null()))[0])
        raise InputError(
            f'{path}: row {row + 1} below the header: "{name}" is "{column[row].as_py()[:60]}"; it must be '
            "1.0, 0.0, -1.0 or empty (if it is no finding, name the findings with --classes)"
        )
    return np.asarray(places, dtype=np.int64)
