"""What a job is divided into: ranges of images by name, or the files that hold them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tertium.data.inputs import BATCH, Inputs
from tertium.data.pictures import SourcePictures
from tertium.data.sources.opening import Containers, containers, names_in
from tertium.data.sources.places import File, is_address
from tertium.data.sources.source import Divisible
from tertium.errors import InputError
from tertium.labels import Labels

IMAGES = 1024  # of a shard; always whole batches, so that results do not depend on the shards
_BYTES = 2**17  # that an image in an archive is taken to have
_LOOKED_AT = 16  # rows of features in a shard, of which a few more tell another file
_DIGITS = 16  # of a checksum that tells one shard from another


class Shard(Protocol):
    """Images that are worked on together, as they are sent to a worker."""

    @property
    def number(self) -> int:
        """Which shard of its plan it is."""
        ...

    @property
    def title(self) -> str:
        """What a message calls it."""
        ...

    @property
    def identity(self) -> str:
        """What changes when its images do."""
        ...

    @property
    def labels(self) -> Labels | None:
        """The labels of its images, where the job is about labels."""
        ...

    def open(self) -> Inputs:
        """Find its images."""
        ...


class Plan(Protocol):
    """All shards of a job, in order."""

    def __len__(self) -> int: ...

    def shard(self, number: int) -> Shard:
        """Return one shard."""
        ...

    def identity(self, number: int) -> str:
        """Return what changes when the images of a shard do."""
        ...


# ---- ranges of names ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowShard:
    """A range of images: nothing else of the place is sent along."""

    number: int
    title: str
    identity: str
    inputs: Inputs
    labels: Labels | None = None

    def open(self) -> Inputs:
        """Return the images."""
        return self.inputs


@dataclass(frozen=True)
class RowPlan:
    """Images or features whose names are known, in ranges of whole batches; with their labels, if any."""

    inputs: Inputs
    labels: Labels | None = None
    images: int = IMAGES

    def __len__(self) -> int:
        return len(range(0, len(self.inputs), self.images))

    def rows(self, number: int) -> range:
        """Return the rows of a shard."""
        return range(number * self.images, min((number + 1) * self.images, len(self.inputs)))

    def shard(self, number: int) -> RowShard:
        """Take the images of a range out of their source."""
        rows = self.rows(number)
        names = self.inputs.names[rows.start : rows.stop]
        labels = None if self.labels is None else self.labels[rows.start : rows.stop]
        title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        if self.inputs.features is not None:
            inputs = Inputs(names, None, np.ascontiguousarray(self.inputs.features[rows.start : rows.stop]))
        else:
            source, numbers = self._pictures(rows)
            inputs = Inputs(names, SourcePictures(source.part(numbers), names, np.arange(len(names))), None)
        return RowShard(number, title, self.identity(number), inputs, labels)

    def identity(self, number: int) -> str:
        """Return a checksum of names, of labels, and of what shows of the images without reading them."""
        rows = self.rows(number)
        found = hashlib.sha256("\0".join(self.inputs.names[rows.start : rows.stop]).encode())
        if self.inputs.features is None:
            source, numbers = self._pictures(rows)
            found.update("\0".join(source.version(each) for each in numbers.tolist()).encode())
        else:
            some = self.inputs.features[rows.start : rows.stop : max(1, len(rows) // _LOOKED_AT)]
            found.update(np.ascontiguousarray(some).data)
        if self.labels is not None:
            offsets = self.labels.offsets[rows.start : rows.stop + 1]
            found.update(np.diff(offsets).astype(np.int64).tobytes())
            found.update(self.labels.entries[offsets[0] : offsets[-1]].astype(np.int32).tobytes())
        return found.hexdigest()[:_DIGITS]

    def _pictures(self, rows: range) -> tuple[Divisible, npt.NDArray[np.int64]]:
        pictures = self.inputs.pictures
        if not isinstance(pictures, SourcePictures) or not isinstance(pictures.source, Divisible):
            raise InputError(
                "only images that are kept in a place (docs/images.md) can be divided into shards"
            )
        return pictures.source, pictures.numbers[rows.start : rows.stop]


# ---- files that hold images --------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileShard:
    """The images of a file, or one of several parts of them: what is in it only the worker finds out."""

    number: int
    inside: Containers
    file: File
    part: int
    parts: int
    labels: None = None

    @property
    def title(self) -> str:
        """The file, and which part of it."""
        return (
            self.file.address if self.parts == 1 else f"{self.file.address}, {self.part + 1} of {self.parts}"
        )

    @property
    def identity(self) -> str:
        """A checksum of the file's address, size and version, and of which part it is."""
        said = [self.file.address, self.file.size, self.file.version, self.part, self.parts]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:_DIGITS]

    def open(self) -> Inputs:
        """Look into the file; parts are whole batches."""
        source = self.inside.source(self.file)
        assert isinstance(source, Divisible)
        names = names_in(source) if source.names else []
        batches = -(-len(names) // BATCH)
        first, last = (
            min(batches * each // self.parts * BATCH, len(names)) for each in (self.part, self.part + 1)
        )
        own, numbers = names[first:last], np.arange(first, last)
        return Inputs(own, SourcePictures(source, own, numbers), None)


@dataclass(frozen=True)
class FilePlan:
    """Files with the bytes of images; a large one makes several shards. None of them is read here."""

    inside: Containers
    images: int = IMAGES

    @cached_property
    def _edges(self) -> npt.NDArray[np.int64]:
        """The first shard of each file, and how many there are in all."""
        return np.cumsum([0, *map(self._parts, self.inside.files)])

    def _parts(self, file: File) -> int:
        """Return how many shards a file makes; one that must be fetched whole is not fetched twice."""
        if self.inside.is_sequential and is_address(file.address):
            return 1
        return max(1, -(-file.size // (self.images * _BYTES)))

    def __len__(self) -> int:
        return int(self._edges[-1])

    def shard(self, number: int) -> FileShard:
        """Return one file, or a part of it."""
        file = int(np.searchsorted(self._edges, number, "right")) - 1
        first, last = self._edges[file : file + 2].tolist()
        inside = Containers(self.inside.place, (), self.inside.options)  # not all files to each worker
        return FileShard(number, inside, self.inside.files[file], number - first, last - first)

    def identity(self, number: int) -> str:
        """Return what changes when a file does."""
        return self.shard(number).identity


def plan_files(place: object, images: int) -> FilePlan | None:
    """Return a plan of the files of a place; None if its images must be found by name."""
    inside = containers(place) if isinstance(place, str | Path) else None
    return None if inside is None else FilePlan(inside, images)


def absolute(place: str) -> str:
    """Return a place that means the same in a process which works in another folder."""
    return place if is_address(place) else os.path.abspath(place)


def whole_batches(images: int) -> int:
    """Return so many images, or a few more, so that they are whole batches.

    >>> whole_batches(1000)
    1024
    """
    return max(1, -(-images // BATCH)) * BATCH
