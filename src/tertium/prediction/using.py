"""A model in use, from files to files: what `tertium predict` and `tertium evaluate` do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tertium.data.identity import contents, load_contents, load_taught
from tertium.data.inputs import BATCH, Features, Images, Inputs
from tertium.data.likeness import Taught
from tertium.data.pictures import damaged
from tertium.data.sources.opening import is_place, names_in, open_source
from tertium.data.sources.source import ImageSource
from tertium.errors import InputError
from tertium.files import keep_inputs
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.metrics.evaluation import Evaluation
from tertium.prediction.described import Described
from tertium.prediction.exported import Exported
from tertium.prediction.files import check_columns, check_path, write_evaluation, write_predictions
from tertium.prediction.keeping import keeping
from tertium.prediction.predictor import judge
from tertium.processes import agreed, rank, shared_folder, shares, world
from tertium.progress import Progress
from tertium.runs import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from tertium.labels import Labels
    from tertium.prediction.trained import Trained


def load(
    model: str | Path, *, device: str | None = None, workers: int = 0, backbone: nn.Module | None = None
) -> Trained | Exported:
    """Open a trained model: the folder of a run, or an ``.onnx`` file that `tertium.export` wrote.

    A run goes onto ``device``, by default onto this process's GPU if there is one. An exported model runs on
    the CPU, and needs no torch. ``backbone`` is the network once more, if `tertium.train` was given a module.
    """
    if Path(model).suffix == ".onnx":
        return Exported.load(model)
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(
            f"{model}: a run needs torch, which is not installed; use an exported .onnx file"
        ) from None
    from tertium.prediction.trained import Trained

    if device is None and torch.cuda.is_available():
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return Trained.load(model, workers=workers, device=device or "cpu", backbone=backbone)


def described(model: Trained | Exported | str | Path) -> Described | Trained | Exported:
    """Return what checks the inputs: of a run its description, so that torch is loaded only after that."""
    known: Described | Trained | Exported
    if isinstance(model, str | Path):
        known = Exported.load(model) if Path(model).suffix == ".onnx" else Described.of_run(model)
    else:
        known = model
    if isinstance(known, Exported) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("an exported model runs in one process, on all cores; leave out --devices")
    return known


def opened(
    model: Trained | Exported | str | Path, known: Described | Trained | Exported
) -> Trained | Exported:
    """Return the model that `described` has described."""
    if isinstance(known, Described):
        assert isinstance(model, str | Path)
        return load(model)
    return known


# ---- probabilities ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """What `predict` gave: probabilities in memory, or in the file that was asked for."""

    images: list[str]  # of all processes
    classes: tuple[str, ...]
    probabilities: npt.NDArray[np.float32] | None  # [N, C]; None where they went to a file
    damaged: dict[str, str]  # images that were left out, and why


def predict(
    model: Trained | Exported | str | Path,
    images: Images | None = None,
    *,
    features: Features | None = None,
    labels: Source | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    top: int | None = None,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> Predicted:
    """Return the probability of each class for each image, or write them to ``out``, .csv or .parquet.

    Images are all that there are, in a folder sorted by name; with ``labels`` (or one ``split`` of them)
    those that these list, in their order. With ``top`` a file has lines image, label, probability for the
    most probable classes of each image. ``skip_damaged`` leaves out images that cannot be read.

    If predicting images to a file is ended in the middle, the same call goes on where it was (docs/scale.md).
    """
    if out is not None:
        check_path(out)
        keep_inputs([out], [model, features, place_of(labels)])
    elif top is not None:
        raise InputError("top is about what is written: give out, a .csv or .parquet file")
    if split is not None and labels is None:
        raise InputError(f'the split "{split}" is one of a label file: give labels')

    def prepare() -> tuple[Trained | Exported, Inputs, dict[str, str]]:
        known = described(model)
        if out is not None:
            check_columns(known.classes, top)
        names = None
        if labels is not None:
            names = open_labels(labels, split=split, progress=progress).images.to_pylist()
        faults: dict[str, str] = {}
        given = images
        if skip_damaged:
            given, names, faults = _readable(images, names, progress)
        inputs = known.inputs(given, features, names)
        return opened(model, known), inputs, faults

    loaded, inputs, faults = agreed(prepare)
    own = shares(len(inputs), BATCH)[rank()]
    if out is None:
        if world() > 1:
            raise InputError("several processes write their probabilities together: give out")
        found = [np.empty((0, len(loaded.classes)), dtype=np.float32), *loaded.stream(inputs, progress, own)]
        return Predicted(inputs.names, loaded.classes, np.concatenate(found), faults)
    out = Path(out)
    with (
        keeping(out, model, inputs, own, loaded.classes, top) as kept,
        shared_folder(out.parent) as folder,
    ):
        if kept.images and progress is not None:
            progress.note(f"goes on after {kept.images:,} images that were predicted before")
        rest = range(own.start + kept.images, own.stop)
        blocks = loaded.stream(inputs, progress, rest)
        names = inputs.names[rest.start : rest.stop]
        write_predictions(out, names, loaded.classes, blocks, top=top, folder=folder, kept=kept)
    return Predicted(inputs.names, loaded.classes, None, faults)


def _readable(
    images: Images | None, names: Sequence[str] | None, progress: Progress | None
) -> tuple[ImageSource, list[str], dict[str, str]]:
    """Return where images are, which of them can be read, and what is wrong with the others."""
    if not is_place(images):
        raise InputError("only image files can be damaged and skipped: give images, and not as an array")
    source = open_source(images)
    names = names_in(source) if names is None else names
    faults = damaged(source, names, progress or Progress())
    return source, [name for name in names if name not in faults], faults


# ---- figures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate` gave."""

    evaluation: Evaluation
    images: int
    seen: int  # images that the run was trained or validated on, found by their content
    unseen: Evaluation | None  # the figures without them; None if there are none, or no others
    near: tuple[tuple[str, str, float], ...]  # other images, the training image each looks like, how alike
    apart: Evaluation | None  # the figures without seen and near ones; None if none is near, or no others
    unknown_classes: list[str]  # that the model does not know: left out
    out: Path | str | None = None  # where the figures went: a path, or an address


