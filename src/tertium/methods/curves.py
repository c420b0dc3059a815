"""Losses given as curves: the value and the slope of each entry, drawn in the same pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from tertium.labels import Labels
from tertium.methods.known import known_entries

Curve = tuple[Tensor, Tensor]  # losses of entries, and their slopes in the logits
Unknown = Callable[[Tensor], Curve]  # of logits
Known = Callable[[Tensor, Tensor], Curve]  # of logits and signs, +1 present and −1 absent

_REACH = 20.0  # logits beyond which no bias starts
_HALVINGS = 40  # of the interval of logits: to 4e-11


class MeanWithSlope(torch.autograd.Function):
    """The mean of losses whose slopes are already there: the way back is one product."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        """Return the mean; the logits only tie it to the graph."""
        ctx.save_for_backward(slope)
        return value.mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        """Return the slopes, scaled."""
        (slope,) = ctx.saved_tensors
        return slope * (outer[0] / slope.numel()), None, None


def mean_loss(logits: Tensor, labels: Tensor, unknown: Unknown, known: Known) -> Tensor:
    """Return the mean over all entries of ``known`` where a label is known, ``unknown`` elsewhere.

    Unknown entries are most of them, so their curve is drawn everywhere; the known few are written over it.
    """
    with torch.no_grad():
        value, slope = unknown(logits)
        places = known_entries(labels)
        signs = labels.reshape(-1)[places].to(logits.dtype)
        value.view(-1)[places], slope.view(-1)[places] = known(logits.reshape(-1)[places], signs)
    loss: Tensor = MeanWithSlope.apply(logits, value, slope)
    return loss


def power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent in a new tensor; the usual 4 takes two squarings, which are many times as fast."""
    return base.square().square() if exponent == 4 else base**exponent


def resting_rate(labels: Labels, unknown: Unknown, known: Known) -> npt.NDArray[np.float64]:
    """Return per class the rate at which these losses leave a bias alone."""
    present, absent = (torch.from_numpy(count + 0.5) for count in labels.class_counts)
    hidden = len(labels) + 1 - present - absent
    one = torch.ones_like(present)

    def slope(bias: Tensor) -> Tensor:
        return present * known(bias, one)[1] + absent * known(bias, -one)[1] + hidden * unknown(bias)[1]

    return rate_at_rest(slope, len(labels.classes))


def rate_at_rest(slope: Callable[[Tensor], Tensor], classes: int) -> npt.NDArray[np.float64]:
    """Return per class the sigmoid of the logit [C] where a slope that rises through 0 does so, by halving.

    >>> rate_at_rest(lambda logit: logit.sigmoid() - 0.25, classes=2)
    array([0.25, 0.25])
    """
    low, high = (torch.full((classes,), end, dtype=torch.float64) for end in (-_REACH, _REACH))
    for _ in range(_HALVINGS):
        logit = (low + high) / 2
        rising = slope(logit) < 0
        low, high = torch.where(rising, logit, low), torch.where(rising, high, logit)
    rate: npt.NDArray[np.float64] = torch.sigmoid((low + high) / 2).numpy()
    return rate


def bce(logits: Tensor, signs: Tensor) -> Curve:
    """ℓ⁺ or ℓ⁻."""
    toward = logits * signs
    return -F.logsigmoid(toward), -signs * torch.sigmoid(-toward)
