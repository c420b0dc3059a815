"""How results and progress look in a terminal, and in a log file."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tertium.errors import some
from tertium.progress import Progress

if TYPE_CHECKING:
    from tertium.cli.demo import Row
    from tertium.data.coverage import Coverage
    from tertium.labels.describe import Description
    from tertium.metrics.evaluation import Evaluation

_CLASSES, _MOST, _LEAST = 100, 20, 10  # classes up to which all are shown; else so many of both ends
_REDRAW, _LINE = 0.1, 10.0  # seconds between redrawn bars, between plain lines
FIGURES = {  # what the figures of an evaluation are; over the classes that can be scored
    "mAP(C)": "mean average precision of the classes",
    "mAP(O)": "the same, weighted by present labels",
    "mF1": "mean F1 of the classes",
    "CP": "precision, mean of the classes",
    "CR": "recall, mean of the classes",
    "CF1": "harmonic mean of CP and CR",
    "OP": "precision over all labels together",
    "OR": "recall over all labels together",
    "OF1": "harmonic mean of OP and OR",
}


class Bar(Progress):
    """A bar with the rate and the time left."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),  # may name a file
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self._task: TaskID | None = None
        self._done = self._drawn = 0
        self._began = self._last = 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        """Replace the bar."""
        self.close()
        self._bars.start()
        self._task = self._bars.add_task(what, total=total, unit=_unit(total, unit), rate="")
        self._done = self._drawn = 0
        self._began = self._last = time.perf_counter()

    def advance(self, count: int = 1) -> None:
        """Count, and redraw now and then: drawing each step would slow fast training down."""
        self._done += count
        now = time.perf_counter()
        if self._task is not None and now - self._last > _REDRAW:
            rate = self._done / (now - self._began)
            self._bars.update(self._task, completed=self._done, rate=_speed(rate))
            self._last = now

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._bars.console.print(text, highlight=False, markup=False, emoji=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._bars.stop()
            self._task = None


def _speed(rate: float) -> str:
    """Return how many a second, or how many seconds each.

    >>> _speed(1234.5), _speed(2.5), _speed(0.25)
    ('1,234/s', '2.5/s', '4.0 s each')
    """
    if rate < 1:
        return f"{1 / rate:.1f} s each" if rate else ""
    return f"{rate:.1f}/s" if rate < 10 else f"{rate:,.0f}/s"


class Lines(Progress):
    """Plain lines, for output that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what = self._unit = ""
        self._done = self._total = 0
        self._began = self._last = 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        """Say what begins."""
        self._what, self._unit, self._total, self._done = what, _unit(total, unit), total, 0
        self._began = self._last = time.perf_counter()
        self.note(f"{what}: {counted(total, unit)}")

    def advance(self, count: int = 1) -> None:
        """Say every few seconds how far it is."""
        self._done += count
        now = time.perf_counter()
        if now - self._last > _LINE:
            rate = self._done / (now - self._began)
            left = (self._total - self._done) / rate
            so_far = f"{self._done:,}/{self._total:,} {self._unit}"
            self.note(f"{self._what}: {so_far}, {_speed(rate)}, {left:,.0f} s left")
            self._last = now

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to take away."""


def watcher(console: Console) -> Bar | Lines:
    """Return bars in a terminal, lines elsewhere."""
    return Bar(console) if console.is_terminal else Lines(console)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """Return a table whose first column is text and whose other columns are numbers where they look so."""
    made = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        numeric = bool(rows) and all(row[place][:1].isdigit() or row[place] in ("–", "") for row in rows)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def counted(number: int, many: str) -> str:
    """Return a number with what is counted, one of which needs no plural.

    >>> counted(2000, "images"), counted(1, "images"), counted(1, "classes"), counted(1, "MB")
    ('2,000 images', '1 image', '1 class', '1 MB')
    """
    return f"{number:,} {_unit(number, many)}"


def _unit(number: int, many: str) -> str:
    if number != 1:
        return many
    return many[:-2] if many.endswith(("ches", "sses")) else many.removesuffix("s")


def percent(value: float | None) -> str:
    """Return a share as a percentage with one decimal, or a dash where there is none.

    >>> percent(0.6123), percent(None)
    ('61.2', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


# ---- results ---------------------------------------------------------------------------------------------


def show_description(console: Console, about: Description) -> None:
    """Print what a set of labels holds."""
    from tertium.labels.split_names import part_called

    total = max(about.images * about.classes, 1)
    console.print(f"{counted(about.images, 'images')}, {counted(about.classes, 'classes')}")
    for name, count in about.splits.items():
        part = part_called(name)
        other = "" if part in (None, name) else f", which is {part}"
        console.print(f"  split {escape(name)}: {counted(count, 'images')}{other}", highlight=False)
    for name, count in (("present", about.present), ("absent", about.absent), ("unknown", about.unknown)):
        console.print(f"  {name:8} {count:>15,}  {count / total:6.1%}", highlight=False)
    spreads = {
        "present per image": about.present_per_image,
        "absent per image": about.absent_per_image,
        "present per class": about.present_per_class,
        "absent per class": about.absent_per_class,
    }
    rows = [
        [name, f"{spread.mean:,.2f}", f"{spread.least:,}", f"{spread.median:,.0f}", f"{spread.most:,}"]
        for name, spread in spreads.items()
    ]
    console.print(table(["known labels", "mean", "least", "median", "most"], rows))
    _show_classes(console, about)
    if about.images_without_labels:
        shown = escape(some(about.unlabelled))
        console.print(f"Images without any label: {about.images_without_labels:,} ({shown})", highlight=False)
    for what, names in (("present", about.classes_without_present), ("absent", about.classes_without_absent)):
        if len(names) == about.classes:
            console.print(f"No class is known {what} anywhere.")
        elif names:
            shown = escape(some(names))
            console.print(f"Classes known {what} nowhere: {len(names):,} ({shown})", highlight=False)
    console.print(f"Resembles: [bold]{about.setting.name}[/] — {about.setting.reason}.", highlight=False)


def _show_classes(console: Console, about: Description) -> None:
    """Print the counts of all classes, or of the most and the least frequent ones."""
    lines = [[name, *(f"{count:,}" for count in counts)] for name, *counts in about.per_class]
    if len(lines) > _CLASSES:
        left = len(lines) - _MOST - _LEAST
        lines = [*lines[:_MOST], [f"… {left:,} more", "", "", ""], *lines[-_LEAST:]]
    console.print(table(["class", "present", "absent", "unknown"], lines))
    if len(about.per_class) > _CLASSES:
        console.print("All classes: --out classes.csv writes them, --json prints them.", highlight=False)


def show_coverage(console: Console, found: Coverage, place: str) -> None:
    """Print which files have no labels, and which labels no file."""

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    line(f"{place}: {counted(found.files, 'image files')}")
    if found.unnamed:
        line(f"  not named by the labels: {len(found.unnamed):,} ({some(found.unnamed)})")
    if found.missing:
        shown = [
            _without_file(name, found.respelt.get(name))
            for name in sorted(found.missing, key=lambda name: name not in found.respelt)
        ]
        line(f"  labelled images without a file: {len(found.missing):,} ({some(shown)})")
    if found.unread:
        endings = some((f"{count:,} {ending}" for ending, count in found.unread.items()), 8)
        line(f"  files that are not read: {endings}")


def _without_file(name: str, other: str | None) -> str:
    if other is None:
        return name
    return f"{name}, which is no image by its ending" if name == other else f"{name}, but there is {other}"


def show_summary(console: Console, summary: dict[str, Any], out: Path) -> None:
    """Print what a training run came to, how good the model is first."""
    if summary["expected_map"] is not None:
        headline, meaning = _expected(summary["expected_map"], summary["classes"])
        console.print(f"[bold]{headline}[/] {meaning}", highlight=False, soft_wrap=True)
    known = percent(summary["validation_known_map"])
    if summary["validation_known_scored"]:
        known += f" ({summary['validation_known_scored']} of {summary['classes']} classes)"
    if summary.get("select") == "clean":
        told = f"mAP {percent(summary['validation_clean_map'])} of TRUE validation labels, which no user has"
        console.print(f"[bold]The epoch was chosen by[/] {told}.", highlight=False, soft_wrap=True)
    rows = [
        ["method", summary["method"]],
        ["images", f"{summary['training_images']:,} training, {summary['validation_images']:,} validation"],
        ["best epoch", f"{summary['best_epoch']} of {summary['epochs']}"],
        ["mAP of known labels alone", known],
        ["validation score", percent(summary["validation_score"])],
        ["seconds", f"{summary['seconds']:.1f}"],
    ]
    console.print(table(["trained", ""], rows))
    console.print(f"Run: {out}", highlight=False, markup=False, emoji=False, soft_wrap=True)


def _expected(found: dict[str, Any], classes: int) -> tuple[str, str]:
    """Return how good the model is expected to be, a range where labels tell no more; then what it means."""
    between = f"between {percent(found['low'])} and {percent(found['high'])}"
    meaning = "This is the mean average precision over all labels of new images, known or not"
    if found["classes"] < classes:
        meaning += f", for the {found['classes']:,} of {classes:,} classes that training knew to be present"
    meaning += ". Nine of ten such ranges hold the truth."
    if found["settled"]:
        return f"Expected mAP: {percent(found['value'])}, {between}.", meaning
    meaning += (
        " This one is wide: labels do not tell how annotators chose what to note. If it was by chance, the "
        f"mAP is about {percent(found['value'])}. Images with all labels known would settle it: tertium "
        "evaluate."
    )
    return f"Expected mAP: {between}.", meaning


def show_evaluation(console: Console, found: Evaluation, title: str) -> None:
    """Print how good a model is, and which classes could not be scored."""
    fields = {"mAP(C)": "map_c", "mAP(O)": "map_o"}
    values = {name: percent(getattr(found, fields.get(name, name))) for name in FIGURES}
    values["mAP(C)"] += f" ({found.scored} of {len(found.classes)} classes)"
    rows = [[name, values[name], what] for name, what in FIGURES.items()]
    console.print(table(["figure", "value", "what it is"], rows, title=escape(title)))
    reasons: dict[str, list[str]] = {}
    for item in found.unscored:
        reasons.setdefault(item.reason, []).append(item.name)
    for reason, missing in reasons.items():
        console.print(f"Not scored, {reason}: {escape(some(missing, 8))}", highlight=False)


def show_demo(console: Console, rows: Sequence[Row]) -> None:
    """Print the demo's table."""
    cells = [
        [
            row.scheme,
            row.method,
            f"{percent(row.map_c)} ({row.scored} classes)",
            percent(row.map_o),
            percent(row.mf1),
            f"{row.seconds:.1f}",
        ]
        for row in rows
    ]
    console.print(table(["scheme", "method", "mAP(C)", "mAP(O)", "mF1", "seconds"], cells))
