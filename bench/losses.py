"""Each method's step, forward and backward, beside torch's BCE-with-logits on full labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bench.measure import Row, medians, paired_ratio, row, show
from tertium import methods
from tertium.data.batches import Batch
from tertium.labels import Labels
from tertium.methods import Method
from tertium.methods.losses import compiled
from tertium.methods.state import SampleState

SMALL, LARGE = (64, 80), (256, 9600)
# shape → known labels an image, repeats
SHAPES = {SMALL: (8, 41), LARGE: (7, 11)}
# method → target when small; large, as written and compiled. Others are measured too.
TARGETS: dict[str, tuple[float, float, float | None]] = {
    "negative": (1.6, 1.7, 0.45),
    "an_ls": (1.6, 1.7, 0.45),
    "wan": (1.6, 1.7, 0.45),
    "ignore": (1.6, 0.15, None),
    "epr": (3.5, 1.7, 0.75),
    "role": (6.5, 5.5, 1.3),
    "ll_r": (3.6, 2.7, 1.15),
    "ll_ct": (3.6, 2.7, 1.15),
    "selective": (4.0, 3.5, 1.25),
    "asl": (5.7, 6.0, 0.85),
    "p_asl": (5.7, 6.0, 0.85),
}


def rows(smoke: bool = False) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for shape, (known, repeats) in {(8, 5): (2, 1)}.items() if smoke else SHAPES.items():
        labels, logits = problem(shape, known)
        for name in methods.available():
            found += steps(name, logits, labels, repeats)
    images = 65 if smoke else 65_000
    case = f"role's update of a {images:,}×80 table, batch 64: milliseconds"
    found.append(row("state", case, update(images, 2 if smoke else 200), "≤", 1.0))
    torch.set_num_threads(threads)
    return found


def steps(name: str, logits: torch.Tensor, labels: torch.Tensor, repeats: int) -> list[Row]:
    """Measure a method as written, and compiled where it is by default."""
    targets = TARGETS.get(name, (None, None, None))
    case = f"{name} at {logits.shape[0]}×{logits.shape[1]}"
    with switched("0"):
        eager = measure(methods.make(name), logits, labels, repeats)
    found = [row("loss step", f"{case}, eager: times BCE", eager, "≤", targets[logits.shape == LARGE])]
    with switched("1"), counted() as passes:
        fast = measure(methods.make(name), logits, labels, repeats)
    if passes:
        found.append(row("loss step", f"{case}, compiled (default): times BCE", fast, "≤", targets[2]))
    return found


@contextmanager
def switched(setting: str) -> Iterator[None]:
    """Set what a user may set."""
    with patch.dict(os.environ, {"TERTIUM_COMPILE": setting}):
        yield


@contextmanager
def counted() -> Iterator[list[None]]:
    """Return a list that has an item for each compiled pass which succeeds."""
    passes: list[None] = []
    attempt = compiled._attempt

    def noticed(*arguments: Any) -> Any:
        result = attempt(*arguments)
        passes.append(None)
        return result

    with patch.object(compiled, "_attempt", noticed):
        yield passes


def update(images: int, steps: int) -> float:
    """Return the milliseconds that `role` takes to write a step back."""
    labels, _ = problem((images, 80), 8)
    run, method = make_run(labels), methods.make("role")
    method.prepare(run)
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(steps):
        rows = torch.from_numpy(rng.choice(images, size=64, replace=False))
        logits = torch.randn(64, 80, requires_grad=True)
        batch = Batch(torch.empty(64, 0), labels[rows], rows)
        sum(method.terms(logits, batch, run).values()).backward()
        with torch.no_grad():
            seconds += medians([lambda logits=logits, batch=batch: method.after_step(logits, batch, run)], 1)
    return 1e3 * float(np.median(seconds))


def problem(shape: tuple[int, int], known: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    labels = np.zeros(shape, dtype=np.int8)
    columns = np.argsort(rng.random((shape[0], min(shape[1], 200))), axis=1)[:, :known]
    np.put_along_axis(
        labels, columns, rng.choice(np.array([-1, 1], dtype=np.int8), size=columns.shape), axis=1
    )
    logits = torch.from_numpy(rng.normal(-3, 2, size=shape).astype(np.float32)).requires_grad_()
    return torch.from_numpy(labels), logits


def measure(method: Method, logits: torch.Tensor, labels: torch.Tensor, repeats: int) -> float:
    batch = Batch(torch.empty(len(logits), 0), labels, torch.arange(len(logits)))
    run = make_run(labels)
    method.prepare(run)
    method.before_epoch(run)
    target = labels.gt(0).float()
    times = 20 if logits.numel() < 1e5 else 1

    def plain() -> None:
        for _ in range(times):
            logits.grad = None
            binary_cross_entropy_with_logits(logits, target).backward()

    def ours() -> None:
        for _ in range(times):
            logits.grad = None
            sum(method.terms(logits, batch, run).values()).backward()

    plain()
    ours()
    return paired_ratio(plain, ours, repeats)


def make_run(labels: torch.Tensor) -> Any:
    rng = np.random.default_rng(0)
    known = Labels.from_dense(labels.numpy())
    return SimpleNamespace(
        epoch=3,
        whole=False,
        epochs=10,
        lr=3e-4,
        labels=known,
        unasked=known,
        state=SampleState(*known.shape),
        scratch={},
        frequencies=None,
        rng=torch.Generator().manual_seed(0),
        features=lambda: rng.normal(size=(len(labels), 16)).astype(np.float32),
        predictions=lambda method: rng.random(labels.shape, dtype=np.float32),
        held_out=lambda method, epochs: rng.random(labels.shape, dtype=np.float32),
        note=lambda text: None,
        all_mean=lambda value: value,
    )


if __name__ == "__main__":
    show(rows())
