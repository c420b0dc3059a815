"""Ranking: the known entries of scores, class by class in the order of their scores.

`Known` reads scores in memory, or memory-mapped. Scores that do not fit into memory come block by block:
`KnownScores` keeps those of known labels in a file. Both give each class as `Ranked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.labels import Labels

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Scores = npt.NDArray[np.floating[Any]]
Truth = Labels | npt.NDArray[np.int8]
_Matrix = npt.NDArray[np.integer[Any]]

_SHARE, _FLOOR = 0.15, 2**21  # working memory: a share of the scores' bytes, but no less than two megabytes
_HELD, _SORTED = 2**20, 2**22  # how many keys of 8 bytes are held before they are written, sorted at once
_MOSTLY = 0.25  # known share from which a row's entries are read on from class to class, not searched anew


# ---- the known entries ---------------------------------------------------------------------------------


class Ranked(NamedTuple):
    """The known scores of a class, and those of its known-present entries; both ascending.

    Two plain sorts of numbers are several times as fast as one that carries the labels along.
    """

    values: Scores
    present: Scores

    def curve(self) -> tuple[Counts, Counts, Scores]:
        """Return how many present and how many known entries reach each score of a present one, and it.

        The highest score comes first.
        """
        first = np.flatnonzero(np.append(True, self.present[1:] != self.present[:-1]))[::-1]
        cuts = self.present[first]
        return self.present.size - first, self.values.size - np.searchsorted(self.values, cuts), cuts

    def reached(self, cut: float) -> tuple[int, int]:
        """Return how many present and how many known entries reach a score."""
        hits, predicted = (int(np.count_nonzero(each >= cut)) for each in (self.present, self.values))
        return hits, predicted


class Piece(NamedTuple):
    """All known entries of some rows, in some classes."""

    rows: Counts
    columns: Counts
    values: Scores
    present: Flags


@dataclass(frozen=True, eq=False)
class Known:
    """The known entries of scores, whether the labels are sparse or dense."""

    scores: Scores
    signs: Labels | _Matrix
    names: tuple[str, ...]
    positives: Counts  # [C]
    negatives: Counts  # [C]
    budget: int  # bytes of working memory

    @classmethod
    def read(cls, scores: Scores, labels: Truth) -> Known:
        """Check that scores and labels fit each other, and count what is known of each class."""
        scores, signs = np.asarray(scores), _signs(labels)
        if scores.dtype not in (np.float16, np.float32, np.float64):
            raise InputError(f"scores must be float16, float32 or float64, not {scores.dtype}")
        if scores.shape != signs.shape:
            raise InputError(f"scores of shape {scores.shape} do not fit labels of shape {signs.shape}")
        names = labels.classes if isinstance(labels, Labels) else tuple(map(str, range(signs.shape[1])))
        return cls(scores, signs, names, *_counts(signs), max(_FLOOR, int(scores.nbytes * _SHARE)))

    def pieces(
        self, first: int = 0, last: int | None = None, cursors: _Matrix | None = None
    ) -> Iterator[Piece]:
        """Give the known entries of classes first … last − 1 in pieces of whole rows, none of them empty.

        ``cursors`` [N] says where a row's entries from class ``first`` on begin, and is moved on to ``last``.
        """
        size = max(
            1, min(self.budget // 240, 2**17)
        )  # an entry takes some 110 bytes on its way: half the budget
        last = len(self.names) if last is None else last
        if not isinstance(self.signs, Labels):
            found = _dense_pieces(self.scores, self.signs, first, last, size)
        elif cursors is None:
            found = _sparse_pieces(self.scores, self.signs, first, last, size)
        else:
            found = _next_pieces(self.scores, self.signs, cursors, last - first, last, size // 2)
        for piece in found:
            missing = np.isnan(piece.values)
            if missing.any():
                row, column = (int(axis[np.argmax(missing)]) for axis in piece[:2])
                raise _nan(self.names, row, column)
            if missing.size:
                yield piece

    def per_class(self, measure: Callable[[Counts, Counts, Scores], Any], otherwise: float) -> Floats:
        """Measure the curve of each class that can be scored."""
        result = np.full(len(self.names), otherwise)
        for column, ranked in self.by_class():
            if self.positives[column] and self.negatives[column]:
                result[column] = measure(*ranked.curve())
        return result

    def by_class(self) -> Iterator[tuple[int, Ranked]]:
        """Give each class that has known entries; as many are read at a time as the budget allows."""
        for column, *both in self._columns():
            ranked = Ranked(*map(_ascending, both))
            both.clear()  # before the next ones are made
            yield column, ranked

    def _columns(self) -> Iterator[tuple[int, Scores, Scores]]:
        """Give each class that has known entries, its scores and those of present entries, in any order."""
        if isinstance(self.signs, Labels):
            return self._sparse_columns(self.signs)
        return self._dense_columns(self.signs)

    def _dense_columns(self, signs: _Matrix) -> Iterator[tuple[int, Scores, Scores]]:
        width = self.scores.itemsize + signs.itemsize
        step = max(1, self.budget // max(1, 3 * width * len(self.scores)))
        for first in range(0, len(self.names), step):
            # Columns become rows, which are read fast.
            block = (np.ascontiguousarray(part[:, first : first + step].T) for part in (self.scores, signs))
            for column, (values, sign) in enumerate(zip(*block, strict=True), first):
                known = sign != 0
                if not known.any():
                    continue
                if np.isnan(values.max()):  # one look tells that nothing is missing
                    missing = np.isnan(values) & known
                    if missing.any():
                        raise _nan(self.names, int(np.argmax(missing)), column)
                yield column, values if known.all() else values[known], values[sign > 0]

    def _sparse_columns(self, signs: Labels) -> Iterator[tuple[int, Scores, Scores]]:
        ends = np.cumsum(self.positives + self.negatives)
        cursors = signs.offsets[:-1].copy() if signs.known > self.scores.size * _MOSTLY else None
        for first, last in _ranges(ends, self.budget // (4 + 2 * self.scores.itemsize)):
            values, present, ends_here = self._gathered(first, last, cursors)
            for column, stop in enumerate(ends_here.tolist(), first):
                mine = slice(stop - int(self.positives[column] + self.negatives[column]), stop)
                if values[mine].size:
                    yield column, values[mine], values[mine][present[mine]]
            del values, present  # before the next ones are made

    def _gathered(self, first: int, last: int, cursors: _Matrix | None) -> tuple[Scores, Flags, Counts]:
        """Return the scores of some classes' known entries, class after class, their labels, and the ends."""
        counts = (self.positives + self.negatives)[first:last]
        ends = np.cumsum(counts)
        values, present = np.empty(ends[-1], dtype=self.scores.dtype), np.empty(ends[-1], dtype=np.bool_)
        free = ends - counts
        for piece in self.pieces(first, last, cursors):
            columns = piece.columns - first
            # A stable sort of two bytes is a radix sort.
            order = np.argsort(columns.astype(np.uint16) if last - first <= 2**16 else columns, kind="stable")
            here = np.bincount(columns, minlength=counts.size)
            places = np.arange(order.size) + np.repeat(free - (np.cumsum(here) - here), here)
            values[places], present[places] = piece.values[order], piece.present[order]
            free += here
        return values, present, ends


