"""The methods, one file per paper; a new file is found without being listed anywhere.

Other installed packages add methods through the entry points "tertium.methods".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from tertium.config import convert
from tertium.errors import InputError, did_you_mean
from tertium.methods.base import Method, Parameters, Run
from tertium.methods.plugins import Plugins, load

__all__ = ["Method", "Run", "available", "broken", "check_name", "find", "make", "one_line", "parameters_of"]

_RENAME = "give it a name of its own"


def available() -> dict[str, type[Method]]:
    """Return every method by its name: ours, those of other packages, every imported subclass of `Method`."""
    own, refused = _own(), _plugins().refused
    found = {kind.name: kind for kind in _subclasses(Method) if kind not in refused} | own
    return dict(sorted(found.items()))


def broken() -> dict[str, str]:
    """Return the entry points of other packages that cannot be used, each with one sentence why."""
    return _plugins().broken


@cache  # looking through all installed packages takes a while
def _plugins() -> Plugins:
    return load({name for kind in _own().values() for name in (kind.name, *kind.aliases)})


def _own() -> dict[str, type[Method]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    kinds = _subclasses(Method)
    return {kind.name: kind for kind in kinds if kind.__module__.startswith(f"{__name__}.")}


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
    _check_namesakes(name)
    methods = available()
    kinds = [*methods.values(), *_own().values()]  # ours come last: nobody else takes their aliases
    by_alias = {alias: kind for kind in kinds for alias in kind.aliases}
    found = methods.get(name) or by_alias.get(name)
    if found is None and name in broken():
        raise InputError(broken()[name])
    if found is None:
        raise InputError(f'there is no method "{name}"; {did_you_mean(name, [*methods, *by_alias])}')
    return found


def check_name(method: Method) -> None:
    """Refuse a method of the caller's under the name of another: a run that goes on would take that one."""
    kind = type(method)
    if "name" not in vars(kind):
        raise InputError(f'{kind.__name__} has the name "{kind.name}" of the class it is made of: {_RENAME}')
    _check_namesakes(kind.name)


def _check_namesakes(name: str) -> None:
    """Refuse a name that the caller has given to a class of its own, although it is one of ours."""
    ours = _own().get(name)
    for kind in _subclasses(Method):
        if ours is not None and kind.name == name and kind not in (ours, *_plugins().refused):
            raise InputError(
                f'{kind.__module__}.{kind.__qualname__} has the name "{name}", which is Tertium\'s: {_RENAME}'
            )


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
