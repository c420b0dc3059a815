"""Ben-Baruch et al. 2021, "Multi-label Classification with Partial Annotations": the selective loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.base import Method, Run
from tertium.methods.baselines import Ignore
from tertium.methods.losses.compiled import softplus_and_sigmoid
from tertium.methods.losses.curves import Curve, known_entries, mean_except, power
from tertium.methods.starts import rest

if TYPE_CHECKING:
    from torch import Tensor


def class_prior(run: Run) -> Tensor:
    """Return per class [C] how often it is present, as a temporary model trained with `ignore` sees it."""
    return torch.from_numpy(run.predictions(Ignore()).mean(axis=0, dtype=np.float64)).float()


@dataclass(frozen=True)
class PAsl(Method):
    """Unknown labels are absent, and focus on hard entries more sharply than labels known to be absent.

    The authors use 0, 2, 7 on OpenImages and 0, 1, 4 on COCO with labels dropped at random.
    """

    gamma_positive: float = 0.0
    gamma_negative: float = 3.0
    gamma_unknown: float = 4.0
    name: ClassVar[str] = "p_asl"
    paper: ClassVar[str] = "Ben-Baruch 2021"

    def __post_init__(self) -> None:
        for name in ("gamma_positive", "gamma_negative", "gamma_unknown"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number from 0 up, not {getattr(self, name)}")

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """(1−p)^γ⁺ ℓ⁺ where present, p^γ⁻ ℓ⁻ where absent, ω·p^γᵘ ℓ⁻ where unknown.

        Sum over classes, mean over images. The powers of p weigh, but have no gradient.
        """
        labels = batch.labels.reshape(-1)
        known = known_entries(labels)
        left_out = self._left_out(logits.detach(), known)
        places = torch.cat([known, left_out])
        known_curve = partial(self._known, signs=labels.gather(0, places).to(logits.dtype))
        classes = self._prior(logits, run)
        loss = mean_except(logits, self._unknown, places, known_curve, classes=classes, count=len(logits))
        return {self.name: loss}

    def _unknown(self, logits: Tensor, omega: Tensor | None = None) -> Curve:
        """The focal weights are constants to the gradient, so it is weight·(p − target) for every entry."""
        loss, p = softplus_and_sigmoid(logits)
        weight = power(p, self.gamma_unknown)
        if omega is not None:
            weight = weight * omega
        return loss.mul_(weight), p.mul_(weight)

    def _known(self, logits: Tensor, signs: Tensor) -> Curve:
        """Sign 0 stands for an unknown label that is left out."""
        away = -signs
        loss, wrong = softplus_and_sigmoid(logits * away)
        focus = power(wrong, self.gamma_positive).where(signs > 0, power(wrong, self.gamma_negative))
        weight = focus * away
        return loss * weight * away, weight * wrong

    def _prior(self, logits: Tensor, run: Run) -> tuple[Tensor, ...]:
        """Return ω by class [C], or nothing if it is 1."""
        return ()

    def _left_out(self, logits: Tensor, known: Tensor) -> Tensor:
        """Return places in B·C of unknown labels that carry no loss; ``known`` are those of the others."""
        return known[:0]


@dataclass(frozen=True)
class Selective(PAsl):
    """As `p_asl`, but unknown labels that are likely in the image or frequent in the data carry no loss.

    Likely: the ``k`` highest logits among the unknown labels of an image, or k·B of a batch of B (``pool``).
    Frequent: the ``top`` share of classes by a prior that a model trained with `ignore` gives; with ``eta``
    instead those whose prior is above it; with ``soft_prior`` = α none are left out, but unknown labels weigh
    exp(−α·prior). ``likelihood=False`` and ``prior=None`` switch either off.

    A rank is the default, since the prior's scale is that of the known labels: with as many known absent as
    present in each class, `ignore` puts every class of COCO above an eta of 0.05. The paper gives no eta; the
    authors' code has 0.05, the commands in their README 0.5.
    """

    likelihood: bool = True
    k: int = 5
    pool: Literal["image", "batch"] = "image"
    prior: Literal["estimate"] | None = "estimate"
    top: float | None = 0.05
    eta: float | None = None
    soft_prior: float | None = None
    name: ClassVar[str] = "selective"
    aliases: ClassVar[tuple[str, ...]] = ("csl",)

    @property
    def alone(self) -> str:
        """A batch is one of the process's own."""
        return "" if self.pool == "image" else "the likeliest labels are chosen in each process's own batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 0:
            raise InputError(f"k must be a whole number from 0 up, not {self.k}")
        for name in ("top", "eta"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} must lie in [0, 1], not {value}")
        if self.soft_prior is not None and not 0 <= self.soft_prior < math.inf:
            raise InputError(f"soft_prior must be a number from 0 up, not {self.soft_prior}")

    def check(self, labels: Labels) -> None:
        """Refuse labels with nothing absent where the prior, or learning itself, needs it."""
        if (labels.entries < 0).any():
            return
        if self.prior is not None:
            raise InputError(
                f'"{self.name}" estimates the class frequencies with "ignore", which needs some labels that '
                "are known to be absent, but there are none; set prior=none to select by likelihood alone"
            )
        if self.likelihood and self.k >= len(labels.classes):
            raise InputError(
                f'"{self.name}" leaves out all unknown labels, since k is {self.k} of {len(labels.classes)} '
                "classes, and none are known to be absent; choose a smaller k"
            )

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Where `p_asl` rests: what is left out pulls nowhere, and nothing is chosen yet."""
        return rest(PAsl(**{each.name: getattr(self, each.name) for each in fields(PAsl)}), labels)

    def prepare(self, run: Run) -> None:
        """Estimate the class frequencies, once, and what they make of unknown labels."""
        if self.prior is None:
            return
        tensors = run.state.tensors
        if "prior" not in tensors:
            tensors["prior"] = class_prior(run)
        tensors["prior_weight"] = self._prior_weight(tensors["prior"])

    def _prior_weight(self, prior: Tensor) -> Tensor:
        """Return ω [C] by class: 0 for the frequent ones, or softly less the more frequent."""
        if self.soft_prior is not None:
            return (-self.soft_prior * prior).exp()
        return 1 - self._frequent(prior).to(prior.dtype)

    def _frequent(self, prior: Tensor) -> Tensor:
        """Return which classes [C] are left out where unknown: Ω_P."""
        if self.eta is not None:
            return prior > self.eta
        count = round((self.top or 0) * len(prior))
        # Equal priors share a rank, whatever the order of the classes.
        return prior >= (prior.topk(count).values[-1] if count else math.inf)

    def _prior(self, logits: Tensor, run: Run) -> tuple[Tensor, ...]:
        """Take the loss off Ω_P."""
        return () if self.prior is None else (run.state.tensors["prior_weight"].to(logits),)

    def _left_out(self, logits: Tensor, known: Tensor) -> Tensor:
        """Take the loss off Ω_L."""
        if not self.likelihood or self.k == 0:
            return known[:0]
        rows, columns = (1, logits.numel()) if self.pool == "batch" else logits.shape
        quota = self.k * len(logits) if self.pool == "batch" else self.k
        scores = logits.reshape(-1).index_fill(0, known, -math.inf).view(rows, columns)
        highest, likely = scores.topk(min(quota, columns), dim=1, sorted=False)
        starts = torch.arange(0, rows * columns, columns, device=likely.device)
        places = likely.add_(starts[:, None]).view(-1)
        if highest.min() > -math.inf:
            return places
        return places[highest.view(-1) > -math.inf]  # where fewer than k are unknown, some of these are not
