"""What is compared: the rows and columns of the table, as a person writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from tertium import methods
from tertium.config import Phase, Settings, convert, settings_from
from tertium.errors import InputError, did_you_mean
from tertium.schemes import parse
from tertium.training.recipes import expanded, read_recipe

_FULL = ("bce", "bce_ls")  # need labels that no scheme leaves
_PHASES = ("head", "whole")  # keys such as head.lr are settings, not parameters of a method
_OF_PHASE = [item.name for item in fields(Phase)]
_OF_RUN = ("init", "standardise", "select")
_TUNABLE = (*_OF_PHASE, *_OF_RUN, "recipe")  # the settings that a row may have for itself


@dataclass(frozen=True)
class Row:
    """A method, with the parameters and settings that it has in this row alone."""

    name: str  # in tables
    method: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Where partial labels come from: a scheme, or a file of them."""

    name: str  # in tables
    file: str | None = None


def rows_from(text: str) -> list[Row]:
    """Return the rows that a text names, separated by commas; "all" is every method for partial labels.

    Parameters follow a colon, and values between slashes are tried one by one.

    >>> [row.name for row in rows_from("an,ll_r:delta=0.1/0.20,selective:top=0.1,k=3")]
    ['negative', 'll_r:delta=0.1', 'll_r:delta=0.2', 'selective:top=0.1,k=3']
    """
    found: dict[str, Row] = {}
    for spec in _specs(text, lambda piece: "=" in piece.partition(":")[0]):
        name, _, rest = spec.partition(":")
        if name == "all":
            names = [kind for kind in methods.available() if kind not in _FULL]
            found |= {kind: Row(kind, kind) for kind in names}
            continue
        if "=" in name:
            first = name.partition(",")[0]
            raise InputError(f'"{name}": parameters of a row follow a colon, as in {first}:key=value')
        found |= {row.name: row for row in _variants(methods.find(name), rest)}
    return list(found.values())


def columns_from(schemes: str, files: Sequence[str | Path] = ()) -> list[Column]:
    """Return the columns: schemes separated by commas, and files of partial labels, called by their names.

    >>> [column.name for column in columns_from("random:0.1,per_image:1,all", ["masks/published.csv"])]
    ['random:0.1', 'per_image:1,all', 'published.csv']
    """
    # A scheme begins with a letter; a number, a key=value or "all" is a value of the one before.
    value = re.compile(r"\s*(all\s*$|[\d.]|\w+\s*=)")
    found = [Column(spec) for spec in _specs(schemes, lambda piece: bool(value.match(piece)))]
    for column in found:
        parse(column.name)
    found += [Column(Path(file).name, str(file)) for file in files]
    for column in found:
        if sum(column.name == other.name for other in found) > 1:
            raise InputError(f'two columns would be called "{column.name}"; leave one out or rename a file')
    if not found:
        raise InputError("a comparison needs at least one scheme, or a file of partial labels")
    return found


def _specs(text: str, belongs: Callable[[str], bool]) -> list[str]:
    """Split at commas, but for those before a piece that belongs to the one before it."""
    found: list[str] = []
    for piece in text.split(","):
        if found and belongs(piece):
            found[-1] += f",{piece}"
        elif piece.strip():
            found.append(piece.strip())
    return found


def _variants(kind: type[methods.Method], text: str) -> Iterator[Row]:
    """Give the row for each combination of the values in text such as "top=0.1/0.2,k=3"."""
    lists: dict[str, list[Any]] = {}
    for pair in text.split(",") if text else []:
        key, equals, values = (part.strip() for part in pair.partition("="))
        if not equals:
            raise InputError(f'"{kind.name}:{text}": "{pair}" is not of the form key=value')
        whole = key == "recipe" and values.endswith(".toml")  # a path, in which slashes do not separate
        lists[key] = [_converted(kind, key, value) for value in ([values] if whole else values.split("/"))]
    for combination in product(*lists.values()):
        given = dict(zip(lists, combination, strict=True))
        methods.make(kind.name, {key: value for key, value in given.items() if key in _parameters(kind)})
        shown = ",".join(f"{key}={_word(value)}" for key, value in given.items())
        yield Row(f"{kind.name}:{shown}" if shown else kind.name, kind.name, given)


def _converted(kind: type[methods.Method], key: str, value: str) -> Any:
    if key in _parameters(kind):
        return convert(kind, key, value)
    if key in _OF_PHASE:
        return convert(Phase, key, value)
    if key in _OF_RUN:
        return convert(Settings, key, value)
    if key == "recipe":
        read_recipe(value)
        return value
    hint = did_you_mean(key, [*_parameters(kind), *_TUNABLE])
    raise InputError(f'the method "{kind.name}" has no parameter "{key}"; {hint}')


def _parameters(kind: type[methods.Method]) -> Collection[str]:
    return methods.parameters_of(kind)


def _word(value: Any) -> str:
    """Return a value as it is written in a setting: none, true and false in lower case."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def described(given: Mapping[str, Any]) -> str:
    """Return settings as they are written after a command.

    >>> described({"delta": 0.25, "apl": True})
    'delta=0.25 apl=true'
    """
    return " ".join(f"{key}={_word(value)}" for key, value in given.items())


def apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of all cells, and by method those that are written METHOD.PARAMETER.

    >>> apart({"epochs": 3, "an.positive_weight": 5})
    ({'epochs': 3}, {'negative': {'positive_weight': 5}})
    """
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        owner, dot, parameter = key.partition(".")
        if not dot or owner in _PHASES:
            shared[key] = value
        else:
            own.setdefault(methods.find(owner).name, {})[parameter] = value
    return shared, own


def resolved(method: str, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return all settings of a training run, with every parameter of its method written out.

    Two ways to write the same settings give the same result; a changed default gives another.
    """
    kind = methods.find(method)
    values = {**expanded(values, kind.name), "method": kind.name, "seed": seed}
    settings = settings_from(values, methods.parameters_of(kind))
    parameters = methods.parameters_of(methods.make(kind.name, settings.parameters))
    return settings.to_dict() | {"parameters": parameters}
