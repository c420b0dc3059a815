"""Delimited text of any size, read block by block into numbers, without holding the text in memory."""

from __future__ import annotations

import binascii
import csv
import gzip
import io
import os
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tertium.errors import InputError
from tertium.progress import Progress

Columns = Mapping[str, pa.StringArray]
Stream = io.BufferedReader | gzip.GzipFile
T = TypeVar("T")
BLOCK = 1 << 23  # bytes of text that a thread turns into columns at once; larger ones cost fresh memory
_QUOTED = 1 << 23  # the same where values are quoted; a row must fit in
_LONGEST_HEADER, _LONGEST_ROW = 1 << 22, 1 << 23  # bytes; a gzipped file of some kB may claim much more
_WORKERS = min(4, os.cpu_count() or 1)
_GZIP = b"\x1f\x8b"
_HEX = 16  # digits of an id that is a 64-bit number, as in Open Images
_PARTS = 256  # of the ids, so that a part's hash table stays in the processor's cache
_MIX = np.uint64(0x9E3779B97F4A7C15)


# ---- text to columns ---------------------------------------------------------------------------------------


def open_bytes(path: Path) -> Stream:
    """Open a file for reading, unpacking it if it is gzipped."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with open(path, "rb") as start:
        packed = start.read(2) == _GZIP or path.suffix == ".gz"
    return gzip.open(path) if packed else open(path, "rb")


@dataclass(frozen=True)
class TextTable:
    """A CSV or TSV file (also gzipped) with a header line; its rows are counted from 0 below it."""

    path: Path
    columns: tuple[str, ...]

    @classmethod
    def open(cls, path: str | Path) -> TextTable:
        """Read the header."""
        path = Path(path)
        with reading(path), open_bytes(path) as stream:
            line = _header(path, stream)
        if not line:
            raise InputError(f"{path}: the file is empty")
        try:
            columns = tuple(next(csv.reader([line.decode("utf-8-sig")], delimiter=delimiter(path))))
        except (UnicodeDecodeError, csv.Error):
            raise InputError(f"{path}: line 1 is not a header of column names in UTF-8") from None
        if len(columns) == 1:
            _check_delimiter(path, columns[0])
        if len(set(columns)) < len(columns):
            twice = next(name for name, times in Counter(columns).items() if times > 1)
            raise InputError(f'{path}: the column "{twice}" is named twice')
        return cls(path, columns)

    def blocks(
        self, wanted: Sequence[str], work: Callable[[Columns], T], progress: Progress | None = None
    ) -> Iterator[T]:
        """Yield ``work(columns)`` for block after block of rows; the work is done in threads."""
        watch = progress or Progress()
        watch.start(f"Reading {self.path.name}", max(1, self.path.stat().st_size >> 20), "MB")
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(_WORKERS) as pool, reading(self.path), open_bytes(self.path) as stream:
            done = 0
            for block in self._texts(stream, wanted):
                waiting.append(pool.submit(_done, work, block))
                if len(waiting) > _WORKERS:
                    yield waiting.popleft().result()
                watch.advance((place := _place(stream) >> 20) - done)
                done = place
            while waiting:
                yield waiting.popleft().result()

    def start(self) -> Columns:
        """Return the first rows, of all columns."""
        return next(self.blocks(self.columns, lambda columns: columns), {})

    def line(self, row: int) -> int:
        """Return the line that holds a row; the file is read again, because there is an error to explain."""
        with open_bytes(self.path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            lines = csv.reader(text, delimiter=delimiter(self.path))
            filled = (lines.line_num for line in lines if line)
            try:
                return next(number for place, number in enumerate(filled) if place == row + 1)
            except (StopIteration, csv.Error):  # quotes that the two readers take differently
                return row + 2

    def _texts(self, stream: Stream, wanted: Sequence[str]) -> Iterator[Callable[[], Columns]]:
        """Yield what makes columns of a block of lines; text with quotes is left to one careful reader."""
        _header(self.path, stream)
        rest = b""
        while piece := stream.read(BLOCK):
            piece = rest + piece
            if b'"' in piece:  # a quoted value may hold a line end, so lines cannot be told by their ends
                source = pa.PythonFile(_Joined(piece, stream), mode="r")
                yield from self._quoted(source, wanted)
                return
            end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            if not end and len(piece) > _LONGEST_ROW:
                raise InputError(f"{self.path}: a row is longer than {_LONGEST_ROW >> 20} MB")
            if end:
                yield partial(self._parse, piece[:end], wanted)
            rest = piece[end:]
        if rest:
            yield partial(self._parse, rest, wanted)

    def _parse(self, text: bytes, wanted: Sequence[str]) -> Columns:
        if not text.strip(b"\r\n"):
            return {name: pa.array([], pa.string()) for name in wanted}
        options = self._options(wanted, block_size=len(text) + 1)
        try:
            return _whole(pa.csv.read_csv(pa.BufferReader(text), **options), wanted)
        except pa.ArrowInvalid as error:
            raise self._explained(error) from None

    def _quoted(self, source: Any, wanted: Sequence[str]) -> Iterator[Callable[[], Columns]]:
        options = self._options(wanted, block_size=_QUOTED)
        try:
            with pa.csv.open_csv(source, **options) as batches:
                for batch in batches:
                    yield partial(_whole, pa.Table.from_batches([batch]), wanted)
        except pa.ArrowInvalid as error:
            raise self._explained(error) from None

    def _options(self, wanted: Sequence[str], block_size: int) -> dict[str, Any]:
        return {
            "read_options": pa.csv.ReadOptions(
                column_names=self.columns, use_threads=False, block_size=block_size
            ),
            "parse_options": pa.csv.ParseOptions(delimiter=delimiter(self.path), newlines_in_values=True),
            "convert_options": pa.csv.ConvertOptions(  # names stay text, "nan" and "null" too
                include_columns=list(wanted),
                column_types={name: pa.string() for name in wanted},
                strings_can_be_null=False,
            ),
        }

    def _explained(self, error: Exception) -> InputError:
        """Say which line a reader stumbled over; read again only because there is an error to explain."""
        with open_bytes(self.path) as stream:
            for number, line in enumerate(text_lines(self.path, stream), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as fault:
                    byte = f"0x{line[fault.start]:02x}"
                    return InputError(
                        f"{self.path}: line {number} is not UTF-8 (byte {byte}); save the file as UTF-8"
                    )
        with open_bytes(self.path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            lines = csv.reader(text, delimiter=delimiter(self.path))
            try:
                for cells in lines:
                    if cells and len(cells) != len(self.columns):
                        expected = f"Expected {len(self.columns)} columns, got {len(cells)}"
                        return InputError(f"{self.path}: line {lines.line_num}: {expected}")
            except csv.Error as fault:
                return InputError(f"{self.path}: line {lines.line_num}: {fault}")
        return InputError(f"{self.path}: {error}")


class reading:
    """Turn what a damaged or unreadable file raises into an `InputError` that names it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError):
            raise InputError(f"{self._path}: the file ends too early; it is truncated") from None
        if isinstance(error, gzip.BadGzipFile | zlib.error):
            raise InputError(f"{self._path}: not a gzip file, or a damaged one ({error})") from None
        if isinstance(error, PermissionError):
            raise InputError(f"{self._path}: may not be read") from None


