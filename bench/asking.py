"""Orders of asking side by side: ``python -m bench.asking ../shared/data --out draws.csv``.

Labels whose truth is known are hidden, `auto` is trained on the rest, questions are asked and answered, and
it is trained again, as `tertium rehearse` does: by the order of `suggest`, by the same order with what
answers tell about other labels, by uncertainty and by chance. The sets are the made-up attributes of
`bench.together` and COCO. ``--out`` keeps every point as a line; draws that are there already are not made
again. Seed 0 was looked at while the order was built.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measure import Row, medians, row
from bench.together import Part, attributes, everything
from tertium.annotation.together import Together
from tertium.labelling.simulating import RULES, simulate
from tertium.labelling.telling import Doubt
from tertium.labels import Labels
from tertium.schemes import parse

SETS, SCHEMES = ("attributes", "coco"), ("random:0.1", "positives:0.3")
ROWS, BUDGET = 4000, 1500  # a quarter of the rows is held out
FIELDS = ("set", "scheme", "seed", "rule", "answers", "present", "map", "known", "right", "error")


def draw(
    name: str, spec: str, seed: int, part: Part | None, size: int = ROWS, budget: int = BUDGET
) -> list[dict[str, Any]]:
    """Compare all orders on one draw of rows and hidden labels."""
    if part is None:
        features, truth = attributes(size, seed, 188 if size > 200 else 20)
    else:
        some = np.sort(np.random.default_rng(1000 + seed).permutation(len(part[0]))[:size])
        features, truth = part[0][some].astype(np.float32), part[1][some]
    full = Labels.from_dense(truth, images=[f"{seed}-{number}" for number in range(size)])
    found = simulate(full, features, scheme=parse(spec), budget=budget, rounds=1, seed=seed)
    return [{"set": name, "scheme": spec} | {key: getattr(each, key) for key in FIELDS[2:]} for each in found]


def lines(points: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give a row for each set, scheme and number of answers: means over the seeds."""
    for name, spec, answers in dict.fromkeys((p["set"], p["scheme"], int(p["answers"])) for p in points):
        here = [p for p in points if (p["set"], p["scheme"], int(p["answers"])) == (name, spec, answers)]
        cells = []
        for rule in RULES:
            mine = [p for p in here if p["rule"] == rule]
            score, known, right, error = (
                np.mean([float(p[key]) for p in mine]) for key in ("map", "known", "right", "error")
            )
            wrong = 100 * (1 - right / known)
            cells.append(f"{100 * score:.1f}; {known:,.0f} ({wrong:.2f} %); {100 * error:.3f}")
        yield f"| {name} | {spec} | {answers:,} | {' | '.join(cells)} |"


def milliseconds(classes: int, rank: int = 32) -> float:
    """Return how long it takes to say what answers about each label of one image tell about the others."""
    rng = np.random.default_rng(0)
    weights, rate = rng.normal(size=(classes, rank)) / rank, rng.uniform(0.05, 0.5, classes)
    even, sure = np.full(classes, 0.1), np.full(classes, 0.6, dtype=np.float32)
    numbers = weights.astype(np.float32), 0 * sure, sure, rate, even, even
    maps = np.zeros((3, 4, rank), dtype=np.float32)
    together = Together(tuple(map(str, range(classes))), *numbers, np.ones((2, classes)), maps)
    shown, labels = np.zeros((1, rank), dtype=np.float32), rng.integers(-1, 2, (1, classes)).astype(np.int8)
    worth, importance = np.where(labels == 0, 0.2, 0.0), np.ones(classes)

    def told() -> np.ndarray:
        doubt = Doubt(together, together.curve[1], worth, together.covariance(shown, labels))
        return doubt.told(importance)

    return 1000 * medians([told], 9)[0]


def rows(smoke: bool = False) -> list[Row]:
    """Return how long it takes to look at one image, and what answers add against random ones."""
    found = draw("attributes", "random:0.1", 1, None, *((200, 40) if smoke else ()))
    last = {each["rule"]: each for each in found}
    score = 100 * (last["tertium"]["map"] - last["random"]["map"])
    size = 100 if smoke else 10_000
    return [
        row("asking", f"others, one image of {size:,} classes, ms", milliseconds(size), "≤", 20),
        row("asking", "attributes, random:0.1: test mAP against random questions", score, "≥", 0.5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.asking")
    parser.add_argument("folder", type=Path, help="with the folder coco")
    parser.add_argument("--out", type=Path, required=True, help="points, .csv; draws that it has are kept")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--budget", type=int, default=BUDGET)
    options = parser.parse_args()
    torch.set_num_threads(1)
    points: list[dict[str, Any]] = []
    if options.out.is_file():
        with open(options.out, encoding="utf-8", newline="") as file:
            points = list(csv.DictReader(file))
    made = {(each["set"], each["scheme"], int(each["seed"])) for each in points}
    for name in options.sets:
        part = everything(name, options.folder)
        for spec in options.schemes:
            for seed in options.seeds:
                if (name, spec, seed) in made:
                    continue
                points += (new := draw(name, spec, seed, part, options.rows, options.budget))
                with open(options.out, "a", encoding="utf-8", newline="") as file:
                    sink = csv.DictWriter(file, FIELDS)
                    if file.tell() == 0:
                        sink.writeheader()
                    sink.writerows(new)
    print(f"| set | scheme | answers | {' | '.join(RULES)} |\n" + "|---" * (3 + len(RULES)) + "|")
    print("\n".join(lines(points)))


if __name__ == "__main__":
    main()
