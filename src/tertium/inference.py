"""An exported model in use. Nothing here needs torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.inputs import (
    FolderPictures,
    Pictures,
    ahead,
    feature_names,
    folder_names,
    folder_pictures,
    load_features,
    resized,
)
from tertium.progress import Progress

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FORMAT = "1"  # of what an exported file says of itself
_ROWS, _WINDOW = 256, 2**24  # rows of features that are run at once, bytes of them that are mapped
_IMAGES, _AHEAD = 16, 48  # images that are run at once, that are decoded meanwhile


def session(path: str | Path, threads: int | None = None) -> InferenceSession:
    """Open an ONNX file on the CPU with this many threads, or one for each core."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise InputError(
            "running ONNX files needs the package onnxruntime: pip install 'tertium[onnx]'"
        ) from None
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or 0, 1
    # Threads that wait in a loop would take the time of whatever else runs on the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors, which are raised as well
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes of errors have no name outside the compiled part
        raise InputError(f"{path}: not a model for ONNX Runtime ({_first_line(error)})") from None


def about(path: str | Path) -> dict[str, str]:
    """Return what the writer of an ONNX file has said of it."""
    found: dict[str, str] = session(path, 1).get_modelmeta().custom_metadata_map
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@dataclass(frozen=True)
class Exported:
    """A model in an ONNX file that `tertium export` wrote, with what is needed to use it."""

    running: InferenceSession
    classes: tuple[str, ...]
    thresholds: npt.NDArray[np.float64]  # [C] above which a class is called present
    size: int  # of the images, in pixels; 0 where the model takes features
    width: int  # of the features
    id: str  # the first digits of the checksum of the weights
    backbone: str
    run: str

    @classmethod
    def load(cls, path: str | Path, threads: int | None = None) -> Exported:
        """Open a file; one that Tertium has not written is an `InputError`."""
        running = session(path, threads)
        said = running.get_modelmeta().custom_metadata_map
        version = said.get("tertium_format")
        if version is None:
            raise InputError(f"{path}: a model, but not one that `tertium export --to onnx` wrote")
        if version != FORMAT:
            raise InputError(f"{path}: of format {version}, which this version of Tertium cannot read")
        try:
            classes, thresholds = json.loads(said["classes"]), json.loads(said["thresholds"])
            size, width = int(said["image_size"]), int(said["width"])
            found = np.array(thresholds, dtype=np.float64)
            wanted = ["batch", size, size, 3] if size else ["batch", width]
            fits = running.get_inputs()[0].shape == wanted and found.shape == (len(classes),)
            if not fits or running.get_outputs()[0].shape != ["batch", len(classes)]:
                raise ValueError("what it says of itself does not fit it")
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{path}: the model is damaged ({error})") from None
        weights, backbone, run = said.get("weights", ""), said.get("backbone", ""), said.get("run", "")
        return cls(running, tuple(classes), found, size, width, weights[:12], backbone, run)

    def summary(self) -> dict[str, Any]:
        """Return what the model is, in a few words."""
        takes = {"images": f"{self.size} × {self.size}"} if self.size else {"features": self.width}
        return {"id": self.id, "run": self.run, **takes, "classes": len(self.classes)}

    def probabilities(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return probabilities [B, C] of uint8 images [B, size, size, 3] or float32 features [B, width]."""
        name = "images" if self.size else "features"
        found: list[npt.NDArray[np.float32]] = self.running.run(["probabilities"], {name: inputs})
        return found[0]

    def names(self, images: Path | None, features: Path | None) -> list[str]:
        """Return the ids of inputs that come without labels: file names, or row numbers."""
        self._check(images, features)
        if features is not None:
            return feature_names(features) or [str(row) for row in range(len(load_features(features)))]
        assert images is not None
        return folder_names(images)

    def inputs(self, images: Path | None, features: Path | None, names: list[str]) -> FolderPictures | Path:
        """Check that the inputs of these images are there and fit the model; return where they are."""
        self._check(images, features)
        if images is not None:
            return folder_pictures(images, names)
        assert features is not None
        width = load_features(features, len(names)).shape[1]
        if width != self.width:
            raise InputError(f"the model was trained on features of width {self.width}, not {width}")
        return features

    def stream(
        self, inputs: Pictures | Path, count: int, progress: Progress | None = None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities of one batch after the other, in the order of the rows."""
        progress = progress or Progress()
        progress.start("predicting", count, "images")
        batches = _feature_batches(inputs) if isinstance(inputs, Path) else _image_batches(inputs, self.size)
        for batch in batches:
            yield self.probabilities(batch)
            progress.advance(len(batch))

    def _check(self, images: Path | None, features: Path | None) -> None:
        if (images is None) == (features is None):
            raise InputError("give either images or features")
        if (images is None) == (self.size > 0):
            kind = "images" if self.size else "features"
            raise InputError(f"the model was trained on {kind}; give {kind}")


def _feature_batches(path: Path) -> Iterator[npt.NDArray[np.float32]]:
    whole = load_features(path)
    window = max(1, _WINDOW // max(1, whole.shape[1] * whole.itemsize * _ROWS)) * _ROWS
    for start in range(0, len(whole), window):
        rows = load_features(path)[start : start + window]  # mapped anew: what was read before leaves memory
        for first in range(0, len(rows), _ROWS):
            yield np.ascontiguousarray(rows[first : first + _ROWS], dtype=np.float32)


def _image_batches(pictures: Pictures, size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Decode in threads, a few batches ahead of the model and no more."""

    def pixels(row: int) -> npt.NDArray[np.uint8]:
        return np.asarray(resized(pictures.open(row), size))

    # Pillow decodes outside the interpreter lock.
    decoded = ahead(pixels, range(len(pictures)), os.cpu_count() or 1, _AHEAD)
    while batch := [image for _, image in islice(decoded, _IMAGES)]:
        yield np.stack(batch)
