"""Completing labels as a large job: calibrated once, then shard by shard."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tertium.annotation.calibration import Block, Chances
from tertium.data.inputs import BATCH, Features
from tertium.files import keep_inputs
from tertium.jobs.folder import THRESHOLDS, Part
from tertium.jobs.running import Finished, Job, Request, Work, run
from tertium.jobs.shards import RowPlan, Shard, absolute
from tertium.labelling.completion import Asked, Completed, known_kept, matrix
from tertium.labelling.precision import Tally
from tertium.labelling.prepared import Edges, Judged, Prepared, collective_of
from tertium.labels.opening import Source, place_of
from tertium.labels.readers import Unlisted
from tertium.labels.tree import LabelTree
from tertium.prediction.files import check_columns, check_path, schema_of, tables_of, write_predictions
from tertium.prediction.sharded import PartTables, about_of, digest, opened
from tertium.progress import Progress

if TYPE_CHECKING:
    from tertium.labels import Labels


def complete(
    model: str | Path,
    labels: Source,
    images: str | Path | None = None,
    *,
    request: Request,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    answers: Source | None = None,
    precision: float | None = None,
    filled: str | Path | None = None,
    alone: bool = False,
    tree: LabelTree | str | Path | None = None,
    joined: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Finished, Completed | None]:
    """Write the probability of every unknown label, as parts in the folder of a job.

    They are those of `tertium.complete`. What all of them give together, such as thresholds, is found when
    all parts are there, and is None before.
    """
    asked = Asked(labels, split, unlisted, answers, precision, filled, alone, tree)
    asked.check([], features)
    if joined is not None:
        check_path(joined)
        keep_inputs([joined, filled], [features, place_of(labels), place_of(answers)])
    place = None if images is None else absolute(str(images))
    ready, known = asked.prepared(model, place, features, progress)
    check_columns(ready.trained.classes, None)
    plan = RowPlan(ready.inputs, ready.labels, request.images)
    finished = run(_job(model, images, features, ready, plan), request, progress)
    if not finished.is_complete or not finished.speaks:
        return finished, None
    if joined is not None:
        write_predictions(joined, [], ready.trained.classes, [], kept=PartTables(finished))
    tally = Tally(len(ready.trained.classes))
    for rows, chances in _blocks(finished):
        tally.add(chances, ready.labels.dense(rows) == 0)
    return finished, _completed(asked, ready, known, tally, finished)


def _job(
    model: str | Path, images: str | Path | None, features: Features | None, ready: Prepared, plan: RowPlan
) -> Job:
    heard = ready.collective
    share = heard.share if heard is not None else 0.0
    work = _Completing(os.path.abspath(model), ready.chances, share, ready.levels)
    said = [*_numbers(ready.chances), share, *(level.tobytes() for level in ready.levels)]
    about = {
        **about_of(model, images, features),
        "classes": digest(ready.labels.classes),
        "calibration": hashlib.sha256(repr(said).encode()).hexdigest()[:16],
    }
    return Job("complete", about, plan, work)


def _numbers(chances: Chances) -> list[bytes]:
    return [np.asarray(each, dtype=np.float64).tobytes() for each in vars(chances).values()]


@dataclass(frozen=True)
class _Completing:
    """Completes the labels of shards."""

    model: str
    chances: Chances
    share: float  # by which the other known labels of an image count
    levels: tuple[Edges, ...]

    def __call__(self) -> Work:
        trained = opened(self.model)
        heard = collective_of(self.model, trained, alone=not self.share)
        how = Judged(self.chances, None if heard is None else replace(heard, share=self.share), self.levels)

        def work(shard: Shard) -> Part:
            inputs, labels = shard.open(), shard.labels
            assert labels is not None
            blocks = known_kept(how.blocks(trained, inputs, labels))  # counted when all parts are there
            tables = [table for _, table in tables_of(inputs.names, trained.classes, blocks)]
            empty = schema_of(trained.classes, None).empty_table()
            return Part(pa.concat_tables([empty, *tables]), len(inputs), {}, {})

        return work


def _blocks(finished: Finished) -> Iterator[tuple[np.ndarray, Block]]:
    """Yield the probabilities that were written, in the batches in which they were computed."""
    start = 0
    for done in finished.in_order():
        table = finished.folder.table(done)
        for first in range(0, len(table), BATCH):
            found = matrix(table[first : first + BATCH])
            yield np.arange(start, start + len(found)), found
            start += len(found)


def _completed(asked: Asked, ready: Prepared, known: Labels, tally: Tally, finished: Finished) -> Completed:
    """Write what all parts give together."""
    output = finished.folder.output
    with tempfile.TemporaryDirectory(prefix="tertium-") as passing:
        table = Path(passing, THRESHOLDS)
        written = (chances for _, chances in _blocks(finished))
        done = asked.completed(ready, known, tally, table, lambda: written)
        if done.table is None:
            return done
        output.write(table.name, table.read_bytes())
    return replace(done, table=f"{output.place}/{THRESHOLDS}")
