"""Scores of labels, entry by entry: what a run keeps of its validation images for the report."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.files import replacing
from tertium.labels import Labels
from tertium.metrics.evaluation import Evaluation, evaluate_known
from tertium.metrics.ranking import Counts, KnownScores
from tertium.runs import RunFolder

_ENTRIES = 2**21  # kept at most: 27 megabytes
_BLOCK = 2**22  # scores that are spread out at once
# What reading a damaged zip file of arrays raises, besides its own error.
_DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, OSError, RuntimeError)


@dataclass(frozen=True, eq=False)
class Scored:
    """A model's scores of known labels; in a class without known absences, of unknown labels too.

    >>> labels = Labels.from_dense([[1, 0], [-1, 1]], classes=["cat", "dog"])
    >>> scored = Scored.collect([np.array([[0.9, 0.2], [0.3, 0.6]])], labels, np.array([0.5, 0.5]))
    >>> scored.column.tolist(), scored.sign.tolist()
    ([0, 1, 0, 1], [1, 0, -1, 1])
    >>> scored.evaluate().ap
    array([ 1., nan])
    """

    classes: npt.NDArray[np.str_]  # [C]
    thresholds: npt.NDArray[np.float64]  # [C] the thresholds of the run
    images: npt.NDArray[np.int64]  # [2] how many are looked at, and of how many
    row: npt.NDArray[np.int32]  # [E] counts those that are looked at
    column: npt.NDArray[np.int32]  # [E]
    score: npt.NDArray[np.float32]  # [E]
    sign: npt.NDArray[np.int8]  # [E] +1 present, −1 absent, 0 unknown

    @classmethod
    def collect(
        cls,
        blocks: Iterable[npt.NDArray[Any]],
        labels: Labels,
        thresholds: npt.NDArray[np.float64],
    ) -> Scored:
        """Take what counts from scores [B, C] of one batch after the other; the labels have their classes.

        Of more labels than are kept, those of evenly spread images are taken.
        """
        blind = labels.class_counts[1] == 0
        wanted = labels.known - int(labels.class_counts[0][blind].sum()) + int(blind.sum()) * len(labels)
        step = max(1, -(-wanted // _ENTRIES))
        kinds = (np.int32, np.int32, np.float32, np.int8)
        parts: list[list[npt.NDArray[Any]]] = [[np.empty(0, dtype=kind)] for kind in kinds]
        start = 0
        for block in blocks:
            chosen = np.arange(-start % step, len(block), step)
            signs = labels.dense(chosen + start)
            row, column = np.nonzero((signs != 0) | blind)
            found: list[npt.NDArray[Any]]
            found = [(chosen[row] + start) // step, column, block[chosen[row], column], signs[row, column]]
            for part, values, kind in zip(parts, found, kinds, strict=True):
                part.append(values.astype(kind))
            start += len(block)
        return cls(
            np.array(labels.classes, dtype=np.str_),
            np.asarray(thresholds, dtype=np.float64),
            np.array([-(-len(labels) // step), len(labels)]),
            *map(np.concatenate, parts),
        )

    # ---- on disk -----------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write ``validation.npz`` into a run folder; its checksums tell a changed byte."""
        run = RunFolder(Path(folder))
        with replacing(run.validation_file) as temporary, open(temporary, "wb") as sink:
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            np.savez_compressed(sink, run=run.id() or "", **values)

    @classmethod
    def of_run(cls, folder: str | Path) -> Scored | None:
        """Read what a run has kept; None if it had no validation images, or was made by an earlier
        version."""
        run = RunFolder(Path(folder))
        path = run.validation_file
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as found:
                own = str(found["run"]) or None if "run" in found else None
                kept = cls(**{field.name: found[field.name] for field in fields(cls)})
        except _DAMAGED:
            raise InputError(f"{path}: was changed after it was written, or is damaged") from None
        run.check_own(path, own)
        return kept

    # ---- judging -----------------------------------------------------------------------------------------

    @property
    def blind(self) -> npt.NDArray[np.bool_]:
        """Which classes [C] are known absent nowhere."""
        return np.asarray(np.bincount(self.column[self.sign < 0], minlength=len(self.classes)) == 0)

    def known(self) -> Scored:
        """Return the known labels alone."""
        return self._where(self.sign != 0)

    def against_the_rest(self) -> Scored:
        """Return the classes without known absences, with all their unknown labels counted as absent."""
        part = self._where(self.blind[self.column])
        return replace(part, sign=np.where(part.sign == 0, -1, part.sign).astype(np.int8))

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Scored:
        names = ("row", "column", "score", "sign")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def evaluate(self, annotations: Counts | None = None) -> Evaluation:
        """Judge the known labels at the run's thresholds (see `tertium.metrics.evaluate`)."""
        part = self.known()
        names, count = tuple(map(str, part.classes)), int(part.images[0])
        labels = Labels.from_entries(
            part.row, part.column, part.sign, classes=names, images=map(str, range(count))
        )
        size = max(1, _BLOCK // max(len(names), 1))
        with (
            tempfile.TemporaryDirectory(prefix="tertium-") as folder,
            KnownScores(labels, names, folder) as known,
        ):
            for start in range(0, count, size):
                first, last = np.searchsorted(part.row, [start, start + size])
                block = np.zeros((min(size, count - start), len(names)), dtype=np.float32)
                block[part.row[first:last] - start, part.column[first:last]] = part.score[first:last]
                known.add(block)
            known.close()
            return evaluate_known(known, part.thresholds, annotations)
