"""Wide tables: one row for each image, one column for each class, as in a spreadsheet."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.content import Content
from tertium.labels.gathering import Gathering, SplitError
from tertium.labels.labels import Rule, is_missing
from tertium.labels.names import tidy
from tertium.labels.reading import Reading, settle_rows
from tertium.labels.tables import (
    Columns,
    Runs,
    TextTable,
    Vocabulary,
    Words,
    blank_id,
    delimiter,
    open_bytes,
    reading,
    runs,
    words,
)
from tertium.progress import Progress

IMAGE, SPLIT = "image", "split"
_DAMAGE = (pa.ArrowException, OSError, KeyError, ValueError, TypeError, MemoryError)
_UNNAMED = 2  # stands beside +1, −1 and 0 for a value that nothing explains
_YES, _NO = ("1", "1.0", "true", "yes", "y", "x"), ("0", "0.0", "false", "no", "n")
_BLANK, _MINUS = ("", "nan", "na"), ("-1", "-1.0")


class UnexplainedError(InputError):
    """Values that a layout does not name; ``what`` says which, without a hint what to do."""

    def __init__(self, source: str, cells: Mapping[tuple[str, str], int]) -> None:
        """Take how many cells there are for each column and value."""
        times: Counter[str] = Counter()
        for (_, value), count in cells.items():
            times[value] += count
        values = some((f'"{value[:30]}" ({count:,})' for value, count in times.most_common()), 10)
        columns = some(dict.fromkeys(name for name, _ in cells), 5)
        self.what = (
            f"{source}: nothing says what these values mean (cells in brackets): {values} in {columns}"
        )
        super().__init__(
            f"{self.what}; name them with --positive, --negative or --unknown, or leave columns that are no "
            "classes out with --ignore"
        )


@dataclass(frozen=True)
class WideTable:
    """What a user says about a wide table; left out, nothing is assumed but the column of the images."""

    preset: str | None = None
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    image_column: str | None = None
    ignore: tuple[str, ...] = ()
    suffix: str = ""

    @classmethod
    def stated(
        cls,
        *,
        preset: str | None = None,
        positive: Any = (),
        negative: Any = (),
        unknown: Any = (),
        image_column: str | None = None,
        ignore: Sequence[str] = (),
        suffix: str = "",
    ) -> WideTable | None:
        """Make one of plain values, None if nothing is said; a value may also be a number or None.

        >>> WideTable.stated(positive=1, unknown=[None, -1]).unknown
        ('', '-1')
        >>> WideTable.stated() is None
        True
        """
        present, absent, neither = (texts_of(each) for each in (positive, negative, unknown))
        others = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        said = cls(preset, present, absent, neither, image_column, others, suffix)
        return None if said == cls() else said

    def options(self) -> dict[str, Any]:
        """Return what was said, as plain values; `stated` takes them back."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in told.items() if value
        }

    def layout(self) -> Layout:
        """Return what the values mean."""
        return chosen_layout(
            self.preset,
            positive=self.positive,
            negative=self.negative,
            unknown=self.unknown,
            image=self.image_column,
        )


@dataclass(frozen=True)
class Layout:
    """What the values of a wide table mean, and which of its columns are no classes.

    A value is text; 1 and 1.0 are the same number. What is not named here is an error.
    """

    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    image: str = IMAGE  # the column that names the images
    about: tuple[str, ...] = field(default=())  # columns that are no classes, where they are there

    def __post_init__(self) -> None:
        taken: dict[str, str] = {}
        for meaning in ("positive", "negative", "unknown"):
            for value in getattr(self, meaning):
                other = taken.setdefault(value, meaning)
                if other != meaning:
                    raise InputError(f'the value "{value}" cannot be both {other} and {meaning}')

    def signs(self) -> Callable[[str], int]:
        """Return what tells the sign of a value."""
        exact = {
            value: sign
            for values, sign in ((self.positive, 1), (self.negative, -1), (self.unknown, 0))
            for value in values
        }
        numbers = {number: sign for value, sign in exact.items() if (number := _number(value)) is not None}

        def sign(word: str) -> int:
            found = exact.get(word)
            if found is None and (number := _number(word)) is not None:
                found = numbers.get(number)
            return _UNNAMED if found is None else found

        return sign


PRESETS = {
    "binary": Layout(("1",), ("0",)),
    "positives": Layout(("1",), (), ("0", "")),
    "signed": Layout(("1",), ("-1",), ("0", "")),
    "chexpert": Layout(
        ("1",), ("0",), ("-1", ""), "Path", ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")
    ),
}


