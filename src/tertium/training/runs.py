"""The folder of a training run."""

from __future__ import annotations

import json
import platform
import shutil
import zlib
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tertium.errors import InputError
from tertium.files import read_sealed, replacing, write_sealed

ANSWERS = "review.sqlite"  # what people said of its questions: nothing that training could make again
_VERSIONS = ("tertium", "torch", "timm", "lightning", "numpy")


@dataclass(frozen=True)
class RunFolder:
    """``config.json``, ``metrics.jsonl``, ``log.txt``, the best model, and at the end ``summary.json``."""

    path: Path

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """Make an empty run folder; refuse one that holds anything, unless it is a run to be overwritten."""
        path = Path(path)
        cls.check_free(path, overwrite=overwrite)
        if path.is_dir() and overwrite and (path / "config.json").exists():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @staticmethod
    def check_free(path: Path, *, overwrite: bool) -> None:
        """Raise `InputError` if a run cannot be written here; called before any long work begins."""
        if path.is_file():
            raise InputError(f"{path}: is a file, not a folder")
        if not path.is_dir() or not any(path.iterdir()):
            return
        if not (path / "config.json").exists():
            raise InputError(f"{path}: the folder is not empty and holds no run; choose another --out")
        if not overwrite:
            raise InputError(f"{path}: already holds a run; choose another --out, or add --overwrite")
        if (path / ANSWERS).exists():
            raise InputError(
                f"{path}: holds people's answers ({ANSWERS}); move them, or choose another --out"
            )

    def write_config(self, settings: dict[str, Any], data: dict[str, Any]) -> None:
        """Write what decides the outcome: the resolved settings, the data, the versions."""
        versions = {name: version(name) for name in _VERSIONS} | {"python": platform.python_version()}
        write_sealed(self.path / "config.json", {"settings": settings, "data": data, "versions": versions})

    def append(self, record: dict[str, Any]) -> None:
        """Add one epoch to ``metrics.jsonl``."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as lines:
            lines.write(_line(record))

    def rewrite(self, records: list[dict[str, Any]]) -> None:
        """Set ``metrics.jsonl`` back to these epochs."""
        with replacing(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(_line(record) for record in records), encoding="utf-8")

    def log(self, text: str) -> None:
        """Add a line to ``log.txt``."""
        with open(self.path / "log.txt", "a", encoding="utf-8") as lines:
            lines.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")

    def finish(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: its presence says that the run is complete."""
        write_sealed(self.path / "summary.json", summary)

    # ---- reading -----------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return a folder that holds a run."""
        path = Path(path)
        if not (path / "config.json").is_file():
            raise InputError(f"{path}: {'holds no run' if path.is_dir() else 'no such run folder'}")
        return cls(path)

    def config(self) -> dict[str, Any]:
        """Return the resolved settings, the data and the versions."""
        return read_sealed(self.path / "config.json")

    def summary(self) -> dict[str, Any]:
        """Return the final figures; empty if the run has not finished."""
        path = self.path / "summary.json"
        return read_sealed(path) if path.is_file() else {}

    def records(self) -> list[dict[str, Any]]:
        """Return the figures of each epoch."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        # A run that was killed may have left half a line behind the last whole one.
        whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
        return [_record(line, f"{path}: line {n}") for n, line in enumerate(whole.splitlines(), start=1)]


def _line(record: dict[str, Any]) -> str:
    """Return a line of ``metrics.jsonl``, with a checksum that tells a changed byte."""
    text = json.dumps(record, allow_nan=False)
    return json.dumps(record | {"crc32": zlib.crc32(text.encode())}, allow_nan=False) + "\n"


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        wanted = record.pop("crc32", None)
    except (json.JSONDecodeError, AttributeError):
        raise InputError(f"{where}: not a record of an epoch; the file is damaged") from None
    if wanted is not None and wanted != zlib.crc32(json.dumps(record, allow_nan=False).encode()):
        raise InputError(f"{where}: was changed after it was written, or is damaged")
    return record
