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
from pathlib import Path

import numpy as np

from bench.cells import EVIDENCE, Evidence, Figures, one_thread, run, tested
from tertium.comparing import half_interval
from tertium.comparing.search import trial_settings
from tertium.config import SCHEMES

METHODS = (
    "negative",
    "ignore",
    "wan",
    "an_ls",
    "epr",
    "ll_r",
    "ll_ct",
    "hill",
    "splc",
    "asl",
    "p_asl",
    "pseudo",
)
DATA = "coco"


class Late(Exception):
    """The time is up."""


class Search:
    """The trials of each method under each scheme, as far as they are done or there is time."""

    def __init__(self, evidence: Evidence, shared: Path, trials: int, seeds: int, minutes: float) -> None:
        self.evidence, self.works = evidence, tested(shared)
        self.trials, self.seeds = trials, range(1, 1 + seeds)
        self.end = time.monotonic() + 60 * minutes

    def figures(self, scheme: str, method: str, seed: int, trial: int = 1) -> Figures:
        if self.evidence.get(DATA, scheme, method, seed, trial) is None and time.monotonic() > self.end:
            raise Late
        settings = trial_settings(method, trial)
        return run(
            self.evidence,
            self.works,
            DATA,
            scheme,
            method,
            seed,
            trial=trial,
            settings=settings,
            watched=True,
        )

    def chosen(self, scheme: str, method: str, by: str) -> int | None:
        """Return the trial with the highest figure on the validation labels of seed 0; None without any."""
        found = {trial: self.figures(scheme, method, 0, trial)[by] for trial in range(1, self.trials + 1)}
        judged = {trial: value for trial, value in found.items() if value is not None}
        return max(judged, key=judged.__getitem__, default=None)

    def row(self, scheme: str, method: str) -> list[str]:
        """Return what the defaults give, what known labels choose, and what true labels choose."""
        known, clean = (self.chosen(scheme, method, by) for by in ("validation", "clean_validation"))
        if known is None or clean is None:
            return ["–"] * 3
        return [
            self.mean(scheme, method, 1, "score"),
            self.mean(scheme, method, known, "score"),
            self.mean(scheme, method, clean, "clean_score"),
        ]

    def mean(self, scheme: str, method: str, trial: int, what: str) -> str:
        """Return the mean over the seeds ± half its 95 % interval."""
        scores = np.array([100 * self.figures(scheme, method, seed, trial)[what] for seed in self.seeds])
        half = half_interval(scores)
        return f"{scores.mean():.1f}" + (f" ± {half:.1f}" if half is not None else "")


def table(search: Search, scheme: str, methods: list[str]) -> None:
    print(f"\n| {scheme} | defaults | tuned on known labels | tuned on true labels |\n|---|---|---|---|")
    try:
        print(f"| `auto` | {search.mean(scheme, 'auto', 1, 'score')} | | |", flush=True)
        for method in methods:
            print(f"| `{method}` | " + " | ".join(search.row(scheme, method)) + " |", flush=True)
    except Late:
        print("| (not run yet) | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tuned")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5, help="that report, beside the one that is searched")
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    one_thread()
    minutes = 0 if options.show else options.minutes
    evidence = Evidence(EVIDENCE / "tuned.csv")
    search = Search(evidence, options.shared, options.trials, options.seeds, minutes)
    for scheme in options.schemes.split(","):
        table(search, scheme, options.methods.split(","))
    seconds = sum(figures["seconds"] or 0 for figures in evidence.lines.values())
    print(f"\n{len(evidence.lines)} runs, {seconds / 60:.0f} minutes of processor time")


if __name__ == "__main__":
    main()
