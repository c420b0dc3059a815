"""Decision thresholds; prints the table of docs/training.md.

Run it as ``python -m bench.thresholds ../shared/data/coco``. A linear head is trained with `auto` on partial
labels; F1 is that on test images. Thresholds come from validation images: by the F1 of their known labels
alone, or by the F1 that is expected of all, which is what a run does; beside them one half for every class,
and what full labels of the validation images would have chosen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.metrics.evaluation import best_thresholds, evaluate
from tertium.schemes import parse
from tertium.training.train import train

SCHEMES = ("single_positive", "random:0.1", "random:0.3", "positives:0.3", "per_class:100", "balanced:0.1")
SHARE, SEED = 0.15, 0  # of the training images that validate


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    labels = read_labels(folder / "labels.csv", unlisted="absent")
    test, full = labels.part("test"), labels.part("train")
    features, unseen = np.load(folder / "train_features.npy"), np.load(folder / "test_features.npy")
    held_out = np.sort(np.random.default_rng(SEED).permutation(len(full))[: round(SHARE * len(full))])
    print(
        "| scheme | one half | by known labels | by all, expected | by full labels |\n|---|---|---|---|---|"
    )
    for scheme in SCHEMES:
        partial = with_validation(parse(scheme).apply(full, SEED), held_out)
        trained = train(partial, features=features, seed=SEED).trained
        scores = trained.predict_proba(features=features[held_out])
        known = partial.dense(held_out)
        if not (known < 0).any():
            known[known == 0] = -1
        choices = (0.5, best_thresholds(scores, known), trained.thresholds)
        choices += (best_thresholds(scores, full.dense(held_out)),)
        probabilities = trained.predict_proba(features=unseen)
        found = [evaluate(probabilities, test, thresholds=cuts).mF1 for cuts in choices]
        print(f"| {scheme} | " + " | ".join(f"{100 * value:.1f}" for value in found) + " |", flush=True)


def with_validation(labels: Labels, rows: np.ndarray) -> Labels:
    """Return the same labels, with these rows as the part that validates."""
    codes = np.isin(np.arange(len(labels)), rows).astype(np.int32)
    splits = pa.DictionaryArray.from_arrays(codes, ["train", "val"])
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
