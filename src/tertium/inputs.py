"""Images and feature files as a user has them: found, checked, decoded. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tertium.errors import InputError, some

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class Pictures(Protocol):
    """Images in the order of the label rows."""

    def __len__(self) -> int: ...
    def open(self, row: int) -> Image.Image:
        """Return one image in RGB, decoded."""
        ...

    def select(self, rows: npt.NDArray[np.int64]) -> Pictures:
        """Return these rows only."""
        ...

    def fingerprint(self, row: int) -> str:
        """Return what tells this image from another, without decoding it."""
        ...


@dataclass(frozen=True)
class FolderPictures:
    """Image files below a folder, named by the image ids of the labels."""

    folder: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def open(self, row: int) -> Image.Image:
        """Decode one file; a damaged one is an `InputError` that names it."""
        return open_image(self.folder / self.names[row])

    def select(self, rows: npt.NDArray[np.int64]) -> FolderPictures:
        """Return these rows only."""
        return FolderPictures(self.folder, [self.names[row] for row in rows])

    def fingerprint(self, row: int) -> str:
        """The name and the size of the file."""
        return f"{self.names[row]} {(self.folder / self.names[row]).stat().st_size}"


@dataclass(frozen=True)
class ArrayPictures:
    """Images that are already in memory, uint8 [N, H, W, 3]."""

    images: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.images)

    def open(self, row: int) -> Image.Image:
        """Return one image."""
        return Image.fromarray(self.images[row])

    def select(self, rows: npt.NDArray[np.int64]) -> ArrayPictures:
        """Return these rows only."""
        return ArrayPictures(self.images[rows])

    def fingerprint(self, row: int) -> str:
        """A checksum of the pixels."""
        return hashlib.sha256(np.ascontiguousarray(self.images[row]).data).hexdigest()


def open_image(path: Path, draft: int | None = None) -> Image.Image:
    """Decode an image file to RGB; ``draft`` allows a JPEG to be decoded smaller, but not below that size."""
    try:
        with Image.open(path) as image:
            if draft is not None:
                image.draft("RGB", (draft, draft))
            return image.convert("RGB")
    except FileNotFoundError:
        raise InputError(f"{path}: no such image") from None
    except UnidentifiedImageError:
        raise InputError(f"{path}: not an image that can be read") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: the image is damaged ({error})") from None


def folder_pictures(folder: str | Path, names: Sequence[str]) -> FolderPictures:
    """Return the images that the labels name, after checking that every file is there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    there = set(list_images(folder))
    missing = [name for name in names if name not in there]
    if missing:
        raise InputError(
            f"{folder}: {len(missing):,} of {len(names):,} labelled images are missing: {some(missing)}"
        )
    return FolderPictures(folder, names)


def list_images(folder: Path) -> list[str]:
    """Return the image files below a folder, as sorted paths relative to it."""
    found = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        found += [name if inside == "." else f"{inside}/{name}" for name in files]
    return sorted(name for name in found if name.lower().endswith(IMAGE_SUFFIXES))


def check_pictures(pictures: Pictures, tick: Callable[[], None]) -> None:
    """Decode every file once, small, so that a damaged one is named before training starts."""
    if not isinstance(pictures, FolderPictures):
        return

    def check(name: str) -> None:
        open_image(pictures.folder / name, draft=1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter lock
        for _ in pool.map(check, pictures.names):
            tick()


def load_features(path: str | Path, rows: int | None = None) -> npt.NDArray[Any]:
    """Map a ``.npy`` array [images, width] of floats into memory, checking its number of rows."""
    try:
        array: npt.NDArray[Any] = np.load(
            path, mmap_mode="c", allow_pickle=False
        )  # copy on write: torch wants it writable
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a .npy array of numbers ({error})") from None
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(f"{path}: features must be floats [images, width], not {array.dtype} {array.shape}")
    if rows is not None and len(array) != rows:
        raise InputError(f"{path}: {len(array):,} rows of features for {rows:,} labelled images")
    return array


def resized(image: Image.Image, size: int) -> Image.Image:
    """Squash to size × size: nothing that a label may speak of is cut off."""
    return image.resize((size, size), Image.Resampling.BILINEAR)


def augmented(image: Image.Image, size: int, key: tuple[int, ...]) -> Image.Image:
    """Crop at random (at least 70 % of each side), mirror half of the time, resize.

    The draw depends on ``key`` alone, so it is the same whatever the number of workers.
    """
    rng = np.random.default_rng(key)
    width, height = (side * rng.uniform(0.7, 1.0) for side in image.size)
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    box = (left, top, left + width, top + height)
    crop = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop
