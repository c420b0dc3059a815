"""`auto` beside other methods on small dense tables: python -m bench.tabular FOLDER [sets] [seeds].

FOLDER has MULAN's sets (``yeast.arff.gz`` with ``yeast.xml.gz``). A third of the rows tests, drawn by the
seed; labels of the others are hidden. Prints mAP on the test rows, averaged over the seeds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.arff import read
from tertium.schemes import parse
from tertium.training.train import train

METHODS = ["auto", "ignore", "negative", "wan", "an_ls", "epr", "role", "ll_r", "ll_ct", "ll_cp", "selective"]
METHODS += ["soft_exposure", "pseudo", "hill"]
SCHEMES = ["random:0.1", "random:0.3", "positives:0.3", "single_positive"]


def table(folder: Path, name: str, seeds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "features.npy"
        labels = read(folder / f"{name}.arff.gz", xml=folder / f"{name}.xml.gz", features=file).labels
        features = np.load(file)
    per_image = float(labels.class_counts[0].sum() / len(labels))
    print(f"\n{name}: {len(labels):,} rows, {len(labels.classes)} classes, {per_image:.1f} labels a row")
    print("| method | " + " | ".join(SCHEMES) + " |\n|---|" + "---|" * len(SCHEMES))
    for method in METHODS:
        cells = []
        for scheme in SCHEMES:
            found = [score(labels, features, method, scheme, seed, per_image) for seed in range(seeds)]
            cells.append("–" if None in found else f"{100 * np.mean(found):.1f}")
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


def score(
    labels: Labels, features: np.ndarray, method: str, scheme: str, seed: int, per_image: float
) -> float | None:
    order = np.random.default_rng(seed).permutation(len(labels))
    test, rows = np.sort(order[: len(labels) // 3]), np.sort(order[len(labels) // 3 :])
    partial = parse(scheme).apply(labels[rows], seed)
    given = {"k": per_image} if method == "epr" else {}
    try:
        outcome = train(partial, features=features[rows], method=method, seed=seed, **given)
    except InputError:
        return None
    return outcome.trained.evaluate(labels[test], features=features[test]).map_c


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    for name in (arguments[1] if len(arguments) > 1 else "yeast,CAL500").split(","):
        table(Path(arguments[0]), name, int(arguments[2]) if len(arguments) > 2 else 3)