def _ascending(values: Scores) -> Scores:
    found = values.astype(np.promote_types(values.dtype, np.float32))  # half precision sorts slowly
    found.sort()
    return found


def columns_of(classes: Sequence[str], names: Sequence[str]) -> Counts:
    """Return which column of scores each class has, −1 if it has none; ``names`` are those of the columns."""
    place = {name: column for column, name in enumerate(names)}
    return np.array([place.get(name, -1) for name in classes], dtype=np.int64)


def known_entries(labels: Labels, first: int, scores: Scores, columns: Counts) -> Piece:
    """Return what is known of the images from row ``first`` on, with the scores [B, C] of these images.

    ``columns`` says which column a class of the labels has; what has none is left out. Rows count from 0.
    """
    offsets = labels.offsets[first : first + len(scores) + 1]
    if len(offsets) <= len(scores):
        raise InputError(f"scores of shape {scores.shape} do not fit the labels from row {first} on")
    entries = labels.entries[offsets[0] : offsets[-1]]
    own = columns[np.abs(entries) - 1]
    rows = np.repeat(np.arange(len(scores)), np.diff(offsets))
    if (own < 0).any():
        kept = np.flatnonzero(own >= 0)
        rows, own, entries = rows[kept], own[kept], entries[kept]
    return Piece(rows, own, scores[rows, own].astype(np.float32, copy=False), entries > 0)


