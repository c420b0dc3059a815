"""The label tree: which class is a kind, or a part, of which other."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tertium.errors import InputError, did_you_mean
from tertium.files import replacing, write_json
from tertium.labels.names import tidy

_COLUMNS = ("parent", "child")


@dataclass(frozen=True, repr=False)
class LabelTree:
    """An immutable forest over class names; a class that it does not name is a root of its own.

    >>> tree = LabelTree({"car": "vehicle", "boat": "vehicle", "sloop": "boat"})
    >>> tree
    LabelTree(4 names, 1 root)
    >>> tree.ancestors("sloop")
    ('boat', 'vehicle')
    >>> tree.descendants("vehicle")
    ('boat', 'car', 'sloop')
    """

    parents: Mapping[str, str]  # child → parent

    def __post_init__(self) -> None:
        checked = _collect(("the label tree", child, parent) for child, parent in self.parents.items())
        # Sorted, so that a tree does not depend on the order of the lines in its file.
        object.__setattr__(self, "parents", MappingProxyType(dict(sorted(checked.items()))))

    @classmethod
    def read(cls, path: str | Path) -> LabelTree:
        """Read a tree from a JSON or CSV file, by its ending."""
        return cls.from_json(path) if Path(path).suffix == ".json" else cls.from_csv(path)

    @classmethod
    def from_csv(cls, path: str | Path) -> LabelTree:
        """Read a CSV file with the columns ``parent,child``, one pair a line."""
        return cls(_collect(_csv_edges(path, _read(path))))

    @classmethod
    def from_json(cls, path: str | Path) -> LabelTree:
        """Read a JSON file with one object that maps each child to its parent."""
        return cls(_collect(_json_edges(path, _read(path))))

    def to_csv(self, path: str | Path) -> None:
        """Write what `from_csv` reads."""
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as text:
            lines = csv.writer(text, lineterminator="\n")
            lines.writerow(_COLUMNS)
            lines.writerows((parent, child) for child, parent in self.parents.items())

    def to_json(self, path: str | Path) -> None:
        """Write what `from_json` reads."""
        write_json(path, dict(self.parents))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name in the tree, sorted."""
        return tuple(sorted({*self.parents, *self.parents.values()}))

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The names without a parent, sorted."""
        return tuple(name for name in self.names if name not in self.parents)

    def parent(self, name: str) -> str | None:
        """Return the parent of a name; None for a root."""
        return self.parents.get(name)

    def children(self, name: str) -> tuple[str, ...]:
        """Return the names right below a name, sorted."""
        return self._children.get(name, ())

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Return the names above a name, the nearest first."""
        return tuple(_above(self.parents, name))

    def descendants(self, name: str) -> tuple[str, ...]:
        """Return the names below a name, level by level."""
        below: list[str] = list(self.children(name))
        for found in below:  # grows while it is read: a level follows the level above it
            below.extend(self.children(found))
        return tuple(below)

    def check(self, classes: Iterable[str]) -> None:
        """Raise an `InputError` if the tree names something that is not one of the classes."""
        known = dict.fromkeys(classes)
        unknown = [name for name in self.names if name not in known]
        if unknown:
            more = f" ({len(unknown)} such names)" if len(unknown) > 1 else ""
            hint = did_you_mean(unknown[0], known)
            raise InputError(f'the label tree names "{unknown[0]}", which is not a class{more}; {hint}')

    @cached_property
    def _children(self) -> dict[str, tuple[str, ...]]:
        below: dict[str, list[str]] = {}
        for child, parent in self.parents.items():
            below.setdefault(parent, []).append(child)
        return {parent: tuple(children) for parent, children in below.items()}

    def __repr__(self) -> str:
        roots = f"{len(self.roots)} root" + ("" if len(self.roots) == 1 else "s")
        return f"LabelTree({len(self.names)} names, {roots})"

    def __hash__(self) -> int:
        return hash(frozenset(self.parents.items()))

    def __reduce__(self) -> tuple[type[LabelTree], tuple[dict[str, str]]]:
        return LabelTree, (dict(self.parents),)  # a mapping proxy cannot be pickled


def _collect(edges: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Gather (where, child, parent) into child → parent; stop at the first that cannot be part of a tree."""
    parents: dict[str, str] = {}
    for where, low, high in edges:
        child, parent = tidy(low), tidy(high)
        if not child or not parent:
            raise InputError(f"{where}: needs a parent and a child, not {high!a} and {low!a}")
        before = parents.setdefault(child, parent)
        if before != parent:
            raise InputError(f'{where}: "{child}" has two parents, "{before}" and "{parent}"')
        if child in _above(parents, parent):
            circle = [child, parent]
            while circle[-1] != child:
                circle.append(parents[circle[-1]])
            raise InputError(f"{where}: the tree goes round in a circle: {' → '.join(circle)}")
    return parents


def _above(parents: Mapping[str, str], name: str) -> Iterator[str]:
    while name in parents:
        name = parents[name]
        yield name


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a label tree") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None


def _csv_edges(path: str | Path, text: str) -> Iterator[tuple[str, str, str]]:
    lines = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip() for name in next(lines, [])]
    for name in header:
        if name not in _COLUMNS:
            raise InputError(f'{path}: line 1: unknown column "{name}"; {did_you_mean(name, _COLUMNS)}')
    if sorted(header) != sorted(_COLUMNS):
        raise InputError(f"{path}: line 1: the columns must be {','.join(_COLUMNS)}")
    for cells in lines:
        where = f"{path}: line {lines.line_num}"
        names = [cell.strip() for cell in cells]
        if not any(names):
            continue
        if len(names) != len(header) or not all(names):
            raise InputError(f"{where}: needs a parent and a child, not {','.join(cells)!r}")
        pair = dict(zip(header, names, strict=True))
        yield where, pair["child"], pair["parent"]


def _json_edges(path: str | Path, text: str) -> Iterator[tuple[str, str, str]]:
    try:
        # Pairs instead of a dictionary, which would silently drop the first of two parents.
        pairs: Any = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(pairs, _Pairs):
        raise InputError(f'{path}: must hold one object {{"child": "parent", …}}')
    for child, parent in pairs:
        if not isinstance(parent, str) or not parent or not child:
            raise InputError(f'{path}: the parent of "{child}" must be a name')
        yield str(path), child, parent


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, in order and with repeated keys."""
