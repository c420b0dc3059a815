"""How things are measured, and how a row of the table looks."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

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
