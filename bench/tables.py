"""Per-image tables at size: ``python -m bench.tables [IMAGES] [CLASSES]``.

Each method runs in a process of its own, with sparse random labels and random logits, tables in files of a
temporary folder (``TMPDIR``), first for a few images whose tables fit into memory, then for all. The full
size, ``python -m bench.tables 1000000``, takes 20 GB of disk and about a quarter of an hour.

Resident memory is the peak of the process (VmHWM): table files are read and written at positions and not
mapped, so their pages are the system's cache and not counted. What Python and torch take is part of it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bench.measure import Row, row, show
from tertium import methods
from tertium.data.batches import Batch
from tertium.labels import Labels
from tertium.methods.state import SampleState

CASES: dict[str, dict[str, Any]] = {"role": {}, "ll_cp": {}, "pseudo": {}, "em": {"apl": True, "warmup": 1}}
BATCH, STEPS, KNOWN = 256, 200, 5
SMALL = 1000  # images whose tables stay in memory
LIMIT = 2e9  # bytes resident


def rows(images: int = 50_000, classes: int = 9600) -> list[Row]:
    found = []
    for name in CASES:
        small, large = (measured(name, count, classes) for count in (min(SMALL, images), images))
        case = f"{name}, {images:,}×{classes:,}"
        found += [
            row("tables", f"{case}: GB on disk", large["bytes"] / 1e9, "≤", None),
            row("tables", f"{case}: GB resident at the peak", large["peak"] / 1e9, "≤", LIMIT / 1e9),
            row("tables", f"{case}: seconds of the processor to prepare", large["prepare"], "≤", None),
            row("tables", f"{case}: ms a step of {BATCH}", large["step"], "≤", None),
            row("tables", f"{case}: ms of the processor", large["processor"], "≤", None),
            row("tables", f"{case}: ms of the processor, {SMALL:,} in memory", small["processor"], "≤", None),
        ]
        if name == "em":
            pass_ = large["before_epoch"]
            found.append(row("tables", f"{case}: seconds of the processor before an epoch", pass_, "≤", 180))
    return found


def measured(name: str, images: int, classes: int) -> dict[str, float]:
    """Run one method in a process of its own."""
    command = [sys.executable, "-m", "bench.tables", "--only", name, str(images), str(classes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def sparse_labels(images: int, classes: int) -> Labels:
    """A few known labels for each image, built as they are stored."""
    rng = np.random.default_rng(0)
    entries = np.sort(rng.integers(0, classes - KNOWN + 1, (images, KNOWN), dtype=np.int16), axis=1)
    entries += np.arange(1, KNOWN + 1, dtype=np.int16)  # ascending, without repetition
    entries *= rng.choice(np.array([-1, 1], dtype=np.int16), size=entries.shape)
    names = pa.array([f"{number:07}" for number in range(images)])
    return Labels(
        np.arange(0, KNOWN * images + 1, KNOWN), entries.reshape(-1), tuple(map(str, range(classes))), names
    )


def run_of(labels: Labels, folder: Path) -> Any:
    return SimpleNamespace(
        epoch=2,
        epochs=10,
        lr=3e-4,
        whole=False,
        labels=labels,
        # Compact also where few images would not need it: the two speeds differ by the files alone.
        state=SampleState(*labels.shape, folder=folder, compact=True),
        scratch={},
        rng=torch.Generator().manual_seed(0),
        all_mean=lambda value: value,
    )


def only(name: str, images: int, classes: int) -> dict[str, float]:
    """Prepare, take steps on random images, and choose for the next epoch where the method does."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    labels = sparse_labels(images, classes)
    method = methods.make(name, CASES[name])
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(labels, Path(folder))
        started = time.process_time()
        method.prepare(run)
        result = {"prepare": time.process_time() - started}
        seconds = np.array([step(method, run, rng) for _ in range(STEPS)])
        result["step"], result["processor"] = 1e3 * np.median(seconds, axis=0)
        if name == "em":
            started = time.process_time()
            run.epoch = 3
            method.before_epoch(run)
            result["before_epoch"] = time.process_time() - started
            frozen = sum(int(run.state.table("frozen").read(rows).sum()) for rows in run.state.blocks())
            assert frozen == int(run.state.tensors["frozen"].sum()) > 0
        result["bytes"] = sum(path.stat().st_size for path in Path(folder).iterdir())
        result["peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        del run
    return result


def step(method: methods.Method, run: Any, rng: np.random.Generator) -> tuple[float, float]:
    """Return the seconds of a step without the model (the loss, its gradient and the tables).

    Those of the clock, waiting for the disk included, and those of the processor, which say more where
    others use the machine.
    """
    images, classes = run.state.shape
    index = rng.choice(images, size=BATCH, replace=False)
    batch = Batch(torch.empty(BATCH, 0), torch.from_numpy(run.labels.dense(index)), torch.from_numpy(index))
    logits = torch.from_numpy(rng.normal(-3, 2, size=(BATCH, classes)).astype(np.float32)).requires_grad_()
    started, busy = time.perf_counter(), time.process_time()
    sum(method.terms(logits, batch, run).values()).backward()
    with torch.no_grad():
        method.after_step(logits, batch, run)
    return time.perf_counter() - started, time.process_time() - busy


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        print(json.dumps(only(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        show(rows(*map(int, sys.argv[1:])))
