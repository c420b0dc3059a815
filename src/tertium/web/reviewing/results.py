"""The results of the answers: labels for `train` and `merge`, and where people contradict each other."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError
from tertium.files import replacing
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.labels.tables import delimiter
from tertium.web.reviewing.answers import Answers, Cell, Standing

SIGN = {"present": 1, "absent": -1}
_WORD = {1: "present", -1: "absent", 0: ""}


@dataclass(frozen=True)
class Contradiction:
    """A label that some call present and some absent: people, or people and the label file."""

    image: str
    label: str
    present: tuple[str, ...]  # who says so
    absent: tuple[str, ...]
    given: int  # what the label file says: ±1, 0 if nothing

    @property
    def among_people(self) -> bool:
        """Whether people contradict each other, whatever the file says."""
        return bool(self.present and self.absent)

    @property
    def decided(self) -> int:
        """What most people say: ±1, or 0 if as many say the one as the other."""
        return _sign(len(self.present) - len(self.absent))


def given_values(labels: Labels, cells: Iterable[Cell]) -> dict[Cell, int]:
    """Return what a label file says of some labels: ±1, or 0 if nothing."""
    place = {name: number for number, name in enumerate(labels.classes)}
    known = [cell for cell in cells if cell[1] in place]
    found = pc.index_in(pa.array([image for image, _ in known], pa.string()), value_set=labels.images)
    inside = np.asarray(pc.is_valid(found))
    rows, own = np.unique(np.asarray(found.drop_null(), dtype=np.int64), return_inverse=True)
    columns = np.array([place[label] for _, label in known], dtype=np.int64)[inside]
    values = labels.dense(rows)[own, columns]
    kept = [cell for cell, there in zip(known, inside, strict=True) if there]
    return dict(zip(kept, values.tolist(), strict=True))


def contradictions(standing: Standing, given: Mapping[Cell, int]) -> list[Contradiction]:
    """Return the labels on which people differ, among themselves or from the label file."""
    found = []
    for cell in standing.cells():
        said = standing.said(cell)
        sides = [tuple(sorted(who for who in said if said[who] == word)) for word in SIGN]
        value = given.get(cell, 0)
        if all(sides) or (value > 0 and sides[1]) or (value < 0 and sides[0]):
            found.append(Contradiction(*cell, sides[0], sides[1], value))
    return sorted(found, key=lambda each: (each.image, each.label))


def agreed(standing: Standing) -> dict[Cell, int]:
    """Return ±1 for each label of which more people say so than the other; a skip says nothing."""
    found = {}
    for cell in standing.cells():
        sign = _sign(sum(SIGN.get(word, 0) for word in standing.said(cell).values()))
        if sign:
            found[cell] = sign
    return found


def disputed(standing: Standing) -> list[Cell]:
    """Return the labels that as many call present as absent: they are left out, and not asked again."""
    decided = agreed(standing)
    return [
        cell
        for cell in standing.cells()
        if cell not in decided and set(SIGN) <= set(standing.said(cell).values())
    ]


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def answered_labels(standing: Standing, labels: Labels) -> Labels:
    """Return the answers as labels of the images asked about, with the splits that the label file names."""
    values = agreed(standing)
    images = sorted({image for image, _ in values})
    classes = sorted({label for _, label in values})
    row = {image: number for number, image in enumerate(images)}
    column = {label: number for number, label in enumerate(classes)}
    splits = None
    if labels.splits is not None:
        splits = labels.splits.take(pc.index_in(pa.array(images, pa.string()), value_set=labels.images))
    return Labels.from_entries(
        [row[image] for image, _ in values],
        [column[label] for _, label in values],
        list(values.values()),
        classes=classes,
        images=images,
        splits=splits,
    )


@dataclass(frozen=True)
class Exported:
    """What was written."""

    labels: Labels
    contradictions: list[Contradiction]
    table: Path  # of contradictions


def export(answers: Answers, labels: Labels, out: str | Path) -> Exported:
    """Write the answers as a label file, and the contradictions as CSV beside it.

    A label is written as most people say it, also against ``labels``, and left out if as many say the one as
    the other. Wherever somebody contradicts, it is listed. A .csv or .tsv file has a line for each answer,
    with who gave it, when, and in how many seconds.
    """
    out = Path(out)
    standing = Standing.of(answers)
    if not any(word in SIGN for cell in standing.cells() for word in standing.said(cell).values()):
        raise InputError(f"{answers.path}: nobody has called a label present or absent yet")
    found = contradictions(standing, given_values(labels, standing.cells()))
    if not agreed(standing):
        raise InputError(f"{answers.path}: as many people contradict as agree on every label they answered")
    said = answered_labels(standing, labels)
    table = out.with_name(f"{out.stem}-contradictions.csv")
    if out.suffix in (".csv", ".tsv"):
        with replacing(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
            _write_answers(standing, said, csv.writer(sink, delimiter=delimiter(out), lineterminator="\n"))
    else:
        write_labels(said, out)
    with replacing(table) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        _write_contradictions(found, sink)
    return Exported(said, found, table)


def _write_answers(standing: Standing, labels: Labels, lines: Any) -> None:
    """Write a label file in long form, with a line for each answer about a label that is decided.

    ``value`` is what is decided, the same in all lines of a label; ``said`` is that person's answer.
    """
    splits = None if labels.splits is None else labels.splits.to_pylist()
    split = {} if splits is None else dict(zip(labels.images.to_pylist(), splits, strict=True))
    lines.writerow(
        ["image", "label", "value", *(["split"] if split else []), "who", "said", "time", "seconds"]
    )
    for cell, sign in sorted(agreed(standing).items()):
        about = [*cell, _WORD[sign], *([split[cell[0]] or ""] if split else [])]
        for row in standing.given(cell).values():
            if row.answer in SIGN:
                seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
                lines.writerow([*about, row.who, row.answer, row.time, seconds])


def _write_contradictions(found: Iterable[Contradiction], sink: IO[str]) -> None:
    """Write CSV: who says present, who absent, what the label file says, and what most people say."""
    lines = csv.writer(sink)
    lines.writerow(["image", "label", "present", "absent", "labels", "decided"])
    for each in found:
        people = (";".join(each.present), ";".join(each.absent))
        lines.writerow([each.image, each.label, *people, _WORD[each.given], _WORD[each.decided]])
