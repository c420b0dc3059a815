"""Two results side by side, with the ratio of new to old: ``python -m bench.compare OLD.json NEW.json``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.results import read


def lines(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each row of either; rows belong together by part and case."""
    for name, results in (("old", old), ("new", new)):
        described = {**results["machine"], **results["versions"]}
        yield f"{name}: {results['date']}, {', '.join(f'{key} {value}' for key, value in described.items())}"
    before, after = ({(row["part"], row["case"]): row for row in each["rows"]} for each in (old, new))
    yield f"{'part':<16} {'case':<66} {'old':>9} {'new':>9} {'new/old':>8}  target"
    for key in before | after:
        rows = [found.get(key) for found in (before, after)]
        values = [None if row is None else row["value"] for row in rows]
        ratio = values[1] / values[0] if None not in values and values[0] else None
        shown = [f"{'–' if value is None else format(value, '.3g'):>9}" for value in values]
        target = next(row["target"] for row in reversed(rows) if row is not None)
        yield (
            f"{key[0]:<16} {key[1]:<66} {' '.join(shown)} "
            f"{'–' if ratio is None else format(ratio, '.2f'):>8}  {target}{verdict(rows)}"
        )


def verdict(rows: list[dict[str, Any] | None]) -> str:
    """Say whether a target was lost or reached."""
    met = [None if row is None else row["met"] for row in rows]
    return {(True, False): "  LOST", (False, True): "  reached", (False, False): "  NOT MET"}.get(
        (met[0], met[1]), ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    for line in lines(read(options.old), read(options.new)):
        print(line)


if __name__ == "__main__":
    main()
