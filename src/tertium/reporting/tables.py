"""The numbers of a report as rows, for the CSV files beside it and for the tables on it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tertium.reporting.quality import Quality
from tertium.reporting.runs import Run, number
from tertium.training.memorisation import KINDS

Row = dict[str, Any]
_JUDGED = (
    "judged_on",
    "ap",
    "ap_low",
    "ap_high",
    "ap_against_the_rest",
    "judged_present",
    "judged_absent",
    "threshold",
    "not_scored",
)
_CORRECTIONS = ("altered", "judged", "present", "precision", "base_rate")


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows as CSV; columns are those of any row, in the order in which they turn up."""
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def class_rows(run: Run) -> list[Row]:
    """Return what is known of each class: its labels, its frequency, how well it is found."""
    names = list(run.classes)
    images = run.config["data"]["training_images"]
    columns: dict[str, list[Any]] = {
        "run": [run.name] * len(names),
        "class": names,
        "images": [images] * len(names),
        "present": [run.classes[name]["present"] for name in names],
        "absent": [run.classes[name]["absent"] for name in names],
    }
    known = (np.array(columns["present"]) + np.array(columns["absent"])) / max(images, 1)
    columns |= {"known": known.tolist(), "observed": _list(run.share("present"), len(names))}
    annotation = None if run.annotation is None else run.annotation.for_classes(names)
    for key, figure in (("estimated", "rate"), ("estimated_low", "low"), ("estimated_high", "high")):
        columns[key] = _list(None if annotation is None else getattr(annotation, figure), len(names))
    columns["true"] = _list(run.share("true"), len(names))
    columns |= _judged(run.quality, names)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _judged(quality: Quality | None, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns on how well each class is found; empty where nobody looked."""
    if quality is None:
        return {key: [None] * len(names) for key in _JUDGED}
    reasons = {name: reason for reason, group in quality.reasons.items() for name in group}
    figures = quality.figures
    arrays = (
        *quality.ap,
        quality.ranked,
        *(figures[key] for key in ("positives", "negatives", "thresholds")),
    )
    found = {name: tuple(values) for name, *values in zip(quality.classes, *arrays, strict=True)}
    rows = [
        (quality.on, *map(_plain, found[name]), reasons.get(name))
        if name in found
        else (None,) * len(_JUDGED)
        for name in names
    ]
    return {key: [row[place] for row in rows] for place, key in enumerate(_JUDGED)}


def epoch_rows(run: Run) -> list[Row]:
    """Return the figures of each epoch."""
    rows = []
    for place, record in enumerate(run.records):
        memory = record.get("memory") or {}
        rows.append(
            {
                "run": run.name,
                "phase": record.get("phase"),
                "epoch": record.get("epoch"),
                "kept": place == run.best,
                "loss": record.get("loss"),
                **{f"term_{name}": value for name, value in (record.get("terms") or {}).items()},
                "validation_score": record.get("score"),
                "judged": record.get("judged"),
                "validation_known_map": record.get("known_map"),
                "validation_known_scored": record.get("known_scored"),
                **{f"loss_{kind}": memory["loss"][kind] for kind in KINDS if memory},
                **{f"corrections_{name}": memory[name] for name in _CORRECTIONS if memory},
                "seconds": record.get("seconds"),
            }
        )
    return rows


def group_rows(run: Run) -> list[Row]:
    """Return the fifths of the classes by how many labels training knew."""
    quality = run.quality
    if quality is None:
        return []
    fields = ("name", "classes", "scored", "fewest", "most", "map_c")
    return [
        {"run": run.name, "judged_on": quality.on}
        | {"group" if key == "name" else key: group[key] for key in fields}
        for group in quality.figures.get("groups", ())
    ]


def curve_rows(run: Run) -> list[Row]:
    """Return the points of the curves; without a class, all scored classes are taken together."""
    quality = run.drawn
    if quality is None:
        return []
    return [
        {
            "run": run.name,
            "judged_on": quality.on,
            "class": name,
            "threshold": at,
            "precision": p,
            "recall": r,
        }
        for name, curve in quality.curves.items()
        for at, p, r in zip(*(part.tolist() for part in curve), strict=True)
    ]


def calibration_rows(run: Run) -> list[Row]:
    """Return how often labels are present, by the probability they were given."""
    quality = run.drawn
    bins = None if quality is None else quality.reliability
    if quality is None or bins is None:
        return []
    return [
        {"run": run.name, "judged_on": quality.on} | dict(zip(bins._fields, values, strict=True))
        for values in zip(*(part.tolist() for part in bins), strict=True)
    ]


def _list(values: Any, size: int) -> list[Any]:
    return [None] * size if values is None else values.tolist()


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else number(value)
