"""The training loop beside a bare one: what the engine, the method and the bookkeeping cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch.nn.functional import binary_cross_entropy_with_logits

from bench.measure import Row, paired_ratio, row, show
from tertium.config import HEAD, WHOLE, Plan
from tertium.data.batches import Batch, FeatureLoader, Order
from tertium.labels import Labels
from tertium.methods import make
from tertium.models.backbones import Backbone
from tertium.models.classifier import Classifier
from tertium.training.choosing import Verdict
from tertium.training.fit import fit

CLASSES = [str(number) for number in range(80)]


def rows(smoke: bool = False) -> list[Row]:
    images, repeats = (64, 1) if smoke else (8000, 25)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = [
        row(
            "engine overhead",
            "linear head 1,280 → 80, batch 16: times a bare loop",
            linear(images, repeats),
            "≤",
            1.1,
        ),
        row(
            "engine overhead",
            "EfficientNet-Lite0 at 64 px, batch 16: times a bare loop",
            network(1 if smoke else 8, repeats),
            "≤",
            1.03,
        ),
    ]
    torch.set_num_threads(threads)
    return found


def linear(images: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(images, 1280)).astype(np.float32)
    labels = Labels.from_dense(np.where(rng.random((images, 80)) < 0.04, 1, -1))
    plan = replace(HEAD.resolved(images, 16, 1), epochs=1, schedule="constant", warmup=0.0)
    inputs, targets = torch.from_numpy(features), torch.from_numpy(labels.dense())

    def bare() -> None:
        model = Classifier(CLASSES, 1280)
        order = torch.from_numpy(np.random.default_rng((0, 1)).permutation(images))
        bare_loop(model, plan, ((inputs[rows], targets[rows]) for rows in torch.split(order, 16)))

    def ours() -> None:
        loader = FeatureLoader(features, labels, Order(len(labels), 16))
        train(Classifier(CLASSES, 1280), loader, labels, plan)

    bare()
    return paired_ratio(bare, ours, repeats)


def network(steps: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    batches = Fixed(
        [
            Batch(
                torch.from_numpy(rng.integers(0, 256, size=(16, 3, 64, 64), dtype=np.uint8)),
                torch.from_numpy(np.where(rng.random((16, 80)) < 0.04, 1, -1).astype(np.int8)),
                torch.arange(16),
            )
            for _ in range(steps)
        ]
    )
    labels = Labels.from_dense(np.ones((16, 80)))
    plan = replace(
        WHOLE.resolved(16 * steps, 16, 1), epochs=1, schedule="constant", warmup=0.0, ema=0.0, clip=0.0
    )
    backbone = Backbone()

    def bare() -> None:
        model = Classifier(CLASSES, backbone.width, backbone)
        bare_loop(model, plan, ((batch.inputs, batch.labels) for batch in batches.epoch(1)))

    def ours() -> None:
        train(Classifier(CLASSES, backbone.width, backbone), batches, labels, plan)

    bare()
    return paired_ratio(bare, ours, repeats)


class Fixed:
    """The same batches every epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from self.batches[start:]


def bare_loop(model: Classifier, plan: Plan, batches: Any) -> None:
    optimizer = torch.optim.AdamW(model.groups(plan.lr, plan.backbone_lr, plan.weight_decay), fused=True)
    model.train()
    for inputs, labels in batches:
        loss = binary_cross_entropy_with_logits(model(inputs), labels.gt(0).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train(model: Classifier, loader: Any, labels: Labels, plan: Plan) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fit(
        model,
        make("negative"),
        loader,
        plan,
        labels=labels,
        fabric=fabric,
        validate=lambda *_: Verdict({"score": None}),
    )


if __name__ == "__main__":
    show(rows())
