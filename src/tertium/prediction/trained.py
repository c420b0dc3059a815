"""A trained model: probabilities for new images or features, and how good they are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tertium.data.batches import Loader, Order, loader
from tertium.data.inputs import BATCH, Features, Images, Inputs, open_fitting
from tertium.distributed import from_first, rank, world
from tertium.errors import InputError, did_you_mean, some
from tertium.labels import Labels
from tertium.metrics.evaluation import Evaluation, evaluate_known
from tertium.metrics.ranking import Counts, KnownScores
from tertium.models.classifier import Classifier, load_model, save_model
from tertium.progress import Progress
from tertium.threads import suited_to

_IMAGES = 16  # that go through a network at once on the CPU: quicker than more, with a quarter of the memory


def stream(model: Classifier, loader: Loader) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the probabilities [B, C] of one batch after the other, in the order of the rows."""
    model.eval()
    device = model.head.weight.device
    few = model.backbone is not None and device.type == "cpu"
    product = BATCH * model.width * len(model.classes)
    for batch in loader.epoch(0):
        with torch.inference_mode(), nullcontext() if few else suited_to(product):
            parts = torch.split(batch.inputs.to(device), _IMAGES if few else BATCH)
            yield torch.cat([model(part) for part in parts]).sigmoid().cpu().numpy()


def scores(model: Classifier, loader: Loader) -> npt.NDArray[np.float32]:
    """Return the probabilities [N, C] of all rows."""
    blocks = list(stream(model, loader))
    return np.concatenate(blocks) if blocks else np.empty((0, len(model.classes)), dtype=np.float32)


@dataclass(frozen=True)
class Trained:
    """A model that was trained, with what is needed to use it."""

    model: Classifier
    thresholds: npt.NDArray[np.float64]  # [C] above which a class is called present
    image_size: int
    workers: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self.model.classes

    @classmethod
    def load(cls, folder: str | Path, workers: int = 0, device: str = "cpu") -> Trained:
        """Read the model of a run folder onto a device. Nothing in the folder is executed."""
        folder = Path(folder)
        if not (folder / "model.json").is_file():
            raise InputError(f"{folder}: no trained model in it (there is no model.json)")
        model, about = load_model(folder)
        return cls(model.to(device), np.array(about["thresholds"]), about["image_size"] or 0, workers)

    def save(self, folder: str | Path) -> None:
        """Write the model as safetensors and JSON."""
        save_model(self.model, Path(folder), self.thresholds, self.image_size)

    def inputs(self, images: Images | None, features: Features | None, names: Sequence[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        pictures = self.model.backbone is not None
        return open_fitting(images, features, names, width=self.model.width, pictures=pictures)

    def stream(
        self, inputs: Inputs, progress: Progress | None = None, rows: range | None = None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities of one batch after the other, of a range of rows if one is given."""
        progress = progress or Progress()
        rows = range(len(inputs)) if rows is None else rows
        done = rows.start
        progress.start("predicting", len(rows), "images")
        for part in inputs.windows(rows):
            batches = loader(part, None, self.image_size, Order(len(part), BATCH), workers=self.workers)
            for block in stream(self.model, batches):
                _check_finite(block, done)
                done += len(block)
                yield block
                progress.advance(len(block))

    def predict_proba(
        self,
        images: Images | None = None,
        *,
        features: Features | None = None,
        names: list[str] | None = None,
        progress: Progress | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return probabilities [N, C] for a folder of images (sorted by name), pixels, or features."""
        blocks = list(self.stream(self.inputs(images, features, names), progress))
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.classes)), dtype=np.float32)

    def evaluate(
        self,
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
        inputs = self.labelled(labels, images, features)
        with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
            known = self.known_scores(labels, inputs, folder, [range(len(labels))], 0, progress)
            return evaluate_known(known, self.thresholds, annotations)

    def labelled(self, labels: Labels, images: Images | None, features: Features | None) -> Inputs:
        """Find the inputs of labelled images; a model that knows none of the classes is an `InputError`."""
        if not set(labels.classes) & set(self.classes):
            hint = did_you_mean(labels.classes[0], self.classes)
            raise InputError(f"the model knows none of these classes ({some(labels.classes)}); {hint}")
        return self.inputs(images, features, labels.images.to_pylist())

    def known_scores(
        self,
        labels: Labels,
        inputs: Inputs,
        folder: str | Path,
        shares: Sequence[range],
        share: int,
        progress: Progress | None = None,
    ) -> KnownScores:
        """Score one share of labelled rows; what counts goes to files in ``folder``."""
        with KnownScores(labels, self.classes, folder, shares, share) as known:
            for block in self.stream(inputs, progress, shares[share]):
                known.add(block)
            known.close()
        return known


def _check_finite(probabilities: npt.NDArray[np.float32], start: int) -> None:
    """Refuse what no finite input gives, rather than write it."""
    good = np.isfinite(probabilities).all(axis=1)
    if not good.all():
        row = start + int(good.argmin())
        raise InputError(
            f"row {row:,} of the inputs, counted from 0, holds a value that is not a finite number"
        )


# ---- several processes -----------------------------------------------------------------------------------


def shares(count: int) -> list[range]:
    """Divide rows among the processes: in order, and in the batches that one process would make.

    >>> shares(600)
    [range(0, 600)]
    """
    batches = -(-count // BATCH)
    edges = [min(batches * number // world() * BATCH, count) for number in range(world() + 1)]
    return [range(*pair) for pair in pairwise(edges)]


@contextmanager
def shared_folder(parent: Path) -> Iterator[Path]:
    """Give all processes one folder below ``parent``, which all must see; process 0 removes it at the end."""
    made = tempfile.mkdtemp(prefix=".tertium-", dir=parent) if rank() == 0 else ""
    try:
        yield Path(from_first(made))
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)
