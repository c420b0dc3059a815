"""Files that can be made again, kept in a folder of bounded size: what was used least recently goes first."""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tertium.errors import InputError
from tertium.files import is_full, temporary_prefix

_GIGABYTES = 20.0  # that the folder may have, unless a person says otherwise
_LOW = 0.9  # share of the limit that is left after files were removed


class NoRoomError(InputError):
    """The folder cannot be written to."""


@dataclass(eq=False)
class Cache:
    """A folder that several threads and processes may fill and use."""

    folder: Path
    limit: int  # bytes
    _size: int | None = field(default=None, init=False)  # of all files, as far as this process knows

    def opened(self, key: str, make: Callable[[], bytes]) -> io.FileIO:
        """Return the open file kept under a key; what is not there is made."""
        while True:
            try:
                return open(self.file(key, lambda path: path.write_bytes(make())), "rb", buffering=0)
            except FileNotFoundError:
                continue  # removed meanwhile, by a process that needed the room

    def file(self, key: str, make: Callable[[Path], object]) -> Path:
        """Return the file kept under a key; one that is not there is made, by one process at a time.

        It may be removed at any time: whoever has opened or mapped it keeps it.
        """
        name = hashlib.sha256(key.encode()).hexdigest()
        path = self.folder / name[:2] / name
        if _used(path):
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_name(f"{name[:8]}.lock")):
                if not _used(path):
                    self._fill(path, make)
        except OSError as error:
            reason = "the disk is full" if is_full(error) else error.strerror or error
            raise NoRoomError(
                f"{self.folder}: images cannot be kept there ({reason}); "
                "set TERTIUM_IMAGE_CACHE to another folder"
            ) from None
        return path

    def _fill(self, path: Path, make: Callable[[Path], object]) -> None:
        temporary = path.with_name(f"{temporary_prefix(path.name[:8])}{os.getpid()}-{path.name[8:16]}")
        try:
            make(temporary)
            self._make_room(temporary.stat().st_size)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove files until another one of this size fits."""
        if self._size is not None and self._size + size <= self.limit:
            self._size += size
            return
        found = sorted(self._files())  # looked at anew: other processes add files too
        total = sum(each for _, each, _ in found) + size
        if total > self.limit:
            for _, each, path in found:
                path.unlink(missing_ok=True)
                total -= each
                if total <= _LOW * self.limit:
                    break
        self._size = total

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield when each file was used, its size, and where it is."""
        for path in self.folder.glob("??/*"):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            if len(path.name) == 64:  # neither a lock nor half made
                yield about.st_mtime_ns, about.st_size, path


def image_cache() -> Cache:
    """Return where parts of remote images are kept, and what was found out about archives.

    The folder is ``TERTIUM_IMAGE_CACHE``, by default below ``~/.cache``; ``TERTIUM_IMAGE_CACHE_GB`` says how
    large it may become.
    """
    return _cache(*(os.environ.get(name) for name in _VARIABLES))


_VARIABLES = ("TERTIUM_IMAGE_CACHE", "XDG_CACHE_HOME", "HOME", "TERTIUM_IMAGE_CACHE_GB")


@functools.cache
def _cache(given: str | None, caches: str | None, _home: str | None, most: str | None) -> Cache:
    """Return one object for each folder and size, which knows how full it is."""
    base = caches or os.path.expanduser("~/.cache")
    try:
        limit = float(most or _GIGABYTES)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise InputError(f'TERTIUM_IMAGE_CACHE_GB is a number of gigabytes, not "{most}"')
    return Cache(Path(given or Path(base, "tertium", "images")), int(limit * 2**30))


def _used(path: Path) -> bool:
    """Return whether a file is there, and note that it is used."""
    try:
        os.utime(path)
    except OSError:  # not there; or somebody else's, which may still be read
        return os.access(path, os.R_OK)
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one thread of one process in; one that is killed leaves no lock behind."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such lock: two may make the same file, and either is good
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
