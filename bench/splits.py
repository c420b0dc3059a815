"""What a division by names does to rare classes; prints the figures of docs/training.md.

Run it as ``python -m bench.splits ../shared/data/coco``. Labels are hidden, images are divided by their
names, and the classes are counted whose known positives all lie on one side.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tertium.labels.readers import read_labels
from tertium.labels.splits import TRAIN, divide
from tertium.schemes import parse

SHARE, SEEDS = 0.15, range(10)


def main(folder: Path) -> None:
    full = read_labels(folder / "labels.csv", unlisted="absent").part(TRAIN)
    print("| images | scheme | classes without a validation positive | without a training positive |")
    print("|---|---|---|---|")
    for count in (1000, 4000, len(full)):
        for scheme in ("random:0.1", "single_positive"):
            sides = []
            for seed in SEEDS:
                partial = parse(scheme).apply(full[:count], seed)
                parts = divide(partial.images, SHARE, seed)
                sides.append([partial[rows].class_counts[0] > 0 for rows in parts])
            taught, judged = np.moveaxis(np.array(sides), 1, 0)  # [seeds, C]
            unjudged = (taught & ~judged).sum(axis=1).mean()
            untaught = (judged & ~taught).sum(axis=1).mean()
            print(f"| {count:,} | {scheme} | {unjudged:.1f} | {untaught:.1f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
