"""Aerial photographs end to end: ``python -m bench.ucmerced ../shared/data/ucmerced``.

Hides labels of the training split of DIR (``classes.txt``, ``labels.csv``, ``images/``), trains on what is
left, and prints mAP on the test split, which decides nothing: one table for each protocol, the mean over the
seeds ± half their range. A seed draws the hidden labels, the validation images and the order of training.
A cell without ± is one run, an empty one was not reached; "–" is a method that cannot learn from such
labels. What a run took goes to stderr; an interrupted bench prints what it has.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tertium import methods
from tertium.comparing import Row, rows_from
from tertium.config import parse_overrides
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.schemes import parse
from tertium.training.train import train

METHODS = "auto,negative,ignore,role,ll_r,wan,epr:k=3.5"  # 3.5 labels of an image are truly present
SCHEMES = ("single_positive", "random:0.2")
Key = tuple[str, str, str]  # protocol, method, scheme


def read(folder: Path, split: str) -> Labels:
    """Return the full labels of a split: what a line does not list is absent."""
    classes = (folder / "classes.txt").read_text(encoding="utf-8").split()
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["split"] == split]
    values = np.full((len(lines), len(classes)), -1, dtype=np.int8)
    for row, line in enumerate(lines):
        values[row, [int(number) for number in line["labels"].split()]] = 1
    return Labels.from_dense(values, classes=classes, images=[line["image"] for line in lines])


def fits(row: Row, known: Labels) -> bool:
    names = methods.parameters_of(methods.find(row.method))
    try:
        parameters = {key: value for key, value in row.given.items() if key in names}
        methods.make(row.method, parameters).check(known)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class Task:
    """One training run."""

    folder: Path
    protocol: str
    row: Row
    scheme: str
    settings: Mapping[str, Any]

    def measured(self) -> float | None:
        """Train on what is known and return the test mAP; None where the method cannot learn from it."""
        torch.set_num_threads(1)
        seed, images = self.settings["seed"], self.folder / "images"
        known = parse(self.scheme).apply(read(self.folder, "train"), seed)
        if not fits(self.row, known):
            return None
        before = time.process_time()
        outcome = train(
            known,
            images,
            method=self.row.method,
            config={"protocol": self.protocol, "workers": 0, **self.settings, **self.row.given},
        )
        found = outcome.trained.evaluate(read(self.folder, "test"), images).map_c
        summary = outcome.summary
        scores = " ".join(f"{100 * record['score']:.1f}" for record in outcome.records)
        print(
            f"{self.protocol} {self.row.name} {self.scheme} seed {seed}: test {100 * found:.2f}, "
            f"{summary['phase']} epoch {summary['best_epoch']} of {summary['epochs']}, "
            f"validation {scores}, {time.process_time() - before:.0f} s of CPU",
            file=sys.stderr,
            flush=True,
        )
        return float(found)


def tasks(options: argparse.Namespace) -> list[Task]:
    """Everything with one seed before the next, so that an interrupted bench has whole tables."""
    return [
        Task(options.folder, protocol, row, scheme, settings)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for protocol in options.protocols
        for settings in [
            {"seed": seed, "image_size": options.image_size}
            | ({} if protocol == "linear" else {"whole.epochs": options.epochs})
            | parse_overrides(options.settings)
        ]
        for scheme in options.schemes
        for row in rows_from(options.methods)
    ]


def cell(values: list[float | None]) -> str:
    scores = [100 * value for value in values if value is not None]
    if not scores:
        return "–" if values else ""
    half = f" ± {np.ptp(scores) / 2:.1f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.1f}{half}"


def show(found: dict[Key, list[float | None]]) -> None:
    for protocol in dict.fromkeys(key[0] for key in found):
        names = dict.fromkeys(key[1] for key in found if key[0] == protocol)
        schemes = dict.fromkeys(key[2] for key in found if key[0] == protocol)
        print(f"\n| {protocol} | " + " | ".join(schemes) + " |\n|---" + "|---" * len(schemes) + "|")
        for name in names:
            cells = [cell(found.get((protocol, name, scheme), [])) for scheme in schemes]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ucmerced")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default=METHODS, help="as for tertium compare, separated by commas")
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--protocols", nargs="+", default=("linear", "linear_init"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to go on where a bench was interrupted")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6, help="of training everything")
    parser.add_argument("--settings", nargs="+", default=(), metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    found: dict[Key, list[float | None]] = defaultdict(list)
    planned = tasks(options)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(task.measured): task for task in planned}
        try:
            for run in as_completed(running):
                task = running[run]
                found[task.protocol, task.row.name, task.scheme].append(run.result())
        finally:
            pool.shutdown(cancel_futures=True)
            show(found)


if __name__ == "__main__":
    main()
