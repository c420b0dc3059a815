"""What to ask a person next: which unknown labels are the most informative.

If an unknown label is present with probability q, the answer has variance q(1 − q): that much cannot be
predicted. What is known about a class is measured in the same unit: p(1 − p) summed over all its labels,
minus q(1 − q) summed over the unknown ones. The score of a question is the increase in the logarithm of that
sum, so that classes about which little is known come first, and each further question about a class counts
less.

Where labels go together, an answer also tells about the other labels of its image. If asked for, what it
takes away of their variance, on average, counts in the same way (`tertium.labelling.telling`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.annotation.calibration import Block, Floats, Signs
from tertium.annotation.record import Annotation
from tertium.data.inputs import Features, Images
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labelling.collective import Relation
from tertium.labelling.prepared import Prepared
from tertium.labelling.telling import NAMED, Picked, doubts, pick
from tertium.labels import Labels
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.prediction.files import check_table
from tertium.progress import Progress

Whole = npt.NDArray[np.int64]
_LITTLE = 1.0  # what every class starts with: a prior worth four answers at p = ½
_WIDEST = 100.0  # factor between the ends of a frequency's interval, beyond which it counts no more
_AGAIN = 0.5  # cost of another question about the same image: it is already looked at
_TOLD = 0.1  # of a score, that is for other labels of the image: then they are named
_FEWEST, _EVEN = 50, 10  # questions that a class may get: so many, or so many times its even share


@dataclass(frozen=True)
class Questions:
    """What to ask, the most telling first; all [Q]."""

    images: list[str]
    labels: list[str]
    probability: Floats  # that the label is present
    score: Floats
    why: list[str]
    notes: tuple[str, ...] = ()  # what a person should know
    relations: Mapping[str, Relation] = field(default_factory=dict)  # of images with several questions

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
        """The variance of the answer: q(1 − q)."""
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
        """Return what is known about each class [C]; as a sum of differences it could be below 0, so it is
        cut."""
        return np.maximum(self._known, 0)

    def candidates(self) -> Candidates:
        """Return the unknown labels that were kept, by class and image."""
        place, column = np.nonzero(self._worth >= 0)
        rows = self._rows[place, column]
        order = np.lexsort((rows, column))  # not as partitioning left them: that depends on the batches
        return Candidates(rows, column, self._chances[place, column]).take(order)


def gains(columns: Whole, worth: Floats, known: Floats) -> Floats:
    """Return how much each question [K] adds to the logarithm of what is known about its class.

    In a class the most informative question comes first; each further one adds to a larger sum.

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


class Chosen(NamedTuple):
    """Which candidates to ask about, the most telling first; all [Q]."""

    places: Whole
    scores: Floats
    others: Floats  # the part of the scores that is for other labels of the image, …
    named: Whole  # [Q, 2] … and which of them it is for most; −1 for none


Telling = Callable[[Candidates, Floats, int], Picked]  # by values of their own, so many of each image


def choose(
    candidates: Candidates,
    known: Floats,
    weight: Floats,
    budget: int,
    per_image: int = 1,
    telling: Telling | None = None,
) -> Chosen:
    """Choose the candidates to ask about.

    At most ``per_image`` questions concern one image; with several, those about one image stand together,
    and every one but the first costs half. ``telling`` says which tell the most about their images, if
    answers tell anything about other labels.
    """
    scores = gains(candidates.columns, candidates.worth, known) * weight[candidates.columns]
    kept = (telling or _separate)(candidates, scores, per_image)
    # The others no longer stand in the way of those that come later in their class.
    left = candidates.take(kept.places)
    scores = gains(left.columns, kept.worth, known) * weight[left.columns] + kept.others
    if per_image == 1:
        best = np.argsort(-scores, kind="stable")[:budget]
    else:
        best = _together(left.rows, scores, per_image)[:budget]
    return Chosen(kept.places[best], scores[best], kept.others[best], kept.named[best])


