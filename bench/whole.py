"""Whole networks on photographs: python -m bench.whole ../shared/data [--data coco ucmerced] [--show].

Hides labels of 3,000 photographs of COCO, or of UC Merced's 1,280, trains on what is left and prints mAP on
1,500, or 320, test photographs, which decide nothing: the head alone (``linear``), then everything
(``linear_init``), and everything at once (``finetune``), each with the epoch that known labels choose and
after the last one. ``theirs`` is ``finetune`` as the papers have it (``recipe=kim2022``: a random head, a
constant rate, the epoch chosen on true labels), ``theirs_init`` is their ``linear_init``. Runs are kept in
bench/evidence/whole.csv: the same command goes on. ``--minutes`` ends it early, ``--show`` only prints what
is there. ``--data coco-training`` holds out training photographs and leaves test images alone, to choose
settings by: with ``--settings`` each run is printed, and none is kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from bench import ucmerced
from bench.ablation import EXPECTED, row
from bench.cells import EVIDENCE, Evidence, Figures, one_thread
from tertium.comparing import Row, rows_from
from tertium.config import parse_overrides
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.models.classifier import Classifier
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.memorisation import KINDS
from tertium.training.session import Outcome
from tertium.training.train import train

PHOTOGRAPHS = {"train": 3000, "test": 1500}  # of COCO that have images
# In place of test images, so many training images, which are then not trained on: to choose defaults by.
HELD_OUT = {"coco-training": 500, "ucmerced-training": 256}
METHODS = (
    "auto",
    "negative",
    "ignore",
    "an_ls",
    "wan",
    "epr",
    "role",
    "ll_r",
    "ll_ct",
    "ll_cp",
    "selective",
    "pseudo",
    "hill",
    "splc",
)
LARGE = ("negative", "ll_r", "ll_ct", "ll_cp")
PAPERS = ("an_ls", "wan", "epr", "role", *LARGE)  # of the tables that "theirs" checks
SCHEMES = ("single_positive", "random:0.1")
SIZE = 64  # pixels; of all lines, which do not say it
EPOCHS = {"whole.epochs": 6, "whole.patience": 6}
# They train on 82,000 images. With 27 times fewer steps their rates teach next to nothing (`an_ls`: test mAP
# 12.9 after ten epochs), so that these are ten times as high.
THEIRS = {"recipe": "kim2022", "whole.lr": 1e-3, "whole.backbone_lr": 1e-4}
WAYS: dict[str, dict[str, Any]] = {
    "linear": {"protocol": "linear"},
    "linear_init": {"protocol": "linear_init", **EPOCHS},
    "finetune": {"protocol": "finetune", **EPOCHS},
    "theirs": {"protocol": "finetune", **THEIRS},
    "theirs_init": {"protocol": "linear_init", **THEIRS, "head.lr": 1e-3},
}
KEYS = ("data", "scheme", "row", "way", "seed")
NUMBERS = ("score", "validation", "best_epoch", "whole", "seconds")
SERIES = ("tests", *KINDS, "altered", "precision", "validations")
# Losses, test mAP, and how many of the labels that a method alters are present: with so many digits.
CURVES = {**dict.fromkeys(KINDS, 3), "tests": 1, "precision": 1}


def opened() -> Evidence:
    """Return the runs that were made."""
    return Evidence(EVIDENCE / "whole.csv", KEYS, NUMBERS, SERIES)


class Task(NamedTuple):
    """One training run."""

    data: str
    scheme: str
    row: str
    way: str
    seed: int


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Everything with one seed before the next, so that what is there makes whole tables."""
    for seed in range(options.seeds):
        for way in options.ways:
            for data in options.data:
                for scheme in options.schemes:
                    for method in of_way(way, scheme, options.methods):
                        yield Task(data, scheme, named(data, method), way, seed)


def named(data: str, method: str) -> str:
    """Return a method as the papers' tables have it: `epr` and `role` are told the number of labels."""
    return row(data.removesuffix("-training"), method, "")


def of_way(way: str, scheme: str, methods: Sequence[str]) -> list[str]:
    """Return which methods are run that way."""
    ours = not way.startswith("theirs")
    if not ours and scheme != "single_positive":
        return []
    chosen = METHODS if ours else PAPERS
    return [method for method in chosen if method in methods]


