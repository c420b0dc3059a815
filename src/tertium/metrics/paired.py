"""Two models on the same labels: how much better one is, and how sure that is.

The interval is the jackknife's: each image is left out in turn, and the spread of the differences that remain
tells how much another draw of images would change them. Both models see the same images, so what is hard for
both cancels. Leaving out is exact and needs no loop over images: for each class, two sorts and a few sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.metrics.ranking import Counts, Flags, Floats

LEVEL = 0.90  # of the intervals
_NORMAL = 1.6448536269514722  # two-sided 90 % point


class Difference(NamedTuple):
    """A figure of both models, and an interval of their difference."""

    old: float
    new: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """By how much the new model is better."""
        return self.new - self.old

    @property
    def told(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


class ClassDifference(NamedTuple):
    """The average precision of both models in a class, with the images known present and absent."""

    name: str
    ap: Difference
    positives: int
    negatives: int


@dataclass(frozen=True)
class Paired:
    """What `compare_paired` found, over classes that are known present and absent in the images."""

    images: int  # with a known label
    map_c: Difference  # mean AP of the classes
    mF1: Difference  # mean F1 of the classes, each model at its own thresholds
    classes: tuple[ClassDifference, ...]  # the scored ones, the largest change first

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "images": self.images,
            "level": LEVEL,
            "map_c": _plain(self.map_c),
            "mF1": _plain(self.mF1),
            "classes": [
                {
                    "class": each.name,
                    **_plain(each.ap),
                    "positives": each.positives,
                    "negatives": each.negatives,
                }
                for each in self.classes
            ],
        }


def compare_paired(
    scores: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    rows: Counts,
    columns: Counts,
    present: Flags,
    classes: Sequence[str],
    thresholds: tuple[Floats, Floats],
) -> Paired:
    """Compare the scores [E] that an old and a new model give to known labels, one entry for each label.

    ``rows`` and ``columns`` [E] say which image and class an entry belongs to, ``thresholds`` [C] from which
    score on either model calls a class present.

    >>> rng = np.random.default_rng(0)
    >>> present = rng.random(400) < 0.3
    >>> old, new = rng.normal(size=400) + present, rng.normal(size=400) + 3 * present
    >>> nothing, cut = np.zeros(400, dtype=np.int64), np.array([1.0])
    >>> found = compare_paired((old, new), np.arange(400), nothing, present, ["cat"], (cut, cut))
    >>> found.map_c.told, found.map_c.gain > 0.3
    (True, True)
    """
    order = np.argsort(columns, kind="stable")
    ends = np.cumsum(np.bincount(columns, minlength=len(classes)))
    images, numbers = np.unique(rows, return_inverse=True)
    # For both figures [2]: the sums over classes of either model, and what leaving out an image does to them.
    sums, shifts = np.zeros((2, 2)), np.zeros((2, len(images)))
    found = []
    for column, (start, end) in enumerate(zip(np.append(0, ends[:-1]), ends, strict=True)):
        entries = order[start:end]
        shown = present[entries]
        if not shown.any() or shown.all():
            continue
        old, new = (score[entries] for score in scores)
        precisions = _precision(old, shown), _precision(new, shown)
        f1 = (_f1(old >= thresholds[0][column], shown), _f1(new >= thresholds[1][column], shown))
        for figure, (before, after) in enumerate((precisions, f1)):
            sums[figure] += before[0], after[0]
            shifts[figure] += np.bincount(numbers[entries], _shift(before, after), minlength=len(images))
        counts = int(shown.sum()), int((~shown).sum())
        ap = _difference(precisions[0][0], precisions[1][0], _shift(*precisions))
        found.append(ClassDifference(classes[column], ap, *counts))
    ranked = sorted(found, key=lambda each: -abs(each.ap.gain))
    if not ranked:
        nothing = Difference(np.nan, np.nan, np.nan, np.nan)
        return Paired(len(images), nothing, nothing, ())
    map_c, mean_f1 = (
        _difference(float(before), float(after), shift)
        for (before, after), shift in zip(sums / len(found), shifts / len(found), strict=True)
    )
    return Paired(len(images), map_c, mean_f1, tuple(ranked))


def contributions(scores: npt.NDArray[Any], labels: npt.NDArray[np.int8]) -> Floats:
    """Return what each image [N] contributes to the mean AP over known labels, both [N, C].

    These are the jackknife's pseudo-values. Their mean is nearly the mean AP, and how far those of two models
    differ from image to image tells how sure it is that one is better.

    >>> labels = np.array([[1], [-1], [1], [-1]], dtype=np.int8)
    >>> contributions(np.array([[0.9], [0.8], [0.7], [0.1]]), labels).round(2)
    array([1.83, 0.33, 0.33, 0.83])
    """
    images, columns = len(labels), 0
    total, shifts = 0.0, np.zeros(images)
    for score, label in zip(scores.T, labels.T, strict=True):
        known = np.flatnonzero(label)
        present = label[known] > 0
        if not present.any() or present.all():
            continue
        ap, without = _precision(score[known], present)
        shifts[known] += without - ap
        total, columns = total + ap, columns + 1
    return (total - (images - 1) * shifts) / max(columns, 1)


def _shift(old: tuple[float, Floats], new: tuple[float, Floats]) -> Floats:
    """Return by how much leaving out each entry changes the difference of a figure."""
    return (new[1] - old[1]) - (new[0] - old[0])


def _precision(score: npt.NDArray[Any], present: Flags) -> tuple[float, Floats]:
    """Return the average precision of a class, and what it is without each entry [n].

    A precision counts what is ranked at or above a present entry, so leaving out an entry changes those at or
    below it. The only present entry cannot be left out: what it would change is extrapolated.
    """
    order = np.argsort(-score, kind="stable")
    ranked, shown = score[order], present[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # of equal scores, which are called together
    tie = np.cumsum(last) - last
    ends = np.flatnonzero(last)
    hits = np.cumsum(shown)[ends][tie].astype(np.float64)
    count = (ends + 1)[tie].astype(np.float64)
    total = float(shown.sum())
    first = np.append(0, ends[:-1] + 1)[tie]

    def above(values: Floats) -> Floats:
        return np.asarray(np.append(0, np.cumsum(values * shown))[first])

    def from_here(values: Floats) -> Floats:
        sums = np.append(0, np.cumsum(values * shown))
        return np.asarray(sums[-1] - sums[first])

    precision, fewer = hits / count, np.maximum(count - 1, 1)
    ap = float((precision * shown).sum() / total)
    rest = above(precision) + from_here(hits / fewer)
    rest -= shown * (from_here(1 / fewer) + (hits - 1) / fewer)
    without = rest / np.maximum(total - shown, 1)
    if total == 1:
        pull = precision + from_here(1 / count) - from_here(hits / count**2) - ap
        without = np.where(shown, ap - pull, without)
    found = np.empty(len(order))
    found[order] = without
    return ap, found


def _f1(called: Flags, present: Flags) -> tuple[float, Floats]:
    """Return F1 of a class, and what it is without each entry [n]."""
    hits, sizes = called & present, called.astype(np.int64) + present
    whole = 2 * hits.sum() / max(sizes.sum(), 1)
    return float(whole), 2 * (hits.sum() - hits) / np.maximum(sizes.sum() - sizes, 1)


def _difference(old: float, new: float, shifts: Floats) -> Difference:
    """Return a difference with its interval, from what leaving out each image does to it."""
    count = len(shifts)
    spread = np.sqrt((count - 1) / max(count, 1) * ((shifts - shifts.mean()) ** 2).sum())
    half, gain = _NORMAL * float(spread), float(new - old)
    return Difference(float(old), float(new), max(gain - half, -1.0), min(gain + half, 1.0))


def _plain(figure: Difference) -> dict[str, float | None]:
    values = {**figure._asdict(), "difference": figure.gain}
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}
