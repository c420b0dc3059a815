"""`tertium methods`: what there is to train with."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer

from tertium.cli.screen import Screen
from tertium.cli.shared import console, say


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one method in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods: name, paper, one line, parameters with defaults.

    **Examples**

      tertium methods

      tertium methods negative
    """
    from tertium.cli.terminal import table
    from tertium.methods import available, broken, find, one_line, parameters_of

    for sentence in broken().values():
        Screen(stderr=True).print(sentence, highlight=False, markup=False, soft_wrap=True)
    kinds = list(available().values()) if name is None else [find(name)]
    if as_json:
        rows = [
            {
                "name": kind.name,
                "aliases": kind.aliases,
                "paper": kind.paper,
                "does": one_line(kind),
                "parameters": parameters_of(kind),
            }
            for kind in kinds
        ]
        console().print_json(json.dumps(rows, ensure_ascii=False))
    elif name is not None:
        say(f"{kinds[0].name} ({kinds[0].paper})\n{inspect.getdoc(kinds[0])}")
        for key, value in parameters_of(kinds[0]).items():
            say(f"  {key} = {value}")
    else:
        lines = [
            [
                ", ".join([kind.name, *kind.aliases]),
                kind.paper,
                one_line(kind),
                ", ".join(f"{key}={value}" for key, value in parameters_of(kind).items()),
            ]
            for kind in kinds
        ]
        console().print(table(["name, aliases", "paper", "what it does", "parameters"], lines))