def chosen_layout(
    preset: str | None = None,
    *,
    positive: Sequence[str] = (),
    negative: Sequence[str] = (),
    unknown: Sequence[str] = (),
    image: str | None = None,
) -> Layout:
    """Return a preset with what is said otherwise, or a layout of the values alone.

    >>> chosen_layout("signed", unknown=["?"], image="file").unknown
    ('0', '', '?')
    """
    if preset is not None and preset not in PRESETS:
        raise InputError(f'there is no preset "{preset}"; {did_you_mean(preset, PRESETS)}')
    if preset is None and not positive:
        raise InputError(
            "say which values mean what, such as --positive 1 --negative 0 --unknown '', or name a --preset"
        )
    usual = PRESETS[preset] if preset is not None else Layout()
    return replace(
        usual,
        positive=(*usual.positive, *positive),
        negative=(*usual.negative, *negative),
        unknown=(*usual.unknown, *unknown),
        image=usual.image if image is None else image,
    )


def read(
    path: str | Path,
    layout: Layout,
    *,
    classes: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    suffix: str = "",
    contradictions: Rule = "error",
    progress: Progress | None = None,
) -> Reading:
    """Read a wide table from a .csv, .tsv or .jsonl file (also gzipped), or from .parquet.

    What the values mean is what the ``layout`` says, of which `PRESETS` has some; nothing is guessed. Every
    column is a class but that of the images, one called split, and those of ``ignore``; or ``classes``
    names them. ``suffix`` is put after every image id.
    """
    table = open_table(Path(path), progress)
    return read_table(
        table, layout, classes=classes, ignore=ignore, suffix=suffix, contradictions=contradictions
    )


def open_table(path: Path, progress: Progress | None = None) -> Table:
    """Open a file; its rows are read later."""
    if path.suffix == ".parquet":
        return Table(str(path), *_parquet(path))
    if ".jsonl" in path.suffixes:
        return _of_table(str(path), _json(path))
    if not {".csv", ".tsv"} & set(path.suffixes):
        raise InputError(f"{path}: wide tables are read from .csv, .tsv, .jsonl and .parquet")
    text = TextTable.open(path)
    return Table(
        str(path),
        text.columns,
        lambda wanted, work: text.blocks(wanted, work, progress),
        lambda row: f"line {text.line(row)}",
    )


def from_frame(
    frame: Any,
    layout: Layout,
    *,
    classes: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    suffix: str = "",
    contradictions: Rule = "error",
) -> Reading:
    """Read a wide table from a DataFrame of pandas or polars, or from an Arrow table.

    As in `read`, a column names the images. Missing values and NaN are "", truth values "true" and "false".

    >>> table = pa.table({"image": ["a", "b"], "cat": [1, None], "dog": [0, 1]})
    >>> from_frame(table, Layout(("1",), ("0",), ("",))).labels.dense()
    array([[ 1, -1],
           [ 0,  1]], dtype=int8)
    """
    table = _of_table("the table", pa.table(frame))
    return read_table(
        table, layout, classes=classes, ignore=ignore, suffix=suffix, contradictions=contradictions
    )


def texts_of(values: Any) -> tuple[str, ...]:
    """Return values as a layout names them: one, or a tuple or list of them.

    A truth value is in a table as Arrow, Python or a spreadsheet spells it.

    >>> texts_of((1, None, True))
    ('1', '', 'true', 'True', 'TRUE')
    """
    every = values if isinstance(values, tuple | list) else (values,)
    return tuple(text for value in every for text in _spellings(value))


def _spellings(value: Any) -> tuple[str, ...]:
    if is_missing(value):
        return ("",)
    text = str(value)
    return (text.lower(), text, text.upper()) if isinstance(value, bool | np.bool_) else (text,)


# ---- reading -----------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Some rows, as numbers."""

    images: Runs
    split: Words | None
    rows: npt.NDArray[np.int64]  # of the labels that are known, counted from the block's first
    columns: npt.NDArray[np.int64]
    signs: npt.NDArray[np.int8]
    unnamed: Counter[tuple[str, str]]  # (column, value) that nothing explains
    seen: Counter[str]  # every value, and how often it stands there


@dataclass(frozen=True)
class Table:
    """A table, wherever it is."""

    name: str
    columns: tuple[str, ...]
    blocks: Callable[[Sequence[str], Callable[[Columns], _Block]], Iterator[_Block]]
    at: Callable[[int], str]  # how a row is named to a person


