"""Images and feature files as a user has them: found, checked, decoded. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tertium.errors import InputError, some
from tertium.files import checksum, read_json, write_json
from tertium.progress import Progress

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 4  # items for each thread that may wait
_FORMAT = "tertium_features"  # the key that tells our file of row names from a user's own


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

    def fingerprint(self, row: int) -> str:
        """The name and the size of the file."""
        return f"{self.names[row]} {(self.folder / self.names[row]).stat().st_size}"

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

    def fingerprint(self, row: int) -> str:
        """A checksum of the pixels."""
        return hashlib.sha256(np.ascontiguousarray(self.images[row]).data).hexdigest()

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
    found = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        found += [name if inside == "." else f"{inside}/{name}" for name in files]
    return sorted(name for name in found if name.lower().endswith(IMAGE_SUFFIXES))


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


# ---- feature files ---------------------------------------------------------------------------------------


def load_features(path: str | Path, images: int | Sequence[str] | None = None) -> npt.NDArray[Any]:
    """Map a ``.npy`` array [images, width] of floats into memory.

    ``images`` are their names, or how many there are. Where a file beside the array names its rows, as
    `tertium features` writes it, rows are found by name; otherwise they must be as many, in the same order.
    """
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
    if images is None:
        return array
    if not isinstance(images, int):
        names = _row_names(path, array)
        if names is not None:
            return _by_name(path, array, names, images)
        images = len(images)
    if len(array) != images:
        raise InputError(f"{path}: {len(array):,} rows of features for {images:,} labelled images")
    return array


def feature_names(path: str | Path) -> list[str] | None:
    """Return the image of each row of a feature file, if a file beside it says so."""
    return _row_names(path, load_features(path))


def write_feature_names(
    path: str | Path, array: npt.NDArray[Any], names: Sequence[str], about: Mapping[str, Any]
) -> None:
    """Write beside a feature file which image each row is of, and what the array was made with."""
    rows = {"array": fingerprint(array), "images": list(names)}
    write_json(_beside(path), {_FORMAT: 1, "model": dict(about), **rows})


def fingerprint(array: npt.NDArray[Any]) -> str:
    """Return a checksum of up to a thousand rows, evenly spread: enough to tell another array."""
    rows = spread(len(array))
    found = hashlib.sha256(f"{len(array)}{array.dtype} {array.shape}".encode())
    found.update(np.ascontiguousarray(array[rows]).data)
    return found.hexdigest()


def spread(count: int) -> npt.NDArray[np.int64]:
    """Return up to a thousand of so many rows, evenly spread."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, 1000)).astype(np.int64))


def _beside(path: str | Path) -> Path:
    return Path(f"{path}.json")


def _row_names(path: str | Path, array: npt.NDArray[Any]) -> list[str] | None:
    beside = _beside(path)
    if not beside.is_file():
        return None
    about = read_json(beside)
    if not isinstance(about, dict) or _FORMAT not in about:
        return None  # a file of the user's own
    names = about.get("images")
    if about.get("array") != fingerprint(array) or not isinstance(names, list) or len(names) != len(array):
        raise InputError(
            f"{beside}: names the rows of another array than {path}; "
            "run tertium features again, or remove it if rows are in the order of the labels"
        )
    return names


def _by_name(
    path: str | Path, array: npt.NDArray[Any], names: list[str], images: Sequence[str]
) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pc.index_in(pa.array(images, pa.string()), value_set=pa.array(names, pa.string()))
    if rows.null_count:
        missing = [name for name, row in zip(images, rows.to_pylist(), strict=True) if row is None]
        raise InputError(
            f"{path}: {len(missing):,} of {len(images):,} images have no features in it: {some(missing)}"
        )
    found: npt.NDArray[np.int32] = rows.to_numpy()
    if len(found) == len(array) and (found == np.arange(len(array))).all():
        return array  # still mapped
    chosen: npt.NDArray[Any] = np.asarray(array)[found]
    return chosen


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
