"""Scenes: built-in data, rendered so that the truth about every label is known.

A scene is either outdoors (sky, land or water, by day or by night) or a backdrop with or without a texture,
and has one to eight objects, each with a place, a size, a colour and a look. What occurs together in the
world occurs together here: boats and lighthouses with water, the moon with the night, green with trees. Some
classes are in half of the scenes and some in one of a hundred. Light, noise, overlap, clouds and meaningless
strokes make them harder to recognise.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tertium.errors import InputError
from tertium.files import filling, replacing
from tertium.labels import Labels
from tertium.labels.formats.coco import Boxes
from tertium.labels.names import SEPARATOR
from tertium.labels.tree import LabelTree

Colour = tuple[int, int, int]
Name = TypeVar("Name", int, str)
Box = tuple[float, float, float, float]  # left, top, right, bottom, as shares of the picture's side

_TREE = LabelTree(
    dict.fromkeys(("night", "sun", "water"), "outdoor")
    | {"moon": "night"}
    | dict.fromkeys(("circle", "square", "star", "triangle"), "shape")
    | dict.fromkeys(("aircraft", "boat", "car"), "vehicle")
    | dict.fromkeys(("balloon", "plane"), "aircraft")
    | dict.fromkeys(("house", "lighthouse"), "building")
    | dict.fromkeys(("checkered", "dotted", "striped"), "texture")
)
# A class outside the tree is its own root.
CLASSES: tuple[str, ...] = tuple(sorted({*_TREE.names, "tree", "red", "green", "blue", "yellow", "crowded"}))
_NUMBER = {name: number for number, name in enumerate(CLASSES)}
_SETTINGS = {"outdoor", "night"}  # above the sun and the moon in the tree, but no things that have a place


@dataclass(frozen=True, eq=False)
class Scenes:
    """Rendered images and their full labels."""

    images: npt.NDArray[np.uint8]  # [N, size, size, 3]
    labels: Labels
    boxes: Boxes  # of objects: of what they are, by the tree, and of their colour

    def save(self, folder: str | Path) -> None:
        """Write every image as PNG, ``boxes.json`` in COCO's form, and ``labels.csv``: image,present."""
        with filling(Path(folder)) as whole:
            self._write(whole)

    def _write(self, folder: Path) -> None:
        names = self.labels.images.to_pylist()
        for name, pixels in zip(names, self.images, strict=True):
            Image.fromarray(pixels).save(folder / name, compress_level=1)
        with replacing(folder / "boxes.json") as temporary:
            temporary.write_text(json.dumps(_instances(self.boxes)) + "\n", encoding="utf-8")
        lines = ["image,present"]
        for name, row in zip(names, self.labels.dense() > 0, strict=True):
            lines.append(f"{name},{SEPARATOR.join(CLASSES[number] for number in np.flatnonzero(row))}")
        with replacing(folder / "labels.csv") as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tree() -> LabelTree:
    """Return the label tree of the scenes.

    >>> tree().ancestors("moon")
    ('night', 'outdoor')
    """
    return _TREE


def render(count: int, seed: int = 0, size: int = 64) -> Scenes:
    """Draw ``count`` scenes; scene i depends on (seed, i) only, so fewer scenes are the first of more.

    >>> scenes = render(20)
    >>> scenes.images.shape
    (20, 64, 64, 3)
    >>> scenes.labels.images[7].as_py(), scenes.labels.is_full
    ('scene-000007.png', True)
    """
    if count < 1 or size < 16:
        raise InputError(f"scenes need a count from 1 up and a size from 16 up, not {count} and {size}")
    images = np.empty((count, size, size, 3), dtype=np.uint8)
    truth = np.full((count, len(CLASSES)), -1, dtype=np.int8)
    found: list[tuple[int, int, Box]] = []  # scene, class, where
    for number in range(count):
        scene = _Scene(random.Random(f"scene {number} of {seed}"), size)
        images[number] = scene.photograph()
        truth[number, [_NUMBER[name] for name in scene.present()]] = 1
        found += [(number, _NUMBER[name], box) for names, box in scene.drawn for name in sorted(names)]
    labels = Labels.from_dense(truth, classes=CLASSES, images=[f"scene-{n:06d}.png" for n in range(count)])
    boxes = Boxes(
        images=labels.images,
        sizes=np.full((count, 2), size),
        classes=CLASSES,
        rows=np.array([row for row, _, _ in found], dtype=np.int64),
        columns=np.array([column for _, column, _ in found], dtype=np.int64),
        corners=np.array([box for _, _, box in found], dtype=np.float64).reshape(-1, 4) * size,
        unsure=np.zeros(len(found), dtype=bool),
    )
    return Scenes(images, labels, boxes)


