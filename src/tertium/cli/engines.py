"""Options of commands that can run on a Ray cluster."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from tertium.errors import InputError


class Engine(enum.StrEnum):
    """What runs the parts of a large piece of work."""

    local = "local"
    ray = "ray"


EngineChoice = Annotated[
    Engine, typer.Option("--engine", help="What runs it: this machine alone, or Ray (docs/cluster.md).")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="With --engine ray: the cluster, auto, HOST:PORT or ray://HOST:PORT (default: one of its own).",
    ),
]
Actors = Annotated[
    int | None,
    typer.Option("--actors", min=1, help="With --engine ray: processes that work (default: one a core)."),
]


def check_engine(engine: Engine, **options: object) -> None:
    """Raise `InputError` if an option of the engine "ray" is given without it."""
    for name, value in options.items():
        if engine is Engine.local and value is not None:
            raise InputError(f"--{name.replace('_', '-')} is of --engine ray; give both, or neither")