class _Joined(io.RawIOBase):
    """Bytes in hand, then the stream that they came from."""

    def __init__(self, first: bytes, stream: Stream) -> None:
        self._first: bytes | None = first
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            size = len(self._first) if size < 0 else size
            found, self._first = self._first[:size], self._first[size:]
            return found
        return self._stream.read(size)


def _done(work: Callable[[Columns], T], block: Callable[[], Columns]) -> T:
    return work(block())


def _header(path: Path, stream: Stream) -> bytes:
    """Read the first line that is not empty, and leave the stream behind it."""
    line = b""
    while ahead := stream.peek(1):
        if not line and (blank := len(ahead) - len(ahead.lstrip(b"\r\n"))):
            stream.read(blank)
            continue
        ends = [place for place in (ahead.find(b"\r"), ahead.find(b"\n")) if place >= 0]
        line += stream.read(min(ends, default=len(ahead)))
        if len(line) > _LONGEST_HEADER:
            raise InputError(f"{path}: line 1 is longer than {_LONGEST_HEADER >> 20} MB, so it is no header")
        if ends:
            break
    return line


def text_lines(path: Path, stream: Stream) -> Iterator[bytes]:
    """Yield the lines of a file; an absurdly long one is an `InputError`, however small it was packed."""
    number = 0
    while line := stream.readline(_LONGEST_ROW + 1):
        number += 1
        if len(line) > _LONGEST_ROW:
            raise InputError(f"{path}: line {number} is longer than {_LONGEST_ROW >> 20} MB")
        yield line


