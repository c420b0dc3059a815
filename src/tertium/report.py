"""One page that compares runs and opens offline: a table, figures, what was not scored; a CSV beside it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tertium import methods
from tertium.errors import InputError
from tertium.files import read_json, replacing
from tertium.runs import RunFolder
from tertium.svg import COLOURS, INK, add_legend, drawing, inline, panel, scale_to

_FULL, _NO_SCHEME, _MISSING = "full", "—", "–"
_SAME = {"method", "parameters", "seed", "workers", "device"}  # may differ between runs of one series
_NAMED, _POINTS = 32, 2000  # classes named on an axis; points from which on a scatter is drawn as pixels
_Key = TypeVar("_Key", bound=Hashable)


def write_report(
    path: str | Path, runs: Sequence[RunFolder], *, title: str, command: str | None = None
) -> Path:
    """Write an HTML page that compares runs, and beside it a CSV with the rows of its table.

    Test figures come from ``evaluation.json`` in the run folder, where there is one. The page needs neither
    network nor JavaScript, and the same runs give the same bytes.
    """
    path = Path(path)
    table = path.with_suffix(".csv")
    if path == table:
        raise InputError(f'{path}: the report is a web page, call it "{path.stem}.html"')
    if not runs:
        raise InputError("there are no runs to report on")
    shown = _read(runs)
    page = _template().render(
        title=title,
        command=command,
        schemes=_grouped(shown, lambda run: run.scheme),
        comparable=len({run.test_labels for run in shown if run.evaluation}) <= 1,
        data=_grouped(shown, _data),
        unscored=_grouped([run for run in shown if run.evaluation], _unscored),
        charts=_charts(shown),
        table=table.name,
    )
    with replacing(path) as html, replacing(table) as rows:
        html.write_text(page, encoding="utf-8")
        rows.write_text(_csv(shown), encoding="utf-8")
    return path


# ---- the runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Run:
    """A run folder as the report sees it."""

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]  # empty if the run has not finished
    records: list[dict[str, Any]]
    evaluation: dict[str, Any]  # empty if there is none
    changed: dict[str, Any]  # parameters that are not the method's defaults, settings that tell runs apart

    @property
    def scheme(self) -> str:
        return str(self.config["data"].get("scheme") or _NO_SCHEME)

    @property
    def method(self) -> str:
        values = ", ".join(f"{key}={value}" for key, value in self.changed.items())
        return str(self.config["settings"]["method"]) + (f" ({values})" if values else "")

    @property
    def series(self) -> str:
        """What shares a bar and a colour; without a scheme nothing says that runs had the same labels."""
        return self.method if self.scheme != _NO_SCHEME else f"{self.name}: {self.method}"

    @property
    def classes(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = self.config["data"]["classes"]
        return counts

    @property
    def best(self) -> int | None:
        """The place of the best epoch in the records, counted from the start of the phase that was kept."""
        phases = [record.get("phase") for record in self.records]
        epoch = self.summary.get("best_epoch")
        kept = self.summary.get("phase", phases[-1] if phases else None)
        place = phases.index(kept) + epoch - 1 if kept in phases and epoch else len(phases)
        return place if place < len(phases) else None

    @property
    def test_labels(self) -> frozenset[Any]:
        return frozenset(
            zip(*(self.evaluation[key] for key in ("classes", "positives", "negatives")), strict=True)
        )

    @property
    def row(self) -> dict[str, Any]:
        """The figures of the table, as they are in the files."""
        settings, found, summary = self.config["settings"], self.evaluation, self.summary
        return {
            "run": self.name,
            "scheme": self.config["data"].get("scheme"),
            "method": settings["method"],
            "settings": json.dumps(self.changed, ensure_ascii=False),
            "seed": settings.get("seed"),
            "map_c": _number(found.get("map_c")),
            "scored": found.get("scored"),
            "test_classes": len(found["classes"]) if found else None,
            "map_o": _number(found.get("map_o")),
            "mF1": _number(found.get("mF1")),
            "validation_score": _number(summary.get("validation_score")),
            "best_epoch": summary.get("best_epoch"),
            "epochs": len(self.records),
            "seconds": _number(summary.get("seconds")),
            "finished": bool(summary),
        }


def _read(folders: Sequence[RunFolder]) -> list[_Run]:
    """Read the runs and group them by scheme, the full labels first."""
    names = [folder.path.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    configs = [_with(folder.path / "config.json", "settings", "data") for folder in folders]
    changed = _changed([config["settings"] for config in configs])
    runs = []
    for folder, name, config, values in zip(folders, names, configs, changed, strict=True):
        file = folder.path / "evaluation.json"
        evaluation = (
            _with(file, "classes", "ap", "positives", "negatives", "unscored") if file.is_file() else {}
        )
        runs.append(_Run(name, config, folder.summary(), folder.records(), evaluation, values))
    schemes = _grouped(runs, lambda run: run.scheme)
    return [run for scheme in sorted(schemes, key=lambda name: name != _FULL) for run in schemes[scheme]]


def _with(file: Path, *keys: str) -> dict[str, Any]:
    found = read_json(file)
    missing = [key for key in keys if not isinstance(found, dict) or key not in found]
    if missing:
        raise InputError(f'{file}: there is no "{missing[0]}" in it; it is not the file of a run')
    return dict(found)


def _changed(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each run what the name of its method does not say."""
    flat = [_flat(each) for each in settings]
    keys = dict.fromkeys(key for each in flat for key in each)
    differ = [key for key in keys if len({repr(each[key]) for each in flat if key in each}) > 1]
    return [
        _not_default(each["method"], each["parameters"])
        | {key: values[key] for key in differ if key in values}
        for each, values in zip(settings, flat, strict=True)
    ]


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide an outcome, those of a phase with dotted names.

    >>> _flat({"method": "wan", "protocol": "linear", "seed": 3, "head": {"lr": 0.1}, "whole": {"lr": 0.2}})
    {'protocol': 'linear', 'head.lr': 0.1}
    """
    idle = {"linear": "whole", "finetune": "head"}.get(settings.get("protocol", ""))
    flat: dict[str, Any] = {}
    for key in (key for key in settings if key not in {idle, *_SAME}):
        inner = settings[key]
        flat |= {f"{key}.{name}": inner[name] for name in inner} if isinstance(inner, dict) else {key: inner}
    return flat


def _not_default(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    try:
        defaults = methods.parameters_of(methods.find(method))
    except InputError:  # somebody's own method, which is not imported here
        defaults = {}
    return {key: value for key, value in parameters.items() if key not in defaults or value != defaults[key]}


def _grouped(runs: Sequence[_Run], key: Callable[[_Run], _Key]) -> dict[_Key, list[_Run]]:
    groups: dict[_Key, list[_Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else value


# ---- the page ------------------------------------------------------------------------------------------


def _template() -> Any:
    def shown(pattern: str, scale: float = 1) -> Callable[[float | None], str]:
        return lambda value: _MISSING if value is None else format(scale * value, pattern)

    environment = Environment(
        loader=PackageLoader("tertium"),
        autoescape=True,  # names of classes come from other people's files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": shown(".1f", 100),
        "share": shown(".3g", 100),
        "number": shown(","),
        "seconds": shown(",.1f"),
    }
    environment.filters["indented"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment.get_template("report.html")


def _csv(runs: Sequence[_Run]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(runs[0].row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(run.row for run in runs)
    return text.getvalue()


def _data(run: _Run) -> tuple[Any, ...]:
    """Return what a run was trained on, for a row of the page's second table."""
    data, counts = run.config["data"], run.classes.values()
    present, absent = (sum(count[key] for count in counts) for key in ("present", "absent"))
    images, validation = data["training_images"], data["validation_images"]
    share = (present + absent) / (images * len(counts)) if images and counts else None
    return run.scheme, images, validation, len(counts), present, absent, share, data.get("labels")


