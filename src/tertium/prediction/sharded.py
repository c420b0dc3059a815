"""Predict and evaluate as large jobs: shard by shard, on this machine or on a cluster."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.data.decoding import PIXELS
from tertium.data.inputs import Features, Inputs, check_kind
from tertium.data.pictures import faults_in
from tertium.errors import InputError
from tertium.files import keep_inputs
from tertium.jobs.folder import EVALUATION, Part
from tertium.jobs.running import Finished, Job, Request, Work, run
from tertium.jobs.shards import Plan, RowPlan, Shard, absolute, plan_files
from tertium.labels import Labels
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.metrics.evaluation import Evaluation, evaluate_known
from tertium.metrics.ranking import KnownScores, columns_of, known_entries
from tertium.prediction.described import Described, checksum_of
from tertium.prediction.exported import Exported
from tertium.prediction.files import (
    Tables,
    check_columns,
    check_path,
    schema_of,
    tables_of,
    write_evaluation,
    write_predictions,
)
from tertium.prediction.predictor import Model
from tertium.prediction.using import Before, Evaluated, annotations_of, described, load, on_what
from tertium.progress import Progress

Found = TypeVar("Found")


def predict(
    model: str | Path,
    images: str | Path | None = None,
    *,
    request: Request,
    features: Features | None = None,
    labels: Source | None = None,
    split: str | None = None,
    top: int | None = None,
    skip_damaged: bool = False,
    joined: str | Path | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Write the probability of each class for each image, as parts in the folder of a job.

    Images that `tertium.predict` would take, in the same order. When all parts are there, they are ``joined``
    in one file, if that is asked for. A job that was ended goes on if it is called again.
    """
    if joined is not None:
        check_path(joined)
        keep_inputs([joined], [model, features, place_of(labels)])
    if split is not None and labels is None:
        raise InputError(f'the split "{split}" is one of a label file: give labels')
    known = described_file(model)
    check_columns(known.classes, top)
    truth = None if labels is None else open_labels(labels, split=split, progress=progress)
    names = None if truth is None else truth.images.to_pylist()
    plan = planned(known, images, features, names, request.images)
    about = {**about_of(model, images, features), "top": top}
    job = Job("predict", about, plan, _Predicting(os.path.abspath(model), top, skip_damaged))
    finished = run(job, request, progress)
    if joined is not None and finished.is_complete and finished.speaks:
        write_predictions(joined, [], known.classes, [], top=top, kept=PartTables(finished))
    return finished


def described_file(model: str | Path) -> Described | Exported:
    """Return what the model of a run or of a file takes."""
    found = described(model)
    assert isinstance(found, Described | Exported)
    return found


def planned(
    known: Described | Exported,
    images: str | Path | None,
    features: Features | None,
    names: Sequence[str] | None,
    size: int,
) -> Plan:
    """Divide inputs that fit a model into shards; files with images in them are not looked into."""
    if names is None and images is not None:
        check_kind(images, features, known.pictures)
        files = plan_files(_fixed(images), size)
        if files is not None:
            return files
    return RowPlan(known.inputs(_fixed(images), features, names), images=size)


def _fixed(images: str | Path | None) -> str | None:
    return None if images is None else absolute(str(images))


def about_of(model: str | Path, images: str | Path | None, features: Features | None) -> dict[str, Any]:
    """Return what parts depend on: the model, where the inputs are, how images are read."""
    where = _fixed(images) or (os.path.abspath(features) if isinstance(features, str | Path) else None)
    return {"model": checksum_of(model), "place": where, "pixels": PIXELS}


def opened(model: str) -> Any:
    """Load the model in a worker; features are not kept for others, for there is no end of them."""
    loaded = load(model)
    return loaded if isinstance(loaded, Exported) else replace(loaded, cached=False)


@dataclass(frozen=True)
class _Predicting:
    """Predicts shards."""

    model: str
    top: int | None
    skip_damaged: bool

    def __call__(self) -> Work:
        loaded = opened(self.model)
        empty = schema_of(loaded.classes, self.top).empty_table()

        def work(shard: Shard) -> Part:
            stream = streamed(loaded)
            blocks, inputs, damaged = readable(stream, shard.open(), self.skip_damaged)
            tables = [table for _, table in tables_of(inputs.names, loaded.classes, blocks, self.top)]
            return Part(pa.concat_tables([empty, *tables]), len(inputs), damaged, {})

        return work


def streamed(model: Model) -> Callable[[Inputs], list[npt.NDArray[np.float32]]]:
    """Return a function that gives all blocks of probabilities of a few inputs."""
    return lambda inputs: list(model.stream(inputs))


def readable(
    compute: Callable[[Inputs], Found], inputs: Inputs, skip_damaged: bool
) -> tuple[Found, Inputs, dict[str, str]]:
    """Compute something of inputs, if asked without the images that cannot be read; return those too.

    Images are looked at beforehand only if something is wrong: this is rare.
    """
    try:
        return compute(inputs), inputs, {}
    except InputError:
        faults = faults_in(inputs.pictures) if skip_damaged and inputs.pictures is not None else {}
        if not faults:
            raise
    rest = inputs.select(np.setdiff1d(np.arange(len(inputs)), list(faults)))
    return compute(rest), rest, {inputs.names[row]: faults[row] for row in sorted(faults)}


