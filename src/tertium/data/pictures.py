"""The user's images: found, checked, opened. Nothing here needs torch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from tertium.data.decoding import Size, decoded
from tertium.data.sources.opening import Place, find, names_in, numbers_of, open_source
from tertium.data.sources.source import ImageSource
from tertium.data.views import View, resized
from tertium.errors import InputError
from tertium.progress import Progress
from tertium.threads import cores

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 4  # items for each thread that may wait


class Pictures(Protocol):
    """Images in the order of the label rows."""

    def __len__(self) -> int: ...
    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Return one image in RGB, decoded; with ``within``, neither of its sides is longer than that."""
        ...

    def measured(self, row: int) -> tuple[Image.Image, Size]:
        """Return one image, and its full size: a large one is made smaller."""
        ...

    def select(self, rows: npt.NDArray[np.int64]) -> Pictures:
        """Return these rows only."""
        ...

    def checksum(self, row: int) -> bytes:
        """Return the SHA-256 of all that decoding sees: an edited image has another."""
        ...

    def stored(self) -> npt.NDArray[np.int64]:
        """Return all rows, in the order in which reading them is quickest."""
        ...


@dataclass(frozen=True)
class SourcePictures:
    """Images of a source, in the order of some names."""

    source: ImageSource
    names: Sequence[str]  # as the labels spell them
    numbers: npt.NDArray[np.int64]  # in the source

    @classmethod
    def of(cls, source: ImageSource, names: Sequence[str]) -> SourcePictures:
        """Find the images that the labels name; all must be there."""
        return cls(source, names, numbers_of(source, names))

    def __len__(self) -> int:
        return len(self.numbers)

    def open(self, row: int, within: int | None = None) -> Image.Image:
        """Decode one image; a damaged one is an `InputError` that names it."""
        return self._decoded(row, within)[0]

    def measured(self, row: int) -> tuple[Image.Image, Size]:
        """Decode one image."""
        return self._decoded(row, None)

    def _decoded(self, row: int, within: int | None) -> tuple[Image.Image, Size]:
        number = int(self.numbers[row])
        with self.source.open(number) as file:
            return decoded(file, self.source.where(number), within)

    def select(self, rows: npt.NDArray[np.int64]) -> SourcePictures:
        """Return these rows only."""
        return SourcePictures(self.source, [self.names[row] for row in rows], self.numbers[rows])

    def checksum(self, row: int) -> bytes:
        """Of the bytes of the image file."""
        with self.source.open(int(self.numbers[row])) as content:
            return hashlib.file_digest(content, "sha256").digest()  # type: ignore[arg-type]

    def stored(self) -> npt.NDArray[np.int64]:
        """Return the rows as they are stored."""
        return np.argsort(self.numbers, kind="stable")


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

    def measured(self, row: int) -> tuple[Image.Image, Size]:
        """Return one image."""
        image = self.open(row)
        return image, image.size

    def select(self, rows: npt.NDArray[np.int64]) -> ArrayPictures:
        """Return these rows only."""
        return ArrayPictures(self.images[rows])

    def checksum(self, row: int) -> bytes:
        """Of the shape and the pixels."""
        found = hashlib.sha256(str(self.images.shape[1:]).encode())
        found.update(np.ascontiguousarray(self.images[row]).data)
        return found.digest()

    def stored(self) -> npt.NDArray[np.int64]:
        """Return the rows as they are."""
        return np.arange(len(self.images))


def check_pictures(pictures: Pictures, tick: Callable[[], None]) -> None:
    """Decode every image file once, small, so that a damaged one is named before training starts."""
    if isinstance(pictures, SourcePictures):
        for _, fault in _faults(pictures):
            if fault is not None:
                raise fault
            tick()


def damaged(place: Place, names: Sequence[str], progress: Progress) -> dict[str, str]:
    """Decode every image once; return a sentence on each that is there but cannot be read, by its name."""
    source = open_source(place)
    names_in(source)  # there must be some
    numbers = find(source, names)
    there = np.flatnonzero(numbers >= 0)
    pictures = SourcePictures(source, [names[row] for row in there.tolist()], numbers[there])
    progress.start("checking images", len(pictures), "images")
    found = {}
    for row, fault in _faults(pictures):
        if fault is not None:
            found[pictures.names[row]] = str(fault)
        progress.advance()
    if len(found) == len(names):
        raise InputError(f"{source.place}: none of the images can be read ({found[names[0]]})")
    return {name: found[name] for name in names if name in found}


def faults_in(pictures: Pictures) -> dict[int, str]:
    """Decode every image once; return by their rows what is wrong with those that cannot be read."""
    return {row: str(fault) for row, fault in _faults(pictures) if fault is not None}


def _faults(pictures: Pictures) -> Iterator[tuple[int, InputError | None]]:
    """Yield each row with what is wrong with its image."""

    def check(row: int) -> InputError | None:
        try:
            pictures.open(row, within=1)
        except InputError as error:
            return error
        return None

    # Pillow decodes outside the interpreter lock.
    return ahead(check, pictures.stored().tolist(), cores())


def pixel_batches(pictures: Pictures, view: View, size: int, most: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the pixels [B, H, W, 3] of all images in batches; threads decode ``most`` ahead and no more."""

    def pixels(row: int) -> npt.NDArray[np.uint8]:
        return np.asarray(resized(pictures.open(row), view))

    # Pillow decodes outside the interpreter lock.
    decoded = ahead(pixels, range(len(pictures)), cores(), most)
    while batch := [image for _, image in islice(decoded, size)]:
        yield np.stack(batch)


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
