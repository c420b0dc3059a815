"""Single runs of a comparison, whose figures are kept in a CSV file: a bench goes on where it stopped."""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bench.second_head import read_ucmerced
from tertium.comparing.cells import Cell, Task, Work, train_cell
from tertium.comparing.rows import resolved, rows_from
from tertium.files import read_sealed
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels

EVIDENCE = Path(__file__).with_name("evidence")
KEYS = ("data", "scheme", "row", "seed", "trial")
HELD_OUT = {"coco": 5000, "ucmerced": 256}
FIGURES = ("score", "validation", "best_epoch", "clean_score", "clean_validation", "clean_epoch", "seconds")
Figures = dict[str, Any]
Key = tuple[str, ...]


class Evidence:
    """Lines of a CSV file that grows: what was run, and what it gave.

    A figure is a number; one of ``series`` has a number for each epoch, which stand in one column.
    """

    def __init__(
        self,
        path: Path,
        keys: Sequence[str] = KEYS,
        figures: Sequence[str] = FIGURES,
        series: Sequence[str] = (),
    ) -> None:
        self.path, self.keys, self.names, self.series = path, keys, (*figures, *series), series
        self.lines: dict[Key, Figures] = {}
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                for line in csv.DictReader(file):
                    found = {name: self._read(name, line[name]) for name in self.names}
                    self.lines[tuple(line[key] for key in keys)] = found

    def _read(self, name: str, text: str) -> Any:
        if name in self.series:
            return [float(word) for word in text.split()]
        return float(text) if text else None

    def get(self, *key: Any) -> Figures | None:
        """Return the figures of a run that is done."""
        return self.lines.get(tuple(str(part) for part in key))

    def add(self, key: Sequence[Any], figures: Figures) -> None:
        """Write a line; other processes may do the same."""
        named = tuple(str(part) for part in key)
        self.lines[named] = figures
        self.path.parent.mkdir(exist_ok=True)
        text = "" if self.path.is_file() else ",".join([*self.keys, *self.names]) + "\n"
        values = [_word(figures.get(name)) for name in self.names]
        text += ",".join([*(f'"{part}"' if "," in part else part for part in named), *values]) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def cost(self) -> str:
        """Return how many runs there are, and what they took."""
        seconds = sum(line.get("seconds") or 0 for line in self.lines.values())
        return f"{len(self.lines)} runs, {seconds / 60:.0f} minutes of processor time"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return "" if value is None else f"{value:.5g}"


def run(
    evidence: Evidence,
    works: Mapping[str, Work],
    data: str,
    scheme: str,
    row: str,
    seed: int,
    *,
    trial: int = 1,
    settings: Mapping[str, Any] | None = None,
    watched: bool = False,
) -> Figures:
    """Return the figures of a run, trained now if it is not in the evidence."""
    key = (data, scheme, row, seed, trial)
    found = evidence.get(*key)
    if found is None:
        started = time.process_time()
        found = _trained(works[data], scheme, row, seed, settings or {}, watched)
        found["seconds"] = time.process_time() - started
        evidence.add(key, found)
        print(*key, _word(found["score"]), f"{found['seconds']:.1f} s", file=sys.stderr, flush=True)
    return found


def _trained(
    work: Work, scheme: str, row: str, seed: int, settings: Mapping[str, Any], watched: bool
) -> Figures:
    (chosen,) = rows_from(row)
    cell = Cell(chosen.method, scheme, seed, resolved(chosen.method, {**chosen.given, **settings}, seed))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cell.json"
        train_cell(work, work.fingerprint(), Task(cell, place, watched, may_fail=True))
        figures: Figures = read_sealed(place)
    best = max(figures.get("epochs", []), key=lambda epoch: epoch["clean"] or 0, default={})
    return {
        **{name: figures.get(name) for name in ("score", "validation", "best_epoch")},
        "clean_score": best.get("test"),
        "clean_validation": best.get("clean"),
        "clean_epoch": best.get("epoch"),
    }


# ---- data --------------------------------------------------------------------------------------------------


def held_out(shared: Path, folder: Path, names: Sequence[str]) -> dict[str, Work]:
    """Return COCO and UC Merced with images of their TRAINING splits in the place of test images.

    Of COCO 5,000, of UC Merced (features of 96 pixels) 256: those of `bench.second_head`. Test images are not
    looked at.
    """
    works = {}
    for name in names:
        labels, features = _training(shared / name, folder)
        apart = np.random.default_rng(99).permutation(len(labels))[: HELD_OUT[name]]
        works[name] = _work(folder, name, labels, features, apart)
    return works


def _training(source: Path, folder: Path) -> tuple[Labels, Path]:
    if source.name == "coco":
        labels = read_labels(source / "labels.csv", unlisted="absent").part("train")
        return labels, source / "train_features.npy"
    labels, features = read_ucmerced(source)
    path = folder / "ucmerced.npy"
    np.save(path, features)
    return labels, path


def _work(folder: Path, name: str, labels: Labels, features: Path, apart: np.ndarray) -> Work:
    codes = np.zeros(len(labels), dtype=np.int32)
    codes[apart] = 1
    splits = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(["train", "test"]))
    path = folder / f"{name}.arrow"
    write_labels(Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits), path)
    return Work(str(path), str(features), "unknown")


def tested(shared: Path) -> dict[str, Work]:
    """Return COCO with its own test images."""
    coco = shared / "coco"
    features = [str(coco / f"{part}_features.npy") for part in ("train", "test")]
    return {"coco": Work(str(coco / "labels.csv"), features[0], "absent", features[1])}


def one_thread() -> None:
    """Leave the other cores to others."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
