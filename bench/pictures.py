"""Pictures of runs that are kept: python -m bench.pictures FOLDER writes rivals.svg and memorisation.svg.

Nothing is trained. `bench.tuned` and `bench.whole` make the runs; without any, there is no picture of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.cells import Evidence, Figures
from bench.tuned import FILE, METHODS, Tuned
from bench.whole import LARGE, Tables, opened
from tertium.config import SCHEMES
from tertium.reporting.svg import COLOURS, INK, drawing
from tertium.training.memorisation import KINDS

WAYS = ("defaults", "tuned on known labels", "tuned on true labels")
PAPER = "#ffffff"  # pages show a picture on whatever ground they have


def rivals(tuned: Tuned, schemes: Sequence[str]) -> Figure:
    """Return how far each method is from `auto`, at its defaults and tuned, a panel for each scheme."""
    figure = Figure(figsize=(13, 10))
    panels = figure.subplots(2, 3).ravel()
    for axes, scheme in zip(panels, schemes, strict=True):
        _rivals(axes, tuned, scheme)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(WAYS))
    return figure


def _rivals(axes: Axes, tuned: Tuned, scheme: str) -> None:
    own = tuned.scores(scheme, "auto", 1)
    axes.set(title=scheme, xlabel="test mAP, ahead of auto")
    axes.axvline(0, color=INK, linewidth=1)
    if own is None:
        return
    found = {method: tuned.ways(scheme, method) for method in METHODS}
    ahead = {
        method: [np.nan if scores is None else (scores - own).mean() for scores in ways]
        for method, ways in found.items()
        if ways[0] is not None
    }
    order = sorted(ahead, key=lambda method: np.nanmax(ahead[method]))
    for way, (name, colour) in enumerate(zip(WAYS, COLOURS, strict=False)):
        places = [ahead[method][way] for method in order]
        axes.plot(places, range(len(order)), "o", color=colour, markersize=5, label=name)
    axes.set_yticks(range(len(order)), order)


def memorisation(tables: Tables, data: str, way: str) -> Figure:
    """Return the loss of each kind of label and the test mAP, epoch by epoch."""
    figure = Figure(figsize=(13, 3.6))
    shown = (*KINDS, "tests")
    runs = {method: tables.found(data, "single_positive", method, way) for method in LARGE}
    for axes, name in zip(figure.subplots(1, len(shown)), shown, strict=True):
        _curves(axes, {method: found[0] for method, found in runs.items() if 0 in found}, name)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(LARGE))
    return figure


def _curves(axes: Axes, runs: dict[str, Figures], name: str) -> None:
    factor = 100 if name == "tests" else 1
    for (method, run), colour in zip(runs.items(), COLOURS, strict=False):
        values = factor * np.array(run[name])
        axes.plot(range(1, len(values) + 1), values, color=colour, marker=".", label=method)
    title = "test mAP in %" if name == "tests" else f"loss, {name.replace('_', ' ')}s"
    axes.set(title=title, xlabel="epoch")
    if name != "tests":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def main(folder: Path) -> None:
    with drawing():
        drawn = {"rivals": rivals(Tuned(Evidence(FILE)), SCHEMES.split(","))}
        tables = Tables(opened())
        if tables.found("coco", "single_positive", LARGE[0], "theirs"):
            drawn["memorisation"] = memorisation(tables, "coco", "theirs")
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", facecolor=PAPER, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
