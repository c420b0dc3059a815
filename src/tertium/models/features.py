"""Frozen-backbone features of images, each computed once and cached by the checksum of the image."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tertium.data.decoding import PIXELS
from tertium.data.feature_files import is_written_by_us, names_file, write_feature_names
from tertium.data.inputs import BATCH
from tertium.data.pictures import Pictures, SourcePictures, ahead
from tertium.data.views import View, resized
from tertium.errors import InputError
from tertium.files import keep_files, make_folder, replacing, reserve, write_json
from tertium.models.backbones import Backbone
from tertium.models.onnx_files import convert
from tertium.models.onnx_session import session
from tertium.progress import Progress
from tertium.threads import cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Rows = npt.NDArray[np.float16]  # [N, D]
Keys = npt.NDArray[np.bytes_]  # [N] checksums of images
Pixels = npt.NDArray[np.uint8]  # [3, H, W]
_KEY = np.dtype("S32")  # a SHA-256
_ENTRY = np.dtype([("key", _KEY), ("checksum", "<u4")])  # of one row: which image, and what was written
_BATCH = 64  # images that torch gets at once
_FLUSH = 1.0  # seconds of work that a killed process may lose
_COPIED = 4096  # rows that are copied at once
_WINDOW = 4 * BATCH  # images whose features are in memory while they are used one after the other


def extract(
    backbone: Backbone,
    pictures: Pictures,
    *,
    device: torch.device,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Rows:
    """Return the pooled features [N, D] of images."""
    return Extractor(backbone, device=device, workers=workers, progress=progress)(pictures)


def weights_of(backbone: Backbone) -> str:
    """Return a checksum of all numbers of a network."""
    found = hashlib.sha256()
    # Also what is not saved with the weights: how pixels are scaled.
    for name, value in chain(backbone.named_parameters(), backbone.named_buffers()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


class Extractor:
    """Turns images into features: with ONNX Runtime on the CPU if possible, otherwise with torch.

    On the CPU each thread takes one image at a time. This is as fast as batches, and makes the features of an
    image bit for bit the same whatever else is computed.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        device: torch.device,
        workers: int | None = None,
        progress: Progress | None = None,
        cached: bool = True,
    ) -> None:
        self._cached = cached
        self._backbone, self._device = backbone.to(device).eval(), device
        self._threads = cores() if workers is None else workers + 1
        self._progress = progress or Progress()
        self._told = False

    def __call__(self, pictures: Pictures) -> Rows:
        """Return the features [N, D]; a damaged image is an `InputError` that names it."""
        with self._filled(pictures) as (store, keys):
            return store.take(keys)

    def blocks(self, pictures: Pictures) -> Iterator[Rows]:
        """Yield the features [B, D] of a few images at a time, so that memory does not grow with them."""
        with (
            _folder(self.about, None, self._progress, self._cached) as folder,
            closing(Store(folder, self._backbone.width)) as store,
        ):
            for start in range(0, len(pictures), _WINDOW):
                rows = np.arange(start, min(start + _WINDOW, len(pictures)))
                keys = self._fill(pictures.select(rows), store, None)
                store.settle()
                yield store.take(keys)

    def readable(self, pictures: Pictures) -> tuple[Rows, dict[int, str]]:
        """Return the features of all images that can be read, and by their rows what is wrong with others."""
        broken: dict[int, str] = {}
        with self._filled(pictures, broken) as (store, keys):
            return store.take(keys[np.setdiff1d(np.arange(len(keys)), list(broken))]), broken

    def save(self, pictures: SourcePictures, out: str | Path) -> list[str]:
        """Write the features as a ``.npy`` file, with a file beside it that names the rows.

        Damaged images have no row: the sentences that name them are returned, and written beside it too.
        """
        out = Path(out)
        check_path(out, overwrite=True)
        broken: dict[int, str] = {}
        with self._filled(pictures, broken, out.with_name(f"{out.name}.partial")) as (store, keys):
            rows = np.setdiff1d(np.arange(len(keys)), list(broken))
            if not rows.size:
                raise InputError(f"{pictures.source.place}: none of the images can be read ({broken[0]})")
            parts = (
                ([pictures.names[row] for row in part], store.take(keys[part]))
                for part in (rows[at : at + _COPIED] for at in range(0, len(rows), _COPIED))
            )
            write_features(out, (len(rows), self._backbone.width), parts, self.about)
        sentences = [broken[row] for row in sorted(broken)]
        list_broken(out, sentences)
        return sentences

    def rate(self, seconds: float = 1.0) -> float:
        """Measure how many images the network takes in a second with all threads, decoding apart."""
        size = self._backbone.view.size
        pixels = np.zeros((3, size, size), dtype=np.uint8)
        images = self._computed(repeat((b"", pixels)))
        for _ in range(_BATCH):  # building it, and the first images, take longer
            next(images)
        began = time.perf_counter()
        count = 0
        while time.perf_counter() - began < seconds:
            next(images)
            count += 1
        return count / (time.perf_counter() - began)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the features of an image depend on, besides the image."""
        view = self._backbone.view
        other = {"view": view._asdict()} if view != View(view.size) else {}
        return {
            "backbone": self._backbone.name,
            "weights": weights_of(self._backbone),
            "image_size": view.size,
            "pixels": PIXELS,
            "device": self._device.type,
            **other,
        }

    @contextmanager
    def _filled(
        self, pictures: Pictures, broken: dict[int, str] | None = None, spare: Path | None = None
    ) -> Iterator[tuple[Store, Keys]]:
        """Give a store that has the features of all images, and the key of each.

        Damaged images go to ``broken``, where it is given. Without a cache, the store is ``spare`` until it
        has served its purpose, or a temporary folder.
        """
        with _folder(self.about, spare, self._progress, self._cached) as folder:
            with closing(Store(folder, self._backbone.width)) as store:
                keys = self._fill(pictures, store, broken)
            store.load()
            self._tell(folder)
            yield store, keys

    def _tell(self, folder: Path) -> None:
        """Say once how large the cache is, if that is where features are kept."""
        base = cache_folder()
        if base is not None and folder.is_relative_to(base) and not self._told:
            size = sum(map(_size, base.rglob("*")))
            self._progress.note(f"features are kept in {base} ({size / 2**20:,.1f} MB)")
        self._told = True

    def _fill(self, pictures: Pictures, store: Store, broken: dict[int, str] | None) -> Keys:
        """Compute what the store has not; return the keys of the images."""
        keys = np.zeros(len(pictures), dtype=_KEY)

        def look(row: int) -> tuple[bytes, Pixels | None] | InputError:
            try:
                key = pictures.checksum(row)
                return key, None if key in store else _planes(pictures, row, self._backbone.view)
            except InputError as error:
                return error

        def missing() -> Iterator[tuple[bytes, Pixels]]:
            for row, found in ahead(look, pictures.stored().tolist(), self._threads):
                if isinstance(found, InputError):
                    if broken is None:
                        raise found
                    broken[row] = str(found)
                else:
                    keys[row], pixels = found
                    if pixels is not None:
                        yield found[0], pixels
                        continue
                self._progress.advance()

        self._progress.start("extracting features", len(pictures), "images")
        images = missing()
        first = next(images, None)
        if first is not None:  # converting the network takes a second: only where there is work for it
            for key, row in self._computed(chain([first], images)):
                store.add(key, row)
                self._progress.advance()
        if store.damaged:
            self._progress.note(
                f"features of {len(store.damaged):,} images were damaged in the cache and computed again"
            )
        return keys

    def _computed(self, images: Iterator[tuple[bytes, Pixels]]) -> Iterator[tuple[bytes, npt.NDArray[Any]]]:
        running = self._runtime
        if running is not None:

            def run(image: tuple[bytes, Pixels]) -> npt.NDArray[Any]:
                found: npt.NDArray[Any] = running.run(None, {"images": image[1][None]})[0][0]
                return found

            for (key, _), row in ahead(run, images, self._threads):
                yield key, row
            return
        while batch := list(islice(images, _BATCH)):
            pixels = torch.from_numpy(np.stack([image for _, image in batch])).to(self._device)
            with torch.inference_mode():
                rows = self._backbone(pixels).float().cpu().numpy()
            yield from zip((key for key, _ in batch), rows, strict=True)

    @cached_property
    def _runtime(self) -> InferenceSession | None:
        """ONNX Runtime with the network in it, or none if torch is to be used."""
        if self._device.type != "cpu":
            return None
        if find_spec("onnx") is None or find_spec("onnxruntime") is None:
            self._progress.note(
                "features come from torch; ONNX Runtime is faster: pip install 'tertium[onnx]'"
            )
            return None
        size = self._backbone.view.size
        example = torch.zeros((2, 3, size, size), dtype=torch.uint8)
        with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
            path = Path(folder) / "backbone.onnx"
            try:
                convert(self._backbone, example, path, inputs="images", outputs="features", metadata={})
                return session(path, 1)  # one thread for each image: no image waits for another
            except InputError as error:
                self._progress.note(f"features come from torch, not from ONNX Runtime: {error}")
                return None


def _planes(pictures: Pictures, row: int, view: View) -> Pixels:
    pixels = np.asarray(resized(pictures.open(row), view))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # a temporary file of another process, gone meanwhile
        return 0


def check_path(out: Path, *, overwrite: bool) -> None:
    """Raise `InputError` if features cannot be written here; an earlier file of ours is continued."""
    if out.suffix != ".npy":
        raise InputError(f"{out}: features go to a file that ends with .npy")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist")
    if not is_written_by_us(out):
        keep_files([out, names_file(out), _broken_file(out)], overwrite=overwrite)


def write_features(
    out: Path, shape: tuple[int, int], parts: Iterable[tuple[list[str], Rows]], about: dict[str, Any]
) -> None:
    """Write features of this shape, which come with the names of their images, part by part."""
    names: list[str] = []
    with replacing(out) as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=shape)
        reserve(temporary)
        for images, rows in parts:
            array[len(names) : len(names) + len(rows)] = rows
            names += images
        array.flush()
        # First the names: of another array they are refused, but an array without names would be
        # taken in the order of the labels.
        write_feature_names(out, array, names, about)


def _broken_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.broken.txt")


def list_broken(out: Path, broken: list[str]) -> None:
    """Write beside a feature file what is wrong with images that have no row in it."""
    path = _broken_file(out)
    if not broken:
        path.unlink(missing_ok=True)  # of an earlier time
        return
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{sentence}\n" for sentence in broken), encoding="utf-8")


# ---- where they are kept ---------------------------------------------------------------------------------


class Store:
    """Rows of features by the checksum of the image, in a folder that several processes may add to.

    Each process appends to two files of its own: rows and, once these are on disk, an index with the key and
    the checksum of each row. So half-written rows are never read, nothing waits for a lock, and what is
    written never changes. A row that has changed all the same counts as missing.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width
        self._own: Path | None = None  # the index that this process adds to
        self._waiting: list[tuple[bytes, npt.NDArray[Any]]] = []
        self._flushed = time.monotonic()
        self.damaged: set[bytes] = set()  # keys that were asked for, whose rows are not what was written
        self.load()

    def load(self) -> None:
        """Look what there is by now."""
        entries, self._parts, self._added = [np.empty(0, dtype=_ENTRY)], [], False
        for path in sorted(self._folder.glob("*.index")):
            rows = path.with_suffix(".rows")
            whole = rows.stat().st_size // (2 * self._width) if rows.is_file() else 0
            if not whole or not path.is_file():
                continue
            found = np.fromfile(path, dtype=_ENTRY)[:whole]
            if len(found):
                entries.append(found)
                self._parts.append(np.memmap(rows, np.float16, "r", shape=(len(found), self._width)))
        everything = np.concatenate(entries)
        self._starts = np.cumsum([0, *map(len, self._parts)])[:-1]
        self._order = np.argsort(everything["key"], kind="stable")
        self._keys, self._checksums = everything["key"][self._order], everything["checksum"][self._order]

    def __contains__(self, key: bytes) -> bool:
        return self._find(key) is not None

    def take(self, keys: Keys) -> Rows:
        """Return the rows [N, D] of keys that are all there."""
        entries = np.searchsorted(self._keys, keys)
        places = self._order[entries]
        found = np.empty((len(keys), self._width), dtype=np.float16)
        for start, part in zip(self._starts, self._parts, strict=True):
            here = np.flatnonzero((places >= start) & (places < start + len(part)))
            found[here] = part[places[here] - start]
        sums = self._checksums[entries].tolist()
        for number, (key, row, wanted) in enumerate(zip(keys, found, sums, strict=True)):
            if _checksum(key, row) != wanted:
                found[number] = self._intact(key)
        return found

    def _intact(self, key: bytes) -> Rows:
        row = self._find(key)
        if row is None:
            raise InputError(f"{self._folder}: the features kept there changed while they were read")
        return row

    def _find(self, key: bytes) -> Rows | None:
        """Return the row of a key; where several processes have added it, the first that is undamaged."""
        first = entry = int(np.searchsorted(self._keys, np.array(key, dtype=_KEY)))
        while entry < len(self._keys) and self._keys[entry] == key.rstrip(b"\0"):
            place = self._order[entry]
            part = int(np.searchsorted(self._starts, place, "right")) - 1
            row: Rows = self._parts[part][place - self._starts[part]]
            if _checksum(key, row) == self._checksums[entry]:
                return row
            entry += 1
        if entry > first:
            self.damaged.add(key)
        return None

    def add(self, key: bytes, row: npt.NDArray[Any]) -> None:
        """Keep a row."""
        self._waiting.append((key, row))
        self._added = True
        if time.monotonic() - self._flushed > _FLUSH:
            self._flush()

    def close(self) -> None:
        """Keep all rows that were added."""
        self._flush()

    def settle(self) -> None:
        """Keep all rows that were added, and look for them if there are any: now `take` finds them."""
        self._flush()
        if self._added:
            self.load()

    def _flush(self) -> None:
        # What fails here is not tried again: rows after a torn one would not fit their keys.
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        rows = np.stack([row for _, row in waiting]).astype(np.float16)
        sums = [(key, _checksum(key, row)) for (key, _), row in zip(waiting, rows, strict=True)]
        try:
            if self._own is None:
                handle, name = tempfile.mkstemp(dir=self._folder, suffix=".index")
                os.close(handle)
                self._own = Path(name)
            _append(self._own.with_suffix(".rows"), rows.tobytes())
            _append(self._own, np.array(sums, dtype=_ENTRY).tobytes())
        except OSError as error:
            raise InputError(
                f"{self._folder}: features cannot be kept ({error.strerror}); "
                "set TERTIUM_CACHE to another folder, or to off"
            ) from None
        self._flushed = time.monotonic()


