"""What known labels say about the others, before and after: ``python -m bench.together ../shared/data``.

Labels of rows whose truth is known are hidden, and `auto` is trained on the rest. Prints test mAP without and
with the head in which classes learn from one another, and the mean AP of hidden labels of training rows: by
the model without that head, and as `complete` gives them. ``--out`` keeps every draw as a line; those that
are there already are not made again. The sets are made-up attributes (`attributes`), the scenes, tables of
MULAN and COCO. Seed 0 was looked at while all this was built.
"""

from __future__ import annotations

import argparse
import copy
import csv
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import torch

from bench.honest import SIX
from bench.honest import data as pictured
from bench.measure import Row, medians, peak, row
from tertium.annotation.together import FOLDS, Together
from tertium.labelling.completion import complete
from tertium.labels import Labels
from tertium.labels.formats.arff import read
from tertium.labels.readers import read_labels
from tertium.methods.auto import Auto
from tertium.metrics.evaluation import average_precision, calibration_error
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.train import train

SETS = ("attributes", "scenes", "CAL500", "yeast", "birds", "coco")
SIZES = {"attributes": 3000, "scenes": 3000, "coco": 6000}  # rows that are trained and validated on
Part = tuple[np.ndarray, np.ndarray]  # features and full labels


def attributes(count: int, seed: int, classes: int = 188) -> Part:
    """Return features and labels of which about 23 are present and go by 24 traits, 22 of them visible.

    A row is of one of 80 kinds, and varies around it. The same kinds and classes for every seed.
    """
    world, rng = np.random.default_rng(0), np.random.default_rng(1000 + seed)
    traits, visible, kinds, width = 24, 22, 80, 256
    centres = world.normal(size=(kinds, traits))
    loadings = world.normal(size=(classes, traits)) * (world.random((classes, traits)) < 4 / traits)
    loadings += 0.1 * world.normal(size=(classes, traits))
    loadings /= np.linalg.norm(loadings, axis=1, keepdims=True)
    rate = np.clip(0.122 * np.exp(0.8 * world.normal(size=classes) - 0.32), 0.03, 0.6)
    mixing = world.normal(size=(visible + 32, width)) / np.sqrt(visible + 32)
    mine = np.sqrt(0.84) * centres[rng.integers(kinds, size=count)] + 0.4 * rng.normal(size=(count, traits))
    score = np.sqrt(0.96) * mine @ loadings.T + 0.2 * rng.normal(size=(count, classes))
    truth = score > [NormalDist().inv_cdf(1 - each) for each in rate]
    seen = np.concatenate([mine[:, :visible], rng.normal(size=(count, 32))], axis=1)
    features = np.tanh(1.5 * seen @ mixing) + 0.4 * rng.normal(size=(count, width))
    return features.astype(np.float32), np.where(truth, 1, -1).astype(np.int8)


def everything(name: str, folder: Path) -> Part | None:
    """Return all rows of a set; None where every seed makes its own."""
    if name == "attributes":
        return None
    if name in ("coco", "scenes"):
        return pictured(name, folder)[0]
    with tempfile.TemporaryDirectory() as place:
        file, table = Path(place) / "x.npy", folder / "tabular" / name
        found = read(f"{table}.arff.gz", xml=f"{table}.xml.gz", features=file).labels
        return np.load(file), found.dense()


