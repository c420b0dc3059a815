"""Labels at the size of Open Images: how much memory, how quick a batch, how quick to open."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import Row, medians, row, show
from tertium.labels import Labels

IMAGES, CLASSES, KNOWN = 9_000_000, 9_600, 7  # 63 million known entries


def rows(smoke: bool = False) -> list[Row]:
    images, repeats = (1000, 2) if smoke else (IMAGES, 500)
    labels = open_images(images)
    rng = np.random.default_rng(0)
    batches = iter(rng.integers(0, images, size=(2 * repeats, 256)))
    case = f"{images:,} × {CLASSES:,}, {labels.known:,} known"
    found = [row("labels", f"{case}: gigabytes, ids included", labels.nbytes / 1e9, "≤", 0.35)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.arrow"
        labels.save(path)
        start = time.perf_counter()
        mapped = Labels.load(path)
        found.append(row("labels", "seconds to map a saved file", time.perf_counter() - start, "≤", 0.2))
        calls = [lambda source=source: source.dense(next(batches)) for source in (labels, mapped)]
        for kind, seconds in zip(("in memory", "mapped"), medians(calls, repeats), strict=True):
            found.append(
                row("batch fetch", f"256 rows, dense int8, {kind}: milliseconds", 1e3 * seconds, "≤", 0.5)
            )
    return found


def open_images(images: int = IMAGES) -> Labels:
    """Return labels of that shape: seven different classes an image, half of them absent."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, CLASSES, size=(images, 1), dtype=np.int32)
    steps = rng.integers(1, CLASSES // KNOWN, size=(images, KNOWN - 1), dtype=np.int32)
    columns = np.sort((first + np.cumsum(np.hstack([np.zeros_like(first), steps]), axis=1)) % CLASSES, axis=1)
    entries = (columns + 1).astype(np.int16) * rng.choice(
        np.array([-1, 1], dtype=np.int16), size=columns.shape
    )
    offsets = np.arange(0, images * KNOWN + 1, KNOWN, dtype=np.int32)
    letters = np.char.mod("%016x", np.arange(images)).astype("S16")
    ids = pa.Array.from_buffers(
        pa.string(),
        images,
        [None, pa.py_buffer(np.arange(0, 16 * images + 1, 16, dtype=np.int32)), pa.py_buffer(letters)],
    )
    return Labels(offsets, entries.reshape(-1), tuple(str(number) for number in range(CLASSES)), ids)


if __name__ == "__main__":
    show(rows())
