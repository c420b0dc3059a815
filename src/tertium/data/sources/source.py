"""What every kind of place for images has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

IMAGE_SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".avif",
    ".heic",
    ".heif",
)


@runtime_checkable
class ImageSource(Protocol):
    """Images by name, wherever they are kept; their numbers follow the order in which they are stored.

    Sources are sent to worker processes, so they hold paths and offsets, never an open file.
    """

    @property
    def place(self) -> str:
        """Where it is, as a person has given it."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """What the images are called, each name once."""
        ...

    @property
    def unread(self) -> Sequence[str]:
        """Names of what else is there, and is not an image by its name."""
        ...

    @property
    def by_path(self) -> bool:
        """Whether names are paths, so that ./a.jpg is another way to write a.jpg."""
        ...

    def open(self, number: int) -> AbstractContextManager[BinaryIO]:
        """Give the bytes of an image as a file; what cannot be read is an `InputError` that names it."""
        ...

    def where(self, number: int) -> str:
        """Return what a message calls an image."""
        ...


@runtime_checkable
class Divisible(ImageSource, Protocol):
    """A source of which a part can be sent to another process, without all the rest."""

    def part(self, numbers: npt.NDArray[np.int64]) -> ImageSource:
        """Return a source of these images only, in this order."""
        ...

    def version(self, number: int) -> str:
        """Return what changes when an image does, as far as that shows without reading it."""
        ...


def is_image(name: str) -> bool:
    """Return whether something is an image by its name.

    >>> is_image("a/B.JPG"), is_image("notes.txt")
    (True, False)
    """
    return name.lower().endswith(IMAGE_SUFFIXES)
