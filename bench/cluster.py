"""Work on a Ray cluster: what its parts cost, how long 100 million images take, and what lost workers cost.

``python -m bench.cluster`` measures here, checks the prediction with 1, 2 and 4 actors, and predicts for
others: ``--images 100e6 --workers 8 64 512 --price 0.5`` (of a worker for an hour). With ``--simulate`` it
only simulates stragglers and workers that die.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.measure import Row, row, show
from tertium.jobs.cluster import _Crew, _own_versions, joined

SIZE, WIDTH = (640, 480), 1280  # of a photograph, and of its features
CLASSES, TOP = 10_000, 20  # of which the most probable are written
SHARD = 1024  # images of a task, as `tertium predict` makes them


# ---- what lost workers and stragglers cost: the queue of `tertium.jobs.cluster` in simulated time ----------


@dataclass(eq=False)
class Reference:
    """What an actor will have done, or why not."""

    at: float
    value: Any = None
    error: Exception | None = None


class Died(Exception):
    """Stands for Ray's error of an actor that is gone."""


class Simulated:
    """Stands for the module ``ray``: actors that take time, are slow, and die, without any waiting."""

    exceptions = SimpleNamespace(
        ObjectStoreFullError=MemoryError, OutOfDiskError=OSError, RayTaskError=KeyError, RayError=Died
    )

    def __init__(
        self,
        rng: np.random.Generator,
        seconds: np.ndarray[Any, Any],
        *,
        workers: int,
        start: float,
        dying: float,
        slow: float,
        factor: float,
    ) -> None:
        """Of the actors a share ``dying`` dies, and a share ``slow`` takes ``factor`` times as long.

        They die at any moment of the time that the work should take; so do those that replace them.
        """
        self.rng, self.seconds, self.start, self.span = rng, seconds, start, seconds.sum() / workers
        self.dying, self.slow, self.factor = dying, slow, factor
        self.doomed = {*rng.choice(workers, round(dying * workers), replace=False).tolist()}
        self.late = {*rng.choice(workers, round(slow * workers), replace=False).tolist()}
        self.workers, self.actors = workers, 0
        self.clock, self.died, self.wasted = 0.0, 0, 0.0
        self._events: list[tuple[float, int, Reference]] = []
        self._calls = 0

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda _: SimpleNamespace(remote=self._actor)

    def _actor(self) -> Any:
        number, self.actors = self.actors, self.actors + 1
        first = number < self.workers
        dies = number in self.doomed if first else self.rng.random() < self.dying
        late = number in self.late if first else self.rng.random() < self.slow
        ends = self.clock + self.span * self.rng.random() if dies else math.inf
        pace = self.factor if late else 1.0
        versions = {"machine": "simulated", **_own_versions()}
        return SimpleNamespace(
            versions=SimpleNamespace(remote=partial(self._call, ends, self.start, versions)),
            load=SimpleNamespace(remote=lambda *_: self._call(ends, 0.0, None)),
            work=SimpleNamespace(remote=lambda item: self._call(ends, pace * self.seconds[item], item)),
        )

    def _call(self, ends: float, seconds: float, value: Any) -> Reference:
        done = self.clock + seconds
        if done > ends:
            self.died += 1
            self.wasted += max(0.0, ends - self.clock)
            found = Reference(max(ends, self.clock), error=Died())
        else:
            found = Reference(done, value)
        self._calls += 1
        heapq.heappush(self._events, (found.at, self._calls, found))
        return found

    def wait(
        self, _: list[Reference], num_returns: int = 1, timeout: float = 0.0
    ) -> tuple[list[Reference], list[Reference]]:
        if timeout:  # whichever comes first
            self.clock = self._events[0][0]
            return [self._events[0][2]], []
        ready = []
        while self._events and self._events[0][0] <= self.clock:
            ready.append(heapq.heappop(self._events)[2])
        return ready, []

    def get(self, reference: Reference) -> Any:
        if reference.error is not None:
            raise reference.error
        return reference.value

    def put(self, value: Any) -> Any:
        return value

    def kill(self, _: Any) -> None:
        """Nothing is left of it."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1}}]


def simulate(
    workers: int,
    shards: int,
    *,
    dying: float = 0.1,
    slow: float = 0.05,
    factor: float = 3.0,
    start: float = 0.05,
    tries: int = 3,
    seed: int = 0,
) -> dict[str, float]:
    """Give shards to workers that may die or be slow; return what became of them.

    Times are in those of a mean shard; a replaced worker takes ``start`` of that. Shards vary by a tenth.
    """
    rng = np.random.default_rng(seed)
    seconds = np.maximum(rng.normal(1.0, 0.1, shards), 0.1)
    ray = Simulated(rng, seconds, workers=workers, start=start, dying=dying, slow=slow, factor=factor)
    crew = _Crew[int, int](ray, lambda: abs, 1, 0, tries, 0.0)  # type: ignore[arg-type]
    found = list(crew.work(list(range(workers)), iter(range(workers, shards))))
    counts = Counter(item for item, _ in found)
    return {
        "lost": shards - len(counts),
        "twice": sum(counts.values()) - len(counts),
        "failed": sum(item != value for item, value in found),
        "died": ray.died,
        "makespan": ray.clock / ray.span,
        "wasted": ray.wasted / seconds.sum(),
    }


def simulation(smoke: bool) -> list[Row]:
    """Workers of which a tenth die, and a twentieth take three times as long."""
    found = []
    for workers, each in ((10, 20),) if smoke else ((10, 100), (100, 100), (1000, 100), (100, 10)):
        for what, options in (
            ("none dies, none is slow", {"dying": 0.0, "slow": 0.0}),
            ("a tenth die", {"slow": 0.0}),
            ("a tenth die, a twentieth are slow", {}),
        ):
            ended = [
                simulate(workers, workers * each, seed=seed, **options) for seed in range(1 if smoke else 5)
            ]
            case = f"{workers:,} workers, {each} shards for each: {what}"
            for name in ("lost", "twice", "failed"):
                found.append(row("simulated", f"{case}: shards {name}", max(e[name] for e in ended), "≤", 0))
            for name, said in (
                ("died", "workers that died"),
                ("wasted", "work done in vain, share"),
                ("makespan", "time, times ideal"),
            ):
                mean = float(np.mean([e[name] for e in ended]))
                found.append(row("simulated", f"{case}: {said}", mean, "≥", None))
    return found


# ---- what the parts cost, one core each --------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Seconds on one core of this machine, and bytes."""

    decode: float  # an image
    network: float
    head: float  # of an image to CLASSES classes, and writing the TOP of them
    start: float  # until workers have begun
    task: float  # between two tasks of a worker, and of the driver for each
    label: float  # a row of a label file
    image_bytes: float  # read, and written: features, predictions
    feature_bytes: float
    prediction_bytes: float
    driver_bytes: float  # for each task, as long as the work runs

    def seconds(self, images: float, workers: int, shard: int, *stages: float) -> float:
        """Return how long so many workers take: whole shards each, and none faster than the driver."""
        tasks = math.ceil(images / shard)
        each = math.ceil(tasks / workers) * (shard * sum(stages) + self.task)
        return self.start + max(each, tasks * self.task)


