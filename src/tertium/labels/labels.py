"""Labels: which classes are known to be present or absent in which images, and which nobody looked at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError, did_you_mean, some
from tertium.files import replacing
from tertium.labels.ids import surely_distinct
from tertium.labels.split_names import find_split

Ints = npt.NDArray[np.integer[Any]]
_FORMAT = "tertium labels 1"
_DAMAGE = (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError, MemoryError)
_BLOCK = 1 << 20  # keys worked on at once


Rule = Literal["error", "absent", "present", "unknown"]
"""What becomes of a label that is said to be both present and absent: an error, or one of the three."""
RULES: tuple[Rule, ...] = get_args(Rule)


class ContradictionError(InputError):
    """The same class is said to be both present and absent in the same image."""

    def __init__(self, cells: Sequence[tuple[str, str]], count: int) -> None:
        """Name the first cells (image, label) of ``count`` in all."""
        self.cells, self.count = list(cells), count
        self.image, self.label = cells[0]
        text = f'image "{self.image}" is listed both with and without "{self.label}"'
        if count > 1:
            others = ", ".join(f'"{label}" in "{image}"' for image, label in cells[1:])
            left = count - len(cells)
            text += f", and so are {count - 1:,} others: {others}{f' and {left:,} more' if left else ''}"
        super().__init__(text)


@dataclass(frozen=True, eq=False, repr=False)
class Labels:
    """An immutable sparse ternary matrix [images, classes]: +1 present, −1 absent, 0 (not stored) unknown.

    Rows are stored one after the other (CSR). An entry is the class number counted from 1, negative where
    the class is absent: one int16 says both which class and what is known, so nine million images with
    seven known labels each fit in a third of a gigabyte, image ids included.

    >>> labels = Labels.from_dense([[1, -1, 0], [0, 0, 1]], classes=["cat", "dog", "fox"])
    >>> labels
    Labels(2 images, 3 classes, 2 present, 1 absent)
    >>> labels.dense([1])
    array([[0, 0, 1]], dtype=int8)
    """

    offsets: Ints  # [N + 1] where each row starts in entries
    entries: Ints  # [K] int16 or int32: ±(class + 1), ascending by class in a row
    classes: tuple[str, ...]
    images: pa.StringArray  # [N] ids, unique
    splits: pa.DictionaryArray | None = None  # [N] "train", "test", … where the file says so

    # ---- making them -------------------------------------------------------------------------------------

    @classmethod
    def from_entries(
        cls,
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        classes: Sequence[str],
        images: Iterable[str] | pa.Array,
        splits: pa.DictionaryArray | None = None,
    ) -> Labels:
        """Build from (row, column, ±1) triples in any order.

        A triple given twice counts once; a contradiction raises `ContradictionError`.
        """
        return cls.merged(rows, columns, values, classes=classes, images=images, splits=splits)[0]

    @classmethod
    def merged(
        cls,
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        classes: Sequence[str],
        images: Iterable[str] | pa.Array,
        splits: pa.DictionaryArray | None = None,
        contradictions: Rule = "error",
    ) -> tuple[Labels, int, int]:
        """Build from (row, column, ±1) triples in any order, by a rule for contradictions.

        Returns the labels, how many triples were duplicates, and how many cells were contradicted.

        >>> Labels.merged([0, 0, 0], [0, 0, 0], [1, 1, -1], classes=["cat"], images=["a"],
        ...               contradictions="absent")
        (Labels(1 images, 1 classes, 0 present, 1 absent), 1, 1)
        """
        check_rule(contradictions)
        ids, names = _texts(images), _check_names(classes)
        row, column, value = (np.asarray(each) for each in (rows, columns, values))
        if not len(row) == len(column) == len(value):
            raise InputError(
                f"{len(row):,} rows, {len(column):,} columns and {len(value):,} values were given; "
                "a label has one of each"
            )
        if splits is not None and len(splits) != len(ids):
            raise InputError(f"{len(splits):,} splits were given for {len(ids):,} images")
        _check_signs(value)
        # One sortable integer for a triple: no argsort, and equal triples end side by side.
        keys = np.array(_numbers(row, len(ids), "row", "images"), dtype=np.int64)
        keys *= len(names)
        keys += _numbers(column, len(names), "column", "classes").astype(np.int32, copy=False)
        keys <<= 1
        keys |= value > 0
        keys.sort()
        keys, duplicates = _once(keys)
        clash = _clashes(keys)  # the absent one; the present one is next
        if clash.size and contradictions == "error":
            cells = [divmod(int(keys[place]) >> 1, len(names)) for place in clash[:10]]
            raise ContradictionError([(ids[row].as_py(), names[column]) for row, column in cells], clash.size)
        if clash.size:
            dropped = {"absent": clash + 1, "present": clash, "unknown": np.concatenate([clash, clash + 1])}
            keys = np.delete(keys, dropped[contradictions])
        offsets, entries = _rows_of_keys(keys, len(ids), len(names))
        return cls(offsets, entries, names, _check_ids(ids), splits), duplicates, int(clash.size)

    @classmethod
    def from_dense(
        cls,
        values: npt.ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        images: Iterable[str] | None = None,
    ) -> Labels:
        """Build from an array [images, classes] of +1 present, −1 absent, 0 unknown."""
        matrix = np.asarray(values)
        if matrix.ndim != 2:
            raise InputError(f"labels must be a matrix [images, classes], not of shape {matrix.shape}")
        if matrix.dtype == bool:  # False may mean absent or unknown
            raise InputError(
                "labels are +1 (present), −1 (absent) or 0 (unknown), not True and False; where False means "
                "absent, give np.where(values, 1, -1)"
            )
        _check_values(matrix)
        rows, columns = np.nonzero(matrix)
        return cls.from_entries(
            rows,
            columns,
            matrix[rows, columns],
            classes=_class_names(classes, matrix.shape[1]),
            images=_image_names(images, matrix.shape[0]),
        )

    @classmethod
    def from_scipy(
        cls, matrix: Any, *, classes: Sequence[str] | None = None, images: Iterable[str] | None = None
    ) -> Labels:
        """Build from a SciPy sparse matrix of stored +1 and −1; what is not stored is unknown."""
        triples = matrix.tocoo()
        triples.sum_duplicates()
        _check_values(triples.data)
        stored = triples.data != 0
        return cls.from_entries(
            triples.row[stored],
            triples.col[stored],
            triples.data[stored],
            classes=_class_names(classes, matrix.shape[1]),
            images=_image_names(images, matrix.shape[0]),
        )

    @classmethod
    def from_pandas(cls, frame: Any, *, present: Any, absent: Any, unknown: Any) -> Labels:
        """Build from a DataFrame whose index names the images and whose columns name the classes.

        ``present``, ``absent`` and ``unknown`` say which value means what, and another value is an error.
        None, NaN and pandas.NA all stand for every missing value, as in ``from_pandas(frame, present=1,
        absent=0, unknown=None)``.
        """
        cells = frame.to_numpy(dtype=object, na_value=np.nan)
        images, classes = list(map(str, frame.index)), list(map(str, frame.columns))
        return cls._of_values(cells, images, classes, present, absent, unknown)

    @classmethod
    def from_frame(
        cls, frame: Any, *, present: Any, absent: Any, unknown: Any, image: str = "image", ignore: Any = ()
    ) -> Labels:
        """Build from a DataFrame of pandas or polars, or an Arrow table, with a column that names the images.

        All other columns are classes, but for one called split and those of ``ignore``. ``present``,
        ``absent`` and ``unknown`` are the value that means so, or a tuple of none or several; None and NaN
        stand for every missing value. A value that is not named is an error.

        >>> table = pa.table({"image": ["a.jpg", "b.jpg"], "cat": [1, None], "dog": [0, 1]})
        >>> Labels.from_frame(table, present=1, absent=0, unknown=None).dense()
        array([[ 1, -1],
               [ 0,  1]], dtype=int8)
        """
        from tertium.labels.formats.wide import Layout, UnexplainedError, from_frame, texts_of

        columns = [ignore] if isinstance(ignore, str) else list(ignore)
        layout = Layout(texts_of(present), texts_of(absent), texts_of(unknown), image=image)
        try:
            return from_frame(frame, layout, ignore=columns).labels
        except UnexplainedError as error:
            raise InputError(
                f"{error.what}; name them as present, absent or unknown, or ignore columns without classes"
            ) from None

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, present: Any, absent: Any, unknown: Any, classes: Sequence[str] | None = None
    ) -> Labels:
        """Build from a dataset of torch, or a list, whose items are (image, labels), a value for each class.

        What the values mean is said as in `from_pandas`. Images are called by their numbers, so the dataset
        itself can be given as the images: ``train(labels, dataset)``. Every item is asked for once.

        >>> Labels.from_dataset([("…", [1, 0]), ("…", [0, 1])], present=1, absent=0, unknown=None).known
        4
        """
        rows = [_target(dataset[number], number) for number in range(len(dataset))]
        if not rows:
            raise InputError("the dataset is empty")
        for number, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise InputError(
                    f"item {number:,} of the dataset has {len(row)} labels, and item 0 {len(rows[0])}"
                )
        names = _class_names(classes, len(rows[0]))
        return cls._of_values(np.stack(rows), _numbered(len(rows)), names, present, absent, unknown)

    @classmethod
    def _of_values(
        cls,
        cells: npt.NDArray[Any],
        images: Sequence[str],
        classes: Sequence[str],
        present: Any,
        absent: Any,
        unknown: Any,
    ) -> Labels:
        """Build from a table of values, each of which must be named once."""
        values, told = np.zeros(cells.shape, dtype=np.int8), np.zeros(cells.shape, dtype=np.int8)
        for value, sign in ((present, 1), (absent, -1), (unknown, 0)):
            here = _missing(cells) if is_missing(value) else cells == value
            values[here] = sign
            told += here
        for wrong, reason in ((told == 0, "is none of the three values"), (told > 1, "is two of the values")):
            if wrong.any():
                row, column = np.argwhere(wrong)[0]
                where = f'"{classes[column]}" in "{images[row]}"'
                raise InputError(f"{where}: {cells[row, column]!r} {reason} that were named")
        return cls.from_dense(values, classes=classes, images=images)

    @classmethod
    def unknown(cls, images: Iterable[str], classes: Sequence[str]) -> Labels:
        """Build labels with nothing known."""
        return cls.from_entries([], [], [], classes=classes, images=images)

    # ---- looking at them ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int]:
        """Images × classes."""
        return len(self.images), len(self.classes)

    @property
    def known(self) -> int:
        """How many entries are known, present or absent."""
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes held, image ids included."""
        return int(self.offsets.nbytes + self.entries.nbytes + self.images.nbytes)

    @property
    def is_full(self) -> bool:
        """Whether nothing is unknown."""
        return self.known == len(self) * len(self.classes)

    def __repr__(self) -> str:
        present = int((self.entries > 0).sum())
        return (
            f"Labels({len(self):,} images, {len(self.classes):,} classes, "
            f"{present:,} present, {self.known - present:,} absent)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Labels):
            return NotImplemented
        return (
            self.classes == other.classes
            and self.images.equals(other.images)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.entries, other.entries)
            and self._same_splits(other)
        )

    def _same_splits(self, other: Labels) -> bool:
        """Whether every image of two labels with the same images is in the same split."""
        if self.splits is None or other.splits is None:
            return self.split_names() == other.split_names()
        return bool(self.splits.cast(pa.string()).equals(other.splits.cast(pa.string())))

    __hash__ = None  # type: ignore[assignment]  # equality reads every entry

    def coo(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int8]]:
        """Return the known entries as (rows, columns, ±1), row by row."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return rows, np.abs(self.entries).astype(np.int64) - 1, np.sign(self.entries).astype(np.int8)

    def dense(self, rows: npt.ArrayLike | None = None) -> npt.NDArray[np.int8]:
        """Return the given rows (all by default) as a dense int8 array [rows, classes] of +1, −1, 0.

        Rows are chosen by their numbers or by a Boolean mask.
        """
        if rows is None:
            entries, counts = self.entries, np.diff(self.offsets)
        else:
            chosen = np.asarray(rows)
            if chosen.dtype == bool:
                chosen = np.arange(len(self))[chosen]
            entries, counts = self._gather(chosen.astype(np.int64, copy=False))
        matrix = np.zeros((len(counts), len(self.classes)), dtype=np.int8)
        flat = np.repeat(np.arange(len(counts)) * len(self.classes) - 1, counts)
        flat += np.abs(entries)
        matrix.reshape(-1)[flat] = np.sign(entries)
        return matrix

    def to_scipy(self) -> Any:
        """Return a SciPy CSR array of stored +1 and −1 (needs SciPy)."""
        from scipy.sparse import csr_array

        parts = (np.sign(self.entries).astype(np.int8), np.abs(self.entries) - 1, self.offsets)
        return csr_array(parts, shape=self.shape)

    @cached_property
    def class_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many images each class is known to be present in, and absent from."""
        size = len(self.classes)
        both = np.zeros(2 * size + 1, dtype=np.int64)
        for start in range(0, len(self.entries), _BLOCK):  # all at once would need eight times their memory
            block = self.entries[start : start + _BLOCK].astype(np.int64)
            both += np.bincount(block + size, minlength=2 * size + 1)
        return both[size + 1 :], both[:size][::-1]

    @cached_property
    def image_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many classes are known to be present in, and absent from, each image."""
        present = np.empty(len(self), dtype=np.int64)
        for start in range(0, len(self), _BLOCK):
            offsets = self.offsets[start : start + _BLOCK + 1]
            own = self.entries[offsets[0] : offsets[-1]] > 0
            before = np.concatenate([[0], np.cumsum(own, dtype=np.int64)])
            ends = before[offsets - offsets[0]]
            present[start : start + _BLOCK] = ends[1:] - ends[:-1]
        return present, np.diff(self.offsets) - present

    def column(self, name: str) -> int:
        """Return the number of a class."""
        number = self._columns.get(name)
        if number is None:
            raise InputError(f'there is no class "{name}"; {did_you_mean(name, self.classes)}')
        return number

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    # ---- choosing from them ------------------------------------------------------------------------------

    def __getitem__(self, rows: Any) -> Labels:
        """Return the images of a slice, an array of row numbers or a Boolean mask."""
        chosen = (
            np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.arange(len(self))[rows]
        )
        if chosen.ndim != 1:
            raise TypeError("choose images with a slice, an array of row numbers or a Boolean mask")
        entries, counts = self._gather(chosen)
        take = pa.array(chosen)
        splits = None if self.splits is None else self.splits.take(take)
        return Labels(_offsets(counts), entries, self.classes, self.images.take(take), splits)

    def rows_of(self, images: Sequence[str] | pa.Array) -> npt.NDArray[np.int64]:
        """Return the row of each image id."""
        wanted = images if isinstance(images, pa.Array) else pa.array(images, pa.string())
        rows = pc.index_in(wanted, value_set=self.images)
        if rows.null_count:
            missing = wanted.filter(pc.is_null(rows)).to_pylist()
            raise InputError(f"no labels for {len(missing):,} images: {some(missing)}")
        return np.asarray(rows, dtype=np.int64)

    def part(self, split: str) -> Labels:
        """Return the images of a named split."""
        return self[self.rows_in(split)]

    def without(self, images: Sequence[str]) -> Labels:
        """Return the labels of all other images.

        >>> Labels.unknown(["a", "b", "c"], ["cat"]).without(["b"]).images.to_pylist()
        ['a', 'c']
        """
        if not images:
            return self
        gone = pc.is_in(self.images, value_set=pa.array(images, pa.string()))
        return self[np.flatnonzero(~np.asarray(gone))]

    def rows_in(self, split: str) -> npt.NDArray[np.int64]:
        """Return the rows of a named split; other words for train, val and test will do."""
        names = self.split_names()
        found = find_split(split, names)
        if self.splits is None or found is None:
            hint = did_you_mean(split, names) if names else "the label file has no split column"
            raise InputError(f'there is no split "{split}"; {hint}')
        code = self.splits.dictionary.index(found).as_py()
        return np.flatnonzero(np.asarray(self.splits.indices.fill_null(-1)) == code)

    def has_split(self, split: str) -> bool:
        """Whether `rows_in` finds a split of this name."""
        return find_split(split, self.split_names()) is not None

    def split_names(self) -> list[str]:
        """Return the names of the splits, empty if the file has none."""
        return [] if self.splits is None else sorted(pc.unique(self.splits.drop_null()).to_pylist())

    def with_classes(self, classes: Sequence[str]) -> Labels:
        """Return these classes in this order; a class not seen before is unknown everywhere."""
        names = _check_names(classes)
        if names == self.classes:
            return self
        place = {name: number for number, name in enumerate(names)}
        moved = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)
        rows, columns, values = self.coo()
        kept = moved[columns] >= 0
        return Labels.from_entries(
            rows[kept],
            moved[columns[kept]],
            values[kept],
            classes=names,
            images=self.images,
            splits=self.splits,
        )

    def with_entries(self, kept: npt.NDArray[np.bool_]) -> Labels:
        """Return only the known entries where ``kept`` [K] is true; the others become unknown."""
        before = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])
        counts = before[self.offsets[1:]] - before[self.offsets[:-1]]
        return Labels(_offsets(counts), self.entries[kept], self.classes, self.images, self.splits)

    def with_rows(self, rows: npt.NDArray[np.int64], other: Labels) -> Labels:
        """Return these labels with some rows' entries taken from ``other``, which has the same classes."""
        starts, counts = self.offsets[:-1].astype(np.int64), np.diff(self.offsets).astype(np.int64)
        starts[rows], counts[rows] = other.offsets[:-1] + self.known, np.diff(other.offsets)
        entries = np.concatenate([self.entries, other.entries])
        return Labels(
            _offsets(counts), entries[places(starts, counts)], self.classes, self.images, self.splits
        )

    def unlisted_absent(self) -> Labels:
        """Return full labels in which everything that is not known to be present is absent."""
        if self.is_full:
            return self
        matrix = self.dense()
        matrix[matrix == 0] = -1
        entries: Ints = matrix * np.arange(1, len(self.classes) + 1).astype(entry_type(len(self.classes)))
        counts = np.full(len(self), len(self.classes))
        return Labels(_offsets(counts), entries.reshape(-1), self.classes, self.images, self.splits)

    def _gather(self, rows: npt.NDArray[np.int64]) -> tuple[Any, npt.NDArray[np.int64]]:
        starts = self.offsets[rows].astype(np.int64)
        counts = self.offsets[rows + 1] - starts
        if len(rows) <= _BLOCK:
            return self.entries[places(starts, counts)], counts
        entries: Ints = np.empty(int(counts.sum()), dtype=self.entries.dtype)
        end = 0
        for start in range(0, len(rows), _BLOCK):  # where each entry is takes eight bytes
            own = places(starts[start : start + _BLOCK], counts[start : start + _BLOCK])
            entries[end : end + len(own)] = self.entries[own]
            end += len(own)
        return entries, counts

    # ---- keeping them ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one Arrow file, which `load` maps into memory without reading it."""
        table = self.to_arrow()
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as sink:
            sink.write_table(table, max_chunksize=max(1, len(self)))

    def fingerprint(self) -> str:
        """Return a checksum of the images, the classes and what is known."""
        found = hashlib.sha256(json.dumps(self.classes).encode())
        found.update(np.ascontiguousarray(self.offsets, dtype=np.int64).data)
        found.update(np.ascontiguousarray(self.entries, dtype=np.int32).data)
        found.update("\0".join(self.images.to_pylist()).encode())
        return found.hexdigest()

    def to_arrow(self) -> pa.Table:
        """Return a table image, entries[, split], the class names in its metadata."""
        is_long = self.offsets.dtype == np.int64
        kind = pa.LargeListArray if is_long else pa.ListArray
        columns = {"image": self.images, "entries": kind.from_arrays(self.offsets, self.entries)}
        if self.splits is not None:
            columns["split"] = self.splits
        metadata = {"format": _FORMAT, "classes": json.dumps(self.classes, ensure_ascii=False)}
        return pa.table(columns).replace_schema_metadata(metadata)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Labels:
        """Build from the table that `to_arrow` gives."""
        metadata = table.schema.metadata or {}
        if metadata.get(b"format", b"").decode() != _FORMAT:
            raise InputError("not a labels file written by Tertium")
        table = table.combine_chunks() if table["image"].num_chunks > 1 else table
        if not len(table):
            table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], schema=table.schema)])
        lists, ids = table["entries"].chunk(0), table["image"].chunk(0)
        splits = table["split"].chunk(0) if "split" in table.column_names else None
        for column in (ids, splits):  # an id or a split that points outside the file would be read later
            if column is not None:
                column.validate(full=True)
        classes = _check_names(json.loads(metadata[b"classes"]))
        entries, offsets = np.asarray(lists.values), np.asarray(lists.offsets)
        top = max(int(entries.max(initial=0)), -int(entries.min(initial=0)))
        is_ordered = offsets[0] == 0 and bool((offsets[1:] >= offsets[:-1]).all())
        is_filled = np.count_nonzero(entries) == len(entries)
        if top > len(classes) or not is_filled or not is_ordered or offsets[-1] > len(entries):
            raise InputError("the labels are damaged: an entry lies outside the classes")
        return cls(offsets, entries, classes, ids, splits)

    @classmethod
    def load(cls, path: str | Path) -> Labels:
        """Map a file that `save` wrote into memory."""
        try:
            return cls.from_arrow(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except _DAMAGE as error:
            raise InputError(f"{path}: not an Arrow file of labels, or a damaged one ({error})") from None


def _once(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return sorted keys without repetitions, and how many there were."""
    fresh = np.empty(len(keys), dtype=bool)
    fresh[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
    repeated = len(keys) - int(fresh.sum())
    return (keys[fresh] if repeated else keys), repeated


def _clashes(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where a cell of sorted keys without repetitions is absent and, in the next key, present."""
    found = []
    for start in range(0, len(keys), _BLOCK):  # in blocks: whole arrays would need three times the memory
        cells = keys[start : start + _BLOCK + 1] >> 1
        found.append(np.flatnonzero(cells[1:] == cells[:-1]) + start)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _rows_of_keys(keys: npt.NDArray[np.int64], rows: int, classes: int) -> tuple[Ints, Ints]:
    """Return the offsets and entries of sorted keys (row × classes + class) × 2 + present."""
    counts = np.zeros(rows, dtype=np.int64)
    entries: Ints = np.empty(len(keys), dtype=entry_type(classes))
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK]
        row, column = np.divmod(block >> 1, classes)
        entries[start : start + _BLOCK] = np.where(block & 1, column + 1, -column - 1)
        first = int(row[0])
        own = np.bincount(row - first)
        counts[first : first + len(own)] += own
    return _offsets(counts), entries


def places(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers start, start + 1, … of each run, one run after the other."""
    ends = np.cumsum(counts)
    found = np.repeat(starts - (ends - counts), counts)
    found += np.arange(len(found))
    return found


def entry_type(classes: int) -> type[np.int16] | type[np.int32]:
    """Return what holds the number of a class, counted from 1, with a sign."""
    return np.int16 if classes < 2**15 else np.int32


def _offsets(counts: npt.NDArray[Any]) -> Ints:
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return ends.astype(np.int32) if ends[-1] < 2**31 else ends


def _target(item: Any, number: int) -> npt.NDArray[Any]:
    """Return the labels of an item (image, labels) of a dataset, as plain values."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(f"item {number:,} of the dataset is not a pair of an image and its labels")
    target = item[1].detach().cpu().numpy() if hasattr(item[1], "detach") else item[1]
    try:
        found = np.asarray(target).astype(object)
    except ValueError:  # lists of several lengths
        found = np.empty((0, 0))
    if found.ndim != 1 or not found.size:
        raise InputError(f"the labels of item {number:,} of the dataset are not a value for each class")
    return found


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or what pandas has for it.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0)
    (True, True, False)
    """
    if value is None:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124  # only NaN differs
    except TypeError:  # pandas.NA does not even say whether it differs
        return True


def _missing(cells: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (cells != cells) | (cells == None)  # noqa: E711, PLR0124
    return found


def _numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _class_names(classes: Sequence[str] | None, width: int) -> Sequence[str]:
    """Return names for the columns of a matrix: those that are given, or their numbers."""
    return _numbered(width) if classes is None else _check_width(classes, width)


def _image_names(images: Iterable[str] | None, rows: int) -> Iterable[str] | pa.Array:
    """Return ids for the rows of a matrix: those that are given, or their numbers."""
    if images is None:
        return _numbered(rows)
    ids = _texts(images)
    if len(ids) != rows:
        raise InputError(f"{len(ids):,} image ids were given for {rows:,} rows")
    return ids


def _texts(images: Iterable[str] | pa.Array) -> pa.StringArray:
    """Return image ids as text; whole numbers become text, as in the readers of tables."""
    if isinstance(images, str):
        raise InputError(f'images are a list of ids, not the text "{images}"')
    if isinstance(images, pa.ChunkedArray):
        images = images.combine_chunks()
    if not isinstance(images, pa.Array):
        given = images if isinstance(images, list | tuple | np.ndarray) else list(images)
        try:
            images = pa.array(given, pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # looked at one by one only now: there may be millions
            images = pa.array([_text(each, "an image id") for each in given], pa.string())
    if images.null_count:
        raise InputError(f"row {pc.index(images.is_null(), True).as_py()} has no image id")
    return images if pa.types.is_string(images.type) else images.cast(pa.string())


def _text(name: Any, what: str) -> str:
    if isinstance(name, bool | np.bool_) or not isinstance(name, str | int | np.integer):
        raise InputError(f"{what} is text, not {name!r}")
    return str(name)


def listed(classes: Sequence[str]) -> list[str]:
    """Return class names as a list of texts; one text is refused, for its letters are no classes.

    >>> listed(("cat", 7))
    ['cat', '7']
    """
    if isinstance(classes, str | Path):
        raise InputError(
            f'classes are a list of names, not the text "{classes}"; read_classes reads a file of names'
        )
    return [_text(name, "the name of a class") for name in classes]


def check_rule(word: str) -> None:
    """Raise `InputError` if there is no such rule for contradictions."""
    if word not in RULES:
        raise InputError(f'contradictions cannot be "{word}"; {did_you_mean(word, RULES)}')


def _numbers(given: npt.NDArray[Any], count: int, what: str, of: str) -> Ints:
    """Return the numbers of rows or columns; one that is not among ``count`` is an error."""
    if given.dtype.kind not in "iu":
        whole = given.astype(np.int64)
        if (whole != given).any():
            raise InputError(f"a {what} is a whole number, not {given[whole != given][0]}")
        given = whole
    for number in (given.min(initial=0), given.max(initial=0)) if given.size else ():
        if not 0 <= number < count:
            raise InputError(f"there is no {what} {number:,} of {count:,} {of}, counted from 0")
    return given


def _check_signs(values: npt.NDArray[Any]) -> None:
    known = (values == 1) | (values == -1)
    if not known.all():
        raise InputError(f"a known label is +1 (present) or −1 (absent), not {values[~known][0]}")


def _check_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(listed(classes))
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"a class is named twice: {some(twice)}")
    if not names:
        raise InputError("there are no classes")
    return names


def _check_width(classes: Sequence[str], width: int) -> Sequence[str]:
    if len(classes) != width:
        raise InputError(f"{len(classes)} class names were given for {width} columns")
    return classes


def _check_ids(images: pa.Array) -> pa.Array:
    if pa.types.is_string(images.type) and surely_distinct(images):
        return images
    if len(pc.unique(images)) < len(images):
        counts = pc.value_counts(images)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
        raise InputError(f"an image id stands for two rows: {some(twice)}")
    return images


def _check_values(values: npt.NDArray[Any]) -> None:
    strange = values[(values != 0) & (values != 1) & (values != -1)]
    if strange.size:
        raise InputError(f"a label is +1 (present), −1 (absent) or 0 (unknown), not {strange.flat[0]}")
