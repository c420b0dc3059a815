"""BCE on known entries alone, or with all others counted as absent: fast because most labels are unknown."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tertium.methods.losses.compiled import one_pass, softplus_and_sigmoid
from tertium.methods.losses.curves import Curve, bce, known_entries, mean_except, positive_entries

_GATHER_FROM = 2**16  # entries from which gathering the few beats a mask over all
_FEW = 1 / 8  # of all entries, up to which they are few


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


def known_bce_and_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return `known_bce` and the sum of all scores."""
    if logits.numel() < _GATHER_FROM:
        return known_bce(logits, labels), logits.sigmoid().sum()
    places = known_entries(labels)
    both: tuple[Tensor, Tensor] = _KnownBceAndScores.apply(logits, places, labels.reshape(-1)[places])
    return both


def agreement(logits: Tensor, estimate: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what two sets of logits [B, C] say together, each the fixed target of the other.

    That is the sum of their `known_bce`, the sum of their mean BCE against each other's scores, and the sum
    of the scores of either.
    """
    if logits.numel() < _GATHER_FROM:
        scores, guesses = logits.sigmoid(), estimate.sigmoid()
        known = known_bce(logits, labels) + known_bce(estimate, labels)
        agree = F.binary_cross_entropy_with_logits(logits, guesses.detach())
        agree = agree + F.binary_cross_entropy_with_logits(estimate, scores.detach())
        return known, agree, scores.sum(), guesses.sum()
    places = known_entries(labels)
    all_four: tuple[Tensor, Tensor, Tensor, Tensor] = _Agreement.apply(
        logits, estimate, places, labels.reshape(-1)[places]
    )
    return all_four


class _Agreement(torch.autograd.Function):
    """All in one pass there and one back, which waits for how much the scores count."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, estimate: Tensor, places: Tensor, signs: Tensor
    ) -> tuple[Tensor, ...]:
        pair = [each.detach().reshape(-1) for each in (logits, estimate)]
        known = [bce(each[places], signs.to(each.dtype)) for each in pair]
        ctx.save_for_backward(logits, estimate, places, *(slope for _, slope in known))
        agree, scores, guesses = one_pass(_agree, *pair)
        count = logits.numel()
        return torch.cat([value for value, _ in known]).sum() / count, agree / count, scores, guesses

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, estimate, places, *slopes = ctx.saved_tensors
        count = logits.numel()
        pair = [each.detach().reshape(-1) for each in (logits, estimate)]
        gradients = one_pass(_agree_slope, *pair, outer[1] / count, *outer[2:])
        for gradient, slope in zip(gradients, slopes, strict=True):
            gradient[places] += slope * (outer[0] / count)
        return gradients[0].view(logits.shape), gradients[1].view(logits.shape), None, None


def _agree(logits: Tensor, estimate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    loss, score = softplus_and_sigmoid(logits)
    other_loss, guess = softplus_and_sigmoid(estimate)
    agree = (loss - logits * guess).add_(other_loss - estimate * score).sum()
    return agree, score.sum(), guess.sum()


def _agree_slope(
    logits: Tensor, estimate: Tensor, agree: Tensor, scores: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor]:
    score, guess = logits.sigmoid(), estimate.sigmoid()
    apart = agree * (score - guess)
    return apart + (scores - scores * score) * score, (guesses - guesses * guess) * guess - apart


class _KnownBceAndScores(torch.autograd.Function):
    """One gradient for both, so that autograd has not two of them to add up."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, places: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        flat = logits.detach().reshape(-1)
        value, slope = bce(flat[places], signs.to(logits.dtype))
        ctx.save_for_backward(logits, places, slope)
        return value.sum() / logits.numel(), one_pass(_scores, flat)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        logits, places, slope = ctx.saved_tensors
        gradient = one_pass(_scores_slope, logits.detach().reshape(-1), outer[1])
        gradient[places] += slope * (outer[0] / logits.numel())
        return gradient.view(logits.shape), None, None


def _scores(logits: Tensor) -> Tensor:
    return logits.sigmoid().sum()


def _scores_slope(logits: Tensor, outer: Tensor) -> Tensor:
    score = logits.sigmoid()
    return (outer - outer * score).mul_(score)


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
        absent = partial(_smoothed, smoothing=smoothing) if smoothing else softplus_and_sigmoid
        present = partial(_present, weight=positive_weight, target=1 - smoothing)
        return mean_except(logits, absent, positive_entries(labels), present, weight=absent_weight)
    positive = labels.gt(0).to(logits.dtype)
    weight = None
    if positive_weight != absent_weight:
        weight = (positive * (positive_weight - absent_weight)).add_(absent_weight)
    target = positive * (1 - 2 * smoothing) + smoothing if smoothing else positive
    return F.binary_cross_entropy_with_logits(logits, target, weight)


def absent_except(logits: Tensor, labels: Tensor, chosen: Tensor, weight: float) -> Tensor:
    """Return the mean over all entries of ℓ⁺ where present, ``weight``·ℓ⁺ where a mask says, ℓ⁻ elsewhere.

    The weight is 0 or 1, and the mask [B, C] chooses among what is not known to be present.
    """
    places = known_entries(chosen.view(torch.int8)) if logits.numel() >= _GATHER_FROM else None
    if places is not None and len(places) <= _FEW * logits.numel():
        present = positive_entries(labels)
        weights = logits.new_full((len(present) + len(places),), weight)
        weights[: len(present)] = 1
        few = partial(_present, weight=weights, target=1.0)
        return mean_except(logits, softplus_and_sigmoid, torch.cat([present, places]), few)
    if weight:
        return F.binary_cross_entropy_with_logits(logits, (labels.gt(0) | chosen).to(logits.dtype))
    kept = chosen.logical_not().to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, labels.gt(0).to(logits.dtype), kept)


def _smoothed(logits: Tensor, smoothing: float) -> Curve:
    """ℓ⁻ against a target that is not quite 0."""
    loss, score = softplus_and_sigmoid(logits)
    return loss.sub_(logits, alpha=smoothing), score.sub_(smoothing)


def _present(logits: Tensor, weight: float | Tensor, target: float) -> Curve:
    """ℓ⁺ against a target that is not quite 1."""
    loss, score = softplus_and_sigmoid(logits)
    return weight * (loss - target * logits), weight * (score - target)
