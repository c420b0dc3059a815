"""What an answer tells about the other labels of its image.

Where labels go together (`tertium.annotation.together`), an answer about one label moves the chances of the
others. How far is open until it is given, but how much doubt it takes away on average is not: the chance q of
a label moves by q(1 − q) times the change of its logit, which is linear in the answer, and the variance
q(1 − q) falls by the variance of that move. Summed over the labels of an image, this is a quadratic form in
the weights of the label that is asked about, so that nothing is computed pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.annotation.calibration import Block, Floats
from tertium.annotation.together import Together, folds_of
from tertium.labelling.prepared import Prepared
from tertium.progress import Progress

Whole = npt.NDArray[np.int64]
NAMED = 2  # labels that are named as those an answer tells most about


@dataclass(frozen=True)
class Doubt:
    """What is open about some images: the variance of each label, and that of the factors behind them."""

    together: Together
    slope: Floats  # [C] by which a change of a label's value, in standard deviations, moves its logit
    worth: Floats  # [B, C] q(1 − q); 0 where the label is known
    covariance: Block  # [B, R, R] of the factors

    def told(self, importance: Floats) -> Floats:
        """Return how much doubt about the *other* labels an answer about each label takes away [B, C].

        It is measured by variance, times the ``importance`` [C] of the class.
        """
        counts = importance * (self.worth * self.slope) ** 2  # of a squared covariance with each label
        sums = self.together.summed(counts.astype(np.float32))
        moved = np.asarray(self.covariance @ sums @ self.covariance, dtype=np.float32)
        own = self.together.squared(self.covariance)
        others = np.maximum(self.together.squared(moved) - counts * own**2, 0)
        return np.asarray(others * self.worth / (self.together.deviation * (own + self.together.noise)) ** 2)

    def taken(self, columns: Whole) -> Floats:
        """Return what an answer about one label of each image takes of every label's variance [B, C].

        Of its own, all.
        """
        spoken, variance = self._spoken(columns)
        worth = self.worth[np.arange(len(columns)), columns]
        unit = worth / (self.together.deviation[columns] * variance) ** 2
        found = (self.worth * self.slope * (spoken @ self.together.weights.T)) ** 2 * unit[:, None]
        found[np.arange(len(columns)), columns] = worth
        return np.asarray(np.minimum(found, self.worth))

    def after(self, columns: Whole) -> Doubt:
        """Return what is open, on average, after an answer about one label of each image."""
        spoken, variance = self._spoken(columns)
        less = spoken[:, :, None] * (spoken / variance[:, None])[:, None, :]
        return replace(self, worth=self.worth - self.taken(columns), covariance=self.covariance - less)

    def _spoken(self, columns: Whole) -> tuple[Block, Block]:
        """Return the covariance of factors and one label of each image [B, R], and that label's variance."""
        mine = self.together.weights[columns]
        spoken = (self.covariance @ mine[:, :, None])[:, :, 0]
        return spoken, (spoken * mine).sum(axis=1) + self.together.noise[columns]


def doubts(ready: Prepared, rows: Whole, progress: Progress | None = None) -> Iterator[tuple[Whole, Doubt]]:
    """Yield some rows and what is open about them, block by block; known labels must count for others."""
    heard = ready.collective
    assert heard is not None
    together, start = heard.together, 0
    slope = heard.share * ready.chances.scale * together.curve[1]
    for outputs in heard.trained.stream(ready.inputs.select(rows), progress):
        mine = rows[start : start + len(outputs)]
        labels, folds = ready.labels.dense(mine), folds_of(ready.labels.images.take(pa.array(mine)))
        start += len(outputs)
        chances = ready.chances.unknown(heard.scores(outputs, labels, folds)).astype(np.float64)
        worth = np.where(labels == 0, chances * (1 - chances), 0.0)
        shown = together.shown(heard.apart(outputs)[1], folds)
        yield mine, Doubt(together, slope, worth, together.covariance(shown, labels))


class Picked(NamedTuple):
    """Questions that are worth the most for their image, one after the other; all [K]."""

    places: Whole  # among the candidates
    worth: Floats  # the variance of the answer, given those before it
    others: Floats  # what it tells about the image's other labels
    named: Whole  # [K, 2] the labels it tells most about


def pick(
    blocks: Iterator[tuple[Whole, Doubt]],
    rows: Whole,
    columns: Whole,
    value: Floats,
    importance: Floats,
    most: int,
) -> Picked:
    """Return for each image at most so many of the candidates [K], each given those picked before it.

    ``value`` is that of their own label, for its whole variance. Candidates are those of these blocks.
    """
    found: list[Picked] = []
    order = np.argsort(rows, kind="stable")
    for mine, doubt in blocks:
        first, last = np.searchsorted(rows[order], [mine[0], mine[-1] + 1])
        own = order[first:last]
        about = own, np.searchsorted(mine, rows[own]), columns[own], value[own]
        found += _picked(doubt, *about, importance, most)
    return Picked(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _picked(
    doubt: Doubt, places: Whole, rows: Whole, columns: Whole, value: Floats, importance: Floats, most: int
) -> Iterator[Picked]:
    """Yield the best candidate of each image, then the next best given the first, and so on."""
    begun = doubt.worth[rows, columns]
    price = np.zeros(doubt.worth.shape)  # of a unit of variance
    price[rows, columns] = value / np.maximum(begun, 1e-12)
    place = np.full(doubt.worth.shape, -1)
    place[rows, columns] = places
    images = np.arange(len(place))
    for _ in range(most):
        others = doubt.told(importance)
        total = np.where(place >= 0, price * doubt.worth + others, -1.0)
        best = total.argmax(axis=1)
        some = total[images, best] >= 0
        at = images[some], best[some]
        yield Picked(place[at], doubt.worth[at], others[at], _named(doubt, best, importance)[some])
        place[images, best] = -1
        doubt = doubt.after(best)


def _named(doubt: Doubt, columns: Whole, importance: Floats) -> Whole:
    """Return the labels [B, 2] that an answer about one label of each image tells most about; −1 for none."""
    taken = importance * doubt.taken(columns)
    taken[np.arange(len(columns)), columns] = 0.0
    named = np.full((len(columns), NAMED), -1)
    for number in range(NAMED):
        best = taken.argmax(axis=1)
        some = taken[np.arange(len(columns)), best] > 0
        named[some, number] = best[some]
        taken[np.arange(len(columns)), best] = 0.0
    return named
