"""Schemes: full labels → partial labels, as an annotation process would have left them.

A scheme keeps some known entries and hides the others; it never invents or changes one. If the given labels
are already partial, it chooses among the known ones.

Nothing here draws from a random stream. Every entry has a priority, a hash of the seed, its image id and its
class name, and a scheme keeps the smallest priorities: overall, in each image or in each class. So the
same seed keeps the same labels whatever the order of the images and the classes, a larger share contains the
smaller one, and schemes that differ only in what else they keep (`positives:0.1` and `balanced:0.1`) share
the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, did_you_mean
from tertium.files import keep_inputs
from tertium.labels import Labels
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted, write_labels
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

Mask = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Order = npt.NDArray[np.uint64 | np.float64]  # of entries: the smallest are kept first
Plainness = npt.NDArray[np.floating]
Count = int | Literal["all"]
Rule = Mapping[str, Any]  # a field's metadata: what its value must be, in words and as a test


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral)


SHARE: Rule = {"rule": "a number above 0 and at most 1", "test": lambda v: _is_number(v) and 0 < v <= 1}
FACTOR: Rule = {"rule": "a number from 0 up", "test": lambda v: _is_number(v) and 0 <= v < np.inf}
COUNT: Rule = {"rule": "a whole number from 1 up", "test": lambda v: _is_whole(v) and v >= 1}
COUNT_OR_ALL: Rule = {
    "rule": 'a whole number from 0 up or "all"',
    "test": lambda v: v == "all" or (_is_whole(v) and v >= 0),
}


@dataclass(frozen=True)
class Scheme(ABC):
    """What an annotation process leaves known; the fields of a scheme are its parameters."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for parameter in _parameters(type(self)):
            value = getattr(self, parameter.name)
            if not parameter.metadata["test"](value):
                rule = parameter.metadata["rule"]
                raise InputError(f"{self.name}: {parameter.name} must be {rule}, not {value}")

    def apply(self, labels: Labels, seed: int) -> Labels:
        """Return the labels that the scheme keeps; the others become unknown."""
        return labels.with_entries(self._kept(labels, seed))

    @abstractmethod
    def _kept(self, labels: Labels, seed: int) -> Mask:
        """Mark the known entries [K] to keep. A mask cannot invent a label."""

    def __str__(self) -> str:
        values = ",".join(_text(getattr(self, parameter.name)) for parameter in _parameters(type(self)))
        return f"{self.name}:{values}" if values else self.name


@dataclass(frozen=True)
class Full(Scheme):
    """Keeps everything."""

    name = "full"

    def _kept(self, labels: Labels, seed: int) -> Mask:
        return np.ones(labels.known, dtype=bool)


@dataclass(frozen=True)
class Random(Scheme):
    """Keeps a share of all labels, present or absent alike."""

    name = "random"
    aliases = ("pal", "rpa", "rps")
    keep: float = field(metadata=SHARE)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        together = np.zeros(labels.known, dtype=np.int64)
        return _smallest(_priorities(labels, seed), together, np.array([round(self.keep * labels.known)]))


@dataclass(frozen=True)
class Positives(Scheme):
    """Keeps a share of the present labels and nothing else."""

    name = "positives"
    aliases = ("ppl",)
    keep: float = field(metadata=SHARE)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        return _by_sign(labels, _priorities(labels, seed), "all", round(self.keep * _present(labels)), 0)


@dataclass(frozen=True)
class SinglePositive(Scheme):
    """Keeps one present label of each image and nothing else."""

    name = "single_positive"
    aliases = ("spl",)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        return _by_sign(labels, _priorities(labels, seed), "image", 1, 0)


