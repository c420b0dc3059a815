"""How good a run is on some labels: figures, intervals, and the curves behind them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.files import read_json
from tertium.metrics.ranking import Counts, Floats
from tertium.metrics.scored import Scored

_POINTS = 200  # of a curve, at most
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # from the highest AP down: the classes whose curves are shown
_BINS = 15  # of probabilities, as those of the calibration error
_NORMAL = 1.959964  # two-sided 95 % point


def interval(share: npt.ArrayLike, count: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the 95 % interval of a share of ``count`` trials by Wilson's score; NaN where there are none.

    For an average precision the count is that of the known-present images: it is what AP averages over.

    >>> low, high = interval([0.5, 1.0], [10, 10])
    >>> low.round(3), high.round(3)
    (array([0.237, 0.722]), array([0.763, 1.   ]))
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(count, dtype=np.float64)
    n = np.where(n > 0, n, np.nan)
    shrunk = 1 + _NORMAL**2 / n
    centre = (p + _NORMAL**2 / (2 * n)) / shrunk
    half = _NORMAL * np.sqrt(p * (1 - p) / n + _NORMAL**2 / (4 * n**2)) / shrunk
    return np.asarray(centre - half), np.asarray(centre + half)


class Curve(NamedTuple):
    """Precision and recall from the highest threshold down; each [P]."""

    threshold: Floats
    precision: Floats
    recall: Floats


class Bins(NamedTuple):
    """Labels by the probability they were given; each [B], without the bins that are empty."""

    low: Floats  # edges
    high: Floats
    labels: Counts
    probability: Floats  # mean
    present: Floats  # share
    present_low: Floats  # its interval
    present_high: Floats


@dataclass(frozen=True, eq=False)
class Quality:
    """What was found on some labelled images."""

    on: str  # which images
    figures: dict[str, Any]  # as `Evaluation.to_dict` gives them
    scored: Scored | None = None  # the labels behind them, if they were kept

    @classmethod
    def of(cls, on: str, scored: Scored, annotations: Counts | None) -> Quality:
        """Judge scores; classes are grouped by ``annotations`` [C]."""
        looked, there = scored.images.tolist()
        on = on if looked == there else f"{on} ({looked:,} of {there:,}, evenly spread)"
        return cls(on, scored.evaluate(annotations).to_dict(), scored)

    @classmethod
    def read(cls, file: Path) -> Quality:
        """Read what `tertium evaluate` wrote; under "on" it may say of which labels."""
        wanted = ("classes", "ap", "positives", "negatives", "unscored", "thresholds")
        found = with_keys(file, read_json(file), *wanted)
        return cls(found.get("on") or _unnamed(file, found), found)

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return list(self.figures["classes"])

    @cached_property
    def ap(self) -> tuple[Floats, Floats, Floats]:
        """Average precision of each class [C], and its 95 % interval; NaN where it was not scored."""
        ap = np.array(self.figures["ap"], dtype=np.float64)
        return ap, *interval(ap, self.figures["positives"])

    @cached_property
    def ranked(self) -> Floats:
        """AP of classes without known absences, against all images where they are unknown; else NaN [C]."""
        if self.scored is None or not self.scored.blind.any():
            return np.full(len(self.classes), np.nan)
        return self.scored.against_the_rest().evaluate().ap

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The classes that were not scored, by reason."""
        found: dict[str, list[str]] = {}
        for item in self.figures["unscored"]:
            found.setdefault(item["reason"], []).append(item["name"])
        return found

    def number(self, name: str) -> float | None:
        """Return a figure, None where there is none."""
        value = self.figures.get(name)
        return None if value is None or not np.isfinite(value) else value

    @property
    def ece(self) -> float | None:
        """The calibration error; None if only one sign is known, which says nothing about probabilities."""
        both = all(any(self.figures[sign]) for sign in ("positives", "negatives"))
        return self.number("ece") if both else None

    @cached_property
    def curves(self) -> dict[str | None, Curve]:
        """Precision and recall over known labels: of all scored classes together (None), of a few alone."""
        if self.scored is None:
            return {}
        known = self.scored.known()
        chosen: dict[str | None, npt.NDArray[np.bool_]] = {None: np.isfinite(self.ap[0])[known.column]}
        chosen |= {self.classes[column]: known.column == column for column in self._some()}
        found = {name: _curve(known.score[mask], known.sign[mask] > 0) for name, mask in chosen.items()}
        return {name: curve for name, curve in found.items() if curve is not None}

    def _some(self) -> list[int]:
        """Return the columns of a few scored classes, from the highest AP to the lowest.

        Of those with at least ten known-present images, if there are enough: a curve of fewer is chance.
        """
        ap, present = self.ap[0], np.array(self.figures["positives"])
        order = np.argsort(-np.nan_to_num(ap, nan=-1), kind="stable")
        scored = order[np.isfinite(ap[order])]
        often = scored[present[scored] >= 10]
        chosen = often if len(often) >= len(_QUANTILES) else scored
        places = [round(share * (len(chosen) - 1)) for share in _QUANTILES] if len(chosen) else []
        return [int(chosen[place]) for place in dict.fromkeys(places)]

    @cached_property
    def reliability(self) -> Bins | None:
        """How often known labels are present, by the probability they were given."""
        if self.scored is None or self.ece is None:
            return None
        scored = self.scored.known()
        score = scored.score.astype(np.float64)
        place = np.minimum((score * _BINS).astype(np.int64), _BINS - 1)
        count = np.bincount(place, minlength=_BINS)
        sums = [np.bincount(place, weights=part, minlength=_BINS) for part in (score, scored.sign > 0)]
        full = np.flatnonzero(count)
        mean, share = (part[full] / count[full] for part in sums)
        return Bins(full / _BINS, (full + 1) / _BINS, count[full], mean, share, *interval(share, count[full]))


def _curve(score: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> Curve | None:
    """Return the curve at every score that some entry has, thinned out evenly in recall."""
    if not present.any() or present.all():
        return None
    order = np.argsort(-score, kind="stable")
    score, hits = score[order], np.cumsum(present[order])
    ends = np.flatnonzero(np.append(score[1:] != score[:-1], True))  # equal scores are called together
    precision, recall = hits[ends] / (ends + 1), hits[ends] / hits[-1]
    if len(ends) > _POINTS:
        kept = np.searchsorted(recall, np.linspace(recall[0], 1, _POINTS))
        kept = np.unique(np.append(kept, len(ends) - 1))
        ends, precision, recall = ends[kept], precision[kept], recall[kept]
    return Curve(score[ends].astype(np.float64), precision, recall)


def _unnamed(file: Path, figures: dict[str, Any]) -> str:
    """Describe images whose labels are not named: at least their number is known."""
    known = max(map(sum, zip(figures["positives"], figures["negatives"], strict=True)), default=0)
    return f"the {known:,} or more labelled images of {file.name}, which does not name their label file"


def with_keys(file: Path, found: Any, *keys: str) -> dict[str, Any]:
    """Check that a file holds what is needed."""
    missing = [key for key in keys if not isinstance(found, dict) or key not in found]
    if missing:
        raise InputError(f'{file}: there is no "{missing[0]}" in it; it is not the file of a run')
    return dict(found)
