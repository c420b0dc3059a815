"""Files that are written whole or not at all."""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tertium.errors import InputError

MARK = "TERTIUM_MARK"  # the variable that says what is in the names of temporary files

_FOLDER = "tertium"  # in the name of a temporary folder
_STEM = 50  # letters of a file's name that its temporary file has too
LOCKS = find_spec("fcntl") is not None  # not on Windows
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; rename it into place if the block succeeds, else delete it.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("42")
    >>> target.read_text()
    '42'
    """
    path = Path(os.path.realpath(path))  # a link stays one, also where nothing is at its end yet
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if path.is_symlink():
        raise InputError(f"{path}: a link that leads to itself")
    _sweep(path)
    handle = -1
    # The name is known before there is a file: a signal may come at any moment.
    name = f"{temporary_prefix(path.stem[:_STEM])}{secrets.token_hex(4)}{path.suffix}"
    temporary = path.with_name(name)
    try:
        handle = _create(temporary, path)
        yield temporary
        with open(temporary, "rb+") as written:  # on disk before the name points to it
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())  # it was made private
        temporary.replace(path)
    except Exception as error:
        if not is_full(error):
            raise
        raise InputError(f"{path}: cannot be written, the disk is full; nothing is left of it") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock an open file or folder until it is closed or the process ends, however it ends.

    If another process has the lock: wait, or raise `BlockingIOError`.
    """
    if LOCKS:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _create(temporary: Path, path: Path) -> int:
    """Make a temporary file, locked as long as this process writes it; return what holds the lock."""
    try:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    if not LOCKS:
        os.close(handle)  # Windows renames no open file
        return -1
    with contextlib.suppress(OSError):  # a file system without locks
        lock(handle, wait=True)
    if os.fstat(handle).st_nlink:
        return handle
    os.close(handle)  # it was swept away before the lock
    return _create(temporary, path)


def _sweep(path: Path) -> None:
    """Remove what processes that were killed have left of ``path``: nobody holds a lock on it any more."""
    if not LOCKS:
        return
    hidden: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        hidden = [Path(entry.path) for entry in entries if entry.name.startswith(".")]
    for name in hidden:
        if not is_left_of(name, path):
            continue
        with contextlib.suppress(OSError):  # held by its writer, or gone
            handle = os.open(name, os.O_RDONLY)
            try:
                lock(handle)
                os.unlink(name)
            finally:
                os.close(handle)


@contextmanager
def filling(out: Path) -> Iterator[Path]:
    """Give a folder for results; they go to ``out`` if the block succeeds, and else nothing is left.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "new" / "results"
    >>> with filling(place) as folder:
    ...     _ = (folder / "answer.txt").write_text("42")
    >>> (place / "answer.txt").read_text()
    '42'
    """
    near = next(place for place in (out, *out.absolute().parents) if place.exists())  # on the disk of ``out``
    with passing_folder(near) as folder:
        try:
            yield folder
        except OSError as error:
            if not is_full(error):
                raise
            raise InputError(f"{out}: cannot be written, the disk is full; nothing is left of it") from None
        try:
            if not os.path.lexists(out):
                make_folder(out.parent)
                folder.chmod(0o777 & ~_umask())  # it was made private
                folder.rename(out)  # all at once
                return
            make_folder(out)
            # Numbers last: where they are, all pictures are.
            for made in sorted(folder.iterdir(), key=lambda path: path.suffix != ".png"):
                made.replace(out / made.name)
        except OSError as error:
            raise InputError(f"{out}: cannot be written to ({error.strerror})") from None


