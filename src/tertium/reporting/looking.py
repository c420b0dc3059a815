"""Runs applied to labelled images: how good they are there, and which labels are probably missing."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tertium.annotation.calibration import Block, Flags
from tertium.data.inputs import Features, Images
from tertium.errors import InputError
from tertium.labelling.prepared import Prepared
from tertium.labels import Labels
from tertium.labels.split_names import TRAIN, part_called
from tertium.metrics.scored import Scored
from tertium.prediction.explaining import activation_maps, overlaid
from tertium.prediction.trained import Trained
from tertium.progress import Progress
from tertium.reporting.quality import Quality
from tertium.runs import RunFolder

_EACH, _PER_CLASS, _SHOWN = (
    10,
    3,
    24,
)  # missing labels of a class that are written, that are shown; shown in all
_MAPPED, _CLASSES = 4, 3  # images with activation maps, and classes of each
_SIDE = 192  # pixels of a thumbnail


@dataclass(frozen=True)
class Given:
    """Labelled images to look at.

    With a split, the figures of the runs are those of its images. Without one, the runs may have been trained
    on these images, so only missing labels are looked for.
    """

    labels: Labels
    name: str
    images: Images | None = None
    features: Features | None = None
    split: str | None = None

    @property
    def part(self) -> Labels:
        """The labels that are looked at."""
        return self.labels if self.split is None else self.labels.part(self.split)

    @property
    def where(self) -> str:
        """What the images are called on the page."""
        return self.name if self.split is None else f"{self.name}, split {self.split}"


@dataclass(frozen=True)
class Spot:
    """An image and a label, to be shown."""

    image: str
    label: str
    probability: float
    picture: str | None  # as a data: address; None where there are only features


@dataclass(frozen=True)
class Missing:
    """Unknown labels of the images that are probably present."""

    run: str
    where: str
    unknown: int  # how many labels are
    expected: float  # how many of them are present
    rows: list[dict[str, Any]]  # run, image, label, probability; those of each class that are most probable
    shown: list[Spot]
    maps: list[tuple[Spot, list[Spot]]]  # an image, and where in it some classes are seen
    notes: tuple[str, ...]


def judge(folder: RunFolder, given: Given, progress: Progress | None) -> Quality:
    """Judge a run on what is known of the images."""
    trained, labels = Trained.load(folder.path), given.part
    inputs = trained.labelled(labels, given.images, given.features)
    aligned = labels.with_classes(trained.classes)
    scored = Scored.collect(trained.stream(inputs, progress), aligned, trained.thresholds)
    return Quality.of(_caveat(folder, given), scored, folder.data().known_of(trained.classes))


def _caveat(folder: RunFolder, given: Given) -> str:
    """Say which images they are, and if the run has used them."""
    data = folder.data()
    used = set(data.validation) & set(given.part.images.to_pylist())
    same = data.labels is not None and Path(data.labels).resolve() == Path(given.name).resolve()
    if given.split is not None and part_called(given.split) == TRAIN and same:
        return f"{given.where}, on which the run was trained"
    return f"{given.where}, of which {len(used):,} images chose the epoch" if used else given.where


def find_missing(folder: RunFolder, given: Given, progress: Progress | None) -> Missing:
    """Find the unknown labels that are most probably present, by a run."""
    ready = Prepared.of_run(folder.path, given.part, given.images, features=given.features, progress=progress)
    top = _Top(len(ready.trained.classes))
    for _, signs, chances in () if ready.labels.is_full else ready.blocks(progress):
        top.add(chances, signs == 0)
    rows, columns, found = top.ordered()
    names, classes = ready.labels.images.take(rows).to_pylist(), ready.trained.classes
    chosen = np.flatnonzero(_rank(columns) < _PER_CLASS)[:_SHOWN]
    shown = [
        Spot(names[at], classes[columns[at]], float(found[at]), _thumbnail(ready, int(rows[at])))
        for at in chosen
    ]
    images = list(dict.fromkeys(rows[chosen].tolist())) or list(range(len(ready.labels)))
    maps, notes = _mapped(ready, images[:_MAPPED])
    run = folder.path.resolve().name
    return Missing(
        run,
        given.where,
        top.unknown,
        top.expected,
        [
            {
                "run": run,
                "image": name,
                "label": classes[column],
                "probability": round(float(chance), 6),
            }
            for name, column, chance in zip(names, columns, found, strict=True)
        ],
        shown,
        maps,
        (*ready.notes, *notes),
    )


class _Top:
    """Keeps the most probable unknown labels of each class while images go by."""

    def __init__(self, classes: int) -> None:
        self._chances: Block = np.empty((0, classes), dtype=np.float32)
        self._rows: npt.NDArray[np.int64] = np.empty((0, classes), dtype=np.int64)
        self._start = self.unknown = 0
        self.expected = 0.0

    def add(self, chances: Block, unknown: Flags) -> None:
        """Take the chances [B, C] of the next images, where ``unknown`` is true."""
        self.unknown += int(unknown.sum())
        self.expected += float(chances[unknown].sum(dtype=np.float64))
        rows = np.broadcast_to(np.arange(self._start, self._start + len(chances))[:, None], chances.shape)
        self._start += len(chances)
        chances = np.concatenate([self._chances, np.where(unknown, chances, -1).astype(np.float32)])
        rows = np.concatenate([self._rows, rows])
        best = np.argsort(-chances, axis=0, kind="stable")[:_EACH]
        self._chances = np.take_along_axis(chances, best, 0)
        self._rows = np.take_along_axis(rows, best, 0)

    def ordered(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return rows, columns and chances, the most probable first."""
        place, column = np.nonzero(self._chances >= 0)
        rows, chances = self._rows[place, column], self._chances[place, column]
        order = np.lexsort((column, rows, -chances))
        return rows[order], column[order], chances[order]


def _rank(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many of the same group come before each."""
    order = np.argsort(groups, kind="stable")
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.searchsorted(groups[order], groups[order])
    return rank


# ---- pictures --------------------------------------------------------------------------------------------


def _mapped(ready: Prepared, rows: Sequence[int]) -> tuple[list[tuple[Spot, list[Spot]]], tuple[str, ...]]:
    """Show where in images their most probable classes are seen; say so if the model cannot tell."""
    pictures, classes = ready.inputs.pictures, ready.trained.classes
    if pictures is None or not rows:
        return [], ()
    scores = np.concatenate(list(ready.trained.stream(ready.inputs.select(np.array(rows)))))
    found = []
    for row, probabilities in zip(rows, ready.chances.calibrated(scores), strict=True):
        image, name = pictures.open(row), ready.labels.images[row].as_py()
        best = np.argsort(-probabilities, kind="stable")[:_CLASSES]
        try:
            maps = activation_maps(ready.trained, image, best.tolist())
        except InputError as error:
            return [], (f"no activation maps: {error}",)
        small = image.copy()
        small.thumbnail((_SIDE, _SIDE))
        seen = [
            Spot(name, classes[column], float(probabilities[column]), _address(overlaid(small, heat)))
            for column, heat in zip(best, maps, strict=True)
        ]
        found.append((Spot(name, "", float("nan"), _address(small)), seen))
    return found, ()


def _thumbnail(ready: Prepared, row: int) -> str | None:
    pictures = ready.inputs.pictures
    return None if pictures is None else _address(pictures.open(row, within=_SIDE))


def _address(image: Image.Image) -> str:
    """Return an image as an address that holds it whole."""
    content = io.BytesIO()
    image.save(content, format="JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
