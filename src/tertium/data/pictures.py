"""The user's images: found, checked, opened. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from tertium.data.decoding import open_image, reading
from tertium.errors import InputError, some
from tertium.progress import Progress

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
Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 4  # items for each thread that may wait


class Pictures(Protocol):
    """Images in the order of the label rows."""

    def __len__(self) -> int: ...
    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Return one image in RGB, decoded; with ``within``, neither of its sides is longer than that."""
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

    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Decode one file; a damaged one is an `InputError` that names it."""
        return open_image(self.folder / self.names[row], within)

    def select(self, rows: npt.NDArray[np.int64]) -> FolderPictures:
        """Return these rows only."""
        return FolderPictures(self.folder, [self.names[row] for row in rows])

    def checksum(self, row: int) -> bytes:
        """Of the bytes of the file."""
        with reading(self.folder / self.names[row]) as content:
            return hashlib.file_digest(content, "sha256").digest()


@dataclass(frozen=True)
class ArrayPictures:
    """Images that are already in memory, uint8 [N, H, W, 3]."""

    images: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.images)

    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Return one image."""
        image = Image.fromarray(self.images[row])
        if within is not None:
            image.thumbnail((within, within))
        return image

    def select(self, rows: npt.NDArray[np.int64]) -> ArrayPictures:
        """Return these rows only."""
        return ArrayPictures(self.images[rows])

    def checksum(self, row: int) -> bytes:
        """Of the shape and the pixels."""
        found = hashlib.sha256(str(self.images.shape[1:]).encode())
        found.update(np.ascontiguousarray(self.images[row]).data)
        return found.digest()


def folder_pictures(folder: str | Path, names: Sequence[str]) -> FolderPictures:
    """Return the images that the labels name, after checking that every file is there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    there = set(list_images(folder))
    files = [name if name in there else _inside(folder, name) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if file not in there]
    if missing:
        _explain_unread(folder, missing)
        raise InputError(
            f"{folder}: {len(missing):,} of {len(names):,} labelled images are missing: {some(missing)}"
        )
    if files != list(names):
        _check_twins(folder, names, files)
    return FolderPictures(folder, names)


def _inside(folder: Path, name: str) -> str:
    """Return a name as `list_images` has it, without ``./`` and such; it must not lead out of the folder.

    >>> _inside(Path("photos"), "./a//b.jpg")
    'a/b.jpg'
    """
    if posixpath.isabs(name) or ".." in name.split("/"):
        raise InputError(f'{folder}: the image "{name}" is not named by a path inside this folder')
    return posixpath.normpath(name)


def _explain_unread(folder: Path, missing: Sequence[str]) -> None:
    """Say so if the first file that is missing is there, but not of a kind that is read."""
    if not missing[0].lower().endswith(IMAGE_SUFFIXES) and (folder / missing[0]).is_file():
        raise InputError(
            f"{folder / missing[0]}: not an image by its name; names end with {', '.join(IMAGE_SUFFIXES)}"
        )


def _check_twins(folder: Path, names: Sequence[str], files: Sequence[str]) -> None:
    """Refuse two names of one file, such as a.jpg and ./a.jpg: they would be two images."""
    first: dict[str, str] = {}
    for name, file in zip(names, files, strict=True):
        if first.setdefault(file, name) != name:
            raise InputError(f'{folder}: "{first[file]}" and "{name}" are the same image; label it once')


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
    try:
        "".join(found).encode()
    except UnicodeEncodeError as error:  # Python's way to name bytes that are no text
        strange = next(name for name in found if error.object[error.start] in name)
        raise InputError(f"{folder}: the file name {strange!r} is not UTF-8; rename it") from None
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
    folder = Path(folder)
    there = set(folder_names(folder))
    pictures = FolderPictures(folder, [name for name in names if _inside(folder, name) in there])
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
            open_image(pictures.folder / name, within=1)
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
    """Squash to size × size, so that nothing that a label may refer to is cut off."""
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
