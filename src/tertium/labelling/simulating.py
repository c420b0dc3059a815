"""What questions are worth, simulated on known labels: rules of asking side by side."""

from __future__ import annotations

import csv
import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tertium.data.feature_files import load_features
from tertium.data.inputs import Features
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labelling.suggesting import suggest
from tertium.labels import Labels
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.labels.splits import TEST, TRAIN, divide
from tertium.prediction.files import check_table
from tertium.prediction.trained import Trained
from tertium.progress import Progress
from tertium.schemes import Scheme, parse
from tertium.training.train import train

Whole = npt.NDArray[np.int64]
_HELD_OUT = 0.25  # share of the images that judge a simulation, unless there is a split for that
RULES = ("tertium", "uncertainty", "random")


@dataclass(frozen=True)
class Point:
    """How good a model is after so many answers."""

    rule: str
    seed: int
    answers: int
    present: int  # of them
    map: float  # on images that were never asked about, with full labels


def rehearse(
    labels: Source,
    features: Features,
    *,
    scheme: str = "single_positive",
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    budget: int = 500,
    rounds: int = 4,
    per_image: int = 1,
    sample: int | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Point]:
    """Hide known labels by a scheme and compare rules of asking, once for each seed.

    The points go to ``out``, .csv, if it is given.
    """
    if out is not None:
        check_table(out, "figures")
        keep_inputs([out], [features, place_of(labels)])
    chosen = parse(scheme)
    full = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
    points = []
    for seed in range(seeds):
        points += simulate(
            full,
            features,
            scheme=chosen,
            budget=budget,
            rounds=rounds,
            seed=seed,
            sample=sample,
            per_image=per_image,
            progress=progress,
        )
    if out is not None:
        write_points(out, points)
    return points


def simulate(
    full: Labels,
    features: Features,
    *,
    scheme: Scheme,
    budget: int,
    rounds: int,
    seed: int = 0,
    sample: int | None = None,
    per_image: int = 1,
    progress: Progress | None = None,
) -> list[Point]:
    """Hide labels, train with `auto`, ask, train again with the answers; compare rules of asking.

    Every rule starts with the same labels and the same model, and asks ``budget`` questions in each round.
    The mean AP is that on the split "test" if there is one, else on a quarter of the images, which are
    neither trained on nor asked about. ``sample`` images are drawn if it is given.
    """
    progress = progress or Progress()
    training, held_out, inputs, held_inputs = _parts(full, features, sample, seed)
    hidden = scheme.apply(training, seed)
    points = []
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        first = Path(folder) / "first"

        def fitted(labels: Labels, place: Path) -> float:
            outcome = train(labels, features=inputs, out=place, method="auto", seed=seed, overwrite=True)
            return outcome.trained.evaluate(held_out, features=held_inputs).map_c

        start = fitted(hidden, first)
        for rule in RULES:
            labels, run, present = hidden, first, 0
            points.append(Point(rule, seed, 0, 0, start))
            for number in range(1, rounds + 1):
                progress.note(f"{rule}, round {number} of {rounds}: {100 * points[-1].map:.1f} mAP so far")
                asked = _asked(rule, run, labels, inputs, budget, per_image, (seed, number))
                labels, more = _answered(labels, training, *asked)
                present, run = present + more, Path(folder) / rule
                answers = labels.known - hidden.known
                points.append(Point(rule, seed, answers, present, fitted(labels, run)))
    return points


def _parts(
    full: Labels, features: Features, sample: int | None, seed: int
) -> tuple[Labels, Labels, npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Return training and held-out labels, then the features of both."""
    if not full.is_full:
        missing = len(full) * len(full.classes) - full.known
        raise InputError(
            f"a simulation needs full labels, but {missing:,} are unknown; "
            "if what is not listed is absent, say so"
        )
    if isinstance(features, str | Path):
        array = load_features(features, full.images.to_pylist())
    else:
        array = np.asarray(features)
    if len(array) != len(full):
        raise InputError(f"{len(array):,} rows of features for {len(full):,} labelled images")
    rows = full.rows_in(TRAIN) if full.has_split(TRAIN) else np.arange(len(full))
    if sample is not None:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:sample])
    plain = dataclasses.replace(full, splits=None)
    if full.has_split(TEST) and full.has_split(TRAIN):
        others = full.rows_in(TEST)
    else:
        kept, apart = divide(plain.images.take(rows), _HELD_OUT, seed, purpose="rehearse")
        rows, others = rows[kept], rows[apart]
    return plain[rows], plain[others], array[rows], array[others]


def _asked(
    rule: str,
    run: Path,
    labels: Labels,
    inputs: npt.NDArray[np.floating],
    budget: int,
    per_image: int,
    seed: tuple[int, int],
) -> tuple[Whole, Whole]:
    """Return the rows and columns of the labels that a rule asks about."""
    if rule == "tertium":
        questions = suggest(run, labels, features=inputs, budget=budget, per_image=per_image)
        return labels.rows_of(questions.images), np.array([labels.column(name) for name in questions.labels])
    unknown = labels.dense() == 0
    if rule == "random":
        key = np.random.default_rng(seed).random(unknown.shape)
    else:
        key = np.abs(Trained.load(run).predict_proba(features=inputs) - 0.5)
    order = np.argsort(np.where(unknown, key, np.inf), axis=None, kind="stable")[:budget]
    rows, columns = np.unravel_index(order, unknown.shape)
    kept = unknown[rows, columns]
    return rows[kept], columns[kept]


def _answered(labels: Labels, truth: Labels, rows: Whole, columns: Whole) -> tuple[Labels, int]:
    """Return the labels with true answers added, and how many of those are present."""
    values = truth.dense(rows)[np.arange(len(rows)), columns]
    known = labels.coo()
    answered = Labels.from_entries(
        np.concatenate([known[0], rows]),
        np.concatenate([known[1], columns]),
        np.concatenate([known[2], values]),
        classes=labels.classes,
        images=labels.images,
    )
    return answered, int((values > 0).sum())


def write_points(path: str | Path, points: Sequence[Point]) -> None:
    """Write a simulation as CSV, a line for each rule, seed and round."""
    fields = [field.name for field in dataclasses.fields(Point)]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(fields)
        lines.writerows([getattr(point, name) for name in fields] for point in points)


def averaged(points: Sequence[Point], rule: str) -> list[tuple[int, float, float]]:
    """Return (answers, share of them present, mean AP) of a rule, averaged over the seeds."""
    mine = [point for point in points if point.rule == rule]
    steps = sorted({point.answers for point in mine})
    found = []
    for answers in steps:
        here = [point for point in mine if point.answers == answers]
        present = float(np.mean([point.present for point in here])) / max(answers, 1)
        found.append((answers, present, float(np.mean([point.map for point in here]))))
    return found
