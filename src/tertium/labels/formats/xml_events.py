"""XML of any size, read as events; nothing in it is expanded or fetched."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from tertium.errors import InputError

_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"


def parse(
    path: Path,
    start: Callable[[str, dict[str, str]], Any],
    end: Callable[[str], Any],
    data: Callable[[str], Any],
) -> None:
    """Call ``start``, ``end`` and ``data`` for elements and their text, block by block; also gzipped.

    A document type, which could define entities that expand without end, is refused.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = data
    parser.StartDoctypeDeclHandler = _Refused.raise_it
    try:
        with open(path, "rb") as raw:
            if not path.stat().st_size:
                raise InputError(f"{path}: the file is empty")
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            while block := stream.read(_BLOCK):
                parser.Parse(block, False)
            parser.Parse(b"", True)
    except InputError:  # of a handler
        raise
    except _Refused:
        raise InputError(f"{path}: has a document type (<!DOCTYPE …>), which is not read") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a file") from None
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise InputError(f"{path}: not valid XML ({error})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read, or is damaged ({error})") from None


class _Refused(Exception):
    @classmethod
    def raise_it(cls, *_: Any) -> None:
        raise cls
