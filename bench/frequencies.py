"""Class frequencies from partial labels: how right they are; prints the table of docs/auto.md.

Run it as ``python -m bench.frequencies ../shared/data/coco``. Only training images are used; their full
labels are the truth.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.schemes import parse
from tertium.training.train import class_frequencies

SCHEMES = ("single_positive", "positives:0.3", "random:0.1", "random:0.3", "per_class:100", "balanced:0.1")


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")
    labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images)
    features = np.load(folder / "train_features.npy")
    truth = labels.class_counts[0] / len(labels)
    print(f"seed {seed}; truth: {truth.sum():.2f} labels per image")
    print("| scheme | estimator | labels per image | rank correlation | mean error | in the interval |")
    print("|---|---|---|---|---|---|")
    for scheme in SCHEMES:
        partial = parse(scheme).apply(labels, seed)
        for estimator in ("scores", "ignore"):
            try:
                _, found = class_frequencies(partial, features=features, estimator=estimator, seed=seed)
            except InputError:
                print(f"| {scheme} | {estimator} | – | – | – | – |", flush=True)
                continue
            inside = "–"
            if estimator == "scores":
                inside = f"{((found.low <= truth) & (truth <= found.high)).mean():.0%}"
            error = 100 * np.abs(found.rate - truth).mean()
            print(
                f"| {scheme} | {estimator} | {found.labels_per_image:.2f} | {ranks(found.rate, truth):.3f} | "
                f"{error:.2f} % | {inside} |",
                flush=True,
            )


def ranks(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation; no two classes are equally frequent here."""
    places = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*places)[0, 1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
