"""How an image becomes the square that a network sees. Nothing here needs torch."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from PIL import Image

Filter = Literal["bilinear", "bicubic", "nearest", "lanczos"]
FILTERS: tuple[str, ...] = get_args(Filter)


class View(NamedTuple):
    """The size of the square, and how an image is fitted to it.

    Without ``crop`` the whole image is squashed, so that nothing that a label may refer to is cut off. With
    it, only the square in the middle is seen, of so many times the shorter side.
    """

    size: int
    filter: Filter = "bilinear"
    crop: float | None = None

    @classmethod
    def of(cls, view: View | int) -> View:
        """Take a bare size for a squashed image.

        >>> View.of(224)
        View(size=224, filter='bilinear', crop=None)
        """
        return view if isinstance(view, View) else cls(view)

    def __str__(self) -> str:
        """Say it in words, for whoever has to do the same elsewhere."""
        side = f"{self.size} × {self.size} by Pillow's {self.filter} filter"
        if self.crop is None:
            return f"squashed to {side}"
        return f"the middle square, {self.crop:g} of the shorter side, resized to {side}"


def resized(image: Image.Image, view: View | int) -> Image.Image:
    """Return an image as the network sees it."""
    view = View.of(view)
    if view.crop is None:
        return _fitted(image, view)
    side = view.crop * min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    return _fitted(image, view, (left, top, left + side, top + side))


def augmented(image: Image.Image, view: View | int, key: tuple[int, ...]) -> Image.Image:
    """Crop at random (at least 70 % of each side), mirror half of the time, resize.

    The draw depends on ``key`` alone, so it is the same whatever the number of workers.
    """
    rng = np.random.default_rng(key)
    width, height = (side * rng.uniform(0.7, 1.0) for side in image.size)
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    crop = _fitted(image, View.of(view), (left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def _fitted(
    image: Image.Image, view: View, box: tuple[float, float, float, float] | None = None
) -> Image.Image:
    how = Image.Resampling[view.filter.upper()]
    return image.resize((view.size, view.size), how, box=box)
