"""What every model in use can do, with torch or without: probabilities, and how good they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tertium.data.inputs import BATCH, Features, Images, Inputs
from tertium.errors import InputError, did_you_mean, some
from tertium.metrics.evaluation import evaluate_known
from tertium.metrics.ranking import Counts, KnownScores
from tertium.processes import barrier, from_first, rank, shared_folder, shares, world
from tertium.progress import Progress

if TYPE_CHECKING:
    from tertium.labels import Labels
    from tertium.metrics.evaluation import Evaluation

Block = npt.NDArray[np.float32]


class Model(Protocol):
    """What a kind of model must have; `Predictor` adds the rest."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        ...

    @property
    def thresholds(self) -> npt.NDArray[np.float64]:
        """The decision threshold of each class [C]."""
        ...

    def inputs(self, images: Images | None, features: Features | None, names: Sequence[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        ...

    def blocks(self, inputs: Inputs) -> Iterator[Block]:
        """Yield the probabilities [B, C] of a few inputs, batch by batch."""
        ...

    def stream(
        self, inputs: Inputs, progress: Progress | None = None, rows: range | None = None
    ) -> Iterator[Block]:
        """Yield probabilities, batch by batch."""
        ...

    def labelled(self, labels: Labels, images: Images | None, features: Features | None) -> Inputs:
        """Find the inputs of labelled images."""
        ...


class Predictor:
    """Probabilities and figures of a `Model`."""

    def stream(
        self: Model, inputs: Inputs, progress: Progress | None = None, rows: range | None = None
    ) -> Iterator[Block]:
        """Yield the probabilities of one batch after the other, of a range of rows if one is given."""
        progress = progress or Progress()
        rows = range(len(inputs)) if rows is None else rows
        done = rows.start
        progress.start("predicting", len(rows), "images")
        for part in inputs.windows(rows):
            for block in self.blocks(part):
                _check_finite(block, done)
                done += len(block)
                yield block
                progress.advance(len(block))

    def predict_proba(
        self: Model,
        images: Images | None = None,
        *,
        features: Features | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Block:
        """Return probabilities [N, C] for a folder of images (sorted by name), pixels, or features."""
        found = list(self.stream(self.inputs(images, features, names), progress))
        return np.concatenate(found) if found else np.empty((0, len(self.classes)), dtype=np.float32)

    def labelled(self: Model, labels: Labels, images: Images | None, features: Features | None) -> Inputs:
        """Find the inputs of labelled images; a model that knows none of the classes is an `InputError`."""
        check_classes(labels, self.classes)
        return self.inputs(images, features, labels.images.to_pylist())

    def evaluate(
        self: Model,
        labels: Labels,
        images: Images | None = None,
        *,
        features: Features | None = None,
        annotations: Counts | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Compare with what is known of these images.

        Classes are matched by name: one that the model does not know is left out. They are grouped by
        ``annotations`` [C], one count for each class of the model (see `tertium.metrics.evaluate`).
        """
        return judge(self, labels, self.labelled(labels, images, features), annotations, progress)


def check_classes(labels: Labels, classes: Sequence[str]) -> None:
    """Raise `InputError` if a model knows none of the classes of these labels."""
    if not set(labels.classes) & set(classes):
        hint = did_you_mean(labels.classes[0], classes)
        raise InputError(f"the model knows none of these classes ({some(labels.classes)}); {hint}")


def judge(
    model: Model,
    labels: Labels,
    inputs: Inputs,
    annotations: Counts | None = None,
    progress: Progress | None = None,
    beside: Path | None = None,
) -> Evaluation:
    """Evaluate a model on the known labels of the images; several processes share the work.

    The scores of known labels are kept in files, so that memory does not grow with the images: in a folder
    ``beside`` some output that all processes see, or in the system's folder for temporary files.
    """
    if beside is None and world() > 1:
        raise InputError("several processes that evaluate need a place that all of them see: give out")
    parts = shares(len(labels), BATCH)
    with shared_folder(beside or Path(tempfile.gettempdir())) as folder:
        with KnownScores(labels, model.classes, folder, parts, rank()) as known:
            for block in model.stream(inputs, progress, parts[rank()]):
                known.add(block)
            known.close()
        barrier()
        found = evaluate_known(known, model.thresholds, annotations) if rank() == 0 else None
        evaluation: Evaluation = from_first(found)
    return evaluation


def _check_finite(probabilities: Block, start: int) -> None:
    """Refuse what no finite input gives, rather than write it."""
    good = np.isfinite(probabilities).all(axis=1)
    if not good.all():
        row = start + int(good.argmin())
        raise InputError(
            f"row {row:,} of the inputs, counted from 0, holds a value that is not a finite number"
        )
