"""What is written to files of other tools: labels, or probabilities, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.labels.labels import Labels
from tertium.labels.probabilities import Probabilities

_ROWS = 4096  # images that are held at once


class Block(NamedTuple):
    """Some images with their splits, and what is known about each class in them."""

    images: list[str]
    splits: list[str | None]
    values: npt.NDArray[Any]  # [images, classes]: +1, −1 and 0; or probabilities, NaN where none is given


class Listed(NamedTuple):
    """What is listed for an image."""

    image: str
    split: str | None
    names: list[str]  # classes that are present, or probable enough
    probabilities: list[float] | None  # of these; None where people gave the labels
    absent: list[str]  # classes that are known to be absent


@dataclass
class Content:
    """Labels, or probabilities and the threshold from which on a class is listed; counted while written."""

    classes: tuple[str, ...]
    read: Callable[[], Iterator[Block]]
    is_probable: bool  # probabilities, not labels
    threshold: float | None = None
    has_splits: bool = False
    images: int = 0
    present: int = 0
    absent: int = 0

    @classmethod
    def of_labels(cls, labels: Labels) -> Content:
        """Take labels."""

        def blocks() -> Iterator[Block]:
            for start in range(0, len(labels), _ROWS):
                part = labels[start : start + _ROWS]
                splits = [None] * len(part) if part.splits is None else part.splits.to_pylist()
                yield Block(part.images.to_pylist(), [name or None for name in splits], part.dense())

        return cls(labels.classes, blocks, False, has_splits=labels.splits is not None)

    @classmethod
    def of_probabilities(cls, found: Probabilities, threshold: float | None) -> Content:
        """Take probabilities."""

        def blocks() -> Iterator[Block]:
            for images, values in found.blocks():
                yield Block(images, [None] * len(images), values)

        return cls(found.classes, blocks, True, threshold)

    def blocks(self) -> Iterator[Block]:
        """Yield everything, once."""
        for block in self.read():
            self.images += len(block.images)
            self.present += int(self.chosen(block).sum())
            self.absent += 0 if self.is_probable else int((block.values < 0).sum())
            yield block

    def chosen(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return which classes are present, or probable enough; without a threshold, all that are given."""
        least = 1 if not self.is_probable else self.threshold or 0
        return np.asarray(block.values >= least)  # NaN is not

    def listed(self) -> Iterator[Listed]:
        """Yield what is listed for each image."""
        names = np.array(self.classes, dtype=object)
        for block in self.blocks():
            for image, split, values, own in zip(*block, self.chosen(block), strict=True):
                chances = values[own].round(6).tolist() if self.is_probable else None
                absent = [] if self.is_probable else names[values < 0].tolist()
                yield Listed(image, split, names[own].tolist(), chances, absent)
