"""Rows that say something of an image, gathered block by block; labels at the end, however many there were.

Up to some size rows stay in memory. Beyond it they are divided by their image into files, of which each is
settled alone; the labels that come of it are in files too, mapped and not read. So memory does not grow with
the rows, nor with the images. The files are in the system's folder for temporary ones (``TMPDIR``), have no
name there, and are gone when nothing uses them any more.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError
from tertium.labels.ids import hashes, normal_ids
from tertium.labels.labels import ContradictionError, Labels, Rule, entry_type, places
from tertium.labels.tables import Runs, as_text, number_ids

Ints = npt.NDArray[np.int64]
HELD = 2**28  # bytes of rows that stay in memory; settling them takes about four times as much
PARTS = 64  # into which more rows are divided; of a thousand million each has 16 million
WINDOW = 2**19  # images that are put in order at once, about
_SAMPLED = 256  # of so many images of a part, one is looked at to see where they lie
_ALIGNED = 8  # bytes at which an array in a file begins
LETTERS = 2**31 - 1  # of all ids together, as Arrow counts them


class SplitError(InputError):
    """An image is in two splits: ``row`` says ``split``, and its last row ``last``."""

    def __init__(self, row: int, image: str, split: int, last: int) -> None:
        super().__init__(f'image "{image}" is in another split elsewhere')
        self.row, self.image, self.split, self.last = row, image, split, last


class Settled(NamedTuple):
    """Labels of rows."""

    labels: Labels
    duplicates: int  # rows that say what another one said
    clashes: int  # labels that were both present and absent


@dataclass(frozen=True)
class _Rows:
    """Some runs of rows: neighbours with the same image and split."""

    ids: npt.NDArray[np.uint64] | pa.StringArray  # [R]
    first: Ints  # [R] the number of a run's first row
    split: npt.NDArray[np.int32] | None  # [R] −1: none
    counts: npt.NDArray[np.int32]  # [R] how many entries a run has
    entries: npt.NDArray[np.int32]  # label × 2 + present, one run after the other

    @property
    def nbytes(self) -> int:
        arrays = (self.ids, self.first, self.counts, self.entries, self.split)
        return sum(each.nbytes for each in arrays if each is not None)

    def take(self, runs: Ints) -> _Rows:
        """Return some of the runs."""
        ids = self.ids[runs] if isinstance(self.ids, np.ndarray) else self.ids.take(pa.array(runs))
        starts, counts = np.cumsum(self.counts, dtype=np.int64) - self.counts, self.counts[runs]
        entries = self.entries[places(starts[runs], counts.astype(np.int64))]
        return _Rows(ids, self.first[runs], None if self.split is None else self.split[runs], counts, entries)


class Gathering:
    """Rows that are added block by block.

    >>> from tertium.labels.tables import runs
    >>> rows = Gathering()
    >>> rows.add(runs(pa.array(["b", "b", "a"])), np.array([1, 2, 1], dtype=np.int32))
    >>> found = rows.settled(np.array([0, 1]), classes=["cat", "dog"])
    >>> found.labels.images.to_pylist(), found.labels.dense().tolist()
    (['b', 'a'], [[1, -1], [1, 0]])
    """

    def __init__(self) -> None:
        self.rows = 0
        self._held: list[_Rows] = []
        self._size = 0
        self._files: list[IO[bytes]] = []
        self._blocks: list[list[_Kept]] = []  # of each file

    def add(
        self,
        images: Runs,
        entries: npt.NDArray[np.int32],
        *,
        row: Ints | None = None,
        split: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Add rows. An entry is label × 2 + present, one for each row, or those of ``row`` [entries].

        ``split`` is a number for each row, −1 where it says nothing.
        """
        lengths = images.lengths.astype(np.int64)
        ids = images.ids if isinstance(images.ids, np.ndarray) else normal_ids(images.ids)
        total, own = int(lengths.sum()), np.arange(len(lengths))
        first = np.cumsum(lengths) - lengths
        if split is not None:
            inside = np.zeros(total, dtype=bool)
            inside[first] = True
            inside[1:] |= split[1:] != split[:-1]
            own = np.repeat(own, lengths)[inside]
            first = np.flatnonzero(inside)
            lengths = np.diff(np.append(first, total))
            ids = ids[own] if isinstance(ids, np.ndarray) else ids.take(pa.array(own))
            split = split[first].astype(np.int32)
        counts = lengths
        if row is not None:
            order = np.argsort(row, kind="stable")
            of_run = np.searchsorted(first, row[order], "right") - 1
            counts, entries = np.bincount(of_run, minlength=len(first)), entries[order]
        block = _Rows(ids, first + self.rows, split, counts.astype(np.int32), entries.astype(np.int32))
        self.rows += total
        self._held.append(block)
        self._size += block.nbytes
        if self._size > (HELD if not self._files else HELD // 4):
            self._spill()

    def settled(
        self,
        columns: npt.NDArray[Any],
        *,
        classes: Sequence[str],
        splits: Sequence[str] = (),
        contradictions: Rule = "error",
        suffix: str = "",
    ) -> Settled:
        """Return the labels; ``columns`` is the class of each label, −1 for those that are left out.

        Images are in the order in which they appear first. The rows are used up.
        """
        if self._files and self._held:
            self._spill()
        parts: list[_Part] = []
        duplicates, clashes, contradicted = 0, 0, []
        for blocks in self._parts():
            part = _settle(blocks, columns, classes, contradictions, suffix)
            if isinstance(part, _Contradicted):
                contradicted.append(part)
                continue
            duplicates, clashes = duplicates + part.duplicates, clashes + part.clashes
            if not contradicted:
                parts.append(part.on_disk() if self._files else part)
        self._files.clear()
        self._blocks.clear()
        if contradicted:
            raise _joined_error(contradicted)
        _check_splits(parts)
        labels = parts[0].labels(classes, splits) if len(parts) == 1 else _in_order(parts, classes, splits)
        return Settled(labels, duplicates, clashes)

    def _parts(self) -> Iterator[list[_Rows]]:
        if not self._files:
            held, self._held = self._held, []
            yield held
            return
        for number in range(PARTS):
            yield [kept.read(self._files[number]) for kept in self._blocks[number]]
            self._files[number].close()  # gives its room back

    def _spill(self) -> None:
        """Write what is held into the files of the images' parts."""
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(PARTS)]  # noqa: SIM115
            self._blocks = [[] for _ in range(PARTS)]
        held, self._held, self._size = self._held, [], 0
        together: list[_Rows] = []
        while held:  # several blocks at a time, or there would be very many pieces in the files
            together.append(held.pop(0))
            if not held or sum(block.nbytes for block in together) > HELD // 4:
                self._write(_combined(together))
                together.clear()

    def _write(self, block: _Rows) -> None:
        part = _part_of(block.ids)
        ends = np.cumsum(np.bincount(part, minlength=PARTS))
        block = block.take(np.argsort(part, kind="stable"))
        edges = np.concatenate([[0], np.cumsum(block.counts, dtype=np.int64)])
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start:
                piece = _slice(block, int(start), int(end), edges)
                self._blocks[number].append(_Kept.write(piece, self._files[number]))


