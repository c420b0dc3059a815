"""What was measured, on which machine and with which versions: bench/results.json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.measure import Row
from tertium.files import write_json

PACKAGES = ("torch", "numpy", "onnxruntime")


def write(path: Path, rows: Sequence[Row]) -> None:
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "rows": list(rows),
    }
    write_json(path, results)


def read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def updated(rows: Sequence[Row], newer: Sequence[Row]) -> list[Row]:
    """Return the rows with those of newer parts in the places of theirs; what is new comes last."""
    parts: dict[str, list[Row]] = {}
    for each in rows:
        parts.setdefault(each["part"], []).append(each)
    again: dict[str, list[Row]] = {}
    for each in newer:
        again.setdefault(each["part"], []).append(each)
    return [each for part in (parts | again).values() for each in part]


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": cpu(), "cores": os.cpu_count(), "memory_gb": round(memory / 1e9, 1)}


def cpu() -> str:
    """Return the name of the processor: Linux keeps it in a file, elsewhere Python may know it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
