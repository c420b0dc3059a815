"""Calibration: from a model's probabilities to the probability that an unknown label is present.

With the probabilities e⁺ and e⁻ that a present and an absent label are known, the chance that an unknown one
is present is p(1 − e⁺) / (p(1 − e⁺) + (1 − p)(1 − e⁻)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.annotation.frequencies import CHOICE
from tertium.annotation.record import Annotation
from tertium.labels import Labels
from tertium.metrics.evaluation import calibration_error, expected_thresholds

Floats = npt.NDArray[np.float64]
Block = npt.NDArray[np.float32]
Signs = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

_CERTAIN = 1 - 1e-6  # propensity and probability, at most: logarithms stay finite
_FOLDS = 3  # a fit on two thirds is judged on the rest
_ENOUGH = 10  # known validation labels of a class, below which it has no shift of its own
_SCALE, _SHIFT, _OWN = 1.0, 2.0, 0.5  # how far scale, shift and a class's own shift stray, by prior
_STEPS = 30  # of scoring; it ends earlier when nothing moves
# How far answers move all classes alike, by prior: where labels were dropped at random, and where present
# ones were sought.
_IDENTIFIED, _SOUGHT = 0.6, 2.0
_UNMODELLED = 0.4  # of the logarithm of how many labels are present, where nothing is known of annotation
_COMMON = 0.22  # of the same, what the estimated e⁺ of all classes have wrong together, …
_ROUNDED = 0.05  # … and what calibration gets wrong
_FITTED = 2**20  # labels, at most, by which a large validation part is calibrated for thresholds
_BLOCK = 2**22  # labels that thresholds look at at a time


def posterior(probability: npt.ArrayLike, present: npt.ArrayLike, absent: npt.ArrayLike) -> Floats:
    """Return the chance that an unknown label is present, from that of its image and from e⁺ and e⁻.

    >>> posterior([0.5, 0.5], present=[0.9, 0.3], absent=[0.0, 0.3]).round(3)
    array([0.091, 0.5  ])
    """
    p = np.asarray(probability, dtype=np.float64)
    missed = p * (1 - np.minimum(present, _CERTAIN))
    result: Floats = missed / (missed + (1 - p) * (1 - np.minimum(absent, _CERTAIN)))
    return result


def shifted(chance: npt.ArrayLike, by: npt.ArrayLike) -> Floats:
    """Return chances whose logits are moved.

    >>> shifted([0.5, 0.0, 1.0], np.log(3))
    array([0.75, 0.  , 1.  ])
    """
    times = np.exp(by) * np.asarray(chance, dtype=np.float64)
    return np.asarray(times / (times + 1 - np.asarray(chance, dtype=np.float64)))


@dataclass(frozen=True)
class Chances:
    """What turns a model's probabilities into those of unknown labels."""

    scale: float  # of the logits
    shift: Floats  # [C] of the logits
    present: Floats  # [C] e⁺
    absent: Floats  # [C] e⁻
    told: Floats | float = 0.0  # [C] by how much answers move the logits of the chances

    def calibrated(self, scores: npt.NDArray[Any]) -> Floats:
        """Return the probabilities of presence, known or not."""
        return _sigmoid(self.scale * _logits(scores) + self.shift)

    def unknown(self, scores: npt.NDArray[Any]) -> Block:
        """Return the chance of each label to be present if it is unknown."""
        return self.unknown_at(self.calibrated(scores))

    def unknown_at(self, probabilities: Floats) -> Block:
        """Return the same from calibrated probabilities."""
        return shifted(posterior(probabilities, self.present, self.absent), self.told).astype(np.float32)

    def known(self, scores: npt.NDArray[Any]) -> Floats:
        """Return the chance of each label to be present if it is known: e⁺p / (e⁺p + e⁻(1 − p))."""
        p = self.calibrated(scores)
        seen = self.present * p
        return np.asarray(seen / np.maximum(seen + self.absent * (1 - p), 1e-300))


