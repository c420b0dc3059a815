"""Storage of table rows: how values become bytes, in memory or in a file."""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy
from torch import Generator, Tensor

from tertium.errors import InputError

Array = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


# ---- how values are stored -------------------------------------------------------------------------------


class Form(Protocol):
    """How the values of a table become bytes."""

    @property
    def name(self) -> str:
        """As the saved state calls it."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a stored item."""
        ...

    def width(self, classes: int) -> int:
        """Return how many stored items hold a row of that many values."""
        ...

    def encode(self, values: Tensor, rng: Generator | None) -> Array:
        """Return values [B, C] as they are stored; with ``rng`` rounding is a draw, right on average."""
        ...

    def decode(self, stored: Array, classes: int, device: torch.device) -> Tensor:
        """Return the values [B, C] on a device."""
        ...


@dataclass(frozen=True)
class Plain:
    """Values as they are."""

    name: str  # of the type: float32, float16, bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item."""
        return np.dtype(self.name)

    def width(self, classes: int) -> int:
        """One item for a value."""
        return classes

    def encode(self, values: Tensor, rng: Generator | None) -> Array:
        """To the nearest; NumPy does not know bfloat16."""
        if values.is_floating_point():
            values = values.float()
        return values.cpu().numpy().astype(self.dtype, copy=False)

    def decode(self, stored: Array, classes: int, device: torch.device) -> Tensor:
        """Flags as they are, numbers as float32."""
        values = torch.from_numpy(stored).to(device)
        return values if values.dtype == torch.bool else values.float()


@dataclass(frozen=True)
class Steps:
    """Logits in a byte: steps of a tenth within ±12.7, and 0 for NaN, so that a file of zeros is "unseen"."""

    name: ClassVar[str] = "steps"
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    def width(self, classes: int) -> int:
        """One byte for a value."""
        return classes

    def encode(self, values: Tensor, rng: Generator | None) -> Array:
        """To the nearest step, or with ``rng`` to one of the two neighbours, the nearer the likelier."""
        steps = values.float() * 10
        steps += 128 + (0.5 if rng is None else _drawn(steps, rng))
        # NaN passes through clamp and becomes 0 only here: a cast of NaN is undefined.
        return steps.clamp_(1, 255).nan_to_num_(0.0).to(torch.uint8).cpu().numpy()

    def decode(self, stored: Array, classes: int, device: torch.device) -> Tensor:
        """NaN where nothing was written."""
        codes = torch.from_numpy(stored).to(device)
        values = codes.float().sub_(128).div_(10)
        unseen = codes == 0
        return values.masked_fill_(unseen, torch.nan) if unseen.any() else values


@dataclass(frozen=True)
class Magnitudes:
    """Sizes in a byte: three steps for each factor of two, from 2⁻⁷⁶ to 2⁸, and 0 for all that is smaller.

    A size is off by up to 12 %. Steps are drawn in the logarithm, so that a slow decay is right on average.
    """

    name: ClassVar[str] = "magnitudes"
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    def width(self, classes: int) -> int:
        """One byte for a value."""
        return classes

    def encode(self, values: Tensor, rng: Generator | None) -> Array:
        """To the nearest step of the logarithm, or a drawn one."""
        steps = values.float().log2().mul_(3)
        steps += 230 + (0.5 if rng is None else _drawn(steps, rng))
        return steps.clamp_(0, 255).to(torch.uint8).cpu().numpy()

    def decode(self, stored: Array, classes: int, device: torch.device) -> Tensor:
        """The middle of each step."""
        codes = torch.from_numpy(stored).to(device)
        values = codes.float().sub_(230).div_(3).exp2_()
        none = codes == 0
        return values.masked_fill_(none, 0.0) if none.any() else values


