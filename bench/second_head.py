"""What `auto` gains by how it keeps an epoch, and by a second head: python -m bench.second_head DIR [seeds].

On images of the training split of DIR that are not trained on; the test split is not touched. DIR is COCO
(``labels.csv``, ``train_features.npy``; 5,000 images held out) or UC Merced (``images/``; 256, at 96 pixels).
Prints mAP with the epoch chosen by known labels, with that of the highest likelihood, with the one that is
kept, with the second head averaged in, and with the epoch that would have been best; means over the seeds,
which are separated by commas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from bench import ucmerced
from tertium.data.feature_files import load_features
from tertium.data.inputs import open_inputs
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor
from tertium.prediction.trained import Trained
from tertium.progress import Progress
from tertium.schemes import parse
from tertium.training.train import train

COCO = ("single_positive", "random:0.1", "random:0.3", "positives:0.3", "per_class:100", "balanced:0.1")
UCMERCED = ("single_positive", "random:0.2", "positives:0.3", "random:0.1")


def read_coco(folder: Path) -> tuple[Labels, np.ndarray]:
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")
    return labels, load_features(folder / "train_features.npy", len(labels))


def read_ucmerced(folder: Path) -> tuple[Labels, np.ndarray]:
    labels = ucmerced.read(folder, "train")
    pictures = open_inputs(folder / "images", None, labels.images.to_pylist()).pictures
    extractor = Extractor(pretrained(size=96), device=torch.device("cpu"), workers=0, progress=Progress())
    return labels, extractor(pictures)


def gains(known: Labels, features: np.ndarray, truth: Labels, others: np.ndarray, seed: int) -> list[float]:
    def measured(model: torch.nn.Module) -> float:
        return 100 * Trained(model, np.full(len(truth.classes), 0.5)).evaluate(truth, features=others).map_c

    outcome = train(known, features=features, method="auto", seed=seed, patience=99, watch=measured)
    records = outcome.records
    by_labels, by_likelihood, best = (
        max(records, key=lambda record: record[name]) for name in ("score", "judged", "watched")
    )
    kept = records[outcome.summary["best_epoch"] - 1]
    second = measured(outcome.trained.model)
    return [by_labels["watched"], by_likelihood["watched"], kept["watched"], second, best["watched"]]


def main(folder: Path, seeds: list[int]) -> None:
    coco = (folder / "train_features.npy").is_file()
    labels, features = read_coco(folder) if coco else read_ucmerced(folder)
    order = np.random.default_rng(99).permutation(len(labels))
    apart, rows = (np.sort(part) for part in np.split(order, [5000 if coco else 256]))
    print("| | known labels | highest likelihood | kept | second head | best |\n|---|---|---|---|---|---|")
    for scheme in COCO if coco else UCMERCED:
        found = [
            gains(
                parse(scheme).apply(labels[rows], seed),
                features[rows],
                labels[apart],
                features[apart].astype(np.float32),
                seed,
            )
            for seed in seeds
        ]
        print(
            f"| {scheme} | " + " | ".join(f"{value:.1f}" for value in np.mean(found, axis=0)) + " |",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), [int(seed) for seed in (sys.argv[2] if len(sys.argv) > 2 else "11").split(",")])
