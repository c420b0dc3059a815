"""The figures of a report: each is a list of panels, shown side by side or one below the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Sized
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tertium.reporting.quality import Quality
from tertium.reporting.runs import FULL, NO_SCHEME, Run, grouped, some
from tertium.reporting.svg import (
    COLOURS,
    INK,
    Shares,
    add_legend,
    bar_width,
    classes_panel,
    dots,
    drawing,
    inline,
    panel,
    scale_to,
    short,
    spans_decades,
    thinned,
)
from tertium.training.memorisation import KINDS

_POINTS = 2000  # from which on a scatter is drawn as pixels
_STANDS_OUT, _ACCENT = "auto", COLOURS[1]  # the method that most people use
_THIN = 1.5  # points of a line; that of the method that stands out has twice as many
_DASHES, _MARKERS = ("-", "--", ":", "-."), "osD^vPX*"
_HATCHES = {"-": None, "--": "///", ":": "...", "-.": "xxx"}  # of bars, where lines have dashes
_Lines = list[tuple[Run, npt.NDArray[np.float64]]]


def charts(runs: Sequence[Run]) -> dict[str, list[Markup]]:
    """Draw every figure for which there are numbers."""
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


_BY_KNOWN = "class, most often known present first"


def _frequencies(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw in how many images a class is known, estimated, and truly present."""
    found: list[tuple[Run, list[str], Shares]] = []
    for group in grouped(runs, lambda run: run.data).values():
        run = next((run for run in group if run.annotation is not None), group[0])
        observed, truth = run.share("present"), run.share("true")
        if observed is None or not observed.size:
            continue
        order = thinned(np.argsort(-observed, kind="stable"))
        names = list(run.classes)
        part = None if run.annotation is None else run.annotation.for_classes(names)
        estimated = None if part is None else (part.rate[order], part.low[order], part.high[order])
        shares = Shares(observed[order], estimated, None if truth is None else truth[order])
        found.append((run, [names[place] for place in order], shares))
    for run, names, shares in found:
        # One axis for all: bars of different panels are compared.
        every = np.concatenate([each.values for _, _, each in found])
        yield shares.drawn(_heading(run.scheme), names, _among(_BY_KNOWN, names, run.classes), every)


def _among(axis: str, shown: Sized, every: Sized) -> str:
    """Say on an axis that it shows some of the classes only."""
    left_out = len(shown) < len(every)
    return f"{axis} ({len(shown):,} of {len(every):,})" if left_out else axis


