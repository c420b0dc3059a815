"""Completing labels: how probable each unknown label is, given the image and how labels were annotated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tertium.annotation.answered import Answered, joined, learned_by
from tertium.annotation.calibration import (
    Block,
    Floats,
    Signs,
    present_range,
)
from tertium.annotation.together import Together
from tertium.data.inputs import Features, Images
from tertium.errors import InputError
from tertium.files import keep_inputs
from tertium.labelling.precision import Tally, Thresholds, confirmed, write_thresholds
from tertium.labelling.prepared import Prepared
from tertium.labels import Labels
from tertium.labels.closure import close
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted, write_labels
from tertium.labels.tree import LabelTree
from tertium.prediction.files import check_columns, check_path, write_predictions
from tertium.progress import Progress

_LABELS = (".csv", ".tsv", ".parquet", ".arrow")
_READ = 2**20  # probabilities that are read back at once


@dataclass(frozen=True)
class Completed:
    """What was written, and what a person should know."""

    unknown: int  # labels that were
    expected: float  # how many of them are present, …
    low: float  # … and its 90 % interval
    high: float
    settled: bool  # whether known labels tell the number; else only the interval does
    notes: tuple[str, ...]
    table: Path | str | None = None  # of thresholds: a path, or an address
    added: int = 0  # labels above them
    together: Together | None = None  # by which known labels spoke for the others, if they did


def complete(
    run: str | Path,
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    answers: Source | None = None,
    out: str | Path,
    precision: float | None = None,
    filled: str | Path | None = None,
    alone: bool = False,
    tree: LabelTree | str | Path | None = None,
    progress: Progress | None = None,
) -> Completed:
    """Write the probability of every unknown label; known ones are 1 and 0.

    A label is judged by its image, and by the image's known labels if these are found to say anything about
    the others; with ``alone`` by the image only. By a ``tree`` of labels, what follows from known labels
    counts as known, and no class is less likely than one below it.

    With ``precision``, a CSV file beside ``out`` lists for each class the lowest threshold expected to reach
    it, and ``filled`` gets the labels, with those above the thresholds added as present. ``answers`` are
    labels that people were asked about, as `tertium answers` writes them: they count as known, as do those
    that the run was given, and those that it has not learned from calibrate the others.
    """
    out = Path(out)
    check_path(out)
    table = out.with_name(f"{out.stem}-thresholds.csv")
    asked = Asked(labels, split, unlisted, answers, precision, filled, alone, tree)
    asked.check([out, table], features)
    ready, known = asked.prepared(run, images, features, progress)
    check_columns(ready.trained.classes, None)
    tally = Tally(len(ready.trained.classes))
    names = ready.labels.images.to_pylist()
    write_predictions(out, names, ready.trained.classes, known_kept(ready.blocks(progress), tally))
    return asked.completed(ready, known, tally, table, lambda: _read_back(out, len(ready.trained.classes)))


@dataclass(frozen=True)
class Asked:
    """What is asked of a completion, besides where images are and where the probabilities go."""

    labels: Source
    split: str | None
    unlisted: Unlisted
    answers: Source | None
    precision: float | None
    filled: str | Path | None
    alone: bool
    tree: LabelTree | str | Path | None

    def check(self, outputs: Sequence[Path], features: Features | None) -> None:
        """Raise `InputError` for what cannot be done or written, before the long work."""
        _check_request(self.precision, self.filled)
        tree = None if isinstance(self.tree, LabelTree) else self.tree
        read = [place_of(self.labels), place_of(self.answers), tree]
        keep_inputs([*outputs, self.filled], [features, *read])

    def prepared(
        self, run: str | Path, images: Images | None, features: Features | None, progress: Progress | None
    ) -> tuple[Prepared, Labels]:
        """Load and calibrate the model; return also all labels of the file, with the answers."""
        labels = open_labels(self.labels, split=self.split, unlisted=self.unlisted, progress=progress)
        said = None if self.answers is None else open_labels(self.answers, progress=progress)
        said = joined(learned_by(run), said)
        tree = self.tree
        if tree is not None:
            tree = tree if isinstance(tree, LabelTree) else LabelTree.read(tree)
            tree.check(labels.classes)
            labels, _ = close(labels if said is None else _answered(labels, said), tree)
        ready = Prepared.of_run(
            run,
            labels,
            images,
            features=features,
            answers=said,
            alone=self.alone,
            tree=tree,
            progress=progress,
        )
        return ready, labels if said is None else _answered(labels, said)

    def completed(
        self,
        ready: Prepared,
        known: Labels,
        tally: Tally,
        table: Path,
        written: Callable[[], Iterator[Block]],
    ) -> Completed:
        """Say what was counted; write thresholds and filled labels, if they are asked for.

        ``written`` gives the probabilities again, block by block.
        """
        unknown, expected = tally.totals()
        settled = ready.annotation is not None and ready.annotation.settled
        count = (unknown, expected, *_range(ready, tally), settled)
        if self.precision is None:
            return Completed(*count, ready.notes, together=ready.related)
        found, above, note = confirmed(ready, tally, self.precision)
        write_thresholds(table, ready, found, above)
        if self.filled is not None:
            write_labels(fill(known, written(), ready, found), self.filled)
        notes = (*ready.notes, note)
        return Completed(*count, notes, table, int(found.added.sum()), ready.related)


def _range(ready: Prepared, tally: Tally) -> tuple[float, float]:
    """Return between which numbers of unknown labels are present.

    Answers are about close calls and say little of the many labels with small chances. So what would be
    expected without them counts too.
    """
    unknown, expected = tally.totals()
    known = int(ready.labels.class_counts[0].sum())
    both = [
        present_range(known, unknown, each, ready.annotation)
        for each in (expected, tally.moved(-np.asarray(ready.chances.told)))
    ]
    return min(low for low, _ in both), max(high for _, high in both)


def _answered(labels: Labels, answers: Labels) -> Labels:
    """Return all labels of the file, those of classes that the model does not know too, with the answers."""
    return Answered.among(labels, answers).put_into(labels)


def _check_request(precision: float | None, filled: str | Path | None) -> None:
    if precision is not None and not 0 < precision < 1:
        raise InputError(f"the precision must lie between 0 and 1, not {precision}")
    if filled is not None:
        if precision is None:
            raise InputError("filled labels need a precision that those added are expected to have")
        if Path(filled).suffix not in _LABELS:  # said before the long work, not after it
            raise InputError(f"{filled}: labels are written as {', '.join(_LABELS)}")
        if not Path(filled).parent.is_dir():
            raise InputError(f"{filled}: the folder {Path(filled).parent} does not exist")


def known_kept(blocks: Iterable[tuple[Floats, Signs, Block]], tally: Tally | None = None) -> Iterator[Block]:
    """Yield the chances of unknown labels among known ones as 1 and 0; count the former."""
    for _, labels, chances in blocks:
        if tally is not None:
            tally.add(chances, labels == 0)
        yield np.where(labels == 0, chances, labels > 0).astype(np.float32)


def fill(labels: Labels, blocks: Iterable[Block], ready: Prepared, found: Thresholds) -> Labels:
    """Return the labels with those above the thresholds added as present; blocks have the probabilities."""
    classes = (*labels.classes, *sorted(set(ready.trained.classes) - set(labels.classes)))
    column = np.array([classes.index(name) for name in ready.trained.classes])
    rows, columns, values = labels.with_classes(classes).coo()
    more_rows, more_columns, start = [rows], [columns], 0
    for chances in blocks:
        unknown = ready.labels.dense(np.arange(start, start + len(chances))) == 0
        row, place = np.nonzero(unknown & found.above(chances))
        more_rows.append(row + start)
        more_columns.append(column[place])
        start += len(chances)
    added = sum(map(len, more_rows)) - len(rows)
    return Labels.from_entries(
        np.concatenate(more_rows),
        np.concatenate(more_columns),
        np.concatenate([values, np.ones(added, dtype=np.int8)]),
        classes=classes,
        images=labels.images,
        splits=labels.splits,
    )


def _read_back(path: Path, classes: int) -> Iterator[Block]:
    """Yield the probabilities that were written, block by block: quicker than to predict once more."""
    if path.suffix == ".parquet":
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(max(1, _READ // classes)):
                yield matrix(batch)
        return
    names = pa.csv.open_csv(path).schema.names
    kinds = {name: pa.float32() for name in names[1:]} | {names[0]: pa.string()}
    with pa.csv.open_csv(path, convert_options=pa.csv.ConvertOptions(column_types=kinds)) as file:
        yield from map(matrix, file)


def matrix(batch: pa.RecordBatch | pa.Table) -> Block:
    """Return the probabilities [B, C] of rows whose first column is the image."""
    return np.stack([np.asarray(column, dtype=np.float32) for column in batch.columns[1:]], axis=1)
