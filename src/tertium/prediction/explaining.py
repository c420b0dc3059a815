"""Where in an image a model sees a class: class activation maps (Zhou 2016), and pictures of them."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from tertium.data.decoding import Size, plain
from tertium.data.kinds.listed import of_paths
from tertium.data.pictures import Pictures, SourcePictures
from tertium.data.sources.opening import Place, open_source
from tertium.data.views import resized
from tertium.errors import InputError, did_you_mean
from tertium.files import filling, keep_files, replacing
from tertium.models.classifier import Classifier
from tertium.prediction.trained import Trained
from tertium.progress import Progress

_BATCH = 16
_TABLE = "explained.csv"
# From cold to hot: colours that get lighter, so that they can be told apart without seeing hues.
_HEAT = np.array([[70, 0, 110], [200, 30, 80], [245, 100, 25], [252, 190, 40], [255, 245, 130]])
_PANEL, _GAP, _ACROSS = 240, 12, 6  # pixels of a panel and between panels; panels in a row
_LINE = 18  # pixels of a line of a caption


# ---- maps ------------------------------------------------------------------------------------------------


def raw_maps(model: Classifier, images: Tensor, columns: Sequence[int]) -> Tensor:
    """Return what each place adds to the logits of some classes [B, K, H, W], from images [B, 3, H', W'].

    The mean over all places and the class's bias together are its logit. In a model with ``boost`` they are
    the boosted places, so that the same holds.
    """
    check_places(model)
    assert model.backbone is not None
    try:
        found = model.backbone.maps(images)
    except InputError:
        raise InputError(
            f'"{model.backbone.name}" does not average a map of features, so there are no places to show'
        ) from None
    chosen = torch.as_tensor(columns, dtype=torch.int64, device=found.device)
    # Standardising is linear: it goes into the weights, so that the many features are touched once.
    weights = model.head.weight[chosen] * model.scale  # [K, D]
    places = functional.conv2d(found, weights[:, :, None, None], -(weights @ model.center)).float()
    if model.boost == 1:
        return places
    bias = model.head.bias[chosen][:, None, None]
    scores = places + bias
    return torch.where(scores > 0, model.boost * scores, scores) - bias


def check_places(model: Classifier) -> None:
    """Raise `InputError` if the model sees no images."""
    if model.backbone is None:
        raise InputError("the model was trained on ready features, which have no places to show")


def activation_maps(trained: Trained, image: Image.Image, columns: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return maps [K, H, W] from 0 to 1 of what in an image speaks for the classes of these columns.

    1 is the place with the most evidence for a class; a place with evidence against it is 0, and so is every
    place if no place has evidence for it. Each map has its own scale: maps show where, the probability how
    much.
    """
    with torch.inference_mode():
        raw = raw_maps(trained.model, _batch(trained, [_squashed(trained, plain(image))]), columns)
    return normalised(raw[0].cpu().numpy())


