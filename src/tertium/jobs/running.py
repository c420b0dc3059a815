"""A job from its plan to its parts: what is done is skipped, what is missing goes to the workers."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from tertium.errors import InputError
from tertium.jobs.folder import ANEW, FAILURES, Done, Failed, JobFolder, Part
from tertium.jobs.output import Output, OutputError
from tertium.jobs.shards import IMAGES, Plan, Shard
from tertium.progress import Progress
from tertium.threads import THREADS

Work = Callable[[Shard], Part]
MOST_FAILURES = 10  # shards that may fail: more of them look like one mistake, not like several bad files
_CORES = 4  # of a worker in a cluster: with more, threads wait for Python's lock
_POLL = 1.0  # seconds between looks at what other processes have done


@dataclass(frozen=True)
class Workers:
    """Who does the work: this process with all its cores, or processes in a Ray cluster."""

    engine: str = "local"  # or "ray"
    address: str | None = None  # of a cluster; None starts one on this machine
    actors: int | None = None
    cpus: int | None = None  # for each actor
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.engine == "local" and any((self.address, self.actors, self.cpus, self.gpus)):
            raise InputError(
                "--address, --actors, --cpus-per-actor and --gpus-per-actor are about a cluster: "
                "add --engine ray"
            )
        if self.gpus and self.actors is None:
            raise InputError("with --gpus-per-actor, say how many workers there are: --actors N")


@dataclass(frozen=True)
class Request:
    """Where the parts of a job go, and who makes them."""

    out: str
    workers: Workers = Workers()
    share: int = 0  # of the shards, that this process does …
    shares: int = 1  # … of so many
    together: bool = False  # whether one launcher has started the processes of all shares
    images: int = IMAGES  # of a shard
    most_failures: int = MOST_FAILURES
    overwrite: bool = False


@dataclass(frozen=True)
class Job:
    """What is to be done with the images of a plan."""

    what: str  # such as "predict"
    about: Mapping[str, Any]  # what parts depend on besides their images, as JSON
    plan: Plan
    opened: Callable[[], Work]  # is sent to each worker and called there once: it loads the model


@dataclass(frozen=True)
class Finished:
    """A job as it is when a process has done its share."""

    folder: JobFolder
    done: Mapping[int, Done]
    shards: int
    speaks: bool  # whether this process says and writes what all parts give together

    @property
    def is_complete(self) -> bool:
        """Whether the parts of all shards are there."""
        return len(self.done) == self.shards

    @property
    def images(self) -> int:
        """How many images the parts have."""
        return sum(each.images for each in self.done.values())

    def damaged(self) -> dict[str, str]:
        """Return the images that were left out, and why."""
        return {name: why for each in self.in_order() for name, why in each.damaged.items()}

    def in_order(self) -> Iterator[Done]:
        """Yield the shards from the first to the last."""
        return (self.done[number] for number in sorted(self.done))


def run(job: Job, request: Request, progress: Progress | None = None) -> Finished:
    """Do the shards that are missing; return what is there then.

    A shard that fails is noted and the others go on, unless more than ``most_failures`` have failed. If any
    is missing at the end because it failed, that is an `InputError`.
    """
    progress = progress or Progress()
    folder, count = JobFolder(Output.at(request.out)), len(job.plan)
    about = {"what": job.what, "version": version("tertium"), "images": request.images, "shards": count}
    folder.begin(about | dict(job.about), overwrite=request.overwrite)
    done = _done(folder, job.plan)
    if done:
        progress.note(f"goes on after {len(done):,} of {count:,} shards that were done before")
    own = [number for number in range(request.share, count, request.shares) if number not in done]
    failed: list[Failed] = []
    try:
        _work(job, request, folder, own, done, failed, progress)
    finally:
        if failed or any(each.damaged for each in done.values()) or folder.output.has(FAILURES):
            folder.list_failures(done, folder.failed(count))
    if failed:
        raise InputError(f"{_missing(folder, failed, count)}; the same command tries them again")
    return _ended(request, folder, job.plan, done)


def _done(folder: JobFolder, plan: Plan) -> dict[int, Done]:
    """Return the shards that are done; images that have changed since then are an `InputError`."""
    found = folder.done(len(plan))
    for number, each in found.items():
        if each.identity != plan.identity(number):
            which = f"{number:,} ({plan.shard(number).title})"
            raise InputError(
                f"{folder.output.place}: images have changed since their shard was done, {which}; {ANEW}"
            )
    return found


def _work(
    job: Job,
    request: Request,
    folder: JobFolder,
    own: list[int],
    done: dict[int, Done],
    failed: list[Failed],
    progress: Progress,
) -> None:
    """Do some shards; add them to those that are done, or that failed."""
    if not own:
        return
    progress.start(job.what, len(own), "shards")
    shards = (job.plan.shard(number) for number in own)
    with _hired(request.workers) as (results, threads):
        found = results(_Worker(job.opened, folder, threads), shards)
        with closing(found):
            for shard, ended in found:
                progress.advance()
                if isinstance(ended, Done):
                    done[ended.number] = ended
                    continue
                if isinstance(ended, OutputError):
                    raise ended
                if isinstance(ended, Failed):
                    failed.append(ended)
                else:  # a cluster's own words
                    failed.append(Failed(shard.number, shard.title, ended.reason))
                folder.fail(failed[-1])
                if len(failed) > request.most_failures:
                    raise InputError(
                        f"{_missing(folder, failed, len(job.plan))}; a job ends when more than "
                        f"{request.most_failures} fail (--max-failures)"
                    )


def _missing(folder: JobFolder, failed: list[Failed], count: int) -> str:
    """Say which shards have failed."""
    first = failed[0]
    listed = f"listed in {folder.output.place}/{FAILURES}"
    return (
        f"{len(failed):,} of {count:,} shards failed, {listed}; the first, shard {first.number:,} "
        f"({first.title}): {first.why}"
    )


def _ended(request: Request, folder: JobFolder, plan: Plan, done: dict[int, Done]) -> Finished:
    """Look what all processes have done; of those that were started together, the first waits for all."""
    waits = request.together and request.share == 0
    if request.shares > 1:
        done = _done(folder, plan)
        while waits and len(done) < len(plan):
            time.sleep(_POLL)
            done = _done(folder, plan)
        if len(done) == len(plan):
            folder.list_failures(done, ())
    return Finished(folder, done, len(plan), waits or not request.together)


# ---- workers -----------------------------------------------------------------------------------------------

Ended = Done | Failed | OutputError
_Results = Callable[["_Worker", Iterable[Shard]], Any]  # a generator of each shard with how it ended


@dataclass(frozen=True)
class _Worker:
    """What a worker gets: how to open the model, and where parts go."""

    opened: Callable[[], Work]
    folder: JobFolder
    threads: int | None

    def __call__(self) -> Callable[[Shard], Ended]:
        if self.threads is not None:  # in a process of its own
            os.environ[THREADS] = str(self.threads)
        work = self.opened()

        def one(shard: Shard) -> Ended:
            try:
                part = work(shard)
            except InputError as error:
                return Failed(shard.number, shard.title, str(error))
            except Exception as error:
                return Failed(shard.number, shard.title, _said(error))
            try:
                return self.folder.keep(shard.number, shard.identity, part)
            except OutputError as error:  # other shards would fail like this one
                return error

        return one


def _said(error: Exception) -> str:
    """Say of an unforeseen error what and where it is."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said} ({where.filename}, line {where.lineno})"


@contextmanager
def _hired(workers: Workers) -> Iterator[tuple[_Results, int | None]]:
    """Give what makes results of shards, and how many threads each worker has; None leaves it to them."""
    if workers.engine == "local":
        yield _here, None
        return
    from tertium.jobs.cluster import joined

    with joined(workers.address) as cluster:
        cores = cluster.cores()
        actors = workers.actors or max(1, cores // (workers.cpus or min(_CORES, cores)))
        cpus = workers.cpus or max(1, min(_CORES, cores // actors))
        yield partial(cluster.run, workers=actors, cpus=cpus, gpus=workers.gpus), cpus


def _here(make: _Worker, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Ended]]:
    """Do one shard after the other in this process."""
    work = None
    for shard in shards:
        work = work or make()
        yield shard, work(shard)