def read_table(
    source: Table,
    layout: Layout,
    *,
    classes: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    suffix: str = "",
    contradictions: Rule = "error",
) -> Reading:
    """Read an open table; see `read`."""
    names = _class_columns(source, layout, classes, ignore)
    split = [SPLIT] if SPLIT in source.columns and SPLIT not in names else []
    work = partial(_block, names=names, image=layout.image, sign=layout.signs())
    rows, splits = Gathering(), Vocabulary()
    unnamed, seen = Counter[tuple[str, str]](), Counter[str]()
    for block in source.blocks([layout.image, *split, *names], work):
        blank = blank_id(block.images)
        if blank is not None:
            where = f"{source.name}: {source.at(rows.rows + blank)}"
            raise InputError(f"{where}: the column {layout.image} is empty")
        entries = (block.columns * 2 + (block.signs > 0)).astype(np.int32)
        own = None if block.split is None else splits.take(block.split)
        rows.add(block.images, entries, row=block.rows, split=own)
        unnamed.update(block.unnamed)
        seen.update(block.seen)
    if not rows.rows:
        raise InputError(f"{source.name}: there are no rows below the header")
    if unnamed:
        raise UnexplainedError(source.name, unnamed)
    try:
        found = settle_rows(
            rows,
            np.arange(len(names)),
            classes=[tidy(name) for name in names],
            splits=list(splits.numbers),
            contradictions=contradictions,
            suffix=suffix,
            source=source.name,
        )
    except SplitError as error:
        raise InputError(f"{source.name}: {source.at(error.row)}: {error}") from None
    times = (f'"{value}" {count:,} times' for value, count in seen.most_common())
    return replace(found, seen=f"cells {some(times, 10)}")


def _class_columns(
    source: Table, layout: Layout, classes: Sequence[str] | None, ignore: Sequence[str]
) -> list[str]:
    columns = source.columns
    if layout.image not in columns:
        raise InputError(
            f'{source.name}: there is no column "{layout.image}" among {some(columns, 10)}; '
            "name the one that holds the images with --image-column"
        )
    for name in (*ignore, *(classes or ())):
        if name not in columns:
            raise InputError(f'{source.name}: there is no column "{name}"; {did_you_mean(name, columns)}')
    apart = {layout.image, SPLIT, *layout.about, *ignore}
    found = [name for name in columns if name not in apart] if classes is None else list(classes)
    if "" in found:  # such as the index that pandas writes
        raise InputError(f"{source.name}: a column has no name; if it is no class, say --ignore ''")
    if not found:
        raise InputError(f"{source.name}: there is no column of a class beside {', '.join(columns)}")
    return found


def _block(columns: Columns, names: Sequence[str], image: str, sign: Callable[[str], int]) -> _Block:
    """Return what the rows say; this runs in a thread."""
    values = np.empty((len(columns[image]), len(names)), dtype=np.int8)
    unnamed, seen = Counter[tuple[str, str]](), Counter[str]()
    for place, name in enumerate(names):
        found = words(columns[name])
        meaning = np.array([sign(word) for word in found.names], dtype=np.int8)
        values[:, place] = meaning[found.codes]
        times = np.bincount(found.codes, minlength=len(meaning)).tolist()
        for word, what, count in zip(found.names, meaning, times, strict=True):
            seen[word] += count
            if what == _UNNAMED:
                unnamed[name, word] += count
    values[values == _UNNAMED] = 0  # an error is on its way
    rows, places = np.nonzero(values)
    split = words(columns[SPLIT]) if SPLIT in columns and SPLIT not in names else None
    return _Block(runs(columns[image]), split, rows, places, values[rows, places], unnamed, seen)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number


# ---- Parquet and frames ------------------------------------------------------------------------------------

_Blocks = Callable[[Sequence[str], Callable[[Columns], _Block]], Iterator[_Block]]


def _parquet(path: Path) -> tuple[tuple[str, ...], _Blocks, Callable[[int], str]]:
    try:
        file = pa.parquet.ParquetFile(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _DAMAGE as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None

    def blocks(wanted: Sequence[str], work: Callable[[Columns], _Block]) -> Iterator[_Block]:
        try:
            yield from _batches(file.iter_batches(columns=list(wanted)), wanted, work)
        except _DAMAGE as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: a damaged Parquet file ({error})") from None

    return tuple(file.schema_arrow.names), blocks, lambda row: f"row {row + 1}"


def _json(path: Path) -> pa.Table:
    """Return JSON lines as a table; a key that a line does not have is a missing value."""
    with reading(path), open_bytes(path) as stream:
        try:
            return pa.json.read_json(stream)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{path}: not JSON lines with the same kind of value for a key ({error})"
            ) from None


def _of_table(name: str, table: pa.Table) -> Table:
    columns = tuple(table.column_names)
    return Table(name, columns, partial(_batches, table.to_batches()), lambda row: f"row {row + 1}")


