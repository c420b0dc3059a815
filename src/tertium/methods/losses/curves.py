"""Losses given as curves: the value and the slope of each entry, computed in the same pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tertium.methods.losses.compiled import one_pass, softplus_and_sigmoid, worth_compiling

Curve = tuple[Tensor, Tensor]  # losses of entries, and their slopes in the logits
Unknown = Callable[..., Curve]  # of logits, and of vectors [C] if there are any
Known = Callable[[Tensor, Tensor], Curve]  # of logits and signs, +1 present and −1 absent

_WORDS_FROM = 2**14  # labels from which that pays
_REACH = 20.0  # logits beyond which no bias starts
_HALVINGS = 40  # of the interval of logits: to 4e-11


class WithGradient(torch.autograd.Function):
    """A loss whose gradient is already there."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return the value; the logits only tie it to the graph."""
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient, scaled."""
        (gradient,) = ctx.saved_tensors
        # The loss as it stands is what is minimised as a rule: a factor of 1 is not worth a pass. (To look at
        # it would make a GPU wait.)
        as_it_stands = outer[0].device.type == "cpu" and outer[0].item() == 1
        return gradient if as_it_stands else gradient * outer[0], None, None


def mean_loss(
    logits: Tensor, labels: Tensor, unknown: Unknown, known: Known, classes: tuple[Tensor, ...] = ()
) -> Tensor:
    """Return the mean over all entries of ``known`` where a label is known, ``unknown`` elsewhere.

    ``classes`` are vectors [C] that ``unknown`` needs beside the logits.
    """
    places = known_entries(labels)
    signs = labels.reshape(-1)[places].to(logits.dtype)
    return mean_except(logits, unknown, places, lambda chosen: known(chosen, signs), classes=classes)


def mean_except(
    logits: Tensor,
    most: Unknown,
    places: Tensor,
    few: Callable[[Tensor], Curve],
    *,
    classes: tuple[Tensor, ...] = (),
    weight: float = 1.0,
    count: int | None = None,
) -> Tensor:
    """Return the mean over all entries of ``weight`` times ``most``, but of ``few`` at ``places`` in B·C.

    The first curve is drawn everywhere, in one pass; then the few are put right. With ``count`` the sum is
    divided by that instead of by B·C.
    """
    with torch.no_grad():
        scale = weight / (count or logits.numel())
        everywhere = logits.detach().contiguous()
        flat = everywhere.view(-1)
        chosen = flat.gather(0, places)  # indexing by brackets does the same in several times the time
        right, slope = few(chosen)
        if worth_compiling(everywhere):
            factor = torch.tensor(scale, device=logits.device)
            total, gradient = one_pass(
                partial(_total, most), everywhere if classes else flat, factor, *classes
            )
            wrong, _ = most(chosen, *(each[places % len(each)] for each in classes))
            total += (right.sum() / weight - wrong.sum()) * scale
        else:
            value, gradient = most(everywhere, *classes)
            value.view(-1).scatter_(0, places, right / weight if weight != 1 else right)
            total, gradient = value.sum() * scale, gradient.mul_(scale)
        gradient.view(-1).scatter_(0, places, slope.mul_(scale / weight))
    loss: Tensor = WithGradient.apply(logits, total, gradient.view(logits.shape))
    return loss


def _total(curve: Unknown, logits: Tensor, scale: Tensor, *classes: Tensor) -> Curve:
    value, slope = curve(logits, *classes)
    return value.sum() * scale, slope * scale


def positive_entries(labels: Tensor) -> Tensor:
    """Return the places of the positives in flattened int8 labels [B, C]."""
    places = known_entries(labels)
    return places[labels.reshape(-1)[places] > 0]


def known_entries(labels: Tensor) -> Tensor:
    """Return the places [K] of the known entries in flattened int8 labels [B, C].

    Eight labels are looked at as one word: where few are known, that is far quicker than one by one.

    >>> known_entries(torch.tensor([[0, 1], [-1, 0]], dtype=torch.int8))
    tensor([1, 2])
    """
    flat = labels.reshape(-1)
    if flat.numel() < _WORDS_FROM or flat.numel() % 8 or flat.element_size() > 1:
        return flat.nonzero().squeeze(1)
    words = flat.view(torch.int64)
    if flat.device.type == "cpu":  # NumPy skips what is 0 five times as fast as torch
        places = torch.from_numpy(np.flatnonzero(words.numpy() != 0))
    else:
        places = words.nonzero().squeeze(1)
    inside = flat.view(-1, 8)[places].nonzero()
    return places[inside[:, 0]] * 8 + inside[:, 1]


def power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent; the usual 4 takes two squarings, which are many times as fast."""
    if exponent == 1:
        return base
    return base.square().square() if exponent == 4 else base**exponent


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
    wrong, miss = softplus_and_sigmoid(-logits * signs)
    return wrong, miss.mul_(-signs)


def focal(logits: Tensor, signs: Tensor, *, gamma: float, margin: float, detached: bool) -> Curve:
    """(1 − p_t)^γ · −log p_t, p_t being the probability of the sign; positives lose the margin first."""
    away = margin * signs.clamp(min=0) - logits * signs
    wrong, miss = softplus_and_sigmoid(away)
    weight = (gamma * (away - wrong)).exp_()  # log(1 − p) = log p − z
    loss = weight * wrong
    slope = weight * miss
    if not detached:
        slope += gamma * loss * (1 - miss)
    return loss, slope.mul_(-signs)
