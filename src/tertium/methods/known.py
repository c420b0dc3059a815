"""BCE on known entries alone, or with all others called absent: quick because most labels are unknown."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_GATHER_FROM = 2**16  # entries from which gathering the few beats a mask over all


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


def assumed_bce(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_weight: float = 1.0,
    absent_weight: float = 1.0,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the mean over all entries of BCE in which everything that is not known present is absent.

    Targets are 1 − smoothing and smoothing; either side has a weight.
    """
    if logits.numel() >= _GATHER_FROM:
        weights = (positive_weight, absent_weight, smoothing)
        loss: Tensor = _AssumedBce.apply(logits, labels, *weights)
        return loss
    present = labels.gt(0).to(logits.dtype)
    weight = None
    if positive_weight != absent_weight:
        weight = present * (positive_weight - absent_weight) + absent_weight
    target = present * (1 - 2 * smoothing) + smoothing if smoothing else present
    return F.binary_cross_entropy_with_logits(logits, target, weight)


class _AssumedBce(torch.autograd.Function):
    """Value and gradient in one go: all entries as if absent, then the few positives put right.

    With softplus(z) = log(1 + eᶻ), ℓ⁻ is softplus(z) and ℓ⁺ is softplus(z) − z.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, positive: float, absent: float, smoothing: float
    ) -> Tensor:
        count = logits.numel()
        places = known_entries(labels)
        places = places[labels.reshape(-1)[places] > 0]
        chosen = logits.reshape(-1)[places]
        both = F.softplus(chosen)
        value = absent * F.softplus(logits).sum()
        value += (positive * (both - (1 - smoothing) * chosen) - absent * (both - smoothing * chosen)).sum()
        gradient = logits.sigmoid()
        if smoothing:
            value -= absent * smoothing * logits.sum()
            gradient -= smoothing
        gradient *= absent / count
        gradient.view(-1)[places] = (chosen.sigmoid() - (1 - smoothing)) * (positive / count)
        ctx.save_for_backward(gradient)
        return value / count

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None
