"""Linear training beside the arithmetic that it cannot do without, and `auto` beside `negative`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from bench.engine import train as fit_negative
from bench.measure import Row, paired_ratio, row, show
from tertium import train
from tertium.config import HEAD, Plan
from tertium.data.batches import FeatureLoader, Order
from tertium.labels import Labels
from tertium.models.classifier import Classifier
from tertium.schemes import parse
from tertium.training.engine import Engine, Linear

IMAGES, WIDTH, CLASSES, BATCH = 17_000, 1280, 80, 128  # as large as COCO's part for training
EPOCHS = 10


def rows(smoke: bool = False) -> list[Row]:
    images, epochs, repeats = (300, 1, 1) if smoke else (IMAGES, EPOCHS, 15)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    features, labels = problem(images)
    size = f"{images:,} × {WIDTH:,} → {CLASSES}"
    usual, least = epoch(features, labels, repeats)
    found = [
        row("linear", f"an epoch, {size}: times its products and torch's AdamW", usual, "≤", 1.3),
        row("linear", f"an epoch, {size}: times its products and AdamW's kernel alone", least, "", None),
        row(
            "linear",
            f"auto, {epochs} epochs of {size}: times negative",
            whole(features, labels, epochs, -(-repeats // 3)),
            "≤",
            2,
        ),
    ]
    torch.set_num_threads(threads)
    return found


def problem(images: int) -> tuple[np.ndarray, Labels]:
    """Features that tell the classes, as a cache holds them, and labels of which nine in ten are hidden."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(images, WIDTH)).astype(np.float16)
    scores = features.astype(np.float32) @ rng.normal(size=(WIDTH, CLASSES)).astype(np.float32) / WIDTH**0.5
    full = Labels.from_dense(np.where(scores + rng.normal(size=scores.shape) > 2.5, 1, -1))
    return features, parse("random:0.1").apply(full, 0)


def epoch(features: np.ndarray, labels: Labels, repeats: int) -> tuple[float, float]:
    """Return how many times as long an epoch of `negative` takes as `products` of the same batches."""
    plan = replace(HEAD.resolved(len(labels), BATCH, 1), epochs=1, schedule="constant", warmup=0.0)
    ready = torch.from_numpy(features).float()  # standardised and in order: nothing to gather or convert

    def ours() -> None:
        model = Classifier(labels.classes, WIDTH)
        fit_negative(model, FeatureLoader(features, labels, Order(len(labels), BATCH)), labels, plan)

    ours()
    usual, least = (
        paired_ratio(partial(products, ready, plan, kind), ours, repeats) for kind in (Engine, Linear)
    )
    return usual, least


@torch.no_grad()
def products(features: torch.Tensor, plan: Plan, kind: type[Engine]) -> None:
    """For each batch: logits, the gradient of the weights, and AdamW as an engine does it."""
    model = Classifier([str(number) for number in range(CLASSES)], features.shape[1])
    weight, bias = model.head.weight, model.head.bias
    engine = kind(model, torch.optim.AdamW(model.groups(plan.lr, 0.0, plan.weight_decay), fused=True))
    slope = torch.randn(BATCH, CLASSES) / (BATCH * CLASSES)
    for batch in torch.split(features, BATCH):
        torch.addmm(bias, batch, weight.T)
        weight.grad = slope[: len(batch)].T.mm(batch)
        bias.grad = slope[: len(batch)].sum(dim=0)
        engine.move()


def whole(features: np.ndarray, labels: Labels, epochs: int, repeats: int) -> float:
    def training(method: str) -> None:
        train(labels, features=features, method=method, epochs=epochs, patience=epochs)

    training("auto")
    return paired_ratio(lambda: training("negative"), lambda: training("auto"), repeats)


if __name__ == "__main__":
    show(rows())
