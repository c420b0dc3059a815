"""The tables of a comparison: means over seeds with intervals, marks for the best, groups of classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.comparing.running import CELLS, Comparison, Figures
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing, write_json
from tertium.prediction.files import write_columns

CEILING = "full labels"  # the row of plain BCE on all labels
ABOUT = "about.json"  # what the comparison was on
_RESULTS = [f"results{kind}.csv" for kind in ("", "-classes", "-clean", "-epochs")]
_FILES = (ABOUT, "table.md", "table.svg", "report.html", "search.csv", *_RESULTS)
_KEYS = (
    "method",
    "scheme",
    "seed",
    "score",
    "validation",
    "best_epoch",
    "seconds",
    "reason",
    "trial",
    "tried",
)
_CLEAN = "## Chosen on clean labels\n\nEpochs and trials chosen on full validation labels.\n\n"
_LAST = "## The last epoch\n\nThe same runs after their last epoch, which nothing has chosen.\n\n"
# Two-sided 95 % points of Student's t by degrees of freedom, from 1; beyond them the normal's is close.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


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
    for name in sorted(rows, key=lambda name: -(mean_over(rows[name], schemes) or 0)):
        mean = mean_over(rows[name], schemes)
        # The ceiling is trained on full labels alone, which may be a column of their own.
        shown = " | ".join(_cell(rows[name][scheme]) if scheme in rows[name] else "" for scheme in schemes)
        lines.append(f"| `{name}` | {shown} | {'–' if mean is None else f'{100 * mean:.1f}'} |")
    return "\n".join(lines) + "\n"


def mean_over(row: Mapping[str, Entry], schemes: Sequence[str]) -> float | None:
    """Return the mean over all schemes, None if one of them is missing."""
    values = [row[scheme].mean if scheme in row else None for scheme in schemes]
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found and len(found) == len(values) else None


def _cell(entry: Entry, *, plain: bool = False) -> str:
    if entry.mean is None:
        return "–"
    half = "" if entry.half is None else f" ± {100 * entry.half:.1f}"
    text = f"{100 * entry.mean:.1f}{half}"
    return f"**{text}**" if entry.best and not plain else text


# ---- groups of classes -------------------------------------------------------------------------------------


def grouped(cells: Iterable[Figures], scheme: str) -> str:
    """Return the mean AP of each fifth of the classes, by how many of their labels are known; "" if alike.

    The fifths are those of each seed; the heading has their fewest and most known labels over all seeds.
    """
    rows: dict[str, list[list[Figures]]] = {}
    for cell in cells:
        if cell["scheme"] == scheme and cell.get("groups"):
            rows.setdefault(cell["method"], []).append(cell["groups"])
    if not rows:
        return ""
    first = next(iter(rows.values()))
    heads = [
        f"{each[0]['name']}: {min(one['fewest'] for one in each):,} – {max(one['most'] for one in each):,}"
        for each in zip(*first, strict=True)
    ]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    means = {
        name: [_percent([one["map_c"] for one in each]) for each in zip(*seeds, strict=True)]
        for name, seeds in rows.items()
    }
    lines += [f"| `{name}` | {' | '.join(shown)} |" for name, shown in means.items()]
    return "\n".join(lines) + "\n"


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * np.mean(known):.1f}" if known else "–"


# ---- files -------------------------------------------------------------------------------------------------


def check_folder(out: Path, inputs: Sequence[object]) -> None:
    """Raise `InputError` if a comparison cannot be written here: over an input, or among other things."""
    if out.is_dir() and any(out.iterdir()) and not (out / CELLS).is_dir():
        raise InputError(f"{out}: the folder is not empty and holds no comparison; choose another --out")
    keep_inputs([out / name for name in _FILES], inputs)


def write_results(out: Path, found: Comparison, schemes: Sequence[str]) -> str:
    """Write what was found as text tables and CSV files; return the main table."""
    write_json(out / ABOUT, about(found))
    _write_cells(out / "results.csv", found.cells)
    _write_classes(out / "results-classes.csv", found)
    text = markdown(summarise(found.cells), schemes)
    sections = [text + _reasons(found.cells) + _privileged(found.cells)]
    if found.clean:
        _write_cells(out / "results-clean.csv", found.clean)
        sections.append(_CLEAN + markdown(summarise(found.clean), schemes))
    if any("epochs" in cell for cell in found.cells):
        _write_epochs(out / "results-epochs.csv", found.cells)
        last = [_at_last_epoch(cell) for cell in found.cells]
        sections.append(_LAST + markdown(summarise(last), schemes))
    if found.trials:
        _write_trials(out / "search.csv", found.trials)
    groups = {scheme: grouped(found.cells, scheme) for scheme in schemes}
    sections += [
        f"## Classes by known labels: {scheme}\n\n{shown}" for scheme, shown in groups.items() if shown
    ]
    with replacing(out / "table.md") as temporary:
        temporary.write_text("\n".join(sections), encoding="utf-8")
    return text


def about(found: Comparison) -> dict[str, int]:
    """Return how many images, classes and seeds a comparison has."""
    training, test = found.images or (0, 0)
    images = {"training_images": training, "test_images": test} if found.images else {}
    return images | {"classes": len(found.classes), "seeds": len({cell["seed"] for cell in found.cells})}


def _reasons(cells: Sequence[Figures]) -> str:
    """Return why there are dashes in the table: a line for each method, with the reason of its first cell."""
    found: dict[str, tuple[list[str], str]] = {}
    for cell in cells:
        if cell.get("reason"):
            schemes, _ = found.setdefault(cell["method"], ([], cell["reason"]))
            schemes += [cell["scheme"]] if cell["scheme"] not in schemes else []
    lines = [f"- `{method}` ({', '.join(schemes)}): {why}\n" for method, (schemes, why) in found.items()]
    return "\n" + "".join(sorted(lines)) if lines else ""


def _privileged(cells: Sequence[Figures]) -> str:
    """Return which rows were given labels that no user has."""
    names = dict.fromkeys(
        f"`{cell['method']}`" for cell in cells if cell.get("settings", {}).get("select") == "clean"
    )
    told = "chose their epochs, and with a search their settings, on **true labels** of the validation part"
    return f"\nThese rows {told}, which no user has: {', '.join(names)}.\n" if names else ""


def _write_cells(path: Path, cells: Sequence[Figures]) -> None:
    write_columns(path, {key: [cell.get(key) for cell in cells] for key in _KEYS})


def _write_classes(path: Path, found: Comparison) -> None:
    """Write a line for each class of each cell: its test AP, and what training knew of it."""
    cells = [cell for cell in found.cells if "ap" in cell]
    columns: dict[str, list[Any]] = {
        key: [cell[key] for cell in cells for _ in found.classes] for key in ("method", "scheme", "seed")
    }
    columns["class"] = list(found.classes) * len(cells)
    for key in ("ap", "present", "absent", "truly_present"):
        columns[key] = [value for cell in cells for value in cell[key]]
    write_columns(path, columns)


def _write_epochs(path: Path, cells: Sequence[Figures]) -> None:
    lines = [(cell, epoch) for cell in cells for epoch in cell.get("epochs", [])]
    columns = {key: [cell[key] for cell, _ in lines] for key in ("method", "scheme", "seed")}
    for key in ("epoch", "validation", "clean", "test"):
        columns[key] = [epoch[key] for _, epoch in lines]
    write_columns(path, columns)


def _write_trials(path: Path, trials: Sequence[Figures]) -> None:
    """Write what the search saw; not the test scores, on which nobody shall choose."""
    judged = ("validation", "chosen", "clean", "chosen_cleanly")
    keys = ("method", "scheme", "trial", "tried", *judged, "seconds", "reason")
    write_columns(path, {key: [trial.get(key) for trial in trials] for key in keys})


def _at_last_epoch(cell: Figures) -> Figures:
    return cell | {"score": cell["epochs"][-1]["test"]} if "epochs" in cell else cell
