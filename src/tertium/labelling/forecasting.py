"""When to stop asking: what the next answers will bring, judged by those given so far.

Each question came with the model's probability q that the label is present. The answers say how far q can be
trusted: logit P(present) = a + b logit(q) + u + v, where u belongs to the class and v to a stretch of answers
as long as the one to come. The priors of a and b lie at what the model says, but are wide; how much classes
differ is weighed by how well it explains the answers. Questions come in an order, so that later ones are not
quite like earlier ones: that is v, of which nothing is known yet for the stretch to come. The interval covers
what the answers leave open about a, b, u and v, and the chance in each answer to come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

FEWEST = 20  # answers below which nothing is said
NEXT = 100  # answers that are looked ahead
LEVEL = 0.9  # of the interval
_DRAWS = 2000
# Standard deviations before anything is answered: of a and b, of v, and of u, which may be any of these.
_TRUST, _STRETCHES, _CLASSES = (2.0, 1.0), 0.3, (0.1, 0.5, 1.0, 2.0)
_MOST_SURE = 1e-4  # a probability of 0 or 1 would be infinitely sure


@dataclass(frozen=True)
class Range:
    """An expected number, and the interval that holds the true one nine times in ten."""

    expected: float
    low: int
    high: int


@dataclass(frozen=True)
class Forecast:
    """What answers have brought, and what the next ones will."""

    answers: int  # labels answered so far
    present: int  # of them
    surprising: int  # of them: not what the model had thought more probable
    recent: int  # the last ones, as many as come next
    recent_surprising: int
    next: int
    next_present: Range
    next_surprising: Range

    def words(self) -> str:
        """Say it in two sentences, without the last full stop.

        >>> near, far = Range(48.2, 41, 56), Range(30.5, 22, 39)
        >>> Forecast(200, 96, 70, 100, 31, 100, near, far).words().split(". ")[-1]
        'Of the next 100, 22 to 39 should contradict it, and 41 to 56 be present (90 % interval)'
        """
        last = (
            f": {self.recent_surprising:,} of the last {self.recent:,}" if self.recent < self.answers else ""
        )
        after, present = _between(self.next_surprising), _between(self.next_present)
        return (
            f"Of {self.answers:,} labels answered, {self.surprising:,} contradict what the model held "
            f"likelier{last}. "
            f"Of the next {self.next:,}, {after} should contradict it, and {present} be present "
            f"({100 * LEVEL:.0f} % interval)"
        )


def _between(found: Range) -> str:
    return f"{found.low:,}" if found.low == found.high else f"{found.low:,} to {found.high:,}"


def forecast(
    chances: npt.ArrayLike, classes: npt.ArrayLike, present: npt.ArrayLike, *, ahead: int = NEXT
) -> Forecast | None:
    """Look ahead: questions in order with their probabilities and classes, the first of them answered.

    ``chances`` and ``classes`` are [Q], ``present`` is [A], A ≤ Q, and says which labels were found to be
    there. Returns None if nothing is left to be asked, or too few were answered to say anything.
    """
    q = np.clip(np.asarray(chances, dtype=np.float64), _MOST_SURE, 1 - _MOST_SURE)
    found = np.asarray(present, dtype=np.bool_)
    answered, coming = len(found), min(ahead, len(q) - len(found))
    if answered < FEWEST or coming < 1:
        return None
    _, group = np.unique(np.asarray(classes)[: answered + coming], return_inverse=True)
    q = q[: answered + coming]
    truth = _drawn(logit(q), group, found)  # [draws, coming]
    likelier = q >= 0.5
    surprising = found != likelier[:answered]
    recent = min(coming, answered)
    return Forecast(
        answered,
        int(found.sum()),
        int(surprising.sum()),
        recent,
        int(surprising[-recent:].sum()),
        coming,
        _range(truth.sum(axis=1)),
        _range((truth != likelier[answered:]).sum(axis=1)),
    )


def _range(counts: Whole) -> Range:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(counts, tail, method="lower"), np.quantile(counts, 1 - tail, method="higher")
    return Range(float(counts.mean()), int(low), int(high))


# ---- the model of the answers ------------------------------------------------------------------------------


def _drawn(x: Floats, group: Whole, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Draw the answers to come [draws, coming] as those given make them probable."""
    ahead = len(x) - len(found)
    stretch = np.arange(len(x))[::-1] // ahead  # counted backwards: 0 is the one to come
    design = np.concatenate([np.ones((len(x), 1)), x[:, None], _marked(stretch), _marked(group)], axis=1)
    given, coming = design[: len(found)], design[len(found) :]
    spreads = [
        np.repeat([*_TRUST, _STRETCHES, each], [1, 1, stretch[0] + 1, group.max() + 1]) for each in _CLASSES
    ]
    fits = [_fitted(given, found, spread) for spread in spreads]
    weights = np.exp([fit.evidence - max(each.evidence for each in fits) for fit in fits])
    rng = np.random.default_rng(0)  # the same answers give the same figures
    shares = rng.multinomial(_DRAWS, weights / weights.sum())
    points = [fit.draw(count, rng) for fit, count in zip(fits, shares, strict=True)]
    chances = expit(np.concatenate(points) @ coming.T)
    return np.asarray(rng.random(chances.shape) < chances)


def _marked(group: Whole) -> Floats:
    """Return a column for each group, 1 where something belongs to it."""
    return np.asarray(group[:, None] == np.arange(group.max() + 1), dtype=np.float64)


@dataclass(frozen=True)
class _Fit:
    """A normal distribution of the parameters: where it is highest, and the factor of its precision."""

    mode: Floats
    factor: Floats  # lower triangular; factor @ factor.T is the precision
    evidence: float  # logarithm, up to a constant

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        noise = rng.standard_normal((len(self.mode), count))
        return np.asarray((self.mode[:, None] + np.linalg.solve(self.factor.T, noise)).T)


def _fitted(design: Floats, found: npt.NDArray[np.bool_], spread: Floats) -> _Fit:
    """Fit by Newton's method; the priors keep every step finite."""
    centre = np.zeros(len(spread))
    centre[1] = 1.0  # of b
    at, precision = centre.copy(), spread**-2.0
    for _ in range(50):
        p = expit(design @ at)
        slope = design.T @ (found - p) - precision * (at - centre)
        curve = (design * (p * (1 - p))[:, None]).T @ design + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        at = at + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))  # far steps would overshoot
        if np.abs(step).max() < 1e-8:
            break
    factor = np.linalg.cholesky(curve)
    fit = -np.logaddexp(0, np.where(found, -1, 1) * (design @ at)).sum()
    prior = 0.5 * (np.log(precision).sum() - (precision * (at - centre) ** 2).sum())
    return _Fit(at, factor, float(fit + prior - np.log(np.diag(factor)).sum()))
