"""The one decoder for all images: it returns the RGB pixels that a viewer shows.

Training, prediction, explanations, the review page, the report and the service all decode here, so what a
person sees is what the model sees. docs/features.md says what is read, and how.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from tertium.errors import InputError

PIXELS = 2  # to be raised when decoding or resizing changes, so that cached features are computed again
LARGEST = 2**29  # pixels of an image, some 23,000 × 23,000; more are refused
READABLE = "JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF, HEIC"
_WHOLE = 2**26  # pixels up to which an image keeps its size; a larger one is decoded smaller
_TILE = 2048  # pixels of the side of a part that is converted at once
_HEAVY = 2**28  # bytes from which on memory is worth giving back
# Bytes that images take while they are decoded, all together.
_ROOM = max(2**31, 2**28 * (os.cpu_count() or 1))

# Nothing else is opened, whatever a file is called: PostScript, for one, would start a program.
_STARTS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
}
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_OPENERS = {
    "JPEG": ("PIL.JpegImagePlugin", "jpeg_factory"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIC": ("pillow_heif", "HeifImageFile"),
}
_NEEDS = {"HEIC": "pip install 'tertium[heif]'", "AVIF": "pip install --upgrade pillow"}
# Bytes for each pixel that decoding takes at most beside the image itself, measured with Pillow 13.
_BESIDE = {"WEBP": 12, "AVIF": 8, "HEIF": 4, "TIFF": 4}
BRIGHT = 32  # an image of 0 to 255 has this value at least; one of 0 to 3, say, would be all but black
_ORIENTATION, _BITS, _PHOTOMETRIC, _SAMPLES = 0x0112, 258, 262, 339  # tags of EXIF and TIFF
_TURNS = {  # TIFF is turned by Pillow itself
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {_TURNS[number] for number in (5, 6, 7, 8)}

Size = tuple[int, int]  # width and height


# ---- files and bytes -------------------------------------------------------------------------------------


def open_image(path: Path, within: int | None = None) -> Image.Image:
    """Decode an image file to RGB, upright; what cannot be read is an `InputError` that names it.

    With ``within``, neither side is longer than that: for people to look at, or to check a file.
    """
    with reading(path) as file:
        return decoded(file, str(path), within)[0]


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode the content of an image file, as `open_image` does; ``name`` is what a message calls it."""
    return decoded(io.BytesIO(content), name, None)[0]


