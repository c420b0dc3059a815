"""What a long prediction has done so far, kept beside its output: a command that was ended can go on.

Only predictions of images are kept. Those of ready features take hardly longer than reading what was kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tertium.data.decoding import PIXELS
from tertium.data.identity import contents
from tertium.data.inputs import Inputs
from tertium.files import make_folder
from tertium.prediction.described import checksum_of
from tertium.prediction.files import Tables, schema_of
from tertium.processes import barrier, rank, world

_HEAD = struct.Struct("<IIQ32s")  # of a block: checksum of the rest, images, bytes, which images they are


@contextmanager
def keeping(
    out: Path, model: object, inputs: Inputs, rows: range, classes: Sequence[str], top: int | None
) -> Iterator[Tables]:
    """Give the tables of an earlier attempt at the same predictions, and keep those that are made now.

    They are in the folder OUT.partial, which is removed when the block succeeds. A failure leaves it, so the
    same command goes on after the last block of images whose content has not changed since.
    """
    if inputs.pictures is None or not isinstance(model, str | Path) or not rows:
        yield Tables()
        return
    folder = out.with_name(f"{out.name}.partial")
    make_folder(folder)
    own, images = folder / f"{rank()}-of-{world()}", 0
    try:
        with open(own, "a+b") as file:
            kept = _Kept(file, _purpose(Path(model), classes, top), inputs, rows, schema_of(classes, top))
            try:
                yield kept
            finally:
                images = kept.images
        barrier()
    except BaseException:
        if not images:
            own.unlink(missing_ok=True)
            with suppress(OSError):  # another process has kept something
                folder.rmdir()
        raise
    if rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)


def _purpose(model: Path, classes: Sequence[str], top: int | None) -> bytes:
    """Return what tells these predictions from others: the model, the columns, how images are read."""
    said = [checksum_of(model), list(classes), top, PIXELS, version("tertium")]
    return hashlib.sha256(json.dumps(said).encode()).digest()


class _Kept(Tables):
    """Tables in a file that only grows; a block that was cut off or changed ends what is used of it."""

    def __init__(
        self, file: BinaryIO, purpose: bytes, inputs: Inputs, rows: range, schema: pa.Schema
    ) -> None:
        self._file, self._inputs, self._rows, self._schema = file, inputs, rows, schema
        self._keeps = _lock(file)
        self._places: list[tuple[int, int]] = []  # where the tables are: first byte, bytes
        if not self._keeps:
            return  # another process is at the same work
        file.seek(0)
        if file.read(len(purpose)) == purpose:
            end = self._scan()
        else:
            file.truncate(0)
            file.write(purpose)
            end = len(purpose)
        file.truncate(end)

    def _scan(self) -> int:
        """Find the blocks that can be used; return where they end."""
        end = self._file.tell()
        while head := self._file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                break
            code, images, size, which = _HEAD.unpack(head)
            content = self._file.read(size)
            whole = len(content) == size and code == zlib.crc32(content, zlib.crc32(head[4:]))
            if not whole or which != self._which(images):
                break
            self._places.append((self._file.tell() - size, size))
            self.images += images
            end = self._file.tell()
        return end

    def _which(self, images: int) -> bytes:
        """Return a checksum of the names and the content of the next images."""
        start = self._rows.start + self.images
        block = self._inputs.select(np.arange(start, min(start + images, self._rows.stop)))
        found = hashlib.sha256("\0".join(block.names).encode())
        found.update(contents(block).data)
        return found.digest()

    def earlier(self) -> Iterator[pa.Table]:
        """Yield the tables of an earlier attempt."""
        for place, size in self._places:
            self._file.seek(place)
            batch = pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema)
            yield pa.Table.from_batches([batch])

    def add(self, images: int, table: pa.Table) -> None:
        """Keep the table of the next images."""
        if not self._keeps:
            return
        content = table.combine_chunks().to_batches()[0].serialize()
        rest = _HEAD.pack(0, images, content.size, self._which(images))[4:]
        code = zlib.crc32(content, zlib.crc32(rest))
        try:
            self._file.write(struct.pack("<I", code) + rest)
            self._file.write(content)
            self._file.flush()  # now the system has it, however this process ends
        except OSError:  # a full disk, say: better to write the output alone than nothing
            self._keeps = False
            self._file.truncate(0)
            return
        self.images += images


def _lock(file: BinaryIO) -> bool:
    """Take the file for this process; where there are no such locks, nobody else is expected."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
