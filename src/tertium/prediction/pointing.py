"""The pointing game: whether a model looks at the object when it predicts a class (Zhang 2018)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from tertium.data.batches import Order, loader
from tertium.data.inputs import Images, names_of
from tertium.data.sources.opening import is_place
from tertium.errors import InputError, did_you_mean, some
from tertium.files import replacing, write_json
from tertium.labels.formats.coco import Boxes
from tertium.prediction.explaining import check_places, peaks, raw_maps
from tertium.prediction.trained import Trained
from tertium.progress import Progress

TOLERANCE = 15.0  # pixels, of Zhang 2018
_BATCH = 64
Counts = npt.NDArray[np.int64]
Points = npt.NDArray[np.float64]  # [P, 2] x and y as shares of the image's sides


@dataclass(frozen=True)
class Pointing:
    """How often the highest place of a class's map lay in one of its boxes."""

    classes: tuple[str, ...]  # of the model, those that have a box in some image
    counts: Counts  # [C] images with such a box
    hits: Counts  # [C]
    centre: Counts  # [C] hits of the middle of the image, to compare with
    images: int
    tolerance: float
    notes: tuple[str, ...]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """The share of hits of each class."""
        return self.hits / self.counts

    @property
    def mean(self) -> float:
        """The mean over the classes, which is what Kim 2022 reports."""
        return float(self.accuracy.mean())

    @property
    def centre_mean(self) -> float:
        """The mean over the classes if the middle of the image is pointed at."""
        return float((self.centre / self.counts).mean())

    def write(self, path: str | Path) -> None:
        """Write the figures as JSON, and those of each class as CSV beside it."""
        path = Path(path)
        write_json(
            path,
            {
                "accuracy": self.mean,
                "accuracy_of_all": float(self.hits.sum() / self.counts.sum()),
                "accuracy_of_centre": self.centre_mean,
                "classes": len(self.classes),
                "images": self.images,
                "pointed": int(self.counts.sum()),
                "tolerance": self.tolerance,
                "notes": self.notes,
            },
        )
        with (
            replacing(path.with_suffix(".csv")) as temporary,
            open(temporary, "w", newline="", encoding="utf-8") as sink,
        ):
            lines = csv.writer(sink)
            lines.writerow(["class", "images", "hits", "accuracy", "hits_of_centre"])
            columns = (self.classes, self.counts, self.hits, self.accuracy.round(6), self.centre)
            lines.writerows(zip(*columns, strict=True))


