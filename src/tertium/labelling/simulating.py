"""What questions are worth, simulated on known labels: rules of asking side by side."""

from __future__ import annotations

import csv
import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.annotation.answered import Answered, joined
from tertium.data.feature_files import load_features
from tertium.data.inputs import Features
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labelling.forecasting import Forecast, forecast
from tertium.labelling.prepared import Prepared
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
# As `suggest` asks; the same with what answers tell about other labels; nearest to one half; by chance.
RULES = ("tertium", "others", "uncertainty", "random")
_SURE = 0.05  # a label is known if it was given or answered, or if its chance is so near to 0 or 1
_LOOKS = (0.1, 0.25, 0.5)  # after which shares of a round's answers the rest of them is foretold


@dataclass(frozen=True)
class Foretold:
    """What the next answers of a round were said to bring, and what they brought."""

    round: int
    said: Forecast
    present: int  # of the next answers
    surprising: int

    @property
    def held(self) -> tuple[bool, bool]:
        """Whether the intervals hold what came: of present labels, and of surprising answers."""
        pairs = ((self.said.next_present, self.present), (self.said.next_surprising, self.surprising))
        return tuple(said.low <= came <= said.high for said, came in pairs)  # type: ignore[return-value]


@dataclass(frozen=True)
class Point:
    """How good a model is after so many answers."""

    rule: str
    seed: int
    answers: int
    present: int  # of them
    map: float  # on images that were never asked about, with full labels
    known: int  # labels of the images that are asked about: given, answered, or all but certain then, …
    right: int  # … and how many of them are what they are taken for
    error: float  # mean squared, of the chances of all these labels
    foretold: tuple[Foretold, ...] = ()  # during the last answers, by the order of `suggest`


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

    The points go to ``out``, .csv, if it is given, and what was foretold of answers to a file beside it.
    """
    if out is not None:
        check_table(out, "figures")
        keep_inputs([out, forecasts_file(out)], [features, place_of(labels)])
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
        write_forecasts(forecasts_file(out), points)
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
    """Hide labels, train with `auto`, ask, train again with the answers (`train(answers=…)`); compare rules.

    Every rule starts with the same labels and the same model, and asks ``budget`` questions in each round.
    The mean AP is that on the split "test" if there is one, else on a quarter of the images, which are
    neither trained on nor asked about. ``sample`` images are drawn if it is given.
    """
    progress = progress or Progress()
    training, held_out, inputs, held_inputs = parts(full, features, sample, seed)
    hidden = scheme.apply(training, seed)
    points = []
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        scores: dict[Path, float] = {}

        def fitted(answers: Labels | None) -> Path:
            """Train with these answers, unless it was done: rules may ask the same."""
            place = Path(folder) / ("run" if answers is None else answers.fingerprint())
            if place not in scores:
                given: dict[str, Any] = {"features": inputs, "answers": answers, "out": place}
                trained = train(hidden, **given, method="auto", seed=seed).trained
                scores[place] = trained.evaluate(held_out, features=held_inputs).map_c
            return place

        for rule in RULES:
            answers, run = None, fitted(None)
            ready = Prepared.of_run(run, hidden, features=inputs)
            points.append(Point(rule, seed, 0, 0, scores[run], *_known(ready, training)))
            for number in range(1, rounds + 1):
                progress.note(f"{rule}, round {number} of {rounds}: {100 * points[-1].map:.1f} mAP so far")
                ready = Prepared.of_run(run, hidden, features=inputs)  # knows what the run was given
                asked = _asked(rule, run, ready.labels, inputs, budget, per_image, (seed, number))
                foretold = _foretold(asked, training, number) if rule == RULES[0] else ()
                answers = joined(answers, answered(training, asked.rows, asked.columns))
                assert answers is not None
                # Known at once, before anything is trained again: that changes all chances.
                known = Answered.among(hidden, answers).put_into(hidden)
                told = _known(dataclasses.replace(ready, labels=known), training)
                present, run = int(answers.class_counts[0].sum()), fitted(answers)
                points.append(Point(rule, seed, answers.known, present, scores[run], *told, foretold))
    return points


def parts(
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


class _Asked(NamedTuple):
    """Labels that a rule asks about, in this order; how probable they are, if the rule says so."""

    rows: Whole
    columns: Whole
    chances: npt.NDArray[np.float64] | None = None


def _asked(
    rule: str,
    run: Path,
    labels: Labels,
    inputs: npt.NDArray[np.floating],
    budget: int,
    per_image: int,
    seed: tuple[int, int],
) -> _Asked:
    if rule in ("tertium", "others"):
        others = rule == "others"
        questions = suggest(run, labels, features=inputs, budget=budget, per_image=per_image, others=others)
        columns = np.array([labels.column(name) for name in questions.labels])
        return _Asked(labels.rows_of(questions.images), columns, questions.probability)
    unknown = labels.dense() == 0
    if rule == "random":
        key = np.random.default_rng(seed).random(unknown.shape)
    else:
        key = np.abs(Trained.load(run).predict_proba(features=inputs) - 0.5)
    order = np.argsort(np.where(unknown, key, np.inf), axis=None, kind="stable")[:budget]
    rows, columns = np.unravel_index(order, unknown.shape)
    kept = unknown[rows, columns]
    return _Asked(rows[kept], columns[kept])


def _known(ready: Prepared, truth: Labels) -> tuple[int, int, float]:
    """Return how many labels are known, how many of them are right, and the mean squared error of all."""
    known, right, error, start = 0, 0, 0.0, 0
    for _, given, chances in ready.blocks():
        true = truth.dense(np.arange(start, start + len(given))) > 0
        present = np.where(given == 0, chances, given > 0)
        sure = np.abs(present - 0.5) >= 0.5 - _SURE
        known, right = known + int(sure.sum()), right + int((sure & ((present > 0.5) == true)).sum())
        error, start = error + float(((present - true) ** 2).sum()), start + len(given)
    return known, right, error / (len(truth) * len(truth.classes))


def _foretold(asked: _Asked, truth: Labels, number: int) -> tuple[Foretold, ...]:
    """Look ahead several times while the questions of a round are answered one by one."""
    if asked.chances is None:
        return ()
    present = truth.dense(asked.rows)[np.arange(len(asked.rows)), asked.columns] > 0
    found = []
    for given in (int(share * len(present)) for share in _LOOKS):
        said = forecast(asked.chances, asked.columns, present[:given])
        if said is not None:
            next_ones = slice(given, given + said.next)
            surprising = present[next_ones] != (asked.chances[next_ones] >= 0.5)
            found.append(Foretold(number, said, int(present[next_ones].sum()), int(surprising.sum())))
    return tuple(found)


def answered(truth: Labels, rows: Whole, columns: Whole) -> Labels:
    """Return true answers about these labels."""
    values = truth.dense(rows)[np.arange(len(rows)), columns]
    return Labels.from_entries(rows, columns, values, classes=truth.classes, images=truth.images)


def write_points(path: str | Path, points: Sequence[Point]) -> None:
    """Write a simulation as CSV, a line for each rule, seed and round."""
    fields = [field.name for field in dataclasses.fields(Point) if field.name != "foretold"]
    rows = ([getattr(point, name) for name in fields] for point in points)
    _write(path, fields, rows)


def forecasts_file(out: str | Path) -> Path:
    """Return where the forecasts of a simulation go, beside its figures."""
    return Path(out).with_name(f"{Path(out).stem}-forecasts.csv")


def write_forecasts(path: str | Path, points: Sequence[Point]) -> None:
    """Write what was foretold, and what came, as CSV."""
    what = [f"{name}{end}" for name in ("present", "surprising") for end in ("", "_said", "_low", "_high")]
    rows = []
    for point in points:
        for each in point.foretold:
            about: list[float] = [point.seed, each.round, each.said.answers, each.said.next]
            for came, said in (
                (each.present, each.said.next_present),
                (each.surprising, each.said.next_surprising),
            ):
                about += [came, round(said.expected, 1), said.low, said.high]
            rows.append(about)
    _write(path, ["seed", "round", "answers", "next", *what], rows)


def _write(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(header)
        lines.writerows(rows)


class Average(NamedTuple):
    """What a rule has reached after so many answers, averaged over the seeds."""

    answers: int
    present: float  # share of the answers
    map: float
    known: float
    right: float  # share of what is known
    error: float


def averaged(points: Sequence[Point], rule: str) -> list[Average]:
    """Average the points of a rule over the seeds."""
    mine = [point for point in points if point.rule == rule]
    found = []
    for answers in sorted({point.answers for point in mine}):
        here = [point for point in mine if point.answers == answers]
        present, score, known, right, error = (
            float(np.mean([getattr(point, name) for point in here]))
            for name in ("present", "map", "known", "right", "error")
        )
        right, present = right / max(known, 1), present / max(answers, 1)
        found.append(Average(answers, present, score, known, right, error))
    return found