def draw(name: str, spec: str, seed: int, rows: Part | None, smoke: bool = False) -> dict[str, Any]:
    size = 200 if smoke else SIZES.get(name, 0)
    if rows is None:
        rows = attributes(2 * size, seed, 20 if smoke else 188)
    features, truth = rows
    order = np.random.default_rng(1000 + seed).permutation(len(features))
    size = size or 2 * len(order) // 3
    mine, rest = np.sort(order[:size]), np.sort(order[size : 2 * size])
    full = Labels.from_dense(truth[mine], images=[f"{seed}-{row}" for row in mine])
    labels, inputs = parse(spec).apply(full, seed), features[mine].astype(np.float32)
    hidden = np.where(labels.dense() == 0, full.dense(), np.int8(0))
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        run, out, more = (Path(folder) / name for name in ("run", "completed.parquet", "more.arrow"))
        with watched() as first:
            trained = train(labels, features=inputs, out=run, seed=seed, workers=0, epochs=2 if smoke else 25)
        before = Trained(first[0], np.full(len(full.classes), 0.5))
        tested = Labels.from_dense(truth[rest], classes=full.classes), features[rest].astype(np.float32)
        figures = {"set": name, "scheme": spec, "seed": seed}
        for when, model in (("before", before), ("after", trained.trained)):
            figures[f"test_{when}"] = 100 * model.evaluate(tested[0], features=tested[1]).map_c
        scores = before.predict_proba(features=inputs)
        figures["hidden_before"] = mean_ap(scores, hidden)
        for how in (True, False):
            complete(run, labels, features=inputs, out=out, precision=0.9, filled=more, alone=how)
            found = np.stack([np.asarray(column) for column in pq.read_table(out).columns[1:]], axis=1)
            end = "alone" if how else "after"
            figures[f"hidden_{end}"] = mean_ap(found, hidden)
            figures[f"ece_{end}"] = 100 * calibration_error(found, hidden)
            added = read_labels(more).with_classes(full.classes).dense() != labels.dense()
            figures[f"added_{end}"] = int(added.sum())
            figures[f"right_{end}"] = 100 * float((hidden[added] > 0).mean()) if added.any() else np.nan
        return figures


def watched() -> Any:
    """Keep each model that `auto` tries as its last one."""
    kept: list[Any] = []
    finish = Auto.finish

    def watching(self: Auto, model: Any, run: Any) -> Iterator[str]:
        for said in finish(self, model, run):
            kept.append(copy.deepcopy(model))
            yield said

    class Watch:
        def __enter__(self) -> list[Any]:
            self.patch = mock.patch.object(Auto, "finish", watching)
            self.patch.start()
            return kept

        def __exit__(self, *_: object) -> None:
            self.patch.stop()

    return Watch()


def mean_ap(scores: np.ndarray, labels: np.ndarray) -> float:
    return 100 * float(np.nanmean(average_precision(scores, labels)))


