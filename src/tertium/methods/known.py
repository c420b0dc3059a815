"""BCE on known entries alone, at a cost that hardly depends on how many are unknown."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_GATHER_FROM = 2**16  # entries from which gathering the known ones beats a mask over all


def known_entries(labels: Tensor) -> Tensor:
    """Return the places [K] of the known entries in flattened int8 labels [B, C].

    Eight labels are looked at as one word: where few are known, that is far quicker than one by one.

    >>> known_entries(torch.tensor([[0, 1], [-1, 0]], dtype=torch.int8))
    tensor([1, 2])
    """
    flat = labels.reshape(-1)
    if flat.numel() % 8:
        return flat.nonzero().squeeze(1)
    words = flat.view(torch.int64).ne(0).nonzero().squeeze(1)
    inside = flat.view(-1, 8)[words].nonzero()
    return words[inside[:, 0]] * 8 + inside[:, 1]


def known_bce(logits: Tensor, labels: Tensor, image_weight: Tensor | None = None) -> Tensor:
    """Return the sum over known entries of ℓ⁺ or ℓ⁻, times the weight [B] of their image, divided by B·C."""
    if logits.numel() < _GATHER_FROM:
        signs = labels.to(logits.dtype)
        known = signs.abs() if image_weight is None else signs.abs() * image_weight[:, None]
        return F.binary_cross_entropy_with_logits(logits, signs.relu(), known)
    places = known_entries(labels)
    target = labels.reshape(-1)[places].gt(0).to(logits.dtype)
    weight = None if image_weight is None else image_weight[places // logits.shape[1]]
    loss: Tensor = _KnownBce.apply(logits, places, target, weight)
    return loss


class _KnownBce(torch.autograd.Function):
    """Value and gradient at once: autograd would add gradients up, as if a place could stand there twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, places: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        chosen = logits.reshape(-1)[places]
        slope = chosen.sigmoid().sub_(target).div_(logits.numel())
        ctx.save_for_backward(places, slope if weight is None else slope.mul_(weight))
        ctx.shape = logits.shape
        return F.binary_cross_entropy_with_logits(chosen, target, weight, reduction="sum") / logits.numel()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        places, slope = ctx.saved_tensors
        gradient = slope.new_zeros(ctx.shape)
        gradient.view(-1)[places] = slope * outer[0]
        return gradient, None, None, None
