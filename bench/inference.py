"""A frozen network on the CPU: ONNX Runtime beside torch, one thread each; from image files to features.

``python -m bench.inference resnet18 photos/`` measures other networks of timm, and the images of a folder.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.measure import Row, paired_ratio, row, show
from tertium.data.batches import ImageLoader, Order
from tertium.data.inputs import names_of, open_inputs
from tertium.data.pictures import SourcePictures
from tertium.data.scenes import render
from tertium.data.views import resized
from tertium.labels import Labels
from tertium.models.backbones import DEFAULT_BACKBONE, Backbone
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor
from tertium.models.onnx_files import convert
from tertium.models.onnx_session import session

SIDE = 192  # of images that are rendered


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    size: int = 224  # of the pixels that the network gets
    batch: int = 16
    files: int = 64  # that are rendered, or taken from a folder
    repeats: int = 9


def rows(smoke: bool = False) -> list[Row]:
    scale = Scale(32, 2, 2, 1) if smoke else Scale()
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(render(scale.files, seed=0).images):
            Image.fromarray(image).resize((SIDE, SIDE)).save(Path(folder) / f"{number:03}.jpg", quality=90)
        return network(DEFAULT_BACKBONE, scale, 3.0) + files(Path(folder), scale)


def network(name: str, scale: Scale, target: float | None = None) -> list[Row]:
    """Compare what computes the features, one thread each, on random pixels."""
    backbone = Backbone(name) if name != DEFAULT_BACKBONE else pretrained()
    images = torch.randint(0, 256, (scale.batch, 3, scale.size, scale.size), dtype=torch.uint8)
    pixels = images.numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "backbone.onnx"
        convert(backbone, images[:2], path, inputs="images", outputs="features", metadata={})
        running = session(path, 1)
    plain = copy.deepcopy(backbone.net).to(memory_format=torch.contiguous_format)

    def one_by_one() -> Any:
        return np.concatenate(
            [running.run(None, {"images": pixels[place, None]})[0] for place in range(scale.batch)]
        )

    calls: dict[str, tuple[Callable[[], Any], float | None]] = {
        "torch": (lambda: plain((images - backbone.mean) / backbone.std), target),
        "torch, channels last": (lambda: backbone(images), None),
        f"batches of {scale.batch}": (lambda: running.run(None, {"images": pixels})[0], None),
    }
    found = []
    with torch.inference_mode():
        for what, (call, bound) in calls.items():
            call()
            ratio = paired_ratio(one_by_one, call, scale.repeats)
            found.append(
                row("inference", f"{name}: {what}, times ONNX Runtime one by one", ratio, "≥", bound)
            )
        difference = float(np.abs(one_by_one() - backbone(images).numpy()).max())
    return [*found, row("inference", f"{name}: largest difference from torch", difference, "≤", 1e-4)]


def files(folder: Path, scale: Scale) -> list[Row]:
    """Compare ways from image files to features, and what their parts cost."""
    names = names_of(folder, None)[: scale.files]
    pictures = open_inputs(folder, names=names).pictures
    backbone = pretrained(size=scale.size).eval()
    extractor = Extractor(backbone, device=torch.device("cpu"), workers=0)
    with tempfile.TemporaryDirectory() as other, ProcessPoolExecutor(2) as processes:

        def new() -> None:
            with cache("off"):
                extractor(pictures)

        def kept() -> None:
            with cache(other):
                extractor(pictures)

        def decode(pool: Executor) -> None:
            deque(
                pool.map(partial(pixels_of, pictures, scale.size), range(len(names)), chunksize=8), maxlen=0
            )

        threads = ThreadPoolExecutor(2)
        new(), kept(), decode(processes)
        ratios = {
            "a decoding process and torch, times ours": (
                new,
                lambda: by_torch(backbone, pictures, scale.size),
                3,
            ),
            "computing features, times finding them in the cache": (kept, new, 3),
            "decoding in two processes, times in two threads": (
                lambda: decode(threads),
                lambda: decode(processes),
                9,
            ),
            "decoding, times hashing": (
                lambda: [pictures.checksum(row) for row in range(len(names))],
                lambda: [pixels_of(pictures, scale.size, row) for row in range(len(names))],
                9,
            ),
        }
        return [
            row("features", what, paired_ratio(base, call, min(repeats, scale.repeats)), "≥", None)
            for what, (base, call, repeats) in ratios.items()
        ]


def pixels_of(pictures: SourcePictures, size: int, row: int) -> Any:
    return np.asarray(resized(pictures.open(row), size))


def by_torch(backbone: Backbone, pictures: SourcePictures, size: int) -> None:
    """What Tertium did before: batches, decoded in another process, in channels-last torch."""
    nameless = Labels.unknown(pictures.names, ["any"])
    with torch.inference_mode():
        for batch in ImageLoader(pictures, nameless, size, Order(len(pictures), 64), workers=1).epoch(0):
            backbone(batch.inputs).numpy().astype(np.float16)


@contextmanager
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def cache(place: str) -> Any:
    before = os.environ.get("TERTIUM_CACHE")
    os.environ["TERTIUM_CACHE"] = place
    try:
        yield
    finally:
        if before is None:
            del os.environ["TERTIUM_CACHE"]
        else:
            os.environ["TERTIUM_CACHE"] = before


if __name__ == "__main__":
    for word in sys.argv[1:]:
        with one_thread():
            show(files(Path(word), Scale()) if Path(word).is_dir() else network(word, Scale()))
    if not sys.argv[1:]:
        show(rows())
