"""Where the files of a job go: a folder at a path or at an address, every file whole or not there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tertium.data.sources import remote
from tertium.data.sources.places import is_address
from tertium.errors import InputError
from tertium.files import make_folder, replacing

_AT_ONCE = 16  # small files that are read at the same time


class OutputError(InputError):
    """The folder of a job cannot be written to: other shards would fail like this one."""


@dataclass(frozen=True)
class Output:
    """A folder at a path or an address, such as s3://bucket/predictions."""

    place: str

    @classmethod
    def at(cls, place: str | Path) -> Output:
        """Return the folder; a path is made absolute, for other processes work elsewhere.

        >>> Output.at("s3://bucket/predictions/").place
        's3://bucket/predictions'
        """
        text = str(place).rstrip("/") or "/"
        return cls(text if is_address(text) else os.path.abspath(text))

    @property
    def is_remote(self) -> bool:
        """Whether it is at an address."""
        return is_address(self.place)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing one of this name."""
        try:
            if self.is_remote:
                remote.write(f"{self.place}/{name}", content)
                return
            path = Path(self.place, name)
            make_folder(path.parent)
            with replacing(path) as temporary:
                temporary.write_bytes(content)
        except InputError as error:
            raise OutputError(str(error)) from None

    def read(self, name: str) -> bytes:
        """Return a file that must be there."""
        if self.is_remote:
            return remote.whole(f"{self.place}/{name}")
        try:
            return Path(self.place, name).read_bytes()
        except FileNotFoundError:
            raise InputError(f"{self.place}/{name}: no such file") from None
        except OSError as error:
            raise InputError(f"{self.place}/{name}: cannot be read ({error.strerror})") from None

    def read_all(self, names: list[str]) -> list[bytes]:
        """Return several small files."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self.read, names))

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        if self.is_remote:
            return remote.look_up(f"{self.place}/{name}") is not None
        return Path(self.place, name).is_file()

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return all files below the place or a folder of it, and their sizes in bytes."""
        base = f"{self.place}/{folder}".rstrip("/")
        if self.is_remote:
            return {each.address.removeprefix(f"{self.place}/"): each.size for each in _below(base)}
        found = {}
        for where, _, files in os.walk(base):
            for name in files:
                path = os.path.join(where, name)
                if not name.startswith("."):  # half-written
                    found[os.path.relpath(path, self.place)] = os.path.getsize(path)
        return found

    def remove(self, name: str) -> None:
        """Remove a file that is there."""
        if self.is_remote:
            remote.remove(f"{self.place}/{name}")
        else:
            Path(self.place, name).unlink(missing_ok=True)


def _below(address: str) -> list[remote.Stored]:
    """Return what is below an address; there need not be anything."""
    try:
        return remote.below(address)
    except InputError as error:
        if str(error).endswith("no such file"):
            return []
        raise
