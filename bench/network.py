"""Training everything beside a bare loop with timm's network, on the same images.

The bare loop has them decoded and in memory, and does what `finetune` does with them: crop, mirror and resize
in a worker process, forward, loss, backward, clipping, AdamW, moving average. Validation is left out of both.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from lightning.fabric import Fabric
from PIL import Image
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from bench.measure import Row, paired_ratio, row, show
from tertium.config import WHOLE, Plan
from tertium.data.batches import ImageLoader, Order
from tertium.data.inputs import open_inputs
from tertium.data.views import augmented
from tertium.labels import Labels
from tertium.methods import make
from tertium.models.backbones import DEFAULT_BACKBONE, Backbone
from tertium.models.classifier import Classifier
from tertium.training.choosing import Verdict
from tertium.training.fit import fit

BATCH, CLASSES, SIDE = 32, 17, 192  # as UC Merced has them
WORKERS = 1  # on two cores


def rows(smoke: bool = False) -> list[Row]:
    cases = [(8, 32, 1)] if smoke else [(512, 64, 7), (256, 112, 7)]
    return [
        row(
            "network",
            f"an epoch of finetune, {images} JPEGs of {SIDE} px at {size} px: times a bare loop with timm",
            epoch(images, size, repeats),
            "≤",
            1.05,
        )
        for images, size, repeats in cases
    ]


def epoch(images: int, size: int, repeats: int) -> float:
    """Return how many times as long an epoch takes as in the bare loop, workers being ready in both."""
    rng = np.random.default_rng(0)
    labels = Labels.from_dense(np.where(rng.random((images, CLASSES)) < 0.2, 1, -1))
    plan = replace(WHOLE.resolved(images, BATCH, 1), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        files = [jpeg(rng) for _ in range(images)]
        for name, content in zip(labels.images.to_pylist(), files, strict=True):
            (Path(folder) / f"{name}.jpg").write_bytes(content)
        names = [f"{name}.jpg" for name in labels.images.to_pylist()]
        pictures = open_inputs(Path(folder), None, names).pictures
        assert pictures is not None
        ours = ImageLoader(pictures, labels, size, Order(images, BATCH), workers=WORKERS, keep=True)
        theirs = decoded_loader([Image.open(io.BytesIO(content)).convert("RGB") for content in files], size)
        targets = torch.from_numpy(labels.dense()).gt(0).float()
        bare_epoch(theirs, targets, plan)
        our_epoch(ours, labels, plan)
        return paired_ratio(
            lambda: bare_epoch(theirs, targets, plan), lambda: our_epoch(ours, labels, plan), repeats
        )


def jpeg(rng: np.random.Generator) -> bytes:
    """Return an image that is about as hard to decode as a photograph."""
    coarse = Image.fromarray(rng.integers(0, 256, size=(24, 24, 3), dtype=np.uint8))
    content = io.BytesIO()
    coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    return content.getvalue()


def our_epoch(loader: ImageLoader, labels: Labels, plan: Plan) -> None:
    backbone = Backbone()
    backbone.keeps_statistics = True
    fit(
        Classifier(labels.classes, backbone.width, backbone),
        make("negative"),
        loader,
        plan,
        labels=labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=lambda *_: Verdict({"score": None}),
    )


class Decoded(Dataset[Any]):
    """Images in memory."""

    def __init__(self, images: list[Image.Image], size: int) -> None:
        self.images, self.size = images, size

    def __getitem__(self, row: int) -> tuple[int, np.ndarray]:
        pixels = augmented(self.images[row], self.size, (0, 1, row))
        return row, np.asarray(pixels).transpose(2, 0, 1)

    def __len__(self) -> int:
        return len(self.images)


def decoded_loader(images: list[Image.Image], size: int) -> DataLoader[Any]:
    return DataLoader(
        Decoded(images, size),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=WORKERS > 0,
        collate_fn=lambda items: (
            torch.tensor([row for row, _ in items]),
            torch.from_numpy(np.stack([pixels for _, pixels in items])),
        ),
    )


def bare_epoch(batches: DataLoader[Any], targets: torch.Tensor, plan: Plan) -> None:
    model = timm.create_model(DEFAULT_BACKBONE, num_classes=CLASSES).to(memory_format=torch.channels_last)
    average = [value.detach().clone() for value in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay, fused=True)
    mean, std = (255 * torch.tensor(part).view(3, 1, 1) for part in ([0.5] * 3, [0.5] * 3))
    model.train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.eval()
    for rows, images in batches:
        inputs = (images.contiguous(memory_format=torch.channels_last) - mean) / std
        binary_cross_entropy_with_logits(model(inputs), targets[rows]).backward()
        clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(average, [value.detach() for value in model.parameters()], 1 - plan.ema)


if __name__ == "__main__":
    show(rows())
