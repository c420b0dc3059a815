"""What several processes share; with one process, nothing happens."""

from __future__ import annotations

from torch import Tensor, distributed
from torch.distributed.nn.functional import all_reduce


def world() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def all_mean(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes; gradients flow through it.

    >>> all_mean(Tensor([3.0]))
    tensor([3.])
    """
    if world() == 1:
        return value
    total: Tensor = all_reduce(value)  # type: ignore[no-untyped-call]
    return total / world()
