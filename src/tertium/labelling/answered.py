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


@dataclass(frozen=True)
class Answered:
    """Answers about the labels of a file; all [A]."""

    rows: Whole
    columns: Whole
    values: npt.NDArray[np.int8]  # ±1
    fresh: npt.NDArray[np.bool_]  # whether the label file does not have them

    @classmethod
    def among(cls, labels: Labels, answers: Labels | None) -> Answered:
        """Find the answers that are about these images and classes, by their names."""
        if answers is None:
            none = np.empty(0, dtype=np.int64)
            return cls(none, none, none.astype(np.int8), none.astype(np.bool_))
        rows, columns, values = answers.with_classes(labels.classes).coo()
        place = pc.fill_null(pc.index_in(answers.images, value_set=labels.images), -1)
        rows = np.asarray(place, dtype=np.int64)[rows]
        inside = rows >= 0
        rows, columns, values = rows[inside], columns[inside], values[inside]
        images, own = np.unique(rows, return_inverse=True)
        return cls(rows, columns, values, labels.dense(images)[own, columns] == 0)

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
        """Return those that a model cannot have learned: not in its label file, or of images held out."""
        kept = self.fresh | np.isin(self.rows, held_out)
        return Answered(self.rows[kept], self.columns[kept], self.values[kept], self.fresh[kept])
