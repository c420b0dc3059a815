"""SVG figures in the page's own font and colours; the same numbers give the same bytes."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

COLOURS = (
    *("#0080c6", "#e08a00", "#009e73", "#d5573b", "#b565a7", "#7f8c1f", "#8c6d5a", "#46b1c9"),
    *("#6f5bd0", "#a3325c", "#8fc23c", "#5f7a8a"),
)
INK = "#123456"  # stands for the colour of the page's text, which is another in the dark and on paper
_NAMED, _SHOWN = 40, 1000  # classes named on an axis, and shown on one
_LOGARITHMIC = " (logarithmic)"
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
_LOOK: dict[Any, Any] = {
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.usetex"), False),
    **dict.fromkeys(("figure.constrained_layout.use", "axes.grid", "axes.axisbelow"), True),
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "grid.alpha": 0.15,
    "svg.fonttype": "none",  # text stays text: it can be searched, and the browser has the fonts
    "svg.hashsalt": "tertium",
    "text.parse_math": False,  # a class may be called "$"
}


@contextmanager
def drawing() -> Iterator[None]:
    """Make and write figures inside this, so that they look alike."""
    with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has it
        yield


def panel(title: str, x: str, y: str, height: float = 3.0) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, of a width that can be read on a phone.

    Its margins are set here, in inches: to have them found takes longer than all the drawing.
    """
    width, left, right, top, bottom = 4.7, 0.85 if y else 0.15, 0.12, 0.3 if title else 0.12, 0.52
    layout: Any = "none"  # which matplotlib takes, but its types do not know
    figure = Figure(figsize=(width, height), layout=layout)
    axes = figure.subplots()
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def make_room(figure: Figure, below: float) -> None:
    """Make a figure higher by so many inches, all of them below its axes."""
    height, margins = figure.get_figheight(), figure.subplotpars
    total = height + below
    figure.set_figheight(total)
    figure.subplots_adjust(
        bottom=(margins.bottom * height + below) / total, top=1 - (1 - margins.top) * height / total
    )


def add_legend(figure: Figure, axes: Axes) -> None:
    """Put the names below the axes, each once, and make the figure higher by as much."""
    handles, names = axes.get_legend_handles_labels()
    entries = {fill(name, 55): handle for name, handle in zip(names, handles, strict=True)}
    columns = 2 if max(map(len, entries)) <= 22 else 1
    lines = sum(1 + name.count("\n") for name in entries)
    make_room(figure, 0.06 + 0.2 * math.ceil(lines / columns))
    figure.legend(list(entries.values()), list(entries), loc="lower left", ncols=columns, fontsize=9)


def name_ticks(figure: Figure, axes: Axes, places: Sequence[int], names: Sequence[str]) -> None:
    """Name places along the axis, upwards, and make the figure higher by as much as the names need."""
    axes.set_xticks(places, names, size=8 if len(names) <= 32 else 7, rotation=90)
    make_room(figure, 0.064 * max(map(len, names), default=0))


def scale_to(axis: XAxis | YAxis, values: npt.NDArray[Any]) -> None:
    """Make an axis logarithmic if what it shows spans more than two decades; counts keep a place for 0."""
    if not spans_decades(values):
        return
    set_scale = getattr(axis.axes, f"set_{axis.axis_name}scale")
    if np.issubdtype(values.dtype, np.integer):
        set_scale("symlog", linthresh=1)
    else:
        set_scale("log")
    axis.set_label_text(axis.get_label_text() + _LOGARITHMIC)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_formatter(_Between(minor_thresholds=(1, 0.4)))