def processor_seconds(call: Callable[[], Any]) -> float:
    """Return how long this process computes, whatever else the machine does."""
    before = time.process_time()
    call()
    return time.process_time() - before


def photographs(folder: Path, count: int) -> list[str]:
    """Write rendered scenes as large as photographs."""
    from PIL import Image

    from tertium.data.scenes import render

    paths = [str(folder / f"{number:04}.jpg") for number in range(count)]
    for path, image in zip(paths, render(count, seed=0).images, strict=True):
        Image.fromarray(image).resize(SIZE).save(path, quality=90)
    return paths


class Featuriser:
    """Decodes photographs and computes their features on one core; the time of each stage is kept."""

    def __init__(self) -> None:
        import torch

        from tertium.models.encoders import pretrained
        from tertium.models.features import Extractor

        torch.set_num_threads(1)
        self._extractor = Extractor(pretrained(), device=torch.device("cpu"), workers=0)

    def network(self, seconds: float) -> float:
        """Return the processor's seconds for an image, decoding apart."""
        self._extractor.rate(0.1)  # builds it
        before = time.process_time()
        images = self._extractor.rate(seconds) * seconds
        return (time.process_time() - before) / images

    def decode(self, paths: Sequence[str]) -> None:
        from tertium.data.decoding import decoded
        from tertium.data.views import resized

        for path in paths:
            with open(path, "rb") as file:
                np.asarray(resized(decoded(file, path, None)[0], 224))

    def __call__(self, paths: Sequence[str]) -> float:
        """Compute the features of photographs, as a worker does; return the processor's seconds for it."""
        os.environ["TERTIUM_CACHE"] = "off"
        from tertium.data.inputs import open_inputs

        pictures = open_inputs(Path(paths[0]).parent, names=[Path(path).name for path in paths]).pictures
        assert pictures is not None
        return processor_seconds(lambda: self._extractor(pictures))