def _batches(
    batches: Iterable[pa.RecordBatch], wanted: Sequence[str], work: Callable[[Columns], _Block]
) -> Iterator[_Block]:
    for batch in batches:
        yield work({name: _text(batch.column(name), name) for name in wanted})


def _text(column: pa.Array, name: str) -> pa.StringArray:
    if pa.types.is_struct(column.type) and column.type.get_field_index("path") >= 0:
        column = pc.struct_field(column, "path")  # of the images of Hugging Face `datasets`
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        return pc.fill_null(column.cast(pa.string()), "")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f'the column "{name}" holds {column.type}, not text or numbers') from None


# ---- writing -----------------------------------------------------------------------------------------------


def write(path: Path, content: Content) -> None:
    """Write a table: 1, 0 and empty cells for labels; numbers for probabilities."""
    kind = pa.float64() if content.is_probable else pa.int8()
    taken = [name for name in (IMAGE, SPLIT) if name in content.classes]
    if taken:
        raise InputError(
            f'a class is called "{taken[0]}", like a column of every wide table; rename it first'
        )
    sink: Any = None
    try:
        for block in content.blocks():
            known = ~np.isnan(block.values) if content.is_probable else block.values != 0
            values = block.values if content.is_probable else block.values > 0
            columns = [
                pa.array(values[:, place], mask=~known[:, place]).cast(kind)
                for place in range(len(content.classes))
            ]
            table = pa.table(
                [pa.array(block.images, pa.string()), pa.array(block.splits, pa.string()), *columns],
                names=[IMAGE, SPLIT, *content.classes],
            )
            if not content.has_splits:
                table = table.drop_columns([SPLIT])
            sink = sink or _sink(path, table.schema)
            sink.write_table(table)
    finally:
        if sink is not None:
            sink.close()


def _sink(path: Path, schema: pa.Schema) -> Any:
    if path.suffix == ".parquet":
        return pa.parquet.ParquetWriter(path, schema)
    return pa.csv.CSVWriter(path, schema, write_options=pa.csv.WriteOptions(delimiter=delimiter(path)))


# ---- recognising -------------------------------------------------------------------------------------------


def wide_hint(start: Columns) -> str | None:
    """Return what to say about a file whose first rows look like a wide table; None if they do not.

    >>> start = {"image": pa.array(["a", "b"]), "cat": pa.array(["1", "0"])}
    >>> wide_hint(start).partition("for example: ")[2]
    '--positive 1 --negative 0 (or make a label file of it with tertium convert wide)'
    """
    values = {name: set(map(str.strip, pc.unique(column).to_pylist())) for name, column in start.items()}
    ordinary = {*_YES, *_NO, *_BLANK, *_MINUS}
    classes = [
        name
        for name, found in values.items()
        if name and {value.casefold() for value in found} <= ordinary and found - {""}
    ]
    others = [name for name in values if name not in classes and name != SPLIT]
    if not classes or not others:
        return None
    image = IMAGE if IMAGE in others else next(filter(partial(_names_rows, start), others), others[0])
    found = sorted({value for name in classes for value in values[name]})
    about = [] if image == IMAGE else ["--image-column", image]
    for name in others:
        about += ["--ignore", name] if name != image else []
    shown = some((f'"{value}"' for value in found), 10)
    return (
        f"it looks like a wide table, one column for each class ({some(classes)}); say what its values "
        f"{shown} mean, {_examples(found, about)} (or make a label file of it with tertium convert wide)"
    )


def _examples(found: Sequence[str], about: Sequence[str]) -> str:
    """Return options that may fit the values of a table; -1 means absent to some and uncertain to others."""

    def options(*meanings: tuple[str, Sequence[str]]) -> str:
        said = [(name, value) for name, ones in meanings for value in found if value.casefold() in ones]
        return shlex.join([*(word for each in said for word in each), *about])

    if any(value.casefold() in _MINUS for value in found):
        signed = options(("--positive", _YES), ("--negative", _MINUS), ("--unknown", (*_NO, *_BLANK)))
        uncertain = options(("--positive", _YES), ("--negative", _NO), ("--unknown", (*_MINUS, *_BLANK)))
        return f"such as {signed} if -1 is absent and 0 unknown, or {uncertain} if -1 is unknown"
    plain = options(("--positive", _YES), ("--negative", _NO), ("--unknown", _BLANK))
    return f"for example: {plain}"


def _names_rows(start: Columns, name: str) -> bool:
    """Whether a column has another text, and not just a number, in every row."""
    texts = start[name].to_pylist()
    return len(set(texts)) == len(texts) and any(_number(text) is None for text in texts)
