"""Tertium's own methods by name, known before torch is loaded: a mistyped name is answered at once.

`tertium.methods` is what counts. The table here is generated from it (``make docs``), and a test compares the
two. Where the table cannot be sure, it leaves the answer to the methods themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path

from tertium.config import Phase, Settings
from tertium.errors import InputError, did_you_mean
from tertium.training.method_table import METHODS

_SOURCES = Path(__file__).parents[1] / "methods"
_PLUGINS = "tertium.methods"  # the entry points of other packages


@dataclass(frozen=True)
class Declared:
    """A method of Tertium's own."""

    name: str
    aliases: tuple[str, ...]
    parameters: tuple[str, ...]


def table() -> dict[str, Declared]:
    """Return the methods of the table by name."""
    lines = [line.split("|") for line in METHODS.strip().splitlines()]
    return {name.strip(): Declared(name.strip(), *(tuple(x.split()) for x in rest)) for name, *rest in lines}


def declared(name: str, settings: Iterable[str]) -> Declared | None:
    """Return the method of this name or alias; None if the table cannot say.

    That is so if other packages bring methods, or if the source of a method has the name, or one of the
    ``settings`` that are not known otherwise: the table may be older than it.
    """
    methods = table()
    by_alias = {alias: method for method in methods.values() for alias in method.aliases}
    found = methods.get(name) or by_alias.get(name)
    if found is None:
        if entry_points(group=_PLUGINS) or _in_sources([name]):
            return None
        raise InputError(f'there is no method "{name}"; {did_you_mean(name, [*methods, *by_alias])}')
    usual = {each.name for kind in (Settings, Phase) for each in fields(kind)}
    return None if _in_sources(set(settings) - usual - {*found.parameters}) else found


def _in_sources(words: Iterable[str]) -> bool:
    """Return whether the methods' source has one of these words as a text or as a field."""
    source = "".join(path.read_text(encoding="utf-8") for path in _SOURCES.glob("*.py"))
    return any(
        re.search(rf'"{re.escape(word)}"|(?m:^    {re.escape(word)}: .* = )', source) for word in words
    )
