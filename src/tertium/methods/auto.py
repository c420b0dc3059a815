"""The observation likelihood with class frequencies estimated from the data: nothing to choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tertium.annotation.frequencies import Frequencies, estimate
from tertium.annotation.together import LITTLE, Read, Together, agreement, find
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Run
from tertium.methods.baselines import Negative
from tertium.methods.observation import Likelihood
from tertium.models.classifier import Classifier

EPOCHS = 2  # of the heads whose scores tell the frequencies: later they memorise
WEIGHT = 5.0  # of a known positive there
_RIDGE = 2.0  # of the mean variance of a feature, for as many images as features; less for more images
_IMAGES = 100_000  # that least squares look at, at most
_WIDEST = 8192  # features, up to which they are worth their D × D numbers
_WIDE = 2048  # the same, where several folds have so many numbers each
_BLOCK = 4096  # images at a time
_TOGETHER = "together."
_AGREEMENT = "agreement"  # what labels may say about one another, as far as scores tell
_PANEL = 256  # features whose products are formed at a time


@dataclass(frozen=True)
class Auto(Likelihood):
    """Estimate from the data how labels were annotated, then train as `likelihood`; needs no choosing.

    Temporary heads score images that they have not trained on, and `tertium.annotation.frequencies` finds
    the probabilities e⁺ and e⁻ of annotation that best explain which labels are known at which scores. Labels
    dropped at random come out with e⁺ = e⁻, so that unknown ones carry no information (`ignore`); with
    complete positives e⁺ is 1 (`negative`). Give
    ``labels_per_image`` if you know how many labels an image has on average.

    A linear head on features is then averaged with a second one: the least squares fit to the completed
    labels, in which an unknown label is its probability of presence. It looks at all images that probably
    show a class, not only at the few that are known to, which helps most where few labels are known. Where
    labels go together (`tertium.annotation.together`), the second head is one in which classes learn from one
    another, if the validation labels are clearly more likely by it.
    """

    name: ClassVar[str] = "auto"

    def check(self, labels: Labels) -> None:
        """Refuse labels without a known positive, and more of them than ``labels_per_image`` allows."""
        if not (labels.entries > 0).any():
            raise InputError(f'"{self.name}" needs some labels that are known to be present; there are none')
        if self.labels_per_image is not None:
            super().check(labels)

    def prepare(self, run: Run) -> None:
        """Estimate the frequencies, unless an earlier phase has."""
        if "propensity" in run.state.tensors:
            return
        if run.frequencies is not None:
            self._keep(run.frequencies, run)
            return
        known = run.unasked
        if known.is_full:
            present = known.class_counts[0] / len(known)
            ones = np.ones(len(present))
            found = Frequencies(present, present, present, ones, ones, 0.0)
        else:
            scores = run.held_out(Negative(positive_weight=WEIGHT), EPOCHS)
            found = estimate(scores, known, labels_per_image=self.labels_per_image)
        self._keep(found, run)
        if not known.is_full and not run.whole:
            told = agreement(scores, known, self.annotation(run))
            run.state.tensors[_AGREEMENT] = torch.tensor(told, dtype=torch.float64)
        for line in findings(found, known):
            run.note(line)

    def finish(self, model: Classifier, run: Run) -> Iterator[str]:
        """Average the head on features with a second one; then with another, of labels that go together."""
        if model.backbone is not None or run.labels.is_full or model.width > _WIDEST:
            return
        features, alone = run.features(), model.head.weight.detach().clone()
        rows = np.sort(np.random.default_rng(0).permutation(len(features))[:_IMAGES])
        missed = torch.log1p(-run.state.tensors["propensity"]).float()
        average_with_least_squares(model, features, run.labels, rows, missed[0] - missed[1])
        yield ""
        if model.width > _WIDE or run.state.tensors.get(_AGREEMENT, torch.ones(())) < LITTLE:
            return
        found = find(_standardised(model, features), run.labels, self.annotation(run), rows, run.unasked)
        if found is None:
            return
        for name, value in found.together.tensors().items():
            run.state.tensors[f"{_TOGETHER}{name}"] = torch.from_numpy(value)
        with torch.no_grad():
            model.head.weight.copy_(alone)
            shared, covariance = (torch.from_numpy(part).to(alone) for part in found[1:])
            _average(model.head.weight, shared, covariance)
        yield "labels go together: classes have learned from one another what to look for"

    def together(self, run: Run) -> Together | None:
        """How labels go together, as far as known ones tell."""
        found = {
            name.removeprefix(_TOGETHER): value.numpy()
            for name, value in run.state.tensors.items()
            if name.startswith(_TOGETHER)
        }
        return Together.from_tensors(run.labels.classes, found) if found else None


@torch.no_grad()
def average_with_least_squares(
    model: Classifier,
    features: npt.NDArray[Any],
    labels: Labels,
    rows: npt.NDArray[np.int64],
    shift: Tensor,
) -> None:
    """Put the mean direction of two heads in place of one, scores spread as before.

    The other head is the least squares fit of its completed labels: those known, and for each unknown one
    sigmoid(logit + shift [C]), its probability of presence given that nobody annotated it.
    """
    head = model.head
    device, width = head.weight.device, model.width
    covariance = torch.zeros(width, width, device=device)
    products = torch.zeros_like(head.weight)  # [C, D]
    for start in range(0, len(rows), _BLOCK):
        chosen = rows[start : start + _BLOCK]
        inputs = torch.from_numpy(features[chosen]).to(device).float()
        known = torch.from_numpy(labels.dense(chosen)).to(device)
        likely = torch.sigmoid(model(inputs) + shift.to(device))
        completed = torch.where(known == 0, likely, (known > 0).to(likely.dtype))
        inputs = (inputs - model.center) * model.scale
        _add_squares(covariance, inputs, 1 / len(rows))
        products.addmm_(completed.T, inputs, alpha=1 / len(rows))
    covariance = covariance.tril() + covariance.tril(-1).T
    ridge = _RIDGE * width / len(rows) * covariance.diagonal().mean() * torch.eye(width, device=device)
    _average(head.weight, torch.linalg.solve(covariance + ridge, products.T).T, covariance)


def _add_squares(total: Tensor, inputs: Tensor, times: float) -> None:
    """Add the products of the features with one another [D, D], below the diagonal: half the work of all."""
    for start in range(0, len(total), _PANEL):
        some = slice(start, start + _PANEL)
        total[start:, some].addmm_(inputs[:, start:].T, inputs[:, some], alpha=times)


def _average(weight: Tensor, other: Tensor, covariance: Tensor) -> None:
    """Put the mean direction of two heads [C, D] in place of the first, scores spread as before."""
    spread, theirs = (_spread(each, covariance) for each in (weight, other))
    both = weight / spread + other / theirs
    both *= spread / _spread(both, covariance)
    weight.copy_(torch.where((spread > 0) & (theirs > 0), both, weight))


def _spread(weight: Tensor, covariance: Tensor) -> Tensor:
    """Return the standard deviation of each class's scores [C, 1]."""
    return (weight @ covariance * weight).sum(dim=1, keepdim=True).clamp(min=0).sqrt()


