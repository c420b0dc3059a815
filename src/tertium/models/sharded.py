"""Features as a large job: shard by shard, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tertium.config import Settings
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.jobs.folder import Part
from tertium.jobs.running import Finished, Job, Request, Work, run
from tertium.jobs.shards import Plan, RowPlan, Shard, absolute, plan_files
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor, Rows, list_broken, write_features
from tertium.progress import Progress


def features(
    images: str | Path,
    *,
    request: Request,
    settings: Settings | None = None,
    names: Sequence[str] | None = None,
    joined: Path | None = None,
    progress: Progress | None = None,
) -> Finished:
    """Write the features of images by a frozen network, as parts in the folder of a job.

    Those of ``names``, or all that there are. Images that cannot be read are left out and listed. When all
    parts are there, they are ``joined`` in one .npy file with the names beside it, if that is asked for.
    """
    settings = settings or Settings()
    place = absolute(str(images))
    plan: Plan | None = plan_files(place, request.images) if names is None else None
    if plan is None:
        plan = RowPlan(open_inputs(place, names=names), images=request.images)
    work = _Extracting(settings)
    about = work.extractor("cpu").about
    finished = run(Job("features", {"place": place, **_told(about)}, plan, work), request, progress)
    if joined is not None and finished.is_complete and finished.speaks:
        _join(finished, joined, about)
    return finished


def _told(about: dict[str, Any]) -> dict[str, Any]:
    """Return what features depend on, by the words of a message; workers may have another device."""
    rest = {key: value for key, value in about.items() if key not in ("backbone", "weights", "device")}
    return {"model": f"{about['backbone']} {about['weights']}", **rest}


@dataclass(frozen=True)
class _Extracting:
    """Extracts the features of shards."""

    settings: Settings

    def extractor(self, device: str) -> Extractor:
        """Load the network; nothing is kept in the cache, for there is no end of images."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)  # random weights are the same in every worker
            given = self.settings
            network = pretrained(given.backbone, given.weights, given.image_size, given.fit, given.revision)
        return Extractor(network, device=torch.device(device), workers=self.settings.workers, cached=False)

    def __call__(self) -> Work:
        extractor = self.extractor("cuda" if torch.cuda.is_available() else "cpu")

        def work(shard: Shard) -> Part:
            inputs = shard.open()
            assert inputs.pictures is not None
            rows, broken = extractor.readable(inputs.pictures)
            names = [name for row, name in enumerate(inputs.names) if row not in broken]
            damaged = {inputs.names[row]: broken[row] for row in sorted(broken)}
            return Part(_table(names, rows), len(names), damaged, {"device": extractor.about["device"]})

        return work


def _table(names: Sequence[str], rows: Rows) -> pa.Table:
    values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1), pa.float16()), rows.shape[1])
    return pa.table({"image": pa.array(names, pa.string()), "features": values})


def _join(finished: Finished, out: Path, about: dict[str, Any]) -> None:
    """Write all parts as one array."""
    folder, every = finished.folder, list(finished.in_order())
    devices = {done.notes["device"] for done in every}
    if not finished.images:
        why = next(iter(finished.damaged().values()), "there are none")
        raise InputError(f"{folder.output.place}: none of the images can be read ({why})")
    if len(devices) > 1:
        both = " and ".join(sorted(devices))
        raise InputError(f"{folder.output.place}: the parts come from different devices, {both}")
    width = folder.table(every[0]).schema.field("features").type.list_size
    tables = map(folder.table, every)
    parts = ((table["image"].to_pylist(), _rows(table, width)) for table in tables)
    write_features(out, (finished.images, width), parts, about | {"device": devices.pop()})
    list_broken(out, list(finished.damaged().values()))


def _rows(table: pa.Table, width: int) -> npt.NDArray[np.float16]:
    values = table["features"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float16).reshape(-1, width)
