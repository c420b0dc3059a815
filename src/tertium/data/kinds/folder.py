"""A folder of image files, and of folders with more of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tertium.data.decoding import reading
from tertium.data.sources.places import RemoteFile, kept, version_of
from tertium.data.sources.remote import below
from tertium.data.sources.source import is_image
from tertium.errors import InputError


@dataclass(frozen=True)
class Folder:
    """Image files below a folder; an image's name is its path inside."""

    folder: Path
    names: list[str]
    unread: list[str] = field(default_factory=list)
    by_path: bool = True

    @classmethod
    def at(cls, folder: str | Path) -> Folder:
        """Find the files of a folder that must be there."""
        if not Path(folder).is_dir():
            raise InputError(f"{folder}: no such folder")
        files = list_files(Path(folder))
        return cls(
            Path(folder),
            [name for name in files if is_image(name)],
            [name for name in files if not is_image(name)],
        )

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def open(self, number: int) -> AbstractContextManager[BinaryIO]:
        """Open a file."""
        return reading(self.folder / self.names[number])

    def where(self, number: int) -> str:
        """Return the path."""
        return str(self.folder / self.names[number])

    def part(self, numbers: npt.NDArray[np.int64]) -> Folder:
        """Return these files only."""
        return Folder(self.folder, [self.names[number] for number in numbers])

    def version(self, number: int) -> str:
        """Return the size and the date of a file."""
        return version_of(f"{self.folder}/{self.names[number]}")


@dataclass(frozen=True)
class RemoteFolder:
    """Image files below an address; an image's name is the rest of its address."""

    place: str
    names: list[str]
    files: list[RemoteFile]
    unread: list[str]
    by_path: bool = True

    @classmethod
    def at(cls, address: str) -> RemoteFolder:
        """Find the files below an address that must have some."""
        base = address.rstrip("/")
        found = below(base)
        if not found:
            raise InputError(f"{address}: there is nothing at this address")
        names = [each.address.removeprefix(f"{base}/") for each in found]
        images = [each for each in found if is_image(each.address)]
        return cls(
            base,
            [name for name in names if is_image(name)],
            list(kept(images)),
            [name for name in names if not is_image(name)],
        )

    @contextmanager
    def open(self, number: int) -> Iterator[BinaryIO]:
        """Fetch a file."""
        file = self.files[number]
        yield io.BytesIO(file.read(0, file.size))

    def where(self, number: int) -> str:
        """Return the address."""
        return self.files[number].address

    def part(self, numbers: npt.NDArray[np.int64]) -> RemoteFolder:
        """Return these files only."""
        names, files = ([every[number] for number in numbers] for every in (self.names, self.files))
        return RemoteFolder(self.place, names, files, [])

    def version(self, number: int) -> str:
        """Return the size and what the storage calls a version."""
        return f"{self.files[number].size} {self.files[number].version}"


def list_files(folder: Path) -> list[str]:
    """Return all files below a folder, as sorted paths relative to it."""
    found = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        found += [name if inside == "." else f"{inside}/{name}" for name in files]
    return sorted(found)