def _separate(candidates: Candidates, scores: Floats, per_image: int) -> Picked:
    """Pick the questions with the highest scores of each image: an answer tells about its own label only."""
    kept = np.flatnonzero(_rank(candidates.rows, scores) < per_image)
    return Picked(kept, candidates.worth[kept], np.zeros(len(kept)), np.full((len(kept), NAMED), -1))


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
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    answers: Source | None = None,
    settled: Collection[tuple[str, str]] = (),
    budget: int = 500,
    per_image: int = 1,
    others: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Questions:
    """Return the questions worth asking next about unknown labels; write them to ``out``, .csv, if given.

    ``answers`` are labels that people were asked about before; they are not asked again, and calibrate the
    others (see `complete`). Nor is what is ``settled``, pairs of image and label, whatever it may be.
    With ``others`` a question also counts for what the answer tells about the image's other labels.
    """
    for name, value in (("budget", budget), ("number of questions per image", per_image)):
        if value < 1:
            raise InputError(f"the {name} must be at least 1, not {value}")
    if out is not None:
        check_table(out, "questions")
        keep_inputs([out], [features, place_of(labels), place_of(answers)])
    given = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
    said = None if answers is None else open_labels(answers, progress=progress)
    ready = Prepared.of_run(run, given, images, features=features, answers=said, progress=progress)
    classes = len(ready.trained.classes)
    size = min(budget, max(_FEWEST, -(-_EVEN * budget // classes)))
    pool = Pool(classes, size + len(settled))
    for block in ready.blocks(progress):
        pool.add(*block)
    candidates, known = _open(pool.candidates(), ready.labels, settled), pool.told() + _LITTLE
    weight = class_weights(ready.annotation, classes)
    telling = _telling(ready, weight / known, progress) if others and ready.related is not None else None
    best = choose(candidates, known, weight, budget, per_image, telling)
    chosen = candidates.take(best.places)
    questions = Questions(
        ready.labels.images.take(chosen.rows).to_pylist(),
        [ready.trained.classes[column] for column in chosen.columns],
        chosen.chances,
        best.scores,
        _reasons(chosen, best, known, ready),
        ready.notes,
        _weighed(ready.relations(chosen.rows, chosen.columns), ready, weight / known),
    )
    if out is not None:
        questions.write(out)
    return questions


def _weighed(found: Mapping[str, Relation], ready: Prepared, importance: Floats) -> dict[str, Relation]:
    """Return relations in which classes count as they do for the order of the questions."""
    place = {name: number for number, name in enumerate(ready.trained.classes)}
    return {
        image: replace(each, importance=importance[[place[label] for label in each.labels]])
        for image, each in found.items()
    }


def _telling(ready: Prepared, importance: Floats, progress: Progress | None) -> Telling:
    """Return what says which questions tell the most about their images: these are looked at once more."""

    def telling(candidates: Candidates, scores: Floats, per_image: int) -> Picked:
        if not len(candidates.rows):
            return _separate(candidates, scores, per_image)
        blocks = doubts(ready, np.unique(candidates.rows), progress)
        return pick(blocks, candidates.rows, candidates.columns, scores, importance, per_image)

    return telling


def _open(candidates: Candidates, labels: Labels, settled: Collection[tuple[str, str]]) -> Candidates:
    """Return the candidates that are not settled."""
    column = {name: number for number, name in enumerate(labels.classes)}
    cells = [cell for cell in settled if cell[1] in column]
    rows = pc.fill_null(pc.index_in(pa.array([image for image, _ in cells], pa.string()), labels.images), -1)
    columns = np.array([column[label] for _, label in cells], dtype=np.int64)
    closed = np.asarray(rows, dtype=np.int64) * len(column) + columns
    return candidates.take(
        np.flatnonzero(~np.isin(candidates.rows * len(column) + candidates.columns, closed))
    )


def _reasons(chosen: Candidates, best: Chosen, known: Floats, ready: Prepared) -> list[str]:
    """Say for each question what speaks for it."""
    present, absent = ready.labels.class_counts
    little = known <= np.median(known)
    found, seen = [], set()
    for place, (row, column, chance) in enumerate(
        zip(chosen.rows, chosen.columns, chosen.chances, strict=True)
    ):
        parts = ["a close call" if 0.25 <= chance <= 0.75 else "among the closest calls of its class"]
        if little[column]:
            parts.append(
                f"little is known of the class ({present[column]:,} present, {absent[column]:,} absent)"
            )
        if ready.annotation is not None:
            low, high = ready.annotation.low[column], ready.annotation.high[column]
            if high > 3 * low:
                parts.append(f"its frequency is unsure ({low:.1%} to {high:.1%})")
        named = [ready.trained.classes[other] for other in best.named[place] if other >= 0]
        if named and best.others[place] > _TOLD * best.scores[place]:
            parts.append(f"also tells about {' and '.join(named)}")
        if row in seen:
            parts.append("asked with others of this image")
        seen.add(row)
        found.append("; ".join(parts))
    return found