@contextmanager
def reading(path: Path) -> Iterator[io.BufferedReader]:
    """Open a regular file; anything else, such as a pipe that would never end, is an `InputError`."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
            raise InputError(f"{path}: {kind}, not an image file")
        with open(path, "rb", opener=_without_waiting) as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path}: no such image") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # should it have become a pipe meanwhile


def decoded(file: BinaryIO, name: str, within: int | None) -> tuple[Image.Image, Size]:
    """Decode an image file; also return its full size, upright: a large image is made smaller.

    ``name`` is what a message calls it. With ``within``, neither side is longer than that.
    """
    image = _opened(file, name)
    size, shape = image.size, f"{image.width:,} × {image.height:,} pixels"
    if math.prod(size) > LARGEST:
        raise InputError(f"{name}: too large: {shape}, at most {LARGEST:,}")
    try:
        _draft(image, within)
        with _room_for(image, math.prod(size)):
            try:
                found, turn = _rgb(image), _turn(image)
            finally:
                image.close()  # now: by itself it would stay in memory until cycles are collected
            if turn is not None:
                found = found.transpose(turn)
                size = size[::-1] if turn in _SIDEWAYS else size
            if within is not None:
                found.thumbnail((within, within))
            return found, size
    except MemoryError:
        raise InputError(f"{name}: too large for the memory that is left: {shape}") from None
    except Exception as error:  # Pillow raises anything at all for damaged files
        raise InputError(f"{name}: the image is damaged ({error})") from None


def _opened(file: BinaryIO, name: str) -> ImageFile.ImageFile:
    """Open an image by what it begins with; nothing is decoded yet."""
    head = file.read(128)
    if not head:
        raise InputError(f"{name}: is empty")
    kind = _kind(head)
    if kind is None:
        raise InputError(f"{name}: not an image that can be read ({READABLE})")
    opener = _opener(kind, name)
    file.seek(0)
    try:
        # Not by `Image.open`: its limit of pixels is one for the whole process, and too low for large photos.
        return opener(file)
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise InputError(f"{name}: too large: Pillow reads at most {most:,} pixels of {kind}") from None
    except Exception as error:
        raise InputError(f"{name}: not an image that can be read ({kind}: {error})") from None


def _kind(head: bytes) -> str | None:
    """Return which format a file has that begins like this.

    >>> _kind(b"RIFF....WEBPVP8 "), _kind(b"%!PS-Adobe-3.0 EPSF-3.0")
    ('WebP', None)
    """
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        end = int.from_bytes(head[:4], "big")
        brands = {head[place : place + 4] for place in range(8, min(end, len(head)), 4)}
        return "AVIF" if brands & {b"avif", b"avis"} else "HEIC" if brands & _HEIC else None
    return None


def _opener(kind: str, name: str) -> Callable[[BinaryIO], ImageFile.ImageFile]:
    place, what = _OPENERS[kind]
    try:
        module = import_module(place)
    except ImportError:
        module = None
    if module is None or not getattr(module, "SUPPORTED", True):
        needs = _NEEDS.get(kind, "a Pillow that was built with it")
        raise InputError(f"{name}: reading {kind} images needs: {needs}")
    found: Callable[[BinaryIO], ImageFile.ImageFile] = getattr(module, what)
    return found


# ---- memory ----------------------------------------------------------------------------------------------


class Gate:
    """Lets work pass whose weights add up to at most a limit; what weighs more than that passes alone."""

    def __init__(self, limit: int) -> None:
        self._limit, self._taken = limit, 0
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def hold(self, weight: int) -> Iterator[None]:
        """Wait for room, in turn, and take it while the block runs."""
        weight = min(weight, self._limit)
        with self._turn, self._changed:  # in turn, so that light work does not keep heavy work out for ever
            self._changed.wait_for(lambda: self._taken + weight <= self._limit)
            self._taken += weight
        try:
            yield
        finally:
            with self._changed:
                self._taken -= weight
                self._changed.notify()


_gate = Gate(_ROOM)


def _renew_gate() -> None:
    global _gate  # noqa: PLW0603
    _gate = Gate(_ROOM)


if hasattr(os, "register_at_fork"):
    # A thread that does not live on in the child may have held the gate: there it would stay shut.
    os.register_at_fork(after_in_child=_renew_gate)


def _draft(image: ImageFile.ImageFile, within: int | None) -> None:
    """Decode a JPEG at a half, a quarter or an eighth if it is too large, or if a small image is wanted."""
    if not isinstance(image, JpegImageFile):
        return  # no other format can do that
    for part in (8, 4, 2):
        width, height = image.width // part, image.height // part
        too_large = image.width * image.height > _WHOLE * (part // 2) ** 2  # even at twice this size
        # What is shown is made from at least twice as many pixels.
        enough = within is not None and max(width, height) >= 2 * within
        if min(width, height) > 0 and (too_large or enough):
            image.draft(None, (width, height))
            return


@contextmanager
def _room_for(image: ImageFile.ImageFile, pixels: int) -> Iterator[None]:
    """Wait until there is memory to decode an image, and give it back to the system afterwards."""
    weight = _weight(image, pixels)
    with _gate.hold(weight), _permitted(image):
        try:
            yield
        finally:
            if weight > _HEAVY:
                _trim()(0)


@cache
def _trim() -> Callable[[int], int]:
    """Return glibc's `malloc_trim`: by itself it keeps freed blocks of up to 32 MB, for each thread."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return lambda _: 0
    return found


def _weight(image: ImageFile.ImageFile, pixels: int) -> int:
    """Return how many bytes, at most, it takes to decode an image that has so many pixels in its file."""
    if _needs_permission(image):
        return _ROOM  # it passes alone
    here = image.width * image.height  # fewer than in the file, if it is decoded smaller
    stored = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;16") else 4
    beside = _BESIDE.get(image.format or "", 0) * pixels
    if isinstance(image, JpegImageFile) and (pixels > _WHOLE or "progressive" in image.info):
        beside = 2 * len(image.getbands()) * pixels  # coefficients, which are kept until the last scan
    result = 4 * here // _shrink(image.size) ** 2
    return max(here * stored, result) + result + beside  # of the result there may be another one, turned


def _needs_permission(image: ImageFile.ImageFile) -> bool:
    """Return whether Pillow may check the number of pixels once more, while it decodes."""
    return image.format in ("GIF", "TIFF") and image.width * image.height > _WHOLE


@contextmanager
def _permitted(image: ImageFile.ImageFile) -> Iterator[None]:
    """Lift Pillow's limit of pixels for an image that needs it.

    The limit is one for the whole process. No other image is decoded meanwhile, so no two threads lift it.
    """
    if not _needs_permission(image):
        yield
        return
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