def head_costs(folder: Path, images: int) -> tuple[float, float, float]:
    """Return seconds of the head and its output, bytes of the predictions and of the features of an image."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from tertium.models.classifier import Classifier
    from tertium.prediction.files import write_predictions

    names, classes = [f"{number:012}" for number in range(images)], [f"c{n}" for n in range(CLASSES)]
    features = torch.randn(images, WIDTH)
    model, out = Classifier(tuple(classes), WIDTH).eval(), folder / "predictions.parquet"
    torch.nn.init.normal_(model.head.weight, std=WIDTH**-0.5)

    def blocks() -> Iterator[Any]:
        with torch.inference_mode():
            for part in features.split(256):
                yield model(part).sigmoid().numpy()

    torch.set_num_threads(1)
    seconds = processor_seconds(lambda: write_predictions(out, names, classes, blocks(), top=TOP))
    array = pa.FixedSizeListArray.from_arrays(pa.array(features.half().numpy().reshape(-1)), WIDTH)
    pq.write_table(pa.table({"image": names, "features": array}), folder / "features.parquet")
    return (
        seconds / images,
        out.stat().st_size / images,
        (folder / "features.parquet").stat().st_size / images,
    )


def label_cost(folder: Path, lines: int) -> float:
    """Return the seconds of a row of a label file."""
    from tertium.labels.readers import read_labels

    rng = np.random.default_rng(0)
    numbers = rng.integers(0, CLASSES, lines)
    with open(folder / "labels.csv", "w") as file:
        file.write("image,label,value\n")
        file.writelines(f"{line // 10:012},c{number},1\n" for line, number in enumerate(numbers))
    return processor_seconds(lambda: read_labels(folder / "labels.csv")) / lines


def task_costs(cluster: Any, tasks: int) -> tuple[float, float]:
    """Return the seconds of a task that does nothing, and the bytes by which the driver grows for each."""
    run = partial(cluster.run, lambda: lambda item: item, workers=1)
    for _ in run(range(64)):
        pass
    memory, began = resident(), 0.0
    for _ in run(range(tasks + 1)):
        began = began or time.perf_counter()  # from the end of the first
    return (time.perf_counter() - began) / tasks, max(0.0, resident() - memory) / tasks


def resident() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


def measured(cluster: Any, start: float, folder: Path, *, smoke: bool) -> Costs:
    """Measure every part on one core."""
    images, lines, tasks = (4, 1000, 50) if smoke else (256, 2_000_000, 5000)
    paths = photographs(folder, images)
    work = Featuriser()
    head, predictions, features = head_costs(folder, 64 if smoke else 2048)
    task, driver = task_costs(cluster, tasks)
    return Costs(
        decode=processor_seconds(lambda: work.decode(paths)) / images,
        network=work.network(0.1 if smoke else 5.0),
        head=head,
        start=start,
        task=task,
        label=label_cost(folder, lines),
        image_bytes=float(np.mean([os.path.getsize(path) for path in paths])),
        feature_bytes=features,
        prediction_bytes=predictions,
        driver_bytes=driver,
    )


def checked(cluster: Any, costs: Costs, folder: Path, *, smoke: bool) -> list[Row]:
    """Run decoding and network with 1, 2 and 4 actors; compare with what the costs predict.

    The start cancels out: of two runs, one has two tasks for each actor, and one has many. On a busy machine
    the clock says little; the processor's time does not depend on who else computes.
    """
    paths = sorted(map(str, folder.glob("*.jpg")))
    shard, cores = (2, 2) if smoke else (32, os.cpu_count() or 1)
    image, found = costs.decode + costs.network, []
    for actors in (1,) if smoke else (1, 2, 4):
        few, many = 2 * actors, 3 * actors if smoke else 24
        spans, used = [], 0.0
        for tasks in (few, many):
            items = [[paths[(task * shard + k) % len(paths)] for k in range(shard)] for task in range(tasks)]
            began = time.perf_counter()
            used = sum(seconds for _, seconds in cluster.run(Featuriser, items, workers=actors))
            spans.append(time.perf_counter() - began)
        took = spans[1] - spans[0]
        said = (many - few) / min(actors, cores) * (shard * image + costs.task)
        case = f"{actors} actors on {cores} cores, {(many - few) * shard} images"
        found += [
            row("cluster", f"{case}: processor, times predicted", used / (many * shard * image), "≤", None),
            row("cluster", f"{case}: seconds, times predicted", took / said, "≤", None),
            row("cluster", f"{case}: seconds", took, "≤", None),
            row("cluster", f"{case}: seconds until each has done two shards", spans[0], "≤", None),
        ]
    return found


def rows(smoke: bool = False) -> list[Row]:
    return simulation(smoke) + measure(smoke)[1]


def measure(smoke: bool = False) -> tuple[Costs, list[Row]]:
    """Measure the parts, and check what they predict."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, joined(None) as cluster:
        start = time.perf_counter() - began
        costs = measured(cluster, start, Path(name), smoke=smoke)
        found = [
            row("cluster", "start of a cluster on this machine: seconds", costs.start, "≤", None),
            row("cluster", f"decoding {SIZE[0]}×{SIZE[1]}: images/s and core", 1 / costs.decode, "≥", None),
            row("cluster", "network: images/s and core", 1 / costs.network, "≥", None),
            row("cluster", f"head to {CLASSES:,}, top {TOP} written: images/s", 1 / costs.head, "≥", None),
            row("cluster", "label rows/s", 1 / costs.label, "≥", None),
            row("cluster", "a task that does nothing: milliseconds", 1e3 * costs.task, "≤", None),
            row("cluster", "bytes of an image", costs.image_bytes, "≤", None),
            row("cluster", "bytes of its features, .parquet", costs.feature_bytes, "≤", None),
            row("cluster", f"bytes of its top {TOP}, .parquet", costs.prediction_bytes, "≤", None),
            row("cluster", "driver: bytes of a task", costs.driver_bytes, "≤", None),
        ]
        return costs, found + checked(cluster, costs, Path(name), smoke=smoke)


