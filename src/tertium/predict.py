"""A trained model: probabilities for new images or features, and how good they are."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tertium.data import FeatureLoader, ImageLoader, Loader, Order
from tertium.distributed import from_first, rank, world
from tertium.errors import InputError, did_you_mean, some
from tertium.inputs import (
    ArrayPictures,
    Pictures,
    feature_names,
    fingerprint,
    folder_names,
    folder_pictures,
    load_features,
    spread,
)
from tertium.labels import Labels
from tertium.metrics import Evaluation, evaluate_known
from tertium.model import Classifier, load_model, save_model
from tertium.progress import Progress
from tertium.ranking import Counts, KnownScores
from tertium.threads import suited_to

Images = str | Path | npt.NDArray[np.uint8]  # a folder, or pixels [N, H, W, 3]
Features = str | Path | npt.NDArray[Any]  # a .npy file, or an array [N, D]
_BATCH = 256
_IMAGES = 16  # that go through a network at once on the CPU: quicker than more, with a quarter of the memory
_WINDOW, _PICTURES = 2**24, 2**16  # bytes of features, and images, that are opened at a time


@dataclass(frozen=True)
class Inputs:
    """What a model is fed, in the order of some image ids: pictures or features."""

    pictures: Pictures | None
    features: npt.NDArray[Any] | None

    @classmethod
    def named(cls, images: Images | None, features: Features | None, names: list[str]) -> Inputs:
        """Find the inputs of these images: by name in a folder or in a file with names, else in order."""
        if (images is None) == (features is None):
            raise InputError("give either images or features")
        if images is not None:
            if isinstance(images, str | Path):
                return cls(folder_pictures(images, names), None)
            _check_rows(len(images), len(names))
            return cls(ArrayPictures(images), None)
        if isinstance(features, str | Path):
            return cls(None, load_features(features, names))
        array = np.asarray(features)
        _check_rows(len(array), len(names))
        return cls(None, array)

    def __len__(self) -> int:
        return len(self.pictures if self.pictures is not None else self.features)  # type: ignore[arg-type]

    def select(self, rows: npt.NDArray[np.int64]) -> Inputs:
        """Return these rows only."""
        pictures = None if self.pictures is None else self.pictures.select(rows)
        return Inputs(pictures, None if self.features is None else self.features[rows])

    def window(self, rows: range) -> Inputs:
        """Return a range of rows; a mapped file is mapped anew, so that rows read before leave memory."""
        if self.pictures is not None:
            return Inputs(self.pictures.select(np.arange(rows.start, rows.stop)), None)
        found = self.features
        assert found is not None
        base: Any = found.base  # of a slice, another array; and it would give the offset of the whole
        whole = isinstance(base, mmap.mmap) and found.flags.c_contiguous and len(rows) > 0
        if isinstance(found, np.memmap) and whole and found.filename:
            begin, shape = found.offset + rows.start * found.strides[0], (len(rows), found.shape[1])
            return Inputs(None, np.memmap(found.filename, found.dtype, "c", begin, shape))
        return Inputs(None, found[rows.start : rows.stop])

    def windows(self, rows: range) -> Iterator[Inputs]:
        """Divide a range of rows into windows of whole batches that take little memory."""
        size = _PICTURES
        if self.features is not None:
            width = self.features.shape[1] * self.features.itemsize
            size = max(1, _WINDOW // max(width * _BATCH, 1)) * _BATCH
        for start in range(rows.start, rows.stop, size):
            yield self.window(range(start, min(start + size, rows.stop)))

    def fingerprint(self) -> str:
        """Return a checksum of up to a thousand inputs, evenly spread: enough to tell other data."""
        if self.features is not None:
            return fingerprint(self.features)
        assert self.pictures is not None
        found = hashlib.sha256(f"{len(self)}".encode())
        found.update("\n".join(self.pictures.fingerprint(row) for row in spread(len(self))).encode())
        return found.hexdigest()

    def loader(self, labels: Labels, size: int, order: Order, *, workers: int = 0) -> Loader:
        """Return batches of these inputs with labels in the same order."""
        if self.pictures is not None:
            return ImageLoader(self.pictures, labels, size, order, workers=workers)
        assert self.features is not None
        return FeatureLoader(self.features, labels, order)


def _check_rows(given: int, wanted: int) -> None:
    if given != wanted:
        raise InputError(f"{given:,} rows of inputs for {wanted:,} labelled images")


def stream(model: Classifier, loader: Loader) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the probabilities [B, C] of one batch after the other, in the order of the rows."""
    model.eval()
    device = model.head.weight.device
    few = model.backbone is not None and device.type == "cpu"
    product = _BATCH * model.width * len(model.classes)
    for batch in loader.epoch(0):
        with torch.inference_mode(), nullcontext() if few else suited_to(product):
            parts = torch.split(batch.inputs.to(device), _IMAGES if few else _BATCH)
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

    def inputs(self, images: Images | None, features: Features | None, names: list[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        if names is None:
            names = names_of(images, features)
        found = Inputs.named(images, features, names)
        if (found.features is None) == (self.model.backbone is None):
            kind = "features" if self.model.backbone is None else "images"
            raise InputError(f"the model was trained on {kind}; give {kind}")
        if found.features is not None and found.features.shape[1] != self.model.width:
            width = found.features.shape[1]
            raise InputError(f"the model was trained on features of width {self.model.width}, not {width}")
        return found

    def stream(
        self, inputs: Inputs, progress: Progress | None = None, rows: range | None = None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities of one batch after the other, of a range of rows if one is given."""
        progress = progress or Progress()
        rows = range(len(inputs)) if rows is None else rows
        done = rows.start
        progress.start("predicting", len(rows), "images")
        for part in inputs.windows(rows):
            # A loader makes labels dense, which nothing reads here: one class takes the least memory.
            nothing_known = Labels.unknown(map(str, range(len(part))), self.classes[:1])
            order = Order(len(part), _BATCH)
            for block in stream(
                self.model, part.loader(nothing_known, self.image_size, order, workers=self.workers)
            ):
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
    batches = -(-count // _BATCH)
    edges = [min(batches * number // world() * _BATCH, count) for number in range(world() + 1)]
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


def names_of(images: Images | None, features: Features | None) -> list[str]:
    """Return ids for inputs that come without labels: file names, or row numbers."""
    if isinstance(images, str | Path):
        return folder_names(Path(images))
    if images is not None:
        return [str(row) for row in range(len(images))]
    if features is None:
        raise InputError("give either images or features")
    if isinstance(features, str | Path):
        names = feature_names(features)
        if names is not None:
            return names
        features = load_features(features)
    return [str(row) for row in range(len(features))]