def _combined(blocks: Sequence[_Rows]) -> _Rows:
    """Return several blocks as one."""
    if all(isinstance(block.ids, np.ndarray) for block in blocks):
        ids = np.concatenate([block.ids for block in blocks])
    else:
        texts = [as_text(each.ids) if isinstance(each.ids, np.ndarray) else each.ids for each in blocks]
        ids = pa.concat_arrays(texts)
    arrays = ([getattr(block, name) for block in blocks] for name in ("first", "counts", "entries"))
    first, counts, entries = map(np.concatenate, arrays)
    return _Rows(ids, first, _split_codes(blocks), counts, entries)


def _part_of(ids: npt.NDArray[np.uint64] | pa.StringArray) -> npt.NDArray[np.uint8]:
    """Return the part that each id belongs to, the same whether ids are numbers or text."""
    texts = as_text(ids) if isinstance(ids, np.ndarray) else ids
    return (hashes(texts) >> np.uint64(40)).astype(np.uint8) % np.uint8(PARTS)


def _slice(block: _Rows, start: int, end: int, edges: Ints) -> _Rows:
    split = None if block.split is None else block.split[start:end]
    entries = block.entries[edges[start] : edges[end]]
    return _Rows(block.ids[start:end], block.first[start:end], split, block.counts[start:end], entries)


