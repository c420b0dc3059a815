"""How things are measured, and how a row of the table looks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]


def medians(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Time the calls in turn, so that a busy moment of the machine slows all of them."""
    seconds = np.empty((repeats, len(calls)))
    for repeat in range(repeats):
        for number, call in enumerate(calls):
            start = time.perf_counter()
            call()
            seconds[repeat, number] = time.perf_counter() - start
    return np.median(seconds, axis=0).tolist()


def paired_ratio(base: Callable[[], Any], other: Callable[[], Any], repeats: int) -> float:
    """Return how many times as long ``other`` takes: the median over pairs measured one after the other."""
    pairs = np.array([medians([base, other] if turn % 2 else [other, base], 1) for turn in range(repeats)])
    pairs[0::2] = pairs[0::2, ::-1]
    return float(np.median(pairs[:, 1] / pairs[:, 0]))


def peak(call: Callable[[], Any]) -> int:
    """Return the most bytes that a call had allocated at once."""
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


class Cost(NamedTuple):
    """What a process took."""

    wall: float  # seconds
    work: float  # processor seconds
    peak: float  # bytes


# A process counts its peak itself: what the system says of a child includes the parent that it was made from.
_CHILD = """
try:
    {program}
finally:
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0], file=open({place!r}, "w"))
"""


def cost(program: str, *words: str | Path) -> Cost:
    """Run a line of Python in a process of its own, with these words as its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "peak"
        code = _CHILD.format(program=program, place=str(place))
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        said = process.stderr.read().decode() if process.stderr else ""
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{program} {' '.join(map(str, words))} failed: {said.strip()[-500:]}")
        return Cost(wall, used.ru_utime + used.ru_stime, 1024 * int(place.read_text()))


def row(part: str, case: str, value: float, sign: str, bound: float | None) -> Row:
    """Return a line of the table: a value beside its target, if there is one."""
    if bound is None:
        return {"part": part, "case": case, "value": float(value), "target": "", "met": None}
    met = bool(value >= bound if sign == "≥" else value <= bound)
    return {"part": part, "case": case, "value": float(value), "target": f"{sign} {bound:g}", "met": met}


def show(rows: Sequence[Row]) -> None:
    """Print lines of the table."""
    for each in rows:
        met = {True: "met", False: "NOT MET", None: ""}[each["met"]]
        print(
            f"{each['part']:<16} {each['case']:<66} {each['value']:>9.3g}  {each['target']:>8}  {met}",
            flush=True,
        )
