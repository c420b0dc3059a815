"""JSON files too large to hold as objects: arrays of records become columns, block by block.

The file is one object, as COCO's and LVIS's are: ``{"images": [{…}, …], "annotations": [{…}, …], …}``, or one
array of records. A block is searched with NumPy for the brackets outside strings; they say where records
begin and end, so whole records can be handed to Arrow's JSON parser, which checks the syntax and keeps only
the wanted keys. Nothing becomes a Python object. Held at a time: a block, or the longest record, and the
columns.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from tertium.errors import InputError, did_you_mean
from tertium.progress import Progress

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

BLOCK = 1 << 20  # bytes; larger blocks leave the processor's cache and take longer
LONGEST = 64 << 20  # bytes of one record; a missing quote or bracket would otherwise swallow the file
_QUOTE, _BACKSLASH, _COMMA, _BRACE = b'"\\,{'
_SPACES = b" \t\n\r"
_GZIP = b"\x1f\x8b"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,:\"{}\[\]]+")
_MEGABYTE = 1_000_000


def _table(members: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=bool)
    table[list(members)] = True
    return table


_OPENS, _IS_SPACE = _table(b"{["), _table(_SPACES)


def read_tables(
    path: str | Path,
    wanted: Mapping[str, pa.Schema],
    progress: Progress | None = None,
    *,
    block: int = BLOCK,
) -> dict[str, pa.Table]:
    """Return the wanted arrays of the object that a JSON file holds, each as a table of its records.

    A schema names the keys to keep; a field that is not nullable must be in every record. Other keys and
    members are checked and left out (a member longer than a block is only skipped). The file may be gzipped.
    What is not valid JSON is an `InputError` that names the byte; so are a key given twice, half of a
    surrogate pair and a number beyond double precision, which the grammar allows.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "small.json"
    >>> _ = path.write_text('{"info": {}, "images": [{"id": 7, "tags": ["}"]}, {"id": 9}]}')
    >>> read_tables(path, {"images": pa.schema([("id", pa.int64())])})["images"].to_pydict()
    {'id': [7, 9]}
    """
    with _opened(Path(path), block, progress or Progress()) as source:
        found: dict[str, pa.Table] = {}
        keys: set[str] = set()
        for key in _members(source):
            if key in keys:
                source.fail(0, f'"{key}" is there twice')
            keys.add(key)
            if key in wanted:
                found[key] = _Records(source, key, wanted[key]).read()
            else:
                _skip(source)
        if source.peek():
            source.fail(0, "there is more after the end of the object")
    for key in wanted:
        if key not in found:
            hint = f"; {did_you_mean(key, sorted(keys))}" if keys else ""
            raise InputError(f'{path}: there is no "{key}" in it{hint}')
    return found


def read_records(
    path: str | Path, name: str, schema: pa.Schema, progress: Progress | None = None, *, block: int = BLOCK
) -> pa.Table:
    """Return the records of a JSON file that is one array of them; errors call them by ``name``.

    All else is as in `read_tables`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "small.json"
    >>> _ = path.write_text('[{"id": 7, "tags": ["}"]}, {"id": 9}]')
    >>> read_records(path, "tasks", pa.schema([("id", pa.int64())])).to_pydict()
    {'id': [7, 9]}
    """
    with _opened(Path(path), block, progress or Progress()) as source:
        found = _Records(source, name, schema).read()
        if source.peek():
            source.fail(0, "there is more after the end of the array")
    return found


# ---- the file ----------------------------------------------------------------------------------------------


class _Source:
    """Bytes of a file that are not used up yet, and where they stand in it."""

    def __init__(self, path: Path, raw: IO[bytes], block: int, progress: Progress) -> None:
        self.path, self.block, self._raw, self._progress = path, block, raw, progress
        zipped = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        self._stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._told = self._read = 0
        self.data, self.at = b"", 0
        if self.more() and self.data.startswith(codecs.BOM_UTF8):
            self.drop(len(codecs.BOM_UTF8))

    def more(self) -> bool:
        """Read another block; false at the end."""
        try:
            fresh = self._stream.read(max(self.block, 4))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.path}: the gzip file is damaged ({error})") from None
        try:
            self._decoder.decode(fresh, final=not fresh)  # Arrow does not check it
        except UnicodeDecodeError as error:
            place = self._read + error.start - (len(error.object) - len(fresh))
            raise InputError(f"{self.path}: byte {place:,}: not UTF-8 text") from None
        self._read += len(fresh)
        self.data = self.data + fresh if self.data else fresh
        done = math.ceil(self._raw.tell() / _MEGABYTE)
        self._progress.advance(done - self._told)
        self._told = done
        return bool(fresh)

    def drop(self, count: int) -> None:
        """Leave the first bytes behind."""
        self.data, self.at = self.data[count:], self.at + count

    def fail(self, place: int, reason: str) -> NoReturn:
        """Say what is wrong, ``place`` bytes on."""
        raise InputError(f"{self.path}: byte {self.at + place:,}: {reason}")

    def peek(self) -> bytes:
        """Pass over white space and return the next byte; nothing at the end."""
        while True:
            self.drop(len(self.data) - len(self.data.lstrip(_SPACES)))
            if self.data or not self.more():
                return self.data[:1]

    def expect(self, choices: bytes, what: str) -> bytes:
        """Pass over one of the bytes and return it."""
        found = self.peek()
        if not found:
            self.fail(0, f"the file ends where {what} is expected")
        if found not in choices:
            self.fail(0, f"{what} is expected, not {_shown(found)}")
        self.drop(1)
        return found

    def token(self, pattern: re.Pattern[bytes], what: str) -> Any:
        """Pass over a string, a number or a name and return its value."""
        while True:
            match = pattern.match(self.data)
            # A number or name could go on in the next block; a string has its closing quote.
            if match and (pattern is _STRING or match.end() < len(self.data)):
                break
            if len(self.data) > LONGEST:
                self.fail(0, f"{what} does not end within {LONGEST >> 20} MB")
            if not self.more():
                if match:
                    break
                self.fail(len(self.data), f"the file ends inside {what}")
        try:
            value = json.loads(match.group())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            self.fail(0, f"{what} is not valid JSON ({error})")
        self.drop(match.end())
        return value


@contextmanager
def _opened(path: Path, block: int, progress: Progress) -> Iterator[_Source]:
    try:
        with open(path, "rb") as raw:
            size = path.stat().st_size
            if not size:
                raise InputError(f"{path}: the file is empty")
            progress.start(f"Reading {path.name}", math.ceil(size / _MEGABYTE), "MB")
            yield _Source(path, raw, block, progress)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _shown(byte: bytes) -> str:
    text = byte.decode("ascii", "replace")
    return f"'{text}'" if text.isprintable() else f"byte 0x{byte[0]:02x}"


# ---- the object --------------------------------------------------------------------------------------------


def _members(source: _Source) -> Iterator[str]:
    """Yield the keys of the object; whoever iterates takes the value before the next key."""
    source.expect(b"{", 'an object that begins with "{"')
    if source.peek() == b"}":
        source.drop(1)
        return
    while True:
        if source.peek() != b'"':
            source.expect(b'"', "a key in double quotes")
        key = source.token(_STRING, "a key")
        source.expect(b":", '":"')
        yield key
        if source.expect(b",}", f'"," or "}}" after "{key}"') == b"}":
            return


def _skip(source: _Source) -> None:
    """Pass over a value that nobody asked for."""
    first = source.peek()
    if first == b'"':
        source.token(_STRING, "a string")
        return
    if first not in (b"{", b"["):
        if not _SCALAR.match(source.data):
            source.expect(b'{["', "a value")
        source.token(_SCALAR, "a value")
        return
    depth, whole = 0, True
    while True:
        data = np.frombuffer(source.data, np.uint8)
        found = _scan(data)
        closed = np.flatnonzero(found.depths == -depth)
        if closed.size:
            end = int(found.places[closed[0]]) + 1
            if whole:
                _check(source, data[:end])
            source.drop(end)
            return
        if len(source.data) >= source.block and len(found.places):  # keep what follows the last bracket
            whole, depth = False, depth + int(found.depths[-1])
            source.drop(int(found.places[-1]) + 1)
        if len(source.data) > LONGEST:
            source.fail(0, f"a string does not end within {LONGEST >> 20} MB")
        if not source.more():
            source.fail(len(source.data), "the file ends inside a value")


def _check(source: _Source, value: Bytes) -> None:
    """Let Arrow judge a value as if it were the only member of a record."""
    text = np.concatenate([np.frombuffer(b'{"":', np.uint8), value, np.frombuffer(b"}", np.uint8)])
    inside = _scan(text).quotes
    breaks = np.flatnonzero(_breaks(text))
    if (np.searchsorted(inside, breaks) % 2).any():
        source.fail(0, "there is a line break inside a string of this value")
    text[breaks] = ord(" ")
    try:
        _rows(text, pa.schema([]))
    except pa.ArrowException as error:
        source.fail(0, f"this value is not valid JSON ({_reason(error)})")


# ---- brackets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Brackets:
    """Where brackets stand outside strings, how deep it is after each, and where strings begin and end."""

    places: Places
    depths: Places
    quotes: Places


def _scan(data: Bytes) -> _Brackets:
    """Find the brackets of a block that begins outside strings.

    >>> found = _scan(np.frombuffer(b'{"a": "\\\\\\\\", "b}": [1]}, ', np.uint8))
    >>> found.places.tolist(), found.depths.tolist()
    ([0, 18, 20, 21], [1, 2, 1, 0])
    """
    bare = data | 0x20  # the same for [ and {, for ] and }: comparing is quicker than looking up
    special = np.flatnonzero((bare == ord("{")) | (bare == ord("}")) | (data == _QUOTE))
    kinds = data[special]
    quote = kinds == _QUOTE
    slashes = np.flatnonzero(data == _BACKSLASH)
    if slashes.size:
        # A run of backslashes escapes what follows it if their number is odd.
        last = np.flatnonzero(np.append(np.diff(slashes) != 1, True))
        odd = np.diff(last, prepend=-1) % 2 == 1
        quote &= ~np.isin(special, slashes[last[odd]] + 1)
    outside = (kinds != _QUOTE) & (np.cumsum(quote) % 2 == 0)
    steps = np.where(_OPENS[kinds[outside]], 1, -1)
    return _Brackets(special[outside], np.cumsum(steps), special[quote])


def _breaks(text: Bytes) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (text == ord("\n")) | (text == ord("\r"))
    return found


# ---- records -----------------------------------------------------------------------------------------------


class _Records:
    """An array of records on its way to a table."""

    def __init__(self, source: _Source, name: str, schema: pa.Schema) -> None:
        self._source, self._name, self._schema = source, name, schema
        self._tables = [_nullable(schema).empty_table()]
        self._count = 0

    def read(self) -> pa.Table:
        """Take the array from the source."""
        source = self._source
        source.expect(b"[", f'the array "{self._name}"')
        while not self._take():
            if len(source.data) > LONGEST:
                source.fail(0, f"{self._record(0)} does not end within {LONGEST >> 20} MB")
            if not source.more():
                source.fail(
                    len(source.data), f'the file ends inside "{self._name}", after {self._count:,} records'
                )
        return pa.concat_tables(self._tables)

    def _take(self) -> bool:
        """Take the whole records that are there; true at the end of the array."""
        source = self._source
        data = np.frombuffer(source.data, np.uint8)
        found = _scan(data)
        below = np.flatnonzero(found.depths < 0)
        stop = int(found.places[below[0]]) if below.size else None
        if stop is not None and data[stop] != ord("]"):
            source.fail(
                stop,
                f'"]" is expected at the end of "{self._name}", not {_shown(source.data[stop : stop + 1])}',
            )
        count = below[0] if below.size else len(found.places)
        places, depths = found.places[:count], found.depths[:count]
        starts, ends = places[(depths == 1) & _OPENS[data[places]]], places[depths == 0]
        commas = self._commas(data, starts, ends, stop)
        if ends.size:
            self._parse(data, starts[: len(ends)], ends, commas, found.quotes)
        source.drop(stop + 1 if stop is not None else int(ends[-1]) + 1 if ends.size else 0)
        return stop is not None

    def _commas(self, data: Bytes, starts: Places, ends: Places, stop: int | None) -> Places:
        """Return where the commas between records stand, after checking that nothing else is there."""
        source, area = self._source, data[:stop]
        opened = np.append(starts, len(area))[
            : len(ends) + 1
        ]  # where each gap ends: an unfinished record, or here
        closed = np.concatenate([[0], ends + 1])
        sizes = opened - closed
        gaps = np.repeat(opened - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
        loose: Places = gaps[~_IS_SPACE[area[gaps]]]
        strange = loose[area[loose] != _COMMA]
        if not strange.size:
            strange = starts[area[starts] != _BRACE]
        if strange.size:
            place = int(strange[0])
            source.fail(
                place,
                f'"{self._name}" must hold objects only; {_shown(source.data[place : place + 1])} is not one',
            )
        counts = np.bincount(np.searchsorted(starts, loose), minlength=len(starts) + 1)
        expected = np.ones_like(counts)
        expected[0] = self._count > 0
        if stop is not None:
            expected[-1] = 0
        elif len(starts) or self._count:
            expected[-1] = min(counts[-1], 1)  # what follows is in the next block
        wrong = np.flatnonzero(counts != expected)
        if wrong.size:
            place = int(np.append(starts, len(area))[wrong[0]])
            source.fail(
                place, f'there must be one comma between two records of "{self._name}", and none at the end'
            )
        return loose

    def _parse(self, data: Bytes, starts: Places, ends: Places, commas: Places, quotes: Places) -> None:
        first, last = int(starts[0]), int(ends[-1]) + 1
        text = data[first:last].copy()
        # One record a line. Outside strings a line break is a space; inside there must be none.
        breaks = np.flatnonzero(_breaks(text))
        if breaks.size:
            torn = breaks[np.searchsorted(quotes, breaks + first) % 2 == 1]
            if torn.size:
                self._source.fail(first + int(torn[0]), "there is a line break inside a string")
            text[breaks] = ord(" ")
        text[commas[(commas > first) & (commas < last)] - first] = ord("\n")
        try:
            table = _rows(text, _nullable(self._schema))
        except pa.ArrowException:
            self._explain(text, starts, ends)
        for field in self._schema:
            if not field.nullable and table[field.name].null_count:
                number = int(np.flatnonzero(np.asarray(table[field.name].is_null()))[0])
                self._source.fail(int(starts[number]), f'{self._record(number)} has no "{field.name}"')
        self._tables.append(table)
        self._count += len(starts)

    def _explain(self, text: Bytes, starts: Places, ends: Places) -> NoReturn:
        """Find the first record that Arrow refuses, by halving; only because there is an error to explain."""
        origin = int(starts[0])
        low, high = 0, len(starts)  # the first bad one is in [low, high)
        reason = "not valid JSON"
        while True:
            middle = max((low + high) // 2, low + 1)
            try:
                _rows(
                    text[int(starts[low]) - origin : int(ends[middle - 1]) + 1 - origin],
                    _nullable(self._schema),
                )
                low = middle
            except pa.ArrowException as error:
                high, reason = middle, _reason(error)
                if high - low == 1:
                    break
        self._source.fail(int(starts[low]), f"{self._record(low)}: {reason}")

    def _record(self, number: int) -> str:
        return f'record {self._count + number + 1:,} of "{self._name}"'


def _rows(text: Bytes, schema: pa.Schema) -> pa.Table:
    """Parse records, one a line, keeping the keys of the schema."""
    return pa.json.read_json(
        pa.BufferReader(pa.py_buffer(text)),
        # One block, so that no record lies across a border.
        pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _reason(error: Exception) -> str:
    """Return what Arrow says without where it says so: its rows are not the file's."""
    text = re.sub(r"^JSON parse error: |\.? in row \d+$", "", str(error))
    text = re.sub(
        r"^Column\(/(.*)\) changed from (\w+) to (\w+)$", r'"\1" must be of the kind \2, not \3', text
    )
    text = re.sub(r"^Column\(/(.*)\) was specified twice$", r'"\1" is there twice', text)
    text = re.sub(
        r"^Failed to convert JSON to (\w+), couldn't parse: ?(.*)$", r"\2 cannot be read as \1", text
    )
    return text[:1].lower() + text[1:]