def calibrate(
    scores: npt.NDArray[Any], labels: Signs, present: Floats, absent: Floats, *, by_class: bool = True
) -> Chances:
    """Fit scale and shift of the logits by the likelihood of all labels [V, C], known and unknown.

    A label is known to be present with probability e⁺p, known to be absent with e⁻(1 − p), and otherwise
    unknown. With ``by_class`` a class with enough known labels gets a shift of its own, shrunk towards the
    common one. With e⁺ = e⁻ unknown labels carry no information, and the fit is that of the known ones.
    """
    logits = _logits(scores)
    present, absent = (np.minimum(part, _CERTAIN) for part in (present, absent))
    own = by_class & ((labels != 0).sum(axis=0) >= _ENOUGH)
    params = np.zeros(2 + labels.shape[1])  # scale − 1, shift, own shifts
    weights = np.concatenate([[_SCALE**-2, _SHIFT**-2], np.full(labels.shape[1], _OWN**-2)])
    before = _fit_of(params, logits, labels, present, absent, weights)
    for _ in range(_STEPS):
        step = _step(params, logits, labels, present, absent, weights, own)
        # Away from the top a step may be too long: then half of it is tried.
        for _ in range(8):
            after = _fit_of(params + step, logits, labels, present, absent, weights)
            if after >= before:
                break
            step /= 2
        else:
            break
        params, before = params + step, after
        if np.abs(step).max() < 1e-5:
            break
    return Chances(float(1 + params[0]), params[1] + params[2:], present, absent)


def told_by_answers(
    chances: Floats, columns: npt.NDArray[np.int64], present: Flags, classes: int, sought: float
) -> Floats:
    """Return by how much answers move the logits of the chances of each class [C].

    ``chances`` [A] are those that the labels asked about were given, ``columns`` their classes. What all
    classes have in common, and what is a class's own, is drawn towards 0. In common there is less to mend
    where labels were dropped at random (see `Annotation.sought`).
    """
    logits = np.log(np.clip(chances, 1e-6, 1 - 1e-6) / np.clip(1 - chances, 1e-6, 1))
    prior, common, own = max(_SOUGHT * sought, _IDENTIFIED) ** -2.0, 0.0, np.zeros(classes)
    for _ in range(_STEPS):
        p = _sigmoid(logits + common + own[columns])
        gap = np.bincount(columns, present - p, minlength=classes)
        told = np.bincount(columns, p * (1 - p), minlength=classes)
        slope, curve = gap - own, told + 1.0
        both = gap.sum() - prior * common - (told / curve * slope).sum()
        both /= told.sum() + prior - (told**2 / curve).sum()
        common += np.clip(both, -1, 1)
        own += np.clip((slope - told * both) / curve, -1, 1)
        if abs(both) < 1e-6:
            break
    return common + own


def present_range(
    known: int, unknown: int, expected: float, annotation: Annotation | None
) -> tuple[float, float]:
    """Return between which numbers of unknown labels are present, with 90 % confidence.

    ``expected`` is the sum of their chances, ``known`` how many labels are known to be present. All that are
    present, known or not, are unsure by a factor; annotators who chose may have left more of them.
    """
    error, sought = _UNMODELLED, 1.0
    if annotation is not None:
        sought = annotation.sought
        each = np.log(annotation.rate / np.clip(annotation.low, 1e-9, annotation.rate)) / 1.96
        each = np.clip(each, 0.1, 1.0) * annotation.rate / annotation.rate.sum()
        error = float(np.sqrt((each**2).sum() + (_COMMON * sought) ** 2 + _ROUNDED**2))
    total, error = known + expected, 1.645 * error
    low = total * np.exp(-error) - known
    high = total * np.exp(np.hypot(error, CHOICE * sought)) - known
    return max(float(low), 0.0), min(float(high), float(unknown))


