"""The figures of a report: each a list of panels that the page puts side by side or below each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tertium.memory import KINDS
from tertium.report.quality import Quality
from tertium.report.runs import FULL, NO_SCHEME, Run, grouped
from tertium.svg import COLOURS, INK, add_legend, drawing, inline, name_ticks, panel, scale_to

PANELS = 4  # of figures that have one for each run
_NAMED, _POINTS = 32, 2000  # classes named on an axis; points from which on a scatter is drawn as pixels
_Lines = list[tuple[Run, npt.NDArray[np.float64]]]


def charts(runs: Sequence[Run]) -> dict[str, list[Markup]]:
    """Draw what there are numbers for."""
    kinds: dict[str, Callable[[Sequence[Run]], Iterator[Figure]]] = {
        "scores": _scores,
        "frequencies": _frequencies,
        "shares": _shares,
        "validation": _validation,
        "judged": _judged,
        "known": _known,
        "losses": _losses,
        "terms": _terms,
        "memory": _memory,
        "corrections": _corrections,
        "intervals": _intervals,
        "precisions": _precisions,
        "recall": _recall,
        "classes": _class_curves,
        "calibration": _calibration,
    }
    with drawing():
        return {
            name: [inline(figure, f"{name}{at}") for at, figure in enumerate(draw(runs))]
            for name, draw in kinds.items()
        }


# ---- the data --------------------------------------------------------------------------------------------


def _frequencies(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw in how many images a class is known to be present, is estimated to be, and is in truth."""
    for group in grouped(runs, lambda run: run.data).values():
        run = next((run for run in group if run.annotation is not None), group[0])
        observed, truth = run.share("present"), run.share("true")
        if observed is None or not observed.size:
            continue
        order = np.argsort(-observed, kind="stable")
        figure, axes = _classes_panel(run, order, "images in %")
        place = np.arange(len(order))
        edges = np.arange(len(order) + 1) - 0.5
        axes.stairs(
            100 * observed[order], edges, fill=True, color=COLOURS[0], alpha=0.6, label="known present"
        )
        shown = [observed]
        if run.annotation is not None:
            found = run.annotation.for_classes(list(run.classes))
            rate, low, high = (100 * part[order] for part in (found.rate, found.low, found.high))
            axes.vlines(place, low, high, color=COLOURS[1], linewidth=_width(len(order)), alpha=0.5)
            _dots(axes, place, rate, COLOURS[1], "estimated, 95 % interval")
            shown += [found.rate, found.low]
        if truth is not None:
            _dots(axes, place, 100 * truth[order], INK, "in truth")
            shown.append(truth)
        _from_zero(axes, 100 * np.concatenate(shown))
        add_legend(figure, axes)
        yield figure


