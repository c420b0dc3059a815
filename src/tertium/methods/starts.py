"""Where a head's bias starts: where the method's own loss leaves a model alone that ignores the image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Generator, Tensor

from tertium.data.batches import Batch
from tertium.labels import Labels
from tertium.methods.losses.curves import rate_at_rest
from tertium.methods.state import SampleState

if TYPE_CHECKING:
    import numpy as np

    from tertium.annotation.frequencies import Frequencies
    from tertium.methods.base import Method

_NOT_ALONE = "a method whose terms need features or predictions must define initial_rate"


def rest(method: Method, labels: Labels) -> npt.NDArray[np.float64]:
    """Return per class the rate at which the first epoch's loss pulls the bias neither up nor down.

    The loss is asked for the gradients of three images at once: one with every label present, one with every
    label absent, one with none known. The class counts say how often each occurs. So it must be a sum over
    labels in which none depends on the others of its image or batch.

    >>> from tertium.methods import make
    >>> labels = Labels.from_dense([[1, -1], [0, 0], [0, 1]])
    >>> rest(make("ignore", {}), labels).round(3), rest(make("negative", {}), labels).round(3)
    (array([0.75, 0.5 ]), array([0.375, 0.375]))
    """
    present, absent = (torch.from_numpy(count + 0.5) for count in labels.class_counts)
    counts = torch.stack([present, absent, len(labels) + 1 - present - absent])  # [3, C]
    signs = torch.tensor([[1], [-1], [0]], dtype=torch.int8).expand(counts.shape).contiguous()
    batch = Batch(torch.empty(3, 0), signs, torch.arange(3))

    def slope(bias: Tensor) -> Tensor:
        logits = bias.repeat(3, 1).requires_grad_()
        run = _FirstEpoch(labels, SampleState(3, len(labels.classes)))
        with torch.enable_grad():
            loss = torch.stack(list(method.terms(logits, batch, run).values())).sum()
            (gradient,) = torch.autograd.grad(loss, logits)
        return (counts * gradient).sum(dim=0)

    return rate_at_rest(slope, len(labels.classes))


@dataclass
class _FirstEpoch:
    """A run of three images that has just begun."""

    labels: Labels
    state: SampleState
    epoch: int = 1
    epochs: int = 1
    lr: float = 0.0
    whole: bool = False
    scratch: dict[str, Tensor] = field(default_factory=dict)
    rng: Generator = field(default_factory=Generator)
    frequencies: Frequencies | None = None

    @property
    def unasked(self) -> Labels:
        return self.labels

    def features(self) -> npt.NDArray[Any]:
        raise NotImplementedError(_NOT_ALONE)

    def predictions(self, method: Method) -> npt.NDArray[np.float32]:
        raise NotImplementedError(_NOT_ALONE)

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        raise NotImplementedError(_NOT_ALONE)

    def note(self, text: str) -> None:
        """Say nothing: nobody listens yet."""

    def all_mean(self, value: Tensor) -> Tensor:
        """One process has it all."""
        return value
