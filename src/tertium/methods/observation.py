"""The observation likelihood: model what was observed instead of guessing what an unknown label is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tertium.annotation.calibration import Chances, calibrate, log_likelihood
from tertium.annotation.frequencies import Frequencies
from tertium.annotation.record import Annotation
from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.losses.compiled import softplus_and_sigmoid
from tertium.methods.losses.curves import Curve, bce, mean_loss

_MOST_PRESENT = 0.9  # of a class's unknown labels: a guess at k must not make a class certain
_FITTED = 2**20  # labels, at most, by which logits are scaled before they are judged
_JUDGED = 4096  # images at a time
HIGHEST = 1 - 1e-6  # propensity: the logarithm of the rest stays finite


@dataclass(frozen=True)
class Likelihood(Method):
    """An unknown label is absent to the degree that a present one would have been annotated.

    A present label of class c is annotated with probability e⁺_c, an absent one with e⁻_c. Then a known
    present label has the likelihood p, a known absent one 1 − p (both up to a constant), and an unknown one
    p·(1 − e⁺_c) + (1 − p)·(1 − e⁻_c). With e⁺ = e⁻ an unknown label carries no information
    (`ignore`), with e⁺ → 1 it is absent (`negative`).

    The propensities follow from the class frequencies π: e⁺_c = n⁺_c/(N·π_c), e⁻_c = n⁻_c/(N·(1 − π_c)).
    Here π comes from the labels alone. With ``labels_per_image`` = k, the expected number of present labels,
    every class is assumed to be annotated alike: π_c = n⁺_c/N · k/(known positives per image), but no more
    than if nine in ten unknown labels of the class were present. Without it, π is the share of positives
    among the known labels, as if these had been drawn at random: then e⁺ = e⁻, and this is `ignore`. `auto`
    estimates π from scores.
    """

    labels_per_image: float | None = None
    name: ClassVar[str] = "likelihood"
    paper: ClassVar[str] = "Tertium"

    def __post_init__(self) -> None:
        if self.labels_per_image is not None and not self.labels_per_image > 0:
            raise InputError(f"labels_per_image of likelihood must be above 0, not {self.labels_per_image}")

    def check(self, labels: Labels) -> None:
        """Refuse positives only without ``labels_per_image``, and more of them than it allows."""
        present, absent = labels.class_counts
        if self.labels_per_image is None:
            if not absent.any():
                raise InputError(
                    f'"{self.name}" needs labels_per_image, the present labels to expect in an image: '
                    "no label is known to be absent, so nothing says how many of the unknown ones are present"
                )
            return
        seen = present.sum() / max(len(labels), 1)
        if not seen <= self.labels_per_image <= len(labels.classes):
            raise InputError(
                f"labels_per_image of {self.name} is {self.labels_per_image:g}, but {seen:.3g} of "
                f"{len(labels.classes)} labels per image are already known to be present"
            )

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """The class frequencies π."""
        present, absent = (count + 0.5 for count in labels.class_counts)
        if self.labels_per_image is None:
            share: npt.NDArray[np.float64] = present / (present + absent)
            return share
        observed = present / (len(labels) + 1)
        seen = labels.class_counts[0].sum() / max(len(labels), 1)
        scaled = observed * (self.labels_per_image / seen if seen else 1.0)
        hidden = 1 - observed - absent / (len(labels) + 1)
        return np.clip(scaled, observed, observed + _MOST_PRESENT * hidden)

    def propensities(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Return e⁺ and e⁻ [2, C].

        The counts carry the half that π carries, so that labels dropped at random give e⁺ = e⁻ exactly.
        """
        present, absent = (count + 0.5 for count in labels.class_counts)
        rate = self.initial_rate(labels)
        found = np.stack([present / rate, absent / (1 - rate)]) / (len(labels) + 1)
        return np.minimum(found, HIGHEST)

    def prepare(self, run: Run) -> None:
        """Keep the frequencies and propensities: those of the caller, or what the labels alone tell."""
        found = run.frequencies
        if found is None:
            rate = self.initial_rate(run.unasked)
            present, absent = self.propensities(run.unasked)
            found = Frequencies(rate, rate, rate, present, absent, spread=0.0)
        self._keep(found, run)

    def _keep(self, found: Frequencies, run: Run) -> None:
        """Write down e⁺ and e⁻ [2, C], and π with its interval [3, C]."""
        known = np.minimum(np.stack([found.present, found.absent]), HIGHEST)
        run.state.tensors["propensity"] = torch.from_numpy(known)
        run.state.tensors["frequency"] = torch.from_numpy(np.stack([found.rate, found.low, found.high]))

    def annotation(self, run: Run) -> Annotation:
        """The frequencies and propensities that the likelihood takes for true."""
        tensors = run.state.tensors
        return Annotation(run.labels.classes, *tensors["frequency"].numpy(), *tensors["propensity"].numpy())

    def starting_rate(self, run: Run) -> npt.NDArray[np.float64]:
        """The class frequencies π that this run takes for true."""
        least = 0.5 / (len(run.labels) + 1)
        rate: npt.NDArray[np.float64] = run.state.tensors["frequency"][0].numpy()
        return rate.clip(least, 1 - least)

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries.

        An answer was not annotated before, which has the chance p·(1 − e⁺) if it is present and
        (1 − p)·(1 − e⁻) if not. Up to a constant that is p or 1 − p, as for any known label.
        """
        missed = torch.log1p(-run.state.tensors["propensity"]).to(logits.device, logits.dtype)  # [2, C]
        return {"likelihood": mean_loss(logits, batch.labels, _unknown, bce, classes=(missed[0], missed[1]))}

    def judge(self, scores: npt.NDArray[np.float32], labels: Labels, run: Run) -> npt.NDArray[np.float64]:
        """The mean log-likelihood of an image's labels, unknown ones too.

        The AP on known labels misleads where these were not drawn at random: of 100 known labels in each
        class the first epochs already rank nearly all. A whole network becomes overconfident while it still
        learns, which can be mended afterwards: its logits are scaled and shifted at best before that.
        Answers count as known labels, for the reason that they do in the loss.
        """
        present, absent = run.state.tensors["propensity"].numpy()
        chances = Chances(1.0, np.zeros(len(present)), present, absent)
        if run.whole:
            some = np.arange(0, len(scores), -(-scores.size // _FITTED))
            chances = calibrate(scores[some], labels.dense(some), present, absent, by_class=False)
        each = np.empty(len(scores))
        for start in range(0, len(scores), _JUDGED):  # in blocks: double precision of all would be large
            rows = np.arange(start, min(start + _JUDGED, len(scores)))
            likely = chances.calibrated(scores[rows])
            each[rows] = log_likelihood(likely, labels.dense(rows), present, absent).mean(axis=1)
        return each


def _unknown(logits: Tensor, missed_present: Tensor, missed_absent: Tensor) -> Curve:
    """−log(p·a + (1 − p)·b) from log a and log b [C].

    That is −log b + log(1 + eᶻ) − log(1 + eᶻ·a/b). The slope is p minus the probability of presence given
    that nobody annotated the label; equal propensities make it exactly 0.
    """
    if_missed, chance = softplus_and_sigmoid(logits + (missed_present - missed_absent))
    loss, score = softplus_and_sigmoid(logits)
    return loss.sub_(if_missed).sub_(missed_absent), score.sub_(chance)
