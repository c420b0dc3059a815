"""What makes the difference between the papers' protocol and ours: python -m bench.ablation ../shared/data.

Trains linear heads on features of COCO and UC Merced (or the one named behind it) and prints mAP on held-out
TRAINING images; test images are not looked at. First everything as Tertium does it, then one ingredient at a
time as the papers have it, then all of it (``recipe=cole2021``), then one ingredient at a time as Tertium has
it. Runs are kept in bench/evidence/ablation.csv; ``--show`` only prints what is there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.cells import EVIDENCE, Evidence, Figures, held_out, one_thread, run
from tertium.comparing import Work

# One ingredient of the papers at a time: what is written behind the method.
OURS = {
    "ours": "",
    "their start": "init=torch",
    "their features, as they are": "standardise=false",
    "no decay": "weight_decay=0",
    "a constant rate": "schedule=constant,warmup=0",
    "their batches and epochs": "lr=1e-4,batch_size=16,epochs=25,patience=25",
    "selection on true labels": "select=clean",
    "no selection": "select=last",
}
# All of them, and one at a time as Tertium has it; "{lr}" is the rate that true labels choose.
THEIRS = {
    "theirs": "recipe=cole2021,lr={lr}",
    "theirs, our start": "recipe=cole2021,lr={lr},init=rest",
    "theirs, selection on known labels": "recipe=cole2021,lr={lr},select=known",
    "theirs, features standardised": "recipe=cole2021,lr={lr},standardise=true",
    "theirs, our decay": "recipe=cole2021,lr={lr},weight_decay=1",
    "theirs, our schedule": "recipe=cole2021,lr={lr},schedule=cosine,warmup=0.1",
}
# Of Cole's grid, at batches of 16; on COCO its middle, since a run takes 12 s.
RATES = {"coco": ("0.001", "0.0001"), "ucmerced": ("0.01", "0.001", "0.0001", "1e-05")}
COLE = ("negative", "an_ls", "wan", "epr", "role", "ll_r", "ll_ct")
CSL = ("negative", "ignore", "selective")
ABLATED = {
    "coco": {
        "single_positive": COLE,
        "random:0.1": CSL,
        "per_class:100": CSL,
        "random:0.3": ("negative", "pseudo"),
    },
    "ucmerced": {"single_positive": COLE, "random:0.1": (*CSL, "pseudo")},
}
FILE = EVIDENCE / "ablation.csv"
SEEDS = (0, 1)
EXPECTED = {"coco": "2.95", "ucmerced": "3.5"}  # present labels of an image, told to `epr` and `role`


def row(data: str, method: str, how: str) -> str:
    """Return the row of a comparison, as `tertium compare --methods` takes it."""
    known = f"k={EXPECTED[data]}" if method in ("epr", "role") else ""
    # Theirs moves the whole table of estimates at each of 20,000 steps, which takes minutes.
    also = "optimizer=rows,lr_factor=3000" if method == "role" and "recipe" in how else ""
    given = ",".join(part for part in (known, how, also) if part)
    return f"{method}:{given}" if given else method


class Ablation:
    """The runs, trained where they are not in the evidence; without data, only what is there."""

    def __init__(self, evidence: Evidence, works: Mapping[str, Work] | None) -> None:
        self.evidence, self.works = evidence, works

    def figures(self, data: str, scheme: str, method: str, how: str, seed: int) -> Figures:
        named = row(data, method, how)
        if self.works is None:
            return self.evidence.get(data, scheme, named, seed, 1) or {}
        return run(self.evidence, self.works, data, scheme, named, seed)

    def rate(self, data: str, scheme: str, method: str) -> str:
        """Return the rate that does best on true validation labels, with everything else as theirs."""
        found = [
            self.figures(data, scheme, method, THEIRS["theirs"].format(lr=lr), 0).get("validation")
            for lr in RATES[data]
        ]
        return RATES[data][int(np.argmax([value or 0 for value in found]))]

    def cell(self, data: str, scheme: str, method: str, how: str) -> str:
        """Return the mean over the seeds ± half their range; nothing if one is missing."""
        if "{lr}" in how:
            how = how.format(lr=self.rate(data, scheme, method))
        found = [self.figures(data, scheme, method, how, seed).get("score") for seed in SEEDS]
        scores = [100 * score for score in found if score is not None]
        if len(scores) < len(found):
            return ""
        half = f" ± {np.ptp(scores) / 2:.1f}" if len(scores) > 1 else ""
        return f"{np.mean(scores):.1f}{half}"

    def table(self, data: str, scheme: str, rows: int | None = None) -> str:
        """Return a row for each way of training and a column for each method, where anything was run."""
        methods = ABLATED[data][scheme]
        lines = [f"| {data}, {scheme} | " + " | ".join(f"`{name}`" for name in methods) + " |"]
        lines.append("|---" * (len(methods) + 1) + "|")
        for meant, how in list((OURS | THEIRS).items())[:rows]:
            cells = [self.cell(data, scheme, method, how) for method in methods]
            if any(cells):
                lines.append(f"| {meant} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation")
    parser.add_argument("shared", type=Path)
    parser.add_argument("data", nargs="*", metavar="DATA", help=" or ".join(ABLATED))
    parser.add_argument("--schemes", nargs="+", help="all by default")
    parser.add_argument("--rows", type=int, help="only so many of each table, from the first")
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    names = options.data or list(ABLATED)
    evidence = Evidence(FILE)
    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        works = None if options.show else held_out(options.shared, Path(folder), names)
        for data in names:
            for scheme in options.schemes or ABLATED[data]:
                print(Ablation(evidence, works).table(data, scheme, options.rows), flush=True)
    print(evidence.cost())


if __name__ == "__main__":
    main()
