"""What the model of a run takes, read without torch: mistakes are found before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tertium.data.inputs import Features, Images, Inputs, open_fitting
from tertium.errors import InputError
from tertium.files import checksum, read_sealed
from tertium.labels import Labels
from tertium.prediction.predictor import check_classes
from tertium.runs import RunFolder


def checksum_of(model: str | Path) -> str:
    """Return what tells a model from others: of an exported file, or of what a run says of its weights."""
    path = Path(model)
    return checksum(path if path.suffix == ".onnx" else RunFolder(path).model_file)


@dataclass(frozen=True)
class Described:
    """The classes of a model, and whether it takes pictures or features of some width."""

    classes: tuple[str, ...]
    width: int
    pictures: bool
    thresholds: npt.NDArray[np.float64]  # [C]

    @classmethod
    def of_run(cls, folder: str | Path) -> Described:
        """Read ``model.json`` of a run."""
        run = RunFolder(Path(folder))
        described = run.model_file
        if not described.is_file():
            raise InputError(f"{folder}: no trained model in it (there is no {described.name})")
        about = read_sealed(described)
        run.check_own(described, about.get("run"))
        try:
            cuts = np.array(about["thresholds"], dtype=np.float64)
            return cls(tuple(about["classes"]), int(about["width"]), about["backbone"] is not None, cuts)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder}: the model is damaged ({error})") from None

    def inputs(self, images: Images | None, features: Features | None, names: Sequence[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        return open_fitting(images, features, names, width=self.width, pictures=self.pictures)

    def labelled(self, labels: Labels, images: Images | None, features: Features | None) -> Inputs:
        """Find the inputs of labelled images; a model that knows none of the classes is an `InputError`."""
        check_classes(labels, self.classes)
        return self.inputs(images, features, labels.images.to_pylist())
