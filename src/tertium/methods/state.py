"""State that a method keeps: tables with a row for each training image, and named tensors.

It lives outside every module, since a wrapper for several processes would overwrite what differs between
them. The labels themselves never change: corrections are state.

A table of a million images and ten thousand classes has ten billion entries. Above a limit tables are
therefore stored compactly (a logit in a byte, a flag in a bit), large ones in files of which only the rows of
a batch are read and written, and in several processes each holds only the rows that it owns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from tertium.errors import InputError
from tertium.files import read_json, replacing, write_json
from tertium.methods.storage import (
    Array,
    Bits,
    File,
    Form,
    Magnitudes,
    Memory,
    Places,
    Plain,
    RowStore,
    Steps,
    write_header,
)

Kind = Literal["number", "logit", "size", "flag"]
Start = Tensor | Callable[[Tensor], Tensor] | None

EXACT = 2**30  # bytes that one table of float32 may take, over all processes, before tables become compact
IN_MEMORY = 64 * 2**20  # bytes up to which a table stays in memory
_BLOCK = 2**24  # entries that a pass over all rows holds at once
_FORMAT = "tertium state 1"


@dataclass(frozen=True)
class Rows:
    """Which rows a process owns: those of rank, rank + world, rank + 2·world, …"""

    images: int
    rank: int
    world: int

    @property
    def own(self) -> range:
        """The numbers of the rows among all images."""
        return range(self.rank, self.images, self.world)

    def places(self, rows: Tensor) -> Places:
        """Return where these rows stand among the own ones."""
        numbers = rows.cpu().numpy()
        strange = numbers[(numbers % self.world != self.rank) | (numbers < 0) | (numbers >= self.images)]
        if strange.size:
            raise IndexError(
                f"row {strange[0]} of {self.images} does not belong to process {self.rank} of {self.world}"
            )
        places: Places = numbers // self.world
        return places


def _numbers(rows: range) -> Tensor:
    return torch.from_numpy(np.arange(rows.start, rows.stop, rows.step))


class Table:
    """A row [C] for each training image, read and written by the rows of a batch."""

    def __init__(self, name: str, kind: Kind, width: int, rows: Rows, form: Form, store: RowStore) -> None:
        self.name, self.kind, self.width = name, kind, width
        self._rows, self.form, self.store = rows, form, store

    def read(self, rows: Tensor) -> Tensor:
        """Return these rows [B, C] where ``rows`` are: flags as Booleans, all else as float32."""
        return self.form.decode(self.store.read(self._rows.places(rows)), self.width, rows.device)

    def write(self, rows: Tensor, values: Tensor, rng: Generator | None = None) -> None:
        """Replace these rows; of a row that is given twice, the last counts.

        A compact table rounds logits to the nearest step, which swallows small changes however often they
        come. With ``rng`` it rounds up or down at random instead, right on average.
        """
        self.store.write(self._rows.places(rows), self.form.encode(values.detach(), rng))

    def keys(self, rows: Tensor) -> Array:
        """Return unsigned integers [B, C] in the order of the logits; 0 where there is none."""
        stored = self.store.read(self._rows.places(rows))
        if stored.dtype == np.uint8:
            return stored
        # The bits of a float as an integer: negative ones sort the other way round, and below.
        bits = stored.view(np.uint32)
        keys = bits ^ np.where(bits >> 31, np.uint32(2**32 - 1), np.uint32(2**31))
        keys[np.isnan(stored)] = 0
        return keys

    @property
    def layout(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and the type of the own rows as they are stored."""
        return (len(self._rows.own), self.form.width(self.width)), self.form.dtype

    def stored(self) -> Array:
        """Return the own rows as they are stored: a copy."""
        return self.store.read(np.arange(len(self._rows.own)))

    def restore(self, stored: Array) -> None:
        """Take over what `stored` gave."""
        self.store.write(np.arange(len(self._rows.own)), stored)

    @property
    def values(self) -> Tensor:
        """All own rows: a copy, to be looked at."""
        return self.read(_numbers(self._rows.own))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in this process."""
        return len(self._rows.own) * self.form.width(self.width) * self.form.dtype.itemsize


class SampleState:
    """The tables and tensors of one training run, by name.

    Process ``rank`` of ``world`` holds the rows rank, rank + world, …; rows are named by their number among
    all images. Tables above 64 MiB live in files below ``folder``, if there is one.

    ``compact`` decides how values are stored; by default, tables are compact where one of float32 for all
    images would take more than 1 GiB.

    ====== ======= =================================================
    kind   exact   compact
    ====== ======= =================================================
    number float32 float32
    logit  float32 a byte: steps of 0.1 within ±12.7, NaN if unseen
    size   float32 a byte: above 0, off by up to 12 %
    flag   bool    a bit
    ====== ======= =================================================

    >>> state = SampleState(images=3, classes=2)
    >>> table = state.table("guess", fill=0.5)
    >>> table.write(torch.tensor([2]), torch.tensor([[0.25, 1.0]]))
    >>> state.table("guess").read(torch.tensor([2, 0]))
    tensor([[0.2500, 1.0000],
            [0.5000, 0.5000]])
    """

    def __init__(
        self,
        images: int,
        classes: int,
        *,
        rank: int = 0,
        world: int = 1,
        folder: Path | None = None,
        compact: bool | None = None,
    ) -> None:
        self.shape = (images, classes)
        self.rank, self.world = rank, world
        self.compact = 4 * images * classes > EXACT if compact is None else compact
        self.tensors: dict[str, Tensor] = {}
        self._folder = folder
        self._rows = Rows(images, rank, world)
        self.tables: dict[str, Table] = {}

    @property
    def own(self) -> range:
        """The rows that this process owns."""
        return self._rows.own

    def blocks(self, width: int | None = None) -> Iterator[Tensor]:
        """Go over the own rows: their numbers, as many at once as a pass over a table should hold."""
        size = max(1, _BLOCK // max(width or self.shape[1], 1))
        for start in range(0, len(self.own), size):
            yield _numbers(self.own[start : start + size])

    def table(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        fill: float = 0.0,
        values: Start = None,
        dtype: Literal["float32", "float16"] = "float32",
        width: int | None = None,
    ) -> Table:
        """Return the table of this name; the first call makes it, of numbers unless ``kind`` says otherwise.

        It is filled evenly, or from ``values``: a tensor with a row for each image, or a function that
        gives the rows [B, width] of some images, asked block by block. ``dtype`` is that of numbers.
        """
        if name in self.tables:
            return self._found(name, kind, width)
        form = self._form(kind or "number", dtype)
        table = self._add(name, kind or "number", width or self.shape[1], form)
        try:
            self._begin(table, fill, values)
        except BaseException:
            del self.tables[name]  # half a table would pass for a whole one
            raise
        return table

    def _found(self, name: str, kind: Kind | None, width: int | None) -> Table:
        table = self.tables[name]
        if kind not in (None, table.kind) or width not in (None, table.width):
            raise InputError(
                f'the table "{name}" holds {table.width} of kind "{table.kind}" for each image, '
                f'but {width or table.width} of kind "{kind or table.kind}" are asked for'
            )
        return table

    def _form(self, kind: Kind, dtype: str) -> Form:
        if kind == "number":
            return Plain(dtype)
        if not self.compact:
            return Plain("bool" if kind == "flag" else "float32")
        forms: dict[Kind, Form] = {"logit": Steps(), "size": Magnitudes(), "flag": Bits()}
        return forms[kind]

    def _add(self, name: str, kind: Kind, width: int, form: Form) -> Table:
        shape = (len(self.own), form.width(width))
        in_file = self._folder is not None and shape[0] * shape[1] * form.dtype.itemsize > IN_MEMORY
        if in_file and hasattr(os, "posix_fallocate"):  # elsewhere there is no positioned access either
            assert self._folder is not None
            path = self._folder / f"work.{name}.{self.rank}-of-{self.world}.npy"
            store: RowStore = File.made(path, shape, form.dtype)
        else:
            store = Memory(shape, form.dtype)
        self.tables[name] = Table(name, kind, width, self._rows, form, store)
        return self.tables[name]

    def _begin(self, table: Table, fill: float, values: Start) -> None:
        even = torch.full((1, table.width), fill)
        if values is None and not table.form.encode(even, None).any():
            return  # it is all zeros already
        for rows in self.blocks(table.width):
            if values is None:
                start = even.expand(len(rows), -1)
            else:
                start = values[rows] if isinstance(values, Tensor) else values(rows)
            table.write(rows, start)

    # ---- keeping them ------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write this process's rows of every table; process 0 also what all share.

        The state is whole once every process has returned.
        """
        for table in self.tables.values():
            shard = _shard(folder, table.name, self.rank, self.world)
            with replacing(shard) as path, open(path, "wb") as file:
                shape = (len(self.own), table.form.width(table.width))
                write_header(file, shape, table.form.dtype)
                for rows in self.blocks(table.width):
                    file.write(table.store.read(self._rows.places(rows)).data)
        if self.rank == 0:
            with replacing(folder / "state.safetensors") as path:
                save_file({name: value.detach().contiguous() for name, value in self.tensors.items()}, path)
            tables = {
                table.name: {"kind": table.kind, "storage": table.form.name, "width": table.width}
                for table in self.tables.values()
            }
            about = {"format": _FORMAT, "shape": self.shape, "world": self.world, "tables": tables}
            write_json(folder / "state.json", about)

    def to_dict(self) -> dict[str, Tensor]:
        """Return the own rows of all tables as they are stored, and the tensors: copies."""
        tables = {f"table.{name}": torch.from_numpy(table.stored()) for name, table in self.tables.items()}
        return tables | {f"tensor.{name}": value.detach().clone() for name, value in self.tensors.items()}

    def load_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Take over what `to_dict` gave: the rows of the tables that are here, and all tensors."""
        parts: dict[str, dict[str, Tensor]] = {"table": {}, "tensor": {}}
        for key, value in saved.items():
            part, _, name = key.partition(".")
            parts[part][name] = value.detach().cpu().clone()
        rows = {name: value.numpy() for name, value in parts["table"].items()}
        found = {name: (stored.shape, stored.dtype) for name, stored in rows.items()}
        belong = {name: table.layout for name, table in self.tables.items()}
        if found != belong:
            raise InputError(
                "the saved state is of another method or of other training images: it holds "
                f"{_told(found)}, where {_told(belong)} would be right"
            )
        for name, stored in rows.items():
            self.tables[name].restore(stored)
        self.tensors = parts["tensor"]

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, from however many processes: of each table the own rows."""
        path = folder / "state.json"
        about = read_json(path)
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            raise InputError(f"{path}: not a state that Tertium saved")
        if tuple(about["shape"]) != self.shape:
            raise InputError(
                f"{path}: the state is for {about['shape'][0]:,} images and {about['shape'][1]:,} classes, "
                f"not for {self.shape[0]:,} and {self.shape[1]:,}"
            )
        try:
            tensors = load_file(folder / "state.safetensors")
        except (FileNotFoundError, SafetensorError) as error:
            raise InputError(f"{folder / 'state.safetensors'}: cannot be read ({error})") from None
        for name, facts in about["tables"].items():
            self._load_table(folder, name, facts, about["world"])
        self.tensors.update(tensors)

    def _load_table(self, folder: Path, name: str, facts: dict[str, Any], world: int) -> None:
        kind, width, storage = facts["kind"], facts["width"], facts["storage"]
        form = self._form(kind, storage if kind == "number" else "")
        if form.name != storage:
            raise InputError(
                f'{folder / "state.json"}: the table "{name}" is stored as {storage}, not as {form.name}'
            )
        if name in self.tables:
            self._found(name, kind, width)
        shards = [File.opened(_shard(folder, name, rank, world)) for rank in range(world)]
        for rank, shard in enumerate(shards):
            shape = (len(Rows(self.shape[0], rank, world).own), form.width(width))
            if shard.shape != shape or shard.dtype != form.dtype:
                raise InputError(
                    f"{shard.path}: holds {shard.shape} {shard.dtype}, where {shape} {form.dtype} belong"
                )
        table = self.tables.get(name) or self._add(name, kind, width, form)
        for rows in self.blocks(width):
            table.store.write(self._rows.places(rows), _gathered(shards, rows.numpy()))


def _told(tables: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    told = [f'"{name}" {shape} {dtype}' for name, (shape, dtype) in tables.items()]
    return f"the tables {', '.join(told)}" if told else "no table"


def _shard(folder: Path, name: str, rank: int, world: int) -> Path:
    return folder / f"table.{name}.{rank}-of-{world}.npy"


def _gathered(shards: Sequence[File], rows: Places) -> Array:
    """Return stored rows, from the processes that owned them."""
    owner, place = rows % len(shards), rows // len(shards)
    stored = np.empty((len(rows), shards[0].shape[1]), shards[0].dtype)
    for number in np.unique(owner):
        mine = owner == number
        stored[mine] = shards[number].read(place[mine])
    return stored
