"""A run ready to judge the unknown labels of images: loaded, calibrated, with what known labels tell.

A model says how probable a class is in an image. That nobody annotated it is evidence too: if present labels
are annotated more often than absent ones, an unknown label is less likely to be present than its image
suggests (see `tertium.annotation.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.annotation.answered import Answered, joined, learned_by
from tertium.annotation.calibration import (
    Block,
    Chances,
    Checked,
    Floats,
    Signs,
    calibrate,
    check,
    told_by_answers,
)
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together, folds_of
from tertium.data.inputs import Features, Images, Inputs
from tertium.errors import InputError
from tertium.labelling.collective import Collective, Relation
from tertium.labels import Labels
from tertium.labels.tree import LabelTree
from tertium.prediction.described import Described
from tertium.progress import Progress
from tertium.runs import RunFolder

if TYPE_CHECKING:
    from tertium.prediction.trained import Trained

Edges = npt.NDArray[np.int64]  # [2, E] children and their parents

_ENTRIES = 2**21  # of validation labels that calibration looks at, at most
_LEAST = 50  # known validation labels, below which nothing is calibrated


@dataclass(frozen=True)
class Prepared:
    """A run ready to say how probable unknown labels are; labels and inputs are in the same order."""

    trained: Trained
    labels: Labels  # with the classes of the model, in its order, and with all answers
    inputs: Inputs
    chances: Chances
    annotation: Annotation | None  # None where the run's method does not model it
    checked: Checked
    notes: tuple[str, ...]  # what a person should know
    collective: Collective | None = None  # what known labels say about the others, if anything
    levels: tuple[Edges, ...] = ()  # of a label tree: a parent is at least as likely as its children

    @classmethod
    def of_run(
        cls,
        run: str | Path,
        labels: Labels,
        images: Images | None = None,
        *,
        features: Features | None = None,
        answers: Labels | None = None,
        alone: bool = False,
        tree: LabelTree | None = None,
        progress: Progress | None = None,
    ) -> Prepared:
        """Load the model, find the inputs by name, and calibrate on validation images and answers.

        With ``alone`` each label is judged by its image alone, whatever is known of the others.
        """
        folder = RunFolder.open(run)
        inputs = Described.of_run(run).labelled(labels, images, features)
        from tertium.prediction.trained import Trained  # loads torch: now that nothing trivial is wrong

        trained = Trained.load(run)
        annotation = Annotation.of_run(run)
        if annotation is not None:
            annotation = annotation.for_classes(trained.classes)
        aligned = labels.with_classes(trained.classes)
        learned = learned_by(run)
        answered = Answered.among(aligned, joined(learned, answers))
        before = answered.taken_out_of(aligned)
        rows = _validation_rows(folder, aligned)
        scored = _Scored(trained, inputs, before, collective_of(run, trained, alone), progress)
        scored, scores = scored.chosen(rows, annotation)
        chances, checked = _calibrated(scores, before.dense(rows), annotation)
        taught = Answered.among(aligned, learned)
        notes = (*_notes(labels, trained, annotation, checked), *_answer_notes(answered, taught, aligned))
        if scored.collective is not None:
            notes = (*notes, scored.collective.note())
        asked = answered.unlearned(rows, taught)
        if len(asked.rows):
            about, own = asked.images()
            chance = chances.unknown(scored.of(about))[own, asked.columns]
            chances, note = _told(chances, chance.astype(np.float64), asked, annotation)
            notes = (*notes, note)
        known, found = answered.put_into(aligned), scored.collective
        levels = () if tree is None else _levels(tree, trained.classes)
        return cls(trained, known, inputs, chances, annotation, checked, notes, found, levels)

    @property
    def related(self) -> Together | None:
        """How labels go together, if that counts."""
        heard = self.collective
        return heard.together if heard is not None and heard.share else None

    def relations(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> dict[str, Relation]:
        """Return for each image with several of these unknown labels [Q] what they say about one another."""
        heard = self.collective
        if heard is None or not heard.share:
            return {}
        several = np.flatnonzero(np.bincount(rows, minlength=1) > 1)
        if not len(several):
            return {}
        scored = _Scored(self.trained, self.inputs, self.labels, heard, None)
        outputs = scored.outputs(several)
        labels, folds = self.labels.dense(several), folds_of(self.labels.images.take(pa.array(several)))
        return {
            str(self.labels.images[row].as_py()): heard.relation(
                outputs[place], labels[place], folds[place], columns[rows == row], self.chances.scale
            )
            for place, row in enumerate(several.tolist())
        }

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[Floats, Signs, Block]]:
        """Yield batches of calibrated probabilities, labels, and the chances if unknown; each [B, C]."""
        how = Judged(self.chances, self.collective, self.levels)
        return how.blocks(self.trained, self.inputs, self.labels, progress)


@dataclass(frozen=True)
class Judged:
    """How a model's scores become the chances of unknown labels."""

    chances: Chances
    collective: Collective | None
    levels: tuple[Edges, ...]

    def blocks(
        self, trained: Trained, inputs: Inputs, labels: Labels, progress: Progress | None = None
    ) -> Iterator[tuple[Floats, Signs, Block]]:
        """Yield batches of calibrated probabilities, labels, and the chances if unknown; each [B, C]."""
        scored = _Scored(trained, inputs, labels, self.collective, progress)
        for scores, known in scored.blocks(np.arange(len(labels))):
            probabilities = self.chances.calibrated(scores)
            chances = self.chances.unknown_at(probabilities)
            yield probabilities, known, _as_likely_as_children(chances, known, self.levels)


