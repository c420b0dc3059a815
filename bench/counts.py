"""How many labels an image has, from partial labels: ``python -m bench.counts ../shared/data``.

Prints how often two intervals hold the true mean of the images, and how wide they are: if all classes err
alike, and if errors are a class's own but labels of an image go together and may be known together
(`Frequencies.per_image`). Every draw takes other images and hides other labels. The table is that of
docs/auto.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.together import attributes, everything
from tertium.labels import Labels
from tertium.schemes import parse
from tertium.training.train import class_frequencies

SIZES = {"attributes": 1000, "yeast": 1200, "CAL500": 400, "coco": 2000}  # images of a draw
SCHEMES = ("random:0.1", "random:0.3", "session:0.2", "positives:0.3")
Ends = tuple[float, float]


def draws(name: str, spec: str, folder: Path, seeds: int) -> Iterator[tuple[float, float, Ends, Ends | None]]:
    """Yield the truth, the estimate, and both intervals."""
    features, truth = everything(name, folder) or attributes(4000, 0)
    for seed in range(1, seeds + 1):
        some = np.sort(np.random.default_rng(1000 + seed).permutation(len(features))[: SIZES[name]])
        full = Labels.from_dense(truth[some], images=[f"{seed}-{number}" for number in some])
        inputs = features[some].astype(np.float32)
        _, found = class_frequencies(parse(spec).apply(full, seed), features=inputs, seed=seed)
        alike = float(found.low.sum()), float(found.high.sum())
        yield float(full.image_counts[0].mean()), found.labels_per_image, alike, found.per_image


def line(name: str, spec: str, folder: Path, seeds: int) -> str:
    made = list(draws(name, spec, folder, seeds))
    real, found = (np.array([each[place] for each in made]) for place in (0, 1))
    cells = [f"{real.mean():.2f}", f"{100 * np.abs(found / real - 1).mean():.1f} %"]
    for place in (2, 3):
        pairs = [(each[0], each[place]) for each in made if each[place] is not None]
        held = sum(ends[0] <= mine <= ends[1] for mine, ends in pairs)
        width = np.mean([(ends[1] - ends[0]) / mine for mine, ends in pairs]) if pairs else np.nan
        cells.append(f"{held} of {len(pairs)}, {100 * width:.0f} %" if pairs else "–")
    return f"| {name} | {spec} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.counts")
    parser.add_argument("folder", type=Path, help="with the folders coco and tabular")
    parser.add_argument("--sets", nargs="+", default=tuple(SIZES))
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| set | scheme | labels per image | error | classes alike: held, width | by images |")
    print("|---" * 6 + "|")
    for name in options.sets:
        for spec in options.schemes:
            print(line(name, spec, options.folder, options.seeds), flush=True)


if __name__ == "__main__":
    main()
