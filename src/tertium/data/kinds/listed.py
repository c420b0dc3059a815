"""A list of image files: a text file with a path on each line, or a table with a column of paths."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tertium.data.decoding import reading
from tertium.data.sources.index import check_once
from tertium.data.sources.places import File, RemoteFile, is_address, version_of
from tertium.data.sources.remote import look_up
from tertium.errors import InputError, did_you_mean

ENDINGS = (".txt", ".csv", ".tsv")
OPTIONS = ("name", "path")


@dataclass(frozen=True)
class Listed:
    """Images at paths and addresses of their own."""

    place: str
    names: list[str]
    paths: list[str]
    unread: tuple[str, ...] = ()
    by_path: bool = False

    @contextmanager
    def open(self, number: int) -> Iterator[BinaryIO]:
        """Open a file; one at an address is fetched whole."""
        path = self.paths[number]
        if is_address(path):
            fetched = _remote(path)
            yield io.BytesIO(fetched.read(0, fetched.size))
            return
        with reading(Path(path)) as file:
            yield file

    def where(self, number: int) -> str:
        """Return the path or the address."""
        return self.paths[number]

    def part(self, numbers: npt.NDArray[np.int64]) -> Listed:
        """Return these images only."""
        names, paths = ([every[number] for number in numbers] for every in (self.names, self.paths))
        return Listed(self.place, names, paths, (), self.by_path)

    def version(self, number: int) -> str:
        """Return the path, with the size and the date of a file on disk."""
        path = self.paths[number]
        return path if is_address(path) else f"{path} {version_of(path)}"


@lru_cache(maxsize=2**16)
def _remote(address: str) -> RemoteFile:
    found = look_up(address)
    if found is None:
        raise InputError(f"{address}: no such image")
    return RemoteFile(found.address, found.size, found.version)


def of_paths(paths: Sequence[str | Path], place: str = "the list of images") -> Listed:
    """Return images by their paths, which are their names."""
    names = [str(path) for path in paths]
    check_once(names, lambda _: place)
    return Listed(place, names, names)


def opened(place: str, files: Sequence[File], name: str | None = None, path: str | None = None) -> Listed:
    """Read lists; a path that is not absolute begins where its list is."""
    names: list[str] = []
    paths: list[str] = []
    for file in files:
        own, at = _read(file, name, path)
        names += own
        paths += [beside(file.address, each) for each in at]
    check_once(names, lambda _: place)
    return Listed(place, names, paths)


def holds(_: File, **__: str | None) -> bool:
    """Return whether a file has the bytes of images itself: a list has not."""
    return False


def beside(file: str, path: str) -> str:
    """Return where a path leads that a file names: an address or an absolute path as it is.

    >>> beside("lists/a.csv", "b.jpg"), beside("s3://bucket/lists/a.csv", "b.jpg"), beside("a.csv", "/b.jpg")
    ('lists/b.jpg', 's3://bucket/lists/b.jpg', '/b.jpg')
    """
    if is_address(path):
        return path
    if is_address(file):
        return f"{file.rpartition('/')[0]}/{path}"
    return str(Path(file).parent / path)


def _read(file: File, name: str | None, path: str | None) -> tuple[list[str], list[str]]:
    """Return the names and the paths of one list."""
    try:
        text = file.read(0, file.size).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{file.address}: not a list of images: it is not UTF-8 text") from None
    if file.address.lower().endswith(".txt"):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines, lines
    rows = list(
        csv.reader(io.StringIO(text), delimiter="\t" if file.address.lower().endswith("tsv") else ",")
    )
    columns = rows[0] if rows else []
    at = chosen(file.address, columns, path, ("path", "image"), "path")
    called = chosen(file.address, columns, name, ("image", "path"), "name")
    rows = [row for row in rows[1:] if row]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise InputError(f"{file.address}: row {number} has {len(row)} cells, not {len(columns)}")
    return [row[called] for row in rows], [row[at] for row in rows]


def chosen(place: str, columns: Sequence[str], given: str | None, usual: Sequence[str], option: str) -> int:
    """Return the place of a column: the one that is given, else the first of the usual ones."""
    if given is not None:
        if given not in columns:
            raise InputError(f'{place}: has no column "{given}"; {did_you_mean(given, columns)}')
        return list(columns).index(given)
    found = next((each for each in usual if each in columns), None)
    if found is None:
        raise InputError(
            f"{place}: has no column {' or '.join(usual)}, but {', '.join(columns) or 'none'}; "
            f"say which: {place}#{option}=COLUMN"
        )
    return list(columns).index(found)