def evaluate(
    model: Trained | Exported | str | Path,
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Compare a model with known labels; write the figures to ``out``, .json, if it is given.

    Only known labels count. A class without a known present and a known absent image cannot be scored and is
    listed. The figures for each class go to a .csv file beside ``out``. Images that the run has trained or
    validated on are counted, and there are figures without them.
    """
    place = None if out is None else Path(out)
    if place is not None:
        files = RunFolder(Path(model)).made_by_training() if isinstance(model, str | Path) else []
        keep_inputs([place, place.with_suffix(".csv")], [model, features, place_of(labels), *files])

    def prepare() -> tuple[Trained | Exported, Labels, Inputs]:
        known = described(model)
        if place is not None and not place.parent.is_dir():
            raise InputError(f"{place}: the folder {place.parent} does not exist")
        truth = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
        inputs = known.labelled(truth, images, features)
        return opened(model, known), truth, inputs

    loaded, known, inputs = agreed(prepare)
    beside = None if place is None else place.parent
    counts = annotations_of(model, loaded.classes)
    found = judge(loaded, known, inputs, counts, progress, beside)
    before = Before.of(model)
    seen = before.seen(inputs, progress)
    unseen = None
    if 0 < seen.sum() < len(seen):
        rest = np.flatnonzero(~seen)
        unseen = judge(loaded, known[rest], inputs.select(rest), counts, progress, beside)
    near, apart = before.near(inputs, ~seen, progress), None
    alike = seen | np.isin(np.array(inputs.names), [image for image, _, _ in near])
    if near and not alike.all():
        rest = np.flatnonzero(~alike)
        apart = judge(loaded, known[rest], inputs.select(rest), counts, progress, beside)
    strangers = sorted(set(known.classes) - set(loaded.classes))
    if place is not None and rank() == 0:
        write_evaluation(place, found, on_what(len(known), labels, split))
    return Evaluated(found, len(known), int(seen.sum()), unseen, near, apart, strangers, place)


def on_what(images: int, labels: Source, split: str | None) -> str:
    """Say on which images a model was evaluated."""
    source = place_of(labels) or "labels in memory"
    on = f"the {images:,} image{'s' if images != 1 else ''} of {source}"
    return on if split is None else f"{on}, split {split}"


@dataclass(frozen=True)
class Before:
    """What a run was trained or validated on, as far as it has kept that."""

    contents: npt.NDArray[np.uint64] | None
    taught: Taught | None

    @classmethod
    def of(cls, model: object) -> Before:
        """Read what is kept of a model that is given by its place."""
        if not isinstance(model, str | Path):
            return cls(None, None)
        kept = RunFolder(Path(model)).seen_file
        return cls(load_contents(kept), load_taught(kept))

    def seen(self, inputs: Inputs, progress: Progress | None = None) -> npt.NDArray[np.bool_]:
        """Return which inputs are the same as ones of the run."""
        if self.contents is None:
            return np.zeros(len(inputs), dtype=bool)
        return np.isin(contents(inputs, progress), self.contents)

    def near(
        self, inputs: Inputs, others: npt.NDArray[np.bool_], progress: Progress | None = None
    ) -> tuple[tuple[str, str, float], ...]:
        """Return which of the other inputs look nearly the same as training images, and which those are."""
        if self.taught is None or inputs.pictures is None or not others.any():
            return ()
        rest = inputs.select(np.flatnonzero(others))
        assert rest.pictures is not None
        return tuple(self.taught.like(rest.pictures, rest.names, progress))


def annotations_of(model: object, classes: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return how many labels of each class training knew, if the model is of a run that says so."""
    if not isinstance(model, str | Path):
        return None
    folder = RunFolder(Path(model))
    return folder.data().known_of(classes) if folder.config_file.is_file() else None
