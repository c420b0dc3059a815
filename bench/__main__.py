"""Measure every part, or those named: ``python -m bench metrics engine``."""

import sys

from bench import (
    engine,
    inference,
    json_size,
    labels,
    load,
    losses,
    metrics,
    neighbours,
    openimages,
    serving,
    streaming,
    threads,
)
from bench.measure import show

PARTS = {
    "metrics": metrics,
    "labels": labels,
    "engine": engine,
    "losses": losses,
    "neighbours": neighbours,
    "openimages": openimages,
    "json_size": json_size,
    "streaming": streaming,
    "inference": inference,
    "serving": serving,
    "threads": threads,
    "load": load,
}


def main() -> None:
    names = sys.argv[1:] or list(PARTS)
    found = []
    for name in names:
        rows = PARTS[name].rows()
        show(rows)
        found += rows
    judged = [each["met"] for each in found if each["met"] is not None]
    print(f"{sum(judged)} of {len(judged)} targets met")


if __name__ == "__main__":
    main()