@dataclass(frozen=True)
class PerImage(Scheme):
    """Keeps so many present and absent labels of each image, or "all" (Cole's IU is 1,1 and IUN is 1,all)."""

    name = "per_image"
    positives: Count = field(metadata=COUNT_OR_ALL)
    negatives: Count = field(metadata=COUNT_OR_ALL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positives == self.negatives == 0:
            raise InputError("per_image: 0 positives and 0 negatives would keep nothing")

    def _kept(self, labels: Labels, seed: int) -> Mask:
        present, absent = (
            len(labels.classes) if count == "all" else count for count in (self.positives, self.negatives)
        )
        return _by_sign(labels, _priorities(labels, seed), "image", present, absent)


@dataclass(frozen=True)
class PerClass(Scheme):
    """Keeps n present and n absent labels of each class, all where there are fewer."""

    name = "per_class"
    aliases = ("fpc",)
    n: int = field(metadata=COUNT)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        return _by_sign(labels, _priorities(labels, seed), "class", self.n, self.n)


@dataclass(frozen=True)
class Balanced(Scheme):
    """Keeps a share of the present labels, and `negatives` times as many absent ones (Kundu)."""

    name = "balanced"
    keep: float = field(metadata=SHARE)
    negatives: float = field(default=1.25, metadata=FACTOR)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        present = round(self.keep * _present(labels))
        return _by_sign(labels, _priorities(labels, seed), "all", present, round(self.negatives * present))


@dataclass(frozen=True)
class Federated(Scheme):
    """Keeps for each class a share of the images with it, and `negatives` times as many without it (LVIS).

    At least one image of a class that has any; of a class that is present nowhere, nothing.
    """

    name = "federated"
    keep: float = field(default=0.5, metadata=SHARE)
    negatives: float = field(default=1.0, metadata=FACTOR)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        available = labels.class_counts[0]
        present = np.maximum(np.rint(self.keep * available), np.minimum(available, 1)).astype(np.int64)
        return _by_sign(
            labels,
            _priorities(labels, seed),
            "class",
            present,
            np.rint(self.negatives * present).astype(np.int64),
        )


@dataclass(frozen=True)
class Hierarchy(Scheme):
    """Keeps what a walk down the label tree verifies that stops early on each path (Kundu).

    The walk of an image looks at all roots; a class that the tree does not name is a root. Below a node it
    looks only if that node is present, so each present node whose ancestors are all present, and which has
    no present child, ends a path from its root. On each path one node, chosen at random with equal chances,
    is the last one verified, and then:

    - it and its ancestors are known present;
    - whatever is absent among the roots, and among the children of its ancestors, is known absent;
    - what only lies beyond it is unknown.

    An image can have several paths: an entry is known if the walk along any of them verified it. A present
    sibling is known only through its own path.
    """

    name = "hierarchy"
    tree: LabelTree

    def _kept(self, labels: Labels, seed: int) -> Mask:
        self.tree.check(labels.classes)
        number = {name: column for column, name in enumerate(labels.classes)}
        above = [self.tree.parent(name) for name in labels.classes]
        parent = np.array([-1 if name is None else number[name] for name in above])
        depth = np.array([len(self.tree.ancestors(name)) for name in labels.classes])

        rows, columns, values = labels.coo()
        here = np.flatnonzero(values > 0)  # the present entries; all that follows is about them
        cells = (rows * len(labels.classes) + columns)[here]  # ascending, as entries are stored
        # up: which present entry is the parent's in the same image, −1 for a root or where it is not present.
        up_all = _find(rows * len(labels.classes) + parent[columns], cells, where=parent[columns] >= 0)
        up, level = up_all[here], depth[columns[here]]
        last = self._last_verified(_priorities(labels, seed, "hierarchy")[here], up, level)

        kept: Mask = (depth == 0)[columns]  # every root is looked at
        kept[here] |= last >= level
        below = (values < 0) & (up_all >= 0)
        kept[below] = last[up_all[below]] > level[up_all[below]]  # some walk went on below the parent
        return kept

    @staticmethod
    def _last_verified(chance: Hashes, up: Whole, level: Whole) -> Whole:
        """Return for each present entry how deep the deepest walk through it verified; −1 if none came."""
        reached, ends = level == 0, np.ones(len(up), dtype=bool)
        ends[up[up >= 0]] = False
        levels = [
            np.flatnonzero((level == depth) & (up >= 0)) for depth in range(1, level.max(initial=0) + 1)
        ]
        for below in levels:
            reached[below] = reached[up[below]]
        # The upper 32 bits of the hash, scaled to one of the level + 1 nodes of the path.
        stop = ((chance >> np.uint64(32)) * (level + 1).astype(np.uint64)) >> np.uint64(32)
        last = np.where(ends & reached, stop.astype(np.int64), -1)
        for below in reversed(levels):
            np.maximum.at(last, up[below], last[below])
        return last


@dataclass(frozen=True)
class Salient(Scheme):
    """Keeps a share of the present labels, plain ones likelier, and `negatives` times as many absent ones.

    ``plainness`` [images, classes], in the order of the labels, says how plainly a class shows, for example
    the logits of a good model. Chance counts as much as plainness does. Without ``plainness`` some images and
    some classes are plainer than others at random. Absent labels are drawn at random.
    """

    name = "salient"
    keep: float = field(metadata=SHARE)
    negatives: float = field(default=1.0, metadata=FACTOR)
    plainness: Plainness | None = field(default=None, compare=False, repr=False)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        count = round(self.keep * _present(labels))
        order = _by_plainness(labels, seed, self.plainness)
        return _by_sign(labels, order, "all", count, round(self.negatives * count))


@dataclass(frozen=True)
class Budget(Scheme):
    """Keeps k labels of each image: present ones first, plain ones likelier, then absent ones.

    ``plainness`` is that of `Salient`.
    """

    name = "budget"
    k: int = field(metadata=COUNT)
    plainness: Plainness | None = field(default=None, compare=False, repr=False)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        rows = labels.coo()[0]
        order = _by_plainness(labels, seed, self.plainness)
        present = _by_sign(labels, order, "image", self.k, 0)
        left = self.k - np.bincount(rows[present], minlength=len(labels))
        return present | _by_sign(labels, order, "image", 0, left)


@dataclass(frozen=True)
class Session(Scheme):
    """Keeps all labels of a share of the images and nothing of the others."""

    name = "session"
    share: float = field(metadata=SHARE)

    def _kept(self, labels: Labels, seed: int) -> Mask:
        images = _mix(_hash(labels.images.to_pylist()) ^ _hash([f"session {seed}"]))
        together = np.zeros(len(labels), dtype=np.int64)
        looked_at = _smallest(images, together, np.array([round(self.share * len(labels))]))
        return looked_at[labels.coo()[0]]


def available() -> list[type[Scheme]]:
    """Return every scheme; the first line of its docstring says what it keeps.

    >>> [scheme.name for scheme in available()][:4]
    ['full', 'random', 'positives', 'single_positive']
    """
    return [
        Full,
        Random,
        Positives,
        SinglePositive,
        PerImage,
        PerClass,
        Balanced,
        Hierarchy,
        Federated,
        Salient,
        Budget,
        Session,
    ]


def parse(spec: str, tree: LabelTree | None = None) -> Scheme:
    """Return the scheme that a text describes: a name or alias, then its values in order or by name.

    >>> parse("balanced:0.1")
    Balanced(keep=0.1, negatives=1.25)
    >>> str(parse("rps:keep=0.1"))
    'random:0.1'
    >>> labels = Labels.from_dense([[1, 1, -1, -1], [1, -1, 1, -1]], classes=["ant", "bee", "cat", "dog"])
    >>> parse("per_image:1,all").apply(labels, seed=0).dense()
    array([[ 1,  0, -1, -1],
           [ 0, -1,  1, -1]], dtype=int8)
    """
    name, colon, rest = spec.partition(":")
    scheme = _named(name.strip())
    given = dict(_arguments(scheme, rest)) if colon else {}
    if scheme is Hierarchy:
        if tree is None:
            raise InputError('scheme "hierarchy" walks a label tree, and none is given')
        return Hierarchy(tree)
    required = [parameter.name for parameter in _parameters(scheme) if parameter.default is MISSING]
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(f'scheme "{scheme.name}" needs a value for {" and ".join(missing)}')
    return scheme(**given)


def _named(name: str) -> type[Scheme]:
    by_name = {word: scheme for scheme in available() for word in (scheme.name, *scheme.aliases)}
    if name not in by_name:
        raise InputError(f'there is no scheme "{name}"; {did_you_mean(name, by_name)}')
    return by_name[name]


def _parameters(scheme: type[Scheme]) -> list[dataclasses.Field[Any]]:
    """Return the parameters that a text can give: those with a rule, so not a tree."""
    return [parameter for parameter in dataclasses.fields(scheme) if parameter.metadata]


def _arguments(scheme: type[Scheme], text: str) -> Iterator[tuple[str, Any]]:
    """Give (parameter, value) pairs from text such as "0.1,negatives=1.25"."""
    names = [parameter.name for parameter in _parameters(scheme)]
    if not names:
        raise InputError(f'scheme "{scheme.name}" takes no values, but got "{text}"')
    free = list(names)
    for place, argument in enumerate(text.split(",")):
        key, equals, value = argument.rpartition("=")
        key = key.strip() if equals else names[place] if place < len(names) else ""
        if equals and key not in names:
            raise InputError(f'scheme "{scheme.name}" has no parameter "{key}"; {did_you_mean(key, names)}')
        if key not in free:
            problem = f"a second value for {key}" if key else f"only {' and '.join(names)}"
            raise InputError(f'scheme "{scheme.name}" takes {problem}')
        free.remove(key)
        yield key, _value(value.strip())


def _value(text: str) -> int | float | str:
    """Return a number where the text is one; each scheme checks its own values."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _text(value: float | str) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# ---- choosing entries --------------------------------------------------------------------------------------


def _present(labels: Labels) -> int:
    return int((labels.entries > 0).sum())


def _by_sign(
    labels: Labels,
    order: Order,
    group: Literal["all", "image", "class"],
    present: int | Whole,
    absent: int | Whole,
) -> Mask:
    """Mark so many present and absent entries of each group; counts are one number or one for each group."""
    rows, columns, values = labels.coo()
    groups, size = {
        "all": (np.zeros_like(rows), 1),
        "image": (rows, len(labels)),
        "class": (columns, len(labels.classes)),
    }[group]
    quota = np.empty((size, 2), dtype=np.int64)
    quota[:, 0], quota[:, 1] = present, absent
    return _smallest(order, 2 * groups + (values < 0), quota.reshape(-1))


def _smallest(priority: Order, group: Whole, quota: Whole) -> Mask:
    """Mark the quota[g] entries of smallest priority in each group g, all where there are fewer."""
    counts = np.bincount(group, minlength=len(quota))
    chosen: Mask = (quota > 0)[group]
    # Sorting is what costs: only where a group keeps some of its entries and loses others.
    divided = (quota > 0) & (quota < counts)
    contested = np.flatnonzero(divided[group])
    order = contested[np.lexsort((priority[contested], group[contested]))]
    first = np.cumsum(counts * divided) - counts * divided  # where each group starts in the order
    chosen[order] = np.arange(len(order)) - first[group[order]] < quota[group[order]]
    return chosen


def _by_plainness(labels: Labels, seed: int, plainness: Plainness | None) -> Order:
    """Return an order of the known entries [K], the plainest present ones first and absent ones by chance."""
    rows, columns, values = labels.coo()
    chance = _deviates(_priorities(labels, seed, "noted"))
    if plainness is None:
        keys = _hash([f"plain {seed}"])
        by_image, by_class = (
            _deviates(_mix(_hash(names) ^ keys)) for names in (labels.images.to_pylist(), labels.classes)
        )
        plain = by_image[rows] + by_class[columns]
    elif plainness.shape != labels.shape:
        raise InputError(f"plainness must be {labels.shape}, as the labels are, not {plainness.shape}")
    elif not np.isfinite(plainness).all():
        raise InputError("plainness must be finite everywhere")
    else:
        plain = plainness[rows, columns].astype(np.float64)
    among = plain[values > 0]
    spread = among.std() if among.size else 0.0
    plain = (plain - among.mean()) / spread if spread > 0 else np.zeros_like(plain)
    return np.where(values > 0, -(plain + chance), chance)


def _deviates(hashes: Hashes) -> npt.NDArray[np.float64]:
    """Turn hashes into logistic deviates of variance one."""
    share = ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
    return np.asarray(np.log(share / (1 - share)) * (np.sqrt(3) / np.pi))


def _find(wanted: Whole, cells: Whole, where: Mask) -> Whole:
    """Return the place of each wanted cell in the ascending cells; −1 where not there or not asked for."""
    place = np.searchsorted(cells, wanted)
    found = where & (place < len(cells))
    found[found] = cells[place[found]] == wanted[found]
    return np.where(found, place, -1)


def _priorities(labels: Labels, seed: int, purpose: str = "keep") -> Hashes:
    """Return a hash for each known entry [K] that depends on the seed, the purpose and the two names only."""
    rows, columns, _ = labels.coo()
    key = _hash([f"{purpose} {seed}"])
    classes = _mix(_hash(labels.classes) ^ key)
    return _mix(_hash(labels.images.to_pylist())[rows] ^ classes[columns])


def _hash(names: Iterable[str]) -> Hashes:
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _mix(x: Hashes) -> Hashes:
    """Scatter the bits of 64-bit integers (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Simulated:
    """Labels of which some are hidden, and how many are still known."""

    labels: Labels
    scheme: Scheme
    kept: int  # known labels of the images that the scheme concerned …
    known: int  # … and how many there were


def simulate(
    labels: Source,
    scheme: str | Scheme,
    *,
    seed: int = 0,
    only: str | None = None,
    tree: LabelTree | str | Path | None = None,
    unlisted: Unlisted = "unknown",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Simulated:
    """Hide labels as an annotation process would; write the remaining ones to ``out`` if it is given.

    ``only`` hides labels in this split and keeps the others. ``tree`` is for the scheme ``hierarchy``.

    >>> full = Labels.from_dense([[1, -1], [1, 1]])
    >>> simulate(full, "positives:1").labels.dense()
    array([[1, 0],
           [1, 1]], dtype=int8)
    """
    keep_inputs([out], [place_of(labels), tree])
    found = LabelTree.read(tree) if isinstance(tree, str | Path) else tree
    chosen = parse(scheme, found) if isinstance(scheme, str) else scheme
    full = open_labels(labels, unlisted=unlisted, progress=progress)
    rows = np.arange(len(full)) if only is None else full.rows_in(only)
    part = full if only is None else full[rows]
    hidden = chosen.apply(part, seed)
    partial = hidden if only is None else full.with_rows(rows, hidden)
    if out is not None:
        write_labels(partial, out)
    return Simulated(partial, chosen, hidden.known, part.known)