def delimiter(path: Path) -> str:
    """Return what separates the columns of a file, by its name."""
    return "\t" if ".tsv" in path.suffixes else ","


def _check_delimiter(path: Path, header: str) -> None:
    """Refuse a header that another delimiter divides."""
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
        if mark in header:
            wanted = "tabs" if delimiter(path) == "\t" else "commas"
            raise InputError(f"{path}: its columns are separated by {name}; save it with {wanted}")


def _place(stream: Stream) -> int:
    raw = getattr(stream, "fileobj", None)  # of a gzipped file, what was read from the disk
    return int((raw or stream).tell())


def _whole(table: pa.Table, wanted: Sequence[str]) -> Columns:
    return {name: table[name].combine_chunks() for name in wanted}


# ---- columns to numbers ------------------------------------------------------------------------------------


class Words(NamedTuple):
    """A column of a block that repeats few words: the number of each row's word, and the words."""

    codes: npt.NDArray[np.int32]
    names: list[str]


def words(column: pa.StringArray) -> Words:
    """Return a column as numbers; space around a word does not count.

    >>> words(pa.array(["cat", "dog", " cat"])).names
    ['cat', 'dog', 'cat']
    """
    coded = column.dictionary_encode()
    return Words(np.asarray(coded.indices), [name.strip() for name in coded.dictionary.to_pylist()])


class Vocabulary:
    """Words in order of first appearance, over all blocks."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def take(self, found: Words) -> npt.NDArray[np.int32]:
        """Return the number of each row's word, the same in every block."""
        known = self.numbers
        place = [known.setdefault(name, len(known)) for name in found.names]
        return np.array(place, dtype=np.int32)[found.codes]


class Runs(NamedTuple):
    """The ids of a block: neighbouring rows with the same id are one run."""

    ids: npt.NDArray[np.uint64] | pa.StringArray  # of the runs; numbers where all are 16 hex digits
    lengths: npt.NDArray[np.int32]


def runs(column: pa.StringArray) -> Runs:
    """Return a column of ids, of which neighbours are often the same."""
    if not len(column):
        return Runs(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32))
    change = np.asarray(pc.not_equal(column[1:], column[:-1]).cast(pa.uint8())).view(bool)
    starts = np.concatenate([[0], np.flatnonzero(change) + 1])
    ids = column if len(starts) == len(column) else column.take(pa.array(starts))
    numbers = _as_numbers(ids)
    lengths = np.diff(np.append(starts, len(column))).astype(np.int32)
    return Runs(pc.utf8_trim_whitespace(ids) if numbers is None else numbers, lengths)


def blank_id(block: Runs) -> int | None:
    """Return the first row of a block whose id is empty."""
    if isinstance(block.ids, np.ndarray):
        return None
    first = int(pc.index(block.ids, "").as_py())
    return None if first < 0 else int(block.lengths[:first].sum())


