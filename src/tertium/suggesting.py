"""What to ask a person next: which unknown labels would tell the most.

An answer about a label moves its class by y − p, of which q(1 − q) cannot be foreseen: q is the chance that
the unknown label is present. What a class already knows is the same sum over its images: p(1 − p) of every
label less q(1 − q) of every unknown one. The score of a question is by how much the logarithm of that sum
grows, so that a class of which little is known comes first, and each further question about it counts less.
"""

from __future__ import annotations

import csv
import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tertium.annotation import Annotation
from tertium.calibration import Block, Floats, Signs
from tertium.completion import Prepared
from tertium.errors import InputError
from tertium.files import replacing
from tertium.inputs import load_features
from tertium.labels import Labels
from tertium.predict import Features, Images, Trained
from tertium.progress import Progress
from tertium.schemes import Scheme
from tertium.splits import divide
from tertium.svg import COLOURS, add_legend, drawing, inline, panel
from tertium.training import TRAIN, train

Whole = npt.NDArray[np.int64]
_LITTLE = 1.0  # that a class of which nothing is known counts as known: what four close calls tell
_WIDEST = 100.0  # factor between the ends of a frequency's interval, beyond which it counts no more
_AGAIN = 0.5  # cost of another question about the same image: it is already looked at
_FEWEST, _EVEN = 50, 10  # questions that a class may get: so many, or so many times its even share
_HELD_OUT, _TEST = 0.25, "test"  # share of the images that judge a simulation; or this split
RULES = ("tertium", "uncertainty", "random")


@dataclass(frozen=True)
class Questions:
    """What to ask, the most telling first; all [Q]."""

    images: list[str]
    labels: list[str]
    probability: Floats  # that the label is present
    score: Floats
    why: list[str]

    def write(self, path: str | Path) -> None:
        """Write a CSV file image,label,probability,score,why."""
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
            lines = csv.writer(sink)
            lines.writerow(["image", "label", "probability", "score", "why"])
            for image, label, chance, score, why in zip(
                self.images, self.labels, self.probability, self.score, self.why, strict=True
            ):
                lines.writerow([image, label, f"{chance:.4f}", f"{score:.6g}", why])


@dataclass(frozen=True)
class Candidates:
    """Unknown labels that may be asked about; each [K]."""

    rows: Whole
    columns: Whole
    chances: Floats

    @property
    def worth(self) -> Floats:
        """What cannot be foreseen of an answer: q(1 − q)."""
        return self.chances * (1 - self.chances)

    def take(self, places: Whole) -> Candidates:
        """Return these only."""
        return Candidates(self.rows[places], self.columns[places], self.chances[places])


class Pool:
    """Keeps the closest calls of each class while images go by, and sums up what is known of the class."""

    def __init__(self, classes: int, size: int) -> None:
        self._size = size
        self._worth: Floats = np.empty((0, classes))
        self._rows: Whole = np.empty((0, classes), dtype=np.int64)
        self._chances: Floats = np.empty((0, classes))
        self._known = np.zeros(classes)
        self._start = 0

    def add(self, probabilities: Floats, labels: Signs, chances: Block) -> None:
        """Take the next images: calibrated probabilities, labels, chances if unknown; each [B, C]."""
        q = chances.astype(np.float64)
        missing = np.where(labels == 0, q * (1 - q), 0.0)
        self._known += (probabilities * (1 - probabilities) - missing).sum(axis=0)
        rows = np.broadcast_to(np.arange(self._start, self._start + len(q))[:, None], q.shape)
        self._start += len(q)
        self._worth = np.concatenate([self._worth, np.where(labels == 0, missing, -1.0)])
        self._rows = np.concatenate([self._rows, rows])
        self._chances = np.concatenate([self._chances, q])
        if len(self._worth) > self._size:
            best = np.argpartition(-self._worth, self._size - 1, axis=0)[: self._size]
            self._worth = np.take_along_axis(self._worth, best, 0)
            self._rows = np.take_along_axis(self._rows, best, 0)
            self._chances = np.take_along_axis(self._chances, best, 0)

    def told(self) -> Floats:
        """Return what is known of each class [C]; a sum of differences, it may fall short of nothing."""
        return np.maximum(self._known, 0)

    def candidates(self) -> Candidates:
        """Return the unknown labels that were kept, by class and image."""
        place, column = np.nonzero(self._worth >= 0)
        rows = self._rows[place, column]
        order = np.lexsort((rows, column))  # not as partitioning left them: that depends on the batches
        return Candidates(rows, column, self._chances[place, column]).take(order)


def gains(columns: Whole, worth: Floats, known: Floats) -> Floats:
    """Return by how much each question [K] adds to the logarithm of what is known of its class.

    In a class the most telling question comes first; each further one adds to more.

    >>> gains(np.array([0, 0, 1]), np.array([0.25, 0.25, 0.25]), np.array([1.0, 4.0])).round(3)
    array([0.223, 0.182, 0.061])
    """
    order = np.lexsort((-worth, columns))
    told = np.cumsum(worth[order])
    first = np.searchsorted(columns[order], columns[order])  # where the class begins
    before = told - worth[order] - (told - worth[order])[first]
    found = np.empty(len(worth))
    found[order] = np.log1p(worth[order] / (known[columns[order]] + before))
    return found


