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

from bench.measure import Row, row
from bench.together import Part, attributes, everything
from tertium.labelling.simulating import RULES, simulate
from tertium.labels import Labels
from tertium.schemes import parse

SETS, SCHEMES = ("attributes", "coco"), ("random:0.1", "positives:0.3")
ROWS, BUDGET, ROUNDS = 4000, 1500, 1  # a quarter of the rows is held out
FIELDS = ("set", "scheme", "seed", "rule", "answers", "present", "map", "known", "right", "error")


def draw(name: str, spec: str, seed: int, part: Part | None, smoke: bool = False) -> list[dict[str, Any]]:
    """Compare all orders on one draw of rows and hidden labels."""
    size, budget, rounds = (200, 40, 1) if smoke else (ROWS, BUDGET, ROUNDS)
    if part is None:
        features, truth = attributes(size, seed, 20 if smoke else 188)
    else:
        some = np.sort(np.random.default_rng(1000 + seed).permutation(len(part[0]))[:size])
        features, truth = part[0][some].astype(np.float32), part[1][some]
    full = Labels.from_dense(truth, images=[f"{seed}-{number}" for number in range(size)])
    found = simulate(full, features, scheme=parse(spec), budget=budget, rounds=rounds, seed=seed)
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


def rows(smoke: bool = False) -> list[Row]:
    """Return what answers add on made-up attributes by the order of `suggest`, and at random."""
    found = draw("attributes", "random:0.1", 1, None, smoke)
    last = {each["rule"]: each for each in found}
    score = 100 * (last["tertium"]["map"] - last["random"]["map"])
    return [row("asking", "attributes, random:0.1: test mAP against random questions", score, "≥", 0.5)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.asking")
    parser.add_argument("folder", type=Path, help="with the folder coco")
    parser.add_argument("--out", type=Path, required=True, help="points, .csv; draws that it has are kept")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
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
                points += (new := draw(name, spec, seed, part))
                with open(options.out, "a", encoding="utf-8", newline="") as file:
                    sink = csv.DictWriter(file, FIELDS)
                    if file.tell() == 0:
                        sink.writeheader()
                    sink.writerows(new)
    print(f"| set | scheme | answers | {' | '.join(RULES)} |\n" + "|---" * (3 + len(RULES)) + "|")
    print("\n".join(lines(points)))


if __name__ == "__main__":
    main()