class KnownScores:
    """The known entries of scores that come block by block, in files: memory does not grow with the images.

    The rows may be divided into shares, one for each process: each adds its own scores, and when all are
    closed, any process that sees the folder can evaluate. The result does not depend on the shares. Scores
    are taken as float32. Classes are matched by name; those of the labels that have no score are left out.

    >>> import tempfile
    >>> labels = Labels.from_dense([[1, -1], [-1, 0], [1, 1]], classes=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder, KnownScores(labels, ["cat", "dog"], folder) as known:
    ...     known.add(np.array([[0.9, 0.2], [0.8, 0.7]], dtype=np.float32))
    ...     known.add(np.array([[0.3, 0.1]], dtype=np.float32))
    ...     known.close()
    ...     for column, ranked in known.by_class():
    ...         print(known.names[column], ranked.values, ranked.present)
    cat [0.3 0.8 0.9] [0.3 0.9]
    dog [0.1 0.2] [0.1]
    """

    def __init__(
        self,
        labels: Labels,
        classes: Sequence[str],
        folder: str | Path,
        shares: Sequence[range] | None = None,
        share: int = 0,
    ) -> None:
        self.names = tuple(classes)
        self._labels, self._folder = labels, Path(folder)
        self._shares = [range(len(labels))] if shares is None else shares
        self._share, self._row = share, self._shares[share].start
        self._moved = columns_of(labels.classes, self.names)
        self.positives, self.negatives = np.zeros((2, len(self.names)), dtype=np.int64)
        for ours, theirs in zip((self.positives, self.negatives), known_counts(labels), strict=True):
            ours[self._moved[self._moved >= 0]] = theirs[self._moved >= 0]
        self._ranges = list(_ranges(np.cumsum(self.positives + self.negatives), _SORTED))
        # Where in a sorted run of keys each range of classes begins, and where the last one ends.
        self._edges = np.array([0, *(last for _, last in self._ranges)], dtype=np.uint64) << np.uint64(33)
        self._runs: list[Counts] = []
        self._held: list[Keys] = []
        self._file = open(self._keys_file(share), "wb")  # noqa: SIM115  # closed by `close`

    def __enter__(self) -> KnownScores:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, scores: Scores) -> None:
        """Keep what counts of the scores [B, C] of the next rows."""
        if scores.shape[1] != len(self.names):
            raise InputError(f"scores of shape {scores.shape} do not fit the labels from row {self._row} on")
        found = known_entries(self._labels, self._row, scores, self._moved)
        missing = np.isnan(found.values)
        if missing.any():
            first = int(np.argmax(missing))
            raise _nan(self.names, self._row + int(found.rows[first]), int(found.columns[first]))
        self.add_known(len(scores), found.columns, found.values, found.present)

    def add_known(self, rows: int, columns: Counts, values: Scores, present: Flags) -> None:
        """Keep the scores of all known labels of so many next rows: their classes, values and signs."""
        self._held.append(pack(columns, codes_of(values), present))
        self._row += rows
        if sum(keys.size for keys in self._held) >= _HELD:
            self._write()

    def close(self) -> None:
        """Write what is left; from then on others can read it."""
        rows = self._shares[self._share]
        if self._row != rows.stop:
            raise InputError(f"{self._row - rows.start:,} of {len(rows):,} rows were scored")
        self._write()
        self._file.close()
        np.save(self._runs_file(self._share), np.array(self._runs))

    def by_class(self) -> Iterator[tuple[int, Ranked]]:
        """Give each class that has known entries."""
        ends = np.cumsum(self.positives + self.negatives)
        runs = [np.load(self._runs_file(share), allow_pickle=False) for share in range(len(self._shares))]
        for number, (first, last) in enumerate(self._ranges):
            before = int(ends[first - 1]) if first else 0
            keys = self._read([found[:, number : number + 2] for found in runs], int(ends[last - 1]) - before)
            keys.sort()
            for column, part in enumerate(np.split(keys, ends[first : last - 1] - before), start=first):
                if part.size:
                    yield column, _ranked(part)

    def _write(self) -> None:
        """Write the held keys as one sorted run, in which each range of classes is one stretch."""
        keys = np.concatenate([np.empty(0, dtype=np.uint64), *self._held])
        keys.sort()
        begun = self._runs[-1][-1] if self._runs else 0
        self._runs.append(begun + np.searchsorted(keys, self._edges))
        self._file.write(keys.data)
        self._held.clear()

    def _read(self, stretches: Sequence[Counts], size: int) -> Keys:
        """Read a stretch of every run of every share: `stretches` has from where to where."""
        keys, at = np.empty(size, dtype=np.uint64), 0
        for share, bounds in enumerate(stretches):
            with open(self._keys_file(share), "rb", buffering=0) as file:
                for start, stop in bounds.tolist():
                    file.seek(8 * start)
                    at += file.readinto(keys[at : at + stop - start].view(np.uint8).data) // 8
        if at != size:
            raise InputError(f"{self._folder}: the scores of {size - at:,} known labels are missing")
        return keys

    def _keys_file(self, share: int) -> Path:
        return self._folder / f"{share}.keys"

    def _runs_file(self, share: int) -> Path:
        return self._folder / f"{share}.runs.npy"