def choose(
    candidates: Candidates, known: Floats, weight: Floats, budget: int, per_image: int = 1
) -> tuple[Whole, Floats]:
    """Return which candidates to ask about, the most telling first, and their scores.

    At most ``per_image`` questions concern one image; with several, those about one image stand together,
    and every one but the first costs half.
    """
    scores = gains(candidates.columns, candidates.worth, known) * weight[candidates.columns]
    kept = np.flatnonzero(_rank(candidates.rows, scores) < per_image)
    # The others no longer stand in the way of those that come later in their class.
    left = candidates.take(kept)
    scores = gains(left.columns, left.worth, known) * weight[left.columns]
    if per_image == 1:
        best = np.argsort(-scores, kind="stable")[:budget]
    else:
        best = _together(left.rows, scores, per_image)[:budget]
    return kept[best], scores[best]


def _rank(groups: Whole, scores: Floats) -> Whole:
    """Return the place of each score among those of its group, the highest being 0."""
    order = np.lexsort((-scores, groups))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
    return rank


def _together(rows: Whole, scores: Floats, per_image: int) -> Whole:
    """Order questions by image: for each as many as give the most for their cost, the best image first."""
    images, image = np.unique(rows, return_inverse=True)
    rank = _rank(rows, scores)
    table = np.zeros((len(images), per_image))
    table[image, rank] = scores
    cost = 1 + _AGAIN * np.arange(per_image)
    ratio = np.cumsum(table, axis=1) / cost
    count, value = ratio.argmax(axis=1), ratio.max(axis=1)  # the last place that is asked, what it gives
    asked = np.flatnonzero(rank <= count[image])
    return asked[np.lexsort((rank[asked], image[asked], -value[image[asked]]))]


def class_weights(annotation: Annotation | None, classes: int) -> Floats:
    """Return how much questions of each class count: twice where its frequency may be ten times another.

    That is 1 + log₁₀ of the factor between the ends of the interval, up to a hundred.
    """
    if annotation is None:
        return np.ones(classes)
    factor = annotation.high / np.maximum(annotation.low, annotation.high / _WIDEST + 1e-12)
    return np.asarray(1 + np.log10(np.clip(factor, 1, _WIDEST)))


def suggest(
    run: str | Path,
    labels: Labels,
    images: Images | None = None,
    *,
    features: Features | None = None,
    budget: int,
    per_image: int = 1,
    progress: Progress | None = None,
) -> tuple[Questions, tuple[str, ...]]:
    """Return the questions worth asking next about unknown labels, and what a person should know."""
    for name, value in (("budget", budget), ("number of questions per image", per_image)):
        if value < 1:
            raise InputError(f"the {name} must be at least 1, not {value}")
    ready = Prepared.of_run(run, labels, images, features=features, progress=progress)
    classes = len(ready.trained.classes)
    pool = Pool(classes, min(budget, max(_FEWEST, -(-_EVEN * budget // classes))))
    for block in ready.blocks(progress):
        pool.add(*block)
    candidates, known = pool.candidates(), pool.told() + _LITTLE
    best, scores = choose(candidates, known, class_weights(ready.annotation, classes), budget, per_image)
    chosen = candidates.take(best)
    questions = Questions(
        ready.labels.images.take(chosen.rows).to_pylist(),
        [ready.trained.classes[column] for column in chosen.columns],
        chosen.chances,
        scores,
        _reasons(chosen, known, ready),
    )
    return questions, ready.notes


def _reasons(chosen: Candidates, known: Floats, ready: Prepared) -> list[str]:
    """Say for each question what speaks for it."""
    present, absent = ready.labels.class_counts
    little = known <= np.median(known)
    found, seen = [], set()
    for row, column, chance in zip(chosen.rows, chosen.columns, chosen.chances, strict=True):
        parts = ["a close call" if 0.25 <= chance <= 0.75 else "among the closest calls of its class"]
        if little[column]:
            parts.append(
                f"little is known of the class ({present[column]:,} present, {absent[column]:,} absent)"
            )
        if ready.annotation is not None:
            low, high = ready.annotation.low[column], ready.annotation.high[column]
            if high > 3 * low:
                parts.append(f"its frequency is unsure ({low:.1%} to {high:.1%})")
        if row in seen:
            parts.append("asked with others of this image")
        seen.add(row)
        found.append("; ".join(parts))
    return found


# ---- simulation --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """How good a model is after so many answers."""

    rule: str
    seed: int
    answers: int
    present: int  # of them
    map: float  # on images that were never asked about, with full labels


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
    names = full.split_names()
    rows = full.rows_in(TRAIN) if TRAIN in names else np.arange(len(full))
    if sample is not None:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:sample])
    plain = dataclasses.replace(full, splits=None)
    if _TEST in names and TRAIN in names:
        others = full.rows_in(_TEST)
    else:
        kept, apart = divide(plain[rows], _HELD_OUT, seed)
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
        questions, _ = suggest(run, labels, features=inputs, budget=budget, per_image=per_image)
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


def write_points(path: str | Path, points: Sequence[Point]) -> Path:
    """Write a simulation as CSV, and a figure of it as SVG beside it; return where that is."""
    path = Path(path)
    figure = path.with_suffix(".svg")
    fields = [field.name for field in dataclasses.fields(Point)]
    with (
        replacing(path) as temporary,
        replacing(figure) as drawn,
        open(temporary, "w", newline="", encoding="utf-8") as sink,
    ):
        lines = csv.writer(sink)
        lines.writerow(fields)
        lines.writerows([getattr(point, name) for name in fields] for point in points)
        drawn.write_text(_drawn(points), encoding="utf-8")
    return figure


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


def _drawn(points: Sequence[Point]) -> str:
    with drawing():
        figure, axes = panel("What answers are worth", "answers", "mAP on other images")
        for rule, colour in zip(RULES, COLOURS, strict=False):
            answers, _, scores = zip(*averaged(points, rule), strict=True)
            axes.plot(answers, [100 * score for score in scores], color=colour, marker="o", label=rule)
        add_legend(figure, axes)
        return str(inline(figure, "asking"))