def _shares(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the share of labels that is known, present and absent ones, in the same order of classes."""
    for run, *_ in grouped(runs, lambda run: run.data).values():
        present, absent = run.share("present"), run.share("absent")
        if present is None or absent is None or not present.size:
            continue
        order, every = thinned(np.argsort(-present, kind="stable")), list(run.classes)
        names = [every[place] for place in order]
        below_axis = _among(_BY_KNOWN, names, every)
        figure, axes = classes_panel(_heading(run.scheme), names, below_axis, "labels known in %")
        edges = np.arange(len(order) + 1) - 0.5
        below = 100 * present[order]
        axes.stairs(below, edges, fill=True, color=COLOURS[0], alpha=0.75, label="present")
        if absent.any():
            look: dict[str, Any] = {"fill": True, "color": COLOURS[6], "alpha": 0.5}
            axes.stairs(below + 100 * absent[order], edges, baseline=below, label="absent", **look)
        axes.set_ylim(0, None)
        add_legend(figure, axes)
        yield figure


# ---- training --------------------------------------------------------------------------------------------


def _validation(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the mean AP on validation images; a ring is the epoch that was chosen."""
    yield from _ringed(runs, "score", "validation mAP in %", 100)


def _judged(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the method's own measure, by which it chose the epoch, if it has one."""
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
    """Draw the mean AP over classes with known presences and absences, unless the epoch was chosen by it."""
    differ = [
        run
        for run in runs
        if any(record.get("known_map") not in (None, record.get("score")) for record in run.records)
    ]
    for figure, _, _ in _curves(differ, lambda record: record.get("known_map"), "known-label mAP in %", 100):
        yield figure


def _losses(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the training loss."""
    drawn = list(_curves(runs, lambda record: record.get("loss"), "training loss", 1, lambda run: None))
    for figure, axes, _ in drawn:
        scale_to(axes.yaxis, np.concatenate([values for _, _, lines in drawn for _, values in lines]))
        yield figure


def _terms(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the terms that a loss is the sum of, for runs where there are several."""
    titles = _titles(runs)
    for run in some(runs):
        if not any(len(record.get("terms") or ()) > 1 for record in run.records):
            continue
        names = list(dict.fromkeys(name for record in run.records for name in record.get("terms") or ()))
        values = {name: [(record.get("terms") or {}).get(name) for record in run.records] for name in names}
        yield _lines_of(run, values, "term of the loss", titles[run])


def _memory(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the loss of true positives, true negatives and false negatives."""
    titles = _titles(runs)
    for run in some(runs):
        if not any(record.get("memory") for record in run.records):
            continue
        losses = [(record.get("memory") or {}).get("loss") or {} for record in run.records]
        values = {f"{kind.replace('_', ' ')}s": [loss.get(kind) for loss in losses] for kind in KINDS}
        yield _lines_of(run, values, "mean loss of a label", titles[run])


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
    """Draw the share of altered labels that are truly present, compared with chance."""

    def precision(record: dict[str, Any]) -> Any:
        return (record.get("memory") or {}).get("precision")

    told = "altered labels present in truth, %"
    for figure, axes, lines in _curves(runs, precision, told, 100, lambda run: None):
        rates = {record["memory"]["base_rate"] for run, _ in lines for record in run.records}
        for rate in rates - {None}:
            axes.axhline(100 * rate, color=INK, linestyle="--", linewidth=1)
            edge = axes.get_yaxis_transform()
            axes.text(1, 100 * rate, "all unknown", transform=edge, ha="right", va="bottom", size=9)
        axes.set_ylim(0, None)
        yield figure


def _curves(
    runs: Sequence[Run],
    value: Callable[[dict[str, Any]], Any],
    name: str,
    scale: float,
    images: Callable[[Run], Hashable] = lambda run: run.validated,
) -> Iterator[tuple[Figure, Axes, _Lines]]:
    """Draw a figure of the records against the epoch, one panel a scheme; NaN where there is none."""
    styles = _styles(runs)
    for heading, group in _panels(runs, images):
        every = [(run, np.array([value(record) for record in run.records], dtype=float)) for run in group]
        lines = [(run, scale * values) for run, values in every if np.isfinite(values).any()]
        if not lines:
            continue
        figure, axes = panel(heading, _epochs([run for run, _ in lines]), name)
        for run, values in lines:
            epochs = range(1, len(values) + 1)
            axes.plot(epochs, values, label=run.series, markersize=3, **styles[run.series])
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
    if len(evaluated) < 2:
        return  # one number needs no figure
    best = 100 * max(run.row["map_c"] for run in evaluated)
    for heading, group in _panels(evaluated, lambda run: run.test_labels):
        same = [run for run in evaluated if run.scheme == FULL and run.test_labels == group[0].test_labels]
        full = grouped(same, lambda run: run.series).values()
        ceiling = max((_percents(each).mean() for each in full), default=None)
        series = grouped(group, lambda run: run.series)
        figure, axes = panel(heading, "test mAP(C) in %", "", height=1.1 + 0.37 * len(series))
        for place, (name, several) in enumerate(series.items()):
            _bar(axes, place, name, _percents(several), _styles(runs)[name])
        if ceiling is not None:
            axes.axvline(ceiling, color=INK, linestyle="--", linewidth=1)
            axes.text(ceiling - 1, -0.35, "ceiling: full labels", ha="right", va="center", size=9)
        # The same for all schemes, so that bars of different panels can be compared.
        axes.set(xlim=(0, 1.15 * max(1, best)), ylim=(len(series), -0.7), yticks=[])
        axes.spines["left"].set_visible(False)
        yield figure


def _bar(axes: Axes, place: int, name: str, values: npt.NDArray[np.float64], style: dict[str, Any]) -> None:
    weight = "bold" if style["linewidth"] > _THIN else "normal"
    axes.text(0, place + 0.12, short(name, 60), va="center", size=9, weight=weight)
    look: dict[str, Any] = {"color": style["color"], "hatch": _HATCHES[style["linestyle"]]}
    axes.barh(place + 0.55, values.mean(), 0.38, edgecolor="white", linewidth=0, **look)
    axes.plot(values, [place + 0.55] * values.size, ".", color=INK, markersize=4 if values.size > 1 else 0)
    edge = axes.get_yaxis_transform()  # at the right, where neither dots nor the ceiling cross the number
    axes.text(
        1,
        place + 0.55,
        f"{values.mean():.1f}",
        transform=edge,
        ha="right",
        va="center",
        size=9,
        weight=weight,
    )


def _percents(runs: Sequence[Run]) -> npt.NDArray[np.float64]:
    return 100 * np.array([run.row["map_c"] for run in runs])


def _intervals(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the AP of each class with its interval, from the highest to the lowest."""
    titles = _titles(runs)
    for run, quality in [(run, run.quality) for run in some(runs) if run.quality is not None]:
        ap, low, high = quality.ap
        scored = np.argsort(-np.nan_to_num(ap, nan=-1), kind="stable")[: np.isfinite(ap).sum()]
        if not scored.size:
            continue
        order, every = thinned(scored), quality.classes
        names = [every[column] for column in order]
        below_axis = _among("class, highest AP first", names, scored)
        figure, axes = classes_panel(titles[run], names, below_axis, f"{_kind(run)} AP in %")
        place = np.arange(len(order))
        axes.vlines(
            place,
            100 * low[order],
            100 * high[order],
            color=COLOURS[0],
            alpha=0.35,
            linewidth=bar_width(len(order)),
        )
        dots(axes, place, 100 * ap[order], COLOURS[0], None)
        axes.set_ylim(-3, 103)
        yield figure


def _precisions(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw the AP of each class against how often the training labels know it to be present."""
    styles = _styles(runs)
    judged = [(run, run.quality) for run in runs if run.quality is not None and run.quality.number("map_c")]
    counts = np.array([count["present"] for run, _ in judged for count in run.classes.values()])
    for heading, group in _panels([run for run, _ in judged], lambda run: run.images(run.quality)):
        kinds = " or ".join(dict.fromkeys(map(_kind, group)))
        figure, axes = panel(heading, "known-present training labels of a class", f"{kinds} AP in %")
        points = {run: _against_counts(run, quality) for run, quality in judged if run in group}
        pixels = sum(len(known) for known, _ in points.values()) > _POINTS
        for run, (known, ap) in points.items():
            look = {key: styles[run.series][key] for key in ("color", "marker")}
            axes.scatter(known, ap, 14, alpha=0.75, label=run.series, rasterized=pixels, **look)
        scale_to(axes.xaxis, counts)
        axes.set_xlim(*_with_margins(counts))
        axes.set(ylim=(-3, 103))
        _tell_apart(figure, axes, runs)
        yield figure


def _with_margins(counts: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return from where to where an axis of counts goes, so that no point lies on its edge."""
    low, high = float(counts.min()), float(counts.max())
    if spans_decades(counts):
        return 0.8 * low - 0.3, 1.25 * high
    return low - 0.04 * (high - low) - 0.5, high + 0.04 * (high - low) + 0.5


def _against_counts(run: Run, quality: Quality) -> tuple[list[int], list[float]]:
    aps = dict(zip(quality.classes, quality.ap[0], strict=True))
    classes = run.classes
    names = [name for name, ap in aps.items() if np.isfinite(ap) and name in classes]
    chosen = [names[place] for place in thinned(np.argsort([classes[name]["present"] for name in names]))]
    return [classes[name]["present"] for name in chosen], [100 * aps[name] for name in chosen]


def _recall(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw precision against recall of all scored classes together, one line a run."""
    styles = _styles(runs)
    for heading, group in _panels(runs, lambda run: run.images(run.drawn)):
        found = [(run, run.drawn.curves.get(None)) for run in group if run.drawn is not None]
        lines = [(run, curve) for run, curve in found if curve is not None]
        if not lines:
            continue
        figure, axes = panel(heading, "recall in %", "precision in %")
        for run, curve in lines:
            look = styles[run.series] | {"marker": ""}
            axes.plot(100 * curve.recall, 100 * curve.precision, label=run.series, **look)
        axes.set(xlim=(0, 101), ylim=(0, 103))
        _tell_apart(figure, axes, runs)
        yield figure


def _class_curves(runs: Sequence[Run]) -> Iterator[Figure]:
    """Draw precision against recall of a few classes, one panel a run."""
    titles = _titles(runs)
    for run, quality in [(run, run.drawn) for run in some(runs) if run.drawn is not None]:
        if len(quality.curves) <= 1:
            continue
        aps = dict(zip(quality.classes, quality.ap[0], strict=True))
        figure, axes = panel(titles[run], "recall in %", "precision in %")
        curves = {name: curve for name, curve in quality.curves.items() if name is not None}
        for (name, curve), colour in zip(curves.items(), cycle(COLOURS), strict=False):
            label = f"{short(name)} ({100 * aps[name]:.0f})"
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
    for heading, group in _panels(runs, lambda run: run.images(run.drawn)):
        found = [(run, run.drawn.reliability) for run in group if run.drawn is not None]
        lines = [(run, bins) for run, bins in found if bins is not None]
        if not lines:
            continue
        figure, axes = panel(heading, "predicted probability in %", "known labels present in %")
        axes.plot([0, 100], [0, 100], color=INK, linewidth=1, linestyle="--", alpha=0.6)
        for run, bins in lines:
            look = styles[run.series]
            x = 100 * bins.probability
            axes.vlines(x, 100 * bins.present_low, 100 * bins.present_high, color=look["color"], alpha=0.4)
            axes.plot(x, 100 * bins.present, label=run.series, markersize=4, **look)
        axes.set(xlim=(-1, 101), ylim=(-3, 103))
        _tell_apart(figure, axes, runs)
        yield figure


# ---- looks -----------------------------------------------------------------------------------------------


def _styles(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return how each series looks, the same in all figures; after the colours come other dashes."""
    series = grouped(runs, lambda run: run.series)
    stars = [name for name, group in series.items() if group[0].config["settings"]["method"] == _STANDS_OUT]
    star = stars[0] if len(stars) == 1 and len(series) > 1 else None
    colours = [colour for colour in COLOURS if star is None or colour != _ACCENT]
    looks = cycle([(dash, colour) for dash in _DASHES for colour in colours])
    found = {}
    for name, marker in zip(series, cycle(_MARKERS), strict=False):
        dash, colour = ("-", _ACCENT) if name == star else next(looks)
        width, order = (2 * _THIN, 2.5) if name == star else (_THIN, 2.0)
        found[name] = {
            "color": colour,
            "linestyle": dash,
            "marker": marker,
            "linewidth": width,
            "zorder": order,
        }
    return found


def _tell_apart(figure: Figure, axes: Axes, runs: Sequence[Run]) -> None:
    """Name the runs, where there are several."""
    if len(runs) > 1:
        add_legend(figure, axes)


def _kind(run: Run) -> str:
    return "validation" if run.test is None else "test"


def _titles(runs: Sequence[Run]) -> dict[Run, str]:
    """Return the titles of panels about one run: scheme and method or, if these are ambiguous, its name."""
    if len(runs) == 1:
        return {runs[0]: ""}
    schemed = {run: f"{run.scheme}: {run.series}" if run.scheme != NO_SCHEME else run.series for run in runs}
    told = list(schemed.values())
    return {run: short(run.name if told.count(name) > 1 else name, 42) for run, name in schemed.items()}


def _panels(runs: Sequence[Run], images: Callable[[Run], Hashable]) -> Iterator[tuple[str, list[Run]]]:
    """Yield a heading and the runs of each panel: of one scheme, and with figures of the same images."""
    groups = grouped(runs, lambda run: (run.scheme, images(run)))
    schemes = [scheme for scheme, _ in groups]
    for (scheme, _), group in groups.items():
        apart = "" if schemes.count(scheme) == 1 else f"images of {short(group[0].name, 24)}"
        yield ", ".join(filter(None, (_heading(scheme), apart))), group


def _heading(scheme: str) -> str:
    return "" if scheme == NO_SCHEME else scheme