# ---- files -------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """A block in a file: where it is, and what kind of array and how many bytes each part of it has."""

    offset: int
    arrays: list[tuple[str, Any, int]]

    @classmethod
    def write(cls, block: _Rows, file: IO[bytes]) -> _Kept:
        """Add a block to the end of a file."""
        offset = file.seek(0, 2)
        named: list[tuple[str, npt.NDArray[Any] | None]] = [
            *_id_arrays(block.ids),
            ("first", block.first),
            ("split", block.split),
            ("counts", block.counts),
            ("entries", block.entries),
        ]
        arrays = []
        for name, array in named:
            if array is not None:
                file.write(np.ascontiguousarray(array).data)
                arrays.append((name, array.dtype, len(array)))
        return cls(offset, arrays)

    def read(self, file: IO[bytes]) -> _Rows:
        """Read it again."""
        file.seek(self.offset)
        found = {
            name: np.frombuffer(file.read(count * np.dtype(kind).itemsize), dtype=kind)
            for name, kind, count in self.arrays
        }
        ids = found["numbers"] if "numbers" in found else _texts(found["lengths"], found["letters"])
        return _Rows(ids, found["first"], found.get("split"), found["counts"], found["entries"])


def _id_arrays(ids: npt.NDArray[np.uint64] | pa.StringArray) -> list[tuple[str, npt.NDArray[Any]]]:
    if isinstance(ids, np.ndarray):
        return [("numbers", ids)]
    lengths, letters = lengths_and_letters(ids)
    return [("lengths", lengths), ("letters", letters)]


