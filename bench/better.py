"""How often the intervals of `tertium better` hold the truth; prints the tables of docs/evaluate.md.

Run it as ``python -m bench.better ../shared/data/coco``. First on scores that are drawn: the truth is the
difference on very many images. Then on COCO: a head trained on few labels and one trained on more score all
test images, whose difference is the truth; intervals come from samples of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tertium.labels.readers import read_labels
from tertium.labels.splits import TEST, TRAIN
from tertium.metrics.paired import Paired, compare_paired
from tertium.schemes import parse
from tertium.training.train import train

CLASSES, DRAWS = 20, 300
CASES = (  # images, share that shows a class, how far apart present and absent scores lie: old, new
    (30, 0.2, 1.5, 2.0),
    (60, 0.2, 1.5, 1.5),
    (120, 0.1, 1.5, 1.5),
    (400, 0.01, 1.5, 2.0),
    (400, 0.05, 1.5, 1.7),
    (400, 0.3, 1.5, 1.7),
    (2000, 0.02, 1.0, 1.2),
)


def paired(old: np.ndarray, new: np.ndarray, present: np.ndarray) -> Paired:
    """Compare the scores of full labels [N, C]."""
    rows, columns = np.indices(present.shape).reshape(2, -1)
    names, cuts = list(map(str, range(present.shape[1]))), np.full(present.shape[1], 0.5)
    return compare_paired((old.ravel(), new.ravel()), rows, columns, present.ravel(), names, (cuts, cuts))


def drawn(
    rng: np.random.Generator, count: int, rate: float, old: float, new: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores of two models that err alike, and what is present."""
    present = rng.random((count, CLASSES)) < rate
    common = rng.normal(size=present.shape)
    scores = [common + 0.5 * rng.normal(size=present.shape) + gap * present for gap in (old, new)]
    return scores[0], scores[1], present


def synthetic() -> None:
    rng = np.random.default_rng(0)
    print("| images | a class shows in | true difference | mean interval | holds it |")
    print("|---|---|---|---|---|")
    for count, rate, old, new in CASES:
        truth = paired(*drawn(rng, 40_000, rate, old, new)).map_c.gain
        found = [paired(*drawn(rng, count, rate, old, new)).map_c for _ in range(DRAWS)]
        held = np.mean([each.low <= truth <= each.high for each in found])
        half = 50 * np.mean([each.high - each.low for each in found])
        print(f"| {count:,} | {rate:.0%} | {100 * truth:.1f} | ± {half:.1f} | {held:.0%} |", flush=True)


def coco(folder: Path) -> None:
    torch.set_num_threads(1)
    full = read_labels(folder / "labels.csv", unlisted="absent")
    rows, test = full.rows_in(TRAIN)[:5000], full.part(TEST)
    features = np.load(folder / "train_features.npy")[:5000].astype(np.float32)
    unseen = np.load(folder / "test_features.npy").astype(np.float32)
    scores = {}
    for share in (0.05, 0.1, 0.12):
        partial = parse(f"random:{share}").apply(full[rows], 0)
        outcome = train(partial, features=features, method="ignore")
        scores[share] = outcome.trained.predict_proba(features=unseen)
    present, rng = test.dense() > 0, np.random.default_rng(0)
    print("\n| labels known | test images | difference on all | mean interval | holds it |")
    print("|---|---|---|---|---|")
    for old, new in ((0.05, 0.1), (0.1, 0.12)):
        truth = paired(scores[old], scores[new], present).map_c.gain
        for count in (200, 1000):
            found = []
            for _ in range(200):
                some = rng.permutation(len(test))[:count]
                found.append(paired(scores[old][some], scores[new][some], present[some]).map_c)
            held = np.mean([each.low <= truth <= each.high for each in found])
            half = 50 * np.mean([each.high - each.low for each in found])
            row = f"{old:.0%} → {new:.0%} | {count:,} | {100 * truth:.1f} | ± {half:.1f} | {held:.0%}"
            print(f"| {row} |", flush=True)


if __name__ == "__main__":
    synthetic()
    coco(Path(sys.argv[1]))