def _instances(boxes: Boxes) -> dict[str, list[dict[str, Any]]]:
    """Return boxes as COCO's instances files have them."""
    corners = boxes.corners.round(3)
    corners[:, 2:] -= corners[:, :2]
    objects = zip(boxes.rows.tolist(), boxes.columns.tolist(), corners.round(3).tolist(), strict=True)
    images = zip(boxes.images.to_pylist(), boxes.sizes.tolist(), strict=True)
    return {
        "images": [
            {"id": number, "file_name": name, "width": wide, "height": high}
            for number, (name, (wide, high)) in enumerate(images)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(boxes.classes)],
        "annotations": [
            {"id": number, "image_id": row, "category_id": column, "bbox": box, "iscrowd": 0}
            for number, (row, column, box) in enumerate(objects)
        ],
    }


# ---- what things look like ---------------------------------------------------------------------------------


def _spikes(count: int, inner: float) -> tuple[float, ...]:
    tips = [(1.0, inner)[step % 2] for step in range(2 * count)]
    turns = [math.pi * step / count for step in range(2 * count)]
    return tuple(v for r, t in zip(tips, turns, strict=True) for v in (r * math.sin(t), -r * math.cos(t)))


# Parts from back to front in a box from −1 to 1: the corners of a polygon, or centre and radii of an ellipse.
# "body" has the object's colour, which is what the colour labels speak of, and "shade" is a darker body; the
# other tones have colours of their own, none of them a class.
_PARTS: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (
    ("circle", "ellipse", "body", (0, 0, 1, 1)),
    ("square", "polygon", "body", (-0.85, -0.85, 0.85, -0.85, 0.85, 0.85, -0.85, 0.85)),
    ("triangle", "polygon", "body", (0, -1, 1, 0.8, -1, 0.8)),
    ("star", "polygon", "body", _spikes(5, 0.45)),
    ("car", "polygon", "body", (-0.65, 0, -0.4, -0.55, 0.3, -0.55, 0.6, 0)),
    ("car", "polygon", "body", (-1, -0.02, 0.9, -0.02, 1, 0.15, 1, 0.42, -1, 0.42)),
    ("car", "polygon", "light", (-0.48, -0.04, -0.32, -0.42, -0.08, -0.42, -0.08, -0.04)),
    ("car", "polygon", "light", (0.02, -0.04, 0.02, -0.42, 0.25, -0.42, 0.43, -0.04)),
    ("car", "ellipse", "dark", (-0.51, 0.39, 0.24, 0.24)),
    ("car", "ellipse", "dark", (0.51, 0.39, 0.24, 0.24)),
    ("boat", "polygon", "body", (0, -1, 0, 0.35, 0.8, 0.35)),
    ("boat", "polygon", "shade", (-0.12, -0.75, -0.12, 0.35, -0.7, 0.35)),
    ("boat", "polygon", "wood", (-1, 0.45, 1, 0.45, 0.65, 0.95, -0.65, 0.95)),
    ("plane", "polygon", "shade", (0.1, 0, 0.4, 0, 0.05, -0.45, -0.1, -0.45)),
    ("plane", "polygon", "body", (-1, -0.62, -0.75, -0.62, -0.45, 0, -0.9, 0)),
    ("plane", "ellipse", "body", (0, 0, 1, 0.22)),
    ("plane", "ellipse", "light", (0.68, -0.06, 0.12, 0.08)),
    ("plane", "polygon", "shade", (0.25, 0.02, -0.15, 0.02, -0.55, 0.62, -0.3, 0.62)),
    ("balloon", "polygon", "shade", (-0.5, 0.1, 0.5, 0.1, 0.16, 0.7, -0.16, 0.7)),
    ("balloon", "ellipse", "body", (0, -0.3, 0.72, 0.7)),
    ("balloon", "ellipse", "light", (0, -0.3, 0.4, 0.7)),
    ("balloon", "ellipse", "body", (0, -0.3, 0.15, 0.7)),
    ("balloon", "polygon", "wood", (-0.2, 0.68, 0.2, 0.68, 0.16, 1, -0.16, 1)),
    ("house", "polygon", "body", (-0.8, -0.15, 0.8, -0.15, 0.8, 1, -0.8, 1)),
    ("house", "polygon", "shade", (-1, -0.15, 0, -1, 1, -0.15)),
    ("house", "polygon", "wood", (-0.55, 0.3, -0.1, 0.3, -0.1, 1, -0.55, 1)),
    ("house", "polygon", "light", (0.15, 0.15, 0.6, 0.15, 0.6, 0.55, 0.15, 0.55)),
    ("lighthouse", "polygon", "light", (-0.26, -0.6, 0.26, -0.6, 0.4, 1, -0.4, 1)),
    ("lighthouse", "polygon", "body", (-0.28, -0.4, 0.28, -0.4, 0.31, -0.05, -0.31, -0.05)),
    ("lighthouse", "polygon", "body", (-0.34, 0.3, 0.34, 0.3, 0.37, 0.65, -0.37, 0.65)),
    ("lighthouse", "polygon", "dark", (-0.2, -0.85, 0.2, -0.85, 0.2, -0.58, -0.2, -0.58)),
    ("lighthouse", "polygon", "body", (-0.3, -0.82, 0, -1.1, 0.3, -0.82)),
    ("fir", "polygon", "wood", (-0.13, 0.5, 0.13, 0.5, 0.13, 1, -0.13, 1)),
    ("fir", "polygon", "shade", (0, -0.5, 0.65, 0.6, -0.65, 0.6)),
    ("fir", "polygon", "body", (0, -0.75, 0.55, 0.15, -0.55, 0.15)),
    ("fir", "polygon", "body", (0, -1, 0.4, -0.3, -0.4, -0.3)),
    ("oak", "polygon", "wood", (-0.13, 0.1, 0.13, 0.1, 0.16, 1, -0.16, 1)),
    ("oak", "ellipse", "shade", (-0.2, -0.08, 0.5, 0.48)),
    ("oak", "ellipse", "body", (0.25, -0.12, 0.45, 0.48)),
    ("oak", "ellipse", "body", (-0.02, -0.5, 0.48, 0.5)),
    ("sun", "polygon", "body", _spikes(10, 0.6)),
    ("sun", "ellipse", "body", (0, 0, 0.72, 0.72)),
    ("moon", "ellipse", "light", (0, 0, 0.8, 0.8)),
    ("moon", "ellipse", "sky", (0.5, -0.2, 0.7, 0.75)),
)
_PARTS_OF = {look: [part[1:] for part in _PARTS if part[0] == look] for look, *_ in _PARTS}
_LOOKS = {"tree": ("fir", "oak")}  # the others have one look, of their own name


