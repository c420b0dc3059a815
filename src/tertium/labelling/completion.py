"""Completing labels: how probable each unknown label is, given the image and how labels were annotated.

A model says how probable a class is in an image. That nobody annotated it is evidence too: if present labels
are annotated more often than absent ones, an unknown label is less likely to be present than its image
suggests (see `tertium.annotation.calibration`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.annotation.calibration import (
    Block,
    Chances,
    Checked,
    Flags,
    Floats,
    Signs,
    calibrate,
    check,
    present_range,
    shifted,
    told_by_answers,
)
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together, folds_of
from tertium.data.inputs import Features, Images, Inputs
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labelling.answered import Answered
from tertium.labelling.collective import Collective, Relation
from tertium.labels import Labels
from tertium.labels.closure import close
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted, write_labels
from tertium.labels.tree import LabelTree
from tertium.prediction.described import Described
from tertium.prediction.files import check_columns, check_path, write_predictions
from tertium.progress import Progress
from tertium.runs import RunFolder

if TYPE_CHECKING:
    from tertium.prediction.trained import Trained

Edges = npt.NDArray[np.int64]  # [2, E] children and their parents

_ENTRIES = 2**21  # of validation labels that calibration looks at, at most
_LEAST = 50  # known validation labels, below which nothing is calibrated
_BINS = 1000  # of probabilities, between which thresholds lie
_LABELS = (".csv", ".tsv", ".parquet", ".arrow")
_READ = 2**20  # probabilities that are read back at once
_STRICTER = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01)  # of the wrong labels that are allowed
_DOUBT = 1.0  # standard deviations by which what known labels say of a precision may be off
_TRUST = 20.0  # known labels that the chances count as where labels were dropped at random, …
_AT_RANDOM = 0.1  # … and less the more present ones were sought, nothing from here on


# ---- a run and its labels ----------------------------------------------------------------------------------


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
        answered = Answered.among(aligned, answers)
        before = answered.taken_out_of(aligned)
        rows = _validation_rows(folder, aligned)
        scored = _Scored(trained, inputs, before, _collective(run, trained, alone), progress)
        scored, scores = scored.chosen(rows, annotation)
        chances, checked = _calibrated(scores, before.dense(rows), annotation)
        notes = (*_notes(labels, trained, annotation, checked), *answered.notes(aligned))
        if scored.collective is not None:
            notes = (*notes, scored.collective.note())
        asked = answered.unlearned(rows)
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
        scored = _Scored(self.trained, self.inputs, self.labels, self.collective, progress)
        for scores, labels in scored.blocks(np.arange(len(self.labels))):
            probabilities = self.chances.calibrated(scores)
            chances = self.chances.unknown_at(probabilities)
            yield probabilities, labels, _as_likely_as_children(chances, labels, self.levels)


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


def _collective(run: str | Path, trained: Trained, alone: bool) -> Collective | None:
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


# ---- completing --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thresholds:
    """For each class [C] the threshold above which unknown labels are called present."""

    lowest: npt.NDArray[np.int64]  # bin of chances; as many as there are where no threshold will do
    expected: Floats  # precision: the mean chance of the labels above; NaN without a threshold
    added: npt.NDArray[np.int64]  # how many unknown labels lie above
    found: Floats  # their share of all present labels that are expected among the unknown ones

    def above(self, chances: npt.NDArray[Any]) -> Flags:
        """Return which of the chances [B, C] reach the threshold of their class."""
        return np.asarray(_bin(chances) >= self.lowest)


class Tally:
    """Counts the chances of unknown labels, class by class: enough to find thresholds."""

    def __init__(self, classes: int) -> None:
        self._count = np.zeros(classes * _BINS, dtype=np.int64)
        self._sum = np.zeros(classes * _BINS)

    def add(self, chances: npt.NDArray[Any], unknown: Flags) -> None:
        """Take the chances [B, C] where ``unknown`` is true."""
        place = (_bin(chances) + np.arange(chances.shape[1]) * _BINS)[unknown]
        size = len(self._count)
        self._count += np.bincount(place, minlength=size)
        self._sum += np.bincount(place, weights=chances[unknown], minlength=size)

    def totals(self) -> tuple[int, float]:
        """Return how many unknown labels there are, and how many of them are expected to be present."""
        return int(self._count.sum()), float(self._sum.sum())

    def moved(self, by: Floats | float) -> float:
        """Return how many would be expected if the logits of the chances of each class [C] were moved."""
        count, total = self._count.reshape(-1, _BINS), self._sum.reshape(-1, _BINS)
        chance = np.clip(total / np.maximum(count, 1), 0, 1)
        return float((count * shifted(chance, np.broadcast_to(by, len(count))[:, None])).sum())

    def thresholds(self, precision: float | Floats) -> Thresholds:
        """Find the lowest threshold of each class whose labels above have this mean chance.

        None is below one half: a label that is more likely absent is not called present, however sure others
        are.
        """
        inside = self._count.reshape(-1, _BINS)
        count, total = (
            np.cumsum(part.reshape(-1, _BINS)[:, ::-1], axis=1)[:, ::-1] for part in (self._count, self._sum)
        )
        asked = np.broadcast_to(precision, len(inside))[:, None]
        good = (inside > 0) & (total >= asked * count) & (np.arange(_BINS) >= _BINS // 2)
        some = good.any(axis=1)
        lowest = np.where(some, good.argmax(axis=1), _BINS)
        at = np.minimum(lowest, _BINS - 1)[:, None]
        added = np.where(some, np.take_along_axis(count, at, 1)[:, 0], 0)
        chance = np.where(some, np.take_along_axis(total, at, 1)[:, 0], 0.0)
        expected = np.where(some, chance / np.maximum(added, 1), np.nan)
        return Thresholds(lowest, expected, added, chance / np.maximum(total[:, 0], 1e-300))


def _bin(chances: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.minimum((chances.astype(np.float64) * _BINS).astype(np.int64), _BINS - 1)


@dataclass(frozen=True)
class Completed:
    """What was written, and what a person should know."""

    unknown: int  # labels that were
    expected: float  # how many of them are present, …
    low: float  # … and its 90 % interval
    high: float
    settled: bool  # whether known labels tell the number; else only the interval does
    notes: tuple[str, ...]
    table: Path | None = None  # of thresholds
    added: int = 0  # labels above them
    together: Together | None = None  # by which known labels spoke for the others, if they did


def complete(
    run: str | Path,
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    answers: Source | None = None,
    out: str | Path,
    precision: float | None = None,
    filled: str | Path | None = None,
    alone: bool = False,
    tree: LabelTree | str | Path | None = None,
    progress: Progress | None = None,
) -> Completed:
    """Write the probability of every unknown label; known ones are 1 and 0.

    A label is judged by its image, and by the image's known labels if these are found to say anything about
    the others; with ``alone`` by the image only. By a ``tree`` of labels, what follows from known labels
    counts as known, and no class is less likely than one below it.

    With ``precision``, a CSV file beside ``out`` lists for each class the lowest threshold expected to reach
    it, and ``filled`` gets the labels, with those above the thresholds added as present. ``answers`` are
    labels that people were asked about, as `tertium answers` writes them: they count as known, and those that
    the run has not learned from calibrate the others.
    """
    out = Path(out)
    _check_request(out, precision, filled)
    table = out.with_name(f"{out.stem}-thresholds.csv")
    known_by = [place_of(labels), place_of(answers), None if isinstance(tree, LabelTree) else tree]
    keep_inputs([out, table, filled], [features, *known_by])
    labels = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
    said = None if answers is None else open_labels(answers, progress=progress)
    if tree is not None:
        tree = tree if isinstance(tree, LabelTree) else LabelTree.read(tree)
        tree.check(labels.classes)
        labels, _ = close(labels if said is None else _answered(labels, said), tree)
    ready = Prepared.of_run(
        run, labels, images, features=features, answers=said, alone=alone, tree=tree, progress=progress
    )
    check_columns(ready.trained.classes, None)
    tally = Tally(len(ready.trained.classes))
    names = ready.labels.images.to_pylist()
    write_predictions(out, names, ready.trained.classes, _known_kept(ready.blocks(progress), tally))
    unknown, expected = tally.totals()
    settled = ready.annotation is not None and ready.annotation.settled
    count = (unknown, expected, *_range(ready, tally), settled)
    if precision is None:
        return Completed(*count, ready.notes, together=ready.related)
    found, known, said_of = _thresholds(ready, tally, precision)
    _write_thresholds(table, ready, found, known)
    if filled is not None:
        write_labels(fill(labels if said is None else _answered(labels, said), out, ready, found), filled)
    notes = (*ready.notes, said_of)
    return Completed(*count, notes, table, int(found.added.sum()), ready.related)


def _range(ready: Prepared, tally: Tally) -> tuple[float, float]:
    """Return between which numbers of unknown labels are present.

    Answers are about close calls and say little of the many labels with small chances. So what would be
    expected without them counts too.
    """
    unknown, expected = tally.totals()
    known = int(ready.labels.class_counts[0].sum())
    both = [
        present_range(known, unknown, each, ready.annotation)
        for each in (expected, tally.moved(-np.asarray(ready.chances.told)))
    ]
    return min(low for low, _ in both), max(high for _, high in both)


def _answered(labels: Labels, answers: Labels) -> Labels:
    """Return all labels of the file, those of classes that the model does not know too, with the answers."""
    return Answered.among(labels, answers).put_into(labels)


def _check_request(out: Path, precision: float | None, filled: str | Path | None) -> None:
    check_path(out)
    if precision is not None and not 0 < precision < 1:
        raise InputError(f"the precision must lie between 0 and 1, not {precision}")
    if filled is not None:
        if precision is None:
            raise InputError("filled labels need a precision that those added are expected to have")
        if Path(filled).suffix not in _LABELS:  # said before the long work, not after it
            raise InputError(f"{filled}: labels are written as {', '.join(_LABELS)}")
        if not Path(filled).parent.is_dir():
            raise InputError(f"{filled}: the folder {Path(filled).parent} does not exist")


def _known_kept(blocks: Iterable[tuple[Floats, Signs, Block]], tally: Tally) -> Iterator[Block]:
    """Yield the chances of unknown labels among known ones as 1 and 0; count the former."""
    for _, labels, chances in blocks:
        tally.add(chances, labels == 0)
        yield np.where(labels == 0, chances, labels > 0).astype(np.float32)


def fill(labels: Labels, out: Path, ready: Prepared, found: Thresholds) -> Labels:
    """Return the labels with those above the thresholds added as present; ``out`` has the probabilities."""
    classes = (*labels.classes, *sorted(set(ready.trained.classes) - set(labels.classes)))
    column = np.array([classes.index(name) for name in ready.trained.classes])
    rows, columns, values = labels.with_classes(classes).coo()
    more_rows, more_columns, start = [rows], [columns], 0
    for chances in _read_back(out, len(ready.trained.classes)):
        unknown = ready.labels.dense(np.arange(start, start + len(chances))) == 0
        row, place = np.nonzero(unknown & found.above(chances))
        more_rows.append(row + start)
        more_columns.append(column[place])
        start += len(chances)
    added = sum(map(len, more_rows)) - len(rows)
    return Labels.from_entries(
        np.concatenate(more_rows),
        np.concatenate(more_columns),
        np.concatenate([values, np.ones(added, dtype=np.int8)]),
        classes=classes,
        images=labels.images,
        splits=labels.splits,
    )


def _read_back(path: Path, classes: int) -> Iterator[Block]:
    """Yield the probabilities that were written, block by block: quicker than to predict once more."""
    if path.suffix == ".parquet":
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(max(1, _READ // classes)):
                yield _matrix(batch)
        return
    names = pa.csv.open_csv(path).schema.names
    kinds = {name: pa.float32() for name in names[1:]} | {names[0]: pa.string()}
    with pa.csv.open_csv(path, convert_options=pa.csv.ConvertOptions(column_types=kinds)) as file:
        yield from map(_matrix, file)


def _matrix(batch: pa.RecordBatch) -> Block:
    return np.stack([np.asarray(column, dtype=np.float32) for column in batch.columns[1:]], axis=1)


@dataclass(frozen=True)
class _Known:
    """For each class [C] what known validation labels above the thresholds say of unknown ones like them.

    A present label among them stands for (1 − e⁺)/e⁺ unknown ones, an absent one for (1 − e⁻)/e⁻.
    """

    present: npt.NDArray[np.int64]
    absent: npt.NDArray[np.int64]
    stands: Floats  # [2, C] how many unknown labels a present, and an absent, one stands for
    least: Floats  # [C] the same of a present one, if its class is rarer than thought
    added: npt.NDArray[np.int64]  # unknown labels above the threshold …
    claimed: float  # … and their mean chance, …
    trust: float  # … which counts as so many known labels
    tells: Flags  # not where no label is known to be absent

    @property
    def count(self) -> npt.NDArray[np.int64]:
        return self.present + self.absent

    @property
    def right(self) -> Floats:
        return np.asarray(self.present * self.stands[0])

    @property
    def wrong(self) -> Floats:
        return np.asarray(self.absent * self.stands[1])

    @property
    def precision(self) -> Floats:
        return np.where(self.tells, self.right / np.maximum(self.right + self.wrong, 1e-300), np.nan)

    def surely(self, asked: float) -> float:
        """Return the precision over all classes that these labels leave little doubt of.

        The odds of wrong labels to right ones are counted high, as known labels vary by chance. Half a wrong
        one counts where none is known, and stands for many if few absent labels are known. The chances alone
        never suffice: they count as if they were halfway between what is asked and certain, at most.
        """
        claimed = min(self.claimed, (1 + asked) / 2)
        more = self.trust * claimed, max(self.trust * (1 - claimed), 0.5)
        (right, right_spread), (wrong, wrong_spread) = (
            [
                (count * stands**n).sum() + few * (self.added @ stands / max(self.added.sum(), 1)) ** n
                for n in (1, 2)
            ]
            for count, stands, few in (
                (self.present, self.least, more[0]),
                (self.absent, self.stands[1], more[1]),
            )
        )
        if right <= 0:
            return 0.0
        error = np.sqrt(right_spread / right**2 + wrong_spread / max(wrong, 1e-12) ** 2)
        return float(1 / (1 + wrong / right * np.exp(_DOUBT * error)))


def _thresholds(ready: Prepared, tally: Tally, precision: float) -> tuple[Thresholds, _Known, str]:
    """Find thresholds of which known validation labels confirm the precision, and say how sure that is.

    Chances may be too high at their upper end. So more is asked of them, step by step, until known labels
    above the thresholds leave little doubt. If they never do, nothing is called present. A class that is
    known absent nowhere cannot be checked: there labels must be likely enough even if it is as rare as it
    may be.
    """
    blind = (ready.labels.class_counts[1] == 0) | (ready.chances.absent * len(ready.labels) < 1)
    assumed = precision / np.maximum(_least_share(ready), 1e-12)
    for asked in (*(1 - part * (1 - precision) for part in _STRICTER), 2.0):  # the last is never reached
        found = tally.thresholds(np.where(blind, assumed, asked))
        known = _known_above(ready, found, blind)
        if known.surely(precision) >= precision:
            break
    return found, known, _note_of(known, blind, precision)


def _least_share(ready: Prepared, doubt: float = 1.96) -> Floats:
    """Return the share [C] of what is expected to be present that is, if a class is rarer than thought.

    By so many standard deviations. All of its labels that are known are among those that remain.
    """
    about = ready.annotation
    if about is None:
        return np.zeros(len(ready.chances.present))
    rarer = (np.maximum(about.low, 1e-12) / np.maximum(about.rate, 1e-12)) ** (doubt / 1.96)
    return np.clip((rarer - about.present) / np.maximum(1 - about.present, 1e-12), 0, 1)


def _known_above(ready: Prepared, found: Thresholds, blind: Flags) -> _Known:
    labels, above = ready.checked.labels, found.above(ready.checked.unknown) & ~blind
    present, absent = ((above & (labels == sign)).sum(axis=0) for sign in (1, -1))
    seen, dismissed = (np.maximum(each, 1e-12) for each in (ready.chances.present, ready.chances.absent))
    stands = np.stack([(1 - seen) / seen, (1 - dismissed) / dismissed])
    least = stands[0] if np.allclose(seen, dismissed) else stands[0] * _least_share(ready, _DOUBT)
    tells = (labels < 0).any(axis=0) & (present * stands[0] + absent * stands[1] > 0)
    added = np.where(blind, 0, found.added)
    claimed = float((added * np.nan_to_num(found.expected)).sum() / max(added.sum(), 1))
    sought = 1.0 if ready.annotation is None else ready.annotation.sought
    trust = _TRUST * max(0.0, 1 - sought / _AT_RANDOM) * ready.checked.calibrated
    return _Known(present, absent, stands, least, added, claimed, trust, tells)


def _note_of(known: _Known, blind: Flags, precision: float) -> str:
    """Say how sure the precision is that was asked for."""
    if blind.all():
        return (
            "no label is known to be absent, so the precision is assumed: a label is added only if it is "
            "likely enough even should its class be as rare as it may be"
        )
    if not known.added.any():
        return f"nothing is added: known validation labels do not show that {precision:.0%} would be right"
    share = known.right.sum() / max(known.right.sum() + known.wrong.sum(), 1e-300)
    return (
        f"judged by {known.count.sum():,} known validation labels above the thresholds, {share:.0%} of the "
        f"labels there are present, hardly less than {known.surely(precision):.0%}"
    )


def _write_thresholds(path: Path, ready: Prepared, found: Thresholds, known: _Known) -> None:
    """Write for each class the threshold, what is expected above it, and what validation labels say."""
    share = known.precision
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(
            ["class", "threshold", "expected_precision", "added", "share_found", "checked", "precision_there"]
        )
        for number, name in enumerate(ready.trained.classes):
            has_any = found.lowest[number] < _BINS
            is_checked = has_any and known.tells[number]
            lines.writerow(
                [
                    name,
                    f"{found.lowest[number] / _BINS:g}" if has_any else "",
                    f"{found.expected[number]:.4f}" if has_any else "",
                    found.added[number],
                    f"{found.found[number]:.4f}",
                    known.count[number] if is_checked else "assumed",
                    f"{share[number]:.4f}" if is_checked else "",
                ]
            )
