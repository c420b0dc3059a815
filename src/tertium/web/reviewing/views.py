"""Images as the page shows them: encoded anew, so that nothing but pixels leaves the machine."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from tertium.data.pictures import Pictures
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.prediction.trained import Trained

_LARGEST, _THUMB = 1600, 160  # pixels of the longer side
_ORIENTATION = 0x0112  # the EXIF tag by which a camera says how it was held


class Views:
    """Draws the images of a label file by row; one call at a time runs the model."""

    def __init__(self, pictures: Pictures | None, load: Callable[[], Trained] | None) -> None:
        """Take pictures in the order of the labels, if there are any, and what loads a model of images."""
        self._pictures, self._load, self._lock = pictures, load, threading.Lock()

    @property
    def has_images(self) -> bool:
        """Whether there is anything to show."""
        return self._pictures is not None

    @property
    def has_heat(self) -> bool:
        """Whether the model looks at images; some that do cannot tell where, which is found out on asking."""
        return self._pictures is not None and self._load is not None

    @cached_property
    def _trained(self) -> Trained:
        assert self._load is not None
        return self._load()

    def image(self, row: int) -> bytes:
        """Return an image as JPEG, upright."""
        return _jpeg(self._open(row), _LARGEST)

    def thumb(self, row: int) -> bytes:
        """Return a small JPEG."""
        return _jpeg(self._open(row), _THUMB)

    def heat(self, row: int, label: str) -> bytes:
        """Return an image as JPEG, upright and grey, coloured where the model looks for a label."""
        image = self._open(row)
        if self._load is None:
            raise InputError("the model was trained on features: where it looks is not known")
        from tertium.prediction.explaining import activation_maps  # needs torch, and is not always asked for

        with self._lock:
            column = self._trained.classes.index(label)
            heat = activation_maps(self._trained, image, [column])[0]
        if not heat.any():
            raise InputError(f'nothing in the image speaks for "{label}"')
        return _jpeg(heated(heat, image), _LARGEST)

    def _open(self, row: int) -> Image.Image:
        if self._pictures is None:
            raise InputError("there are no images to show: start with --images")
        if not 0 <= row < len(self._pictures):
            raise InputError(f"there is no image {row}; there are {len(self._pictures):,}")
        return self._pictures.open(row)


def heated(heat: npt.NDArray[np.float32], image: Image.Image) -> Image.Image:
    """Return an image under a map [h, w] in 0…1, as the report colours it, in its shape as shown.

    The map is of the pixels as stored; it is turned upright with them.
    """
    from tertium.prediction.explaining import overlaid

    plain = image.convert("RGB")
    plain.thumbnail((_LARGEST, _LARGEST))
    over = overlaid(plain, heat)
    over.getexif()[_ORIENTATION] = image.getexif().get(_ORIENTATION, 1)
    return ImageOps.exif_transpose(over)


def _jpeg(image: Image.Image, largest: int) -> bytes:
    upright = ImageOps.exif_transpose(image)  # the model sees pixels as stored; a person needs them upright
    upright.thumbnail((largest, largest))
    plain = Image.new("RGB", upright.size)  # without whatever else the file said, such as where it was taken
    plain.paste(upright)
    sink = io.BytesIO()
    plain.save(sink, "JPEG", quality=90, subsampling=0)  # small red things stay sharp
    return sink.getvalue()
