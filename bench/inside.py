"""What papers show inside training, for docs/results.md: python -m bench.inside DIR [WHAT]...

DIR has ``labels.csv`` and ``train_features.npy``; only the training split is used, with one positive left of
each image (seed 0). ``memory``: Kim's Table 1 and Figures 1 and 4. ``probabilities``: Cole's histogram of
unobserved positives. ``exposure``: what Kundu's soft exposure assumes of unknown labels, with other labels
hidden. Without a name, all three. ``python -m bench.inside classes FILE SCHEME METHOD OTHER`` reads
``results-classes.csv`` of a comparison instead: the gain over another method, class by class, against what is
missing (Kundu's Figure 5). ``class FILE SCHEME CLASS`` prints the AP of one class for each method, ``overall
FILE SCHEME`` the mean AP in which a class counts as often as it is present (Ben-Baruch's mAP(O)).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow import csv
from scipy.stats import rankdata

from tertium.comparing import rows_from
from tertium.data.feature_files import load_features
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import Method, make
from tertium.methods.baselines import Negative
from tertium.methods.kundu2020 import Relations
from tertium.metrics.evaluation import spearman
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.memorisation import KINDS
from tertium.training.session import Outcome
from tertium.training.train import train

SCHEME, SEED = "single_positive", 0
JUDGES = "se_i,se_l,soft_exposure,soft_exposure:neighbours=5/20,soft_exposure:beta=1/10/100"
# Nothing is held out, so that no run stops early: memorising begins where early stopping would end.
WHOLE = {"seed": SEED, "validation": 0.0}


@dataclass(frozen=True)
class Even(Negative):
    """`negative` from one half, as a head that is not told how rare classes are."""

    def initial_rate(self, labels: Labels) -> np.ndarray:
        return np.full(len(labels.classes), 0.5)


def memory(labels: Labels, features: np.ndarray) -> None:
    shown = parse(SCHEME).apply(labels, SEED)

    def followed(method: str | Method, **settings: Any) -> Outcome:
        return train(shown, features=features, method=method, truth=labels, **WHOLE, **settings)

    theirs = {"recipe": "kim2022", "select": "last", "epochs": 10, "patience": 10}
    plain = {
        "`negative`": followed("negative"),
        "`negative`, from one half": followed(Even()),
        "`negative`, trained as there": followed("negative", **theirs),
    }
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


def exposure(labels: Labels, features: np.ndarray) -> None:
    """Print what is assumed of hidden labels, and how well that tells presences from absences.

    The last column is how much absences count that are assumed present, for each hidden label. Without
    hidden presences, as under balanced:1, nothing can be told apart.
    """
    columns = [
        *("judged", "assumed present", "of which are", "absences assumed present, weight"),
        *("presences found", "AUC", "AUC of `negative`"),
    ]
    print(f"| | {' | '.join(columns)} |" + "\n|---" + "|---" * len(columns) + "|")
    for scheme in ("balanced:0.1", "balanced:0.3", "balanced:1"):
        shown = parse(scheme).apply(labels, SEED)
        model = train(shown, features=features, method="negative", **WHOLE).trained
        scores, hidden = model.predict_proba(features=features), shown.dense() == 0
        for row in rows_from(JUDGES):
            relations = Relations(make(row.method, row.given), features, shown)
            slopes = np.concatenate([relations.slopes(rows) for rows in relations.blocks(range(len(labels)))])
            judged = hidden & (slopes != 0)  # the others are left out
            present, slope = labels.dense()[judged] > 0, slopes[judged]
            assumed = slope > 0
            told = [judged.sum() / hidden.sum(), assumed.mean(), present[assumed].mean()]
            told.append(slope[assumed & ~present].sum() / hidden.sum())
            if present.any():
                told += [assumed[present].mean(), area(slope, present), area(scores[judged], present)]
            cells = [f"{100 * value:.1f} %" for value in told] + ["–"] * (len(columns) - len(told))
            print(f"| `{row.name}`, {scheme} | {' | '.join(cells)} |", flush=True)


def area(scores: np.ndarray, present: np.ndarray) -> float:
    """Return how often a presence is above an absence, a tie counting half."""
    count, others = present.sum(), (~present).sum()
    return float((rankdata(scores)[present].sum() - count * (count + 1) / 2) / (count * others))


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
    parts = {"memory": memory, "probabilities": probabilities, "exposure": exposure}
    for what in words[1:] or parts:
        parts[what](labels, features)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
