"""The methods, one file per paper; a new file is found without being listed anywhere."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from tertium.config import convert
from tertium.errors import InputError, did_you_mean
from tertium.methods.base import Method, Parameters, Run

__all__ = ["Method", "Run", "available", "find", "make", "one_line", "parameters_of"]


def available() -> dict[str, type[Method]]:
    """Return every method by its name: those of this package, and every imported subclass of `Method`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {kind.name: kind for kind in sorted(_subclasses(Method), key=lambda kind: kind.name)}


def _subclasses(kind: type[Method]) -> Iterator[type[Method]]:
    for child in kind.__subclasses__():
        if "name" in vars(child):  # without a name of its own it is a base for others
            yield child
        yield from _subclasses(child)


def find(name: str) -> type[Method]:
    """Return the method of this name or alias.

    >>> find("an").name
    'negative'
    """
    methods = available()
    by_alias = {alias: kind for kind in methods.values() for alias in kind.aliases}
    found = methods.get(name) or by_alias.get(name)
    if found is None:
        raise InputError(f'there is no method "{name}"; {did_you_mean(name, [*methods, *by_alias])}')
    return found


def make(name: str, parameters: Mapping[str, Any] | None = None) -> Method:
    """Return a method with these hyper-parameters, given as values or as text.

    >>> make("negative", {"positive_weight": "5"})
    Negative(positive_weight=5.0)
    """
    kind = find(name)
    known = {field.name: field for field in fields(kind)}
    given: Parameters = {}
    for key, value in (parameters or {}).items():
        if key not in known:
            hint = did_you_mean(key, known) if known else "it has none"
            raise InputError(f'the method "{kind.name}" has no parameter "{key}"; {hint}')
        given[key] = convert(kind, key, value)
    return kind(**given)


def parameters_of(method: Method | type[Method]) -> Parameters:
    """Return the hyper-parameters of a method, or the defaults of a kind of method.

    >>> parameters_of(find("asl"))
    {'gamma_positive': 0.0, 'gamma_negative': 4.0, 'clip': 0.05}
    """
    if isinstance(method, type):
        return {field.name: _default(field) for field in fields(method)}
    return {field.name: getattr(method, field.name) for field in fields(method)}


def one_line(kind: type[Method]) -> str:
    """Return what a method does, in one line.

    >>> one_line(find("negative"))
    'Call every unknown label absent.'
    """
    return (kind.__doc__ or "").partition("\n")[0]


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default