def _levels(tree: LabelTree, classes: Sequence[str]) -> tuple[Edges, ...]:
    """Return children and their nearest parents among the classes, the deepest level first."""
    place = {name: number for number, name in enumerate(classes)}
    levels: dict[int, list[tuple[int, int]]] = {}
    for name, child in place.items():
        above = [place[parent] for parent in tree.ancestors(name) if parent in place]
        if above:
            levels.setdefault(len(above), []).append((child, above[0]))
    return tuple(np.array(levels[depth], dtype=np.int64).T for depth in sorted(levels, reverse=True))


def _as_likely_as_children(chances: Block, labels: Signs, levels: Sequence[Edges]) -> Block:
    """Return chances in which no parent is less likely than one of its children, known or not."""
    if not levels:
        return chances
    found = np.where(labels == 0, chances, labels > 0).T.astype(np.float32)  # [C, B]
    for children, parents in levels:
        np.maximum.at(found, parents, found[children])
    return np.ascontiguousarray(found.T)


def collective_of(run: str | Path, trained: Trained, alone: bool) -> Collective | None:
    """Return what the run found of how labels go together, if it did and is asked."""
    together = None if alone else Together.of_run(run)
    if together is None:
        return None
    if together.classes != trained.classes or together.maps.shape[1] != trained.model.width:
        raise InputError(f"{RunFolder(Path(run)).together_file}: is about another model than the run's")
    return Collective.of(trained, together)


