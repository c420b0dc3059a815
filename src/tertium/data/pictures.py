"""Images as a user has them: found, checked, decoded. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tertium.errors import InputError, some
from tertium.files import checksum
from tertium.progress import Progress

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 4  # items for each thread that may wait


class Pictures(Protocol):
    """Images in the order of the label rows."""

    def __len__(self) -> int: ...
    def open(self, row: int) -> Image.Image:
        """Return one image in RGB, decoded."""
        ...

    def select(self, rows: npt.NDArray[np.int64]) -> Pictures:
        """Return these rows only."""
        ...

    def checksum(self, row: int) -> bytes:
        """Return the SHA-256 of all that decoding sees: an edited image has another."""
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

    def checksum(self, row: int) -> bytes:
        """Of the bytes of the file."""
        path = self.folder / self.names[row]
        try:
            return bytes.fromhex(checksum(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None


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

    def checksum(self, row: int) -> bytes:
        """Of the shape and the pixels."""
        found = hashlib.sha256(str(self.images.shape[1:]).encode())
        found.update(np.ascontiguousarray(self.images[row]).data)
        return found.digest()


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
    return [name for name in list_files(folder) if name.lower().endswith(IMAGE_SUFFIXES)]


def list_files(folder: Path) -> list[str]:
    """Return all files below a folder, as sorted paths relative to it."""
    found = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        found += [name if inside == "." else f"{inside}/{name}" for name in files]
    return sorted(found)


def folder_names(folder: Path) -> list[str]:
    """Return the image files below a folder that must be there and have some."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    found = list_images(folder)
    if not found:
        raise InputError(f"{folder}: there are no images in it")
    return found


def check_pictures(pictures: Pictures, tick: Callable[[], None]) -> None:
    """Decode every file once, small, so that a damaged one is named before training starts."""
    if isinstance(pictures, FolderPictures):
        for _, fault in _faults(pictures):
            if fault is not None:
                raise fault
            tick()


def damaged(folder: str | Path, names: Sequence[str], progress: Progress) -> dict[str, str]:
    """Decode every file once; return a sentence on each that is there but cannot be read, by its name."""
    there = set(folder_names(Path(folder)))
    pictures = FolderPictures(Path(folder), [name for name in names if name in there])
    progress.start("checking images", len(pictures), "images")
    found = {}
    for name, fault in _faults(pictures):
        if fault is not None:
            found[name] = str(fault)
        progress.advance()
    if len(found) == len(names):
        raise InputError(f"{folder}: none of the images can be read ({found[names[0]]})")
    return found


def _faults(pictures: FolderPictures) -> Iterator[tuple[str, InputError | None]]:
    """Yield each name with what is wrong with its file."""

    def check(name: str) -> InputError | None:
        try:
            open_image(pictures.folder / name, draft=1)
        except InputError as error:
            return error
        return None

    return ahead(check, pictures.names, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock


def ahead(
    call: Callable[[Item], Result], items: Iterable[Item], threads: int, most: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with what the call makes of it, in order; threads are a few items ahead and no more.

    At most ``most`` items wait, by default four for each thread.

    >>> list(ahead(str.upper, ["a", "b"], 2))
    [('a', 'A'), ('b', 'B')]
    """
    most = _AHEAD * threads if most is None else most
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append((item, pool.submit(call, item)))
            if len(waiting) > most:
                first, made = waiting.popleft()
                yield first, made.result()
        for first, made in waiting:
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)


# ---- sizes -----------------------------------------------------------------------------------------------


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
