"""Kundu et al. 2020, "Exploiting weakly supervised visual patterns to learn from partial annotations".

An unknown label of an image gets a temperature T and the loss −logsigmoid(z/T): the sign of T is the label
that is assumed, its size how softly. Both come from distances d⁺ to what is known to be present and d⁻ to
what is known to be absent, in the features of a frozen network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.baselines import check_weight, require_absent
from tertium.models.neighbours import class_medians, distances, nearest, normalise

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[Any]

_COLDEST = 1e-3  # |T| from which on the loss is as steep as it may get
_BLOCK = 1 << 22  # distances held at a time


def _exposed(logits: Tensor, labels: Tensor, slope: Tensor, positive_weight: float) -> Tensor:
    """Mean over all entries of −logsigmoid(z·slope), times ``positive_weight`` where known present.

    The slope is +1 or −1 where the label is known, which makes that ℓ⁺ or ℓ⁻, and 1/T elsewhere; an entry
    that is left out has slope 0.
    """
    # The few positives are gathered, and what slope 0 adds is a constant: no weights are needed over B×C.
    total = -F.logsigmoid(logits * slope).sum() - (slope.numel() - slope.count_nonzero()) * math.log(2)
    if positive_weight != 1:
        total = total - (positive_weight - 1) * F.logsigmoid(logits[labels > 0]).sum()
    return total / logits.numel()


class Relations:
    """What the temperatures are computed from: how far known labels and labelled neighbours are."""

    def __init__(self, method: SoftExposure, features: Floats, labels: Labels) -> None:
        features = normalise(features)
        self.method, self.labels = method, labels
        self.between = np.empty((0, 0))  # [C, C]
        self.index, self.far = (
            np.empty((len(labels), 0), np.int64),
            np.empty((len(labels), 0)),
        )  # [N, k]
        if method.by_labels:
            self.between = distances(class_medians(features, labels), distance=method.distance)
            self.between[np.isnan(self.between)] = np.inf
        if method.by_images:
            self.index, self.far = nearest(features, method.neighbours, distance=method.distance)

    def blocks(self, rows: range) -> Iterator[npt.NDArray[np.int64]]:
        """Divide rows into parts for which all distances fit into a bounded block."""
        classes = len(self.labels.classes)
        known = np.diff(self.labels.offsets).max() if self.method.by_labels else 0
        size = max(1, _BLOCK // (classes * max(int(known), self.index.shape[1], 1)))
        for start in range(0, len(rows), size):
            yield np.array(rows[start : start + size])

    def slopes(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Return 1/T [B, C] of these images: 0 where a label is left out, +1 or −1 where it is known."""
        known = self.labels.dense(rows)  # [B, C]
        present, absent = (self._distance(rows, known, sign) for sign in (1, -1))
        used = (known == 0) & np.isfinite(present) & np.isfinite(absent)
        present, absent = (np.where(used, far, 0) for far in (present, absent))
        ends = [far.max(axis=1, keepdims=True) for far in (present, absent)]
        if self.method.scale == "joint":
            ends = [np.maximum(*ends)] * 2
        present, absent = (
            far / np.where(end > 0, end, 1) for far, end in zip((present, absent), ends, strict=True)
        )
        softness = self.method.softness(np.minimum(present, absent))
        slope: Floats = np.where(present < absent, 1, -1) / softness
        return np.where(used, slope, known)

    def _distance(self, rows: npt.NDArray[np.int64], known: npt.NDArray[np.int8], sign: int) -> Floats:
        """Return d⁺ or d⁻ [B, C], infinite where it is not defined."""
        found = np.full(known.shape, np.inf)
        if self.method.by_images:
            index = self.index[rows]
            theirs = self.labels.dense(index.reshape(-1)).reshape(*index.shape, known.shape[1])  # [B, k, C]
            by_images = self._nearest(np.where(theirs == sign, self.far[rows][:, :, None], np.inf))
            found = np.where(np.isinf(by_images), 1, by_images)
        if self.method.by_labels:
            found = np.minimum(found, self._nearest(self._to_known(known == sign)))
        return found

    def _to_known(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Return how far each class is from an image's chosen ones: [B, most chosen, C], filled up with ∞."""
        counts = chosen.sum(axis=1)
        places = np.arange(counts.max(initial=0))
        # A stable sort puts the columns of the chosen classes first.
        columns = np.argsort(~chosen, axis=1, kind="stable")[:, : len(places)]  # [B, m]
        return np.where((places < counts[:, None])[:, :, None], self.between[columns], np.inf)

    def _nearest(self, candidates: Floats) -> Floats:
        """Aggregate candidates [B, m, C] over m; infinite ones are none."""
        if self.method.aggregate == "minimum" or candidates.shape[1] == 0:
            least: Floats = candidates.min(axis=1, initial=np.inf)
            return least
        if candidates.shape[1] > 5:
            candidates = np.partition(candidates, 4, axis=1)[:, :5]
        first = np.sort(candidates, axis=1)
        count = np.isfinite(first).sum(axis=1, keepdims=True)
        low = np.take_along_axis(first, np.maximum(count - 1, 0) // 2, axis=1)
        high = np.take_along_axis(first, np.minimum(count // 2, first.shape[1] - 1), axis=1)
        return np.where(count > 0, (low + high) / 2, np.inf)[:, 0]


@dataclass(frozen=True)
class SoftExposure(Method):
    """Unknown labels are softly present or absent, as the nearest known labels and labelled images say.

    d_L±(c, x) is how far the median features of class c are from those of x's closest present (absent)
    class, d_I±(c, x) how far the closest of x's nearest images is in which c is known present (absent), 1 if
    there is none; d± is the smaller, divided by the largest of any unknown label of x. A sign that is not
    known in x leaves d_I alone to judge; where nothing is known, both are 1. The nearer side wins, a tie is
    absent. "Normalized by the maximum value of d⁺, d⁻" can mean the larger of the two maxima
    (``scale="joint"``) or for each its own (``"separate"``), which also changes what is nearer.

    ``temperature="equation"`` is |T| = exp(β·(1 − d)) + γ as eq. 8 prints it, which leaves the closest labels
    almost without gradient; ``"prose"`` is |T| = exp(β·d) + γ, which trusts the closest most, as the paper's
    words do. The equation is the default because it scored higher in four of six comparisons on held-out
    training images, most of them within the spread of the seeds (docs/readings.md).
    """

    positive_weight: float = 5.0
    beta: float = 5.0
    gamma: float = 0.0
    neighbours: int = 10
    distance: Literal["cosine", "euclidean"] = "cosine"
    aggregate: Literal["minimum", "median5"] = "minimum"
    temperature: Literal["equation", "prose"] = "equation"
    scale: Literal["joint", "separate"] = "joint"
    name: ClassVar[str] = "soft_exposure"
    paper: ClassVar[str] = "Kundu 2020"
    aliases: ClassVar[tuple[str, ...]] = ("se",)
    by_labels: ClassVar[bool] = True
    by_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_weight(self.positive_weight)
        if self.neighbours < 1:
            raise InputError(f"there must be at least 1 neighbour, not {self.neighbours}")
        if not (0 <= self.beta < math.inf and math.isfinite(self.gamma)):
            raise InputError(f"beta must not be negative and gamma finite, not {self.beta} and {self.gamma}")

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The observed rate, moved by the weight of the positives, as if all unknown labels were absent.

        Eq. 8 rests near it, since it takes labels far from all that is known as absent in full. What the
        known labels alone give is closer to where the prose and `se_l` rest, but models that started there
        were worse.
        """
        present, _ = labels.class_counts
        weighted = self.positive_weight * (present + 0.5)
        rate: npt.NDArray[np.float64] = weighted / (weighted + len(labels) - present + 0.5)
        return rate

    def softness(self, d: Floats) -> Floats:
        """|T| at distances d in [0, 1]."""
        exponent = self.beta * (1 - d if self.temperature == "equation" else d)
        return np.maximum(np.exp(np.minimum(exponent, 700)) + self.gamma, _COLDEST)

    def prepare(self, run: Run) -> None:
        """Compute 1/T of every image and class, once; a row that is not computed yet is NaN."""
        table = run.state.table("slope", dtype="float16", fill=math.nan)
        if not any(table.read(rows).isnan().any() for rows in run.state.blocks()):
            return
        relations = Relations(self, run.features(), run.labels)
        for rows in relations.blocks(run.state.own):
            table.write(torch.from_numpy(rows), torch.from_numpy(relations.slopes(rows)))

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ (weighted) and ℓ⁻ where known, −logsigmoid(z/T) where unknown."""
        slope = run.state.table("slope").read(batch.index)
        return {"exposed": _exposed(logits, batch.labels, slope, self.positive_weight)}


@dataclass(frozen=True)
class SoftExposureLabels(SoftExposure):
    """Like soft_exposure, judging by the image's other known labels only.

    Left out, without loss, are the unknown labels of an image in which no label is known present or none
    known absent, and those of a class that is known present nowhere, which has no median.
    """

    name: ClassVar[str] = "se_l"
    by_images: ClassVar[bool] = False

    def check(self, labels: Labels) -> None:
        """Refuse labels with nothing absent: every unknown label would be left out."""
        require_absent(labels, self.name)


@dataclass(frozen=True)
class SoftExposureImages(SoftExposure):
    """Like soft_exposure, judging by the labels of the nearest images only."""

    name: ClassVar[str] = "se_i"
    by_labels: ClassVar[bool] = False


@dataclass(frozen=True)
class LabelSoftening(Method):
    """Unknown labels are softly absent, all at one temperature.

    The paper does not give its constant; at temperature 1 this is `negative` with ``positive_weight=5``.
    """

    temperature: float = 2.0
    positive_weight: float = 5.0
    name: ClassVar[str] = "ls"
    paper: ClassVar[str] = "Kundu 2020"

    def __post_init__(self) -> None:
        check_weight(self.positive_weight)
        if not self.temperature >= _COLDEST:
            raise InputError(f"the temperature of ls must be at least {_COLDEST}, not {self.temperature}")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries of ℓ⁺ (weighted) and ℓ⁻ where known, −logsigmoid(−z/T) where unknown."""
        known = batch.labels.to(logits.dtype)
        slope = known.masked_fill(known == 0, -1 / self.temperature)
        return {"exposed": _exposed(logits, batch.labels, slope, self.positive_weight)}