def _standardised(model: Classifier, features: npt.NDArray[Any]) -> Read:
    """Return what reads rows of the features as the head sees them."""
    centre, scale = (part.cpu().numpy() for part in (model.center, model.scale))
    return lambda rows: np.asarray((features[rows].astype(np.float32) - centre) * scale)


def findings(found: Frequencies, labels: Labels) -> list[str]:
    """Say in two lines how the labels look annotated, and what unknown ones therefore mean."""
    present, absent = labels.class_counts
    total = found.rate.sum() * len(labels)
    known = present.sum() / max(total, 1)
    dismissed = absent.sum() / max(len(labels) * len(labels.classes) - total, 1)
    count = f"about {found.labels_per_image:.1f} labels per image"
    if labels.is_full:
        return ["all labels are known"]
    if not absent.any():
        doubt = f"{found.low.sum():.1f} to {found.high.sum():.1f}"
        first = f"positives only, about {known:.0%} of them annotated; expected: {count} ({doubt})"
    else:
        first = (
            f"about {known:.0%} of what is present and {dismissed:.1%} of what is absent is known; {count}"
        )
    if dismissed > 0.7 * known:
        second = "labels look dropped at random: unknown ones carry little information"
    elif found.spread > 0.5:
        second = "classes were annotated unequally: unknown means absent where most positives are known"
    else:
        second = "positives were sought out: an unknown label is more likely absent"
    return [first, second]