def _nan(names: Sequence[str], row: int, column: int) -> InputError:
    return InputError(f'the score of class {column} ("{names[column]}") in row {row} is NaN')


def _ranges(ends: Counts, size: int) -> Iterator[tuple[int, int]]:
    """Give ranges of classes first … last − 1 that have at most ``size`` entries, or are a single class."""
    first = 0
    while first < ends.size:
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield first, last
        first = last


def known_counts(labels: Truth) -> tuple[Counts, Counts]:
    """Count the known-present and the known-absent entries of each class."""
    return _counts(_signs(labels))


def _signs(labels: Truth) -> Labels | _Matrix:
    """Check labels; those without an unknown entry read as a matrix whose signs count, others stay sparse."""
    if isinstance(labels, Labels):
        return labels.entries.reshape(labels.shape) if labels.is_full else labels
    labels = np.asarray(labels)
    if labels.ndim != 2 or labels.dtype != np.int8:
        raise InputError(f"labels must be a matrix of int8, not {labels.dtype} of shape {labels.shape}")
    extremes = int(labels.min(initial=0)), int(labels.max(initial=0))
    if not -1 <= extremes[0] <= extremes[1] <= 1:
        raise InputError(f"a label is +1 (present), −1 (absent) or 0 (unknown), not {max(extremes, key=abs)}")
    return labels


def _counts(signs: Labels | _Matrix) -> tuple[Counts, Counts]:
    size = signs.shape[1]
    if isinstance(signs, Labels):  # `class_counts` would take 8 bytes for each known entry
        both = np.zeros(2 * size + 1, dtype=np.int64)
        for start in range(0, signs.known, 2**15):
            both += np.bincount(signs.entries[start : start + 2**15] + np.int64(size), minlength=both.size)
        return both[size + 1 :], both[:size][::-1]
    positives, negatives = np.zeros((2, size), dtype=np.int64)
    for top in range(0, len(signs), 127):  # bytes add up fastest, and 127 flags cannot overflow one
        part = signs[top : top + 127]
        positives += (part > 0).view(np.int8).sum(axis=0, dtype=np.int8)
        negatives += (part < 0).view(np.int8).sum(axis=0, dtype=np.int8)
    return positives, negatives


