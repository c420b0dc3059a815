"""Chen et al. 2024, "Boosting Single Positive Multi-label Classification with Generalized Robust Loss"."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.methods.base import Method, Run
from tertium.methods.losses.curves import Curve, bce, mean_loss


@dataclass(frozen=True)
class Schedule:
    """The parameters of one epoch."""

    w: float
    b: float
    mu: float
    sigma: float


@dataclass(frozen=True)
class Gr(Method):
    """Unknown labels are softly present or absent, as the model thinks, and weighted by how sure it is.

    Unknown: V·[K·(1 − p^q2)/q2 + (1 − K)·(1 − (1 − p)^q3)/q3]. K = sigmoid(w·p + b) is how far the label
    counts as present, V = exp(−(p − μ)²/2σ²) how much it counts at all; both are detached. (1 − x^q)/q goes
    from −log x at q → 0 to 1 − x at q = 1, which is robust to wrong labels. w, b, μ and σ go in equal steps
    from ``…_start`` in the first epoch to ``…_end`` in the last. Known labels carry ℓ⁺ and ℓ⁻.
    """

    q2: float = 0.01
    q3: float = 1.0
    w_start: float = 0.0
    w_end: float = 2.0
    b_start: float = -2.0
    b_end: float = -2.0
    mu_start: float = 0.5
    mu_end: float = 0.8
    sigma_start: float = 2.0
    sigma_end: float = 0.5
    name: ClassVar[str] = "gr"
    paper: ClassVar[str] = "Chen 2024"

    def __post_init__(self) -> None:
        for field in ("q2", "q3", "sigma_start", "sigma_end"):
            if getattr(self, field) <= 0:
                raise InputError(f"{field} of gr must be above 0, not {getattr(self, field)}")

    def schedule(self, epoch: int, epochs: int) -> Schedule:
        """Return the parameters of an epoch, from 1.

        >>> Gr().schedule(1, 5), Gr().schedule(5, 5)
        (Schedule(w=0.0, b=-2.0, mu=0.5, sigma=2.0), Schedule(w=2.0, b=-2.0, mu=0.8, sigma=0.5))
        """
        done = min(epoch - 1, epochs - 1) / max(epochs - 1, 1)  # exactly 0 and 1 at the ends

        def between(start: float, end: float) -> float:
            return start * (1 - done) + end * done

        return Schedule(
            between(self.w_start, self.w_end),
            between(self.b_start, self.b_end),
            between(self.mu_start, self.mu_end),
            between(self.sigma_start, self.sigma_end),
        )

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Mean over all entries."""
        # Numbers given one by one may change from epoch to epoch without being compiled anew.
        unknown = partial(self._unknown, **asdict(self.schedule(run.epoch, run.epochs)))
        return {"gr": mean_loss(logits, batch.labels, unknown, bce)}

    def _unknown(self, logits: Tensor, w: float, b: float, mu: float, sigma: float) -> Curve:
        log_p = F.logsigmoid(logits)
        p = logits.sigmoid()
        k = torch.sigmoid(w * p + b)
        v = ((p - mu) / sigma).square_().mul_(-0.5).exp_()
        as_present = v * k
        as_absent = v.sub_(as_present)
        fall = torch.expm1(self.q2 * log_p)  # p^q2 − 1
        rise = torch.expm1(self.q3 * (log_p - logits))  # (1 − p)^q3 − 1
        loss = (as_present / -self.q2 * fall).sub_(as_absent * rise / self.q3)
        down = as_absent.mul_(rise.add_(1)).mul_(p)
        return loss, down.sub_(as_present.mul_(fall.add_(1)).mul_(p.neg_().add_(1)))