@contextmanager
def passing_folder(near: Path) -> Iterator[Path]:
    """Give a temporary folder below ``near``, removed at the end; those of killed processes go too."""
    _sweep_folders(near)
    folder = near / f"{temporary_prefix(_FOLDER)}{secrets.token_hex(4)}"
    handle = -1
    try:
        handle = _make_locked(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


def _make_locked(folder: Path) -> int:
    """Make a folder, locked as long as this process uses it; return what holds the lock, or −1."""
    try:
        folder.mkdir(0o700)
    except OSError as error:
        raise InputError(f"{folder.parent}: no folder can be made here ({error.strerror})") from None
    if not LOCKS:
        return -1
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return _make_locked(folder)  # another process took it for one that was left
    with contextlib.suppress(OSError):  # a file system without locks
        lock(handle, wait=True)
    if folder.is_dir():
        return handle
    os.close(handle)
    return _make_locked(folder)


def _sweep_folders(near: Path) -> None:
    """Remove the folders that processes which were killed have left here."""
    for left in near.glob(f".{_FOLDER}-????????") if LOCKS else ():
        with contextlib.suppress(OSError):  # held by its process, or gone
            handle = os.open(left, os.O_RDONLY)
            try:
                lock(handle)
                shutil.rmtree(left)
            finally:
                os.close(handle)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold a lock on a folder; `BlockingIOError` if another process does."""
    if not LOCKS:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            lock(handle)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def is_left_of(path: Path, target: Path) -> bool:
    """Return whether a file has the name of a temporary one that `replacing` makes for ``target``.

    >>> is_left_of(Path(".answer-0a_b1c2d.txt"), Path("answer.txt"))
    True
    >>> is_left_of(Path(".answer-key.txt"), Path("answer.txt"))
    False
    """
    stem, suffix = re.escape(target.stem[:_STEM]), re.escape(target.suffix)
    return bool(re.fullmatch(rf"\.{stem}-([0-9a-f]{{16}})?[a-z0-9_]{{8}}{suffix}", path.name))


def is_full(error: Exception) -> bool:
    """Return whether an error says that a disk has no room; libraries have exceptions of their own for it."""
    return getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)


def reserve(path: Path) -> None:
    """Give a file that is still empty inside its room on disk: to map what has none kills the process."""
    size = path.stat().st_size
    if size and hasattr(os, "posix_fallocate"):
        with open(path, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def temporary_prefix(name: str) -> str:
    """Return how the name of a temporary file begins.

    Whoever starts a process may mark its files by ``TERTIUM_MARK``, to remove them if it is killed.
    """
    return f".{name}-{os.environ.get(MARK, '')}"


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, unless they are there; also where a link leads to."""
    try:
        Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{path}: is there already, and is not a folder") from None
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be made ({error.strerror})") from None


def keep_inputs(outputs: Iterable[object], inputs: Iterable[object]) -> None:
    """Raise `InputError` if an output would replace an input, or another output.

    What is not a path (an array, labels in memory, None) does not count.

    >>> keep_inputs(["labels.csv"], ["./labels.csv"])
    Traceback (most recent call last):
    tertium.errors.InputError: labels.csv: is an input, and would be replaced; choose another output
    """
    read = {os.path.realpath(each) for each in inputs if isinstance(each, str | Path)}
    written = set()
    for each in outputs:
        if not isinstance(each, str | Path):
            continue
        place = os.path.realpath(each)
        if place in read:
            raise InputError(f"{each}: is an input, and would be replaced; choose another output")
        if place in written:
            raise InputError(f"{each}: would be written twice; give each output a name of its own")
        written.add(place)


def keep_files(paths: Iterable[Path], *, overwrite: bool) -> None:
    """Raise `InputError` if a file is there already and may not be replaced."""
    for path in paths:
        if not overwrite and path.exists():
            raise InputError(f"{path}: already exists; choose another --out, or add --overwrite")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)  # NaN is not JSON
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or damaged one is an `InputError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None


def write_sealed(path: str | Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON with a checksum of itself, so that `read_sealed` notices a changed byte."""
    write_json(path, sealed(value))


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return ``value`` with a checksum of itself."""
    plain = json.loads(json.dumps(value, allow_nan=False))  # as it is read: tuples are lists, keys text
    return {**plain, "sha256": _seal(plain)}


def read_sealed(path: str | Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote; anything else, or a changed file, is an `InputError`."""
    return unsealed(read_json(path), path)


def unsealed(value: Any, path: str | Path) -> dict[str, Any]:
    """Return what was `sealed`, without its checksum; ``path`` is where it was read."""
    if not isinstance(value, dict) or "sha256" not in value:
        raise InputError(f"{path}: has no checksum, so it is damaged or not a file that Tertium wrote")
    found = {key: each for key, each in value.items() if key != "sha256"}
    if value["sha256"] != _seal(found):
        raise InputError(f"{path}: was changed after it was written, or is damaged")
    return found


def _seal(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
