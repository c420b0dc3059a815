"""A run in the workers of a Ray cluster, by Ray Train: if one is lost, all go on from the last checkpoint.

Each worker runs `train`, as each process of torchrun does; in a second attempt, `resume`.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from tertium.config import Settings
from tertium.errors import InputError, LostProcess
from tertium.files import passing_folder
from tertium.jobs.cluster import first_line, joined
from tertium.processes import from_first, rank, world
from tertium.progress import Progress
from tertium.runs import RunFolder

_LOSSES = 10  # workers that a run may lose
_WAIT = 0.5  # seconds between looks at what the workers say
_OFTEN = 0.5  # seconds between two reports that work advances


@dataclass(frozen=True)
class Order:
    """What every worker is told."""

    run: Path
    given: Mapping[str, Any] | None  # to `train`; without, the run goes on
    before: int | None  # the time of the settings in the folder, before this run began
    folder: str  # in which the command was given
    told: Any  # a queue for what workers say


def train_on_ray(
    run: Path,
    given: Mapping[str, Any] | None,
    *,
    workers: int,
    address: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Train in so many workers of a Ray cluster, into a run folder that all of them must see.

    ``given`` are the arguments of `train`; without them the run goes on from its last checkpoint. Ray
    replaces a worker that is lost, and all go on from the last checkpoint, as `resume` does.
    """
    if given is None:
        RunFolder.open(run)
    else:
        RunFolder.check_free(run, overwrite=given.get("overwrite", False))
    if address is not None and "://" in address:
        raise InputError(
            f"{address}: training is started on a machine of the cluster itself, with --address auto"
        )
    near = next(place for place in run.absolute().parents if place.is_dir())
    with passing_folder(near) as scratch, joined(address) as cluster:
        told = cluster.queue()
        order = Order(run, given, _began(run), os.getcwd(), told)
        each = cluster.room_for(workers, gpus=_device(run, given) != "cpu")
        failed: list[Exception] = []
        fitting = Thread(target=_fit, args=(order, workers, each, scratch, failed), daemon=True)
        fitting.start()  # not the main thread, where Ray would take over Ctrl-C
        _listen(told, fitting, progress or Progress())
        if failed:
            reason = first_line(failed[0])
            raise InputError(f"{run}: Ray Train gave up ({reason}); when that is mended, go on with --resume")


def _device(run: Path, given: Mapping[str, Any] | None) -> str:
    settings = RunFolder(run).config()["settings"] if given is None else given.get("config") or {}
    return str(settings.get("device", Settings.device))


def _fit(order: Order, workers: int, each: dict[str, float], scratch: Path, failed: list[Exception]) -> None:
    """Let Ray Train run the workers, and start them again if one is lost."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from tertium.training.fit import TIMEOUT

    trainer = TorchTrainer(
        _work,
        train_loop_config={"order": order},
        torch_config=TorchConfig(timeout_s=TIMEOUT),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu="GPU" in each, resources_per_worker=each),
        # What Ray writes by the way is removed; checkpoints are ours, and in the run folder.
        run_config=RunConfig(
            name="ray", storage_path=str(scratch), failure_config=FailureConfig(max_failures=_LOSSES)
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        failed.append(error)


def _listen(told: Any, fitting: Thread, progress: Progress) -> None:
    """Show what the first worker says, until the run ends; raise what ends it for good."""
    while True:
        alive = fitting.is_alive()
        for kind, *what in told.get_nowait_batch(told.qsize()):
            if kind == "failed":
                reason, trace = what
                raise RuntimeError(trace) if trace else InputError(reason)
            getattr(progress, kind)(*what)
        if not alive:
            return
        time.sleep(_WAIT)


def _began(run: Path) -> int | None:
    """Return when the settings in a run folder were written, which tells a run from the one before it."""
    with suppress(OSError):
        return RunFolder(run).config_file.stat().st_mtime_ns
    return None


# ---- in a worker ------------------------------------------------------------------------------------------


class Relay(Progress):
    """Sends reports to the command, which may be on another machine."""

    def __init__(self, told: Any) -> None:
        self._told, self._count, self._last = told, 0, 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a task."""
        self._count = 0
        self._told.put(("start", what, total, unit))

    def advance(self, count: int = 1) -> None:
        """Report what was done since the last report, but not more often than anybody can see."""
        self._count += count
        if time.monotonic() - self._last >= _OFTEN:
            self._told.put(("advance", self._count))
            self._count, self._last = 0, time.monotonic()

    def note(self, text: str) -> None:
        """Report something that the user should know."""
        self._told.put(("note", text))


def _work(config: dict[str, Any]) -> None:
    """Train, or go on; what another attempt cannot help is told to the command, which ends the run."""
    from tertium.distributed import lost

    order: Order = config["order"]
    try:
        _train_or_go_on(order)
    except LostProcess:
        raise  # Ray starts all of them again
    except Exception as error:
        if isinstance(error, RuntimeError) and world() > 1 and lost(error):
            raise
        trace = "" if isinstance(error, InputError) else traceback.format_exc()
        order.told.put(("failed", str(error), trace))
        raise


def _train_or_go_on(order: Order) -> None:
    from tertium.training.train import resume, train

    _as_under_torchrun()
    os.chdir(order.folder)
    progress = Relay(order.told) if rank() == 0 else None
    # Whoever looks later than others may see more: the first decides.
    if order.given is not None and from_first(_began(order.run)) == order.before:
        train(progress=progress, **order.given)
    elif not from_first(bool(RunFolder(order.run).summary())):
        if rank() == 0 and order.given is not None and progress is not None:
            progress.note("a worker was lost: the run goes on from its last checkpoint")
        resume(order.run, progress=progress)


def _as_under_torchrun() -> None:
    """Name the variables as torchrun does: Ray has set the others, and has joined the processes."""
    import torch

    os.environ["TORCHELASTIC_RUN_ID"] = "ray"
    os.environ["GROUP_RANK"] = os.environ["NODE_RANK"]
    if not torch.cuda.is_available():  # then each is alone, and machines may have several or one of them
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
