"""One cell of a comparison: the labels that it may see, its training, and its figures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from tertium import methods
from tertium.data.batches import FeatureLoader, Order
from tertium.data.feature_files import feature_names, load_features
from tertium.errors import InputError, did_you_mean
from tertium.files import read_sealed, write_sealed
from tertium.labels import Labels
from tertium.labels.opening import open_labels
from tertium.labels.readers import LabelFile, read_labels
from tertium.labels.splits import TEST, TRAIN, VALIDATION, divide
from tertium.metrics.evaluation import average_precision, evaluate
from tertium.models.classifier import Classifier
from tertium.prediction.trained import scores
from tertium.schemes import parse
from tertium.training.session import Outcome
from tertium.training.train import train

_BATCH = 2048  # images scored at a time
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """The data of a comparison, by path; with ``images``, only so many for training, drawn by the seed."""

    labels: str | LabelFile
    features: str
    unlisted: Literal["unknown", "absent"] = "unknown"
    test_features: str | None = None
    images: int | None = None

    def fingerprint(self) -> str:
        """Tell other data apart: cells of theirs do not count as done."""
        files = [self.labels, self.features, self.test_features]
        stamps = [stamp(str(path)) for path in files if path is not None]
        options = self.labels.options() if isinstance(self.labels, LabelFile) else {}
        if "rename" in options:  # what its file says may change
            assert isinstance(self.labels, LabelFile)
            options["rename"] = self.labels.new_names()
        paths = [path for path in (self.features, self.test_features) if path is not None]
        names = [feature_names(path) for path in paths]  # beside the features, in a file of its own
        more = [part for part in (options, [each for each in names if each is not None]) if part]
        return _digest([stamps, self.unlisted, self.images, *more])


def stamp(path: str) -> list[Any]:
    """Return what changes with a file: its place, size and time."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    about = os.stat(path)
    return [str(Path(path).resolve()), about.st_size, about.st_mtime_ns]


@dataclass(frozen=True)
class Cell:
    """One training run: a method under a scheme, or on a file of partial labels."""

    method: str
    scheme: str  # or the name of the file
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)  # all of them (`rows.resolved`)
    file: str | None = None  # of partial labels

    @property
    def name(self) -> str:
        """The name of its file: what was trained, and how."""
        key = [asdict(self), None if self.file is None else stamp(self.file)]
        return f"{self.method}-{_digest(key)[:12]}.json"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Drawn:
    """What the cells of one scheme and seed share."""

    labels: Labels  # partial, of all training images, with the splits train and val
    features: npt.NDArray[Any]
    truth: Labels  # of the same images
    validation: npt.NDArray[np.int64]  # rows

    @cached_property
    def training(self) -> Labels:
        """What training sees, validation apart."""
        return self.labels.part(TRAIN)


class Data:
    """Training and test part, in the order of the label file; what cells share is made once."""

    def __init__(self, work: Work) -> None:
        labels = open_labels(work.labels, unlisted=work.unlisted)
        for split in (TRAIN, TEST):
            if not labels.has_split(split):
                hint = did_you_mean(split, labels.split_names())
                raise InputError(f'{work.labels}: a comparison needs the splits "train" and "test"; {hint}')
        rows, others = labels.rows_in(TRAIN), labels.rows_in(TEST)
        self.work, self.training, self.test = work, _bare(labels[rows]), _bare(labels[others])
        if work.test_features is not None or feature_names(work.features) is not None:
            self._features = load_features(work.features, self.training.images.to_pylist())
            tests = work.test_features or work.features
            self._test_features = load_features(tests, self.test.images.to_pylist())
        else:
            everything = load_features(work.features, len(labels))
            self._features, self._test_features = everything[rows], everything[others]
        self._check()
        self._files: dict[str, Labels] = {}
        self._last: tuple[Any, Drawn] | None = None

    def _check(self) -> None:
        present, absent = self.test.class_counts
        if not ((present > 0) & (absent > 0)).any():
            raise InputError(
                f"{self.work.labels}: no class is known both present and absent in the test split; "
                "if what the file does not list is absent, say --unlisted absent"
            )
        if self.work.images is not None and self.work.images > len(self.training):
            raise InputError(
                f"{self.work.images:,} images are asked for, "
                f"but the training split of {self.work.labels} has {len(self.training):,}"
            )

    def drawn(self, cell: Cell) -> Drawn:
        """Return what a cell may see; cells of one scheme and seed come one after the other."""
        share = cell.settings["validation"]
        key = (cell.scheme, cell.file, cell.seed, share)
        if self._last is None or self._last[0] != key:
            self._last = key, self._draw(cell, share)
        return self._last[1]

    def _draw(self, cell: Cell, share: float) -> Drawn:
        truth, features, rows = self.training, self._features, None
        if self.work.images is not None:
            # The first of one order: fewer images are among the more.
            rows = np.sort(np.random.default_rng(cell.seed).permutation(len(truth))[: self.work.images])
            truth, features = truth[rows], features[rows]
        if cell.file is None:
            labels = parse(cell.scheme).apply(truth, cell.seed)
        else:
            labels = self.partial(cell.file) if rows is None else self.partial(cell.file)[rows]
        held_out = divide(labels.images, share, cell.seed)[1] if share and len(labels) > 1 else np.arange(0)
        return Drawn(_divided(labels, held_out), features, truth, held_out)

    def partial(self, path: str) -> Labels:
        """Read a file of partial labels for the training images, matched by image and class names."""
        if path not in self._files:
            self._files[path] = self._read_partial(path)
        return self._files[path]

    def _read_partial(self, path: str) -> Labels:
        found = read_labels(path)
        for name in found.classes:
            if name not in self.training.classes:
                hint = did_you_mean(name, self.training.classes)
                raise InputError(f'{path}: there is no class "{name}" in {self.work.labels}; {hint}')
        there = pc.index_in(self.training.images, value_set=found.images)
        here = np.flatnonzero(np.asarray(pc.is_valid(there)))
        if not here.size:
            raise InputError(f"{path}: has none of the training images of {self.work.labels}")
        chosen = _bare(found.with_classes(self.training.classes)[np.asarray(there.drop_null())])
        nothing = Labels.unknown(self.training.images.to_pylist(), self.training.classes)
        return nothing.with_rows(here, chosen)

    @cached_property
    def test_scores(self) -> Callable[[Classifier], npt.NDArray[np.float32]]:
        """How to score the test images with a model."""
        return _scorer(self._test_features, self.test)

    @cached_property
    def dense_test(self) -> npt.NDArray[np.int8]:
        """The test labels [N, C]."""
        return self.test.dense()


