"""Measure every part, or those named: ``python -m bench metrics engine``."""

import sys

from bench import engine, labels, metrics
from bench.measure import show

PARTS = {"metrics": metrics, "labels": labels, "engine": engine}


def main() -> None:
    names = sys.argv[1:] or list(PARTS)
    found = []
    for name in names:
        rows = PARTS[name].rows()
        show(rows)
        found += rows
    print(f"{sum(each['met'] for each in found)} of {len(found)} targets met")


if __name__ == "__main__":
    main()