def _as_numbers(ids: pa.StringArray) -> npt.NDArray[np.uint64] | None:
    """Return ids of 16 lower-case hexadecimal digits as the numbers they are, a fifth of the memory."""
    offsets = np.frombuffer(ids.buffers()[1], dtype=np.int32)[ids.offset : ids.offset + len(ids) + 1]
    if not (np.diff(offsets) == _HEX).all():
        return None
    text = np.frombuffer(ids.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
    if ((text >= ord("A")) & (text <= ord("F"))).any():  # their case would be lost
        return None
    try:
        raw = binascii.unhexlify(text.data)
    except (binascii.Error, ValueError):
        return None
    return np.frombuffer(raw, dtype=">u8").astype(np.uint64)


def as_text(numbers: npt.NDArray[np.uint64], suffix: str = "") -> pa.StringArray:
    """Return ids that are kept as numbers."""
    letters = np.empty((len(numbers), _HEX + len(suffix.encode())), dtype=np.uint8)
    digits = binascii.hexlify(numbers.astype(">u8").tobytes())
    letters[:, :_HEX] = np.frombuffer(digits, dtype=np.uint8).reshape(-1, _HEX)
    letters[:, _HEX:] = np.frombuffer(suffix.encode(), dtype=np.uint8)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * letters.shape[1]
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(letters))


def number_ids(blocks: list[Runs], suffix: str = "") -> tuple[npt.NDArray[np.int32], pa.StringArray]:
    """Return the number of each row's id, and the ids with a suffix, in order of first appearance.

    The blocks are used up: at this size there is no room for both.

    >>> number_ids([runs(pa.array(["b", "b", "a"])), runs(pa.array(["b"]))])[0].tolist()
    [0, 0, 1, 0]
    """
    lengths = [block.lengths for block in blocks]
    found = [block.ids for block in blocks]
    blocks.clear()
    if all(isinstance(ids, np.ndarray) for ids in found):
        number, distinct = _number(found)
        images = as_text(distinct, suffix)
    else:
        texts = [as_text(ids) if isinstance(ids, np.ndarray) else ids for ids in found]
        coded = pa.chunked_array(texts).dictionary_encode()
        number = np.concatenate([np.asarray(chunk.indices) for chunk in coded.chunks])
        images = coded.chunk(0).dictionary
        images = pc.binary_join_element_wise(images, suffix, "") if suffix else images
    return _repeated(number, lengths), images


def _repeated(
    number: npt.NDArray[np.int32], lengths: Sequence[npt.NDArray[np.int32]]
) -> npt.NDArray[np.int32]:
    """Return each run's number once for each of its rows; block by block, for `repeat` counts in 64 bits."""
    rows = np.empty(sum(int(each.sum()) for each in lengths), dtype=np.int32)
    read = written = 0
    for each in lengths:
        block = np.repeat(number[read : read + len(each)], each)
        rows[written : written + len(block)] = block
        read, written = read + len(each), written + len(block)
    return rows


def _number(blocks: list[npt.NDArray[np.uint64]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """Return the number of each id in order of first appearance, and the distinct ids.

    The blocks are used up. One hash table of nine million ids misses the processor's cache at every look;
    many small ones do not.
    """
    ids = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint64)
    blocks.clear()
    part = np.empty(len(ids), dtype=np.uint8)
    for start in range(0, len(ids), BLOCK):
        part[start : start + BLOCK] = ids[start : start + BLOCK] * _MIX >> np.uint64(56)
    order = np.argsort(part, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(part, minlength=_PARTS))
    number = np.empty(len(ids), dtype=np.int32)
    spans = [order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def within(span: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        coded = pa.array(ids[span]).dictionary_encode()
        codes = np.asarray(coded.indices)
        number[span] = codes
        first = np.empty(len(coded.dictionary), dtype=np.int32)
        first[codes[::-1]] = span[::-1]  # of equal places the one written last stays: the first
        return first, np.asarray(coded.dictionary)

    with ThreadPoolExecutor(_WORKERS) as pool:
        found = list(pool.map(within, spans))
    first = np.concatenate([each[0] for each in found])
    turn = np.argsort(first)
    rank = np.empty(len(first), dtype=np.int32)
    rank[turn] = np.arange(len(first), dtype=np.int32)
    base = 0
    for span, (own, _) in zip(spans, found, strict=True):
        number[span] = rank[base : base + len(own)][number[span]]
        base += len(own)
    return number, np.concatenate([each[1] for each in found])[turn]