def pointing_game(
    trained: Trained,
    boxes: Boxes,
    images: Images,
    *,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> Pointing:
    """Play the pointing game on the images of a place, or on pixels [N, H, W, 3] in the order of the boxes.

    For each class with a box in an image, the middle of the highest place of its map is a hit if it is at
    most ``tolerance`` pixels from one of the class's boxes, in pixels of the image size given in the boxes
    file: the images may be copies of another size. If all boxes of a class in an image are unsure (difficult
    in VOC, crowds in COCO), the class does not count there; otherwise a hit in these boxes counts too.
    """
    check_places(trained.model)
    game, notes = _arrange(trained, boxes, images)
    points = _points(trained, game, boxes, images, progress or Progress())
    pointed, centre = (game.hit(each, boxes, tolerance) for each in (points, np.full_like(points, 0.5)))
    counts, hits, of_centre = (
        np.bincount(columns, minlength=len(trained.classes))
        for columns in (game.columns, game.columns[pointed], game.columns[centre])
    )
    played = np.flatnonzero(counts)
    return Pointing(
        classes=tuple(trained.classes[column] for column in played),
        counts=counts[played],
        hits=hits[played],
        centre=of_centre[played],
        images=len(np.unique(game.rows)),
        tolerance=tolerance,
        notes=notes,
    )


@dataclass(frozen=True)
class _Game:
    """What is pointed at: pairs of an image and a class present in it, in the order of the images."""

    rows: Counts  # [P] of the boxes' images
    columns: Counts  # [P] of the model's classes
    boxes: Counts  # [K] the boxes that may be hit
    owners: Counts  # [K] the pair of each

    def hit(self, points: Points, boxes: Boxes, tolerance: float) -> npt.NDArray[np.bool_]:
        """Return for each pair whether its point is near enough to one of its boxes."""
        places = (points * boxes.sizes[self.rows])[self.owners]  # [K, 2] pixels
        corners = boxes.corners[self.boxes]
        beside = np.maximum(np.maximum(corners[:, :2] - places, places - corners[:, 2:]), 0)
        near = np.hypot(beside[:, 0], beside[:, 1]) <= tolerance
        found = np.zeros(len(self.rows), dtype=bool)
        found[self.owners[near]] = True
        return found


def _arrange(trained: Trained, boxes: Boxes, images: Images) -> tuple[_Game, tuple[str, ...]]:
    """Match images and classes by name; return the pairs, and notes on what is left out."""
    known = {name: number for number, name in enumerate(trained.classes)}
    strangers = [name for name in boxes.classes if name not in known]
    if len(strangers) == len(boxes.classes):
        hint = did_you_mean(strangers[0], known) if strangers else "there is none"
        raise InputError(f"the model knows none of the classes with boxes ({some(strangers)}); {hint}")
    there = _there(boxes, images)
    columns = np.array([known.get(name, -1) for name in boxes.classes], dtype=np.int64)[boxes.columns]
    usable = (columns >= 0) & there[boxes.rows]
    keys = boxes.rows * len(known) + columns
    pairs = np.unique(keys[usable & ~boxes.unsure])
    if not len(pairs):
        raise InputError(f"no box is of a class that the model knows and of an image in {images}")
    chosen = np.flatnonzero(usable & np.isin(keys, pairs))
    rows, of_model = np.divmod(pairs, len(known))
    sizeless = (boxes.sizes[rows] <= 0).any(axis=1)
    if sizeless.any():
        raise InputError(f'the boxes say no size of the image "{boxes.images[rows[sizeless][0]]}"')
    notes = [f"{(~there).sum():,} of {len(there):,} images are not in {images}"] if not there.all() else []
    notes += (
        [f"classes that the model does not know were left out: {some(strangers, 8)}"] if strangers else []
    )
    return _Game(rows, of_model, chosen, np.searchsorted(pairs, keys[chosen])), tuple(notes)


def _there(boxes: Boxes, images: Images) -> npt.NDArray[np.bool_]:
    """Return which images of the boxes there are."""
    if not is_place(images):
        return np.ones(len(boxes.images), dtype=bool)
    files = names_of(images, None)
    there = np.asarray(pc.is_in(boxes.images, value_set=pa.array(files, pa.string())))
    if not there.any():
        named = some(boxes.images.to_pylist())
        raise InputError(f"{images}: none of the images that have boxes is there ({named})")
    return there


def _points(trained: Trained, game: _Game, boxes: Boxes, images: Images, progress: Progress) -> Points:
    """Return where each pair's map is highest."""
    rows, place = np.unique(game.rows, return_inverse=True)
    if is_place(images):
        inputs = trained.inputs(images, None, boxes.images.take(pa.array(rows)).to_pylist())
    else:
        inputs = trained.inputs(images, None, boxes.images.to_pylist()).select(rows)
    batches = loader(inputs, None, trained.view, Order(len(rows), _BATCH), workers=trained.workers)
    edges = np.searchsorted(place, np.arange(0, len(rows) + _BATCH, _BATCH))
    points = np.empty((len(game.rows), 2))
    progress.start("pointing", len(rows), "images")
    with torch.inference_mode():
        for number, batch in enumerate(batches.epoch(0)):
            own = slice(edges[number], edges[number + 1])
            columns, which = np.unique(game.columns[own], return_inverse=True)
            device = trained.model.head.weight.device
            best = peaks(raw_maps(trained.model, batch.inputs.to(device), columns.tolist()))  # [B, K, 2]
            points[own] = best.cpu().numpy()[place[own] - number * _BATCH, which]
            progress.advance(len(batch.inputs))
    return points
