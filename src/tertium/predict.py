"""A trained model: probabilities for new images or features, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tertium.data import (
    ArrayPictures,
    FeatureLoader,
    ImageLoader,
    Loader,
    Pictures,
    folder_pictures,
    list_images,
    load_features,
)
from tertium.errors import InputError, did_you_mean, some
from tertium.labels import Labels
from tertium.metrics import Evaluation, evaluate
from tertium.model import Classifier, load_model, save_model
from tertium.progress import Progress

Images = str | Path | npt.NDArray[np.uint8]  # a folder, or pixels [N, H, W, 3]
Features = str | Path | npt.NDArray[Any]  # a .npy file, or an array [N, D]
_BATCH = 256


@dataclass(frozen=True)
class Inputs:
    """What a model is fed, in the order of some image ids: pictures or features."""

    pictures: Pictures | None
    features: npt.NDArray[Any] | None

    @classmethod
    def named(cls, images: Images | None, features: Features | None, names: list[str]) -> Inputs:
        """Find the inputs of these images: by name in a folder, row by row in an array."""
        if (images is None) == (features is None):
            raise InputError("give either images or features")
        if images is not None:
            if isinstance(images, str | Path):
                return cls(folder_pictures(images, names), None)
            _check_rows(len(images), len(names))
            return cls(ArrayPictures(images), None)
        if isinstance(features, str | Path):
            return cls(None, load_features(features, len(names)))
        array = np.asarray(features)
        _check_rows(len(array), len(names))
        return cls(None, array)

    def __len__(self) -> int:
        return len(self.pictures if self.pictures is not None else self.features)  # type: ignore[arg-type]

    def select(self, rows: npt.NDArray[np.int64]) -> Inputs:
        """Return these rows only."""
        pictures = None if self.pictures is None else self.pictures.select(rows)
        return Inputs(pictures, None if self.features is None else self.features[rows])

    def loader(
        self, labels: Labels, size: int, batch_size: int, *, workers: int = 0, seed: int = 0
    ) -> Loader:
        """Return batches of these inputs with labels in the same order."""
        if self.pictures is not None:
            return ImageLoader(self.pictures, labels, size, batch_size, workers=workers, seed=seed)
        assert self.features is not None
        return FeatureLoader(self.features, labels, batch_size, seed)


def _check_rows(given: int, wanted: int) -> None:
    if given != wanted:
        raise InputError(f"{given:,} rows of inputs for {wanted:,} labelled images")


def stream(model: Classifier, loader: Loader) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the probabilities [B, C] of one batch after the other, in the order of the rows."""
    model.eval()
    device = model.head.weight.device
    for batch in loader.epoch(0):
        with torch.inference_mode():
            yield model(batch.inputs.to(device)).sigmoid().cpu().numpy()


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
    def load(cls, folder: str | Path, workers: int = 0) -> Trained:
        """Read the model of a run folder. Nothing in the folder is executed."""
        folder = Path(folder)
        if not (folder / "model.json").is_file():
            raise InputError(f"{folder}: no trained model in it (there is no model.json)")
        model, about = load_model(folder)
        return cls(model, np.array(about["thresholds"]), about["image_size"] or 0, workers)

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

    def stream(self, inputs: Inputs, progress: Progress | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities of one batch after the other."""
        progress = progress or Progress()
        names = [str(row) for row in range(len(inputs))]
        nothing_known = Labels.unknown(names, self.classes)
        loader = inputs.loader(nothing_known, self.image_size, _BATCH, workers=self.workers)
        progress.start("predicting", len(inputs), "images")
        for block in stream(self.model, loader):
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
        progress: Progress | None = None,
    ) -> Evaluation:
        """Compare with what is known of these images.

        Classes are matched by name: one that the model does not know is left out.
        """
        if not set(labels.classes) & set(self.classes):
            hint = did_you_mean(labels.classes[0], self.classes)
            raise InputError(f"the model knows none of these classes ({some(labels.classes)}); {hint}")
        names = labels.images.to_pylist()
        probabilities = self.predict_proba(images, features=features, names=names, progress=progress)
        return evaluate(probabilities, labels.with_classes(self.classes), self.thresholds)


def names_of(images: Images | None, features: Features | None) -> list[str]:
    """Return ids for inputs that come without labels: file names, or row numbers."""
    if isinstance(images, str | Path):
        if not Path(images).is_dir():
            raise InputError(f"{images}: no such folder")
        found = list_images(Path(images))
        if not found:
            raise InputError(f"{images}: there are no images in it")
        return found
    if images is not None:
        return [str(row) for row in range(len(images))]
    if features is None:
        raise InputError("give either images or features")
    array = load_features(features) if isinstance(features, str | Path) else np.asarray(features)
    return [str(row) for row in range(len(array))]