def predicted(costs: Costs, images: float, workers: int, price: float | None) -> str:
    """Return a line: hours and, with the price of a worker for an hour, money."""
    seconds = costs.seconds(images, workers, SHARD, costs.decode, costs.network, costs.head)
    hours = seconds / 3600
    line = f"{workers:>6} workers of one core: {hours:>9,.1f} h, {hours * workers:>9,.0f} worker-hours"
    return line if price is None else f"{line}, {hours * workers * price:,.0f} at {price:g} an hour"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster")
    parser.add_argument("--simulate", action="store_true", help="only stragglers and workers that die")
    parser.add_argument("--images", type=float, default=100e6)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument("--price", type=float, help="of a worker for an hour, in whatever you pay")
    options = parser.parse_args()
    show(simulation(smoke=False))
    if options.simulate:
        return
    costs, found = measure()
    show(found)
    images = options.images
    print(f"{images:,.0f} images, {CLASSES:,} classes, shards of {SHARD:,}:")
    for workers in options.workers:
        print(predicted(costs, images, workers, options.price))
    terabytes = images * costs.image_bytes / 1e12
    gigabytes = [images * each / 1e9 for each in (costs.feature_bytes, costs.prediction_bytes)]
    print(f"{terabytes:.1f} TB read; features {gigabytes[0]:.0f} GB, predictions {gigabytes[1]:.0f} GB")


if __name__ == "__main__":
    main()
