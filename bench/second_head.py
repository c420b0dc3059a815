"""What `auto` gains by choosing its epoch, and by a second head: python -m bench.second_head DIR [seed].

On 5,000 images of the training split of DIR (``labels.csv``, ``train_features.npy``) that are not trained
on; the test split is not touched. Prints mAP with the epoch chosen by known labels, with the epoch chosen by
the likelihood, and with the second head averaged in.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tertium.inputs import load_features
from tertium.labels import Labels
from tertium.predict import Trained
from tertium.readers import read_labels
from tertium.schemes import parse
from tertium.training import train

SCHEMES = ("single_positive", "random:0.1", "random:0.3", "positives:0.3", "per_class:100", "balanced:0.1")
HELD_OUT = 5000


def gains(known: Labels, features: np.ndarray, truth: Labels, others: np.ndarray, seed: int) -> list[float]:
    def measured(model: torch.nn.Module) -> float:
        return Trained(model, np.full(len(truth.classes), 0.5), 0).evaluate(truth, features=others).map_c

    outcome = train(known, features=features, method="auto", seed=seed, patience=99, watch=measured)
    by_labels = max(outcome.records, key=lambda record: record["score"])
    by_likelihood = outcome.records[outcome.summary["best_epoch"] - 1]
    return [by_labels["watched"], by_likelihood["watched"], measured(outcome.trained.model)]


def main(folder: Path, seed: int) -> None:
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")
    features = load_features(folder / "train_features.npy", len(labels))
    order = np.random.default_rng(99).permutation(len(labels))
    apart, rows = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
    print("| | known labels | likelihood | second head |\n|---|---|---|---|")
    for scheme in SCHEMES:
        known = parse(scheme).apply(labels[rows], seed)
        found = gains(known, features[rows], labels[apart], features[apart], seed)
        print(f"| {scheme} | " + " | ".join(f"{100 * value:.1f}" for value in found) + " |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 11)
