"""What people have done so far: how far they agree, and what the next answers will bring."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.files import replacing
from tertium.labelling.agreement import alpha, alphas, alphas_of_people
from tertium.labelling.forecasting import NEXT, Forecast, forecast
from tertium.web.reviewing.answers import Cell, Round, Standing
from tertium.web.reviewing.results import SIGN, agreed, disputed


@dataclass(frozen=True)
class Share:
    """The answers of one person or about one class, and how far they agree with those of others."""

    name: str
    answers: int  # present or absent
    present: int
    shared: int  # labels that several people answered
    differ: int  # of them: not all say the same
    alpha: float  # Krippendorff's; of a person against the others; NaN if it is not defined
    seconds: float | None  # that an answer takes, the median; None if it is not known


@dataclass(frozen=True)
class Summary:
    """Everything about the answers of a file."""

    alpha: float
    shared: int  # labels that several people answered
    differ: int
    undecided: int  # as many say present as absent
    classes: Sequence[Share]
    people: Sequence[Share]
    seconds: float | None
    answers_each: float  # to a label that was answered, the mean
    forecast: Forecast | None

    @classmethod
    def of(cls, standing: Standing, round: Round | None, ahead: int = NEXT) -> Summary:
        """Sum up what stands; the forecast is about the questions of a round."""
        said = _Said.of(standing)
        by_class = alphas(said.counts, said.class_of_cell, len(said.classes))
        by_person = alphas_of_people(said.values, said.person, said.cell, len(said.people))
        return cls(
            alpha(said.counts),
            int(said.is_shared.sum()),
            int(said.differs.sum()),
            len(disputed(standing)),
            said.shares(said.classes, said.class_of_cell[said.cell], by_class),
            said.shares(said.people, said.person, by_person),
            _median(said.seconds),
            len(said.cell) / max(len(said.class_of_cell), 1),
            None if round is None else look_ahead(standing, round, ahead),
        )

    def words(self) -> str:
        """Say how far people agree."""
        if not self.shared:
            return "No label was answered by several people yet."
        value = "not defined: all say the same" if math.isnan(self.alpha) else f"{self.alpha:.2f}"
        undecided = f", {self.undecided:,} of them undecided" if self.undecided else ""
        return (
            f"Labels with several answers: {self.shared:,}; people differ on {self.differ:,}{undecided}. "
            f"Krippendorff's alpha is {value} (1: all agree; 0: as by chance)."
        )

    def as_json(self) -> dict[str, Any]:
        """Return what the page shows; a number that is not defined is null."""
        shares = {
            name: [asdict(each) | {"alpha": _defined(each.alpha)} for each in getattr(self, name)]
            for name in ("classes", "people")
        }
        ahead = None if self.forecast is None else self.forecast.words() + "."
        return shares | {"agreement": self.words(), "forecast": ahead, "pace": pace(self)}


def pace(summary: Summary) -> str | None:
    """Say how long the next labels will take, all people together."""
    if summary.seconds is None or summary.forecast is None:
        return None
    minutes = summary.seconds * summary.answers_each * summary.forecast.next / 60
    about = f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute"
    together = f" and {summary.answers_each:.1f} answers a label" if summary.answers_each > 1 else ""
    return f"At {summary.seconds:.1f} s an answer{together}, that takes about {about}."


def look_ahead(standing: Standing, round: Round, ahead: int = NEXT) -> Forecast | None:
    """Foretell the next answers of a round: the open questions, in their order, after those answered."""
    decided, tied = agreed(standing), set(disputed(standing))
    cells = [(each.image, each.label) for each in round.questions]
    given = [number for number, cell in enumerate(cells) if cell in decided]
    given.sort(key=lambda number: _first(standing, cells[number]))  # the last of them are the most recent
    coming = [number for number, cell in enumerate(cells) if cell not in decided and cell not in tied]
    order = [round.questions[number] for number in (*given, *coming)]
    return forecast(
        [each.probability for each in order],
        [each.label for each in order],
        [decided[cells[number]] > 0 for number in given],
        ahead=ahead,
    )


def _first(standing: Standing, cell: Cell) -> int:
    return min(row.id for row in standing.given(cell).values())


def write_agreement(summary: Summary, path: Path) -> None:
    """Write CSV: a line for all answers, for each class and for each person."""
    answers, present = (
        sum(getattr(each, name) for each in summary.people) for name in ("answers", "present")
    )
    everything = Share("", answers, present, summary.shared, summary.differ, summary.alpha, summary.seconds)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(["of", "name", "answers", "present", "shared", "differ", "alpha", "seconds"])
        for of, shares in (("all", [everything]), ("class", summary.classes), ("person", summary.people)):
            for each in shares:
                value = "" if math.isnan(each.alpha) else f"{each.alpha:.4f}"
                seconds = "" if each.seconds is None else f"{each.seconds:.1f}"
                counts = (each.answers, each.present, each.shared, each.differ)
                lines.writerow([of, each.name, *counts, value, seconds])


# ---- answers as arrays -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Said:
    """Answers that call a label present or absent, [A], about cells [U] of classes, by people."""

    classes: list[str]
    people: list[str]
    cell: npt.NDArray[np.int64]  # [A]
    person: npt.NDArray[np.int64]  # [A]
    values: npt.NDArray[np.int8]  # [A] ±1
    seconds: npt.NDArray[np.float64]  # [A], NaN if it is not known
    class_of_cell: npt.NDArray[np.int64]  # [U]

    @classmethod
    def of(cls, standing: Standing) -> _Said:
        rows = [
            (cell, row)
            for cell in standing.cells()
            for row in standing.given(cell).values()
            if row.answer in SIGN
        ]
        cells = sorted({cell for cell, _ in rows})
        classes, people = sorted({label for _, label in cells}), sorted({row.who for _, row in rows})
        place, column = _places(cells), _places(classes)
        person = _places(people)
        return cls(
            classes,
            people,
            np.array([place[cell] for cell, _ in rows], dtype=np.int64),
            np.array([person[row.who] for _, row in rows], dtype=np.int64),
            np.array([SIGN[row.answer] for _, row in rows], dtype=np.int8),
            np.array([np.nan if row.seconds is None else row.seconds for _, row in rows], dtype=np.float64),
            np.array([column[label] for _, label in cells], dtype=np.int64),
        )

    @property
    def counts(self) -> npt.NDArray[np.float64]:
        """How many call each cell present, and how many absent: [U, 2]."""
        size = len(self.class_of_cell)
        sides = [np.bincount(self.cell[self.values == sign], minlength=size) for sign in (1, -1)]
        return np.stack(sides, axis=1).astype(np.float64)

    @property
    def is_shared(self) -> npt.NDArray[np.bool_]:
        """Which cells several people answered [U]."""
        return np.asarray(self.counts.sum(axis=1) > 1)

    @property
    def differs(self) -> npt.NDArray[np.bool_]:
        """Which cells people differ about [U]."""
        return np.asarray((self.counts > 0).all(axis=1))

    def shares(
        self, names: list[str], group: npt.NDArray[np.int64], alpha: npt.NDArray[np.float64]
    ) -> list[Share]:
        """Count by groups of answers [A]: those of a class, or of a person."""
        shared, differs, found = self.is_shared, self.differs, []
        for number, name in enumerate(names):
            mine = group == number
            cells = np.unique(self.cell[mine])
            found.append(
                Share(
                    name,
                    answers=int(mine.sum()),
                    present=int((mine & (self.values > 0)).sum()),
                    shared=int(shared[cells].sum()),
                    differ=int(differs[cells].sum()),
                    alpha=float(alpha[number]),
                    seconds=_median(self.seconds[mine]),
                )
            )
        return found


def _places(names: Sequence[Any]) -> dict[Any, int]:
    return {name: number for number, name in enumerate(names)}


def _median(seconds: npt.NDArray[np.float64]) -> float | None:
    known = seconds[~np.isnan(seconds)]
    return float(np.median(known)) if len(known) else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