def lines(draws: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give a row for each set and scheme: medians over the seeds, and the least that was gained."""
    groups = defaultdict(list)
    for each in draws:
        groups[each["set"], each["scheme"]].append(each)
    for (name, spec), some in groups.items():
        of = {
            key: np.array([float(each[key]) for each in some])
            for key in some[0]
            if key not in ("set", "scheme", "seed")
        }
        cells = [name, spec, str(len(some))]
        for what in ("test", "hidden"):
            before, after = of[f"{what}_before"], of[f"{what}_after"]
            figures = [
                f"{np.median(before):.1f}",
                f"{np.median(after):.1f}",
                f"{(after - before).min():+.1f}",
            ]
            cells += figures if np.isfinite(before).all() else ["–", "–", "–"]  # nothing present is hidden
        cells += [f"{np.median(of[key]):.2f}" for key in ("ece_alone", "ece_after")]
        cells += [f"{np.median(of[key]):,.0f}" for key in ("added_alone", "added_after")]
        for key in ("right_alone", "right_after"):
            found = of[key][np.isfinite(of[key])]
            cells.append(f"{np.median(found):.0f}" if len(found) else "–")
        yield f"| {' | '.join(cells)} |"


def rows(smoke: bool = False) -> list[Row]:
    """Return what the head in which classes learn from one another adds to made-up attributes, and costs."""
    found = draw("attributes", "random:0.1", 1, None, smoke)
    gain = found["test_after"] - found["test_before"]
    gained = [row("together", "attributes, random:0.1: test mAP gained", gain, "≥", 4)]
    return gained + posteriors(smoke)


def posteriors(smoke: bool = False) -> list[Row]:
    """Return how long it takes to hear the known labels of an image, where there are many classes."""
    classes, more, images, repeats = (30, 40, 4, 1) if smoke else (9600, 10_000, 256, 5)
    threads, found = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for rank in (32, 64):
        for present, absent, how in ((0.01, 0.01, "dropped at random"), (0.3, 0.0, "positives only")):
            many = factors_of(classes, rank, present, absent)
            shown, labels = asked(images, classes, rank)
            many.given_others(shown, labels)
            seconds = medians([partial(many.given_others, shown, labels)], repeats)[0]
            case = f"{classes:,} classes, {rank} factors, {how}"
            found.append(row("together", f"{case}: ms an image", 1e3 * seconds / images, "", None))
        most = peak(partial(many.given_others, shown, labels)) / 1e6
        case = f"{classes:,} classes, {rank} factors, {images} images at a time: MB"
        found.append(row("together", case, most, "", None))
        case = f"an answer, {more:,} classes, {rank} factors: ms"
        found.append(row("together", case, 1e3 * an_answer(more, rank, repeats), "≤", 20))
    torch.set_num_threads(threads)
    return found


def an_answer(classes: int, rank: int, repeats: int) -> float:
    """Return the seconds from an answer about a label of an image to the chances of 20 others."""
    single, (shown, labels) = factors_of(classes, rank, 0.3, 0.0), asked(1, classes, rank)
    columns = np.flatnonzero(labels[0] == 0)[:20]
    answers = np.resize(np.array([1, -1, 0], dtype=np.int8), len(columns))

    def moved() -> None:
        single.among(shown[0], labels[0], columns).moved(answers)

    moved()
    return medians([moved], repeats)[0]


def factors_of(classes: int, rank: int, present: float, absent: float) -> Together:
    """Some factors, whatever they mean."""
    rng = np.random.default_rng(0)
    ones, width = np.ones(classes), 8
    return Together(
        tuple(map(str, range(classes))),
        rng.normal(size=(classes, rank)).astype(np.float32) / rank,
        np.zeros(classes, dtype=np.float32),
        np.full(classes, 0.7, dtype=np.float32),
        0.01 * ones,
        present * ones,
        absent * ones,
        np.stack([-4 * ones, ones]),
        rng.normal(size=(FOLDS, width, rank)).astype(np.float32),
    )


def asked(images: int, classes: int, rank: int, known: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors that images show, and their labels, about so many of them known."""
    rng = np.random.default_rng(1)
    labels = (rng.random((images, classes)) < known / classes).astype(np.int8)
    return rng.normal(size=(images, rank)).astype(np.float32), labels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.together")
    parser.add_argument("folder", type=Path, help="with the folders coco and tabular")
    parser.add_argument("--out", type=Path, required=True, help="draws, .csv; those it has are kept")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schemes", nargs="+", default=SIX)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    options = parser.parse_args()
    torch.set_num_threads(1)
    draws: list[dict[str, Any]] = []
    if options.out.is_file():
        with open(options.out, encoding="utf-8", newline="") as file:
            draws = list(csv.DictReader(file))
    made = {(each["set"], each["scheme"], int(each["seed"])) for each in draws}
    for name in options.sets:
        part = everything(name, options.folder)
        for seed in options.seeds:
            for spec in options.schemes:
                if (name, spec, seed) in made:
                    continue
                draws.append(draw(name, spec, seed, part))
                with open(options.out, "a", encoding="utf-8", newline="") as file:
                    sink = csv.DictWriter(file, draws[-1])
                    if file.tell() == 0:
                        sink.writeheader()
                    sink.writerow(draws[-1])
    columns = (
        "set | scheme | seeds | test mAP before | after | least gain | hidden AP before | after | least gain"
    )
    columns += " | ECE alone, % | together | added alone | together | present, % alone | together"
    print(f"| {columns} |\n" + "|---" * 15 + "|")
    print("\n".join(lines(draws)))


if __name__ == "__main__":
    main()
