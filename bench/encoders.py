"""How good the shipped encoders are: ``python -m bench.encoders ../shared/data/coco``.

Test mAP of a linear head on frozen features of COCO photographs (3,000 to train on, 1,500 to test, 144 pixels
wide: larger networks see enlarged pictures), with all labels and with one in ten. The table is that of
docs/encoders.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from tertium.data.inputs import open_inputs
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.models.encoders import SHIPPED, pretrained
from tertium.models.features import Extractor
from tertium.schemes import parse
from tertium.training.train import train

SEEDS = (0, 1, 2)


def part(labels: Labels, images: Path, split: str) -> Labels:
    """Return the labels of the images that are there."""
    chosen = labels.part(split)
    there = [row for row, name in enumerate(chosen.images.to_pylist()) if (images / name).is_file()]
    return chosen[np.array(there)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.encoders")
    parser.add_argument("folder", type=Path, help="with labels.csv and the folder images")
    parser.add_argument("--encoders", nargs="+", default=list(SHIPPED))
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = options.folder / "images"
    labels = read_labels(options.folder / "labels.csv", unlisted="absent")
    parts = [part(labels, images, split) for split in ("train", "test")]
    print(
        "| encoder | image size | all labels | random:0.1, `auto` | images for each second of one core |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    for name in options.encoders:
        extractor = Extractor(pretrained(name), device=torch.device("cpu"), workers=0)
        began = time.process_time()
        features = []
        for each in parts:
            pictures = open_inputs(images, None, each.images.to_pylist()).pictures
            assert pictures is not None
            features.append(extractor(pictures))
        rate = sum(map(len, features)) / (time.process_time() - began)
        cells = []
        for scheme, method in (("full", "bce"), ("random:0.1", "auto")):
            found = []
            for seed in SEEDS:
                shown = parse(scheme).apply(parts[0], seed)
                shown = Labels(shown.offsets, shown.entries, shown.classes, shown.images)
                trained = train(shown, features=features[0], method=method, seed=seed).trained
                found.append(100 * trained.evaluate(parts[1], features=features[1]).map_c)
            cells.append(f"{np.mean(found):.1f} ± {(max(found) - min(found)) / 2:.1f}")
        size = pretrained(name).view.size
        print(f"| `{name}` | {size} | {cells[0]} | {cells[1]} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
