"""What people answered, used as what it is: labels that were asked about because of their scores.

An answer is known whether the label is present or absent, unlike a label that somebody chose to note. So it
says nothing about how labels were annotated, and all the more about unknown labels with such scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.merging import Part, join
from tertium.runs import RunFolder

Whole = npt.NDArray[np.int64]
_WORDS = {1: "present", -1: "absent"}


@dataclass(frozen=True)
class Answered:
    """Answers about the labels of a file; all [A]."""

    rows: Whole
    columns: Whole
    values: npt.NDArray[np.int8]  # ±1
    given: npt.NDArray[np.int8]  # what the label file says: ±1, 0 if nothing

    @classmethod
    def among(cls, labels: Labels, answers: Labels | None) -> Answered:
        """Find the answers that are about these images and classes, by their names."""
        if answers is None:
            none = np.empty(0, dtype=np.int64)
            return cls(none, none, none.astype(np.int8), none.astype(np.int8))
        rows, columns, values = answers.with_classes(labels.classes).coo()
        place = pc.fill_null(pc.index_in(answers.images, value_set=labels.images), -1)
        rows = np.asarray(place, dtype=np.int64)[rows]
        inside = rows >= 0
        rows, columns, values = rows[inside], columns[inside], values[inside]
        images, own = np.unique(rows, return_inverse=True)
        return cls(rows, columns, values, labels.dense(images)[own, columns])

    def images(self) -> tuple[Whole, Whole]:
        """Return the rows of the images that were asked about, and which of them each answer is about."""
        found, own = np.unique(self.rows, return_inverse=True)
        return found.astype(np.int64), own.astype(np.int64)

    def taken_out_of(self, labels: Labels) -> Labels:
        """Return the labels as they were before anybody was asked."""
        if not len(self.rows):
            return labels
        rows, columns, _ = labels.coo()
        return labels.with_entries(~np.isin(_cells(rows, columns), _cells(self.rows, self.columns)))

    def put_into(self, labels: Labels) -> Labels:
        """Return the labels with the answers instead of what they say."""
        if not len(self.rows):
            return labels
        rows, columns, values = self.taken_out_of(labels).coo()
        return Labels.from_entries(
            np.concatenate([rows, self.rows]),
            np.concatenate([columns, self.columns]),
            np.concatenate([values, self.values]),
            classes=labels.classes,
            images=labels.images,
            splits=labels.splits,
        )

    def unlearned(self, held_out: Whole, learned: Answered | None = None) -> Answered:
        """Return those that a model cannot have learned, unless they contradict the file.

        They are neither in its label file nor among the answers that it has ``learned``, or are of images
        held out. An answer that contradicts the file says as much about the file, or about the question, as
        about labels with such scores. It is left out.
        """
        new = self.given == 0
        if learned is not None:
            new &= ~np.isin(_cells(self.rows, self.columns), _cells(learned.rows, learned.columns))
        kept = new | (np.isin(self.rows, held_out) & ~self.against)
        return Answered(self.rows[kept], self.columns[kept], self.values[kept], self.given[kept])

    @property
    def against(self) -> npt.NDArray[np.bool_]:
        """Which answers contradict the label file."""
        found: npt.NDArray[np.bool_] = self.given == -self.values
        return found

    def notes(self, labels: Labels) -> list[str]:
        """Return a sentence on answers that contradict these labels, if there are any."""
        places = np.flatnonzero(self.against)
        if not places.size:
            return []
        first = places[0]
        name, label = labels.images[int(self.rows[first])].as_py(), labels.classes[self.columns[first]]
        said, given = (_WORDS[int(value)] for value in (self.values[first], self.given[first]))
        return [
            f"{len(places):,} of {len(self.rows):,} answers contradict the label file, such as {name}, "
            f"{label}: answered {said}, in the file {given}; they replace it"
        ]


def _cells(rows: Whole, columns: Whole) -> Whole:
    """Return one number for each label, whatever its image and class."""
    return (rows << 32) | columns


def about(answers: Labels, images: pa.Array, classes: tuple[str, ...]) -> Labels:
    """Return the answers about these images and classes, by their names; other images are left out.

    >>> said = Labels.from_dense([[1, -1], [0, 1]], classes=["cat", "yak"], images=["a", "b"])
    >>> about(said, pa.array(["b", "a"]), ("dog", "cat"))
    Labels(1 images, 2 classes, 1 present, 0 absent)
    """
    found = answers[np.asarray(pc.is_in(answers.images, value_set=images))].with_classes(classes)
    return replace(found[np.flatnonzero(np.diff(found.offsets))], splits=None)


def joined(earlier: Labels | None, later: Labels | None) -> Labels | None:
    """Return all answers; of two about the same label, the later one."""
    if earlier is None or later is None:
        return later if earlier is None else earlier
    kept = Answered.among(earlier, later).taken_out_of(earlier)
    return join([Part("earlier answers", kept), Part("answers", later)]).labels


def learned_by(run: str | Path) -> Labels | None:
    """Return the answers that a run has learned as labels; None if it was given none."""
    folder = RunFolder.open(run)
    wanted = folder.data().answers
    if not wanted:
        return None
    if not folder.learned_file.is_file():
        raise InputError(f"{folder.learned_file}: is missing; the run was given answers and began with them")
    found = Labels.load(folder.learned_file)
    if found.fingerprint() != wanted:
        raise InputError(f"{folder.learned_file}: are not the answers that the run was given")
    return found
