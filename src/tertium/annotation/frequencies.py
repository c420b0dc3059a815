"""How frequent each class really is, and how likely a label was to be annotated.

Known labels alone cannot tell: a class with few known positives may be rare, or rarely annotated. The scores
of a model that has not seen the images can: among the highest scores the share of known positives levels off
at the probability e⁺ that a present label was annotated, since there almost every image shows the class.

For each class the labels are explained by four numbers: presence rises with the score along a logistic curve
of some height and steepness; a present label is known with probability e⁺, an absent one with e⁻. How well
each e⁺ explains the labels of a class is a curve; it is flat if the scores say little. Classes then share
information: their log e⁺ are assumed to come from one normal distribution, whose centre and spread are
estimated too. So a class with little evidence of its own is assumed to be annotated like the others. A class
with strong evidence may differ: if all positives of most classes are known, but few of the most frequent, the
latter would else be taken for rare. One more explanation is weighed: that labels were dropped at random,
present and absent ones alike. Then known labels are a random sample, from which the presence at each score is
read and averaged over the scores of all images.

Annotators who choose note what shows plainly more often than the rest: e⁺ rises with the score. Several
degrees of choice are weighed by how well they explain all classes, and averaged over. Labels tell only a part
of it, so unless they were dropped at random the intervals reach higher than this model alone says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.labels import Labels

Floats = npt.NDArray[np.float64]

_IMAGES = 50_000  # looked at, at most
_BINS = 60  # of scores, finest at the top
_GRID = np.linspace(np.log(1e-3), -0.005, 70)  # of log e⁺
_SPREADS = np.geomspace(0.03, 2.0, 15)  # between classes, of log e⁺
# Share of classes that may have been annotated unlike the others, however that was; only where absences are
# known too: with positives alone, what sets a class apart may be no more than its curve not being logistic.
_APART = 0.05
_STEPS = 80  # of EM, …
_MORE = 20  # … and from where another explanation has led
# How much likelier annotators are to note what shows plainly: the log-odds of e⁺ by standardised scores.
_CHOICES = np.array([0.0, 0.25, 0.5, 1.0, 1.5])
# Of log e⁺, one standard deviation: the curve is not quite logistic, for each class its own way …
_CURVE_ERROR = 0.2
_COMMON_ERROR = 0.15  # … and for all alike
# By how much the logarithm of a frequency may be higher if annotators chose what shows plainly: the share of
# known positives among the highest scores is then that of plain ones.
CHOICE = 1.0
_BLOCK = 256  # classes whose scores are sorted at once …
_FITTED = 16  # … and that are fitted
_FLOOR = 1e-6


@dataclass(frozen=True)
class Frequencies:
    """The share of images that show each class, with 95 % intervals, and how its labels were annotated."""

    rate: Floats  # [C]
    low: Floats  # [C]
    high: Floats  # [C]
    present: Floats  # [C] e⁺: the probability that a present label is known
    absent: Floats  # [C] e⁻: the probability that an absent label is known
    spread: float  # between classes, of log e⁺
    # 95 % interval of the number of labels in an image; None where classes may all err alike, and it lies
    # between the sums of ``low`` and ``high``.
    per_image: tuple[float, float] | None = None

    @property
    def labels_per_image(self) -> float:
        """The expected number of present labels in an image."""
        return float(self.rate.sum())


def estimate(
    scores: npt.NDArray[Any], labels: Labels, *, labels_per_image: float | None = None, seed: int = 0
) -> Frequencies:
    """Estimate class frequencies from scores [N, C] of models that did not train on the image they score.

    The scores are probabilities, but need not be calibrated. ``labels_per_image``, where it is known, fixes
    the sum of the frequencies.
    """
    chosen = np.sort(np.random.default_rng(seed).permutation(len(labels))[:_IMAGES])
    blocks = [
        _binned(scores[chosen, start : start + _BLOCK], labels, chosen, start)
        for start in range(0, len(labels.classes), _BLOCK)
    ]
    curves = np.concatenate([_explained(part) for bins in blocks for part in bins.parts()], axis=1)
    present, absent = (count.astype(np.float64) for count in labels.class_counts)
    hidden = len(labels) - present - absent
    curves[:, present == 0] = 0.0  # says nothing about itself
    mean, deviation, spread = np.zeros(len(present)), np.zeros(len(present)), 0.0
    at_random = np.zeros(len(present))  # the chance that labels were dropped so
    shares = np.log(np.maximum(present + absent, 0.5) / len(labels))  # known ones among a class's labels
    for group, dropped in (((absent > 0) & (hidden > 0), shares), ((absent == 0) & (hidden > 0), None)):
        if group.any():  # annotated in different ways
            known = None if dropped is None else dropped[group]
            mean[group], deviation[group], widest, at_random[group] = _pooled(curves[:, group], known)
            spread = max(spread, widest)
    intended = mean
    # Dropped at random, all labels had one chance to be known; how many present ones are known is another
    # matter, which the scores tell.
    sampled = np.concatenate([_sampled(bins) for bins in blocks])
    drawn = np.log(np.maximum(present, 0.5) / (len(labels) * sampled))
    mean = mean + at_random * (drawn - shares)
    if labels_per_image is not None:
        mean, intended = (
            _rescaled(log, present, hidden, len(labels), labels_per_image) for log in (mean, intended)
        )
    noise = -np.expm1(np.minimum(mean, 0.0)) / np.maximum(present, 0.5)  # variance of the log of a count
    error = np.where(hidden > 0, 1.96 * np.sqrt(deviation**2 + _COMMON_ERROR**2 + noise), 0.0)
    choice = np.where(hidden > 0, CHOICE * (1 - at_random), 0.0) if labels_per_image is None else 0.0
    rate, low, high = (
        _rate(mean + shift, present, hidden, len(labels))
        for shift in (0.0, error, -np.sqrt(error**2 + choice**2))
    )
    known_by = propensities(labels, _rate(intended, present, hidden, len(labels)))
    per_image, unknown = None, hidden > 0
    if labels_per_image is None and unknown.any() and (at_random[unknown] > 0.5).all():
        per_image = _per_image(labels[chosen], len(labels), rate, deviation, known_by[0])
    return Frequencies(rate, low, high, *known_by, spread, per_image)


def _per_image(
    some: Labels, images: int, rate: Floats, deviation: Floats, known: Floats
) -> tuple[float, float]:
    """Return the 95 % interval of the number of labels in an image, if known ones are a sample of all.

    Labels of an image go together, and may be known together. So what is counted is how far whole images
    differ: each known label stands for 1/e⁺ present ones. Other errors of a class are its own.
    """
    rows, columns, values = some.coo()
    there = values > 0
    sums = np.bincount(rows[there], 1 / np.maximum(known[columns[there]], _FLOOR), minlength=len(some))
    total = max(float(rate.sum()), _FLOOR)
    variance = sums.var() / images + ((rate * deviation) ** 2).sum()
    error = 1.96 * np.sqrt(_COMMON_ERROR**2 + variance / total**2)
    return float(total * np.exp(-error)), float(total * np.exp(error))


def propensities(labels: Labels, rate: Floats) -> tuple[Floats, Floats]:
    """Return e⁺ and e⁻ [C]: the share of present, and of absent, labels that are known."""
    present, absent = ((count + 0.5) / (len(labels) + 1) for count in labels.class_counts)
    inside = np.clip(rate, _FLOOR, 1 - _FLOOR)
    return np.minimum(present / inside, 1.0), np.minimum(absent / (1 - inside), 1.0)


# ---- one class, or many side by side -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Binned:
    """Images in bins of equal score rank, from the highest scores down; each [C, K]."""

    score: Floats  # the mean logit, standardised over the images
    present: Floats  # how many labels are known to be present, …
    absent: Floats  # … to be absent, …
    unknown: Floats  # … and unknown

    def parts(self) -> Iterator[_Binned]:
        """Divide the classes so that the curves of a few stay in the processor's cache."""
        for start in range(0, len(self.score), _FITTED):
            few = slice(start, start + _FITTED)
            yield _Binned(self.score[few], self.present[few], self.absent[few], self.unknown[few])


