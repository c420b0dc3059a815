"""Where a paper can be read in two ways: what each reading gives; prints the table of docs/readings.md.

Run it as ``python -m bench.readings ../shared/data/coco``. Models train on 4,000 images and are judged on
4,000 other TRAINING images with full labels; the test images are not looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.readers import read_labels
from tertium.schemes import parse
from tertium.training import train

SCHEMES = ("single_positive", "random:0.3", "balanced:0.1")
SEEDS = (0, 1, 2)
# method → (what is meant, its parameters)
READINGS = {
    "negative": [("weight 1", {}), ("weight 5 (Kundu's FE)", {"positive_weight": 5.0})],
    "soft_exposure": [("equation 8", {}), ("the prose", {"temperature": "prose"})],
    "se_i": [("equation 8", {}), ("the prose", {"temperature": "prose"})],
    "ll_r": [("rate of the unknown", {}), ("rate of all", {"rate_of": "all"})],
    "ll_ct": [("rate of the unknown", {}), ("rate of all", {"rate_of": "all"})],
    "hill": [("weight detached", {}), ("weight differentiated", {"detached": False})],
    "splc": [("weight detached", {}), ("weight differentiated", {"detached": False})],
    "pseudo": [
        ("all unknowns", {}),
        ("a share of 0.3", {"share": 0.3}),
        ("linear exposure", {"exposure": "linear"}),
    ],
    "role": [("rows", {}), ("dense", {"optimizer": "dense"})],
    "em": [("plain", {}), ("with apl", {"apl": True})],
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")
    labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images)
    features = np.load(folder / "train_features.npy")
    print("| method | reading | " + " | ".join(SCHEMES) + " |")
    print("|---|---|" + "---|" * len(SCHEMES))
    for method, readings in READINGS.items():
        for meant, parameters in readings:
            cells = [cell(method, parameters, scheme, labels, features) for scheme in SCHEMES]
            print(f"| `{method}` | {meant} | " + " | ".join(cells) + " |", flush=True)


def cell(method: str, parameters: dict, scheme: str, labels: Labels, features: np.ndarray) -> str:
    """Return the mean over seeds and, behind ±, half the range."""
    found = []
    for seed in SEEDS:
        chosen = np.random.default_rng(seed).permutation(len(labels))
        rows, others = np.sort(chosen[:4000]), np.sort(chosen[4000:8000])
        partial = parse(scheme).apply(labels[rows], seed)
        try:
            trained = train(
                partial, features=features[rows], method=method, seed=seed, parameters=parameters
            ).trained
        except InputError:
            return "–"
        found.append(100 * trained.evaluate(labels[others], features=features[others]).map_c)
    return f"{np.mean(found):.1f} ± {(max(found) - min(found)) / 2:.1f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