class PartTables(Tables):
    """The parts of a job as tables of an earlier attempt: all that there is to write."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished

    def earlier(self) -> Iterator[pa.Table]:
        """Yield the parts in order."""
        return (self._finished.folder.table(each) for each in self._finished.in_order())


# ---- figures ---------------------------------------------------------------------------------------------


def evaluate(
    model: str | Path,
    labels: Source,
    images: str | Path | None = None,
    *,
    request: Request,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    progress: Progress | None = None,
) -> tuple[Finished, Evaluated | None]:
    """Compare a model with known labels: parts have the score of each, and the figures come from all of them.

    The figures are those of `tertium.evaluate`; None as long as parts are missing.
    """
    known = described_file(model)
    truth = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
    inputs = known.labelled(truth, images if images is None else absolute(str(images)), features)
    plan = RowPlan(inputs, truth, request.images)
    about = {**about_of(model, images, features), "classes": digest(truth.classes)}
    finished = run(Job("evaluate", about, plan, _Evaluating(os.path.abspath(model))), request, progress)
    if not finished.is_complete or not finished.speaks:
        return finished, None
    figures = _Figures(finished, plan, truth, known, annotations_of(model, known.classes))
    found, output = figures.evaluated(), finished.folder.output
    with tempfile.TemporaryDirectory(prefix="tertium-") as passing:
        place = Path(passing, EVALUATION)
        write_evaluation(place, found.evaluation, on_what(len(truth), labels, split))
        for each in (place.with_suffix(".csv"), place):
            output.write(each.name, each.read_bytes())
    return finished, replace(found, out=f"{output.place}/{EVALUATION}")


def digest(names: Sequence[str]) -> str:
    """Return a checksum of names in their order."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Evaluating:
    """Scores the known labels of shards, and looks which images the run has seen."""

    model: str

    def __call__(self) -> Work:
        loaded, before = opened(self.model), Before.of(self.model)
        classes = pa.array(loaded.classes, pa.string())

        def work(shard: Shard) -> Part:
            inputs, labels = shard.open(), shard.labels
            assert labels is not None
            columns, start, pieces = columns_of(labels.classes, loaded.classes), 0, []
            for block in loaded.stream(inputs):
                piece = known_entries(labels, start, block, columns)
                pieces.append(piece._replace(rows=piece.rows + start))
                start += len(block)
            rows, own, values, present = map(np.concatenate, zip(*pieces, strict=True))
            names = pa.array(inputs.names, pa.string())
            table = {
                "image": pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), names),
                "label": pa.DictionaryArray.from_arrays(pa.array(own, pa.int32()), classes),
                "probability": pa.array(values, pa.float32()),
                "present": pa.array(present),
            }
            seen = before.seen(inputs)
            notes = {"seen": np.packbits(seen).tobytes().hex(), "near": before.near(inputs, ~seen)}
            return Part(pa.table(table), len(inputs), {}, notes)

        return work


@dataclass(frozen=True)
class _Figures:
    """The figures of all parts together."""

    finished: Finished
    plan: RowPlan
    labels: Labels
    model: Described | Exported
    annotations: npt.NDArray[np.int64] | None

    def evaluated(self) -> Evaluated:
        """Return what `tertium.evaluate` would."""
        seen, near = np.zeros(len(self.labels), dtype=bool), list[tuple[str, str, float]]()
        for done in self.finished.in_order():
            rows = self.plan.rows(done.number)
            bits = np.frombuffer(bytes.fromhex(done.notes["seen"]), dtype=np.uint8)
            seen[rows.start : rows.stop] = np.unpackbits(bits, count=len(rows))
            near += [(image, like, alike) for image, like, alike in done.notes["near"]]
        alike = seen | np.isin(np.array(self.plan.inputs.names), [image for image, _, _ in near])
        found = self._judged(np.ones(len(self.labels), dtype=bool))
        unseen = self._judged(~seen) if 0 < seen.sum() < len(seen) else None
        apart = self._judged(~alike) if near and not alike.all() else None
        strangers = sorted(set(self.labels.classes) - set(self.model.classes))
        return Evaluated(found, len(self.labels), int(seen.sum()), unseen, tuple(near), apart, strangers)

    def _judged(self, chosen: npt.NDArray[np.bool_]) -> Evaluation:
        """Evaluate on some of the images."""
        labels = self.labels if chosen.all() else self.labels[np.flatnonzero(chosen)]
        classes = pa.array(self.model.classes, pa.string())
        with (
            tempfile.TemporaryDirectory(prefix="tertium-") as folder,
            KnownScores(labels, self.model.classes, folder) as known,
        ):
            for done in self.finished.in_order():
                table, rows = self.finished.folder.table(done), self.plan.rows(done.number)
                inside = chosen[rows.start : rows.stop]
                row = _places(table["image"], self.labels.images[rows.start : rows.stop])
                kept = inside[row]
                column = _places(table["label"], classes)[kept]
                values, present = (table[name].to_numpy()[kept] for name in ("probability", "present"))
                known.add_known(int(inside.sum()), column, values, present)
            known.close()
            return evaluate_known(known, self.model.thresholds, self.annotations)


def _places(names: pa.ChunkedArray, among: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each name is among others, all of which it must be."""
    found = pc.index_in(names.cast(pa.string()), value_set=among)
    return np.asarray(found.to_numpy(), dtype=np.int64)
