"""The page about a comparison of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tertium.comparing import Entry, mean_over
from tertium.report.page import template, write_together
from tertium.svg import embedded

_VERSIONS = ("tertium", "torch", "numpy")


def write_comparison(
    folder: str | Path,
    table: Mapping[str, Mapping[str, Entry]],
    schemes: Sequence[str],
    settings: Mapping[str, Any],
    command: str | None = None,
) -> Path:
    """Write ``report.html`` into the folder of a comparison: its table (method → scheme → entry), its figure.

    The figure is ``table.svg`` in the folder. The page needs neither network nor JavaScript.
    """
    folder = Path(folder)
    ceiling = table.get("bce", {}).get("full")
    rows = {name: row for name, row in table.items() if any(scheme in row for scheme in schemes)}
    means = {name: mean_over(row, schemes) for name, row in rows.items()}
    page = template("comparison.html").render(
        title="Comparison of methods",
        command=command,
        schemes=schemes,
        ceiling=ceiling if ceiling is not None and ceiling.mean is not None else None,
        rows=sorted(rows.items(), key=lambda item: -(means[item[0]] or 0)),
        means=means,
        figure=embedded((folder / "table.svg").read_text(encoding="utf-8"), "figure"),
        settings={"settings": dict(settings), "versions": {name: version(name) for name in _VERSIONS}},
    )
    write_together({folder / "report.html": page})
    return folder / "report.html"
