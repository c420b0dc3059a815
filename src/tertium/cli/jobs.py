"""Commands as large jobs: the options that they share, and what they say at the end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tertium.cli.engines import Engine
from tertium.cli.shared import OVERWRITE, Place, say, with_options
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.jobs.running import Finished, Request

_PANEL = "Large jobs: with --out FOLDER/ (docs/scale.md)"
_IMAGES, _FAILURES = 1024, 10  # the defaults


def _option(kind: Any, name: str, text: str, **how: Any) -> Any:
    return Annotated[kind, typer.Option(name, help=text, rich_help_panel=_PANEL, **how)]


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "engine": (_option(Engine, "--engine", "Who works: this process, or a Ray cluster."), Engine.local),
    "address": (
        _option(
            str | None, "--address", "Of the cluster: auto, HOST:PORT, ray://HOST:PORT (default: start one)."
        ),
        None,
    ),
    "actors": (
        _option(int | None, "--actors", "Workers in the cluster (default: one for each 4 cores).", min=1),
        None,
    ),
    "cpus_per_actor": (
        _option(int | None, "--cpus-per-actor", "Cores of each (default: its share, at most 4).", min=1),
        None,
    ),
    "gpus_per_actor": (_option(float, "--gpus-per-actor", "GPUs of each.", min=0), 0.0),
    "part": (
        _option(
            str | None,
            "--part",
            "Do only every Nth shard, from the Kth on, as one of N processes with the same --out.",
            metavar="K/N",
        ),
        None,
    ),
    "shard_images": (_option(int, "--shard-images", "Images in a shard, in whole batches.", min=1), _IMAGES),
    "max_failures": (
        _option(int, "--max-failures", "Shards that may fail before the job ends.", min=0),
        _FAILURES,
    ),
}
_JOIN = _option(
    Path | None, "--join", "Also write all parts as one file, when all are there: as without a job."
)


@dataclass(frozen=True)
class Large:
    """What --out stands for if it is a folder or an address: a job, and how it is done."""

    request: Request
    joined: Path | None  # the file that gets all parts

    @property
    def folder(self) -> Path:
        """Where it goes, as far as that is on this machine."""
        return Path(self.request.out)


if TYPE_CHECKING:
    Target: TypeAlias = Path | Large  # what `large_jobs` makes of the text
else:
    Target = Path


def large_jobs(*, joins: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of large jobs to a command; its ``out`` reaches it as `Large` if it is a folder.

    It comes before `writes_files`, or the command has --overwrite itself.
    """
    options = {**_OPTIONS, "join": (_JOIN, None)} if joins else _OPTIONS

    def prepare(given: dict[str, Any]) -> None:
        told = {name: given.pop(name) for name in options}
        if not isinstance(given["out"], Place):
            changed = [name for name, value in told.items() if value != options[name][1]]
            if changed:
                word = changed[0].replace("_", "-")
                raise InputError(f"--{word} is about a job in parts: let --out be a folder, such as parts/")
            return
        overwrite, joined = given[OVERWRITE], told.get("join")
        if joined is not None and joined.exists() and not overwrite:
            raise InputError(f"{joined}: already exists; remove it, or choose another --join")
        given["out"] = Large(_request(given["out"], told, overwrite), joined)

    return lambda command: with_options(command, options, prepare)


def _request(out: Place, told: dict[str, Any], overwrite: bool) -> Request:
    from tertium.jobs.running import Request, Workers
    from tertium.jobs.shards import whole_batches

    share, shares, together = _share(told["part"])
    workers = Workers(
        told["engine"].value,
        told["address"],
        told["actors"],
        told["cpus_per_actor"],
        told["gpus_per_actor"],
    )
    if shares > 1 and workers.engine != "local":
        raise InputError("a cluster shares the work by itself: leave out --part, or --engine ray")
    return Request(
        str(out),
        workers,
        share,
        shares,
        together,
        whole_batches(told["shard_images"]),
        told["max_failures"],
        overwrite,
    )


def _share(part: str | None) -> tuple[int, int, bool]:
    """Return which share of the shards this process does, of how many; and whether a launcher says so."""
    if part is None:
        shares = int(os.environ.get("WORLD_SIZE", "1"))
        return int(os.environ.get("RANK", "0")), shares, shares > 1
    found = re.fullmatch(r"(\d+)/(\d+)", part)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f'--part is such as 2/8, the second of eight, not "{part}"')
    return int(found[1]) - 1, int(found[2]), False


def say_ended(finished: Finished, what: str) -> bool:
    """Say what a job has written; return whether all of it is there, and this process speaks for all."""
    from tertium.cli.shared import say_damaged
    from tertium.cli.terminal import counted

    if not finished.speaks:
        return False
    place = finished.folder.output.place
    if not finished.is_complete:
        left = f"{finished.shards - len(finished.done):,} of {finished.shards:,} shards"
        say(f"This part is done; {left} are left to the others, and the last of them ends the job → {place}")
        return False
    say_damaged(finished.damaged(), finished.images)
    say(f"{counted(finished.images, 'images')}{what} in {counted(finished.shards, 'parts')} → {place}")
    return True
