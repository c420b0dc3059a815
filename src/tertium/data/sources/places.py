"""Files at paths and at addresses, read at random; and patterns that stand for several of them."""

from __future__ import annotations

import glob
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import BinaryIO, Protocol

from tertium.data.sources.cache import Cache, image_cache
from tertium.data.sources.remote import Stored, fetch, find_all, look_up
from tertium.errors import InputError, some

_SHARE = 0.25  # of the image cache that one file may take: several processes share it
_SMALL = 2**21  # bytes of a part that is worth remembering for a moment
BLOCK = 2**23  # bytes that are asked for at once: small requests to object storage are slow
_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")


class File(Protocol):
    """A file that is read at random."""

    @property
    def address(self) -> str:
        """Its path or address, as a person would write it."""
        ...

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    @property
    def version(self) -> str:
        """What changes when the file does."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return a part; less only where the file ends before."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class LocalFile:
    """A file on disk."""

    address: str
    size: int
    version: str

    @classmethod
    def at(cls, path: str) -> LocalFile:
        """Look at a file that must be there."""
        try:
            about = os.stat(path)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path}: is not a regular file")
        # The last one changes even where somebody sets the date back.
        return cls(path, about.st_size, f"{about.st_ino} {about.st_mtime_ns} {about.st_ctime_ns}")

    def read(self, offset: int, length: int) -> bytes:
        """Read a part."""
        try:
            return _part_of(_held(self.address, self.version), offset, length)
        except OSError as error:
            raise InputError(f"{self.address}: cannot be read ({error.strerror or error})") from None

    @contextmanager
    def opened(self, buffering: int = -1) -> Iterator[BinaryIO]:
        """Open the file; what the disk cannot give is an `InputError`."""
        try:
            with open(self.address, "rb", buffering) as file:
                yield file
        except OSError as error:
            raise InputError(f"{self.address}: cannot be read ({error.strerror or error})") from None


def version_of(path: str) -> str:
    """Return what changes when a file on disk does: its size and date; nothing if it is not there."""
    try:
        about = os.stat(path)
    except OSError:
        return ""
    return f"{about.st_size} {about.st_mtime_ns}"


# To open a file for each image takes as long as to read a small one, so the last few stay open. On Windows
# threads cannot read parts of one open file, and an open one cannot be removed.
_SHARED = hasattr(os, "pread")


@lru_cache(maxsize=64 if _SHARED else 0)
def _held(path: str, _version: str) -> io.FileIO:
    return open(path, "rb", buffering=0)


def _part_of(file: io.FileIO, offset: int, length: int) -> bytes:
    """Return a part of an open file, less only where it ends before."""
    found = b""
    while len(found) < length:  # the system may give less at once
        more = _read_at(file, offset + len(found), length - len(found))
        if not more:
            break
        found = found + more if found else more
    return found


def _read_at(file: io.FileIO, offset: int, length: int) -> bytes:
    if _SHARED:
        return os.pread(file.fileno(), length, offset)
    file.seek(offset)
    return file.read(length) or b""


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address; its blocks are kept on disk, unless there is no room for all that is read."""

    address: str
    size: int
    version: str
    kept: bool = True

    def read(self, offset: int, length: int) -> bytes:
        """Read a part: of a file that is kept whole blocks, of another one just this."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        if not self.kept:
            part = _small_part if end - offset <= _SMALL else _part
            return part(self.address, self.version, offset, end - offset)
        blocks = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        return b"".join(self._of_block(number, offset, end) for number in blocks)

    def _of_block(self, number: int, offset: int, end: int) -> bytes:
        """Return what lies in a block of the bytes from an offset to an end."""
        start = number * BLOCK
        first, last = max(offset, start), min(end, start + BLOCK)
        return _part_of(_block(self, number, image_cache()), first - start, last - first)


@lru_cache(maxsize=16 if _SHARED else 0)  # not many: one that was removed takes room until it is closed
def _block(file: RemoteFile, number: int, cache: Cache) -> io.FileIO:
    """Return the open file of a block, which is fetched if it is not kept."""
    start, stop = number * BLOCK, min((number + 1) * BLOCK, file.size)
    key = f"{file.address} {file.size} {file.version} {number}"
    return cache.opened(key, partial(fetch, file.address, start, stop - start))


def alone(file: File) -> File:
    """Return a file that is read by itself, from one end to the other: it is kept on disk if it fits."""
    if not isinstance(file, RemoteFile):
        return file
    return replace(file, kept=file.size <= _SHARE * image_cache().limit)


def _part(address: str, _version: str, offset: int, length: int) -> bytes:
    return fetch(address, offset, length)


# An image is asked for twice, to be hashed and to be decoded.
_small_part = lru_cache(maxsize=32)(_part)


@contextmanager
def streaming(file: File) -> Iterator[BinaryIO]:
    """Give a file to be read from its beginning to its end, in which one may also seek."""
    if isinstance(file, LocalFile):
        with file.opened() as opened:
            yield opened
        return
    yield io.BufferedReader(_Raw(file), BLOCK)


@contextmanager
def unbuffered(file: File) -> Iterator[BinaryIO]:
    """Give a file to a reader that knows itself which parts it needs, and asks for each at once."""
    if isinstance(file, LocalFile):
        with file.opened(buffering=0) as opened:
            yield opened
        return
    yield _Raw(file)  # type: ignore[misc]


class _Raw(io.RawIOBase):
    """A `File` as Python knows files."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._file.read(self._at, len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


