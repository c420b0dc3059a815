"""Methods of other installed packages, found through their entry points "tertium.methods"."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

from tertium.errors import InputError
from tertium.methods.base import Method

GROUP = "tertium.methods"


@dataclass(frozen=True)
class Plugins:
    """What other packages offer, and what is wrong with some of it."""

    names: set[str] = field(default_factory=set)  # and aliases
    refused: set[type[Method]] = field(default_factory=set)  # for a name that is taken
    broken: dict[str, str] = field(default_factory=dict)  # entry points, each with one sentence why


def load(taken: Collection[str]) -> Plugins:
    """Import the methods of other packages; one that fails does not keep out the others.

    ``taken`` are the names and aliases that they must not use.
    """
    found = Plugins()
    for point in entry_points(group=GROUP):
        try:
            kind = _kind(point)
            names = {kind.name, *kind.aliases}
            again = sorted(names & (found.names | set(taken)))
            if again:
                found.refused.add(kind)
                raise InputError(f'the name "{again[0]}" is taken')
            found.names.update(names)
        except Exception as error:  # whatever another package raises
            reason = str(error).partition("\n")[0] or type(error).__name__
            package = "unknown" if point.dist is None else point.dist.name
            found.broken[point.name] = (
                f'the method "{point.name}" of the package "{package}" cannot be used: {reason}'
            )
    return found


def _kind(point: EntryPoint) -> type[Method]:
    kind = point.load()
    if not (isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind)):
        raise InputError(f"{point.value} is not a subclass of tertium.Method with a name")
    return kind