def lengths_and_letters(ids: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return how long each text is, and all letters one after the other."""
    if not len(ids):
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(ids.buffers()[1], dtype=np.int32)[ids.offset : ids.offset + len(ids) + 1]
    letters = np.frombuffer(ids.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return np.diff(offsets), letters


def _texts(lengths: npt.NDArray[np.int32], letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))


@dataclass
class _Spool:
    """An array that is written piece by piece into a file without a name, and then mapped."""

    kind: Any
    file: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    length: int = 0

    def add(self, piece: npt.NDArray[Any]) -> None:
        """Add to the end."""
        self.file.write(np.ascontiguousarray(piece, dtype=self.kind).data)
        self.length += len(piece)

    def mapped(self) -> npt.NDArray[Any]:
        """Return all that was added."""
        self.file.flush()
        if not self.length:
            return np.empty(0, dtype=self.kind)
        return np.memmap(self.file, self.kind, mode="r", shape=(self.length,))


def _in_one_file(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return arrays that are mapped from a file: one for all, because a process may not open very many."""
    starts = {}
    with tempfile.TemporaryFile() as file:
        for name, array in arrays.items():
            starts[name] = file.seek(-(-file.tell() // _ALIGNED) * _ALIGNED)
            file.write(np.ascontiguousarray(array).data)
        file.write(bytes(_ALIGNED))  # an empty file cannot be mapped
        file.flush()
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.frombuffer(content, array.dtype, len(array), starts[name]) for name, array in arrays.items()
    }


# ---- a part of the images ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The labels of some of the images, in the order of their first rows."""

    first: Ints  # [N]
    split: npt.NDArray[np.int32] | None  # [N]
    clash: SplitError | None  # of the first row that says another split than the last one of its image
    counts: Ints  # [N]
    entries: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]  # [N] of the ids
    letters: npt.NDArray[np.uint8]
    duplicates: int
    clashes: int

    def on_disk(self) -> _Part:
        """Return the same with its arrays in files."""
        names = ("first", "split", "counts", "entries", "lengths", "letters")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(self, **_in_one_file(given))

    def labels(self, classes: Sequence[str], splits: Sequence[str]) -> Labels:
        """Return them as labels."""
        offsets = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        return _labels(offsets, self.entries, _texts(self.lengths, self.letters), self.split, classes, splits)


@dataclass(frozen=True)
class _Contradicted:
    """A part in which an image is said to be both with and without a class."""

    first: int  # row of that image
    error: ContradictionError


def _settle(
    blocks: list[_Rows],
    columns: npt.NDArray[Any],
    classes: Sequence[str],
    contradictions: Rule,
    suffix: str,
) -> _Part | _Contradicted:
    """Return the labels of some rows; the blocks are used up."""
    first_rows = _concatenated([block.first for block in blocks], np.int64)
    split = _split_codes(blocks)
    counts = _concatenated([block.counts for block in blocks], np.int32)
    entries = _concatenated([block.entries for block in blocks], np.int32)
    runs = [Runs(block.ids, np.ones(len(block.first), dtype=np.int32)) for block in blocks]
    blocks.clear()
    image, ids = number_ids(runs, suffix)
    first = np.empty(len(ids), dtype=np.int64)
    first[image[::-1]] = first_rows[::-1]  # of several rows of an image the one written last stays: the first
    own = clash = None
    if split is not None:
        own, clash = _splits_of(image, split, first_rows, ids)
    column = np.asarray(columns)[entries >> 1]
    rows = np.repeat(image, counts)
    kept = (column >= 0) & (entries >= 0)
    if not kept.all():
        rows, column, entries = rows[kept], column[kept], entries[kept]
    try:
        labels, duplicates, clashes = Labels.merged(
            rows,
            column,
            np.where(entries & 1, np.int8(1), np.int8(-1)),
            classes=classes,
            images=ids,
            contradictions=contradictions,
        )
    except ContradictionError as error:
        place = int(pa.compute.index(ids, error.image).as_py())
        return _Contradicted(int(first[place]), error)
    lengths, letters = lengths_and_letters(labels.images)
    numbers = np.diff(labels.offsets).astype(np.int64)
    return _Part(first, own, clash, numbers, labels.entries, lengths, letters, duplicates, clashes)


def _concatenated(arrays: list[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=kind)


def _split_codes(blocks: Sequence[_Rows]) -> npt.NDArray[np.int32] | None:
    if all(block.split is None for block in blocks):
        return None
    return np.concatenate(
        [
            np.full(len(block.first), -1, dtype=np.int32) if block.split is None else block.split
            for block in blocks
        ]
    )


def _splits_of(
    image: npt.NDArray[np.int32], split: npt.NDArray[np.int32], first_rows: Ints, ids: pa.StringArray
) -> tuple[npt.NDArray[np.int32], SplitError | None]:
    """Return the split of each image, and what is wrong with the first row that says another one."""
    said = np.flatnonzero(split >= 0)
    own = np.full(len(ids), -1, dtype=np.int32)
    own[image[said]] = split[said]  # the last row of an image decides, …
    differ = said[own[image[said]] != split[said]]
    if not differ.size:  # … and all must agree
        return own, None
    at = differ[np.argmin(first_rows[differ])]
    number = int(image[at])
    return own, SplitError(int(first_rows[at]), ids[number].as_py(), int(split[at]), int(own[number]))


def _check_splits(parts: Sequence[_Part]) -> None:
    clashes = [part.clash for part in parts if part.clash is not None]
    if clashes:
        raise min(clashes, key=lambda error: error.row)


def _joined_error(parts: list[_Contradicted]) -> ContradictionError:
    """Return one error for all parts, of which the earliest image comes first."""
    parts = sorted(parts, key=lambda part: part.first)
    cells = [cell for part in parts for cell in part.error.cells]
    return ContradictionError(cells[:10], sum(part.error.count for part in parts))


# ---- all of them, in order ---------------------------------------------------------------------------------


def _in_order(parts: Sequence[_Part], classes: Sequence[str], splits: Sequence[str]) -> Labels:
    """Return the labels of all parts, by the first rows of the images, in files."""
    letters = sum(len(part.letters) for part in parts)
    if letters > LETTERS:
        raise InputError(
            f"the ids of all images have {letters:,} letters together, and one label file can have "
            f"{LETTERS:,}; divide the images among several"
        )
    sums = _Sums(classes)
    at = [(0, 0)] * len(parts)  # how many entries and letters of each part are done
    for bounds in _windows(parts):
        pieces = [
            _Window(part, start, end, *done)
            for part, (start, end), done in zip(parts, bounds, at, strict=True)
        ]
        at = [piece.after() for piece in pieces]
        order = np.argsort(_joined([piece.of("first") for piece in pieces]))
        for name, inside in (("counts", "entries"), ("lengths", "letters")):
            count = _joined([piece.of(name) for piece in pieces]).astype(np.int64)
            values = _joined([piece.inside(inside) for piece in pieces])
            starts = np.cumsum(count) - count
            sums.add(name, count[order], values[places(starts[order], count[order])])
        sums.splits.add(_joined([piece.splits() for piece in pieces])[order])
    return sums.labels(splits if any(part.split is not None for part in parts) else ())


class _Window(NamedTuple):
    """Images of a part that lie together, and where their entries and letters begin."""

    part: _Part
    start: int
    end: int
    entry: int
    letter: int

    def of(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = getattr(self.part, name)[self.start : self.end]
        return found

    def after(self) -> tuple[int, int]:
        """Return where those of the next images begin."""
        return self.entry + int(self.of("counts").sum()), self.letter + int(self.of("lengths").sum())

    def inside(self, name: str) -> npt.NDArray[Any]:
        entry, letter = self.after()
        start, end = (self.entry, entry) if name == "entries" else (self.letter, letter)
        found: npt.NDArray[Any] = getattr(self.part, name)[start:end]
        return found

    def splits(self) -> npt.NDArray[np.int32]:
        if self.part.split is None:
            return np.full(self.end - self.start, -1, dtype=np.int32)
        return self.part.split[self.start : self.end]


class _Sums:
    """Labels that are written into files image by image."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._ends = {"counts": _Spool(np.int64), "lengths": _Spool(np.int32)}
        self._values = {"counts": _Spool(entry_type(len(classes))), "lengths": _Spool(np.uint8)}
        self.splits = _Spool(np.int32)
        for spool in self._ends.values():
            spool.add(np.zeros(1, dtype=np.int64))

    def add(self, name: str, counts: Ints, values: npt.NDArray[Any]) -> None:
        """Add what some images have: their entries, or the letters of their ids."""
        self._ends[name].add(np.cumsum(counts) + self._values[name].length)
        self._values[name].add(values)

    def labels(self, splits: Sequence[str]) -> Labels:
        """Return all of them, mapped."""
        ends, letters = self._ends["lengths"].mapped(), self._values["lengths"].mapped()
        images = pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(letters))
        offsets, entries = self._ends["counts"].mapped(), self._values["counts"].mapped()
        return _labels(
            offsets, entries, images, self.splits.mapped() if splits else None, self._classes, splits
        )


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(arrays)


def _windows(parts: Sequence[_Part]) -> Iterator[list[tuple[int, int]]]:
    """Yield, for some rows after the others, which images of each part begin there; few enough at once."""
    # Where rows are in random order, most images begin early: some of the first rows tell how they lie.
    some = np.sort(_joined([part.first[::_SAMPLED] for part in parts]))
    last = max(int(part.first[-1]) for part in parts if len(part.first)) + 1
    at = [0] * len(parts)
    for edge in [*some[:: max(1, WINDOW // _SAMPLED)][1:].tolist(), last]:
        ends = [int(np.searchsorted(part.first, edge)) for part in parts]
        yield list(zip(at, ends, strict=True))
        at = ends


def _labels(
    offsets: npt.NDArray[Any],
    entries: npt.NDArray[Any],
    images: pa.StringArray,
    split: npt.NDArray[np.int32] | None,
    classes: Sequence[str],
    names: Sequence[str],
) -> Labels:
    splits = None
    if split is not None and any(names):
        codes = pa.array(split, mask=split < 0) if (split < 0).any() else pa.array(split)
        splits = pa.DictionaryArray.from_arrays(codes, pa.array(list(names), pa.string()))
    small = offsets.astype(np.int32) if offsets[-1] < 2**31 else offsets
    return Labels(small, entries, tuple(classes), images, splits)
