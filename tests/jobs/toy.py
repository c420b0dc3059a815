"""A job without a model: its parts have the size of each image in bytes."""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from PIL import Image

from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.jobs.folder import Part
from tertium.jobs.running import Job
from tertium.jobs.shards import RowPlan, plan_files


@dataclass(frozen=True)
class Sizes:
    """Work that notes in a file which process did which shard, and obeys names of images."""

    notes: str = os.devnull
    deadly: int = -1  # the shard at which a worker is killed, once
    seconds: float = 0.0  # that a shard takes

    def __call__(self):
        def work(shard):
            inputs = shard.open()
            with open(self.notes, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {shard.number}\n")
            time.sleep(self.seconds)
            if shard.number == self.deadly and not os.path.exists(f"{self.notes}.killed"):
                open(f"{self.notes}.killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            if any("damaged" in name for name in inputs.names):
                raise InputError(f"{shard.title}: has a damaged image")
            if any("odd" in name for name in inputs.names):
                raise KeyError("odd")
            sizes = [_size(inputs.pictures, row) for row in range(len(inputs))]
            table = pa.table({"image": inputs.names, "bytes": pa.array(sizes, pa.int64())})
            return Part(table, len(inputs), {}, {"first": inputs.names[:1]})

        return work


def _size(pictures, row):
    with pictures.source.open(int(pictures.numbers[row])) as content:
        return len(content.read())


def sizes(place, notes=os.devnull, images=256, deadly=-1, seconds=0.0, **about):
    """Return the job on the images of a place."""
    plan = plan_files(str(place), images) or RowPlan(open_inputs(str(place)), images=images)
    return Job("sizes", about, plan, Sizes(str(notes), deadly, seconds))


def rows(finished):
    """Return all rows of a job."""
    return pa.concat_tables([finished.folder.table(done) for done in finished.in_order()]).to_pylist()


def draw(folder, count, names="{:04d}.png"):
    """Draw small images."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / names.format(number))
    return folder