class _Between(LogFormatter):
    """Names places between the powers of ten where no two of those are in sight."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.10g}" if super().__call__(x, pos) else ""


def spans_decades(values: npt.NDArray[Any]) -> bool:
    """Whether the largest of some numbers is more than a hundred times the smallest above 0."""
    positive = values[np.isfinite(values) & (values > 0)]
    return bool(positive.size) and bool(positive.max() > 100 * positive.min())


# ---- classes along an axis -------------------------------------------------------------------------------


def classes_panel(title: str, names: Sequence[str], x: str, y: str) -> tuple[Figure, Axes]:
    """Return a panel with classes along it; of more than 40, some are named."""
    step = 1 if len(names) <= _NAMED else math.ceil(len(names) / 16)
    which = "" if step == 1 else f" (one in {step} is named)"
    figure, axes = panel(title, f"{x}{which}", y)
    axes.set_xlim(-0.5, len(names) - 0.5)
    name_ticks(figure, axes, range(0, len(names), step), [short(name) for name in names[::step]])
    axes.grid(visible=False, axis="x")
    return figure, axes


@dataclass(frozen=True)
class Shares:
    """In which share of the images each class is; each [C]."""

    observed: npt.NDArray[np.float64]  # known to be present
    estimated: tuple[npt.NDArray[np.float64], ...] | None = None  # and the ends of its interval
    truth: npt.NDArray[np.float64] | None = None

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """All numbers, one after the other."""
        truth = () if self.truth is None else (self.truth,)
        return np.concatenate([self.observed, *(self.estimated or ()), *truth])

    def drawn(self, title: str, names: Sequence[str], x: str, like: npt.NDArray[np.float64]) -> Figure:
        """Draw them, classes in this order; the axis is that of ``like``, the numbers of all panels."""
        figure, axes = classes_panel(title, names, x, "images in %")
        place, edges = np.arange(len(names)), np.arange(len(names) + 1) - 0.5
        look: dict[str, Any] = {"fill": True, "color": COLOURS[0], "alpha": 0.6}
        axes.stairs(100 * self.observed, edges, label="known present", **look)
        if self.estimated is not None:
            rate, low, high = (100 * part for part in self.estimated)
            axes.vlines(place, low, high, color=COLOURS[1], linewidth=bar_width(len(names)), alpha=0.5)
            dots(axes, place, rate, COLOURS[1], "estimated, 95 % interval")
        if self.truth is not None:
            dots(axes, place, 100 * self.truth, INK, "in truth")
        scale_to(axes.yaxis, 100 * like)
        most = 100 * max(like.max(), 1e-9)
        if spans_decades(like):
            axes.set_ylim(max(50 * like[like > 0].min(), most / 1e5), 1.2 * most)
        else:
            axes.set_ylim(0, 1.05 * most)
        add_legend(figure, axes)
        return figure


def thinned(order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return as many classes as a figure can show, evenly spread over an order, its ends among them.

    >>> thinned(np.arange(100_000))[[0, 1, -1]].tolist(), len(thinned(np.arange(100_000)))
    ([0, 100, 99999], 1000)
    """
    places = np.linspace(0, len(order) - 1, min(len(order), _SHOWN)).round().astype(np.int64)
    return order[places]


def dots(axes: Axes, x: npt.NDArray[Any], y: npt.NDArray[Any], colour: str, label: str | None) -> None:
    """Mark values, smaller where there are many."""
    size = float(np.clip(400 / max(len(x), 1), 2, 7))
    axes.plot(x, y, ".", color=colour, label=label, markersize=size)


def bar_width(count: int) -> float:
    """Return how wide the bars of so many intervals are."""
    return float(np.clip(120 / max(count, 1), 0.6, 4))


def short(name: str, limit: int = 18) -> str:
    """Return a name that is not too long for a figure."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


# ---- into a page -----------------------------------------------------------------------------------------


def inline(figure: Figure, prefix: str) -> Markup:
    """Return a figure to put into a page; ``prefix`` keeps its ids apart from those of others."""
    text = io.StringIO()
    _widen(figure)
    figure.savefig(text, format="svg", dpi=150, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))

    return embedded(text.getvalue(), prefix)


def _widen(figure: Figure) -> None:
    """Move axes to the right where the numbers beside them are too long for the margin."""
    for axes in figure.axes:
        numbers = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks().tolist())
        needed = (0.35 + 0.085 * max(map(len, numbers), default=0)) / figure.get_figwidth()
        if axes.get_ylabel() and needed > figure.subplotpars.left:
            figure.subplots_adjust(left=needed)


def embedded(svg: str, prefix: str) -> Markup:
    """Return the text of an SVG file of ours to put into a page, in the page's font and colour.

    >>> embedded('<?xml?><svg><metadata>when</metadata><g id="a" fill="#123456"/></svg>', "first")
    Markup('<svg><g id="first-a" fill="currentColor"/></svg>')
    """

    def mend(tag: re.Match[str]) -> str:
        mended = tag[0].replace(INK, "currentColor").replace("'DejaVu Sans'", "inherit")
        return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", mended)

    # matplotlib escapes text: every "<" opens a tag, and what a class is called is not touched.
    bare = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Markup(re.sub(r"<[^>]+>", mend, bare))
