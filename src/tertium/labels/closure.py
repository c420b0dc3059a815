"""What a hierarchy implies: present goes up to the classes above, absent goes down to those below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.labels.labels import Labels, Rule
from tertium.labels.tree import LabelTree


def close(
    labels: Labels, tree: LabelTree | Mapping[str, Iterable[str]], *, contradictions: Rule = "error"
) -> tuple[Labels, int]:
    """Return the labels with what the hierarchy implies, and how many cells were contradicted.

    The hierarchy is a tree, or maps each name to the names right above it, of which there may be several.
    Names that are not classes are passed through. A class that is present below an absent one contradicts it,
    and both count as contradicted.

    >>> labels = Labels.from_dense([[0, 1], [-1, 0]], classes=["boat", "sloop"])
    >>> close(labels, LabelTree({"sloop": "boat"}))[0].dense()
    array([[ 1,  1],
           [-1, -1]], dtype=int8)
    """
    parents = (
        {child: (parent,) for child, parent in tree.parents.items()} if isinstance(tree, LabelTree) else tree
    )
    above = ancestors(parents)
    number = {name: place for place, name in enumerate(labels.classes)}
    up = [[number[name] for name in above.get(own, ()) if name in number] for own in labels.classes]
    down: list[list[int]] = [[] for _ in labels.classes]
    for child, found in enumerate(up):
        for parent in found:
            down[parent].append(child)
    rows, columns, values = labels.coo()
    parts = [(rows, columns, values)]
    for lists, sign in ((up, 1), (down, -1)):
        known = values == sign
        source, implied = _implied(lists, columns[known])
        parts.append((rows[known][source], implied, np.full(len(implied), sign, dtype=np.int8)))
    closed, _, clashes = Labels.merged(
        *(np.concatenate(each) for each in zip(*parts, strict=True)),
        classes=labels.classes,
        images=labels.images,
        splits=labels.splits,
        contradictions=contradictions,
    )
    return closed, clashes


def ancestors(parents: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return every name above each name; a circle is an `InputError`.

    >>> sorted(ancestors({"a": ["b", "c"], "b": ["d"], "c": ["d"]})["a"])
    ['b', 'c', 'd']
    """
    direct = {name: tuple(dict.fromkeys(above)) for name, above in parents.items()}
    done: dict[str, set[str]] = {}
    for name in direct:
        path = [name]
        while path:  # a walk of our own: a deep hierarchy must not exhaust the interpreter's stack
            top = path[-1]
            ahead = next((each for each in direct.get(top, ()) if each not in done), None)
            if ahead is None:
                done[top] = set(direct.get(top, ())).union(*(done[each] for each in direct.get(top, ())))
                path.pop()
            elif ahead in path:
                circle = [*path[path.index(ahead) :], ahead]
                raise InputError(f"the hierarchy goes round in a circle: {' → '.join(circle)}")
            else:
                path.append(ahead)
    return done


def _implied(
    lists: Sequence[Sequence[int]], columns: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return which entry implies, and which class is implied, for every class in an entry's list."""
    counts = np.array([len(each) for each in lists], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    flat = np.array([number for each in lists for number in each], dtype=np.int64)
    times = counts[columns]
    source = np.repeat(np.arange(len(columns)), times)
    step = np.arange(len(source)) - np.repeat(np.cumsum(times) - times, times)
    return source, flat[starts[columns[source]] + step]
