"""Tensors and rows that several processes share; a no-op with one process.

Process r of w owns the rows r, r + w, r + 2w, … for a whole run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn

from tertium.processes import device, rank, world

_LOST = ("onnection", "gloo", "NCCL", "timed out", "Timeout", "barrier")  # in errors of a broken group


def own_rows(count: int) -> npt.NDArray[np.int64]:
    """Return which of ``count`` rows this process owns.

    >>> own_rows(3)
    array([0, 1, 2])
    """
    return np.arange(rank(), count, world())


def lost(error: RuntimeError) -> bool:
    """Return whether the error of a process among several says that another has ended or does not answer.

    >>> lost(RuntimeError("Connection closed by peer"))
    True
    """
    return isinstance(error, distributed.DistError) or any(sign in str(error) for sign in _LOST)


class _Mean(torch.autograd.Function):
    """The mean over processes; what each loses by it comes back to all."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _reduced(value)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        return _reduced(outer[0])


def _reduced(value: Tensor) -> Tensor:
    total = value.detach().clone().contiguous()
    distributed.all_reduce(total)
    return total / world()


def all_mean(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes; gradients flow through it.

    >>> all_mean(Tensor([3.0]))
    tensor([3.])
    """
    if world() == 1:
        return value
    mean: Tensor = _Mean.apply(value)
    return mean


def all_sum(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradients."""
    if world() == 1:
        return value
    total = value.detach().to(device(), copy=True)
    distributed.all_reduce(total)
    return total.to(value.device)


def all_rows(value: Tensor) -> Tensor:
    """Return the rows of every process, one process after the other, without gradients.

    >>> all_rows(Tensor([[1.0], [2.0]]))
    tensor([[1.],
            [2.]])
    """
    if world() == 1:
        return value
    mine = value.detach().to(device())
    if mine.dtype == torch.bool:  # gloo does not send these
        mine = mine.to(torch.uint8)
    counts = all_sum(torch.eye(world(), dtype=torch.int64)[rank()] * len(mine)).tolist()
    padded = mine.new_zeros((max(counts), *mine.shape[1:]))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded)
    whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return whole.to(value.device, value.dtype)


def share_buffers(model: nn.Module) -> None:
    """Give every process the buffers of process 0, such as the running means of a batch norm."""
    if world() > 1:
        for value in model.buffers():
            distributed.broadcast(value, src=0)


def gather_rows(mine: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return all ``count`` rows, from those that each process computed for the rows it owns."""
    if world() == 1:
        return mine
    size = -(-count // world())  # of the process with most rows; the others are filled up
    padded = torch.zeros((size, *mine.shape[1:]), dtype=torch.from_numpy(mine[:0]).dtype, device=device())
    padded[: len(mine)] = torch.from_numpy(mine)
    parts = [torch.empty_like(padded) for _ in range(world())]
    distributed.all_gather(parts, padded)
    together = np.empty((count, *mine.shape[1:]), dtype=mine.dtype)
    for number, part in enumerate(parts):
        rows = len(together[number :: world()])
        together[number :: world()] = part[:rows].cpu().numpy()
    return together