# ---- addresses and patterns --------------------------------------------------------------------------------


def is_address(place: object) -> bool:
    """Return whether something is an address, such as s3://bucket/photos, and not a path.

    >>> is_address("s3://bucket/photos"), is_address("photos/a.jpg"), is_address("C:/photos")
    (True, False, False)
    """
    return isinstance(place, str) and _ADDRESS.match(place) is not None


def braces(pattern: str) -> list[str]:
    """Return what a pattern with braces stands for, as shells and WebDataset write them.

    >>> braces("{a,b}/{08..10}.tar")
    ['a/08.tar', 'a/09.tar', 'a/10.tar', 'b/08.tar', 'b/09.tar', 'b/10.tar']
    """
    inner = _BRACES.search(pattern)
    if inner is None:
        return [pattern]
    before, after = pattern[: inner.start()], pattern[inner.end() :]
    numbers = _RANGE.match(inner[1])
    if numbers is not None:
        first, last = numbers.groups()
        width = len(first) if len(first) == len(last) or first.startswith("0") else 0
        words = [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
        if not words:
            raise InputError(f"{pattern}: {inner[0]} stands for nothing: it counts upwards")
    elif "," in inner[1]:
        words = inner[1].split(",")
    else:
        return [pattern]
    return [found for word in words for found in braces(f"{before}{word}{after}")]


def files_at(place: str) -> list[File]:
    """Return the files that a path, an address or a pattern stands for, in order; all must be there."""
    patterns = braces(place)
    if is_address(place):
        return list(_remote(place, patterns))
    found: list[File] = []
    missing = []
    for pattern in patterns:
        paths = [pattern] if os.path.exists(pattern) or not glob.has_magic(pattern) else _globbed(pattern)
        for path in paths:
            if os.path.exists(path):
                found.append(LocalFile.at(path))
            else:
                missing.append(path)
    _check_missing(place, missing, len(patterns))
    return found


def _globbed(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise InputError(f"{pattern}: no file fits this pattern")
    return found


def _check_missing(place: str, missing: Sequence[str], every: int) -> None:
    if missing and every == 1:
        raise InputError(f"{missing[0]}: no such file")
    if missing:
        raise InputError(f"{place}: {len(missing):,} of {every:,} files are missing: {some(missing)}")


def _remote(place: str, patterns: Sequence[str]) -> Iterator[RemoteFile]:
    found: list[Stored] = []
    missing = []
    for pattern in patterns:
        if _has_magic(pattern):
            several = find_all(pattern)
            if not several:
                raise InputError(f"{pattern}: no file fits this pattern")
            found += several
            continue
        one = look_up(pattern)
        if one is None:
            missing.append(pattern)
        else:
            found.append(one)
    _check_missing(place, missing, len(patterns))
    return kept(found)


def kept(found: Sequence[Stored]) -> Iterator[RemoteFile]:
    """Yield remote files; they are kept on disk if all of them have room there together."""
    fits = sum(each.size for each in found) <= image_cache().limit
    return (RemoteFile(each.address, each.size, each.version, fits) for each in found)


def _has_magic(address: str) -> bool:
    """Return whether an address is a pattern; in one of the web, ? begins a query."""
    return any(sign in address for sign in ("*[" if address.lower().startswith("http") else "*[?"))
