"""An exported model in use. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tertium.data.inputs import BATCH, Features, Images, Inputs, open_fitting
from tertium.data.pictures import pixel_batches
from tertium.data.views import FILTERS, View
from tertium.errors import InputError
from tertium.models.onnx_session import is_sealed, session
from tertium.prediction.predictor import Predictor

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FORMAT = "2"  # of what an exported file says of itself
_IMAGES, _AHEAD = 16, 48  # images that are run at once, that are decoded meanwhile


@dataclass(frozen=True)
class Exported(Predictor):
    """A model in an ONNX file that `tertium export` wrote, with what is needed to use it."""

    running: InferenceSession
    classes: tuple[str, ...]
    thresholds: npt.NDArray[np.float64]  # [C] above which a class is called present
    view: View  # how it sees an image; of size 0 where the model takes features
    width: int  # of the features
    id: str  # the first digits of the checksum of the weights
    backbone: str
    run: str

    @classmethod
    def load(cls, path: str | Path, threads: int | None = None) -> Exported:
        """Open a file; one that was changed, or that Tertium has not written, is an `InputError`."""
        sealed = is_sealed(path)
        running = session(path, threads)
        try:
            said = running.get_modelmeta().custom_metadata_map
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: the model is damaged ({error})") from None
        version = said.get("tertium_format")
        if version is None:
            raise InputError(f"{path}: a model, but not one that `tertium export --to onnx` wrote")
        if version != FORMAT:
            raise InputError(f"{path}: of format {version}, which this version of Tertium cannot read")
        if not sealed:
            raise InputError(f"{path}: has no checksum, so it was changed or is damaged; export it again")
        try:
            classes, thresholds = json.loads(said["classes"]), json.loads(said["thresholds"])
            view, width = _view(said), int(said["width"])
            size = view.size
            found = np.array(thresholds, dtype=np.float64)
            wanted = ["batch", size, size, 3] if size else ["batch", width]
            fits = running.get_inputs()[0].shape == wanted and found.shape == (len(classes),)
            if not fits or running.get_outputs()[0].shape != ["batch", len(classes)]:
                raise ValueError("what it says of itself does not fit it")
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{path}: the model is damaged ({error})") from None
        weights, backbone, run = said.get("weights", ""), said.get("backbone", ""), said.get("run", "")
        return cls(running, tuple(classes), found, view, width, weights[:12], backbone, run)

    @property
    def version(self) -> str:
        """Which model it is: the name of its run, and the first digits of the checksum of its weights."""
        return f"{self.run}@{self.id}"

    @property
    def size(self) -> int:
        """Of the images, in pixels; 0 where the model takes features."""
        return self.view.size

    @property
    def pictures(self) -> bool:
        """Whether it takes images, and not features."""
        return self.size > 0

    def summary(self) -> dict[str, Any]:
        """Return what the model is, in a few words."""
        takes = {"images": f"{self.size} × {self.size}"} if self.size else {"features": self.width}
        return {"id": self.id, "run": self.run, **takes, "classes": len(self.classes)}

    def probabilities(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return probabilities [B, C] of uint8 images [B, size, size, 3] or float32 features [B, width]."""
        name = "images" if self.size else "features"
        found: list[npt.NDArray[np.float32]] = self.running.run(["probabilities"], {name: inputs})
        return found[0]

    def inputs(self, images: Images | None, features: Features | None, names: Sequence[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        return open_fitting(images, features, names, width=self.width, pictures=self.size > 0)

    def blocks(self, inputs: Inputs) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities [B, C] of a few inputs, batch by batch."""
        if inputs.pictures is not None:
            return map(self.probabilities, pixel_batches(inputs.pictures, self.view, _IMAGES, _AHEAD))
        assert inputs.features is not None
        return map(self.probabilities, _feature_batches(inputs.features))


def _feature_batches(features: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.float32]]:
    for first in range(0, len(features), BATCH):
        yield np.ascontiguousarray(features[first : first + BATCH], dtype=np.float32)


def _view(said: Mapping[str, str]) -> View:
    """Read how images are to be fitted; files of earlier versions have only the size."""
    filter_, crop = json.loads(said.get("filter", '"bilinear"')), json.loads(said.get("crop", "null"))
    if filter_ not in FILTERS or not (crop is None or 0 < float(crop) <= 1):
        raise ValueError(f"unknown filter {filter_} or crop {crop}")
    return View(int(said["image_size"]), filter_, crop)