@dataclass(frozen=True)
class _Scored:
    """Images with their labels, and how probable each label is given its image and the others."""

    trained: Trained
    inputs: Inputs
    labels: Labels
    collective: Collective | None
    progress: Progress | None

    def blocks(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Block, Signs]]:
        """Yield scores and labels [B, C] of rows, batch by batch."""
        start = 0
        heard = self.collective if self.collective is not None and self.collective.share else None
        for outputs in (heard or self).trained.stream(self._inputs(rows), self.progress):
            mine = rows[start : start + len(outputs)]
            labels, start = self.labels.dense(mine), start + len(outputs)
            yield (outputs if heard is None else heard.scores(outputs, labels, self._folds(mine))), labels

    def of(self, rows: npt.NDArray[np.int64]) -> Block:
        """Return the scores [N, C] of a few rows."""
        blocks = [scores for scores, _ in self.blocks(rows)] if len(rows) else []
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.trained.classes)), np.float32)

    def outputs(self, rows: npt.NDArray[np.int64]) -> Block:
        """Return all that the model with further units says of rows."""
        model = self.trained if self.collective is None else self.collective.trained
        return np.concatenate(list(model.stream(self._inputs(rows), self.progress)))

    def chosen(self, rows: npt.NDArray[np.int64], annotation: Annotation | None) -> tuple[_Scored, Block]:
        """Decide on these rows how much known labels count for the others; return their scores too."""
        labels = self.labels.dense(rows)
        if self.collective is None or annotation is None or np.count_nonzero(labels) < _LEAST:
            apart = replace(self, collective=None)
            return apart, apart.of(rows)
        outputs = self.outputs(rows)
        plain = Chances(1.0, np.zeros(labels.shape[1]), annotation.present, annotation.absent)
        folds = self._folds(rows)
        found = replace(self, collective=self.collective.chosen(outputs, labels, folds, plain))
        return found, found.of(rows)

    def _inputs(self, rows: npt.NDArray[np.int64]) -> Inputs:
        return self.inputs if len(rows) == len(self.inputs) else self.inputs.select(rows)

    def _folds(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        return folds_of(self.labels.images.take(pa.array(rows)))


def _validation_rows(folder: RunFolder, labels: Labels) -> npt.NDArray[np.int64]:
    """Return rows of images that the run did not train on, evenly spread if there are too many to hold."""
    held_out = pa.array(folder.data().validation, pa.string())
    found = pc.index_in(held_out, value_set=labels.images).drop_null()
    rows = np.sort(np.asarray(found, dtype=np.int64))
    most = max(1, _ENTRIES // len(labels.classes))
    return rows[:: max(1, -(-len(rows) // most))]


def _calibrated(scores: Block, labels: Signs, annotation: Annotation | None) -> tuple[Chances, Checked]:
    """Fit and check the chances, as far as the labels allow."""
    even = np.full(labels.shape[1], 0.5)  # then that a label is unknown says nothing
    present = even if annotation is None else annotation.present
    absent = even if annotation is None else annotation.absent
    chances = Chances(1.0, np.zeros(labels.shape[1]), present, absent)
    both = bool((labels > 0).any() and (labels < 0).any())
    fitted = bool(np.count_nonzero(labels) >= _LEAST) and (both or annotation is not None)
    if fitted:
        chances = calibrate(scores, labels, present, absent)
    return chances, check(scores, labels, chances, fitted)


def _told(
    chances: Chances, expected: Floats, asked: Answered, annotation: Annotation | None
) -> tuple[Chances, str]:
    """Move the chances by answers; say how far off what was ``expected`` [A] of those labels was."""
    sought = 1.0 if annotation is None else annotation.sought
    told = told_by_answers(expected, asked.columns, asked.values > 0, len(chances.present), sought)
    note = (
        f"calibrated by {len(expected):,} answers: {expected.mean():.0%} of them were expected to be "
        f"present, {(asked.values > 0).mean():.0%} are"
    )
    return replace(chances, told=told), note


def _answer_notes(answered: Answered, learned: Answered, labels: Labels) -> list[str]:
    notes = [f"{note} and calibrate nothing" for note in answered.notes(labels)]
    if len(learned.rows):
        notes.append(f"{len(learned.rows):,} answers that the run was given to learn from count as known")
    return notes


def _notes(
    labels: Labels, trained: Trained, annotation: Annotation | None, checked: Checked
) -> tuple[str, ...]:
    notes = []
    strangers = sorted(set(labels.classes) - set(trained.classes))
    if strangers:
        notes.append(f"not known to the model, left as they are: {len(strangers):,} classes")
    if annotation is None:
        notes.append("the run did not model annotation: that a label is unknown is taken to say nothing")
    if not checked.calibrated:
        known = np.count_nonzero(checked.labels)
        notes.append(
            f"not calibrated: {known:,} known labels in {len(checked.labels):,} validation images are too few"
            if known < _LEAST
            else "not calibrated: no label is known to be absent"
        )
    if checked.ece_before is not None and checked.ece_after is not None and checked.calibrated:
        notes.append(
            f"calibrated on {len(checked.labels):,} validation images: the error on their known labels, "
            f"each judged by a fit that has not seen it, is {checked.ece_after:.2%} (before: "
            f"{checked.ece_before:.2%})"
        )
    elif checked.ece_before is None and np.count_nonzero(checked.labels):
        notes.append("one sign only is known in the validation images: the probabilities cannot be checked")
    return tuple(notes)
