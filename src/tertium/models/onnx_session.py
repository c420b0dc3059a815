"""ONNX files opened with ONNX Runtime. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tertium.errors import InputError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


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
    options.intra_op_num_threads, options.inter_op_num_threads = threads or 0, 1
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
