"""A fair comparison: every method under every scheme, on the same images and the same hidden labels."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tertium import methods
from tertium.errors import InputError, did_you_mean
from tertium.files import read_json, write_json
from tertium.inputs import load_features
from tertium.labels import Labels
from tertium.progress import Progress
from tertium.readers import read_labels
from tertium.schemes import parse
from tertium.training import TRAIN, train

CEILING = "full labels"  # the row of plain BCE on all labels
_TEST = "test"
_FULL = ("bce", "bce_ls")  # need labels that no scheme leaves
# Two-sided 95 % points of Student's t by degrees of freedom, from 1; beyond them the normal's is close.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Cell:
    """One training run of a comparison."""

    method: str
    scheme: str
    seed: int
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file: what was trained, and how."""
        key = json.dumps(asdict(self), sort_keys=True)
        return f"{self.method}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True)
class Work:
    """What all cells share: the data, by path, and the settings."""

    labels: str
    features: str
    unlisted: str
    settings: Mapping[str, Any]
    test_features: str | None = None

    def fingerprint(self) -> str:
        """Tell other data or settings apart: cells of theirs do not count as done."""
        for path in (self.labels, self.features, self.test_features):
            if path is not None and not Path(path).is_file():
                raise InputError(f"{path}: no such file")
        stats = [
            (str(Path(path).resolve()), os.stat(path).st_size, os.stat(path).st_mtime_ns)
            for path in (self.labels, self.features, self.test_features)
            if path is not None
        ]
        return hashlib.sha256(json.dumps([stats, self.unlisted, dict(self.settings)]).encode()).hexdigest()


def check_methods(names: Sequence[str]) -> list[str]:
    """Return the methods that are meant: "all", or names of which each must exist."""
    if list(names) == ["all"]:
        return [name for name in methods.available() if name not in _FULL]
    return [methods.find(name).name for name in names]


