"""Where the defaults come from; prints the tables of docs/training.md.

Run it as ``python -m bench.defaults ../shared/data/coco``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from lightning.fabric import Fabric

from tertium.config import HEAD
from tertium.data.batches import FeatureLoader, Order
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.labels.splits import divide
from tertium.methods import make
from tertium.metrics.evaluation import average_precision, evaluate
from tertium.models.classifier import Classifier
from tertium.prediction.trained import scores
from tertium.schemes import parse
from tertium.training.choosing import Judge, Verdict
from tertium.training.fit import fit
from tertium.training.train import train

SCHEMES = ("full", "single_positive", "positives:0.3", "random:0.1", "random:0.3", "per_class:100")
METHODS = ("negative", "ignore", "wan", "an_ls")


def main(folder: Path) -> None:
    labels = read_labels(folder / "labels.csv", unlisted="absent")
    full, test = labels.part("train"), labels.part("test")
    full = Labels(full.offsets, full.entries, full.classes, full.images)
    features, unseen = (np.load(folder / f"{part}_features.npy") for part in ("train", "test"))
    epochs(full, features, test, unseen)
    sizes(full, features, test, unseen)


def epochs(full: Labels, features: np.ndarray, test: Labels, unseen: np.ndarray) -> None:
    """Print what each way of choosing the epoch gives, for each schedule."""
    print("| scheme | method | constant: known / rest / last | cosine: known / rest / last |")
    print("|---|---|---|---|")
    for scheme in SCHEMES:
        partial = parse(scheme).apply(full, 0)
        for method in METHODS:
            try:
                make(method).check(partial)
            except InputError:
                continue
            schedules = ("constant", "cosine")
            cells = [choice(partial, method, schedule, features, test, unseen) for schedule in schedules]
            print(f"| {scheme} | {method} | {cells[0]} | {cells[1]} |", flush=True)


def sizes(full: Labels, features: np.ndarray, test: Labels, unseen: np.ndarray) -> None:
    """Print what the number of steps does where there are few training images."""
    print("\n| images | scheme | 10 epochs of batch 128 | default |")
    print("|---|---|---|---|")
    for count in (200, 1000, 4000, 20_000):
        for scheme in ("full", "random:0.3"):
            partial = parse(scheme).apply(full[:count], 0)
            cells = []
            for settings in ({"epochs": 10, "batch_size": 128}, {}):
                trained = train(partial, features=features[:count], method="negative", **settings).trained
                cells.append(100 * trained.evaluate(test, features=unseen).map_c)
            print(f"| {count:,} | {scheme} | {cells[0]:.1f} | {cells[1]:.1f} |", flush=True)


def choice(
    partial: Labels, method: str, schedule: str, features: np.ndarray, test: Labels, unseen: np.ndarray
) -> str:
    """Return the test mAP of the epoch chosen by known labels, by positives against the rest, and last."""
    chosen = make(method)
    first, second = divide(partial.images, 0.15, 0)
    training, validation = partial[first], partial[second]
    plan = replace(HEAD.resolved(len(training), 128, 1000), schedule=schedule, patience=99)
    model = Classifier(partial.classes, features.shape[1])
    model.standardise(features[first])
    model.start_at(chosen.initial_rate(training))
    held_out = FeatureLoader(features[second], validation, Order(len(validation), 256))
    tested = FeatureLoader(unseen, test, Order(len(test), 256))
    assumed = validation.unlisted_absent()

    def validate(judged: Classifier, _: Judge) -> Verdict:
        predicted = scores(judged, held_out)
        known = evaluate(predicted, validation)
        figures = {
            "score": None,
            "known": known.map_c if known.scored else None,
            "ranked": float(np.nanmean(average_precision(predicted, assumed))),
            "test": evaluate(scores(judged, tested), test).map_c,
        }
        return Verdict(figures)

    records = fit(
        model,
        chosen,
        FeatureLoader(features[first], training, Order(len(training), plan.batch_size)),
        plan,
        labels=training,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=validate,
    ).records
    picks = []
    for name in ("known", "ranked"):
        offers = [record[name] for record in records]
        picks.append("–" if None in offers else f"{100 * records[int(np.argmax(offers))]['test']:.1f}")
    return " / ".join([*picks, f"{100 * records[-1]['test']:.1f}"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
