"""Predictions, written batch by batch so that memory does not grow with the images; evaluations."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError
from tertium.files import replacing, write_json
from tertium.metrics import Evaluation

_SUFFIXES = (".csv", ".parquet")


def check_path(path: str | Path) -> None:
    """Raise `InputError` if predictions cannot be written here; called before any long work begins."""
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: predictions are written as .csv or .parquet")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def write_predictions(
    path: str | Path,
    names: Sequence[str],
    classes: Sequence[str],
    blocks: Iterable[npt.NDArray[np.float32]],
    *,
    top: int | None = None,
) -> None:
    """Write probabilities as ``image`` and one column a class.

    With ``top``, write ``image,label,probability`` for the most probable classes of each image instead.
    """
    path = Path(path)
    check_path(path)
    if "image" in classes and top is None:
        raise InputError('a class is called "image", like the first column; write the top classes instead')
    if top is None:
        columns = [("image", pa.string()), *((name, pa.float32()) for name in classes)]
        tables = (_wide(part, block) for part, block in _named(names, blocks))
    else:
        columns = [("image", pa.string()), ("label", pa.string()), ("probability", pa.float32())]
        labels = pa.array(classes, pa.string())
        tables = (_long(part, block, labels, top) for part, block in _named(names, blocks))
    schema = pa.schema(columns)
    with replacing(path) as temporary, _writer(temporary, schema) as sink:
        for arrays in tables:
            sink.write_table(pa.table(arrays, schema=schema))


def _writer(path: Path, schema: pa.Schema) -> Any:
    if path.suffix == ".parquet":
        return pa.parquet.ParquetWriter(path, schema)
    return pa.csv.CSVWriter(path, schema)


def _named(names: Sequence[str], blocks: Iterable[Any]) -> Iterator[tuple[Sequence[str], Any]]:
    start = 0
    for block in blocks:
        yield names[start : start + len(block)], block
        start += len(block)


def _wide(names: Sequence[str], block: npt.NDArray[np.float32]) -> list[Any]:
    return [pa.array(names, pa.string()), *np.ascontiguousarray(block.T)]


def _long(names: Sequence[str], block: npt.NDArray[np.float32], labels: pa.Array, top: int) -> list[Any]:
    count = min(top, block.shape[1])
    best = np.argsort(-block, axis=1, kind="stable")[:, :count]
    image = np.repeat(np.array(names, dtype=object), count)
    chosen = np.take_along_axis(block, best, axis=1).reshape(-1)
    return [pa.array(image, pa.string()), labels.take(pa.array(best.reshape(-1))), chosen]


def write_evaluation(path: str | Path, found: Evaluation) -> None:
    """Write the figures as JSON, and those of each class as CSV beside it."""
    path = Path(path)
    write_json(path, found.to_dict())
    columns = (found.classes, found.ap, found.positives, found.negatives, found.thresholds)
    with (
        replacing(path.with_suffix(".csv")) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as sink,
    ):
        lines = csv.writer(sink)
        lines.writerow(["class", "ap", "present", "absent", "threshold"])
        lines.writerows(zip(*columns, strict=True))
