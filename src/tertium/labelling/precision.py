"""Thresholds above which so many labels of those called present are, as far as known labels show it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.annotation.calibration import (
    Flags,
    Floats,
    shifted,
)
from tertium.files import replacing
from tertium.labelling.prepared import Prepared

_BINS = 1000  # of probabilities, between which thresholds lie
_STRICTER = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01)  # of the wrong labels that are allowed
_DOUBT = 1.0  # standard deviations by which what known labels say of a precision may be off
_TRUST = 20.0  # known labels that the chances count as where labels were dropped at random, …
_AT_RANDOM = 0.1  # … and less the more present ones were sought, nothing from here on


@dataclass(frozen=True)
class Thresholds:
    """For each class [C] the threshold above which unknown labels are called present."""

    lowest: npt.NDArray[np.int64]  # bin of chances; as many as there are where no threshold will do
    expected: Floats  # precision: the mean chance of the labels above; NaN without a threshold
    added: npt.NDArray[np.int64]  # how many unknown labels lie above
    found: Floats  # their share of all present labels that are expected among the unknown ones

    def above(self, chances: npt.NDArray[Any]) -> Flags:
        """Return which of the chances [B, C] reach the threshold of their class."""
        return np.asarray(_bin(chances) >= self.lowest)


class Tally:
    """Counts the chances of unknown labels, class by class: enough to find thresholds."""

    def __init__(self, classes: int) -> None:
        self._count = np.zeros(classes * _BINS, dtype=np.int64)
        self._sum = np.zeros(classes * _BINS)

    def add(self, chances: npt.NDArray[Any], unknown: Flags) -> None:
        """Take the chances [B, C] where ``unknown`` is true."""
        place = (_bin(chances) + np.arange(chances.shape[1]) * _BINS)[unknown]
        size = len(self._count)
        self._count += np.bincount(place, minlength=size)
        self._sum += np.bincount(place, weights=chances[unknown], minlength=size)

    def totals(self) -> tuple[int, float]:
        """Return how many unknown labels there are, and how many of them are expected to be present."""
        return int(self._count.sum()), float(self._sum.sum())

    def moved(self, by: Floats | float) -> float:
        """Return how many would be expected if the logits of the chances of each class [C] were moved."""
        count, total = self._count.reshape(-1, _BINS), self._sum.reshape(-1, _BINS)
        chance = np.clip(total / np.maximum(count, 1), 0, 1)
        return float((count * shifted(chance, np.broadcast_to(by, len(count))[:, None])).sum())

    def thresholds(self, precision: float | Floats) -> Thresholds:
        """Find the lowest threshold of each class whose labels above have this mean chance.

        None is below one half: a label that is more likely absent is not called present, however sure others
        are.
        """
        inside = self._count.reshape(-1, _BINS)
        count, total = (
            np.cumsum(part.reshape(-1, _BINS)[:, ::-1], axis=1)[:, ::-1] for part in (self._count, self._sum)
        )
        asked = np.broadcast_to(precision, len(inside))[:, None]
        good = (inside > 0) & (total >= asked * count) & (np.arange(_BINS) >= _BINS // 2)
        some = good.any(axis=1)
        lowest = np.where(some, good.argmax(axis=1), _BINS)
        at = np.minimum(lowest, _BINS - 1)[:, None]
        added = np.where(some, np.take_along_axis(count, at, 1)[:, 0], 0)
        chance = np.where(some, np.take_along_axis(total, at, 1)[:, 0], 0.0)
        expected = np.where(some, chance / np.maximum(added, 1), np.nan)
        return Thresholds(lowest, expected, added, chance / np.maximum(total[:, 0], 1e-300))


def _bin(chances: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.minimum((chances.astype(np.float64) * _BINS).astype(np.int64), _BINS - 1)


@dataclass(frozen=True)
class Known:
    """For each class [C] what known validation labels above the thresholds say of unknown ones like them.

    A present label among them stands for (1 − e⁺)/e⁺ unknown ones, an absent one for (1 − e⁻)/e⁻.
    """

    present: npt.NDArray[np.int64]
    absent: npt.NDArray[np.int64]
    stands: Floats  # [2, C] how many unknown labels a present, and an absent, one stands for
    least: Floats  # [C] the same of a present one, if its class is rarer than thought
    added: npt.NDArray[np.int64]  # unknown labels above the threshold …
    claimed: float  # … and their mean chance, …
    trust: float  # … which counts as so many known labels
    tells: Flags  # not where no label is known to be absent

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """How many there are of each class [C]."""
        return self.present + self.absent

    @property
    def right(self) -> Floats:
        """Unknown labels that are present, as they say [C]."""
        return np.asarray(self.present * self.stands[0])

    @property
    def wrong(self) -> Floats:
        """Unknown labels that are absent, as they say [C]."""
        return np.asarray(self.absent * self.stands[1])

    @property
    def precision(self) -> Floats:
        """The share of present ones [C]; NaN where they cannot tell."""
        return np.where(self.tells, self.right / np.maximum(self.right + self.wrong, 1e-300), np.nan)

    def surely(self, asked: float) -> float:
        """Return the precision over all classes that these labels leave little doubt of.

        The odds of wrong labels to right ones are counted high, as known labels vary by chance. Half a wrong
        one counts where none is known, and stands for many if few absent labels are known. The chances alone
        never suffice: they count as if they were halfway between what is asked and certain, at most.
        """
        claimed = min(self.claimed, (1 + asked) / 2)
        more = self.trust * claimed, max(self.trust * (1 - claimed), 0.5)
        (right, right_spread), (wrong, wrong_spread) = (
            [
                (count * stands**n).sum() + few * (self.added @ stands / max(self.added.sum(), 1)) ** n
                for n in (1, 2)
            ]
            for count, stands, few in (
                (self.present, self.least, more[0]),
                (self.absent, self.stands[1], more[1]),
            )
        )
        if right <= 0:
            return 0.0
        error = np.sqrt(right_spread / right**2 + wrong_spread / max(wrong, 1e-12) ** 2)
        return float(1 / (1 + wrong / right * np.exp(_DOUBT * error)))


def confirmed(ready: Prepared, tally: Tally, precision: float) -> tuple[Thresholds, Known, str]:
    """Find thresholds of which known validation labels confirm the precision, and say how sure that is.

    Chances may be too high at their upper end. So more is asked of them, step by step, until known labels
    above the thresholds leave little doubt. If they never do, nothing is called present. A class that is
    known absent nowhere cannot be checked: there labels must be likely enough even if it is as rare as it
    may be.
    """
    blind = (ready.labels.class_counts[1] == 0) | (ready.chances.absent * len(ready.labels) < 1)
    assumed = precision / np.maximum(_least_share(ready), 1e-12)
    for asked in (*(1 - part * (1 - precision) for part in _STRICTER), 2.0):  # the last is never reached
        found = tally.thresholds(np.where(blind, assumed, asked))
        known = _known_above(ready, found, blind)
        if known.surely(precision) >= precision:
            break
    return found, known, _note_of(known, blind, precision)


def _least_share(ready: Prepared, doubt: float = 1.96) -> Floats:
    """Return the share [C] of what is expected to be present that is, if a class is rarer than thought.

    By so many standard deviations. All of its labels that are known are among those that remain.
    """
    about = ready.annotation
    if about is None:
        return np.zeros(len(ready.chances.present))
    rarer = (np.maximum(about.low, 1e-12) / np.maximum(about.rate, 1e-12)) ** (doubt / 1.96)
    return np.clip((rarer - about.present) / np.maximum(1 - about.present, 1e-12), 0, 1)


def _known_above(ready: Prepared, found: Thresholds, blind: Flags) -> Known:
    labels, above = ready.checked.labels, found.above(ready.checked.unknown) & ~blind
    present, absent = ((above & (labels == sign)).sum(axis=0) for sign in (1, -1))
    seen, dismissed = (np.maximum(each, 1e-12) for each in (ready.chances.present, ready.chances.absent))
    stands = np.stack([(1 - seen) / seen, (1 - dismissed) / dismissed])
    least = stands[0] if np.allclose(seen, dismissed) else stands[0] * _least_share(ready, _DOUBT)
    tells = (labels < 0).any(axis=0) & (present * stands[0] + absent * stands[1] > 0)
    added = np.where(blind, 0, found.added)
    claimed = float((added * np.nan_to_num(found.expected)).sum() / max(added.sum(), 1))
    sought = 1.0 if ready.annotation is None else ready.annotation.sought
    trust = _TRUST * max(0.0, 1 - sought / _AT_RANDOM) * ready.checked.calibrated
    return Known(present, absent, stands, least, added, claimed, trust, tells)


def _note_of(known: Known, blind: Flags, precision: float) -> str:
    """Say how sure the precision is that was asked for."""
    if blind.all():
        return (
            "no label is known to be absent, so the precision is assumed: a label is added only if it is "
            "likely enough even should its class be as rare as it may be"
        )
    if not known.added.any():
        return f"nothing is added: known validation labels do not show that {precision:.0%} would be right"
    share = known.right.sum() / max(known.right.sum() + known.wrong.sum(), 1e-300)
    return (
        f"judged by {known.count.sum():,} known validation labels above the thresholds, {share:.0%} of the "
        f"labels there are present, hardly less than {known.surely(precision):.0%}"
    )


def write_thresholds(path: Path, ready: Prepared, found: Thresholds, known: Known) -> None:
    """Write for each class the threshold, what is expected above it, and what validation labels say."""
    share = known.precision
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(
            ["class", "threshold", "expected_precision", "added", "share_found", "checked", "precision_there"]
        )
        for number, name in enumerate(ready.trained.classes):
            has_any = found.lowest[number] < _BINS
            is_checked = has_any and known.tells[number]
            lines.writerow(
                [
                    name,
                    f"{found.lowest[number] / _BINS:g}" if has_any else "",
                    f"{found.expected[number]:.4f}" if has_any else "",
                    found.added[number],
                    f"{found.found[number]:.4f}",
                    known.count[number] if is_checked else "assumed",
                    f"{share[number]:.4f}" if is_checked else "",
                ]
            )