def _scorer(features: npt.NDArray[Any], labels: Labels) -> Callable[[Classifier], npt.NDArray[np.float32]]:
    # Of single precision from here on: a comparison scores the same images hundreds of times.
    batches = FeatureLoader(np.asarray(features, dtype=np.float32), None, Order(len(labels), _BATCH))
    return lambda model: scores(model, batches)


def _bare(labels: Labels) -> Labels:
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images)


def _divided(labels: Labels, held_out: npt.NDArray[np.int64]) -> Labels:
    """Return the labels with the splits train and val."""
    codes = np.zeros(len(labels), dtype=np.int32)
    codes[held_out] = 1
    splits = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array([TRAIN, VALIDATION]))
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)


@lru_cache(maxsize=1)
def opened(work: Work, fingerprint: str) -> Data:
    """Return the data, which a process keeps between cells as long as the files are the same."""
    return Data(work)


@dataclass(frozen=True)
class Task:
    """A cell to train, and where its figures go."""

    cell: Cell
    place: Path
    watched: bool = False  # with figures of each epoch
    may_fail: bool = False  # a trial that draws unlucky values counts as tried


def is_done(task: Task) -> bool:
    """Return whether a cell has been trained, by whomever; `InputError` if its file was changed."""
    if not task.place.is_file():
        return False
    figures = read_sealed(task.place)
    return not task.watched or figures["score"] is None or "epochs" in figures


def train_cell(work: Work, fingerprint: str, task: Task) -> None:
    """Train a cell and write its figures; test labels are looked at when nothing depends on them any more."""
    with suppress(InputError):  # a damaged one is trained again
        if is_done(task):  # by another comparison into this folder, or by a worker that was lost since
            return
    torch.set_num_threads(1)
    data = opened(work, fingerprint)
    cell = task.cell
    drawn = data.drawn(cell)
    figures = asdict(cell)
    try:
        methods.make(cell.method, cell.settings["parameters"]).check(drawn.training)
    except InputError as error:  # it cannot learn from such labels; any other mistake ends the comparison
        write_sealed(task.place, figures | {"score": None, "reason": str(error)})
        return
    watch = _Watch(data, drawn) if task.watched else None
    try:
        outcome = train(
            drawn.labels,
            features=drawn.features,
            method=cell.method,
            config=cell.settings,
            truth=drawn.truth if cell.settings["select"] == "clean" else None,
            watch=watch,
            expected_map=False,
        )
    except InputError as error:
        if not task.may_fail:
            raise
        write_sealed(task.place, figures | {"score": None, "reason": str(error)})
        return
    write_sealed(task.place, figures | _measured(data, drawn, outcome))


def _measured(data: Data, drawn: Drawn, outcome: Outcome) -> dict[str, Any]:
    present, absent = drawn.labels.class_counts
    summary = outcome.summary
    found = evaluate(
        data.test_scores(outcome.trained.model), data.dense_test, annotations=present + absent
    ).to_dict()
    figures = {
        "score": found["map_c"],
        "validation": summary["validation_score" if summary["select"] != "clean" else "validation_clean_map"],
        "best_epoch": summary["best_epoch"],
        "seconds": summary["seconds"],
        "ap": found["ap"],
        "present": present.tolist(),
        "absent": absent.tolist(),
        "truly_present": drawn.truth.class_counts[0].tolist(),
        "groups": found["groups"],
    }
    if "watched" in outcome.records[0]:
        figures["epochs"] = [
            {"epoch": record["epoch"], "validation": record["score"], **record["watched"]}
            for record in outcome.records
        ]
    return figures


class _Watch:
    """The clean validation score and the test score after an epoch: for analyses, training sees neither."""

    def __init__(self, data: Data, drawn: Drawn) -> None:
        self._data = data
        self._clean = drawn.truth[drawn.validation]
        self._scores = _scorer(drawn.features[drawn.validation], self._clean) if len(self._clean) else None
        self._dense = self._clean.dense()

    def __call__(self, model: Classifier) -> dict[str, float | None]:
        clean = None
        if self._scores is not None:
            clean = _mean(average_precision(self._scores(model), self._dense))
        return {
            "clean": clean,
            "test": _mean(average_precision(self._data.test_scores(model), self._data.dense_test)),
        }


def _mean(ap: Floats) -> float | None:
    return float(np.nanmean(ap)) if np.isfinite(ap).any() else None