class _Kind(NamedTuple):
    where: str
    wide: float  # half the width, for a radius of 1
    high: float
    smallest: float  # radius, as a share of the picture's side
    largest: float


_KINDS = {
    "circle": _Kind("anywhere", 1, 1, 0.10, 0.19),
    "square": _Kind("anywhere", 1, 1, 0.10, 0.19),
    "triangle": _Kind("anywhere", 1, 0.95, 0.11, 0.20),
    "star": _Kind("anywhere", 1, 1, 0.12, 0.21),
    "car": _Kind("ground", 1, 0.62, 0.15, 0.24),
    "house": _Kind("ground", 1, 1, 0.14, 0.23),
    "tree": _Kind("ground", 0.68, 1, 0.14, 0.25),
    "lighthouse": _Kind("ground", 0.4, 1.1, 0.19, 0.28),
    "boat": _Kind("water", 1, 1, 0.14, 0.22),
    "plane": _Kind("sky", 1, 0.62, 0.15, 0.23),
    "balloon": _Kind("sky", 0.72, 1, 0.14, 0.21),
    "sun": _Kind("sky", 1, 1, 0.09, 0.14),
    "moon": _Kind("sky", 0.8, 0.8, 0.09, 0.13),
}
_SHAPES = {"circle": 400, "square": 260, "triangle": 180, "star": 80}
_ODDS = {
    "land": {"tree": 500, "car": 300, "house": 260, "balloon": 20, "plane": 7, "circle": 40, "triangle": 30},
    "water": {"boat": 500, "tree": 80, "house": 50, "lighthouse": 15, "plane": 7, "star": 10},
    "backdrop": _SHAPES | {"car": 40, "tree": 30, "house": 25, "boat": 10, "balloon": 8, "plane": 3},
}
_TEXTURES = {"striped": 30, "dotted": 15, "checkered": 8, "plain": 47}
_COUNTS = {1: 22, 2: 33, 3: 24, 4: 10, 6: 7, 8: 4}  # asked for; some find no room
_CROWD = 5

