"""New names of classes: as a user lists them in a file, and as names that look alike suggest them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tertium.errors import InputError, did_you_mean, some
from tertium.files import replacing
from tertium.labels.labels import Labels
from tertium.labels.names import look_alike, tidy

_COLUMNS = ("file", "from", "to")


@dataclass(frozen=True)
class Renaming:
    """New names of classes: for one label file, or for all of them."""

    source: str
    pairs: Mapping[tuple[str, str], str]  # (file or "", from) → to

    def of(self, file: str | Path) -> dict[str, str]:
        """Return old name → new name for one label file; a line that names the file comes first.

        >>> Renaming("names.csv", {("", "Cat"): "cat", ("a.csv", "Cat"): "tiger"}).of("data/a.csv")
        {'Cat': 'tiger'}
        """
        called = {"": 0, Path(file).name: 1, str(file): 2}
        mine = sorted((key for key in self.pairs if key[0] in called), key=lambda key: called[key[0]])
        return {old: self.pairs[name, old] for name, old in mine}


def twins(labels: Labels) -> list[tuple[str, ...]]:
    """Return groups of classes with nearly the same name, in each the one with the most labels first.

    >>> twins(Labels.from_dense([[1, 1, 0], [1, 0, 1]], classes=["Cat", "dog", "cat"]))
    [('Cat', 'cat')]
    """

    def counts() -> dict[str, int]:
        return dict(zip(labels.classes, np.add(*labels.class_counts).tolist(), strict=True))

    groups: list[set[str]] = []
    for group in look_alike(labels.classes, counts):
        joined = [other for other in groups if not other.isdisjoint(group)]
        groups = [other for other in groups if other not in joined]
        groups.append(set(group).union(*joined))
    times = counts() if groups else {}
    return [tuple(sorted(group, key=lambda name: (-times[name], name))) for group in groups]


def write_renaming(groups: Iterable[Sequence[str]], path: str | Path) -> None:
    """Write a file that gives the classes of each group the name of the first, for `read_renaming`."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as text:
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(_COLUMNS[1:])
        lines.writerows((name, first) for first, *others in groups for name in others)


def read_renaming(path: str | Path) -> Renaming:
    """Read a CSV file with the columns ``from,to`` and optionally ``file``: the only file a line is for."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InputError(f"{path}: not a text file in UTF-8") from None
    lines = csv.reader(text.splitlines())
    header = [name.strip() for name in next(lines, [])]
    for name in header:
        if name not in _COLUMNS:
            raise InputError(f'{path}: line 1: unknown column "{name}"; {did_you_mean(name, _COLUMNS)}')
    if not {"from", "to"} <= set(header) or len(set(header)) < len(header):
        raise InputError(f"{path}: line 1: the columns must be from,to or file,from,to, not {some(header)}")
    pairs: dict[tuple[str, str], str] = {}
    for cells in lines:
        where = f"{path}: line {lines.line_num}"
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(f"{where}: needs {len(header)} columns, not {','.join(cells)!r}")
        line = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        old, new = tidy(line["from"]), tidy(line["to"])
        if not old or not new:
            raise InputError(f"{where}: needs an old and a new name, not {','.join(cells)!r}")
        key = line.get("file", ""), old
        if pairs.setdefault(key, new) != new:
            raise InputError(f'{where}: "{old}" has two new names, "{pairs[key]}" and "{new}"')
    return Renaming(str(path), pairs)
