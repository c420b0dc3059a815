"""What people answered, used as what it is: labels that were asked about because of their scores.

An answer is known whether the label is present or absent, unlike a label that somebody chose to note. So it
says nothing about how labels were annotated, and all the more about unknown labels with such scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tertium.labels import Labels

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
        rows, columns, _ = labels.coo()
        width = len(labels.classes)
        return labels.with_entries(~np.isin(rows * width + columns, self.rows * width + self.columns))

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

    def unlearned(self, held_out: Whole) -> Answered:
        """Return those that a model cannot have learned: not in its label file, or of images held out.

        An answer that contradicts the file says as much about the file, or about the question, as about
        labels with such scores. It is left out.
        """
        kept = (self.given == 0) | (np.isin(self.rows, held_out) & ~self.against)
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
            f"{label}: answered {said}, in the file {given}; they replace it and calibrate nothing"
        ]
