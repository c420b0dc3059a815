"""ONNX files opened with ONNX Runtime. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tertium.errors import InputError
from tertium.threads import THREADS, cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# How an ONNX file encodes the piece of metadata "tertium_sha256"; its value follows.
_SEAL = b"\x72\x52\x0a\x0etertium_sha256\x12\x40"
_DIGITS = 64


def seal(path: str | Path) -> None:
    """Append a checksum of all that an ONNX file holds, as its last piece of metadata."""
    content = Path(path).read_bytes()
    with open(path, "ab") as file:
        file.write(_SEAL + _digest(content))


def is_sealed(path: str | Path) -> bool:
    """Return whether an ONNX file ends with a checksum; one that does not fit the rest is an `InputError`."""
    if not Path(path).is_file():
        return False
    content = Path(path).read_bytes()
    start = max(len(content) - len(_SEAL) - _DIGITS, 0)
    if not content.startswith(_SEAL, start):
        return False
    if content[start + len(_SEAL) :] != _digest(memoryview(content)[:start]):
        raise InputError(f"{path}: was changed after it was written, or is damaged; export it again")
    return True


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def session(path: str | Path, threads: int | None = None) -> InferenceSession:
    """Open an ONNX file on the CPU with this many threads, or one for each core."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise InputError(
            "running ONNX files needs the package onnxruntime: pip install 'tertium[onnx]'"
        ) from None
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    told = cores() if THREADS in os.environ else 0
    options.intra_op_num_threads, options.inter_op_num_threads = threads or told, 1
    # Threads that wait in a loop would take the time of whatever else runs on the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors, which are raised as well
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes of errors have no name outside the compiled part
        raise InputError(f"{path}: not a model for ONNX Runtime ({_first_line(error)})") from None


def about(path: str | Path) -> dict[str, str]:
    """Return what the writer of an ONNX file has said of it."""
    found: dict[str, str] = session(path, 1).get_modelmeta().custom_metadata_map
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