def _drawn(like: Tensor, rng: Generator) -> Tensor:
    """Added before digits are cut off, this rounds up as often as the digits say.

    A byte for each value: quicker than drawing floats, and as good, since steps are coarse.
    """
    words = torch.empty(-(-like.numel() // 8), dtype=torch.int64, device=rng.device)
    words.random_(-(2**63), None, generator=rng)
    drawn = words.view(torch.uint8)[: like.numel()].view(like.shape).to(like.device)
    return drawn.float().add_(0.5).div_(256)


@dataclass(frozen=True)
class Bits:
    """Flags, eight in a byte."""

    name: ClassVar[str] = "bits"
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    def width(self, classes: int) -> int:
        """The last byte is filled up."""
        return -(-classes // 8)

    def encode(self, values: Tensor, rng: Generator | None) -> Array:
        """Nothing is lost."""
        return np.packbits(values.cpu().numpy().astype(bool, copy=False), axis=1)

    def decode(self, stored: Array, classes: int, device: torch.device) -> Tensor:
        """As Booleans."""
        return torch.from_numpy(np.unpackbits(stored, axis=1, count=classes).view(bool)).to(device)


# ---- where they are stored -------------------------------------------------------------------------------


class RowStore(Protocol):
    """Stored rows, by their place."""

    def read(self, places: Places) -> Array:
        """Return these rows."""
        ...

    def write(self, places: Places, stored: Array) -> None:
        """Replace these rows."""
        ...


class Memory:
    """Rows in an array, zeros at first."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.rows: Array = np.zeros(shape, dtype)

    def read(self, places: Places) -> Array:
        """Return a copy of these rows."""
        found: Array = self.rows[places]
        return found

    def write(self, places: Places, stored: Array) -> None:
        """Replace these rows."""
        self.rows[places] = stored


class File:
    """A .npy file, read and written at positions.

    Not a memory map: the pages of a map that were touched count as resident memory, and a full disk would
    kill the process without a word.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle
        with open(handle, "rb", closefd=False) as file:
            file.seek(0)
            version = npy.read_magic(file)
            read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            self.shape, ordered, self.dtype = read_header(file)
            self._start = file.tell()
        if ordered or len(self.shape) != 2 or self.dtype.hasobject:
            raise ValueError("not a table")
        self._row = self.shape[1] * self.dtype.itemsize
        if os.fstat(handle).st_size != self._start + self.shape[0] * self._row:
            raise ValueError("its length is not that of its header")

    @classmethod
    def made(cls, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> File:
        """A new file of zeros, deleted when nobody holds the table any more."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        with open(handle, "wb", closefd=False) as file:
            write_header(file, shape, dtype)
            start = file.tell()
        size = shape[0] * shape[1] * dtype.itemsize
        try:
            os.posix_fallocate(handle, start, size)  # the space is ours from now on
        except OSError as error:
            _discard(handle, path)
            if error.errno != errno.ENOSPC:
                raise
            free = shutil.disk_usage(path.parent).free
            raise InputError(
                f"{path.parent}: a table needs {size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free"
            ) from None
        store = cls(path, handle)
        weakref.finalize(store, _discard, handle, path)
        return store

    @classmethod
    def opened(cls, path: Path) -> File:
        """A file that is there, to be read."""
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        try:
            store = cls(path, handle)
        except (ValueError, KeyError) as error:
            os.close(handle)
            raise InputError(f"{path}: not a table that Tertium saved ({error})") from None
        weakref.finalize(store, os.close, handle)
        return store

    def read(self, places: Places) -> Array:
        """Return these rows; consecutive ones in one access."""
        stored = np.empty((len(places), self.shape[1]), self.dtype)
        runs = list(_runs(places))
        if len(runs) > 1:  # all are asked for before the first is waited for
            for begin, end in runs:
                os.posix_fadvise(
                    self._handle, self._at(places[begin]), (end - begin) * self._row, os.POSIX_FADV_WILLNEED
                )
        for begin, end in runs:
            count = os.preadv(self._handle, [stored[begin:end].data], self._at(places[begin]))
            self._check(count, end - begin)
        return stored

    def write(self, places: Places, stored: Array) -> None:
        """Replace these rows; consecutive ones in one access."""
        stored = np.ascontiguousarray(stored, self.dtype)
        for begin, end in _runs(places):
            count = os.pwritev(self._handle, [stored[begin:end].data], self._at(places[begin]))
            self._check(count, end - begin)

    def _at(self, place: np.int64) -> int:
        return self._start + int(place) * self._row

    def _check(self, count: int, rows: int) -> None:
        if count != rows * self._row:
            raise OSError(errno.EIO, "a table was read or written only in part", str(self.path))


def write_header(file: BinaryIO, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Write what a .npy file begins with; the rows follow."""
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, header)


def _discard(handle: int, path: Path) -> None:
    os.close(handle)
    path.unlink(missing_ok=True)


def _runs(places: Places) -> Iterator[tuple[int, int]]:
    """Where consecutive places begin and end: a block of rows is one access to the file."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    return ((begin, end) for begin, end in pairwise(cuts) if end > begin)