def _unscored(run: _Run) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the classes that were not scored, by reason."""
    reasons: dict[str, list[str]] = {}
    for item in run.evaluation["unscored"]:
        reasons.setdefault(item["reason"], []).append(item["name"])
    return tuple((reason, tuple(names)) for reason, names in reasons.items())


# ---- the figures ---------------------------------------------------------------------------------------


def _charts(runs: Sequence[_Run]) -> dict[str, list[Markup]]:
    """Draw what there are numbers for, in panels that the page puts side by side or below each other."""
    kinds: dict[str, Callable[[Sequence[_Run]], Iterator[Figure]]] = {
        "scores": _scores,
        "precisions": _precisions,
        "frequencies": _frequencies,
        "validation": _validation,
        "losses": _losses,
    }
    with drawing():
        return {
            name: [inline(figure, f"{name}{at}") for at, figure in enumerate(draw(runs))]
            for name, draw in kinds.items()
        }


def _scores(runs: Sequence[_Run]) -> Iterator[Figure]:
    """Draw the test mAP(C): a bar is the mean of a series, a dot each run where there are several."""
    evaluated = [run for run in runs if run.row["map_c"] is not None]
    groups = _grouped(evaluated, lambda run: (run.scheme, run.series))
    values = {key: 100 * np.array([run.row["map_c"] for run in group]) for key, group in groups.items()}
    if not values:
        return
    figure, axes = panel("", "test mAP(C) in %", "")
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
    ceiling = max((dots.mean() for (scheme, _), dots in values.items() if scheme == _FULL), default=None)
    if ceiling is not None:
        axes.axvline(ceiling, color=INK, linestyle="--", linewidth=1)
        axes.text(ceiling, -0.5, "ceiling: full labels", ha="center", va="bottom", size=9)
    axes.set(
        xlim=(0, 1.15 * max(1, *(dots.max() for dots in values.values()))), ylim=(place, -0.5), yticks=[]
    )
    axes.spines["left"].set_visible(False)
    figure.set_figheight(0.8 + 0.32 * place)
    yield figure


def _precisions(runs: Sequence[_Run]) -> Iterator[Figure]:
    """Draw the AP of each class against how often the training labels know it to be present."""
    styles = _styles(runs)
    for scheme, group in _grouped([run for run in runs if run.evaluation], lambda run: run.scheme).items():
        figure, axes = panel(_heading(scheme), "known-present training labels of a class", "test AP in %")
        pixels = sum(len(run.classes) for run in group) > _POINTS
        for run in group:
            aps = dict(zip(run.evaluation["classes"], run.evaluation["ap"], strict=True))
            names = [name for name, ap in aps.items() if ap is not None and name in run.classes]
            known, ap = [run.classes[name]["present"] for name in names], [100 * aps[name] for name in names]
            look = {key: styles[run.series][key] for key in ("color", "marker")}
            axes.scatter(known, ap, 14, alpha=0.75, label=run.series, rasterized=pixels, **look)
        scale_to(axes.xaxis, np.array([count["present"] for run in group for count in run.classes.values()]))
        axes.set(ylim=(-3, 103))
        add_legend(figure, axes)
        yield figure


def _frequencies(runs: Sequence[_Run]) -> Iterator[Figure]:
    """Draw how many labels each class has, for the first run of each scheme."""
    for run, *_ in _grouped(runs, lambda run: (run.scheme, run.config["data"].get("labels"))).values():
        names = sorted(run.classes, key=lambda name: -run.classes[name]["present"])
        counts = np.array([[run.classes[name][key] for name in names] for key in ("present", "absent")])
        step = 1 if len(names) <= _NAMED else math.ceil(len(names) / (_NAMED / 2))
        which = "" if step == 1 else f" (one in {step} is named)"
        figure, axes = panel(
            _heading(run.scheme), f"class, most often present first{which}", "number of labels"
        )
        edges = np.arange(len(names) + 1) - 0.5
        axes.stairs(counts[0], edges, fill=True, color=COLOURS[0], alpha=0.75, label="known present")
        dots = axes.plot(counts[1], ".", color=COLOURS[1], label="known absent", clip_on=False)[0]
        dots.set(markersize=np.clip(400 / len(names), 2, 10), rasterized=len(names) > _POINTS)
        scale_to(axes.yaxis, counts)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(0, None))
        axes.set_xticks(range(0, len(names), step), [_short(name) for name in names[::step]], size=8)
        for text in axes.get_xticklabels():
            text.set(rotation=90, rotation_mode="anchor", ha="right", va="center")
        axes.grid(visible=False, axis="x")
        figure.set_figheight(3.5)
        add_legend(figure, axes)
        yield figure


def _validation(runs: Sequence[_Run]) -> Iterator[Figure]:
    """Draw the score that chooses the epoch; a ring is the epoch that was chosen."""
    styles = _styles(runs)
    for figure, axes, lines in _curves(runs, "score", "validation mAP in %", 100):
        for run, values in lines:
            if run.best is not None:
                colour = styles[run.series]["color"]
                axes.plot(run.best + 1, values[run.best], "o", markersize=9, fillstyle="none", color=colour)
        yield figure


def _losses(runs: Sequence[_Run]) -> Iterator[Figure]:
    """Draw the training loss."""
    for figure, axes, lines in _curves(runs, "loss", "training loss", 1):
        scale_to(axes.yaxis, np.concatenate([values for _, values in lines]))
        yield figure


_Lines = list[tuple[_Run, npt.NDArray[np.float64]]]


def _curves(runs: Sequence[_Run], key: str, name: str, scale: float) -> Iterator[tuple[Figure, Axes, _Lines]]:
    """Draw a figure of the records against the epoch, one panel a scheme; NaN where there is none."""
    styles = _styles(runs)
    for scheme, group in _grouped(runs, lambda run: run.scheme).items():
        every = [(run, np.array([record.get(key) for record in run.records], dtype=float)) for run in group]
        lines = [(run, scale * values) for run, values in every if np.isfinite(values).any()]
        if not lines:
            continue
        phased = any(len({record.get("phase") for record in run.records}) > 1 for run, _ in lines)
        figure, axes = panel(
            _heading(scheme), "epoch, one phase after the other" if phased else "epoch", name
        )
        for run, values in lines:
            epochs = range(1, len(values) + 1)
            axes.plot(epochs, values, label=run.series, markersize=3, linewidth=1.5, **styles[run.series])
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        add_legend(figure, axes)
        yield figure, axes, lines


def _styles(runs: Sequence[_Run]) -> dict[str, dict[str, Any]]:
    """Return how each series looks, the same in all figures; after the colours come other dashes."""
    dashes = zip(("-", "--", ":", "-."), "osD^", strict=True)
    looks = [
        {"color": colour, "linestyle": dash, "marker": marker}
        for dash, marker in dashes
        for colour in COLOURS
    ]
    return dict(zip(_grouped(runs, lambda run: run.series), cycle(looks), strict=False))


def _heading(scheme: str) -> str:
    return "" if scheme == _NO_SCHEME else scheme


def _short(name: str, limit: int = 18) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
