"""Whole networks on photographs, run by run: python -m bench.networks ../shared/data [--minutes 60].

Trains `linear`, `linear_init` and `finetune` on the photographs of COCO (3,000 for training, 1,500 test) and
UC Merced, and prints test mAP, which decides nothing: of the epoch that known labels chose, of the last one,
and of the one that was best on test images, as a bound. Runs are kept in bench/evidence/networks.csv, so
that the table can be made in many sittings; ``--minutes`` ends one, ``--show`` only prints what is there.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

from bench import ucmerced
from bench.cells import EVIDENCE, Evidence, Figures
from tertium.comparing import rows_from
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.models.classifier import Classifier
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.train import train

METHODS = "auto,negative,ignore,an_ls,wan,epr,role,ll_r,ll_ct,ll_cp,selective,pseudo,hill,splc"
PROTOCOLS = ("linear", "linear_init", "finetune")
SCHEMES = ("single_positive", "random:0.1")
KEYS = ("data", "size", "epochs", "protocol", "scheme", "row", "seed")
FIGURES = ("score", "best_epoch", "last", "highest", "seconds")


def split(shared: Path, data: str, part: str) -> Labels:
    """Return the labels of the images that are there."""
    if data == "ucmerced":
        return ucmerced.read(shared / data, part)
    labels = read_labels(shared / "coco" / "labels.csv", unlisted="absent").part(part)
    return labels[: 3000 if part == "train" else 1500]


def measured(
    shared: Path, data: str, size: int, epochs: int, protocol: str, scheme: str, row: str, seed: int
) -> Figures:
    """Train once and return what the test images say of it; nothing where the method cannot learn."""
    (chosen,) = rows_from(row)
    labels, test, images = split(shared, data, "train"), split(shared, data, "test"), shared / data / "images"
    known = parse(scheme).apply(Labels(labels.offsets, labels.entries, labels.classes, labels.images), seed)
    if not ucmerced.fits(chosen, known):
        return {}
    started = time.perf_counter()

    def score(model: Classifier) -> float | None:
        if model.backbone is None:
            return None  # the head of linear_init, which sees features
        return float(Trained(model, np.full(len(test.classes), 0.5)).evaluate(test, images).map_c)

    whole = {} if protocol == "linear" else {"whole.epochs": epochs, "whole.patience": epochs}
    outcome = train(
        known,
        images,
        method=chosen.method,
        config={"protocol": protocol, "seed": seed, "image_size": size, **whole, **chosen.given},
        watch=score,
        expected_map=False,
    )
    each = [record["watched"] for record in outcome.records if record["watched"] is not None]
    return {
        "score": outcome.trained.evaluate(test, images).map_c,
        "best_epoch": outcome.summary["best_epoch"],
        "last": each[-1] if each else None,
        "highest": max(each) if each else None,
        "seconds": time.perf_counter() - started,
    }


def show(evidence: Evidence) -> None:
    print(f"| {' | '.join((*KEYS, *FIGURES))} |\n" + "|---" * (len(KEYS) + len(FIGURES)) + "|")
    for key, figures in evidence.lines.items():
        scores = [
            f"{100 * figures[name]:.1f}" if figures[name] else "–" for name in ("score", "last", "highest")
        ]
        epoch, seconds = (figures[name] or 0 for name in ("best_epoch", "seconds"))
        print(
            f"| {' | '.join(key)} | {scores[0]} | {epoch:.0f} | {scores[1]} | {scores[2]} | {seconds:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.networks")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--data", nargs="+", default=["ucmerced", "coco"])
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--protocols", nargs="+", default=PROTOCOLS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=6, help="of training everything")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    evidence = Evidence(EVIDENCE / "networks.csv", KEYS, FIGURES)
    end = time.monotonic() + 60 * (0 if options.show else options.minutes)
    rows = [row.name for row in rows_from(options.methods)]
    for seed, data, protocol, scheme, row in product(
        range(options.seeds), options.data, options.protocols, options.schemes, rows
    ):
        key = (data, options.size, options.epochs, protocol, scheme, row, seed)
        if evidence.get(*key) is None and time.monotonic() < end:
            evidence.add(key, measured(options.shared, *key))
            print(*key, file=sys.stderr, flush=True)
    show(evidence)


if __name__ == "__main__":
    main()
