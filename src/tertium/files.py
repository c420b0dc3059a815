"""Files that are written whole or not at all."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tertium.errors import InputError

MARK = "TERTIUM_MARK"  # the variable that says what is in the names of temporary files

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
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=temporary_prefix(path.stem[:50]), suffix=path.suffix
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as written:  # on disk before the name points to it
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp made it private
        temporary.replace(path)
    except Exception as error:
        if not is_full(error):
            raise
        raise InputError(f"{path}: cannot be written, the disk is full; nothing is left of it") from None
    finally:
        temporary.unlink(missing_ok=True)


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
    """Raise `InputError` if an output would replace an input.

    What is not a path (an array, labels in memory, None) does not count.

    >>> keep_inputs(["labels.csv"], ["./labels.csv"])
    Traceback (most recent call last):
    tertium.errors.InputError: labels.csv: is an input, and would be replaced; choose another output
    """
    read = {os.path.realpath(each) for each in inputs if isinstance(each, str | Path)}
    for each in outputs:
        if isinstance(each, str | Path) and os.path.realpath(each) in read:
            raise InputError(f"{each}: is an input, and would be replaced; choose another output")


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
    plain = json.loads(json.dumps(value, allow_nan=False))  # as it is read: tuples are lists, keys text
    write_json(path, {**plain, "sha256": _seal(plain)})


def read_sealed(path: str | Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote; anything else, or a changed file, is an `InputError`."""
    value = read_json(path)
    if not isinstance(value, dict) or "sha256" not in value:
        raise InputError(f"{path}: has no checksum, so it is damaged or not a file that Tertium wrote")
    if value.pop("sha256") != _seal(value):
        raise InputError(f"{path}: was changed after it was written, or is damaged")
    return value


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