class Photographs:
    """A data set: labels of both splits, the folder of the images, and the pixels of the test images."""

    def __init__(self, shared: Path, name: str) -> None:
        self.folder, self.name = shared / name.removesuffix("-training"), name
        self.images = self.folder / "images"

    @cached_property
    def training(self) -> Labels:
        return self._labels("train")[self._divided[1]] if self.name in HELD_OUT else self._labels("train")

    @cached_property
    def test(self) -> Labels:
        return self._labels("train")[self._divided[0]] if self.name in HELD_OUT else self._labels("test")

    @cached_property
    def _divided(self) -> tuple[np.ndarray, np.ndarray]:
        """Which training images are held out, by chance, and which are not."""
        order, count = np.random.default_rng(99).permutation(len(self._labels("train"))), HELD_OUT[self.name]
        return np.sort(order[:count]), np.sort(order[count:])

    def _labels(self, split: str) -> Labels:
        if self.folder.name == "ucmerced":
            return ucmerced.read(self.folder, split)
        labels = read_labels(self.folder / "labels.csv", unlisted="absent").part(split)
        part = labels[: PHOTOGRAPHS[split]]
        return Labels(part.offsets, part.entries, part.classes, part.images)

    @cached_property
    def pixels(self) -> np.ndarray:
        """The test images [N, H, W, 3], decoded once."""
        names = self.test.images.to_pylist()
        return np.stack([np.asarray(Image.open(self.images / name).convert("RGB")) for name in names])

    def score(self, trained: Trained) -> float:
        return trained.evaluate(self.test, self.pixels).map_c


def measured(photographs: Photographs, task: Task, chosen: Row, settings: Mapping[str, str]) -> Figures:
    """Train, and return the figures; none where the method cannot learn from such labels."""
    known = parse(task.scheme).apply(photographs.training, task.seed)
    if not ucmerced.fits(chosen, known):
        return {}

    def tested(model: Classifier) -> float | None:
        if model.backbone is None:  # the head of linear_init
            return None
        return photographs.score(Trained(model, np.full(len(model.classes), 0.5)))

    started = time.process_time()
    outcome = train(
        known,
        photographs.images,
        method=chosen.method,
        truth=photographs.training,
        watch=tested,
        expected_map=False,
        config={"seed": task.seed, "image_size": SIZE, "workers": 0}
        | WAYS[task.way]
        | chosen.given
        | dict(settings),
    )
    return figures(outcome) | {
        "score": photographs.score(outcome.trained),
        "seconds": time.process_time() - started,
    }


def figures(outcome: Outcome) -> Figures:
    summary = outcome.summary
    epochs = [record for record in outcome.records if record["phase"] == "whole"]
    memories = [record["memory"] for record in epochs]
    return {
        "validation": summary["validation_score"],
        "best_epoch": summary["best_epoch"],
        "whole": float(summary["phase"] == "whole"),  # or the head alone was kept
        "tests": [record["watched"] for record in epochs],
        **{kind: [memory["loss"][kind] for memory in memories] for kind in KINDS},
        "altered": [memory["altered"] for memory in memories],
        "precision": [memory["precision"] or 0.0 for memory in memories],
        "validations": [record["score"] or 0.0 for record in epochs],
    }


