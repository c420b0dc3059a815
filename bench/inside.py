"""What papers show inside training, for docs/results.md: python -m bench.inside DIR [WHAT]...

DIR has ``labels.csv`` and ``train_features.npy``; only the training split is used, with one positive left of
each image (seed 0). ``memory``: Kim's Table 1 and Figures 1 and 4. ``probabilities``: Cole's histogram of
unobserved positives. Without a name, both. ``python -m bench.inside classes FILE SCHEME METHOD OTHER`` reads
``results-classes.csv`` of a comparison instead: the gain over another method, class by class, against what is
missing (Kundu's Figure 5). ``class FILE SCHEME CLASS`` prints the AP of one class for each method, ``overall
FILE SCHEME`` the mean AP in which a class counts as often as it is present (Ben-Baruch's mAP(O)).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pyarrow import csv

from tertium.data.feature_files import load_features
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import Method
from tertium.methods.baselines import Negative
from tertium.metrics.evaluation import spearman
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.memorisation import KINDS
from tertium.training.session import Outcome
from tertium.training.train import train

SCHEME, SEED = "single_positive", 0
# Nothing is held out, so that no run stops early: memorising begins where early stopping would end.
WHOLE = {"seed": SEED, "validation": 0.0}


@dataclass(frozen=True)
class Even(Negative):
    """`negative` from one half, as a head that is not told how rare classes are."""

    def initial_rate(self, labels: Labels) -> np.ndarray:
        return np.full(len(labels.classes), 0.5)


def memory(labels: Labels, features: np.ndarray) -> None:
    shown = parse(SCHEME).apply(labels, SEED)

    def followed(method: str | Method) -> Outcome:
        return train(shown, features=features, method=method, truth=labels, **WHOLE)

    plain = {"`negative`": followed("negative"), "`negative`, from one half": followed(Even())}
    print(f"| highest loss in epoch 1 | {' | '.join(KINDS)} |\n|---{'|---' * len(KINDS)}|")
    for name, outcome in plain.items():
        first = outcome.summary["memorised"]["head"]["highest_in_first_epoch"]
        print(f"| {name} | " + " | ".join(f"{100 * first[kind]:.1f} %" for kind in KINDS) + " |")
    for name, outcome in plain.items():
        for kind in KINDS:
            losses = [record["memory"]["loss"][kind] for record in outcome.records]
            print(f"| {name}, mean loss, {kind} | " + " | ".join(f"{loss:.3f}" for loss in losses) + " |")
    for name in ("ll_r", "ll_ct", "ll_cp"):
        epochs = [record["memory"] for record in followed(name).records]
        shares = [
            "–" if epoch["precision"] is None else f"{100 * epoch['precision']:.1f}" for epoch in epochs
        ]
        print(f"| `{name}`, precision | " + " | ".join(shares) + " |")
        print(f"| `{name}`, altered | " + " | ".join(f"{epoch['altered']:,}" for epoch in epochs) + " |")
    print(f"at random: {100 * epochs[0]['base_rate']:.1f} %", flush=True)


def probabilities(labels: Labels, features: np.ndarray) -> None:
    shown = parse(SCHEME).apply(labels, SEED)
    dense, known = labels.dense(), shown.dense()
    hidden, absent = (known == 0) & (dense > 0), dense < 0

    def shares(model: torch.nn.Module) -> list[float]:
        found = Trained(model, np.full(len(labels.classes), 0.5)).predict_proba(features=features)
        return [float((found[part] > cut).mean()) for part in (hidden, absent) for cut in (0.1, 0.5)]

    print("| epoch | unobserved positives > 0.1 | > 0.5 | absences > 0.1 | > 0.5 |\n|---|---|---|---|---|")
    for name in ("negative", "role"):
        outcome = train(shown, features=features, method=name, watch=shares, **WHOLE)
        for record in outcome.records:
            told = " | ".join(f"{100 * share:.2f} %" for share in record["watched"])
            print(f"| `{name}`, epoch {record['epoch']} | {told} |", flush=True)


def classes(path: Path, scheme: str, method: str, other: str) -> None:
    rows = [row for row in csv.read_csv(path).to_pylist() if row["scheme"] == scheme]
    gains, missing = [], []
    mine = {(row["seed"], row["class"]): row for row in rows if row["method"] == method}
    for row in rows:
        if row["method"] == other and (row["seed"], row["class"]) in mine:
            gains.append(mine[row["seed"], row["class"]]["ap"] - row["ap"])
            missing.append(1 - row["present"] / row["truly_present"])
    print(f"{len(gains)} classes and seeds, Spearman's correlation {spearman(gains, missing):.2f}")


def one_class(path: Path, scheme: str, name: str) -> None:
    found = defaultdict(list)
    for row in csv.read_csv(path).to_pylist():
        if (row["scheme"], row["class"]) == (scheme, name):
            found[row["method"]].append(100 * row["ap"])
    for method, values in found.items():
        print(f"| `{method}` | {np.mean(values):.1f} |")


def overall(path: Path, scheme: str) -> None:
    found = defaultdict(list)
    for row in csv.read_csv(path).to_pylist():
        if row["scheme"] == scheme:
            found[row["method"]].append((100 * row["ap"], row["truly_present"]))
    for method, values in found.items():
        aps, weights = zip(*values, strict=True)
        print(f"| `{method}` | {np.average(aps, weights=weights):.1f} |")


TOLD = {"class": one_class, "classes": classes, "overall": overall}  # of a comparison's results


def main(words: list[str]) -> None:
    if words[0] in TOLD:
        TOLD[words[0]](Path(words[1]), *words[2:])
        return
    labels = read_labels(Path(words[0]) / "labels.csv", unlisted="absent").part("train")
    features = load_features(Path(words[0]) / "train_features.npy", len(labels))
    for what in words[1:] or ["memory", "probabilities"]:
        {"memory": memory, "probabilities": probabilities}[what](labels, features)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
