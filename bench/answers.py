"""Answers learned as answers, or merged into the labels: ``python -m bench.answers``.

Labels of made-up attributes (`bench.together`) are hidden, `auto` is trained on the rest and asks, and it is
trained again in both ways: with ``answers=``, and on labels that hold the answers. How many labels an image
is expected to have shows whether the answers pass for a sign of how labels were annotated.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.together import attributes
from tertium.annotation.answered import Answered
from tertium.annotation.record import Annotation
from tertium.labelling.simulating import answered, parts
from tertium.labelling.suggesting import suggest
from tertium.labels import Labels
from tertium.schemes import parse
from tertium.training.train import train

WAYS = ("before", "merged", "answers")


def draw(
    rows: int, budget: int, scheme: str, seed: int, classes: int = 188
) -> dict[str, tuple[float, float]]:
    """Return for each way the expected labels per image and the mAP on other images; the truth too."""
    features, truth = attributes(rows, seed, classes)
    full = Labels.from_dense(truth, images=[f"{seed}-{number}" for number in range(rows)])
    training, held_out, inputs, held_inputs = parts(full, features, None, seed)
    hidden = parse(scheme).apply(training, seed)
    found = {"truth": (float((training.dense() > 0).sum(axis=1).mean()), np.nan)}
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:

        def trained(way: str, labels: Labels, **more: Any) -> Path:
            out = Path(folder, way)
            model = train(labels, features=inputs, out=out, seed=seed, **more).trained
            told = Annotation.of_run(out)
            assert told is not None
            score = 100 * model.evaluate(held_out, features=held_inputs).map_c
            found[way] = float(told.rate.sum()), score
            return out

        run = trained("before", hidden)
        asked = suggest(run, hidden, features=inputs, budget=budget)
        columns = np.array([hidden.column(name) for name in asked.labels])
        answers = answered(training, hidden.rows_of(asked.images), columns)
        trained("merged", Answered.among(hidden, answers).put_into(hidden))
        trained("answers", hidden, answers=answers)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.answers")
    parser.add_argument("--rows", type=int, default=2000, help="a quarter of them is held out")
    parser.add_argument("--budget", type=int, default=750)
    parser.add_argument("--schemes", nargs="+", default=("random:0.1",))
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| scheme | seed | labels per image: truth | {' | '.join(WAYS)} | mAP: {' | '.join(WAYS)} |")
    print("|---" * 9 + "|")
    for scheme in options.schemes:
        for seed in options.seeds:
            found = draw(options.rows, options.budget, scheme, seed)
            counts = [f"{found[way][0]:.1f}" for way in ("truth", *WAYS)]
            scores = [f"{found[way][1]:.1f}" for way in WAYS]
            print(f"| {scheme} | {seed} | {' | '.join(counts)} | {' | '.join(scores)} |", flush=True)


if __name__ == "__main__":
    main()
