"""What is in a file, found by one pass over it and kept: names, and where each image begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from tertium.data.sources.cache import NoRoomError, image_cache
from tertium.data.sources.places import File
from tertium.errors import InputError

_AT_ONCE = 8  # remote files that are looked through at the same time


def indexed(files: Sequence[File], kind: str, find: Callable[[File], pa.Table]) -> list[pa.Table]:
    """Return what is in each file; ``kind`` says how it was found, and changes when that does."""
    with ThreadPoolExecutor(min(max(len(files), 1), max(_AT_ONCE, os.cpu_count() or 1))) as pool:
        return list(pool.map(lambda file: _indexed(file, kind, find), files))


def _indexed(file: File, kind: str, find: Callable[[File], pa.Table]) -> pa.Table:
    def make(path: Path) -> None:
        table = find(file)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    key = f"{kind} {os.path.abspath(file.address)} {file.size} {file.version}"
    while True:
        try:
            with pa.OSFile(str(image_cache().file(key, make)), "rb") as source:
                return pa.ipc.open_file(source).read_all()
        except FileNotFoundError:
            continue  # removed meanwhile, to make room
        except NoRoomError:
            return find(file)


def check_once(names: Sequence[str], where: Callable[[int], str]) -> None:
    """Refuse a name that two images have; ``where`` says of a number in which file it is."""
    if len(set(names)) == len(names):
        return
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if first.setdefault(name, number) != number:
            places = list(dict.fromkeys([where(first[name]), where(number)]))
            twice = f"twice in {places[0]}" if len(places) == 1 else f"in {places[0]} and in {places[1]}"
            raise InputError(f'the image "{name}" is {twice}; a name must belong to one image')