# ---- pixels ----------------------------------------------------------------------------------------------


def plain(image: Image.Image) -> Image.Image:
    """Return an image of any mode in RGB as a viewer shows it: upright, over white, nothing but pixels.

    One of more than 67 million pixels is made smaller, by a whole number.
    """
    found, turn = _rgb(image), _turn(image)
    return found if turn is None else found.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB, as it lies in the file."""
    image.load()
    shrink = _shrink(image.size)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        found = _by_tiles(image, shrink, _grey(image))
    elif shrink > 1:
        found = _by_tiles(image, shrink, _coloured)
    else:
        found = _coloured(image)
    found.info = {}  # what else the file said, such as where it was taken, and how to turn it
    return found


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return what makes an image upright, as EXIF says how the camera was held."""
    try:
        found = image.getexif().get(_ORIENTATION)
    except Exception:  # damaged notes do no harm to the pixels
        return None
    return _TURNS.get(found) if isinstance(found, int) else None


def _shrink(size: Size) -> int:
    """Return by how much both sides are divided: by 1 up to the size that an image may keep.

    >>> _shrink((8000, 8000)), _shrink((20_000, 20_000))
    (1, 3)
    """
    return math.ceil(math.sqrt(size[0] * size[1] / _WHOLE)) or 1


def _by_tiles(image: Image.Image, shrink: int, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Convert an image part by part, so that little more than the result is needed beside it."""
    found = Image.new("RGB", (math.ceil(image.width / shrink), math.ceil(image.height / shrink)))
    for left, top, tile in _tiles(image, math.ceil(_TILE / shrink) * shrink):
        part = convert(tile)
        found.paste(part.reduce(shrink) if shrink > 1 else part, (left // shrink, top // shrink))
    return found


def _tiles(image: Image.Image, side: int = _TILE) -> Iterator[tuple[int, int, Image.Image]]:
    for top in range(0, image.height, side):
        for left in range(0, image.width, side):
            box = (left, top, min(left + side, image.width), min(top + side, image.height))
            yield left, top, image.crop(box)


def _coloured(image: Image.Image) -> Image.Image:
    """Convert an image of 8 bits or fewer a channel; what is transparent lies over white."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    found = Image.new("RGB", image.size, "white")
    found.paste(clear, mask=clear.getchannel("A"))
    return found


def _grey(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return what converts tiles of an image with one channel of more than 8 bits, or of floats."""
    tags: Any = getattr(image, "tag_v2", {})  # of TIFF
    inverted = tags.get(_PHOTOMETRIC) == 0  # 0 is white; Pillow heeds it up to 8 bits only
    unsigned = image.mode == "I" and _first(tags.get(_SAMPLES, 1)) == 1 and _first(tags.get(_BITS)) == 32
    clear = image.info.get("transparency")  # of PNG: a value that is not shown

    def values(tile: Image.Image) -> npt.NDArray[Any]:
        found = np.asarray(tile)
        return found.view(np.uint32) if unsigned else found

    def convert(tile: Image.Image) -> Image.Image:
        found = values(tile)
        # In float64: differences of large whole numbers are exact.
        share = np.nan_to_num(
            (found.astype(np.float64) - low) / ((high - low) or 1.0), posinf=1.0, neginf=0.0
        )
        grey = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
        if inverted:
            grey = 255 - grey
        if isinstance(clear, int):
            grey[found == clear] = 255
        return Image.fromarray(grey).convert("RGB")

    if image.mode.startswith("I;16"):
        low, high = 0.0, 2.0 ** (_first(tags.get(_BITS)) or 16) - 1
    else:
        low, high = _range(values(tile) for _, _, tile in _tiles(image))
    return convert


def _range(parts: Iterator[npt.NDArray[Any]]) -> tuple[float, float]:
    """Return which values are black and white where the format does not say it.

    >>> _range(iter([np.array([0.2, np.nan, 0.7])])), _range(iter([np.array([0, 200])]))
    ((0.0, 1.0), (0.0, 255.0))
    >>> _range(iter([np.array([-10, 30]), np.array([1000])]))
    (-10.0, 1000.0)
    """
    low, high = math.inf, -math.inf
    for part in parts:
        finite = part[np.isfinite(part)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high or (low >= 0 and high <= 1):
        return 0.0, 1.0
    if low >= 0 and BRIGHT <= high <= 255:
        return 0.0, 255.0
    return low, high


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value
