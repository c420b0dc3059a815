"""UC Merced's photographs: their labels, and whether a method can learn from some of them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tertium import methods
from tertium.comparing import Row
from tertium.errors import InputError
from tertium.labels import Labels


def read(folder: Path, split: str) -> Labels:
    """Return the full labels of a split: what a line does not list is absent."""
    classes = (folder / "classes.txt").read_text(encoding="utf-8").split()
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["split"] == split]
    values = np.full((len(lines), len(classes)), -1, dtype=np.int8)
    for row, line in enumerate(lines):
        values[row, [int(number) for number in line["labels"].split()]] = 1
    return Labels.from_dense(values, classes=classes, images=[line["image"] for line in lines])


def fits(row: Row, known: Labels) -> bool:
    names = methods.parameters_of(methods.find(row.method))
    try:
        parameters = {key: value for key, value in row.given.items() if key in names}
        methods.make(row.method, parameters).check(known)
    except InputError:
        return False
    return True