def _dense_pieces(scores: Scores, signs: _Matrix, first: int, last: int, size: int) -> Iterator[Piece]:
    by_class = last - first < signs.shape[1]  # some columns of many copy faster one after the other
    order: Any = "F" if by_class else "C"
    step = max(1, size // max(1, last - first))
    for top in range(0, len(signs), step):
        here = slice(top, top + step), slice(first, last)
        part, values = signs[here].ravel(order), scores[here].ravel(order)
        axes = np.arange(top, min(top + step, len(signs))), np.arange(first, last)
        outer, inner = axes[::-1] if by_class else axes
        known = part != 0
        if known.all():
            cells = np.repeat(outer, inner.size), np.tile(inner, outer.size)
        else:
            where = np.flatnonzero(known)
            part, values = part[where], values[where]
            cells = where // inner.size + outer[0], where % inner.size + inner[0]
        rows, columns = cells[::-1] if by_class else cells
        yield Piece(rows, columns, values, part > 0)


def _sparse_pieces(scores: Scores, labels: Labels, first: int, last: int, size: int) -> Iterator[Piece]:
    offsets, width = labels.offsets, len(labels.classes)
    size *= min(8, width // (last - first))  # what is not chosen takes little memory
    starts = np.arange(0, labels.known, size, dtype=offsets.dtype)
    edges = np.unique(np.append(np.searchsorted(offsets, starts), len(labels)))
    for top, bottom in pairwise(edges.tolist()):
        entries = labels.entries[offsets[top] : offsets[bottom]]
        columns = np.abs(entries) - 1
        if last - first < width:
            where = np.flatnonzero((columns >= first) & (columns < last))
            entries, columns = entries[where], columns[where]
            rows = np.searchsorted(offsets[top:bottom], where + offsets[top], side="right") + (top - 1)
        else:
            rows = np.repeat(np.arange(top, bottom), np.diff(offsets[top : bottom + 1]))
        columns = columns.astype(np.int64)
        yield Piece(rows, columns, scores[rows, columns], entries > 0)


def _next_pieces(
    scores: Scores, labels: Labels, cursors: _Matrix, width: int, last: int, size: int
) -> Iterator[Piece]:
    """Read on where the last classes ended: a row's entries ascend, so the wanted ones come next."""
    ahead, step = np.arange(width, dtype=cursors.dtype)[:, None], max(1, size // width)
    for top in range(0, len(labels), step):
        places = cursors[top : top + step] + ahead  # [width, R]: long rows are what NumPy is quick with
        entries = labels.entries.take(places, mode="clip")
        columns = np.abs(entries) - 1
        wanted = (places < labels.offsets[top + 1 : top + 1 + places.shape[1]]) & (columns < last)
        cursors[top : top + step] += wanted.sum(axis=0, dtype=cursors.dtype)
        where = np.flatnonzero(wanted)
        rows, columns = where % places.shape[1] + top, columns.ravel()[where].astype(np.int64)
        yield Piece(rows, columns, scores[rows, columns], entries.ravel()[where] > 0)


# ---- packed keys ---------------------------------------------------------------------------------------
# A key is (class or row, score, label) in one uint64 of 31, 32 and 1 bits. Higher scores get smaller codes
# and the label comes last, so that after a plain sort each class runs from its highest score downwards, and
# among equal scores the present entries come last.


def pack(groups: Counts, codes: npt.NDArray[np.uint32], present: Flags) -> Keys:
    """Return the keys of entries, not sorted yet; ``groups`` are their classes or rows."""
    keys = groups.astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= codes
    keys <<= np.uint64(1)
    keys |= present
    return keys


def codes_of(values: Scores) -> npt.NDArray[np.uint32]:
    """Return 32-bit codes that fall as the scores rise; for 64-bit scores these are ranks."""
    if values.dtype != np.float64:
        zeroed = values.astype(np.float32, copy=False) + np.float32(0)  # −0.0 equals 0.0, so give it its bits
        return _flip(zeroed.view(np.int32)).view(np.uint32)
    order = np.argsort(values)[::-1]
    ordered = values[order]
    codes = np.empty(values.size, dtype=np.uint32)
    codes[order] = np.cumsum(np.append(True, ordered[1:] != ordered[:-1])) - 1
    return codes


def _flip(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return bits ^ (~(bits >> 31) & np.int32(2**31 - 1))  # bits of positive floats rise with them; own inverse


def _ranked(keys: Keys) -> Ranked:
    """Return the scores of one class's sorted keys."""
    keys = keys[::-1]
    codes = (keys >> np.uint64(1)).astype(np.uint32)  # the class falls off
    values = _flip(codes.view(np.int32)).view(np.float32)
    return Ranked(values, values[(keys & np.uint64(1)).astype(np.bool_)])
