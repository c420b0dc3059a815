"""The page about a comparison of methods, and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tertium.comparing import (
    ABOUT,
    Comparison,
    Entry,
    Work,
    check_folder,
    columns_from,
    mean_over,
    on_ray,
    on_this_machine,
    rows_from,
    summarise,
    write_results,
)
from tertium.comparing import compare as run_cells
from tertium.config import SCHEMES
from tertium.files import make_folder, read_json, replacing
from tertium.labels.opening import place_of
from tertium.labels.readers import LabelFile, Unlisted
from tertium.progress import Progress
from tertium.reporting.page import template, write_together
from tertium.reporting.svg import COLOURS, INK, drawing, inline, panel

Table = Mapping[str, Mapping[str, Entry]]  # method → scheme → entry
_VERSIONS = ("tertium", "torch", "numpy")
_FEW = 3  # seeds below which an interval says next to nothing
_LETTER, _LINE = 0.085, 0.22  # inches of a letter and of a line, roughly
_WIDEST = 24  # letters of a name on one line
_ACROSS = 3  # panels beside each other in the file


@dataclass(frozen=True)
class Compared:
    """What `compare` found and wrote."""

    found: Comparison
    table: str  # the main table, as Markdown
    report: Path


def compare(
    labels: LabelFile | str | Path,
    features: str | Path,
    *,
    out: str | Path,
    test_features: str | Path | None = None,
    schemes: str = SCHEMES,
    partial: Sequence[str | Path] = (),
    methods: str = "all",
    seeds: int = 5,
    sample: int | None = None,
    search: int = 1,
    clean_validation: bool = False,
    every_epoch: bool = False,
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    actors: int | None = None,
    unlisted: Unlisted = "unknown",
    settings: Mapping[str, Any] | None = None,
    command: str | None = None,
    progress: Progress | None = None,
) -> Compared:
    """Train every method under every scheme, on the same hidden labels; write tables, a figure and a page.

    The labels need the splits train and test, and should be full. Nothing is chosen on test labels. Finished
    work stays in ``out``, so a comparison that was stopped continues. The engine "ray" trains in so many
    ``actors`` of a Ray cluster, started here or joined at its ``address``. `tertium compare --help` explains
    the rest.
    """
    out = Path(out)
    columns = columns_from(schemes, [Path(file) for file in partial])
    tests = None if test_features is None else str(test_features)
    rows = rows_from(methods)
    check_folder(out, [place_of(labels), features, test_features, *partial])
    make_folder(out)
    found = run_cells(
        Work(
            labels if isinstance(labels, LabelFile) else str(labels), str(features), unlisted, tests, sample
        ),
        out,
        rows=rows,
        columns=columns,
        settings=settings,
        seeds=seeds,
        search=search,
        clean=clean_validation,
        every_epoch=every_epoch,
        pool=on_ray(address, actors) if engine == "ray" else on_this_machine(jobs),
        progress=progress,
    )
    names = [column.name for column in columns]
    table = write_results(out, found, names)
    return Compared(
        found, table, write_comparison(out, summarise(found.cells), names, settings or {}, command)
    )


def write_comparison(
    folder: str | Path,
    table: Table,
    schemes: Sequence[str],
    settings: Mapping[str, Any],
    command: str | None = None,
) -> Path:
    """Write ``report.html`` into the folder of a comparison: its table (method → scheme → entry), its figure.

    The figure alone is ``table.svg``. How many images and seeds there were is read from the folder, where
    `write_results` has put it. The page needs neither network nor JavaScript.
    """
    folder = Path(folder)
    ceiling = table.get("bce", {}).get("full")
    rows = {name: row for name, row in table.items() if any(scheme in row for scheme in schemes)}
    means = {name: mean_over(row, schemes) for name, row in rows.items()}
    about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
    page = template("comparison.html").render(
        title="Comparison of methods",
        command=command,
        about=about,
        few=about.get("seeds", _FEW) < _FEW,
        schemes=schemes,
        ceiling=ceiling if ceiling is not None and ceiling.mean is not None else None,
        rows=sorted(rows.items(), key=lambda item: -(means[item[0]] or 0)),
        means=means,
        panels=_panels(table, schemes),
        settings={"settings": dict(settings), "versions": {name: version(name) for name in _VERSIONS}},
    )
    _draw(folder / "table.svg", table, schemes)
    write_together({folder / "report.html": page})
    return folder / "report.html"


# ---- the figure ------------------------------------------------------------------------------------------


def _panels(table: Table, schemes: Sequence[str]) -> list[Any]:
    """Return a panel for each scheme, to be put side by side or below each other."""
    drawn = []
    with drawing():
        for number, scheme in enumerate(schemes):
            lines = sum(1 + _wrapped(name).count("\n") for name in _known(table, scheme))
            figure, axes = panel(scheme, "test mAP in %", "", height=1.1 + _LINE * lines)
            _fill(axes, table, scheme)
            axes.set_xlim(*_range(table, schemes))
            longest = max((len(line) for name in table for line in _wrapped(name).split("\n")), default=0)
            figure.subplots_adjust(left=(0.3 + _LETTER * longest) / figure.get_figwidth())
            drawn.append(inline(figure, f"scheme{number}"))
    return drawn


def _draw(path: Path, table: Table, schemes: Sequence[str]) -> None:
    """Write all panels as one file."""
    with drawing(), replacing(path) as temporary:
        most = max(
            sum(1 + _wrapped(name).count("\n") for name in _known(table, scheme)) for scheme in schemes
        )
        columns = min(_ACROSS, len(schemes))
        rows = -(-len(schemes) // columns)
        width = max(4.2, _LETTER * _WIDEST + max(2.6, 0.11 * max(map(len, schemes))))
        figure = Figure(figsize=(width * columns, rows * (1.1 + _LINE * most)))
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(schemes) :]:
            axes.set_axis_off()
        for axes, scheme in zip(panels, schemes, strict=False):
            _fill(axes, table, scheme)
            axes.set(title=scheme, xlabel="test mAP in %", xlim=_range(table, schemes))
        figure.savefig(temporary, format="svg")


def _fill(axes: Axes, table: Table, scheme: str) -> None:
    """Draw methods from the best down, with intervals, beside the ceiling."""
    known = _known(table, scheme)
    order = sorted(known, key=lambda name: known[name].mean or 0)
    for place, name in enumerate(order):
        low, mean, high = _ends(known[name])
        colour = COLOURS[0] if known[name].best else COLOURS[6]
        axes.hlines(place, low, high, colors=colour, linewidth=2)
        axes.plot(mean, place, "o", color=colour, markersize=4)
    axes.set_yticks(range(len(order)), [_wrapped(name) for name in order])
    axes.set_ylim(-0.7, max(len(order), 1) - 0.3)  # neither the first nor the last lies on an edge
    ceiling = table.get("bce", {}).get("full")
    if ceiling is not None and ceiling.mean is not None:
        axes.axvline(100 * ceiling.mean, color=INK, linewidth=1, linestyle="--")


def _known(table: Table, scheme: str) -> dict[str, Entry]:
    return {
        name: row[scheme] for name, row in table.items() if scheme in row and row[scheme].mean is not None
    }


def _ends(entry: Entry) -> tuple[float, float, float]:
    mean, half = 100 * (entry.mean or 0), 100 * (entry.half or 0)
    return mean - half, mean, mean + half


def _range(table: Table, schemes: Sequence[str]) -> tuple[float, float]:
    """Return from where to where the axes of all panels go, so that they can be compared."""
    entries = [entry for scheme in schemes for entry in _known(table, scheme).values()]
    entries += _known(table, "full").values()
    ends = [end for entry in entries for end in _ends(entry)] or [0.0, 100.0]
    margin = 0.04 * (max(ends) - min(ends)) + 0.5
    return min(ends) - margin, max(ends) + margin


def _wrapped(name: str) -> str:
    """Break the name of a variant after a comma.

    >>> _wrapped("selective:likelihood=false,prior=none")
    'selective:likelihood=false,\\nprior=none'
    """
    return fill(name.replace(",", ", "), _WIDEST, break_long_words=False).replace(", ", ",")
