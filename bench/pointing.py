"""Do methods that forgive unknown labels look at the right place? Prints the table of docs/explain.md.

Run it as ``python -m bench.pointing``. Scenes know where their objects are. Heads are trained on frozen
features of 1,200 scenes of which a scheme hides most labels, and point at 300 other scenes; a seed draws the
hidden labels and the training, the scenes stay the same.
"""

from __future__ import annotations

import hashlib
import time
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from tertium.data.pictures import ArrayPictures
from tertium.data.scenes import render
from tertium.labels.formats.coco import Boxes
from tertium.models.backbones import Backbone
from tertium.models.encoders import pretrained
from tertium.models.features import extract
from tertium.prediction.pointing import Pointing, pointing_game
from tertium.prediction.trained import Trained
from tertium.schemes import parse
from tertium.training.train import train

SEEDS = (0, 1, 2)
TRAINING, TEST = 1200, 300
SIDE, IMAGE_SIZE = 128, 224  # pixels of a scene, and as the network sees it: a map of 7 × 7 places
SCHEMES = ("positives:0.3", "single_positive")
METHODS = ("negative", "ll_r", "ll_ct", "ll_cp", "auto")


def part(boxes: Boxes, start: int) -> Boxes:
    """Return the boxes of the images from ``start`` on."""
    own = boxes.rows >= start
    return Boxes(
        boxes.images[start:],
        boxes.sizes[start:],
        boxes.classes,
        boxes.rows[own] - start,
        boxes.columns[own],
        boxes.corners[own],
        boxes.unsure[own],
    )


class Remembering(nn.Module):
    """A frozen backbone that computes the maps of a batch once: all heads point at the same ones."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.name, self.width = backbone, backbone.name, backbone.width
        self.view = backbone.view
        self.kept: dict[bytes, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(images)

    def maps(self, images: Tensor) -> Tensor:
        key = hashlib.sha256(images.numpy().tobytes()).digest()
        if key not in self.kept:
            self.kept[key] = self.backbone.maps(images)
        return self.kept[key]


def main() -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    scenes, backbone = render(TRAINING + TEST, size=SIDE), Remembering(pretrained(size=IMAGE_SIZE)).eval()
    features = extract(backbone, ArrayPictures(scenes.images), device=torch.device("cpu"))
    known, unseen = scenes.labels[:TRAINING], scenes.labels[TRAINING:]
    boxes = part(scenes.boxes, TRAINING)

    def judged(scheme: str, method: str, seed: int) -> tuple[Pointing, float]:
        shown = known if scheme == "full" else parse(scheme).apply(known, seed)
        head = train(shown, features=features[:TRAINING], method=method, seed=seed).trained
        score = head.evaluate(unseen, features=features[TRAINING:]).map_c
        whole = Trained(head.model.on_images(backbone).eval(), head.thresholds)
        return pointing_game(whole, boxes, scenes.images[TRAINING:], tolerance=0), score

    print("| labels | method | pointing accuracy | against `negative` | mAP(C) |\n|---|---|---|---|---|")
    first: dict[str, np.ndarray] = {}
    for scheme, method in [("full", "negative"), *product(SCHEMES, METHODS)]:
        found = [judged(scheme, method, seed) for seed in SEEDS]
        accuracy, scores = np.array([(each.mean, score) for each, score in found]).T
        first.setdefault(scheme, accuracy)  # of `negative`: all methods see the same labels of a seed
        more = "" if method == "negative" else cell(accuracy - first[scheme])
        print(f"| {scheme} | `{method}` | {cell(accuracy)} | {more} | {cell(scores)} |", flush=True)
    about = found[0][0]
    print(f"\nthe middle of the image: {100 * about.centre_mean:.1f}")
    print(f"{len(about.classes)} classes, {about.counts.sum()} pairs of an image and a class")
    print(f"{time.perf_counter() - began:.0f} s")


def cell(values: np.ndarray) -> str:
    """Return the mean over seeds in per cent and, behind ±, half the range."""
    return f"{100 * values.mean():.1f} ± {50 * np.ptp(values):.1f}"


if __name__ == "__main__":
    main()
