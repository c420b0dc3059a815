"""The page about runs, and the CSV files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tertium.data.inputs import Features, Images
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.progress import Progress
from tertium.reporting import tables
from tertium.reporting.better import Change, change
from tertium.reporting.figures import charts
from tertium.reporting.looking import Given, Missing, find_missing, judge
from tertium.reporting.runs import NO_SCHEME, Run, grouped, read_runs, some
from tertium.runs import REPORT, RunFolder, report_tables

_MISSING = "–"
_CLASSES, _ENDS = 40, 15  # classes up to which all are on the page; else so many from each end


def write_report(
    path: str | Path,
    runs: Sequence[RunFolder],
    *,
    title: str = "Tertium report",
    command: str | None = None,
    given: Given | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write an HTML page about runs, and beside it CSV files with its numbers.

    Test figures are those of ``given`` if it names a split, else of ``evaluation.json`` in the run folder,
    where there is one; curves and, without a test, all other figures are those of the run's validation
    images. The page needs neither network nor JavaScript, and the same runs give the same bytes.
    """
    path = Path(path)
    check_page(path)
    if not runs:
        raise InputError("there are no runs to report on")
    tested = [None if given is None or given.split is None else judge(run, given, progress) for run in runs]
    shown = read_runs(runs, tested)
    missing = None if given is None else find_missing(runs[0], given, progress)
    changed = _change(shown, runs, given)
    rows = _rows(shown, missing, changed)
    beside = dict(zip(REPORT, report_tables(path), strict=True))
    files = {kind: file.name for kind, file in beside.items() if rows[kind]}
    page = template("report.html").render(
        title=title,
        command=command,
        schemes=grouped(shown, lambda run: run.scheme),
        schemed=any(run.scheme != NO_SCHEME for run in shown),
        tested=any(run.test for run in shown),
        judged=grouped([run for run in shown if run.quality], lambda run: run.quality and run.quality.on),
        drawn=grouped([run for run in shown if run.drawn], lambda run: run.drawn and run.drawn.on),
        comparable=len({run.test_labels for run in shown if run.test}) <= 1,
        validated=grouped(shown, lambda run: run.validated),
        change=changed,
        data=_data_of(shown),
        classes=_classes(shown, rows["-classes"]),
        groups=_groups(shown, rows["-groups"]),
        unscored=grouped([run for run in shown if run.quality], _unscored),
        epochs=rows["-epochs"],
        charts=charts(shown),
        total=len(shown),
        some=some(shown),
        missing=missing,
        settings=_settings(shown),
        files=files,
    )
    write_together(
        {path: page} | {path.with_name(files[kind]): tables.csv_text(rows[kind]) for kind in files}
    )
    for kind, file in beside.items():
        if kind not in files:
            file.unlink(missing_ok=True)  # of an earlier page, about other runs
    return path


