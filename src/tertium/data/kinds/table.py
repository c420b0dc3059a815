"""Parquet and Arrow tables with the bytes of images, as Hugging Face `datasets` writes them, or plain binary.

Rows of Parquet cannot be read one by one. A group of rows is unpacked into the image cache when one of its
images is first asked for, and is mapped from there; an Arrow file that is not compressed is mapped itself.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tertium.data.kinds.listed import Listed, beside, chosen
from tertium.data.sources.cache import image_cache
from tertium.data.sources.index import check_once, indexed
from tertium.data.sources.places import File, LocalFile, RemoteFile, streaming, unbuffered
from tertium.data.sources.source import ImageSource
from tertium.errors import InputError

ENDINGS = (".parquet", ".arrow", ".feather")
OPTIONS = ("image", "name", "path")
_NAMES = ("name", "file_name", "filename", "image_id", "id", "__key__")
_PATHS = ("path", "image", "file_name", "filename")
_ROWS = 256  # that are unpacked at once


@dataclass(frozen=True)
class _Group:
    """Rows that are unpacked together: a row group of Parquet, or a whole Arrow file."""

    file: File
    number: int
    column: str
    direct: bool  # whether the file can be mapped as it is

    def mapped(self) -> Any:
        """Return the bytes of the images, one after the other, mapped from disk."""
        if self.direct:
            return _bytes_of(_mapped(self.file.address, self.column))
        key = f"group 1 {os.path.abspath(self.file.address)} {self.file.size} {self.file.version}"
        while True:
            path = image_cache().file(f"{key} {self.number} {self.column}", self._unpack)
            try:
                return _mapped(str(path), "bytes")
            except FileNotFoundError:
                continue  # removed meanwhile, to make room

    def _unpack(self, path: Path) -> None:
        schema = pa.schema([("bytes", pa.large_binary())])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in self._batches():
                values = _bytes_of(batch.column(0)).cast(pa.large_binary())
                writer.write_batch(pa.record_batch([values], schema=schema))

    def _batches(self) -> Iterator[Any]:
        with _reading(self.file) as table:
            if isinstance(table, pq.ParquetFile):
                yield from table.iter_batches(
                    _ROWS, row_groups=[self.number], columns=[self.column], use_threads=False
                )
            else:
                for batch in _arrow_batches(table):
                    yield batch.select([self.column])


@lru_cache(maxsize=64)
def _values(group: _Group) -> Any:
    """Return what a group has mapped; not too many are held, for what is mapped cannot make room on disk."""
    return group.mapped()


def _mapped(path: str, column: str) -> Any:
    return _arrow(pa.memory_map(path)).read_all()[column]


@dataclass(frozen=True)
class Table:
    """The images of tables; their names are in a column beside them."""

    place: str
    names: list[str]
    groups: Sequence[_Group]
    rows: npt.NDArray[np.int32]  # [N, 2] in which group an image is, and in which of its rows
    named_by_path: bool  # in the images themselves
    unread: tuple[str, ...] = ()
    by_path: bool = False

    @contextmanager
    def open(self, number: int) -> Iterator[BinaryIO]:
        """Give the bytes of one image."""
        group, row = self.rows[number].tolist()
        value = _values(self.groups[group])[row]
        if value.is_valid:
            yield io.BytesIO(value.as_buffer())
        elif self.named_by_path:  # as `datasets` writes images that were not in memory
            path = beside(self.groups[group].file.address, self.names[number])
            with Listed(self.place, [path], [path]).open(0) as file:
                yield file
        else:
            raise InputError(f"{self.where(number)}: the table has no bytes of this image")

    def where(self, number: int) -> str:
        """Return the file and the name."""
        return f"{self.groups[self.rows[number, 0]].file.address}: {self.names[number]}"

    def part(self, numbers: npt.NDArray[np.int64]) -> Table:
        """Return these images only, and the groups that they are in."""
        used, groups = np.unique(self.rows[numbers, 0], return_inverse=True)
        return replace(
            self,
            names=[self.names[number] for number in numbers],
            groups=[self.groups[number] for number in used],
            rows=np.stack([groups, self.rows[numbers, 1]], axis=1).astype(np.int32),
        )

    def version(self, number: int) -> str:
        """Return what the file has of it."""
        group, row = self.rows[number].tolist()
        file = self.groups[group].file
        return f"{file.size} {file.version} {self.groups[group].number} {row}"


def opened(
    place: str,
    files: Sequence[File],
    image: str | None = None,
    name: str | None = None,
    path: str | None = None,
) -> ImageSource:
    """Find the images in tables; without a column of bytes, one of paths says where they are."""
    # Groups of rows are kept unpacked: to keep blocks of the file too would take the room twice.
    files = [_unkept(file) for file in files]
    column = _image_column(files[0], image) if path is None else None
    if column is None:
        return _listed(place, files, name, path)

    def find(file: File) -> pa.Table:
        with _reading(file) as table:
            schema = _schema(table)
            _check_type(file, schema, column)
            return _names(file, table, column, _name_column(file, schema, column, name))

    tables = indexed(files, f"table 1 {column} {name}", find)
    groups, lengths = [], []
    for file, table in zip(files, tables, strict=True):
        counts = np.bincount(table["group"].to_numpy()) if len(table) else np.empty(0, dtype=np.int64)
        direct = _is_direct(file, column)
        groups += [_Group(file, number, column, direct) for number in np.flatnonzero(counts).tolist()]
        lengths += counts[counts > 0].tolist()
    names = [each for table in tables for each in table["name"].to_pylist()]
    by_path = name is None and pa.types.is_struct(indexed(files[:1], "columns 1", _empty)[0][column].type)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(owners)) - np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    rows = np.stack([owners, within], axis=1).astype(np.int32)
    check_once(names, lambda number: groups[rows[number, 0]].file.address)
    return Table(place, names, groups, rows, by_path)


def holds(file: File, image: str | None = None, name: str | None = None, path: str | None = None) -> bool:
    """Return whether a table has the bytes of images itself, and not only their paths."""
    return path is None and _image_column(_unkept(file), image) is not None


def _unkept(file: File) -> File:
    return RemoteFile(file.address, file.size, file.version, False) if isinstance(file, RemoteFile) else file


def _is_direct(file: File, column: str) -> bool:
    """Return whether a file is on disk and its bytes are as they are in memory: Arrow, not compressed."""
    if not isinstance(file, LocalFile) or file.address.lower().endswith(".parquet"):
        return False
    with pa.memory_map(file.address) as mapped:
        first = next(_arrow_batches(_arrow(mapped)), None)
        if first is None:
            return False
        content = _bytes_of(first.column(column)).buffers()[-1]
        mapped.seek(0)
        begin = mapped.read_buffer(1).address
        return bool(content is None or begin <= content.address < begin + file.size)


def _listed(place: str, files: Sequence[File], name: str | None, path: str | None) -> Listed:
    """Return the images whose paths a table has."""
    names: list[str] = []
    paths: list[str] = []
    for file in files:
        with _reading(file) as table:
            columns = _schema(table).names
            at = columns[chosen(file.address, columns, path, _PATHS, "path")]
            own = columns[chosen(file.address, columns, name, ("image", *_NAMES, at), "name")]
            found = _columns(table, list(dict.fromkeys([own, at])))
            names += _texts(file, found[own], own)
            paths += [beside(file.address, each) for each in _texts(file, found[at], at)]
    check_once(names, lambda _: place)
    return Listed(place, names, paths)


# ---- columns -----------------------------------------------------------------------------------------------


def _is_bytes(kind: Any) -> bool:
    return any(test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


def _is_text(kind: Any) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _holds_images(kind: Any) -> bool:
    """Return whether a column has bytes: plain, or in the struct {bytes, path} of Hugging Face."""
    return _is_bytes(kind) or (
        pa.types.is_struct(kind)
        and kind.get_field_index("bytes") >= 0
        and _is_bytes(kind.field("bytes").type)
    )


def _image_column(file: File, given: str | None) -> str | None:
    """Return the column with images; None if there is none, and none was asked for."""
    schema = indexed([file], "columns 1", _empty)[0].schema
    if given is not None:
        chosen(file.address, schema.names, given, (), "image")
        _check_type(file, schema, given)
        return given
    found = [field.name for field in schema if _holds_images(field.type)]
    if len(found) > 1:
        raise InputError(
            f"{file.address}: has several columns of bytes ({', '.join(found)}); "
            f"say which has the images: {file.address}#image={found[0]}"
        )
    if not found and not any(_is_text(field.type) for field in schema if field.name in _PATHS):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise InputError(
            f"{file.address}: no column has the bytes of images or their paths, but it has {columns}"
        )
    return found[0] if found else None


def _empty(file: File) -> pa.Table:
    """Return a table without rows."""
    with _reading(file) as table:
        return _schema(table).remove_metadata().empty_table()


def _check_type(file: File, schema: Any, column: str) -> None:
    if column not in schema.names:
        raise InputError(f'{file.address}: has no column "{column}"')
    kind = schema.field(column).type
    if not _holds_images(kind):
        raise InputError(f'{file.address}: the column "{column}" has {kind}, not the bytes of images')


def _name_column(file: File, schema: Any, image: str, given: str | None) -> str | None:
    """Return the column with names; None where the images themselves say their path."""
    if given is not None:
        chosen(file.address, schema.names, given, (), "name")
        return given
    kind = schema.field(image).type
    usual = [name for name in _NAMES if name in schema.names]
    if pa.types.is_struct(kind) and kind.get_field_index("path") >= 0:
        return None
    if len(usual) != 1:
        which = f"several columns that may be names ({', '.join(usual)})" if usual else "no column of names"
        raise InputError(f"{file.address}: has {which}; say which: {file.address}#name=COLUMN")
    return usual[0]


def _names(file: File, table: Any, image: str, name: str | None) -> pa.Table:
    """Return the name of each row, and the group that it is in."""
    column = f"{image}.path" if name is None else name
    if isinstance(table, pq.ParquetFile):
        parts = [table.read_row_group(number, [column]) for number in range(table.num_row_groups)]
    else:
        parts = [_columns(table, [image if name is None else name])]
    found = [part.column(0) if name is not None else _field(part.column(0), "path") for part in parts]
    texts = [text for part in found for text in _texts(file, part, column)]
    groups = np.repeat(np.arange(len(parts)), [len(part) for part in found])
    return pa.table({"name": pa.array(texts, pa.string()), "group": pa.array(groups, pa.int64())})


def _texts(file: File, column: Any, name: str) -> list[str]:
    """Return names as text; numbers may be names too."""
    if not (_is_text(column.type) or pa.types.is_integer(column.type)):
        raise InputError(
            f'{file.address}: the column "{name}" has {column.type}, which is no name of an image'
        )
    if column.null_count:
        raise InputError(
            f'{file.address}: {column.null_count:,} of {len(column):,} rows have no name in "{name}"; '
            f"give a column that names all: {file.address}#name=COLUMN"
        )
    found: list[str] = column.cast(pa.string()).to_pylist()
    return found


def _bytes_of(column: Any) -> Any:
    return _field(column, "bytes") if pa.types.is_struct(column.type) else column


def _field(column: Any, name: str) -> Any:
    """Return a field of a struct; where the struct is null, so is the field."""
    import pyarrow.compute as pc

    return pc.struct_field(column, name)


# ---- files -------------------------------------------------------------------------------------------------


@contextmanager
def _reading(file: File) -> Iterator[Any]:
    """Open a table: a `ParquetFile`, or a reader of Arrow's files or streams."""
    try:
        if file.address.lower().endswith(".parquet"):
            with unbuffered(file) as content, pq.ParquetFile(content, metadata=_metadata(file)) as table:
                yield table
        elif isinstance(file, LocalFile):
            with pa.memory_map(file.address) as mapped:
                yield _arrow(mapped)
        else:
            with streaming(file) as content:
                yield _arrow(pa.PythonFile(content, mode="r"))
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()
        raise InputError(f"{file.address}: the table cannot be read ({said[0] if said else error})") from None


@lru_cache(maxsize=16)
def _metadata(file: File) -> Any:
    """Return what a file says of its groups; of many groups that takes longer to read than one of them."""
    with unbuffered(file) as content:
        return pq.read_metadata(content)


def _arrow(content: Any) -> Any:
    try:
        return pa.ipc.open_file(content)
    except pa.ArrowInvalid:
        content.seek(0)
        return pa.ipc.open_stream(content)


def _arrow_batches(table: Any) -> Iterator[Any]:
    if hasattr(table, "num_record_batches"):
        return (table.get_batch(number) for number in range(table.num_record_batches))
    return iter(table)


def _columns(table: Any, names: list[str]) -> Any:
    if isinstance(table, pq.ParquetFile):
        return table.read(names, use_threads=False)
    return pa.Table.from_batches([batch.select(names) for batch in _arrow_batches(table)])


def _schema(table: Any) -> Any:
    return table.schema_arrow if isinstance(table, pq.ParquetFile) else table.schema
