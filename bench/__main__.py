"""Measure every part, or those named: ``python -m bench metrics engine``.

All parts together are also written to bench/results.json, with the machine and the versions; ``--out`` writes
elsewhere, and ``--update`` puts the rows of single parts there. ``--smoke`` uses tiny sizes, to see that
every part runs: its figures mean nothing.
"""

import argparse
from pathlib import Path

from bench import (
    cluster,
    engine,
    inference,
    jobs,
    json_size,
    labels,
    linear,
    load,
    losses,
    metrics,
    neighbours,
    openimages,
    serving,
    storage,
    streaming,
    threads,
    together,
)
from bench.measure import show
from bench.results import read, updated, write

PARTS = {
    "metrics": metrics,
    "labels": labels,
    "engine": engine,
    "linear": linear,
    "losses": losses,
    "neighbours": neighbours,
    "openimages": openimages,
    "json_size": json_size,
    "streaming": streaming,
    "inference": inference,
    "serving": serving,
    "storage": storage,
    "threads": threads,
    "load": load,
    "together": together,
    "jobs": jobs,
    "cluster": cluster,
}
RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {', '.join(PARTS)}")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only see that every part runs")
    parser.add_argument("--out", type=Path, help="where the rows go, .json")
    parser.add_argument("--update", action="store_true", help="only replace the rows of these parts there")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f'there is no part "{unknown[0]}"; the parts are {", ".join(PARTS)}')
    found = []
    for name in options.parts or PARTS:
        rows = PARTS[name].rows(smoke=options.smoke)
        show(rows)
        found += rows
    judged = [each["met"] for each in found if each["met"] is not None]
    print(f"{sum(judged)} of {len(judged)} targets met")
    whole = not options.parts and not options.smoke
    out = options.out or (RESULTS if whole or options.update else None)
    if out is not None:
        write(out, updated(read(out)["rows"], found) if options.update and out.is_file() else found)
        print(f"Written: {out}")


if __name__ == "__main__":
    main()
