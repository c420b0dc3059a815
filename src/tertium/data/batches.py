"""Images or feature rows with their labels, turned into batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tertium.data.inputs import Inputs
from tertium.data.pictures import ArrayPictures, Pictures
from tertium.data.views import View, augmented, resized
from tertium.errors import InputError
from tertium.labels import Labels

if TYPE_CHECKING:
    from torch import Tensor

_DENSE_LABELS = 256 * 2**20  # bytes up to which labels are expanded once instead of batch by batch
_KEPT = 2**30  # bytes of decoded images that stay in memory for the next epoch, in all processes together


@dataclass(slots=True)
class Batch:
    """What a training step sees."""

    inputs: Tensor  # uint8 images [B, 3, H, W] or float features [B, D]
    labels: Tensor  # int8 [B, C]: +1 present, −1 absent, 0 unknown
    index: Tensor  # int64 [B]: rows of the training labels
    share: float = 1.0  # weight of its mean among those of all processes; they average to 1

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        if self.inputs.device == device:
            return self
        inputs, labels, index = (
            part.to(device, non_blocking=True) for part in (self.inputs, self.labels, self.index)
        )
        return Batch(inputs, labels, index, self.share)


# ---- batches ---------------------------------------------------------------------------------------------


class Loader(Protocol):
    """Batches, epoch by epoch."""

    def __len__(self) -> int:
        """How many batches an epoch has."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch from ``start`` on, shuffled if it is above 0; 0 is in row order."""
        ...


@dataclass(frozen=True)
class Order:
    """Which rows make up which batch: a function of the seed, the epoch and the process alone.

    Process ``rank`` of ``world`` has the rows rank, rank + world, … and shuffles within them. A batch of
    ``batch_size`` rows is what all processes take together in one step; each has the same number of steps.

    >>> [Order(5, 4, rank=rank, world=2).rows(0) for rank in (0, 1)]
    [[array([0, 2]), array([4])], [array([1]), array([3])]]
    """

    count: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.world > 1 and self.count // self.world < len(self):
            raise InputError(
                f"{self.count:,} images in batches of {self.batch_size} are too few "
                f"for {self.world} processes"
            )

    def __len__(self) -> int:
        each = max(self.batch_size // self.world, 1)
        return math.ceil(math.ceil(self.count / self.world) / each)

    def rows(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each batch of this process."""
        own = np.arange(self.rank, self.count, self.world)
        if epoch:
            key = (self.seed, epoch, self.rank) if self.world > 1 else (self.seed, epoch)
            own = np.random.default_rng(key).permutation(own)
        if self.world == 1:
            return np.split(own, range(self.batch_size, self.count, self.batch_size)) if self.count else []
        return np.array_split(own, len(self))  # no process may run out of batches before the others

    def share(self, step: int) -> float:
        """Return the weight of this process's batch: its number of rows over the mean of all processes."""
        if self.world == 1:
            return 1.0
        owned = [len(range(rank, self.count, self.world)) for rank in range(self.world)]
        sizes = [rows // len(self) + (step < rows % len(self)) for rows in owned]
        return sizes[self.rank] * self.world / sum(sizes)


def loader(
    inputs: Inputs,
    labels: Labels | None,
    view: View | int,
    order: Order,
    *,
    workers: int = 0,
    keep: bool = False,
) -> FeatureLoader | ImageLoader:
    """Return batches of these inputs with labels in the same order; without labels, theirs are [B, 0].

    With ``keep`` decoded images stay in memory for the next epoch, as far as there is room.
    """
    if inputs.pictures is not None:
        return ImageLoader(inputs.pictures, labels, view, order, workers=workers, keep=keep)
    assert inputs.features is not None
    return FeatureLoader(inputs.features, labels, order)


def _no_labels(rows: int) -> Tensor:
    return torch.empty((rows, 0), dtype=torch.int8)


class FeatureLoader:
    """Batches of feature rows, taken straight from one array."""

    def __init__(self, features: npt.NDArray[Any], labels: Labels | None, order: Order) -> None:
        self._features = torch.from_numpy(features)
        self._labels, self._order = labels, order
        self._dense: Tensor | None = None  # once instead of batch by batch
        if labels is None:
            self._dense = _no_labels(len(features))
        elif len(labels) * len(labels.classes) <= _DENSE_LABELS:
            self._dense = torch.from_numpy(labels.dense())

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        for step, chosen in enumerate(self._order.rows(epoch)[start:], start):
            rows = torch.from_numpy(chosen)
            if epoch or self._order.world > 1:
                features = self._features.index_select(0, rows)  # in half the time that brackets take
            else:
                features = self._features[int(rows[0]) : int(rows[-1]) + 1]  # in order: nothing to gather
            yield Batch(features.float(), self._known(rows), rows, self._order.share(step))

    def _known(self, rows: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense.index_select(0, rows)
        assert self._labels is not None
        return torch.from_numpy(self._labels.dense(rows))


class ImageLoader:
    """Batches of decoded, cropped and resized images, made by worker processes."""

    def __init__(
        self,
        pictures: Pictures,
        labels: Labels | None,
        view: View | int,
        order: Order,
        *,
        workers: int = 0,
        keep: bool = False,
    ) -> None:
        self._order = order
        room = _KEPT // max(workers, 1) if keep and not isinstance(pictures, ArrayPictures) else 0
        self._steps = _Steps(order)
        self._loader: DataLoader[Any] = DataLoader(
            _Decoded(pictures, view, order.seed, room),
            batch_sampler=self._steps,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_Collate(labels),
        )

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch; above 0 the images are augmented."""
        self._steps.epoch, self._steps.start = epoch, start
        try:
            for step, batch in enumerate(self._loader, start):
                batch.share = self._order.share(step)
                yield batch
        except InputError as error:  # comes from a worker with its whole traceback; its last line says it
            raise InputError(str(error).rpartition("InputError: ")[2].strip()) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise InputError(
                f"a process that decodes images ended ({error}); memory may be short: try workers=0"
            ) from None


class _Steps:
    """Lists of (epoch, row): the epoch travels with the row, so that workers need no state of their own."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch, self.start = order, 0, 0

    def __len__(self) -> int:
        return len(self.order) - self.start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for rows in self.order.rows(self.epoch)[self.start :]:
            yield [(self.epoch, row) for row in rows.tolist()]


@dataclass
class _Decoded(Dataset[Any]):
    """Images as the network sees them; a process keeps what it has decoded, as far as there is room."""

    pictures: Pictures
    view: View | int
    seed: int
    room: int  # bytes
    kept: dict[int, Image.Image] = field(default_factory=dict)

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, npt.NDArray[np.uint8]]:
        epoch, row = item
        image = self._opened(row)
        pixels = augmented(image, self.view, (self.seed, epoch, row)) if epoch else resized(image, self.view)
        return row, np.asarray(pixels).transpose(2, 0, 1)

    def _opened(self, row: int) -> Image.Image:
        image = self.kept.get(row)
        if image is None:
            image = self.pictures.open(row)
            size = 4 * image.width * image.height  # Pillow takes four bytes for a pixel
            if size <= self.room:
                self.room -= size
                self.kept[row] = image
        return image


@dataclass(frozen=True)
class _Collate:
    labels: Labels | None

    def __call__(self, items: list[tuple[int, npt.NDArray[np.uint8]]]) -> Batch:
        rows, pixels = zip(*items, strict=True)
        labels = _no_labels(len(rows)) if self.labels is None else torch.from_numpy(self.labels.dense(rows))
        return Batch(torch.from_numpy(np.stack(pixels)), labels, torch.tensor(rows))