def compare(
    work: Work,
    out: Path,
    *,
    schemes: Sequence[str],
    names: Sequence[str],
    seeds: int = 5,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train every cell that is not done yet and return all of them, with their figures.

    Each seed hides other labels, and draws another validation part. A cell sees the test labels only when its
    training has ended. What is done is in ``out``/cells, so a comparison that was stopped goes on.
    """
    progress = progress or Progress()
    for scheme in schemes:
        parse(scheme)
    cells = [Cell("bce", "full", seed) for seed in range(seeds)]
    cells += [
        Cell(method, scheme, seed, _given(method, work))
        for seed in range(seeds)
        for scheme in schemes
        for method in names
    ]
    place = out / "cells" / work.fingerprint()[:12]
    place.mkdir(parents=True, exist_ok=True)
    waiting = [cell for cell in cells if not (place / cell.name).is_file()]
    progress.start("comparing", len(cells), "cells")
    progress.advance(len(cells) - len(waiting))
    jobs = min(jobs or os.cpu_count() or 1, len(waiting))
    if jobs <= 1:
        for cell in waiting:
            _train_cell(work, cell, place / cell.name)
            progress.advance()
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            for done in as_completed(
                [pool.submit(_train_cell, work, cell, place / cell.name) for cell in waiting]
            ):
                done.result()
                progress.advance()
    return [dict(read_json(place / cell.name)) for cell in cells]


def _given(method: str, work: Work) -> dict[str, Any]:
    """Return the parameters of a method that the settings name as method.parameter."""
    prefix = f"{method}."
    return {key.removeprefix(prefix): value for key, value in work.settings.items() if key.startswith(prefix)}


def _train_cell(work: Work, cell: Cell, place: Path) -> None:
    torch.set_num_threads(1)
    data = _Data(work)
    figures: dict[str, Any] = {**asdict(cell)}
    partial = parse(cell.scheme).apply(data.training, cell.seed)
    settings = {
        key: value for key, value in work.settings.items() if "." not in key or key.startswith("head.")
    }
    try:
        methods.make(cell.method).check(partial)
    except InputError as error:  # it cannot learn from such labels; any other mistake ends the comparison
        write_json(place, figures | {"score": None, "reason": str(error)})
        return
    outcome = train(
        partial,
        features=data.features,
        method=cell.method,
        seed=cell.seed,
        config={**settings, **cell.parameters},
    )
    result = outcome.trained.evaluate(data.test, features=data.test_features)
    figures |= {
        "score": result.map_c,
        "validation": outcome.summary["validation_score"],
        "best_epoch": outcome.summary["best_epoch"],
        "seconds": outcome.summary["seconds"],
    }
    write_json(place, figures)


class _Data:
    """Training and test part, in the order of the label file."""

    def __init__(self, work: Work) -> None:
        labels = read_labels(work.labels, unlisted="absent" if work.unlisted == "absent" else "unknown")
        for split in (TRAIN, _TEST):
            if split not in labels.split_names():
                hint = did_you_mean(split, labels.split_names())
                raise InputError(f'{work.labels}: a comparison needs the splits "train" and "test"; {hint}')
        rows, others = labels.rows_in(TRAIN), labels.rows_in(_TEST)
        self.training, self.test = _bare(labels[rows]), _bare(labels[others])
        if work.test_features is not None:
            self.features = load_features(work.features, len(rows))
            self.test_features = load_features(work.test_features, len(others))
        else:
            everything = load_features(work.features, len(labels))
            self.features, self.test_features = everything[rows], everything[others]


def _bare(labels: Labels) -> Labels:
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images)


# ---- the table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A method under a scheme: the mean over seeds, half its 95 % interval, whether it is among the best."""

    mean: float | None
    half: float | None
    best: bool
    reason: str = ""


def summarise(cells: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Entry]]:
    """Return method → scheme → entry.

    Among the best are the highest mean and all that a paired test over the seeds cannot tell from it.
    """
    scores: dict[tuple[str, str], dict[int, float | None]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for cell in cells:
        key = (cell["method"], cell["scheme"])
        scores.setdefault(key, {})[cell["seed"]] = cell["score"]
        reasons.setdefault(key, cell.get("reason", ""))
    table: dict[str, dict[str, Entry]] = {}
    for scheme in dict.fromkeys(scheme for _, scheme in scores):
        column = {
            method: np.array([by_seed[seed] for seed in sorted(by_seed)], dtype=np.float64)
            for (method, where), by_seed in scores.items()
            if where == scheme and all(value is not None for value in by_seed.values())
        }
        leader = max(column, key=lambda name: float(column[name].mean()), default=None)
        for method, where in scores:
            if where != scheme:
                continue
            if method not in column:
                entry = Entry(None, None, False, reasons[method, where])
            else:
                values = column[method]
                best = leader is not None and _level(column[leader], values)
                entry = Entry(float(values.mean()), half_interval(values), best)
            table.setdefault(method, {})[scheme] = entry
    return table


def half_interval(values: npt.NDArray[np.float64]) -> float | None:
    """Return half the 95 % interval of a mean, by Student's t; None for one value.

    >>> round(half_interval(np.array([1.0, 2.0, 3.0])), 3)
    2.484
    """
    if len(values) < 2:
        return None
    factor = _T95[len(values) - 2] if len(values) - 2 < len(_T95) else 1.96
    return float(factor * values.std(ddof=1) / np.sqrt(len(values)))


def _level(leader: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> bool:
    """Return whether a paired test over the seeds cannot tell them apart."""
    difference = leader - values
    half = half_interval(difference)
    return not difference.any() or (half is not None and float(difference.mean()) <= half)


def markdown(table: Mapping[str, Mapping[str, Entry]], schemes: Sequence[str]) -> str:
    """Return the table: mean ± half interval in percent, bold where among the best of a column."""
    lines = ["| method | " + " | ".join(schemes) + " | mean |", "|---|" + "---|" * (len(schemes) + 1)]
    ceiling = table.get("bce", {}).get("full")
    if ceiling is not None and ceiling.mean is not None:
        lines.append(f"| {CEILING} | " + " | ".join([_cell(ceiling, plain=True)] * len(schemes)) + " | |")
    rows = {name: row for name, row in table.items() if any(scheme in row for scheme in schemes)}
    for name in sorted(rows, key=lambda name: -(_mean(rows[name], schemes) or 0)):
        mean = _mean(rows[name], schemes)
        shown = " | ".join(_cell(rows[name][scheme]) for scheme in schemes)
        lines.append(f"| `{name}` | {shown} | {'–' if mean is None else f'{100 * mean:.1f}'} |")
    return "\n".join(lines) + "\n"


def _mean(row: Mapping[str, Entry], schemes: Sequence[str]) -> float | None:
    values = [row[scheme].mean for scheme in schemes]
    return (
        None
        if any(value is None for value in values)
        else float(np.mean([v for v in values if v is not None]))
    )


def _cell(entry: Entry, *, plain: bool = False) -> str:
    if entry.mean is None:
        return "–"
    half = "" if entry.half is None else f" ± {100 * entry.half:.1f}"
    text = f"{100 * entry.mean:.1f}{half}"
    return f"**{text}**" if entry.best and not plain else text