def _checksum(key: bytes, row: Rows) -> int:
    """Of a row and whose it is; NumPy drops the zeros that a key ends with."""
    return zlib.crc32(row.data, zlib.crc32(key.rstrip(b"\0")))


def _append(path: Path, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def cache_folder() -> Path | None:
    """Return where features are kept: ``TERTIUM_CACHE``, by default below ``~/.cache``; none if it is off."""
    given = os.environ.get("TERTIUM_CACHE", "")
    if given == "off":
        return None
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "tertium" / "features"


@contextmanager
def _folder(about: dict[str, Any], spare: Path | None, progress: Progress, cached: bool) -> Iterator[Path]:
    """Give the folder for features that depend on this: in the cache, or a passing one."""
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    backbone = re.sub(r"[^\w.]+", "_", about["backbone"])[
        -64:
    ]  # a name may be that of a folder, or an address
    name = f"{backbone}-{about['image_size']}-{key[:32]}"
    base = cache_folder() if cached else None
    if base is not None:
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "about.json", about)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            progress.note(f"{folder}: features cannot be kept there ({reason})")
        else:
            yield folder
            return
    if spare is None:
        with tempfile.TemporaryDirectory(prefix="tertium-") as passing:
            yield Path(passing)
        return
    make_folder(spare / name)
    yield spare / name
    shutil.rmtree(spare / name)
    with suppress(OSError):  # something else is in it
        spare.rmdir()
