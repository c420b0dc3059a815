"""Training beside other work: how much longer the demo's linear runs take with busy processes beside them.

The runs are whole commands, each in a process of its own, as a user starts them. All are measured in one run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.measure import Row, row, show
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.schemes import parse

IMAGES, WIDTH, CLASSES = 3000, 1280, 36  # as large as the demo's
METHODS = ("negative", "wan", "auto")
REPEATS = 3


def rows(smoke: bool = False) -> list[Row]:
    images, methods, repeats = (60, METHODS[:1], 1) if smoke else (IMAGES, METHODS, REPEATS)
    with tempfile.TemporaryDirectory(prefix="tertium-bench-") as name:
        folder = Path(name)
        problem(folder, images)
        seconds = np.array([[*measured(folder, methods)] for _ in range(repeats)])
    quiet, one, two, both = np.median(seconds, axis=0)
    said = f"{' + '.join(methods)}, {images:,} × {WIDTH} → {CLASSES}"
    return [
        row("load", f"{said}: one busy process beside it, times quiet", one / quiet, "≤", 1.5),
        row("load", f"{said}: two busy processes, times quiet", two / quiet, "≤", 3),
        row("load", f"{said}: two such trainings at once, times one", both / quiet, "≤", 2.3),
    ]


def problem(folder: Path, images: int) -> None:
    """Write features that tell the classes, and labels of which most are hidden."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(images, WIDTH)).astype(np.float32)
    scores = features @ rng.normal(size=(WIDTH, CLASSES)) / WIDTH**0.5
    full = Labels.from_dense(np.where(scores > 1.2, 1, -1))
    write_labels(parse("random:0.1").apply(full, 0), folder / "labels.csv")
    np.save(folder / "x.npy", features)


def measured(folder: Path, methods: tuple[str, ...]) -> Iterator[float]:
    """Yield seconds: quiet, beside one busy process, beside two, and two trainings at once."""
    for others in (0, 1, 2):
        with busy(others):
            yield timed(folder, methods, 1)
    yield timed(folder, methods, 2)


def timed(folder: Path, methods: tuple[str, ...], at_once: int) -> float:
    started = time.perf_counter()
    for method in methods:
        running = [train(folder, method, number) for number in range(at_once)]
        if any(process.wait() for process in running):
            raise RuntimeError(f"training {method} failed")
    return time.perf_counter() - started


def train(folder: Path, method: str, number: int) -> subprocess.Popen[bytes]:
    words = ["--labels", "labels.csv", "--features", "x.npy", "--method", method]
    return subprocess.Popen(
        [sys.executable, "-m", "tertium", "train", *words, "--out", f"run{number}", "--overwrite"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )


@contextmanager
def busy(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    show(rows())
