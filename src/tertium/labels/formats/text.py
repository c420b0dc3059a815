"""Files of a published format as bytes, lines and arrays; a damaged one is an `InputError` that names it."""

from __future__ import annotations

import gzip
import math
import tokenize
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError

_GZIP = b"\x1f\x8b"
_BAD_HEADERS = (
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    SyntaxError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, unpacked if it is gzipped."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a file")
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(_GZIP) else data
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read, or is damaged ({error})") from None
    if not data:
        raise InputError(f"{path}: the file is empty")
    return data


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines, without their ends; a byte-order mark is dropped."""
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise InputError(f"{path}: line {line} is not UTF-8 (byte 0x{byte:02x}); save it as UTF-8") from None
    # Not str.splitlines, which also breaks lines at characters that may stand in a name.
    return text.removesuffix("\n").replace("\r\n", "\n").removesuffix("\r").split("\n")


def read_names(path: Path) -> list[str]:
    """Return the names of a file that has one a line, each only once."""
    lines = [line.strip() for line in read_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, name in enumerate(lines, start=1):
        if not name:
            raise InputError(f"{path}: line {number}: the name is empty")
        if name in seen:
            raise InputError(f'{path}: line {number}: "{name}" already stands in line {seen[name]}')
        seen[name] = number
    if not seen:
        raise InputError(f"{path}: there are no names in it, one a line")
    return list(seen)


def read_array(path: Path) -> npt.NDArray[Any]:
    """Return the array of a .npy file; nothing in it is unpickled."""
    data = read_bytes(path)
    stream = BytesIO(data)
    try:
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[np.lib.format.read_magic(stream)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that Python 2 wrote it is no concern of a user
            shape, by_column, kind = header(stream)
        size = math.prod(shape) * kind.itemsize
    except _BAD_HEADERS as error:
        raise InputError(f"{path}: not a .npy file, or a damaged one ({error})") from None
    if kind.hasobject:
        raise InputError(
            f"{path}: holds pickled Python objects, which are not read; if you trust the file, save it as "
            "text with np.save(path, np.load(path, allow_pickle=True).astype(str))"
        )
    found = len(data) - stream.tell()
    if size != found or min(shape, default=0) < 0:
        raise InputError(f"{path}: its header promises {size:,} bytes of values and {found:,} are there")
    if not size:
        raise InputError(f"{path}: the array is empty (shape {shape})")
    flat = np.frombuffer(data, dtype=kind, offset=stream.tell())
    return flat.reshape(shape, order="F" if by_column else "C")
