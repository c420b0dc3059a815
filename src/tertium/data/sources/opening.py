"""The one door for images: from what a person gives to a source of images by name."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from tertium.data import kinds as package
from tertium.data.kinds.folder import Folder, RemoteFolder
from tertium.data.kinds.listed import of_paths
from tertium.data.sources.places import File, alone, files_at, is_address
from tertium.data.sources.source import IMAGE_SUFFIXES, ImageSource, is_image
from tertium.errors import InputError, did_you_mean, some

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
Place = str | Path | Sequence[str | Path] | ImageSource  # a sequence lists image files, or archives


class Kind(Protocol):
    """A module of `tertium.data.kinds` for files of some endings."""

    ENDINGS: tuple[str, ...]
    OPTIONS: tuple[str, ...]  # that may follow the address, as in photos.parquet#name=id

    def opened(self, place: str, files: Sequence[File], **options: str) -> ImageSource:
        """Find the images in such files."""
        ...

    def holds(self, file: File, **options: str) -> bool:
        """Return whether a file has the bytes of images itself, and is not only a list of them."""
        ...


@cache
def kinds() -> tuple[Kind, ...]:
    """Return the kinds of files that hold images or list them: the modules that say their endings.

    >>> sorted(ending for kind in kinds() for ending in kind.ENDINGS)
    ['.arrow', '.csv', '.feather', '.parquet', '.tar', '.tsv', '.txt', '.zip']
    """
    modules = (import_module(f"{package.__name__}.{each.name}") for each in iter_modules(package.__path__))
    return tuple(cast(Kind, module) for module in modules if hasattr(module, "ENDINGS"))


def is_place(images: object) -> TypeIs[Place]:
    """Return whether images are kept somewhere, by name, and are not an array in memory."""
    if isinstance(images, list | tuple):
        return all(isinstance(each, str | Path) for each in images)
    return isinstance(images, str | Path | ImageSource)


def open_source(place: Place) -> ImageSource:
    """Find the images of a place; nothing but their names is read.

    It is a folder, an archive, a table, a list, several of them as a pattern, each also at an address; or
    a sequence of paths of images (docs/images.md).
    """
    if isinstance(place, ImageSource):
        return place
    if not isinstance(place, str | Path):
        return _of_sequence(place)
    text = str(place)
    if Path(text).is_dir():
        return Folder.at(text)
    where, options = _options(text)
    kind = _kind(where)
    if kind is not None:
        _check_options(text, kind, options)
        return kind.opened(text, files_at(where), **options)
    _explain_compressed(where)
    return RemoteFolder.at(text) if is_address(text) else Folder.at(text)


@dataclass(frozen=True)
class Containers:
    """Files with the bytes of images; each can be opened by itself."""

    place: str
    files: Sequence[File]
    options: Mapping[str, str]

    def source(self, file: File) -> ImageSource:
        """Find the images in one of the files."""
        return self._kind.opened(self.place, [alone(file)], **self.options)

    @property
    def is_sequential(self) -> bool:
        """Whether a file must be read whole to know what is in it."""
        return getattr(self._kind, "SEQUENTIAL", False)

    @property
    def _kind(self) -> Kind:
        kind = _kind(_options(self.place)[0])
        assert kind is not None
        return kind


def containers(place: Place) -> Containers | None:
    """Return the files of a place with the bytes of images in them, and nothing of what is inside.

    None if it is another kind of place, such as a folder or a list.
    """
    if not isinstance(place, str | Path) or Path(place).is_dir():
        return None
    where, options = _options(str(place))
    kind = _kind(where)
    if kind is None:
        return None
    _check_options(str(place), kind, options)
    files = files_at(where)
    return Containers(str(place), files, options) if kind.holds(files[0], **options) else None


def _kind(place: str) -> Kind | None:
    """Return the kind of a file or a pattern, by its ending."""
    return next((kind for kind in kinds() if place.lower().endswith(kind.ENDINGS)), None)


def _of_sequence(places: Sequence[str | Path]) -> ImageSource:
    """Return the images of a sequence: of image files, or of archives or tables of one kind."""
    if not places:
        raise InputError("the list of images is empty")
    texts = [str(each) for each in places]
    kind = _kind(texts[0])
    if kind is None or is_image(texts[0]):
        return of_paths(texts)
    files = [file for text in texts for file in files_at(text)]
    return kind.opened(some(texts), files)


def _options(place: str) -> tuple[str, dict[str, str]]:
    """Return a place without what is said about its columns, and that.

    >>> _options("photos.parquet#name=id,image=jpg")
    ('photos.parquet', {'name': 'id', 'image': 'jpg'})
    """
    where, mark, words = place.rpartition("#")
    if not mark or _kind(where) is None:
        return place, {}
    pairs = [word.partition("=") for word in words.split(",")]
    if not all(mark and value for _, mark, value in pairs):
        raise InputError(f"{place}: what follows # is such as name=COLUMN")
    return where, {key.strip(): value.strip() for key, _, value in pairs}


def _check_options(place: str, kind: Kind, options: Mapping[str, str]) -> None:
    for key in options:
        if key not in kind.OPTIONS:
            hint = did_you_mean(key, kind.OPTIONS) if kind.OPTIONS else "there is nothing to say about it"
            raise InputError(f'{place}: "{key}" is no column to be told; {hint}')


def _explain_compressed(place: str) -> None:
    if place.lower().endswith(_COMPRESSED):
        raise InputError(f"{place}: a compressed archive cannot be read at random; unpack it to a plain .tar")


def names_in(source: ImageSource) -> list[str]:
    """Return the names of all images of a source that must have some."""
    if not source.names:
        _explain_empty(source)
        raise InputError(f"{source.place}: there are no images in it")
    try:
        "".join(source.names).encode()
    except UnicodeEncodeError as error:  # Python's way to name bytes that are no text
        strange = next(name for name in source.names if error.object[error.start] in name)
        raise InputError(f"{source.place}: the file name {strange!r} is not UTF-8; rename it") from None
    return list(source.names)


def _explain_empty(source: ImageSource) -> None:
    """Say so if a folder has no images, but archives or tables with images."""
    for name in source.unread:
        kind, ending = _kind(name), PurePosixPath(name).suffix
        if source.by_path and kind is not None and not hasattr(kind, "of_paths"):
            raise InputError(
                f"{source.place}: there are no images in it, but {ending} files; "
                f"give '{source.place}/*{ending}'"
            )


def numbers_of(source: ImageSource, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of each image, after checking that all are there."""
    found = find(source, names)
    missing = [names[row] for row in np.flatnonzero(found < 0).tolist()]
    if missing:
        _explain_unread(source, missing)
        raise InputError(
            f"{source.place}: {len(missing):,} of {len(names):,} labelled images are missing: {some(missing)}"
        )
    _check_twins(source, names, found)
    return found