def _binned(scores: npt.NDArray[Any], labels: Labels, rows: npt.NDArray[np.int64], start: int) -> _Binned:
    """Count what is known in each bin. The first bins are small: it is there that a curve levels off."""
    values = labels.dense(rows)[:, start : start + scores.shape[1]]
    inside = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    logits = np.log(inside / (1 - inside))
    logits = (logits - logits.mean(axis=0)) / (logits.std(axis=0) + _FLOOR)
    order = np.argsort(-logits, axis=0)
    edges = np.unique(np.round(len(rows) * np.linspace(0, 1, _BINS + 1) ** 3).astype(np.int64))[:-1]
    ranked = np.take_along_axis(values, order, axis=0)
    parts = [np.take_along_axis(logits, order, axis=0), ranked > 0, ranked < 0, ranked == 0]
    score, present, absent, unknown = (
        np.add.reduceat(part.astype(np.float64), edges, axis=0).T for part in parts
    )
    return _Binned(score / np.diff(np.append(edges, len(rows))), present, absent, unknown)


def _explained(bins: _Binned) -> Floats:
    """Return how well each e⁺ of the grid explains the labels [H, C, G], under each degree of choice.

    These are log-likelihoods, 0 for the best without choice. Where the data deviate from a logistic curve,
    labels vary more than it predicts, so all are scaled down.
    """
    count = bins.present + bins.absent + bins.unknown  # [C, K]
    rate = np.clip(bins.present.sum(-1) / count.sum(-1), 1e-5, 1)[:, None] / np.exp(_GRID)  # [C, G]
    least, most = ((part.sum(-1) + 0.5) / count.sum(-1) for part in (bins.present, bins.absent))
    rate = np.clip(np.clip(rate, least[:, None], 1 - most[:, None]), 1e-5, 1 - 1e-5)[..., None]
    start = _Curve(np.log(rate / (1 - rate)), np.full_like(rate, 1.5), most[:, None, None] / (1 - rate))
    found: list[Floats] = []
    for choice in _CHOICES:
        known = _noted(bins, choice)
        start = start.fitted(bins, known, _MORE if found else _STEPS)
        fit, surprise, p = start.explains(bins, known)
        if not found:
            place = fit.argmax(axis=1)[:, None]
            best = np.take_along_axis(fit, place, 1)
            excess = np.maximum(np.take_along_axis(surprise, place, 1) / max(count.shape[-1] - 3, 1), 1.0)
        there = (count[:, None, :] * p).sum(-1)
        share = np.log(bins.present.sum(-1)[:, None] / np.maximum(there, 1e-9) + 1e-9)
        found.append(_on_grid(share, (fit - best) / excess))
    return np.stack(found)


