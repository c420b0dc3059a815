"""Label files of very many rows: what converting, merging, describing and evaluating take for each row.

``python -m bench.label_scale 20 60`` measures at 20 and 60 million rows, which needs 9 GB of disk; the last
columns are what a thousand million rows would take if memory and time went on growing as between the two.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.measure import Row, row, show
from bench.openimages import generate

EACH = 20 / 3  # rows of an image, as in Open Images
BILLION = 1_000.0  # millions
_SCORED = 4096  # images whose scores are used again and again


class Cost(NamedTuple):
    """What a command takes."""

    seconds: float
    processor: float
    own: float  # gigabytes at most, without pages of mapped files, which the system can take back
    resident: float  # gigabytes at most, with them


def rows(smoke: bool = False, millions: tuple[float, ...] = (2, 6)) -> list[Row]:
    """Measure at two sizes; report what each takes, and how much more memory the larger one needs."""
    sizes = (0.002, 0.006) if smoke else millions
    found = {size: measured(round(size * 1e6), here if smoke else apart) for size in sizes}
    result = []
    for name in found[sizes[0]]:
        costs = [found[size][name] for size in sizes]
        for size, cost in zip(sizes, costs, strict=True):
            for what, value in cost._asdict().items():
                result.append(row("label scale", f"{name}, {size:g}M rows: {_WORDS[what]}", value, "≤", None))
        if len(sizes) > 1:
            small, large = costs[0], costs[-1]
            step = (BILLION - sizes[-1]) / (sizes[-1] - sizes[0])
            for what in ("processor", "own"):
                grown = max(getattr(large, what) - getattr(small, what), 0.0)
                value = getattr(large, what) + grown * step
                result.append(
                    row("label scale", f"{name}, 1,000M rows if so: {_WORDS[what]}", value, "≤", None)
                )
    return result


_WORDS = {
    "seconds": "seconds",
    "processor": "processor seconds",
    "own": "own gigabytes at most",
    "resident": "gigabytes at most with mapped files",
}


def measured(lines: int, cost: Callable[..., Cost]) -> dict[str, Cost]:
    """Run each command on generated files."""
    images = round(lines / EACH)
    with tempfile.TemporaryDirectory(prefix="tertium-bench-") as name:
        folder = Path(name)
        source, out = folder / "labels.csv", folder / "labels.arrow"
        found = {}
        for order in ("grouped", "shuffled"):
            generate(source, lines, images, shuffled=order == "shuffled")
            words = ["convert", "openimages", source, "--out", out, "--overwrite"]
            found[f"convert, rows {'grouped by image' if order == 'grouped' else 'in random order'}"] = cost(
                *words
            )
        found["describe"] = cost("describe", out)
        source.unlink()
        found["evaluate known labels"] = cost("evaluate-known", out)
        halves = [folder / "a.arrow", folder / "b.arrow"]
        cost("halves", out, *halves)
        out.unlink()
        found["merge"] = cost("merge", *halves, "--out", out)
        return found


# ---- in a process of its own -------------------------------------------------------------------------------


def here(*words: str | Path) -> Cost:
    """Run a command in this process, only to see that it works."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        perform(list(map(str, words)))
    return Cost(0.0, 0.0, 0.0, 0.0)


def apart(*words: str | Path) -> Cost:
    """Run a command of the command line, or one of this file, in a process of its own; see what it takes."""
    command = [sys.executable, "-m", "bench.label_scale", "run", *map(str, words)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    processor, own, resident = map(float, done.stdout.rsplit("\n", 2)[-2].split())
    return Cost(time.perf_counter() - start, processor, own, resident)


def run(words: list[str]) -> None:
    """Do what was asked for, and print what it took."""
    most = [0.0]
    threading.Thread(target=_watch, args=[most], daemon=True).start()
    perform(words)
    print(f"\n{time.process_time()} {max(most[0], _status('RssAnon'))} {_status('VmHWM')}")


def perform(words: list[str]) -> None:
    if words[0] == "evaluate-known":
        evaluate_known_labels(Path(words[1]))
    elif words[0] == "halves":
        write_halves(*map(Path, words[1:]))
    else:
        from tertium.cli import app

        app(words, standalone_mode=False)


def _watch(most: list[float]) -> None:
    while True:
        most[0] = max(most[0], _status("RssAnon"))
        time.sleep(0.02)


def _status(key: str) -> float:
    """Return a size of this process in gigabytes."""
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) * 1024 / 1e9


def evaluate_known_labels(path: Path) -> None:
    """Evaluate scores that come block by block: the same block again and again, which costs nothing."""
    from tertium.labels import Labels
    from tertium.metrics.evaluation import evaluate_known
    from tertium.metrics.ranking import KnownScores

    labels = Labels.load(path)
    scores = np.random.default_rng(0).random(
        (min(_SCORED, len(labels)), len(labels.classes)), dtype=np.float32
    )
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as place,
        KnownScores(labels, labels.classes, place) as known,
    ):
        for start in range(0, len(labels), len(scores)):
            known.add(scores[: len(labels) - start])
        known.close()
        evaluate_known(known)


def write_halves(source: Path, first: Path, second: Path) -> None:
    """Write two label files that have a tenth of the images in common."""
    from tertium.labels import Labels

    labels = Labels.load(source)
    count = len(labels)
    labels[: round(0.55 * count)].save(first)
    labels[round(0.45 * count) :].save(second)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    else:
        show(rows(millions=tuple(map(float, sys.argv[1:])) or (2, 6)))
