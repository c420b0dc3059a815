"""Images that a caller has in memory, in any of the forms that Python programs have them.

Whatever they are, the model sees the pixels that a viewer would show. What could be read in two ways, such as
batches of a loader that may have been shuffled, is refused in one sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tertium.data.decoding import BRIGHT, Size, plain
from tertium.data.pictures import ArrayPictures, Pictures
from tertium.errors import InputError

_FORMS = "a folder, pixels [N, H, W, 3] or [N, 3, H, W], a list of images, or a dataset of them"
_CHANNELS = (1, 3, 4)  # grey, RGB, RGB and alpha
_BLOCK = 64  # images that are looked at together
_WHITE = 1.01  # floats 0 to 1 that were resized may go a little beyond


@dataclass(frozen=True)
class ItemPictures:
    """Images that are asked for one by one: a list, or a dataset, which may compute or load them."""

    items: Any
    rows: npt.NDArray[np.int64]
    scale: float | None = None  # of floats, as the first item has it

    def __len__(self) -> int:
        return len(self.rows)

    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Return one image; what is none is an `InputError` that names its number."""
        number = int(self.rows[row])
        image = _picture(self.items[number], _name(number), self.scale)
        if within is not None:
            image.thumbnail((within, within))
        return image

    def measured(self, row: int) -> tuple[Image.Image, Size]:
        """Return one image, and its size."""
        image = self.open(row)
        return image, image.size

    def select(self, rows: npt.NDArray[np.int64]) -> ItemPictures:
        """Return these rows only."""
        return ItemPictures(self.items, self.rows[rows], self.scale)

    def checksum(self, row: int) -> bytes:
        """Of the size and the pixels."""
        image = self.open(row)
        found = hashlib.sha256(str(image.size).encode())
        found.update(image.tobytes())
        return found.digest()

    def stored(self) -> npt.NDArray[np.int64]:
        """Return the rows as they are."""
        return np.arange(len(self.rows))


def count_images(images: Any) -> int:
    """Return how many images there are; what has no number of images is an `InputError`."""
    kind = type(images).__name__
    if hasattr(images, "batch_size") and hasattr(images, "dataset"):
        raise InputError(f"a {kind} gives batches, perhaps in another order; give its dataset")
    if isinstance(images, Mapping) or not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise InputError(f"images cannot be a {kind}; give {_FORMS}")
    return len(images)


def pictures_of(images: Any) -> Pictures:
    """Return images in memory, in the order of their rows.

    They are an array or a tensor [N, H, W, 3] or [N, 3, H, W], also grey or with alpha; a list of Pillow
    images or of single arrays; or a dataset whose items are such images, alone, first in a tuple, or
    under "image". Whole numbers are 0 to 255, floats 0 to 1 or 0 to 255, all alike.

    >>> pictures_of(np.zeros((5, 3, 8, 9), dtype=np.uint8)).open(0).size
    (9, 8)
    """
    count = count_images(images)
    if not hasattr(images, "dtype"):
        if count and isinstance(_first_of(images[0]), str | Path):
            raise InputError("the items of a dataset are images, not paths; give the paths alone, in a list")
        return ItemPictures(images, np.arange(count), _scale_of(images[0]) if count else None)
    array = _array(images)
    if array.ndim not in (3, 4):
        raise InputError(f"images have the shape {_shown(array.shape)}; give {_FORMS}")
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3:
        return ArrayPictures(array)
    scale = _scale((array[row : row + _BLOCK] for row in range(0, count, _BLOCK)), "the images")
    return ItemPictures(array, np.arange(count), scale)


def _picture(item: Any, name: str, scale: float | None) -> Image.Image:
    """Return one image in RGB; ``scale`` is that of floats in other images."""
    item = _first_of(item)
    if isinstance(item, Image.Image):
        return plain(item)
    values = _array(item)
    if values.ndim == 3 and values.shape[-1] not in _CHANNELS and values.shape[0] in _CHANNELS:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[-1] in _CHANNELS):
        raise InputError(f"{name} has the shape {_shown(values.shape)}, which is not that of an image")
    if values.dtype != np.uint8:
        factor = _scale(iter([values]), name, scale if values.dtype.kind == "f" else None)
        values = np.rint(np.minimum(values.astype(np.float64) * factor, 255)).astype(np.uint8)
    return plain(Image.fromarray(values))


def _name(number: int) -> str:
    return f"image {number:,} of the dataset, counted from 0"


def _scale_of(item: Any) -> float | None:
    """Return what the first image says of the others; nothing if it is black, or not an array of floats."""
    item = _first_of(item)
    if isinstance(item, Image.Image):
        return None
    values = _array(item)
    if values.dtype.kind != "f" or not values.any():
        return None
    return _scale(iter([values]), _name(0))


def _scale(parts: Any, name: str, of_others: float | None = None) -> float:
    """Return what makes values 0 to 255: for floats that of the others, if they have shown it.

    A dark image does not show by itself which of the two it is.
    """
    low, high, whole = 0.0, 0.0, True
    for part in parts:
        if part.dtype.kind not in "bfiu":
            raise InputError(f"{name} are of the type {part.dtype}; pixels are numbers")
        if part.size:
            low, high = float(np.minimum(low, part.min())), float(np.maximum(high, part.max()))
            whole = part.dtype.kind in "iu"
    if not (low >= 0 and high <= 255):  # not a number is neither
        raise InputError(
            f"{name}: values from {low:.4g} to {high:.4g} are not pixels; give them as 0 to 255, or as "
            "floats 0 to 1, before they are standardised"
        )
    if whole:
        return 1.0
    if of_others is None and _WHITE < high < BRIGHT:
        raise InputError(
            f"{name}: floats up to {high:.4g} are too large for 0 to 1 and too small for 0 to 255; give "
            "them as one of the two"
        )
    found = 1.0 if high > _WHITE else 255.0
    if of_others is not None and found < of_others:
        raise InputError(
            f"{name} has values up to {high:.4g}, the first one none beyond 1; give all of them as floats "
            "0 to 1, or as 0 to 255 of the type uint8"
        )
    return found if of_others is None else of_others


def _first_of(item: Any) -> Any:
    """Return the image of an item that also has a target."""
    if isinstance(item, Mapping):  # as in datasets of Hugging Face
        return item.get("image", item.get("img"))
    return item[0] if isinstance(item, tuple | list) and item else item


def _array(values: Any) -> npt.NDArray[Any]:
    """Return an array or a tensor, wherever it is, as an array."""
    found = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return np.asarray(found)


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
