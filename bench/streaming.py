"""Predicting and evaluating: how much memory more images take. Run alone: ``python -m bench.streaming``.

Each case runs in a process of its own, at N images and at 4 N. What is counted is the highest resident
memory above that before the call, in which the model, the ids and the labels are already; pages of mapped
files count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import Row, row, show

IMAGES, CLASSES, WIDTH = 40_000, 1000, 512  # fewer images do not fill what Parquet holds before it writes
CASES = {
    "predict": "predict, .parquet",
    "top": "predict, .csv, the top 5",
    "sparse": "evaluate, 30 known labels an image",
    "full": "evaluate, all labels known",
}


def rows(smoke: bool = False) -> list[Row]:
    few, measured = (20, measure) if smoke else (IMAGES, apart)
    many, found = 4 * few, []
    with tempfile.TemporaryDirectory(prefix="tertium-bench-") as folder:
        for count in (few, many):
            write_features(Path(folder) / f"{count}.npy", count)
        for case, text in CASES.items():
            small, large = (measured(case, count, Path(folder)) for count in (few, many))
            grown = (large["megabytes"] - small["megabytes"]) / (3 * few * CLASSES * 4 / 2**20)
            size = f"{many:,}×{CLASSES:,}"
            found += [
                row("streaming", f"{text}, {few:,}×{CLASSES:,}: MB", small["megabytes"], "", None),
                row("streaming", f"{text}, {size}: MB", large["megabytes"], "", None),
                row("streaming", f"{text}, {size}: seconds", large["seconds"], "", None),
                row("streaming", f"{text}: growth / growth of the scores", grown, "≤", 0.1),
            ]
    return found


def write_features(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    array = np.lib.format.open_memmap(path, "w+", np.float16, (count, WIDTH))
    for start in range(0, count, 1000):
        block = array[start : start + 1000]
        block[:] = rng.normal(size=block.shape).astype(np.float16)


def apart(case: str, count: int, folder: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "bench.streaming", case, str(count), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(case: str, count: int, folder: Path) -> dict[str, float]:
    call = prepared(case, count, folder)
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    before, start = resident("VmRSS"), time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return {"megabytes": resident("VmHWM") - before, "seconds": seconds}


def prepared(case: str, count: int, folder: Path) -> Callable[[], object]:
    import torch

    from tertium.models.classifier import Classifier
    from tertium.prediction.files import write_predictions
    from tertium.prediction.trained import Trained

    torch.manual_seed(0)
    names = tuple(f"class {number}" for number in range(CLASSES))
    model = Classifier(names, WIDTH)
    torch.nn.init.normal_(model.head.weight, std=0.01)
    trained = Trained(model.eval(), np.full(CLASSES, 0.5))
    features = folder / f"{count}.npy"
    list(trained.stream(trained.inputs(None, np.zeros((256, WIDTH), np.float32), None)))  # loads libraries
    if case in ("sparse", "full"):
        labels = known_labels(count, names, 30 if case == "sparse" else CLASSES)
        return lambda: trained.evaluate(labels, features=features)
    ids = [str(number) for number in range(count)]
    inputs = trained.inputs(None, features, ids)
    out, top = (folder / "p.csv", 5) if case == "top" else (folder / "p.parquet", None)
    return lambda: write_predictions(out, ids, names, trained.stream(inputs), top=top)


def known_labels(count: int, names: tuple[str, ...], each: int):
    """Labels of which every image has equally many, at random classes."""
    from tertium.labels import Labels

    rng = np.random.default_rng(0)
    step = len(names) // each
    entries = np.arange(1, len(names) + 1, step, dtype=np.int16)[:each] + np.zeros((count, 1), np.int16)
    if step > 1:
        entries += rng.integers(0, step, size=entries.shape, dtype=np.int16)
    entries[rng.random(entries.shape, dtype=np.float32) > 0.1] *= -1
    offsets = np.arange(count + 1, dtype=np.int64) * each
    return Labels(offsets, entries.reshape(-1), names, pa.array(np.arange(count).astype(str)))


def resident(what: str) -> float:
    """Return megabytes of this process: VmRSS are those now, VmHWM the most there were."""
    return int(Path("/proc/self/status").read_text().partition(f"{what}:")[2].split()[0]) / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        show(rows())
