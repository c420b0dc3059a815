"""Images inside archives, found by an index, read at random: what tar and zip share."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.data.sources.index import check_once, indexed
from tertium.data.sources.places import File
from tertium.data.sources.source import is_image
from tertium.errors import InputError


class Member(NamedTuple):
    """A file inside an archive."""

    name: str
    offset: int  # of its bytes, or of what comes before them
    length: int  # of its bytes in the archive
    size: int  # of its bytes unpacked
    method: int = 0  # by which it is packed
    checksum: int = 0


@dataclass(frozen=True)
class Archives:
    """The images of one or more archives; their names are their paths inside."""

    place: str
    files: Sequence[File]
    names: list[str]
    unread: list[str]
    shards: npt.NDArray[np.int32]  # [N] which of the files an image is in
    members: npt.NDArray[np.int64]  # [N, 5] the numbers of `Member`
    unpacked: Callable[[File, Member], bytes]
    by_path: bool = True

    @contextmanager
    def open(self, number: int) -> Iterator[BinaryIO]:
        """Give the bytes of one image."""
        yield io.BytesIO(self._content(number))

    def _content(self, number: int) -> bytes:
        file = self.files[self.shards[number]]
        try:
            return self.unpacked(file, Member(self.names[number], *self.members[number].tolist()))
        except InputError as error:
            if str(error).startswith(file.address):  # of the whole archive, such as a line that is cut
                raise
            raise InputError(f"{self.where(number)}: {error}") from None

    def where(self, number: int) -> str:
        """Return the archive and the path inside."""
        return f"{self.files[self.shards[number]].address}: {self.names[number]}"

    def part(self, numbers: npt.NDArray[np.int64]) -> Archives:
        """Return these images only, and the archives that they are in."""
        used, shards = np.unique(self.shards[numbers], return_inverse=True)
        return replace(
            self,
            files=[self.files[number] for number in used],
            names=[self.names[number] for number in numbers],
            unread=[],
            shards=shards.astype(np.int32),
            members=self.members[numbers],
        )

    def version(self, number: int) -> str:
        """Return what the archive has of it."""
        file = self.files[self.shards[number]]
        return f"{file.size} {file.version} {self.members[number].tolist()}"


def open_archives(
    place: str,
    files: Sequence[File],
    kind: str,
    members: Callable[[File], Iterable[Member]],
    unpacked: Callable[[File, Member], bytes],
) -> Archives:
    """Find the images of archives, whose ``members`` are listed once; ``unpacked`` gives one's bytes."""

    def find(file: File) -> pa.Table:
        listed = list(members(file))
        columns: Any = zip(*listed, strict=True) if listed else [[] for _ in Member._fields]
        types = [pa.string(), *[pa.int64()] * (len(Member._fields) - 1)]
        try:
            arrays = [pa.array(list(column), each) for column, each in zip(columns, types, strict=True)]
        except UnicodeEncodeError as error:  # Python's way to name bytes that are no text
            raise InputError(f"{file.address}: the name {error.object!r} is not UTF-8") from None
        return pa.table(arrays, names=list(Member._fields))

    tables = indexed(files, kind, find)
    table = pa.concat_tables(tables)
    names = [posixpath.normpath(name) for name in table["name"].to_pylist()]
    images = np.array([is_image(name) for name in names], dtype=bool)
    shards = np.repeat(np.arange(len(files), dtype=np.int32), [len(each) for each in tables])[images]
    numbers = np.stack([table[name].to_numpy() for name in Member._fields[1:]], axis=1)[images]
    found = Archives(
        place,
        files,
        [name for name, image in zip(names, images, strict=True) if image],
        [name for name, image in zip(names, images, strict=True) if not image],
        shards,
        numbers,
        unpacked,
    )
    check_once(found.names, lambda number: files[shards[number]].address)
    return found