def thresholds(scores: Block, labels: Labels, present: Floats, absent: Floats) -> Floats:
    """Return for each class the threshold with the highest expected F1 over all labels, known or not.

    Known labels alone would mislead: a few of them hardly distinguish one threshold from another, and if
    positives were sought out, or are all that is known, a class is far rarer than among its known labels.
    """
    some = np.arange(0, len(scores), -(-scores.size // _FITTED))
    chances = calibrate(scores[some], labels.dense(some), present, absent)
    values = labels.dense()
    found = np.empty(len(present))
    width = max(1, _BLOCK // len(scores))
    for start in range(0, len(found), width):
        part = slice(start, start + width)
        own = Chances(chances.scale, chances.shift[part], chances.present[part], chances.absent[part])
        completed = np.where(values[:, part] == 0, own.unknown(scores[:, part]), values[:, part] > 0)
        found[part] = expected_thresholds(scores[:, part], completed.astype(np.float64))
    return found


def log_likelihood(probabilities: Floats, labels: Signs, present: Floats, absent: Floats) -> Floats:
    """Return that of each label: p if it is known present, 1 − p if absent, else that of being unknown."""
    p = probabilities
    missed = p * (1 - present) + (1 - p) * (1 - absent)
    return np.asarray(np.log(np.where(labels > 0, p, np.where(labels < 0, 1 - p, missed))))


def _mapped(params: Floats, logits: Floats) -> Floats:
    return np.asarray((1 + params[0]) * logits + params[1] + params[2:])


def _fit_of(
    params: Floats, logits: Floats, labels: Signs, present: Floats, absent: Floats, weights: Floats
) -> float:
    """Return the log-likelihood of the labels, and of the parameters by their priors."""
    fit = log_likelihood(_sigmoid(_mapped(params, logits)), labels, present, absent).sum()
    return float(fit - 0.5 * (weights * params**2).sum())


def _step(
    params: Floats,
    logits: Floats,
    labels: Signs,
    present: Floats,
    absent: Floats,
    weights: Floats,
    own: Flags,
) -> Floats:
    """Return one step of Fisher scoring; the classes' own shifts are eliminated one by one."""
    p = _sigmoid(_mapped(params, logits))
    expected = np.where(labels == 0, posterior(p, present, absent), labels > 0)
    slope = expected - p
    unseen = 1 - present * p - absent * (1 - p)
    told = present / p + absent / (1 - p) + (present - absent) ** 2 / np.maximum(unseen, 1e-12)
    told = told * (p * (1 - p)) ** 2  # Fisher information on the logit
    gradient = np.concatenate([[(slope * logits).sum(), slope.sum()], slope.sum(axis=0)]) - weights * params
    common = np.array([[(told * logits**2).sum(), (told * logits).sum()], [0.0, told.sum()]])
    common[1, 0] = common[0, 1]
    cross = np.stack([(told * logits).sum(axis=0), told.sum(axis=0)]) * own  # [2, C]
    single = told.sum(axis=0) + weights[2:]
    left = common + np.diag(weights[:2]) - (cross / single) @ cross.T
    right = gradient[:2] - (cross / single) @ gradient[2:]
    both = np.linalg.solve(left, right)
    return np.concatenate([both, own * (gradient[2:] - both @ cross) / single])


def _logits(scores: npt.NDArray[Any]) -> Floats:
    inside = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    return np.asarray(np.log(inside / (1 - inside)))


def _sigmoid(value: Floats) -> Floats:
    return np.asarray(np.clip(1 / (1 + np.exp(-np.clip(value, -40, 40))), 1 - _CERTAIN, _CERTAIN))


@dataclass(frozen=True)
class Checked:
    """What the labels of the validation images say about the chances; rows [V] of those images."""

    unknown: Block  # [V, C] the chance to be present if unknown, by fits that have not seen the image
    labels: Signs  # [V, C]
    ece_before: float | None  # None where nothing can be checked
    ece_after: float | None
    calibrated: bool


def check(scores: npt.NDArray[Any], labels: Signs, chances: Chances, fitted: bool) -> Checked:
    """Judge the calibration on parts of the validation images that their fit has not seen."""
    present, absent = chances.present, chances.absent
    unknown, known = chances.unknown(scores), chances.known(scores)
    plain = Chances(1.0, np.zeros(labels.shape[1]), present, absent)
    fold = np.random.default_rng(0).permutation(len(labels)) % _FOLDS
    for number in range(_FOLDS) if fitted else ():
        seen, rest = fold != number, fold == number
        fit = calibrate(scores[seen], labels[seen], present, absent)
        unknown[rest], known[rest] = fit.unknown(scores[rest]), fit.known(scores[rest])
    if not ((labels > 0).any() and (labels < 0).any()):
        return Checked(unknown, labels, None, None, fitted)
    before = calibration_error(plain.known(scores), labels)
    return Checked(unknown, labels, before, calibration_error(known, labels), fitted)
