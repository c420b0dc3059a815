"""Tables of probabilities that `tertium predict` and `tertium complete` wrote, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError, some

Block = tuple[list[str], npt.NDArray[np.float64]]  # images, probabilities [images, classes]
IMAGE = "image"
_TOP = (IMAGE, "label", "probability")  # the form of predict --top
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)
_ROWS = 4096  # images that are held at once


@dataclass(frozen=True)
class Probabilities:
    """Probabilities [images, classes]; NaN where the table lists none."""

    path: Path
    classes: tuple[str, ...]
    blocks: Callable[[], Iterator[Block]]


def open_probabilities(path: str | Path) -> Probabilities:
    """Open a .csv or .parquet file with the columns image and one for each class, or image,label,probability.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "predictions.csv"
    >>> _ = path.write_text("image,cat,dog\\na.jpg,0.9,0.25\\n")
    >>> found = open_probabilities(path)
    >>> found.classes, [values.tolist() for _, values in found.blocks()]
    (('cat', 'dog'), [[[0.9, 0.25]]])
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: probabilities are read from .csv and .parquet")
    columns = _columns(path)
    if IMAGE not in columns:
        raise InputError(
            f'{path}: there is no column "{IMAGE}" among {some(columns, 10)}; give a table that '
            "`tertium predict` or `tertium complete` wrote"
        )
    if columns == _TOP:
        return _listed(path)
    names = tuple(name for name in columns if name != IMAGE)
    if len(set(columns)) < len(columns):
        raise InputError(f"{path}: a column is there twice")
    if not names:
        raise InputError(f'{path}: there is no column of a class beside "{IMAGE}"')
    return Probabilities(path, names, lambda: _checked(path, names, _wide(path, names)))


def _columns(path: Path) -> tuple[str, ...]:
    try:
        if path.suffix == ".parquet":
            return tuple(pa.parquet.read_schema(path).names)
        with pa.csv.open_csv(path) as reader:
            return tuple(reader.schema.names)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _DAMAGE as error:
        raise InputError(f"{path}: not a table, or a damaged one ({error})") from None


def _batches(path: Path, kinds: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Yield the columns as these kinds of values."""
    try:
        if path.suffix == ".parquet":
            for batch in pa.parquet.ParquetFile(path).iter_batches(_ROWS, columns=list(kinds)):
                columns = [batch.column(name).cast(kind) for name, kind in kinds.items()]
                yield pa.record_batch(columns, names=list(kinds))
        else:
            options = pa.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
            with pa.csv.open_csv(path, convert_options=options) as reader:
                yield from reader
    except _DAMAGE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a table of probabilities, or a damaged one ({error})") from None


def _wide(path: Path, names: Sequence[str]) -> Iterator[Block]:
    for batch in _batches(path, {IMAGE: pa.string(), **dict.fromkeys(names, pa.float64())}):
        for start in range(0, len(batch), _ROWS):
            part = batch.slice(start, _ROWS)
            values = [np.asarray(pc.fill_null(part.column(name), np.nan)) for name in names]
            yield part.column(IMAGE).to_pylist(), np.stack(values, axis=1)


def _checked(path: Path, names: Sequence[str], blocks: Iterator[Block]) -> Iterator[Block]:
    """Pass on blocks whose images are named once and whose values are probabilities."""
    seen: set[str] = set()
    for images, values in blocks:
        for image in images:
            if not image:
                raise InputError(f"{path}: an image has no name")
            if image in seen:
                raise InputError(f'{path}: the image "{image}" is there twice')
            seen.add(image)
        rows, columns = np.nonzero(~((values >= 0) & (values <= 1)))
        if rows.size:
            value = values[rows[0], columns[0]]
            shown = "empty" if np.isnan(value) else f"{value:g}"
            raise InputError(
                f'{path}: the probability of "{names[columns[0]]}" in "{images[rows[0]]}" is {shown}; '
                "it must be between 0 and 1"
            )
        yield images, values
    if not seen:
        raise InputError(f"{path}: there are no rows below the header")


def _listed(path: Path) -> Probabilities:
    """Read the form image,label,probability, which is short."""
    kinds = dict(zip(_TOP, (pa.string(), pa.string(), pa.float64()), strict=True))
    batches = list(_batches(path, kinds))
    if not sum(map(len, batches)):
        raise InputError(f"{path}: there are no rows below the header")
    table = pa.Table.from_batches(batches).combine_chunks()
    image, label = (table[name].combine_chunks().dictionary_encode() for name in _TOP[:2])
    values = np.asarray(table["probability"].combine_chunks().fill_null(np.nan))
    if image.null_count or label.null_count or not ((values >= 0) & (values <= 1)).all():
        raise InputError(
            f"{path}: a row has no image, no label or no probability between 0 and 1; give a table that "
            "`tertium predict --top` wrote"
        )
    names = label.dictionary.to_pylist()
    rows, columns = (np.asarray(each.indices, dtype=np.int64) for each in (image, label))
    cells = rows * len(names) + columns
    if len(np.unique(cells)) < len(cells):
        raise InputError(f"{path}: a label of an image is there twice")
    order = np.argsort(rows, kind="stable")
    ids = image.dictionary.to_pylist()

    def blocks() -> Iterator[Block]:
        for start in range(0, len(ids), _ROWS):
            part = order[slice(*np.searchsorted(rows[order], [start, start + _ROWS]))]
            block = np.full((min(_ROWS, len(ids) - start), len(names)), np.nan)
            block[rows[part] - start, columns[part]] = values[part]
            yield ids[start : start + _ROWS], block

    return Probabilities(path, tuple(names), blocks)
