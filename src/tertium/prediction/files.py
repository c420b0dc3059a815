"""Predictions and evaluations as files, written batch by batch so that memory stays small."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError
from tertium.files import replacing, write_json
from tertium.processes import barrier, rank, world

if TYPE_CHECKING:
    from tertium.metrics.evaluation import Evaluation

_GROUP = 2**23  # values in a row group of Parquet: small ones bloat the file's index, which stays in memory
_SUFFIXES = (".csv", ".parquet")


def check_path(path: str | Path) -> None:
    """Raise `InputError` if predictions cannot be written here; called before any long work begins."""
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: predictions are written as .csv or .parquet")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def check_table(path: str | Path, what: str) -> None:
    """Raise `InputError` if a small table cannot be written here; called before any long work begins."""
    path = Path(path)
    if path.suffix != ".csv":
        raise InputError(f"{path}: {what} are written as .csv")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


class Tables:
    """Tables of an earlier attempt at some predictions, and a place for those that follow: here, none."""

    images = 0  # that the tables are about

    def earlier(self) -> Iterator[pa.Table]:
        """Yield the tables of an earlier attempt."""
        return iter(())

    def add(self, images: int, table: pa.Table) -> None:
        """Keep the table of the next images."""


def schema_of(classes: Sequence[str], top: int | None) -> pa.Schema:
    """Return the columns of predictions."""
    if top is not None:
        return pa.schema([("image", pa.string()), ("label", pa.string()), ("probability", pa.float32())])
    return pa.schema([("image", pa.string()), *((name, pa.float32()) for name in classes)])


def write_predictions(
    path: str | Path,
    names: Sequence[str],
    classes: Sequence[str],
    blocks: Iterable[npt.NDArray[np.float32]],
    *,
    top: int | None = None,
    folder: Path | None = None,
    kept: Tables | None = None,
) -> None:
    """Write probabilities as ``image`` and one column a class.

    With ``top``, write ``image,label,probability`` for the most probable classes of each image instead.
    Several processes each give the names and blocks of their share, in order, and a ``folder`` that all see:
    process 0 puts the parts together. What is ``kept`` of an earlier attempt comes first: ``names`` and
    ``blocks`` are those that follow it.
    """
    path = Path(path)
    check_path(path)
    check_columns(classes, top)
    kept = kept or Tables()
    schema = schema_of(classes, top)
    found = chain(kept.earlier(), _kept(kept, tables_of(names, classes, blocks, top)))
    parts = [] if folder is None else [folder / f"{number}{path.suffix}" for number in range(world())]
    write: Any = _write_parquet if path.suffix == ".parquet" else _write_csv
    if folder is None or rank() == 0:
        with replacing(path) as temporary:
            write(temporary, schema, found, parts[1:])
    else:
        write(parts[rank()], schema, found, None)


def tables_of(
    names: Sequence[str],
    classes: Sequence[str],
    blocks: Iterable[npt.NDArray[np.float32]],
    top: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Yield for each block of probabilities how many images it has, and its rows."""
    schema, labels, start = schema_of(classes, top), pa.array(classes, pa.string()), 0
    for block in blocks:
        part = names[start : start + len(block)]
        columns = _wide(part, block) if top is None else _long(part, block, labels, top)
        yield len(block), pa.table(columns, schema=schema)
        start += len(block)


def _kept(kept: Tables, tables: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
    """Yield tables after they were kept."""
    for images, table in tables:
        kept.add(images, table)
        yield table


def write_columns(path: str | Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a small table by the ending of its name."""
    table = pa.table(dict(columns))
    with replacing(path) as temporary:
        if Path(path).suffix == ".parquet":
            pa.parquet.write_table(table, temporary)
        else:
            pa.csv.write_csv(table, temporary)


def check_columns(classes: Sequence[str], top: int | None) -> None:
    """Raise `InputError` if a column for each class cannot be written."""
    if "image" in classes and top is None:
        raise InputError('a class is called "image", like the first column; write the top classes instead')


def _write_csv(path: Path, schema: pa.Schema, tables: Iterable[pa.Table], parts: list[Path] | None) -> None:
    """Write tables, and after them the parts of the other processes; or such a part (None), no heading."""
    options = pa.csv.WriteOptions(include_header=parts is not None)
    with pa.csv.CSVWriter(path, schema, write_options=options) as sink:
        for table in tables:
            sink.write_table(table)
    if parts is None:
        barrier()
        return
    with open(path, "ab") as whole:
        for part in _complete(parts):
            with open(part, "rb") as more:
                shutil.copyfileobj(more, whole, 2**20)


def _write_parquet(
    path: Path, schema: pa.Schema, tables: Iterable[pa.Table], parts: list[Path] | None
) -> None:
    """Write tables, and after them the parts of the other processes; or such a part (None)."""
    # Probabilities hardly repeat: a dictionary of them would only take time and memory.
    words = [name for name in schema.names if name == "label"]
    with pa.parquet.ParquetWriter(
        path, schema, use_dictionary=words or False, write_statistics=False
    ) as sink:
        everything = chain(tables, _read_parts(parts or []))
        for group in _row_groups(everything, max(1, _GROUP // len(schema))):
            sink.write_table(group)
    if parts is None:
        barrier()


def _complete(parts: list[Path]) -> Iterator[Path]:
    """Wait until the other processes have written their parts; give them in order, and remove them."""
    if parts:
        barrier()
    for part in parts:
        yield part
        part.unlink()


def _read_parts(parts: list[Path]) -> Iterator[pa.Table]:
    for part in _complete(parts):
        with pa.parquet.ParquetFile(part) as file:
            yield from (file.read_row_group(number) for number in range(file.num_row_groups))


def _row_groups(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Give the same rows in tables of ``size``, so that how they came leaves no trace in the file."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += len(table)
        while count >= size:
            together = pa.concat_tables(held)
            yield together[:size]
            held, count = [together[size:]], count - size
    if count:
        yield pa.concat_tables(held)


def _wide(names: Sequence[str], block: npt.NDArray[np.float32]) -> list[Any]:
    return [pa.array(names, pa.string()), *np.ascontiguousarray(block.T)]


def _long(names: Sequence[str], block: npt.NDArray[np.float32], labels: pa.Array, top: int) -> list[Any]:
    count = min(top, block.shape[1])
    best = np.argsort(-block, axis=1, kind="stable")[:, :count]
    image = np.repeat(np.array(names, dtype=object), count)
    chosen = np.take_along_axis(block, best, axis=1).reshape(-1)
    return [pa.array(image, pa.string()), labels.take(pa.array(best.reshape(-1))), chosen]


def write_evaluation(path: str | Path, found: Evaluation, on: str) -> None:
    """Write the figures as JSON, and those of each class as CSV beside it; ``on`` says of which images."""
    path = Path(path)
    write_json(path, {"on": on, **found.to_dict()})
    columns = (found.classes, found.ap, found.positives, found.negatives, found.thresholds)
    with (
        replacing(path.with_suffix(".csv")) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as sink,
    ):
        lines = csv.writer(sink)
        lines.writerow(["class", "ap", "present", "absent", "threshold"])
        lines.writerows(zip(*columns, strict=True))