def normalised(maps: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Cut maps [..., H, W] off below 0, and divide each by its maximum.

    >>> normalised(np.array([[[2, -4], [1, 0]], [[-1, -2], [-1, 0]]], dtype=np.float32)).tolist()
    [[[1.0, 0.0], [0.5, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    above = np.maximum(maps, 0)
    most = above.max(axis=(-2, -1), keepdims=True)
    scaled: npt.NDArray[np.float32] = np.divide(above, most, out=np.zeros_like(above), where=most > 0)
    return scaled


def peaks(maps: Tensor) -> Tensor:
    """Return x and y [..., 2] of the highest place of maps [..., H, W]: its middle, as shares of the sides.

    >>> peaks(torch.tensor([[0.0, 1.0], [0.5, 0.0]])).tolist()
    [0.75, 0.25]
    """
    high, wide = maps.shape[-2:]
    best = maps.flatten(-2).argmax(dim=-1)
    return torch.stack([(best % wide + 0.5) / wide, (best // wide + 0.5) / high], dim=-1)


def _squashed(trained: Trained, image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return an image as the model wants it, uint8 [H, W, 3]."""
    check_places(trained.model)
    return np.asarray(resized(image, trained.view))


def _batch(trained: Trained, squashed: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
    """Return squashed images as one batch [B, 3, H, W] on the device of the model."""
    return torch.from_numpy(np.stack(squashed).transpose(0, 3, 1, 2)).to(trained.model.head.weight.device)


# ---- some images -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """How probable some classes are in an image, and which places speak for them."""

    columns: npt.NDArray[np.int64]  # [K] of the classes
    probabilities: npt.NDArray[np.float32]  # [K]
    maps: npt.NDArray[np.float32]  # [K, H, W] from 0 to 1, as `activation_maps` gives them
    peaks: npt.NDArray[np.float32]  # [K, 2] x and y of the highest place, as shares of the image's sides


def explain(
    trained: Trained, images: Sequence[Image.Image], *, classes: Sequence[str] | None = None, top: int = 5
) -> list[Explanation]:
    """Explain these classes, or the ``top`` most probable ones of each image, for a batch of images."""
    chosen = None if classes is None else _columns(trained, classes)
    return _explained(trained, [_squashed(trained, plain(image)) for image in images], chosen, top)


def _explained(
    trained: Trained,
    squashed: Sequence[npt.NDArray[np.uint8]],
    chosen: npt.NDArray[np.int64] | None,
    top: int,
) -> list[Explanation]:
    with torch.inference_mode():
        raw = raw_maps(trained.model, _batch(trained, squashed), range(len(trained.classes)))
        scores = (raw.mean(dim=(2, 3)) + trained.model.head.bias).sigmoid().cpu().numpy()
        best, maps = peaks(raw).cpu().numpy(), raw.cpu().numpy()
    found = []
    for row, each in enumerate(scores):
        columns = np.argsort(-each, kind="stable")[:top] if chosen is None else chosen
        found.append(Explanation(columns, each[columns], normalised(maps[row, columns]), best[row, columns]))
    return found


def _columns(trained: Trained, classes: Sequence[str]) -> npt.NDArray[np.int64]:
    place = {name: number for number, name in enumerate(trained.classes)}
    strangers = [name for name in classes if name not in place]
    if strangers:
        raise InputError(
            f'the model knows no class "{strangers[0]}"; {did_you_mean(strangers[0], trained.classes)}'
        )
    return np.array([place[name] for name in classes], dtype=np.int64)


@dataclass(frozen=True)
class Row:
    """One line of ``explained.csv``."""

    image: str
    label: str
    probability: float
    x: float  # of the highest place, in pixels of the image as a viewer shows it
    y: float


@dataclass(frozen=True)
class _Seen:
    """What is needed of an image file. The image itself may be large, and a batch of them does not stay."""

    squashed: npt.NDArray[np.uint8]  # [H, W, 3] as the model gets it
    panel: Image.Image  # as the picture shows it
    size: Size  # in the file, upright

    @classmethod
    def of(cls, trained: Trained, pictures: Pictures, row: int) -> _Seen:
        image, full = pictures.measured(row)
        shrink = _PANEL / max(image.size)
        size = max(round(image.width * shrink), 1), max(round(image.height * shrink), 1)
        panel = image.resize(size, Image.Resampling.LANCZOS)
        return cls(_squashed(trained, image), panel, full)


def explain_files(
    trained: Trained,
    paths: Sequence[str | Path],
    out: Path,
    *,
    images: Place | None = None,
    classes: Sequence[str] | None = None,
    top: int = 5,
    overwrite: bool = True,
    progress: Progress | None = None,
) -> list[Row]:
    """Write a picture for each image file, and ``explained.csv`` with the numbers, to a folder.

    With ``images``, a folder or another place (docs/images.md), the paths are names of images in it. Without
    ``overwrite`` none of the files may be there.
    """
    progress = progress or Progress()
    check_places(trained.model)
    chosen = None if classes is None else _columns(trained, classes)
    pictures = _named(paths) if images is None else SourcePictures.of(open_source(images), _texts(paths))
    targets = _targets(pictures, out)
    keep_files([out / name for name in (*targets, _TABLE)], overwrite=overwrite)
    rows: list[Row] = []
    with filling(out) as folder:
        progress.start("explaining", len(pictures), "images")
        for start in range(0, len(pictures), _BATCH):
            some = range(start, min(start + _BATCH, len(pictures)))
            seen = [_Seen.of(trained, pictures, row) for row in some]
            explained = _explained(trained, [each.squashed for each in seen], chosen, top)
            for row, image, found in zip(some, seen, explained, strict=True):
                name, names = pictures.names[row], [trained.classes[column] for column in found.columns]
                _picture(image, PurePath(name).name, names, found).save(folder / targets[row])
                places = (found.peaks * image.size).tolist()
                numbers = zip(names, found.probabilities.tolist(), places, strict=True)
                rows += [Row(name, label, value, x, y) for label, value, (x, y) in numbers]
                progress.advance()
        _write_rows(folder / _TABLE, rows)
    return rows


def _texts(paths: Sequence[str | Path]) -> list[str]:
    """Return each path once."""
    return list(dict.fromkeys(map(str, paths)))


def _named(paths: Sequence[str | Path]) -> SourcePictures:
    for path in map(Path, paths):
        if path.is_dir():
            raise InputError(f"{path}: is a folder; name image files, such as {path}/*.jpg")
    names = _texts(paths)
    return SourcePictures.of(of_paths(names), names)


def _targets(pictures: SourcePictures, out: Path) -> list[str]:
    """Return what the picture of each image is called: as itself, with a number if another is so too."""
    found: list[str] = []
    for path in map(PurePath, pictures.names):
        marks = chain([""], (f"-{number}" for number in count(2)))
        found.append(next(name for mark in marks if (name := f"{path.stem}{mark}.png") not in found))
    sources = {os.path.realpath(pictures.source.where(number)) for number in pictures.numbers.tolist()}
    for name in found:
        if os.path.realpath(out / name) in sources:
            raise InputError(f"{out / name}: the picture would replace the image; choose another --out")
    return found


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as sink:
        lines = csv.writer(sink)
        lines.writerow(["image", "label", "probability", "x", "y"])
        lines.writerows(
            [row.image, row.label, f"{row.probability:.6f}", f"{row.x:.1f}", f"{row.y:.1f}"] for row in rows
        )


# ---- pictures --------------------------------------------------------------------------------------------


def overlaid(image: Image.Image, heat: npt.NDArray[np.float32]) -> Image.Image:
    """Return an image under a map [H, W] from 0 to 1: grey where it is cold, coloured where it is hot."""
    flat = Image.fromarray(np.asarray(heat, dtype=np.float32))
    large = np.asarray(flat.resize(image.size, Image.Resampling.BICUBIC)).clip(0, 1)  # bicubic overshoots
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None]
    steps = np.linspace(0, 1, len(_HEAT))
    colour = np.stack([np.interp(large, steps, channel) for channel in _HEAT.T], axis=-1)
    share = 0.75 * large[..., None]  # of the colour: what lies under the hottest place can still be seen
    return Image.fromarray(((1 - share) * grey + share * colour).round().astype(np.uint8))


def _picture(image: _Seen, title: str, names: Sequence[str], found: Explanation) -> Image.Image:
    """Draw an image beside itself under the map of each class, with probabilities below."""
    small, (width, height) = image.panel, image.size
    panels = [(small, title, f"{width} × {height}")]
    for name, value, heat, peak in zip(names, found.probabilities, found.maps, found.peaks, strict=True):
        speaks = bool(heat.any())
        panel = _ringed(overlaid(small, heat), peak) if speaks else overlaid(small, heat)
        panels.append((panel, name, f"probability {value:.3f}" + ("" if speaks else ", nowhere")))
    return _sheet(panels, small.size)


def _ringed(panel: Image.Image, peak: npt.NDArray[np.float32]) -> Image.Image:
    x, y = (peak * panel.size).tolist()
    pen = ImageDraw.Draw(panel)
    for radius, colour in ((6, "black"), (5, "white")):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour)
    return panel


def _sheet(panels: Sequence[tuple[Image.Image, str, str]], size: tuple[int, int]) -> Image.Image:
    """Lay panels out in rows, each with two lines below."""
    wide, high = max(size[0], _PANEL) + _GAP, size[1] + 2 * _LINE + 2 * _GAP
    across = min(len(panels), _ACROSS)
    sheet = Image.new("RGB", (across * wide + _GAP, math.ceil(len(panels) / across) * high + _GAP), "white")
    pen, fonts = ImageDraw.Draw(sheet), (_font("DejaVuSans-Bold.ttf"), _font("DejaVuSans.ttf"))
    for number, (panel, *lines) in enumerate(panels):
        x, y = _GAP + number % across * wide, _GAP + number // across * high
        sheet.paste(panel, (x, y))
        for place, (line, font) in enumerate(zip(lines, fonts, strict=True)):
            pen.text((x, y + size[1] + 4 + place * _LINE), _fitting(line, font, wide - _GAP), "black", font)
    return sheet


def _font(name: str) -> Any:
    from matplotlib import get_data_path  # its fonts have the letters of most alphabets; Pillow's has not

    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / name, 13)


def _fitting(text: str, font: Any, width: int) -> str:
    """Return a text on one line, cut off with … where it is too long."""
    line = " ".join(text.split())
    if font.getlength(line) <= width:
        return line
    longest = next(end for end in range(len(line) - 1, -1, -1) if font.getlength(line[:end] + "…") <= width)
    return line[:longest] + "…"
