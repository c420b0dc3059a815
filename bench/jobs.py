"""Large jobs: how fast workers of a Ray cluster are beside this process, and the memory of the driver.

``python -m bench.jobs`` takes 5,000 rendered photographs, or as many as it is told. Rates count from the end
of the first shard to that of the last, so that starting a cluster and loading a network are left out; what
they take is a row of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from PIL import Image

from bench.measure import Row, row, show
from tertium.config import settings_from
from tertium.data.inputs import open_inputs
from tertium.data.scenes import render
from tertium.jobs.folder import Part
from tertium.jobs.running import Job, Request, Workers, run
from tertium.jobs.shards import RowPlan, Shard
from tertium.models.sharded import features
from tertium.progress import Progress


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    photos: int = 5000
    shard: int = 512
    size: int = 224  # of the pixels that the network gets
    turns: int = 2  # how often each engine takes its turn
    rows: int = 1_000_000


def rows(smoke: bool = False) -> list[Row]:
    scale = Scale(512, 256, 32, 1, 2000) if smoke else Scale()
    with tempfile.TemporaryDirectory(prefix="tertium-bench-") as passing:
        return measured(Path(passing), scale)


def measured(folder: Path, scale: Scale) -> list[Row]:
    return [*throughput(folder, scale), *memory(folder, scale)]


# ---- speed -------------------------------------------------------------------------------------------------


class Clock(Progress):
    """Notes when shards end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def advance(self, count: int = 1) -> None:
        self.ends.append(time.perf_counter())


def throughput(folder: Path, scale: Scale) -> list[Row]:
    photos = folder / "photos"
    photos.mkdir()
    for number, pixels in enumerate(render(scale.photos, seed=0).images):
        photo = Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC)
        photo.save(photos / f"{number:05}.jpg", quality=90)
    rates: dict[str, list[float]] = {"local": [], "ray": []}
    waits = []
    for turn in range(scale.turns):
        for engine in sorted(rates, reverse=bool(turn % 2)):
            clock, start = Clock(), time.perf_counter()
            request = Request(str(folder / f"{engine}-{turn}"), Workers(engine), images=scale.shard)
            features(
                photos, request=request, settings=settings_from({"image_size": scale.size}), progress=clock
            )
            rates[engine].append(rate(clock.ends, scale))
            if engine == "ray":
                waits.append(clock.ends[0] - start - scale.shard / rates[engine][-1])
    best = {engine: max(each) for engine, each in rates.items()}
    size = f"{scale.photos:,} photographs"
    return [
        row("jobs", f"features of {size}, --engine local: images a second", best["local"], "", None),
        row("jobs", f"features of {size}, --engine ray: images a second", best["ray"], "", None),
        row("jobs", "rate of --engine ray beside local", best["ray"] / best["local"], "≥", 0.9),
        row("jobs", "start of a cluster and its workers: seconds", min(waits), "", None),
    ]


def rate(ends: list[float], scale: Scale) -> float:
    """Return the images a second between the ends of the first and of the last whole shard."""
    whole = scale.photos // scale.shard
    ends = sorted(ends)[:whole]
    return scale.shard * (len(ends) - 1) / (ends[-1] - ends[0])


# ---- memory ------------------------------------------------------------------------------------------------


def memory(folder: Path, scale: Scale) -> list[Row]:
    few, many = (apart(count, folder) for count in (scale.rows // 4, scale.rows))
    more = scale.rows - scale.rows // 4
    names, rest = ((many[key] - few[key]) * 2**20 / more for key in ("names", "rest"))
    return [
        row("jobs", f"driver of {scale.rows:,} images: names, MB", many["names"], "", None),
        row("jobs", f"driver of {scale.rows:,} images: all else, MB", many["rest"], "", None),
        row("jobs", "driver: bytes of names for one more image", names, "", None),
        row("jobs", "driver: all other bytes for one more image", rest, "≤", 10),
    ]


def apart(count: int, folder: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "bench.jobs", "driver", str(count), str(folder / f"driver-{count}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def driver(count: int, folder: Path) -> dict[str, float]:
    """Run a job on a cluster whose workers do nothing; return the memory of this process in MB."""
    from tertium.jobs.cluster import joined

    folder.mkdir()
    with open(folder / "list.txt", "w", encoding="utf-8") as file:
        file.writelines(f"photos/{number % 1000:03d}/{number:012d}.jpg\n" for number in range(count))
    with joined(None):
        list_nothing = open_inputs(str(folder / "list.txt"), names=[])  # what is loaded once is loaded
        before = resident("VmRSS")
        inputs = open_inputs(str(folder / "list.txt"))
        named = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        job = Job("nothing", {}, RowPlan(inputs), _nothing)
        done = run(job, Request(str(folder / "job"), Workers("ray", actors=1)))
        assert done.images == count + len(list_nothing)
        return {"names": named - before, "rest": resident("VmHWM") - named}


def _nothing():
    def work(shard: Shard) -> Part:
        names = shard.open().names
        return Part(pa.table({"image": names}), len(names), {}, {})

    return work


def resident(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    if sys.argv[1:2] == ["driver"]:
        print(json.dumps(driver(int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        photos = int(sys.argv[1]) if len(sys.argv) > 1 else Scale.photos
        with tempfile.TemporaryDirectory(prefix="tertium-bench-") as passing:
            show(measured(Path(passing), Scale(photos)))
