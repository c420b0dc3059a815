"""How good a model is on all labels of new images, although most labels of its validation images are unknown.

The mean average precision (mAP) of known labels misleads if annotators sought out what is present. Either
those few labels are easy to rank, or they rank against unknown labels that are present too. Here every
validation label counts: a known one as what it is, an unknown one by its probability of presence.

For each class, presence rises with the score along a logistic curve. A grid holds curves of many steepnesses
and class frequencies. Each is weighed by how well it explains which labels are known, by what is known of the
frequency (`tertium.annotation.frequencies`), and by how steep the curves of the other classes are. The
estimate is the average precision that the curves imply, averaged by these weights.

The interval adds up how far the curves differ, the chance by which these images and not others validate the
model, what a logistic curve gets wrong, and that annotators may have chosen what to note. Partial labels
cannot tell how much the last one matters; it is a range, measured where the truth is known (docs/auto.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.annotation.frequencies import estimate
from tertium.annotation.record import Annotation
from tertium.labels import Labels

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ENTRIES, _CLASSES = 2**22, 1024  # labels and classes looked at, at most
_BINS = 60  # of scores, finest at the top
_GROUPS = 20  # of images, each left out once
_BLOCK = 8  # classes at a time, whose curves stay in the processor's cache
_STEEPNESS = np.linspace(-1.4, 2.6, 13)  # of a curve, its logarithm, by standardised scores
_CENTRES = np.linspace(-1.0, 2.0, 13)  # of the classes' steepnesses, …
_SPREAD = 0.8  # … and their spread
_RATES = 15  # frequencies of a class
_LEAST = 0.1  # by how much the logarithm of a frequency is off, one standard deviation, at least; …
_COMMON = 0.25  # … by how much all are off together; …
_MOST = 1.0  # … and by how much that of what is hidden, at most
_SHIFTS = np.linspace(-2, 2, 7)  # standard deviations by which all are off
_TAIL = 1.645  # standard deviations on either side of a 90 % interval
# Of the logit of the mAP, one standard deviation: what a logistic curve gets wrong, …
_CURVE_ERROR = 0.2
# … and what is wrong if annotators chose what they noted; less where absent labels are noted as often.
_CHOICE_ERROR = 0.5


@dataclass(frozen=True)
class Expected:
    """An estimated mAP over all labels of new images, with its 90 % interval."""

    value: float
    low: float
    high: float
    classes: int  # it is the mean over these
    settled: bool  # whether known labels tell the value; else only the interval does


def expected_map(
    scores: npt.NDArray[Any],
    labels: Labels,
    annotation: Annotation | None = None,
    taught: Flags | None = None,
) -> Expected | None:
    """Estimate the mAP over all labels from probabilities [V, C] of images that the model did not train on.

    It is the mean over the classes that were ``taught`` [C], all by default; of very many, over some that are
    evenly spread. Without ``annotation`` these scores and labels also tell how labels were annotated. None if
    there are no such classes or images, or if nothing is known to be present.
    """
    columns = np.arange(len(labels.classes)) if taught is None else np.flatnonzero(taught)
    columns = columns[:: max(1, -(-len(columns) // _CLASSES))]
    if not len(columns):
        return None
    rows = np.arange(0, len(labels), max(1, -(-len(labels) * len(columns) // _ENTRIES)))
    names = [labels.classes[column] for column in columns]
    part = labels[rows].with_classes(names)
    if not part.class_counts[0].any():
        return None
    scores, signs = scores[np.ix_(rows, columns)], part.dense()
    found = _annotation(scores, part) if annotation is None else annotation.for_classes(names)
    parts = [
        _explain(_binned(scores[:, block], signs[:, block]), _frequencies(found, block))
        for block in np.split(np.arange(len(columns)), range(_BLOCK, len(columns), _BLOCK))
    ]
    return _summed(parts, found)


def _annotation(scores: npt.NDArray[Any], labels: Labels) -> Annotation:
    """Find out how these labels were annotated."""
    if labels.is_full:
        rate, all_ = labels.class_counts[0] / len(labels), np.ones(len(labels.classes))
        return Annotation(labels.classes, rate, rate, rate, all_, all_)
    found = estimate(scores, labels)
    return Annotation(labels.classes, found.rate, found.low, found.high, found.present, found.absent)


# ---- one class, or many side by side -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Binned:
    """Images of each class in bins by the rank of their scores, from the highest down."""

    score: Floats  # [C, K] the mean logit, standardised over the images
    spread: Floats  # [C] of the logits before that
    present: Floats  # [G, C, K] how many labels are known to be present in each group of images, …
    absent: Floats  # [G, C, K] … to be absent, …
    count: Floats  # [G, C, K] … and how many there are


def _binned(scores: npt.NDArray[Any], signs: npt.NDArray[np.int8]) -> _Binned:
    images, classes = scores.shape
    inside = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    logits = np.log(inside / (1 - inside))
    spread = logits.std(axis=0) + 1e-6
    logits = (logits - logits.mean(axis=0)) / spread
    edges = np.unique(np.round(images * np.linspace(0, 1, _BINS + 1) ** 3).astype(np.int64))[1:]
    place = np.empty(scores.shape, dtype=np.int64)
    ranked = np.searchsorted(edges, np.arange(images), side="right")[:, None]
    np.put_along_axis(place, np.argsort(-logits, axis=0, kind="stable"), ranked, axis=0)
    group = np.random.default_rng(0).permutation(images) % min(_GROUPS, images)
    shape = (int(group.max()) + 1, classes, len(edges))
    cell = ((group[:, None] * classes + np.arange(classes)) * len(edges) + place).ravel()

    def total(weight: npt.NDArray[Any]) -> Floats:
        found = np.bincount(cell, weight.ravel(), minlength=int(np.prod(shape)))
        return found.reshape(shape).astype(np.float64)

    count = total(np.ones(scores.shape))
    score = total(logits).sum(axis=0) / count.sum(axis=0)
    return _Binned(score, spread, total(signs > 0), total(signs < 0), count)


@dataclass(frozen=True)
class _Frequencies:
    """What is known of how frequent some classes [C] are, and of how many of their labels are known.

    A class is as frequent as it is known to be present, and more by what is hidden. What is hidden is unsure
    by a factor.
    """

    rate: Floats  # [C, B] frequencies that are tried
    prior: Floats  # [S, C, B] how likely each is; all classes may be off together, by S degrees
    present: Floats  # [C] the share of labels that are known to be present, …
    absent: Floats  # [C] … and to be absent


def _frequencies(annotation: Annotation, columns: Whole) -> _Frequencies:
    names = ("rate", "low", "present", "absent")
    rate, low, known, dismissed = (getattr(annotation, name)[columns] for name in names)
    rate = np.clip(rate, 1e-6, 0.98)
    present, absent = rate * np.minimum(known, 1.0), (1 - rate) * np.minimum(dismissed, 1.0)
    hidden = np.maximum(rate - present, 1e-3 * rate)
    error = np.clip(np.log(rate / np.clip(low, 1e-9, rate)) / 1.96, _LEAST, 1.0)
    error, common = (np.minimum(each * rate / hidden, _MOST)[:, None] for each in (error, _COMMON))
    shifts = common * _SHIFTS[:, None, None]  # [S, C, 1]
    off = (2 * error + shifts[-1]) * np.linspace(-1, 1, _RATES)  # [C, B] of the logarithm of what is hidden
    prior = np.exp(-0.5 * ((off - shifts) / error) ** 2)
    tried = np.clip(present[:, None] + hidden[:, None] * np.exp(off), 1e-7, (1 - absent[:, None]) * 0.99)
    return _Frequencies(tried, prior / prior.sum(axis=2, keepdims=True), present, absent)


@dataclass(frozen=True)
class _Explained:
    """What the grid of curves makes of some classes [C]; A steepnesses, B frequencies."""

    frequencies: _Frequencies
    fit: Floats  # [C, A, B] log-likelihood of the labels
    ap: Floats  # [C, A, B] average precision
    steepness: Floats  # [C] as the model has it, its logarithm
    without: Floats  # [G, C] AP by the best curve, each group of images left out once


def _explain(bins: _Binned, frequencies: _Frequencies) -> _Explained:
    present, absent, count = (part.sum(axis=0) for part in (bins.present, bins.absent, bins.count))
    rate = frequencies.rate[:, None, :, None]  # [C, 1, B, 1]
    p = _curves(bins.score, count / count.sum(axis=1, keepdims=True), rate[..., 0])  # [C, A, B, K]
    # Whatever the frequency, as many labels are known as are known.
    known = np.minimum(frequencies.present[:, None, None, None] / rate, 1 - 1e-6)
    dismissed = np.minimum(frequencies.absent[:, None, None, None] / (1 - rate), 1 - 1e-6)
    missed, other = p * (1 - known), (1 - p) * (1 - dismissed)
    chance = missed / (missed + other)
    labels = [part[:, None, None, :] for part in (present, absent, count)]
    fit = labels[0] * np.log(known * p) + labels[1] * np.log(np.maximum(dismissed * (1 - p), 1e-12))
    fit = (fit + (labels[2] - labels[0] - labels[1]) * np.log(missed + other)).sum(axis=-1)
    middle = np.log(frequencies.prior[len(_SHIFTS) // 2])[:, None, :]
    best = (fit + middle).reshape(len(fit), -1).argmax(axis=1)[:, None, None]
    chosen = (
        np.take_along_axis(part.reshape(len(fit), -1, part.shape[-1]), best, 1)[:, 0] for part in (p, chance)
    )
    left = [part.sum(axis=0) - part for part in (bins.present, bins.absent, bins.count)]
    ap = _average_precision(labels[0], labels[1], labels[2], p, chance)
    without = _average_precision(left[0], left[1], left[2], *chosen)
    return _Explained(frequencies, fit, ap, np.log(bins.spread), without)


def _curves(score: Floats, weight: Floats, frequency: Floats) -> Floats:
    """Return the chances of presence [C, A, B, K] along curves of each steepness and frequency [C, 1, B].

    Where each curve must lie to have its frequency is found by Newton's method, by halving where that fails.
    """
    rising = (np.exp(_STEEPNESS)[:, None] * score[:, None, :])[:, :, None, :]
    height = np.log(frequency / (1 - frequency)) + np.zeros((1, len(_STEEPNESS), 1))
    weight = weight[:, None, None, :]
    low, high = np.full_like(height, -100.0), np.full_like(height, 100.0)
    for _ in range(30):
        p = _sigmoid(rising + height[..., None])
        mean, slope = (p * weight).sum(axis=-1), (p * (1 - p) * weight).sum(axis=-1)
        low, high = np.where(mean < frequency, height, low), np.where(mean < frequency, high, height)
        step = height + (frequency - mean) / np.maximum(slope, 1e-12)
        step = np.where((low < step) & (step < high), step, (low + high) / 2)
        done = np.abs(step - height).max() < 1e-3
        height = step
        if done:
            break
    return np.clip(_sigmoid(rising + height[..., None]), 1e-7, 1 - 1e-7)


def _average_precision(present: Floats, absent: Floats, count: Floats, p: Floats, chance: Floats) -> Floats:
    """Return the AP of very many images from labels in bins [..., K], of which unknown ones have a chance.

    Precision at a label is the share of present ones among those that score as high. The label itself counts
    as likely as another of its score: counted as what it is, it would make the AP of few images too high.
    """
    guessed = (count - present - absent) * chance
    likely = present + guessed
    before, above = np.cumsum(likely, axis=-1) - likely, np.cumsum(count, axis=-1) - count
    there = (before + likely / 2) / np.maximum(above + count / 2, 1e-9)
    known = (before + np.maximum(likely - 1, 0) / 2 + p) / (above + np.maximum(count - 1, 0) / 2 + 1)
    found = (present * known + guessed * there).sum(axis=-1)
    return np.asarray(found / np.maximum(likely.sum(axis=-1), 1e-9))


def _sigmoid(value: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -40, 40))))


# ---- all classes together ----------------------------------------------------------------------------------


def _summed(parts: list[_Explained], annotation: Annotation) -> Expected:
    """Average over the grid, over where the steepnesses centre and over errors common to all frequencies."""
    fit, ap, steepness = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("fit", "ap", "steepness")
    )
    priors = np.concatenate([part.frequencies.prior for part in parts], axis=1)[:, :, None, :]
    likelihood = np.exp(fit - fit.max(axis=(1, 2), keepdims=True))
    evidence, mean, variance = [], [], []
    for shift, prior in zip(_SHIFTS, priors, strict=True):
        moments = [(likelihood * ap**power * prior).sum(axis=2) for power in (0, 1, 2)]  # [C, A] each
        for centre in _CENTRES:
            # Half of what sets the model's own curves apart is believed.
            usual = np.exp(-0.5 * ((_STEEPNESS - centre - steepness[:, None] / 2) / _SPREAD) ** 2)
            usual /= usual.sum(axis=1, keepdims=True)
            weight, first, second = ((usual * moment).sum(axis=1) for moment in moments)
            weight = np.maximum(weight, 1e-300)
            evidence.append(np.log(weight).sum() - 0.5 * shift**2)
            mean.append((first / weight).mean())
            variance.append((second / weight - (first / weight) ** 2).sum() / len(weight) ** 2)
    chance = np.exp(np.array(evidence) - max(evidence))
    chance /= chance.sum()
    value = float(chance @ mean)
    spread = float(chance @ (np.array(variance) + np.array(mean) ** 2)) - value**2
    without = np.concatenate([part.without for part in parts], axis=1).mean(axis=1)
    spread += float(((without - without.mean()) ** 2).sum() * (len(without) - 1) / len(without))
    low, high = _interval(value, max(spread, 0.0), annotation.sought)
    return Expected(value, low, high, len(fit), annotation.settled)


def _interval(value: float, variance: float, sought: float) -> tuple[float, float]:
    """Return the interval, normal on the scale of logits: an mAP does not pass 0 or 1."""
    value = min(max(value, 1e-6), 1 - 1e-6)
    deviation = np.sqrt(variance / (value * (1 - value)) ** 2 + _CURVE_ERROR**2 + _CHOICE_ERROR**2 * sought)
    middle = np.log(value / (1 - value))
    low, high = _sigmoid(middle + _TAIL * deviation * np.array([-1.0, 1.0]))
    return float(low), float(high)
