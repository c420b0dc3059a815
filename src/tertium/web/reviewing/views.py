"""Images as the page shows them: encoded again, so that only pixels leave the machine."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from PIL import Image

from tertium.data.pictures import Pictures
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.prediction.trained import Trained

_LARGEST, _THUMB = 1600, 160  # pixels of the longer side


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
        """Return an image as JPEG."""
        return _jpeg(self._open(row, _LARGEST))

    def thumb(self, row: int) -> bytes:
        """Return a small JPEG."""
        return _jpeg(self._open(row, _THUMB))

    def heat(self, row: int, label: str) -> bytes:
        """Return an image as JPEG, grey, coloured where the model looks for a label."""
        if self._load is None:
            raise InputError("the model was trained on features: where it looks is not known")
        from tertium.prediction.explaining import (  # needs torch, and is not always asked for
            activation_maps,
            overlaid,
        )

        with self._lock:
            image = self._open(row)
            column = self._trained.classes.index(label)
            heat = activation_maps(self._trained, image, [column])[0]
            image.thumbnail((_LARGEST, _LARGEST))
        if not heat.any():
            raise InputError(f'nothing in the image speaks for "{label}"')
        return _jpeg(overlaid(image, heat))

    def _open(self, row: int, within: int | None = None) -> Image.Image:
        if self._pictures is None:
            raise InputError("there are no images to show: start with --images")
        if not 0 <= row < len(self._pictures):
            raise InputError(f"there is no image {row}; there are {len(self._pictures):,}")
        return self._pictures.open(row, within)


def _jpeg(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=90, subsampling=0)  # small red things stay sharp
    return sink.getvalue()