def find(source: ImageSource, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of each image, and −1 where there is none of this name."""
    there = {name: number for number, name in enumerate(source.names)}
    found = (there.get(name) if name in there else there.get(_inside(source, name), -1) for name in names)
    return np.fromiter(found, dtype=np.int64, count=len(names))


def _inside(source: ImageSource, name: str) -> str:
    """Return a name as the source has it, without ``./`` and such; it must not lead out of the place."""
    if not source.by_path:
        return name
    if posixpath.isabs(name) or ".." in name.split("/"):
        raise InputError(f'{source.place}: the image "{name}" is not named by a path inside this folder')
    return posixpath.normpath(name)


def _explain_unread(source: ImageSource, missing: Sequence[str]) -> None:
    """Say so if the first one that is missing is there, but not of a kind that is read."""
    if missing[0] in set(source.unread):
        endings = ", ".join(IMAGE_SUFFIXES)
        raise InputError(f"{source.place}: {missing[0]}: not an image by its name; names end with {endings}")


def _check_twins(source: ImageSource, names: Sequence[str], numbers: npt.NDArray[np.int64]) -> None:
    """Refuse two names of one image, such as a.jpg and ./a.jpg: they would be two images."""
    first: dict[int, str] = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        if first.setdefault(number, name) != name:
            raise InputError(
                f'{source.place}: "{first[number]}" and "{name}" are the same image; label it once'
            )