_PAINTS: dict[str, Colour] = {
    "red": (205, 45, 40),
    "green": (45, 150, 60),
    "blue": (40, 75, 205),
    "yellow": (238, 205, 45),
    "white": (240, 240, 236),
    "grey": (64, 64, 72),
    "purple": (148, 45, 175),
}
_PAINT_ODDS = {"red": 40, "blue": 22, "green": 8, "yellow": 7, "white": 15, "grey": 15, "purple": 10}
_OWN_PAINT_ODDS = {
    "tree": {"green": 8, "yellow": 1, "red": 1},
    "lighthouse": {"red": 3, "blue": 1},
    "sun": {"yellow": 1},
    "moon": {"white": 1},
}
_TONES: dict[str, Colour] = {"dark": (42, 42, 48), "light": (222, 228, 232), "wood": (112, 78, 50)}
_LANDS: tuple[Colour, ...] = ((128, 150, 98), (205, 190, 152), (206, 210, 216), (142, 118, 94))


class _Scene:
    """One scene: it draws itself, and keeps the names of what can be seen in it."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        self.side = 2 * size  # drawn twice as large and then reduced, for smooth edges
        self.names: set[str] = set()
        self.drawn: list[tuple[set[str], Box]] = []  # which classes an object is of, and where it is
        self.boxes: list[Box] = []
        self.room: list[float] = []  # how much of each box may still be covered
        self.horizon = self.shore = 1.0  # where the sky ends, and where the ground begins
        self.sky, self.light = _TONES["dark"], 1.0
        setting = self._outdoors() if rng.random() < 0.58 else self._backdrop()
        self._strokes(rng.randrange(4))
        self._objects(_ODDS[setting])
        self._strokes(rng.randrange(2))

    def present(self) -> set[str]:
        """Return the names of what is seen, and of what that makes present by the tree."""
        return self.names.union(*(_TREE.ancestors(name) for name in self.names))

    def photograph(self) -> npt.NDArray[np.uint8]:
        """Return the picture [size, size, 3] in some light and with some noise."""
        exact = np.asarray(self.image.reduce(2), dtype=np.float32)
        start = self.rng.randrange(3 * exact.size)  # each picture has another stretch of the same film
        grain = _film(4 * exact.size)[start : start + exact.size].reshape(exact.shape)
        exact *= self.rng.uniform(0.75, 1.15)
        exact += grain * np.float32(self.rng.uniform(0.03, 0.16))
        return exact.clip(0, 255, out=exact).astype(np.uint8)

    def _paper(self, top: Colour, bottom: Colour) -> None:
        """Begin the picture with a gradient, in bands: under the noise it looks smooth, and it is quick."""
        bands = [a + (b - a) * step // 15 for step in range(16) for a, b in zip(top, bottom, strict=True)]
        column = Image.frombytes("RGB", (1, 16), bytes(bands))
        self.image = column.resize((self.side, self.side), Image.Resampling.NEAREST)
        self.pen = ImageDraw.Draw(self.image)

    def _outdoors(self) -> str:
        """Draw the sky above land or water; return the name of the setting."""
        rng = self.rng
        night, water = rng.random() < 0.18, rng.random() < 0.34
        seen = {"outdoor": True, "night": night, "water": water}
        self.names.update(name for name in seen if seen[name])
        self.horizon = self.shore = rng.uniform(0.35, 0.6)
        self._sky(night)
        if water:
            self.shore = rng.uniform(0.8, 0.95)
            self._ground(self.horizon, (88, 138, 168))
            for _ in range(8):
                x, y = rng.random(), rng.uniform(self.horizon + 0.02, self.shore)
                self.pen.line(self._pixels(x, y, x + 0.12, y), _scaled((150, 188, 205), self.light), width=2)
        self._ground(self.shore, rng.choice(_LANDS))
        return "water" if water else "land"

    def _sky(self, night: bool) -> None:
        rng = self.rng
        self.light = 0.7 if night else 1.0
        self.sky = self._near((24, 30, 66) if night else (172, 202, 236), 14)
        self._paper(self.sky, self._near((44, 52, 92) if night else (222, 228, 236), 14))
        if night:
            self.pen.point(self._pixels(*(rng.random() for _ in range(60))), (210, 210, 200))
        for _ in range(0 if night else rng.randrange(3)):  # clouds, behind the sun
            x, y, wide = rng.random(), rng.uniform(0, self.horizon), rng.uniform(0.05, 0.15)
            self.pen.ellipse(self._pixels(x - wide, y - 0.04, x + wide, y + 0.04), (240, 242, 244))
        if rng.random() < (0.7 if night else 0.2):
            self._add("moon" if night else "sun", 1)

    def _ground(self, top: float, colour: Colour) -> None:
        dim = _scaled(self._near(colour, 12), self.light**2)  # by night what stands on it is lighter
        self.pen.rectangle(self._pixels(0, top, 1, 1), dim)

    def _backdrop(self) -> str:
        """Draw a plain or textured backdrop; return the name of the setting."""
        level = self.rng.randrange(120, 196)
        self._paper(self._near((level, level, level), 20), self._near((level, level, level), 20))
        texture = _pick(self.rng, _TEXTURES)
        if texture in _NUMBER:
            self.names.add(texture)
            level += self.rng.randrange(35, 60) * (1 if level < 158 else -1)
            self.image.paste(self._near((level, level, level), 15), mask=self._texture(texture))
        return "backdrop"

    def _texture(self, name: str) -> Image.Image:
        turn, scale = self.rng.uniform(0, math.pi), self.rng.uniform(4, 8) / self.side
        cos, sin = math.cos(turn) * scale, math.sin(turn) * scale
        x = np.arange(self.side, dtype=np.float32)
        y = x[:, None]
        across = (x * cos + self.rng.random()) + y * sin  # [side, side]: 1 from one stripe to the next
        along = (y * cos + self.rng.random()) - x * sin
        across, along = across - np.floor(across), along - np.floor(along)
        if name == "dotted":
            inked = (across - 0.5) ** 2 + (along - 0.5) ** 2 < 0.09
        else:
            inked = (across < 0.5) ^ (along < 0.5 if name == "checkered" else False)
        return Image.fromarray(inked)

    def _strokes(self, count: int) -> None:
        """Draw lines that mean nothing, too thin to hide anything."""
        for _ in range(count):
            ends = self._pixels(*(self.rng.random() for _ in range(4)))
            self.pen.line(ends, self._near((120, 120, 120), 50), width=2)

    def _objects(self, odds: Mapping[str, int]) -> None:
        count = _pick(self.rng, _COUNTS)
        placed = sum([self._add(_pick(self.rng, odds), 1 if count < _CROWD else 0.75) for _ in range(count)])
        if placed >= _CROWD:
            self.names.add("crowded")

    def _add(self, name: str, scale: float) -> bool:
        """Draw an object where there is room for it, and say whether there was.

        Later objects lie in front of earlier ones. Of the box around any of them they may hide 15 %, all
        together, which leaves more than half even of a star, the one that fills its box least. So all that
        was drawn can be seen, and what finds no room in a few tries is neither drawn nor present.
        """
        rng, kind = self.rng, _KINDS[name]
        radius = rng.uniform(kind.smallest, kind.largest) * scale
        wide, high = kind.wide * radius, kind.high * radius
        for _ in range(6):
            x, y = rng.uniform(wide, 1 - wide), self._height(kind.where, high)
            box = (x - wide, y - high, x + wide, y + high)
            left = [room - _overlap(box, other) for room, other in zip(self.room, self.boxes, strict=True)]
            if min(left, default=0) >= 0:
                self.boxes.append(box)
                self.room = [*left, 0.15 * (2 * wide) * (2 * high)]
                self._draw(name, x, y, radius)
                return True
        return False

    def _height(self, where: str, high: float) -> float:
        """Return a height for the middle of an object: a house stands on the ground, a boat in the water."""
        top, bottom = high, 1 - high
        if where == "sky":
            bottom = self.horizon - high
        elif where == "ground" and self.shore < 1:
            top = self.shore + 0.03 - high
        elif where == "water" and self.shore < 1:
            top, bottom = self.horizon + 0.06 - high, self.shore - high
        top = max(top, high)
        return self.rng.uniform(top, max(top, bottom))

    def _draw(self, name: str, x: float, y: float, radius: float) -> None:
        rng = self.rng
        paint = _pick(rng, _OWN_PAINT_ODDS.get(name, _PAINT_ODDS))
        if paint == "grey" and self.light < 1:
            paint = "white"  # grey could not be seen by night
        self.names.update({name, paint} & _NUMBER.keys())  # white, grey and purple are not classes
        body = _scaled(self._near(_PAINTS[paint], 18), self.light)
        tones = {tone: _scaled(colour, self.light) for tone, colour in _TONES.items()}
        tones |= {"body": body, "shade": _scaled(body, 0.7), "sky": self.sky}
        turn, flip = rng.uniform(-0.4, 0.4) if name in _SHAPES else 0.0, rng.choice((-1, 1))
        x, y, radius = self._pixels(x, y, radius)
        cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
        edges: list[tuple[float, float]] = []
        for outline, tone, numbers in _PARTS_OF[rng.choice(_LOOKS.get(name, (name,)))]:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            points = [(x + flip * (u * cos - v * sin), y + u * sin + v * cos) for u, v in pairs]
            if outline == "polygon":
                self.pen.polygon(points, tones[tone])
            else:
                u, v, wide, high = *points[0], numbers[2] * radius, numbers[3] * radius
                points = [(u - wide, v - high), (u + wide, v + high)]
                self.pen.ellipse(points, tones[tone])
            edges += points if tone != "sky" else []  # the sky that bites into the moon is not the moon
        across, down = (
            [min(max(end / self.side, 0), 1) for end in ends] for ends in zip(*edges, strict=True)
        )
        classes = ({name, *_TREE.ancestors(name), paint} & _NUMBER.keys()) - _SETTINGS
        self.drawn.append((classes, (min(across), min(down), max(across), max(down))))

    def _pixels(self, *shares: float) -> list[float]:
        return [share * self.side for share in shares]

    def _near(self, colour: Colour, spread: int) -> Colour:
        red, green, blue = (int(value + self.rng.uniform(-spread, spread)) for value in colour)
        return red, green, blue


def _scaled(colour: Colour, factor: float) -> Colour:
    return int(colour[0] * factor), int(colour[1] * factor), int(colour[2] * factor)


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _pick(rng: random.Random, odds: Mapping[Name, int]) -> Name:
    return rng.choices(list(odds), list(odds.values()))[0]


@cache
def _film(length: int) -> npt.NDArray[np.int8]:
    return np.frombuffer(random.Random(0).randbytes(length), dtype=np.int8)