def _shares(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the share of labels that is known, present and absent ones, in the same order of classes."""
    for run, *_ in grouped(runs, lambda run: run.data).values():
        present, absent = run.share("present"), run.share("absent")
        if present is None or absent is None or not present.size:
            continue
        order = np.argsort(-present, kind="stable")
        figure, axes = _classes_panel(run, order, "labels known in %")
        edges = np.arange(len(order) + 1) - 0.5
        below = 100 * present[order]
        axes.stairs(below, edges, fill=True, color=COLOURS[0], alpha=0.75, label="present")
        if absent.any():
            look: dict[str, Any] = {"fill": True, "color": COLOURS[6], "alpha": 0.5}
            axes.stairs(below + 100 * absent[order], edges, baseline=below, label="absent", **look)
        axes.set_ylim(0, None)
        add_legend(figure, axes)
        yield figure


def _classes_panel(run: Run, order: npt.NDArray[np.int64], y: str) -> tuple[Figure, Axes]:
    """Return a panel with classes along it, of which some are named."""
    names = np.array(list(run.classes), dtype=object)[order]
    return _named_panel(_heading(run.scheme), list(names), "class, most often known present first", y)


def _named_panel(title: str, names: Sequence[str], x: str, y: str) -> tuple[Figure, Axes]:
    step = 1 if len(names) <= _NAMED else math.ceil(len(names) / (_NAMED / 2))
    which = "" if step == 1 else f" (one in {step} is named)"
    figure, axes = panel(title, f"{x}{which}", y)
    axes.set_xlim(-0.5, len(names) - 0.5)
    name_ticks(figure, axes, range(0, len(names), step), [_short(name) for name in names[::step]])
    axes.grid(visible=False, axis="x")
    return figure, axes


def _from_zero(axes: Axes, values: npt.NDArray[np.float64]) -> None:
    """Show shares from 0 up; by powers of ten if they span many, down to what a class that is known has."""
    positive = values[values > 0]
    if positive.size and positive.max() > 100 * positive.min():
        axes.set_yscale("log")
        axes.set_ylim(max(positive.min() / 2, positive.max() / 1e5), None)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    else:
        axes.set_ylim(0, None)


# ---- training --------------------------------------------------------------------------------------------


def _validation(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the mean AP on validation images; a ring is the epoch that was chosen."""
    yield from _ringed(runs, "score", "validation mAP in %", 100)


def _judged(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw by what a method itself has chosen the epoch, where it has."""
    yield from _ringed(runs, "judged", "the method's own judgement", 1)


def _ringed(runs: Sequence[Run], key: str, name: str, scale: float) -> Iterator[Figure]:
    styles = _styles(runs)
    for figure, axes, lines in _curves(runs, lambda record: record.get(key), name, scale):
        for run, values in lines:
            if run.best is not None:
                colour = styles[run.series]["color"]
                axes.plot(run.best + 1, values[run.best], "o", markersize=9, fillstyle="none", color=colour)
        yield figure


def _known(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the mean AP over classes known both ways, where that is not what chooses the epoch."""
    differ = [
        run
        for run in runs
        if any(record.get("known_map") not in (None, record.get("score")) for record in run.records)
    ]
    for figure, _, _ in _curves(differ, lambda record: record.get("known_map"), "known-label mAP in %", 100):
        yield figure


def _losses(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the training loss."""
    for figure, axes, lines in _curves(runs, lambda record: record.get("loss"), "training loss", 1):
        scale_to(axes.yaxis, np.concatenate([values for _, values in lines]))
        yield figure


def _terms(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the terms that a loss is the sum of, for runs where there are several."""
    several = [run for run in runs if any(len(record.get("terms") or ()) > 1 for record in run.records)]
    for run in several[:PANELS]:
        names = list(dict.fromkeys(name for record in run.records for name in record.get("terms") or ()))
        values = {name: [(record.get("terms") or {}).get(name) for record in run.records] for name in names}
        yield _lines_of(run, values, "term of the loss", _title(run, runs))


def _memory(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the loss of true positives, true negatives and false negatives."""
    told = [run for run in runs if any(record.get("memory") for record in run.records)]
    for run in told[:PANELS]:
        losses = [(record.get("memory") or {}).get("loss") or {} for record in run.records]
        values = {f"{kind.replace('_', ' ')}s": [loss.get(kind) for loss in losses] for kind in KINDS}
        yield _lines_of(run, values, "mean loss of a label", _title(run, runs))


def _lines_of(run: Run, values: dict[str, list[Any]], name: str, title: str) -> Figure:
    figure, axes = panel(title, _epochs([run]), name)
    for (label, column), colour in zip(values.items(), cycle(COLOURS), strict=False):
        axes.plot(
            range(1, len(column) + 1),
            np.array(column, dtype=float),
            "o-",
            color=colour,
            label=label,
            markersize=3,
            linewidth=1.5,
        )
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    add_legend(figure, axes)
    return figure


def _corrections(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw which share of the labels that a method altered is present in truth, beside chance."""

    def precision(record: dict[str, Any]) -> Any:
        return (record.get("memory") or {}).get("precision")

    for figure, axes, lines in _curves(runs, precision, "altered labels present in truth, %", 100):
        rates = {record["memory"]["base_rate"] for run, _ in lines for record in run.records}
        for rate in rates - {None}:
            axes.axhline(100 * rate, color=INK, linestyle="--", linewidth=1)
            edge = axes.get_yaxis_transform()
            axes.text(1, 100 * rate, "all unknown", transform=edge, ha="right", va="bottom", size=9)
        axes.set_ylim(0, None)
        yield figure


def _curves(
    runs: Sequence[Run], value: Callable[[dict[str, Any]], Any], name: str, scale: float
) -> Iterator[tuple[Figure, Axes, _Lines]]:
    """Draw a figure of the records against the epoch, one panel a scheme; NaN where there is none."""
    styles = _styles(runs)
    for scheme, group in grouped(runs, lambda run: run.scheme).items():
        every = [(run, np.array([value(record) for record in run.records], dtype=float)) for run in group]
        lines = [(run, scale * values) for run, values in every if np.isfinite(values).any()]
        if not lines:
            continue
        figure, axes = panel(_heading(scheme), _epochs([run for run, _ in lines]), name)
        for run, values in lines:
            epochs = range(1, len(values) + 1)
            axes.plot(epochs, values, label=run.series, markersize=3, linewidth=1.5, **styles[run.series])
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        _tell_apart(figure, axes, runs)
        yield figure, axes, lines


def _epochs(runs: Sequence[Run]) -> str:
    phased = any(len({record.get("phase") for record in run.records}) > 1 for run in runs)
    return "epoch, one phase after the other" if phased else "epoch"


# ---- how good --------------------------------------------------------------------------------------------


def _scores(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the test mAP(C): a bar is the mean of a series, a dot each run where there are several."""
    evaluated = [run for run in runs if run.row["map_c"] is not None]
    groups = grouped(evaluated, lambda run: (run.scheme, run.series))
    values = {key: 100 * np.array([run.row["map_c"] for run in group]) for key, group in groups.items()}
    if len(evaluated) < 2:
        return  # one number needs no figure
    places = len(values) + len({scheme for scheme, _ in values})
    figure, axes = panel("", "test mAP(C) in %", "", height=0.95 + 0.35 * places)
    edge = axes.get_yaxis_transform()  # at the right, where neither dots nor the ceiling cross the number
    styles, place, heading = _styles(runs), 0.0, ""
    for (scheme, series), dots in values.items():
        if scheme != heading:
            axes.text(0, place + 0.3, _heading(scheme), weight="bold", va="center")
            place, heading = place + 1.1, scheme
        axes.text(0, place, _short(series, 60), va="center", size=9)
        axes.barh(place + 0.45, dots.mean(), 0.4, color=styles[series]["color"])
        axes.plot(dots, [place + 0.45] * dots.size, ".", color=INK, markersize=4 if dots.size > 1 else 0)
        axes.text(1, place + 0.45, f"{dots.mean():.1f}", transform=edge, ha="right", va="center", size=9)
        place += 1.1
    ceiling = max((dots.mean() for (scheme, _), dots in values.items() if scheme == FULL), default=None)
    if ceiling is not None:
        axes.axvline(ceiling, color=INK, linestyle="--", linewidth=1)
        axes.text(ceiling, -0.5, "ceiling: full labels", ha="center", va="bottom", size=9)
    axes.set(
        xlim=(0, 1.15 * max(1, *(dots.max() for dots in values.values()))), ylim=(place, -0.5), yticks=[]
    )
    axes.spines["left"].set_visible(False)
    yield figure


def _intervals(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the AP of each class with its interval, from the highest to the lowest."""
    judged = [(run, run.quality) for run in runs if run.quality is not None]
    for run, quality in judged[:PANELS]:
        ap, low, high = quality.ap
        order = np.argsort(-np.nan_to_num(ap, nan=-1), kind="stable")[: np.isfinite(ap).sum()]
        if not order.size:
            continue
        names = [quality.classes[column] for column in order]
        figure, axes = _named_panel(
            _title(run, runs), names, "class, highest AP first", f"{_kind(run)} AP in %"
        )
        place = np.arange(len(order))
        axes.vlines(
            place,
            100 * low[order],
            100 * high[order],
            color=COLOURS[0],
            alpha=0.35,
            linewidth=_width(len(order)),
            rasterized=len(order) > _POINTS,
        )
        _dots(axes, place, 100 * ap[order], COLOURS[0], None)
        axes.set_ylim(-3, 103)
        yield figure


def _precisions(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the AP of each class against how often the training labels know it to be present."""
    styles = _styles(runs)
    judged = [(run, run.quality) for run in runs if run.quality is not None and run.quality.number("map_c")]
    for scheme, group in grouped([run for run, _ in judged], lambda run: run.scheme).items():
        kinds = " or ".join(dict.fromkeys(map(_kind, group)))
        figure, axes = panel(_heading(scheme), "known-present training labels of a class", f"{kinds} AP in %")
        pixels = sum(len(run.classes) for run in group) > _POINTS
        for run, quality in judged:
            if run not in group:
                continue
            known, ap = _against_counts(run, quality)
            look = {key: styles[run.series][key] for key in ("color", "marker")}
            axes.scatter(known, ap, 14, alpha=0.75, label=run.series, rasterized=pixels, **look)
        scale_to(axes.xaxis, np.array([count["present"] for run in group for count in run.classes.values()]))
        axes.set(ylim=(-3, 103))
        _tell_apart(figure, axes, runs)
        yield figure


def _against_counts(run: Run, quality: Quality) -> tuple[list[int], list[float]]:
    aps = dict(zip(quality.classes, quality.ap[0], strict=True))
    names = [name for name, ap in aps.items() if np.isfinite(ap) and name in run.classes]
    return [run.classes[name]["present"] for name in names], [100 * aps[name] for name in names]


def _recall(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw precision against recall of all scored classes together, one line a run."""
    styles = _styles(runs)
    for scheme, group in grouped(runs, lambda run: run.scheme).items():
        found = [(run, run.drawn.curves.get(None)) for run in group if run.drawn is not None]
        lines = [(run, curve) for run, curve in found if curve is not None]
        if not lines:
            continue
        figure, axes = panel(_heading(scheme), "recall in %", "precision in %")
        for run, curve in lines:
            look = {key: styles[run.series][key] for key in ("color", "linestyle")}
            axes.plot(100 * curve.recall, 100 * curve.precision, label=run.series, linewidth=1.5, **look)
        axes.set(xlim=(0, 101), ylim=(0, 103))
        _tell_apart(figure, axes, runs)
        yield figure


def _class_curves(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw precision against recall of a few classes, one panel a run."""
    found = [(run, run.drawn) for run in runs if run.drawn is not None and len(run.drawn.curves) > 1]
    for run, quality in found[:PANELS]:
        aps = dict(zip(quality.classes, quality.ap[0], strict=True))
        figure, axes = panel(_title(run, runs), "recall in %", "precision in %")
        curves = {name: curve for name, curve in quality.curves.items() if name is not None}
        for (name, curve), colour in zip(curves.items(), cycle(COLOURS), strict=False):
            label = f"{_short(name)} ({100 * aps[name]:.0f})"
            axes.plot(
                100 * curve.recall,
                100 * curve.precision,
                color=colour,
                label=label,
                linewidth=1.5,
                drawstyle="steps-pre",
            )
        axes.set(xlim=(0, 101), ylim=(0, 103))
        add_legend(figure, axes)
        yield figure


def _calibration(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw how often labels are present against the probability they were given."""
    styles = _styles(runs)
    for scheme, group in grouped(runs, lambda run: run.scheme).items():
        found = [(run, run.drawn.reliability) for run in group if run.drawn is not None]
        lines = [(run, bins) for run, bins in found if bins is not None]
        if not lines:
            continue
        figure, axes = panel(_heading(scheme), "predicted probability in %", "known labels present in %")
        axes.plot([0, 100], [0, 100], color=INK, linewidth=1, linestyle="--", alpha=0.6)
        for run, bins in lines:
            look = styles[run.series]
            x = 100 * bins.probability
            axes.vlines(x, 100 * bins.present_low, 100 * bins.present_high, color=look["color"], alpha=0.4)
            axes.plot(x, 100 * bins.present, label=run.series, markersize=4, linewidth=1.5, **look)
        axes.set(xlim=(-1, 101), ylim=(-3, 103))
        _tell_apart(figure, axes, runs)
        yield figure


# ---- looks -----------------------------------------------------------------------------------------------


def _styles(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return how each series looks, the same in all figures; after the colours come other dashes."""
    dashes = zip(("-", "--", ":", "-."), "osD^", strict=True)
    looks = [
        {"color": colour, "linestyle": dash, "marker": marker}
        for dash, marker in dashes
        for colour in COLOURS
    ]
    return dict(zip(grouped(runs, lambda run: run.series), cycle(looks), strict=False))


def _tell_apart(figure: Figure, axes: Axes, runs: Sequence[Run]) -> None:
    """Name the runs, where there are several."""
    if len(runs) > 1:
        add_legend(figure, axes)


def _dots(axes: Axes, x: npt.NDArray[Any], y: npt.NDArray[Any], colour: str, label: str | None) -> None:
    """Mark values, smaller where there are many."""
    size = float(np.clip(400 / len(x), 2, 7))
    axes.plot(x, y, ".", color=colour, label=label, markersize=size, rasterized=len(x) > _POINTS)


def _width(count: int) -> float:
    return float(np.clip(120 / max(count, 1), 0.6, 4))


def _kind(run: Run) -> str:
    return "validation" if run.test is None else "test"


def _title(run: Run, runs: Sequence[Run]) -> str:
    return _short(run.series, 42) if len(runs) > 1 else ""


def _heading(scheme: str) -> str:
    return "" if scheme == NO_SCHEME else scheme


def _short(name: str, limit: int = 18) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
