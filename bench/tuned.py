"""Every rival at its best: python -m bench.tuned ../shared/data [--trials 20] [--seeds 5] [--schemes …].

Searches the hyper-parameters of each method on COCO's features, as `tertium compare --search` does: on the
labels of seed 0, once by the known labels of the validation part and once by its true labels, which no user
has. The choice is then trained with seeds that the search did not see, and scored on test images, which
decide nothing. `auto` stays as it is. Runs are kept in bench/evidence/tuned.csv: the same command goes on.
``--minutes`` ends it early, ``--show`` only prints what is there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.cells import EVIDENCE, Evidence, one_thread, run, tested
from tertium.comparing import half_interval
from tertium.comparing.search import trial_settings
from tertium.config import SCHEMES

METHODS = (  # of the main table; the strongest at their defaults first
    "epr",
    "ll_r",
    "role",
    "negative",
    "ignore",
    "hill",
    "an_ls",
    "ll_ct",
    "wan",
    "selective",
    "em",
    "pseudo",
    "splc",
    "asl",
    "p_asl",
    "ll_cp",
    "focal",
    "gr",
    "curriculum",
    "soft_exposure",
    "se_l",
)
DATA = "coco"
FILE = EVIDENCE / "tuned.csv"
TRIALS, SEEDS = 20, 5
# What chooses the trial on seed 0, and which score of the others is then told.
BY = {"known": ("validation", "score"), "true": ("clean_validation", "clean_score")}


@dataclass(frozen=True)
class Tuned:
    """What the runs tell: which trial is chosen, and what it gives with other seeds."""

    evidence: Evidence
    trials: int = TRIALS
    seeds: int = SEEDS

    def chosen(self, scheme: str, method: str, by: str) -> int | None:
        """Return the trial with the highest figure on the validation labels of seed 0.

        None if it has not been searched, or cannot learn from such labels.
        """
        found = [self.evidence.get(DATA, scheme, method, 0, trial) for trial in range(1, self.trials + 1)]
        judged = {trial: line[BY[by][0]] for trial, line in enumerate(found, 1) if line is not None}
        judged = {trial: value for trial, value in judged.items() if value is not None}
        return max(judged, key=judged.__getitem__) if judged and None not in found else None

    def scores(self, scheme: str, method: str, trial: int | None, by: str = "known") -> np.ndarray | None:
        """Return the test mAP of a trial with each of the other seeds, in per cent."""
        if trial is None:
            return None
        lines = [self.evidence.get(DATA, scheme, method, seed, trial) for seed in range(1, 1 + self.seeds)]
        if any(line is None or line[BY[by][1]] is None for line in lines):
            return None
        return np.array([100 * line[BY[by][1]] for line in lines if line is not None])

    def ways(self, scheme: str, method: str) -> list[np.ndarray | None]:
        """Return the scores at the defaults, tuned on known labels, and tuned on true ones."""
        known, true = (self.chosen(scheme, method, by) for by in BY)
        return [
            self.scores(scheme, method, 1),
            self.scores(scheme, method, known),
            self.scores(scheme, method, true, "true"),
        ]

    def cell(self, scheme: str, method: str) -> str:
        """Return the three means; bold is one that is ahead of `auto` by more than chance, seed by seed."""
        own = self.scores(scheme, "auto", 1)
        return " / ".join(_told(scores, own) for scores in self.ways(scheme, method))

    def averages(self, method: str, schemes: Sequence[str]) -> str:
        """Return the three means over all schemes, where all are there."""
        found = [self.ways(scheme, method) for scheme in schemes]
        columns = [
            [None if scores is None else scores.mean() for scores in way] for way in zip(*found, strict=True)
        ]
        return " / ".join("–" if None in column else f"{np.mean(column):.1f}" for column in columns)

    def table(self, schemes: Sequence[str], methods: Sequence[str] = METHODS) -> str:
        """Return a row for each method, and a column for each scheme."""
        lines = [f"| | {' | '.join(schemes)} | mean |", "|---" * (len(schemes) + 2) + "|"]
        own = [self.scores(scheme, "auto", 1) for scheme in schemes]
        cells = ["" if scores is None else _with_interval(scores) for scores in own]
        mean = np.mean([scores.mean() for scores in own if scores is not None]) if "" not in cells else None
        lines.append(f"| `auto` | {' | '.join(cells)} | {'' if mean is None else f'{mean:.1f}'} |")
        for method in methods:
            cells = [self.cell(scheme, method) for scheme in schemes]
            if any(cell != "– / – / –" for cell in cells):
                lines.append(f"| `{method}` | {' | '.join(cells)} | {self.averages(method, schemes)} |")
        return "\n".join(lines) + "\n"


def _told(scores: np.ndarray | None, own: np.ndarray | None) -> str:
    if scores is None:
        return "–"
    ahead = None if own is None else scores - own
    better = ahead is not None and ahead.mean() > (half_interval(ahead) or 0)
    return f"**{scores.mean():.1f}**" if better else f"{scores.mean():.1f}"


def _with_interval(scores: np.ndarray) -> str:
    half = half_interval(scores)
    return f"{scores.mean():.1f}" + (f" ± {half:.1f}" if half is not None else "")


class Late(Exception):
    """The time is up."""


@dataclass(frozen=True)
class Search:
    """Trains what is missing, as long as there is time."""

    tuned: Tuned
    shared: Path
    end: float  # by the monotonic clock

    def train(self, scheme: str, method: str, seed: int, trial: int) -> None:
        evidence = self.tuned.evidence
        if evidence.get(DATA, scheme, method, seed, trial) is None and time.monotonic() > self.end:
            raise Late
        settings = trial_settings(method, trial)
        works = tested(self.shared)
        run(evidence, works, DATA, scheme, method, seed, trial=trial, settings=settings, watched=True)

    def method(self, scheme: str, method: str) -> None:
        """Search on seed 0; then train the defaults and what was chosen with the others."""
        for trial in range(1, self.tuned.trials + 1):
            self.train(scheme, method, 0, trial)
        chosen = {1} | {self.tuned.chosen(scheme, method, by) for by in BY}
        for trial in sorted(trial for trial in chosen if trial is not None):
            self.seeds(scheme, method, trial)

    def seeds(self, scheme: str, method: str, trial: int) -> None:
        for seed in range(1, 1 + self.tuned.seeds):
            self.train(scheme, method, seed, trial)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tuned")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="that report, beside the one that is searched"
    )
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    one_thread()
    tuned = Tuned(Evidence(FILE), options.trials, options.seeds)
    schemes, methods = options.schemes.split(","), options.methods.split(",")
    search = Search(tuned, options.shared, time.monotonic() + 60 * (0 if options.show else options.minutes))
    try:
        for scheme in schemes:
            search.seeds(scheme, "auto", 1)
        for method in methods:
            for scheme in schemes:
                search.method(scheme, method)
    except Late:
        pass
    print(tuned.table(schemes, methods))
    print(tuned.evidence.cost())


if __name__ == "__main__":
    main()