def run(evidence: Evidence, options: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * options.minutes
    settings = parse_overrides(options.settings)
    sets: dict[str, Photographs] = {}
    for task in tasks(options):
        if not settings and evidence.get(*task) is not None:
            continue
        if time.monotonic() > end:
            print("the time is up", file=sys.stderr)
            return
        photographs = sets.setdefault(task.data, Photographs(options.shared, task.data))
        (chosen,) = rows_from(task.row)
        found = measured(photographs, task, chosen, settings)
        if not settings:
            evidence.add(task, found)
        tests, known = (
            " ".join(f"{100 * score:.1f}" for score in found.get(name, []))
            for name in ("tests", "validations")
        )
        told = f"tests {tests}; known validation labels {known}; seconds {found.get('seconds')}"
        print(*task, found.get("score"), told, file=sys.stderr, flush=True)


# ---- tables ------------------------------------------------------------------------------------------------

COLUMNS = [
    (way, last) for way in ("linear_init", "finetune", "theirs_init", "theirs") for last in (False, True)
]


@dataclass(frozen=True)
class Tables:
    """What there is, as tables: means over the seeds ± half their range."""

    evidence: Evidence
    seeds: int = 2

    def found(self, data: str, scheme: str, method: str, way: str) -> dict[int, Figures]:
        """Return the figures of the runs that are there, by their seeds."""
        name = named(data, method)
        lines = {seed: self.evidence.get(data, scheme, name, way, seed) for seed in range(self.seeds)}
        return {seed: line for seed, line in lines.items() if line and line["score"] is not None}

    def scores(self, data: str, scheme: str, method: str, way: str, last: bool) -> dict[int, float]:
        lines = self.found(data, scheme, method, way)
        return {seed: 100 * (line["tests"][-1] if last else line["score"]) for seed, line in lines.items()}

    def cell(self, data: str, scheme: str, method: str, way: str, last: bool) -> str:
        return mean(list(self.scores(data, scheme, method, way, last).values()))

    def gain(self, data: str, scheme: str, method: str, way: str, last: bool) -> list[float]:
        """Return how far a method is ahead of `negative` with each seed that both have."""
        own, other = (self.scores(data, scheme, name, way, last) for name in (method, "negative"))
        return [own[seed] - other[seed] for seed in own if seed in other]

    def ways(self, data: str, scheme: str) -> str:
        """Return every method each way: chosen by known labels, and after the last epoch."""
        columns = [("linear", False), *COLUMNS[:4]]
        lines = heading(f"{data}, {scheme}", columns)
        for method in METHODS:
            cells = [self.cell(data, scheme, method, way, last) for way, last in columns]
            if any(cells):
                lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def gains(self, data: str) -> str:
        """Return how far each method of the papers is ahead of `negative` with one positive label."""
        scheme = "single_positive"
        own = {column: self.cell(data, scheme, "negative", *column) for column in COLUMNS}
        columns = [column for column, cell in own.items() if cell]
        lines = heading(f"{data}, {scheme}", columns)
        lines.append("| `negative` | " + " | ".join(own[column] for column in columns) + " |")
        for method in (name for name in PAPERS if name != "negative"):
            cells = [mean(self.gain(data, scheme, method, *column), "+") for column in columns]
            lines.append(f"| `{method}`, ahead by | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def curves(self, data: str, way: str) -> str:
        """Return what is learned and what is memorised, epoch by epoch, with the first seed."""
        lines = []
        for method in LARGE:
            found = self.found(data, "single_positive", method, way).get(0)
            for name, digits in CURVES.items() if found else ():
                values = [value * (100 if digits == 1 else 1) for value in found[name]]
                if not any(values):  # nothing is altered
                    continue
                if not lines:
                    lines.append(
                        f"| {data}, {way} | " + " | ".join(map(str, range(1, 1 + len(values)))) + " |"
                    )
                    lines.append("|---" * (len(values) + 1) + "|")
                told = " | ".join(f"{value:.{digits}f}" for value in values)
                lines.append(f"| `{method}`, {name.replace('_', ' ')} | {told} |")
        return "\n".join(lines) + "\n"


def heading(first: str, columns: Sequence[tuple[str, bool]]) -> list[str]:
    names = [f"{way}, last epoch" if last else way for way, last in columns]
    return [f"| {first} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]


def mean(values: Sequence[float], sign: str = "") -> str:
    """Return the mean ± half the range; nothing of nothing."""
    if not values:
        return ""
    half = f" ± {np.ptp(values) / 2:.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.1f}{half}"


def show(evidence: Evidence, options: argparse.Namespace) -> None:
    tables = Tables(evidence, options.seeds)
    for data in options.data:
        for scheme in options.schemes:
            print(tables.ways(data, scheme))
        print(tables.gains(data))
        for way in ("finetune", "theirs"):
            print(tables.curves(data, way))
    print(evidence.cost())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.whole")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--data", nargs="+", default=tuple(EXPECTED))
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=tuple(WAYS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--settings", nargs="+", default=(), metavar="KEY=VALUE", help="tried, not kept")
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    one_thread()
    evidence = opened()
    if not options.show:
        run(evidence, options)
    if not options.settings:
        show(evidence, options)


if __name__ == "__main__":
    main()
