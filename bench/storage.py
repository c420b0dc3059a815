"""Images in tar shards, in Parquet and in object storage on this machine, beside the same files in a folder.

``python -m bench.storage photos/`` takes the images of a folder instead of rendered ones.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from bench.measure import Row, row, show
from tertium.data.inputs import names_of, open_inputs
from tertium.data.pictures import Pictures
from tertium.data.scenes import render
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor
from tests.data.servers import storage

TARGETS = {"tar shards": 1.0, "Parquet": 1.0, "tar shards in object storage": 0.8}
SHARDS = 10


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    files: int = 2000
    windows: int = 100  # parts that the places are read in, in turn; each has a row group of Parquet
    size: int = 224  # of the pixels that the network gets


def rows(smoke: bool = False) -> list[Row]:
    scale = Scale(40, 2, 32) if smoke else Scale()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "photos"
        folder.mkdir()
        for number, image in enumerate(render(scale.files, seed=0).images):
            photo = Image.fromarray(image).resize((256, 192), Image.Resampling.BICUBIC)
            photo.save(folder / f"{number:05}.jpg", quality=90)
        return measured(folder, Path(base), scale)


def measured(folder: Path, base: Path, scale: Scale) -> list[Row]:
    """Compare the rates of features, and of decoding alone, with the folder's."""
    names = names_of(folder, None)[: scale.files]
    write(folder, names, base / "kept", len(names) // scale.windows)
    with served(base / "kept") as address, environment(AWS_ENDPOINT_URL=address, TERTIUM_CACHE="off"):
        extractor = Extractor(pretrained(size=scale.size).eval(), device=torch.device("cpu"))
        ways: dict[str, Callable[[Pictures], object]] = {"features": extractor, "decoding": decode}
        found = []
        for what, call in ways.items():
            # Each anew: finding and unpacking count too.
            with tempfile.TemporaryDirectory() as cache, environment(TERTIUM_IMAGE_CACHE=cache):
                seconds = timed(places(folder, base / "kept"), names, call, scale.windows)
            for name, each in seconds.items():
                if name in TARGETS:
                    rates = seconds["a folder"] / each
                    about = f"{what} from {name}, rate beside a folder's"
                    target = TARGETS[name] if what == "features" else None
                    found.append(row("storage", about, float(rates[0]), "≥", target))
                    found.append(row("storage", f"{about}, processor time", float(rates[1]), "≥", target))
        return found


def places(folder: Path, kept: Path) -> dict[str, str]:
    return {
        "a folder": str(folder),
        "tar shards": f"{kept}/{{0..{SHARDS - 1}}}.tar",
        "Parquet": f"{kept}/images.parquet",
        "tar shards in object storage": f"s3://bucket/{{0..{SHARDS - 1}}}.tar",
    }


def write(folder: Path, names: list[str], kept: Path, group: int) -> None:
    kept.mkdir()
    contents = [(folder / name).read_bytes() for name in names]
    for shard in range(SHARDS):
        with tarfile.open(kept / f"{shard}.tar", "w") as archive:
            for number in range(shard * len(names) // SHARDS, (shard + 1) * len(names) // SHARDS):
                member = tarfile.TarInfo(names[number])
                member.size = len(contents[number])
                archive.addfile(member, io.BytesIO(contents[number]))
    images = [{"bytes": content, "path": name} for name, content in zip(names, contents, strict=True)]
    pq.write_table(pa.table({"image": images}), kept / "images.parquet", row_group_size=group)


def timed(
    given: dict[str, str], names: list[str], call: Callable[[Pictures], object], windows: int
) -> dict[str, Any]:
    """Return the seconds that each place takes: [elapsed, of processors]; the folder comes first.

    Finding the images counts once. Then parts are read in turn, and each is compared with the same part of
    the folder, so that a busy moment of the machine slows both; the median of these ratios counts.
    """
    opening: dict[str, Any] = {}
    seconds: dict[str, list[Any]] = {name: [] for name in given}
    pictures: dict[str, Pictures] = {}
    for name, place in given.items():
        start = clocks()
        found = open_inputs(place, names=names).pictures
        opening[name] = clocks() - start
        assert found is not None
        pictures[name] = found
    first = next(iter(pictures.values()))
    call(first.select(np.arange(2)))  # what is made only once, such as the network
    for number, part in enumerate(np.array_split(np.arange(len(names)), windows)):
        order = list(pictures)[number % len(pictures) :] + list(pictures)[: number % len(pictures)]
        for name in order:
            start = clocks()
            call(pictures[name].select(part))
            seconds[name].append(clocks() - start)
    base = np.array(next(iter(seconds.values())))
    ratios = {name: np.median(np.array(each) / base, axis=0) for name, each in seconds.items()}
    return {name: opening[name] + ratio * windows * np.median(base, axis=0) for name, ratio in ratios.items()}


def clocks() -> Any:
    """Return the time and what this process has taken of processors, not the server's share."""
    return np.array([time.perf_counter(), time.process_time()])


def decode(pictures: Pictures) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda row: pictures.open(row).size, range(len(pictures))))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as a bucket, in another process; give the address of the server."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield f"http://{ours.recv()}"
    finally:
        ours.send("end")
        process.join()


def _serve(folder: Path, pipe: Any) -> None:
    with storage() as server:
        server.put(folder)
        pipe.send(server.host)
        pipe.recv()


@contextmanager
def environment(**values: str) -> Iterator[None]:
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
    before = dict(os.environ)
    os.environ.update({**keys, **values})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as passing:
        show(measured(Path(sys.argv[1]), Path(passing), Scale()) if len(sys.argv) > 1 else rows())