def _noted(bins: _Binned, choice: float) -> Floats:
    """Return e⁺ [C, G, K]: that of the grid amid known present labels, more where a class is plainer."""
    middle = (bins.present * bins.score).sum(-1) / np.maximum(bins.present.sum(-1), 0.5)
    plainer = (bins.score - middle[:, None])[:, None, :]
    return _sigmoid((_GRID - np.log(-np.expm1(_GRID)))[:, None] + choice * plainer)


@dataclass(frozen=True)
class _Curve:
    """For each e⁺ of the grid a logistic curve along which presence rises with the score; each [C, G, 1]."""

    height: Floats
    steepness: Floats
    dismissed: Floats  # e⁻

    def fitted(self, bins: _Binned, known: Floats, steps: int) -> _Curve:
        """Fit by EM: first the chance that an unknown label is present, then the curve, by a Newton step."""
        score, present, absent, unknown = (
            part[:, None, :] for part in (bins.score, bins.present, bins.absent, bins.unknown)
        )
        count, negatives = present + absent + unknown, absent.sum(-1, keepdims=True)
        images, powers = count.sum(-1, keepdims=True), _powers(bins.score)
        height, steepness, dismissed = self.height, self.steepness, self.dismissed
        for _ in range(steps):
            p = _sigmoid(steepness * score + height)  # [C, G, K]
            missed = p * (1 - known)
            expected = 1 - p  # in place from here on: passes over memory are what this takes its time for
            expected *= 1 - dismissed
            expected += missed
            expected += 1e-12
            np.divide(missed, expected, out=expected)
            expected *= unknown
            expected += present
            others = np.maximum(images - expected @ powers[..., :1], 1e-9)
            dismissed = np.clip(negatives / others, 0, 1 - _FLOOR)
            height, steepness = _newton(height, steepness, p, powers, count, expected)
        return _Curve(height, steepness, dismissed)

    def explains(self, bins: _Binned, known: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the log-likelihood of the labels, their surprise [C, G] and the presence [C, G, K]."""
        present, absent, unknown = (part[:, None, :] for part in (bins.present, bins.absent, bins.unknown))
        count = present + absent + unknown
        p = _sigmoid(self.steepness * bins.score[:, None, :] + self.height)
        hit, miss = known * p, self.dismissed * (1 - p)
        fit = present * np.log(hit + 1e-12) + absent * np.log(miss + 1e-12)
        fit = (fit + unknown * np.log(np.maximum(1 - hit - miss, 1e-12))).sum(-1)
        return fit, _surprise(present, count * hit) + _surprise(absent, count * miss), p


def _on_grid(share: Floats, fit: Floats) -> Floats:
    """Return fits [C, G] at the grid's log e⁺; given are those at other shares of present labels known."""
    order = np.argsort(share, axis=1)
    share, fit = (np.take_along_axis(part, order, 1) for part in (share, fit))
    return np.stack([np.interp(_GRID, at, of) for at, of in zip(share, fit, strict=True)])


def _sampled(bins: _Binned) -> Floats:
    """Return the frequencies [C] if known labels are a random sample of all.

    A logistic curve through the known labels, averaged over all images, varies less than the share of
    present ones: by chance the known images may score higher or lower than the others.
    """
    score, present, absent, unknown = (
        part[:, None, :] for part in (bins.score, bins.present, bins.absent, bins.unknown)
    )
    known, powers = present + absent, _powers(bins.score)
    count = known + unknown  # [C, 1, K]
    share = (present.sum(-1, keepdims=True) + 0.5) / (known.sum(-1, keepdims=True) + 1)
    height, steepness = np.log(share / (1 - share)), np.zeros_like(share)
    for _ in range(_STEPS):
        p = _sigmoid(steepness * score + height)
        height, steepness = _newton(height, steepness, p, powers, known, present)
    p = _sigmoid(steepness * score + height)
    return np.asarray((p * count).sum(-1) / count.sum(-1))[:, 0]


def _surprise(seen: Floats, expected: Floats) -> Floats:
    """Pearson's chi-squared over the bins."""
    return np.asarray(((seen - expected) ** 2 / np.maximum(expected, 1)).sum(-1))


def _powers(score: Floats) -> Floats:
    """Return 1, the score and its square [C, K, 3]: a product with them sums over the bins."""
    return np.stack([np.ones_like(score), score, score**2], axis=-1)


def _newton(
    height: Floats, steepness: Floats, p: Floats, powers: Floats, count: Floats, expected: Floats
) -> tuple[Floats, Floats]:
    """Move logistic curves [C, G, 1] one step towards the expected presences [C, G, K]."""
    likely = count * p
    slopes = (expected - likely) @ powers[..., :2]
    weight = likely * (1 - p)
    weight += 1e-9
    curves = weight @ powers
    g0, g1 = slopes[..., :1], slopes[..., 1:]
    h00, h01, h11 = (curves[..., number : number + 1] for number in range(3))
    h11 = h11 + 1e-3  # keeps the steepness of a separable class finite
    determinant = h00 * h11 - h01**2 + 1e-9
    upward, steeper = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
    return height + np.clip(upward, -2, 2), np.clip(steepness + np.clip(steeper, -1, 1), 0, 20)


def _sigmoid(value: Floats) -> Floats:
    found = np.asarray(np.clip(value, -30, 30))
    np.negative(found, out=found)
    np.exp(found, out=found)
    found += 1
    return np.divide(1, found, out=found)


# ---- all classes together ----------------------------------------------------------------------------------


def _pooled(curves: Floats, shares: Floats | None) -> tuple[Floats, Floats, float, float]:
    """Return each class's log e⁺ and its standard deviation, given all classes; and the spread between them.

    Last comes the chance that labels were dropped at random.

    The centre and the spread of the classes' normal distribution, and how far annotators chose, are weighed
    by how well they explain all curves, and averaged over. So is that labels were dropped at random, present
    or absent ones alike: then a class's log e⁺ is that of the share of its labels that is known, ``shares``
    (None without known absences).
    """
    chances = np.exp(curves) @ _normal(_GRID, _CURVE_ERROR).T + 1e-300  # [H, C, G]
    kernels = np.stack([_normal(_GRID, spread) for spread in _SPREADS])  # [T, centre, G]
    if shares is not None:
        kernels = (1 - _APART) * kernels + _APART / len(_GRID)
    fits = np.stack(
        [[np.log(chance @ kernel.T + 1e-300).sum(axis=0) for kernel in kernels] for chance in chances]
    )  # [H, T, centre]
    weight = np.exp(fits - fits.max())
    classes = curves.shape[1]
    mean, square, at_random = np.zeros(classes), np.zeros(classes), 0.0
    if shares is not None:
        fit = sum(np.interp(share, _GRID, np.log(row)) for share, row in zip(shares, chances[0], strict=True))
        at_random = float(_sigmoid(fit - fits.max() - np.log(weight.mean())))  # the chance of it
        mean, square = at_random * shares, at_random * shares**2
    weight[weight < 1e-4 * weight.sum()] = 0.0
    weight *= (1 - at_random) / weight.sum()
    for choice, spread, centre in zip(*np.nonzero(weight), strict=True):
        chance = chances[choice] * kernels[spread, centre]
        chance /= chance.sum(axis=1, keepdims=True)
        mean += weight[choice, spread, centre] * (chance @ _GRID)
        square += weight[choice, spread, centre] * (chance @ _GRID**2)
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return mean, deviation, float(weight.sum(axis=(0, 2)) @ _SPREADS), at_random


def _normal(grid: Floats, deviation: float) -> Floats:
    """Return normal distributions [centre, G] on a grid."""
    weight = np.exp(-0.5 * ((grid[:, None] - grid[None, :]) / deviation) ** 2)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def _rate(log: Floats, present: Floats, hidden: Floats, images: int) -> Floats:
    """Return the frequency that a log e⁺ means; at least what is known, at most what is not excluded.

    A class without known positives counts half of one.
    """
    counted = np.where(present > 0, present, 0.5)
    return np.asarray(np.clip(counted / np.exp(np.minimum(log, 0.0)), present, present + hidden) / images)


def _rescaled(log: Floats, present: Floats, hidden: Floats, images: int, total: float) -> Floats:
    """Shift all log e⁺ alike until the frequencies add up to ``total``, by halving."""
    low, high = -20.0, 20.0
    for _ in range(60):
        shift = (low + high) / 2
        if _rate(log + shift, present, hidden, images).sum() > total:
            low = shift
        else:
            high = shift
    return np.asarray(log + high)
