"""Figures that mean what they say: ``python -m bench.honest ../shared/data --out draws.csv``.

Labels of images whose truth is known are hidden and a linear head is trained with `auto`. Then what Tertium
says is held against the truth: the mAP to expect over all labels of new images, how many unknown labels are
present, and how likely those are that `suggest` asks about, both before and after fifty answers. The mAP is
over the classes that were known to be present in training, as the run says. A draw is another
choice of images, of hidden labels and of validation images. Every draw is a line of ``--out``; draws that are
there already are not made again. The tables are those of docs/evaluate.md and docs/auto.md.

Annotators who choose are imitated with the plainness of a label: the score of a head that was trained on full
labels of other images.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow.parquet import read_table

from bench.ucmerced import read as read_ucmerced
from tertium.config import Settings
from tertium.data.inputs import open_inputs
from tertium.data.scenes import render
from tertium.labelling.completion import complete
from tertium.labelling.suggesting import suggest
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.models.encoders import pretrained
from tertium.models.features import extract
from tertium.runs import RunFolder
from tertium.schemes import Budget, Salient, parse
from tertium.training.train import train

SIX = ("single_positive", "positives:0.3", "random:0.1", "random:0.3", "per_class:100", "balanced:0.1")
CHOSEN = ("salient:0.3", "salient:0.3,0", "budget:1", "budget:2", "budget:4", "session:0.2", "per_image:2,1")
SETS = ("coco", "ucmerced", "scenes")
SIZES = {"coco": 4000, "ucmerced": 1100, "scenes": 2500}  # images that are trained and validated on
ANSWERS = 50
Part = tuple[np.ndarray, np.ndarray]  # features and full labels


def data(name: str, folder: Path) -> tuple[Part, Part | None]:
    """Return all images, and those that test; None where they are left over from a draw."""
    if name == "coco":
        labels = read_labels(folder / "coco" / "labels.csv", unlisted="absent")
        parts = [
            (np.load(folder / "coco" / f"{split}_features.npy"), labels.part(split).dense())
            for split in ("train", "test")
        ]
        return parts[0], parts[1]
    if name == "ucmerced":
        both = [read_ucmerced(folder / name, split) for split in ("train", "test")]
        images: Any = folder / name / "images"
        names = [image for part in both for image in part.images.to_pylist()]
        truth, size = np.concatenate([part.dense() for part in both]), 128
    else:
        scenes = render(6000, seed=5)
        images, names, truth, size = (
            scenes.images,
            scenes.labels.images.to_pylist(),
            scenes.labels.dense(),
            64,
        )
    pictures = open_inputs(images, None, names).pictures
    assert pictures is not None
    backbone = pretrained(Settings.backbone, Settings.weights, size)
    return (extract(backbone, pictures, device=torch.device("cpu"), workers=0), truth), None


def plainness(features: np.ndarray, truth: np.ndarray, folds: int = 3) -> np.ndarray:
    """Return how plainly each class shows: scores by least squares on full labels of the other folds."""
    inputs = features.astype(np.float32)
    inputs = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-6)
    present, width = (truth > 0).astype(np.float32), inputs.shape[1]
    fold = np.random.default_rng(0).permutation(len(inputs)) % folds
    found = np.empty(truth.shape)
    for number in range(folds):
        seen = inputs[fold != number]
        rate = present[fold != number].mean(axis=0)
        covariance = seen.T @ seen / len(seen) + 2 * width / len(seen) * np.eye(width)
        weight = np.linalg.solve(covariance, seen.T @ (present[fold != number] - rate) / len(seen))
        found[fold == number] = inputs[fold == number] @ weight + rate
    return found


def hidden(spec: str, full: Labels, features: np.ndarray, seed: int) -> Labels:
    scheme = parse(spec)
    if isinstance(scheme, Salient | Budget):
        scheme = dataclasses.replace(scheme, plainness=plainness(features, full.dense()))
    return scheme.apply(full, seed)


def draw(name: str, spec: str, seed: int, everything: Part, apart: Part | None) -> dict[str, Any]:
    features, truth = everything
    order = np.random.default_rng(1000 + seed).permutation(len(features))
    mine, rest = (np.sort(part) for part in np.split(order, [SIZES[name]]))
    test = (features[rest], truth[rest]) if apart is None else apart
    full = Labels.from_dense(truth[mine], images=[f"{seed}-{row}" for row in mine])
    labels = hidden(spec, full, features[mine], seed)
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        run = Path(folder) / "run"
        outcome = train(labels, features=features[mine], out=run, seed=seed, workers=0)
        figures = {"set": name, "scheme": spec, "seed": seed}
        found = outcome.trained.evaluate(Labels.from_dense(test[1], classes=full.classes), features=test[0])
        known_of = RunFolder.open(run).config()["data"]["classes"]
        figures["truth"] = np.nanmean(found.ap[[known_of[name]["present"] > 0 for name in found.classes]])
        said, known = outcome.summary["expected_map"], outcome.summary["validation_known_map"]
        figures |= {key: said[key] for key in ("value", "low", "high")}
        figures["headline"] = outcome.summary["validation_score"] if known is None else known
        return figures | completed(run, labels, full, features[mine], seed)


def completed(run: Path, labels: Labels, full: Labels, features: np.ndarray, seed: int) -> dict[str, float]:
    """Return what is said of unknown labels before and after answers, and the truth.

    Twice as many questions are asked as are answered. The others are the close calls.
    """
    questions = suggest(run, labels, features=features, budget=2 * ANSWERS)
    rows = labels.rows_of(questions.images)
    columns = np.array([labels.column(label) for label in questions.labels])
    present = full.dense()[rows, columns]
    first, other = np.split(np.random.default_rng(seed).permutation(len(rows)), [ANSWERS])
    answers = Labels.from_entries(
        rows[first], columns[first], present[first], classes=labels.classes, images=labels.images
    )
    figures = {
        "present": int((full.dense()[labels.dense() == 0] > 0).sum()),
        "present_there": float((present[other] > 0).mean()),
    }
    figures["present_after"] = figures["present"] - int((present[first] > 0).sum())
    for when, given in (("", None), ("_after", answers)):
        out = run.with_name("completed.parquet")
        done = complete(run, labels, features=features, answers=given, out=out)
        chances = np.stack([np.asarray(column) for column in read_table(out).columns[1:]], axis=1)
        figures |= {f"expected{when}": done.expected, f"least{when}": done.low, f"most{when}": done.high}
        figures[f"said{when}"] = float(chances[rows[other], columns[other]].mean())
    return figures


# ---- tables ------------------------------------------------------------------------------------------------


def lines(draws: Sequence[dict[str, Any]], by: Sequence[str]) -> Iterator[str]:
    """Give the rows of both tables for each group of draws, and for all."""
    groups = defaultdict(list)
    for each in draws:
        groups[" | ".join(each[name] for name in by)].append(each)
    groups[" | ".join(["all"] + [""] * (len(by) - 1))] = list(draws)
    for name, some in groups.items():
        figure = {
            key: np.array([float(each[key]) for each in some])
            for key in some[0]
            if key not in ("set", "scheme")
        }
        held = (figure["low"] <= figure["truth"]) & (figure["truth"] <= figure["high"])
        counted, later = (
            (figure[f"least{when}"] <= figure[f"present{when}"])
            & (figure[f"present{when}"] <= figure[f"most{when}"])
            for when in ("", "_after")
        )
        errors = [100 * np.abs(figure[key] - figure["truth"]).mean() for key in ("value", "headline")]
        off, off_later = (
            np.exp(np.abs(np.log(figure[f"expected{when}"] / figure[f"present{when}"])).mean())
            for when in ("", "_after")
        )
        gaps = [100 * np.abs(figure[key] - figure["present_there"]).mean() for key in ("said", "said_after")]
        width = 100 * (figure["high"] - figure["low"]).mean()
        truth, value = (100 * figure[key].mean() for key in ("truth", "value"))
        yield (
            f"| {name} | {len(some)} | {truth:.1f} | {value:.1f} | {width:.0f} | {held.mean():.0%} | "
            f"{errors[0]:.1f} | {errors[1]:.1f} | {counted.mean():.0%} | × {off:.2f} | "
            f"{later.mean():.0%} | × {off_later:.2f} | {gaps[0]:.0f} | {gaps[1]:.0f} |"
        )


def show(draws: Sequence[dict[str, Any]]) -> None:
    columns = "draws | test mAP | expected | width | held | error | error of known-label mAP | "
    columns += "count held | off by | count after 50 answers held | off by | close calls off by | after"
    for by in (("scheme",), ("set", "scheme")):
        print(f"\n| {' | '.join(by)} | {columns} |\n" + "|---" * (len(by) + 13) + "|")
        print("\n".join(lines(draws, by)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.honest")
    parser.add_argument("folder", type=Path, help="with the folders coco and ucmerced")
    parser.add_argument("--out", type=Path, required=True, help="draws, .csv; those it has are kept")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schemes", nargs="+", default=SIX + CHOSEN)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(100, 106))
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws: list[dict[str, Any]] = []
    if options.out.is_file():
        with open(options.out, encoding="utf-8", newline="") as file:
            draws = list(csv.DictReader(file))
    made = {(each["set"], each["scheme"], int(each["seed"])) for each in draws}
    for name in options.sets:
        parts = data(name, options.folder)
        for seed in options.seeds:
            for spec in options.schemes:
                if (name, spec, seed) in made:
                    continue
                draws.append(draw(name, spec, seed, *parts))
                with open(options.out, "a", encoding="utf-8", newline="") as file:
                    sink = csv.DictWriter(file, draws[-1])
                    if file.tell() == 0:
                        sink.writeheader()
                    sink.writerow(draws[-1])
    show(draws)


if __name__ == "__main__":
    main()