def report(
    runs: Sequence[str | Path] | str | Path,
    *,
    out: str | Path = "report.html",
    title: str = "Tertium report",
    labels: Source | None = None,
    images: Images | None = None,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    command: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write an HTML page about run folders; see `write_report`.

    With ``labels`` and their images or features, the page also shows which labels are probably missing; with
    ``split`` its figures are those of that split. ``command`` is shown as the command that made the page.
    """
    if labels is None and (images, features, split) != (None, None, None):
        raise InputError("images, features and split belong to a label file: give labels")
    page = Path(out)
    keep_inputs([page, *report_tables(page)], [features, place_of(labels)])
    folders = [RunFolder.open(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    given = None
    if labels is not None:
        name = place_of(labels) or "the given labels"
        opened = open_labels(labels, unlisted=unlisted, progress=progress)
        given = Given(opened, name, images, features, split)
    return write_report(out, folders, title=title, command=command, given=given, progress=progress)


def check_page(path: Path) -> None:
    """Raise `InputError` if a page cannot be written here; called before any long work begins."""
    if path.suffix not in (".html", ".htm"):
        raise InputError(f'{path}: the report is a web page, call it "{path.stem}.html"')
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    for file in report_tables(path):
        if file.exists() and not _is_ours(file):
            raise InputError(f"{file}: is not of a report and would be overwritten; choose another --out")


def _is_ours(file: Path) -> bool:
    """Whether a file begins as those of a report do: a label file may well have the same name."""
    begin = b"run,"
    with open(file, "rb") as content:
        return content.read(len(begin)) == begin


def write_together(files: dict[Path, str]) -> None:
    """Write all of the files, or none."""
    with ExitStack() as stack:
        for path, text in files.items():
            stack.enter_context(replacing(path)).write_text(text, encoding="utf-8")


def template(name: str) -> Any:
    """Return a page to be filled; whatever is put in is text, unless it says that it is markup."""

    def shown(pattern: str, scale: float = 1) -> Callable[[float | None], str]:
        return lambda value: _MISSING if value is None else format(scale * value, pattern)

    environment = Environment(
        loader=PackageLoader("tertium.reporting"),
        autoescape=True,  # names of classes come from other people's files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": shown(".1f", 100),
        "whole": shown(".0f", 100),
        "share": shown(".3g", 100),
        "number": shown(","),
        "decimal": shown(".3g"),
        "seconds": shown(",.1f"),
        "signed": lambda value: _MISSING if value is None else f"{100 * value:+.1f}".replace("-", "−"),
    }
    environment.filters["breakable"] = _breakable
    environment.filters["indented"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment.get_template(name)


def _breakable(name: str) -> Markup:
    """Return a name that a narrow column breaks after a sign, not inside a word.

    >>> _breakable("single_positive-auto")
    Markup('single_<wbr>positive-<wbr>auto')
    """
    pieces = re.split(r"(?<=[_./:,=-])(?=\w)", name)
    return Markup("<wbr>").join(escape(piece) for piece in pieces)


# ---- what is on it ---------------------------------------------------------------------------------------


def _change(runs: Sequence[Run], order: Sequence[RunFolder], given: Given | None) -> Change | None:
    """Compare two runs in the order in which they were given; of one or of many there is nothing to say."""
    if len(runs) != 2:
        return None
    first = order[0].path
    old, new = sorted(runs, key=lambda run: run.name not in (str(first), first.resolve().name))
    return change(old, new, given)


def _side_by_side(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose figures are of the same images as those of the first that has any."""
    judged = [run for run in runs if run.quality is not None]
    return [run for run in judged if run.images(run.quality) == judged[0].images(judged[0].quality)]


def _groups(runs: Sequence[Run], rows: Sequence[tables.Row]) -> dict[str, list[tables.Row]]:
    """Return the rows of groups of classes by run, for runs that can be compared."""
    found = grouped_rows(rows, "run")
    return {run.name: found[run.name] for run in _side_by_side(runs) if run.name in found}


def _rows(
    runs: Sequence[Run], missing: Missing | None, changed: Change | None
) -> dict[str, list[tables.Row]]:
    """Return the rows of each CSV file."""
    makers = (
        lambda run: [run.row],
        tables.class_rows,
        tables.epoch_rows,
        tables.group_rows,
        tables.curve_rows,
        tables.calibration_rows,
    )
    found = [[row for run in runs for row in make(run)] for make in makers]
    last = [missing.rows if missing else [], changed.rows if changed else []]
    return dict(zip(REPORT, [*found, *last], strict=True))


def grouped_rows(rows: Sequence[tables.Row], key: str) -> dict[str, list[tables.Row]]:
    """Return rows by one of their values, in order."""
    groups: dict[str, list[tables.Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _data_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what the runs were trained on, named by the scheme or, if that is ambiguous, by the runs."""
    groups = list(grouped(runs, lambda run: run.data).values())
    schemes = [group[0].scheme for group in groups]
    found = []
    for group, scheme in zip(groups, schemes, strict=True):
        told = scheme != NO_SCHEME and schemes.count(scheme) == 1
        found.append({"name": scheme if told else ", ".join(run.name for run in group), **_data(group)})
    return found


def _data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what runs were trained on that had the same labels."""
    run = next((run for run in runs if run.annotation is not None), runs[0])
    data, images = run.config["data"], run.config["data"]["training_images"]
    present, absent = (sum(count[kind] for count in run.classes.values()) for kind in ("present", "absent"))
    truth = run.counts("true")
    cells = images * len(run.classes)
    estimated = None if run.annotation is None else float(run.annotation.rate.sum())
    return {
        "images": images,
        "validation": data["validation_images"],
        "classes": len(run.classes),
        "present": present,
        "absent": absent,
        "share": (present + absent) / cells if cells else None,
        "per_image": present / images if images else None,
        "estimated": estimated,
        "true": float(truth.sum() / images) if images and truth is not None else None,
        "annotated": min(present / (images * estimated), 1.0) if images and estimated else None,
        "setting": data.get("setting"),
        "labels": data.get("labels"),
    }


def _classes(runs: Sequence[Run], rows: Sequence[tables.Row]) -> dict[str, Any]:
    """Return the table of classes: of the labels if all runs had the same, of the AP of some runs."""
    beside = _side_by_side(runs) or runs
    names = [run.name for run in some(beside)]
    found = grouped_rows(rows, "run")
    cells = {name: {row["class"]: row for row in found.get(name, ())} for name in names}
    first = list(cells[names[0]].values())
    # By AP where there is one, by what is known where not.
    order = sorted(
        first,
        key=lambda row: (
            row["ap"] is None,
            -(row["ap"] or 0),
            -(row["ap_against_the_rest"] or 0),
            -row["present"],
        ),
    )
    cut = len(order) > _CLASSES
    return {
        "count": len(order),
        "rows": order[:_ENDS] + order[-_ENDS:] if cut else order,
        "break": _ENDS if cut else None,
        "runs": names,
        "more": len(runs) - len(names),
        "apart": len(beside) < len(runs),
        "cells": cells,
        "same": len({run.data for run in runs}) == 1,
        "judged": any(row["judged_on"] for row in rows),
        "estimated": any(row["estimated"] is not None for row in first),
        "true": any(row["true"] is not None for row in first),
        "ranked": any(row["ap_against_the_rest"] is not None for row in rows),
    }


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings and versions of some runs side by side, those of a phase with dotted names."""
    first = some(runs)
    flat = [_flat({**run.config["settings"], "versions": run.config.get("versions", {})}) for run in first]
    keys = dict.fromkeys(key for each in flat for key in each)
    return {
        "runs": [run.name for run in first],
        "rows": {key: [each.get(key, _MISSING) for each in flat] for key in keys},
        "more": len(runs) - len(first),
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as text under dotted names.

    >>> _flat({"seed": 0, "head": {"lr": 0.1}, "weights": None})
    {'seed': '0', 'head.lr': '0.1', 'weights': 'none'}
    """
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = "none" if value is None else str(value)
    return found


def _unscored(run: Run) -> tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Return on what a run was judged, and the classes that were not scored, by reason."""
    assert run.quality is not None
    return run.quality.on, tuple((reason, tuple(names)) for reason, names in run.quality.reasons.items())
