"""Whether the second of two runs is better than the first: a panel of their page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tertium.labels.split_names import TEST, part_called
from tertium.metrics.paired import LEVEL, Paired
from tertium.prediction.better import paired_scores, sentence
from tertium.reporting.looking import Given
from tertium.reporting.quality import Quality
from tertium.reporting.runs import Run

_SHOWN = 10  # classes on the page


@dataclass(frozen=True)
class Change:
    """What the page says of two runs."""

    old: str
    new: str
    on: str  # which images
    words: str
    found: Paired

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each scored class, the largest change first."""
        return [
            {
                "run": self.new,
                "than": self.old,
                "class": each.name,
                "ap": each.ap.new,
                "ap_before": each.ap.old,
            }
            | {"difference": each.ap.gain, "low": each.ap.low, "high": each.ap.high}
            | {"judged_present": each.positives, "judged_absent": each.negatives}
            for each in self.found.classes
        ]

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The rows that are on the page."""
        return self.rows[:_SHOWN]

    @property
    def told(self) -> int:
        """In how many classes the interval leaves out zero."""
        return sum(each.ap.told for each in self.found.classes)

    @property
    def by_chance(self) -> float:
        """In how many it would if nothing had changed."""
        return (1 - LEVEL) * len(self.found.classes)


def change(old: Run, new: Run, given: Given | None) -> Change | None:
    """Compare two runs on a test split that was given, else on validation images that both have."""
    if given is not None and given.split is not None and part_called(given.split) == TEST:
        names = given.part.images.to_pylist()
        found = _paired((old.test, names), (new.test, names))
        if found is not None:
            return Change(old.name, new.name, given.where, sentence(found, new.name), found)
    listed = [list(run.config["data"].get("validation") or ()) for run in (old, new)]
    found = _paired((old.validation, listed[0]), (new.validation, listed[1]))
    if found is None:
        return None
    on = f"the validation images that both runs share (of {len(listed[0]):,} and {len(listed[1]):,})"
    return Change(old.name, new.name, on, sentence(found, new.name), found)


def _paired(old: tuple[Quality | None, list[str]], new: tuple[Quality | None, list[str]]) -> Paired | None:
    """Compare kept scores; None if they are not there for all images, or if no image is shared."""
    scored, names = [], []
    for quality, listed in (old, new):
        if quality is None or quality.scored is None or quality.scored.images[0] != len(listed):
            return None
        scored.append(quality.scored)
        names.append(listed)
    return paired_scores(scored, names)
