"""Which of two models is better, and which epoch is kept, without clean labels and with few images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tertium.labels import Labels
from tertium.models.classifier import Classifier

Record = dict[str, Any]  # the named figures of an epoch
Figures = npt.NDArray[np.float64]  # [N] of each validation image
Judge = Callable[[npt.NDArray[np.float32], Labels], Figures | None]  # of probabilities and labels


@dataclass(frozen=True)
class Verdict:
    """What validation says of a model: named figures, and a judgement on each image, where there is one."""

    figures: Record
    each: Figures | None = None

    def gain(self, other: Verdict) -> Gain | None:
        """Return how much better this model is than another; None if there is nothing to compare.

        The judgement decides, or else the score, or in its place the figure ``decides``. Neither a score nor
        the judgement of a single image has a standard error: it is given as 0.

        >>> Verdict({}, np.array([3.0, 1.0, 3.0, 1.0, 2.0])).gain(Verdict({}, np.zeros(5)))
        Gain(mean=2.0, error=0.4472135954999579)
        """
        if self.each is not None and other.each is not None:
            gains = self.each - other.each
            count = len(gains)
            return Gain(float(gains.mean()), float(gains.std()) / math.sqrt(count - 1) if count > 1 else 0.0)
        mine, theirs = (each.get("decides", each["score"]) for each in (self.figures, other.figures))
        return None if mine is None or theirs is None else Gain(mine - theirs, 0.0)

    def ranks_below(self, other: Verdict) -> bool:
        """Return whether the score is lower than another's.

        >>> Verdict({"score": 0.5}).ranks_below(Verdict({"score": 0.6}))
        True
        """
        mine, theirs = self.figures.get("score"), other.figures.get("score")
        return mine is not None and theirs is not None and mine < theirs


class Gain(NamedTuple):
    """A mean difference over images, and its standard error."""

    mean: float
    error: float


class Best:
    """The weights of the epoch to keep; those of the last one if nothing says which is better.

    With few validation images, differences between epochs are mostly noise, so prior knowledge counts. A head
    on frozen features memorises in the end: a later epoch must be clearly better than the one kept. A whole
    network, whose weights are averaged and whose rate falls to zero, settles only at the end: the latest
    epoch that is not clearly worse than the best is kept. "Clearly" means by more than one standard error,
    which for a score is taken as 0.
    """

    def __init__(self, *, later: bool) -> None:
        self._later = later
        self.epoch = 0
        self.verdict: Verdict | None = None
        self.state: dict[str, Any] = {}
        self._rival: Verdict | None = None  # the one kept; with ``later`` the highest so far

    def offer(self, epoch: int, verdict: Verdict, model: Classifier) -> None:
        """Keep these weights if they are better by this rule."""
        gain = None if self._rival is None else verdict.gain(self._rival)
        if gain is None or (gain.mean >= -gain.error if self._later else gain.mean > gain.error):
            self.epoch, self.verdict = epoch, verdict
            self.state = copy.deepcopy(model.state_dict())
        if gain is None or gain.mean >= 0:
            self._rival = verdict if self._later else self.verdict

    def judgements(self) -> dict[str, Tensor]:
        """Return what was said of each image, about the epoch kept and its rival."""
        verdicts = {"kept": self.verdict, "rival": self._rival}
        return {
            name: torch.tensor(verdict.each)  # a copy: both may be the same array
            for name, verdict in verdicts.items()
            if verdict is not None and verdict.each is not None
        }

    def restore(
        self,
        epoch: int,
        state: dict[str, Tensor],
        records: Sequence[Record],
        judgements: Mapping[str, Tensor],
    ) -> None:
        """Take over what a checkpoint has kept."""
        self.epoch, self.state = epoch, state
        if not epoch:
            return
        each = {name: value.cpu().numpy() for name, value in judgements.items()}
        # Where only scores decide, the one kept has the highest.
        self.verdict, self._rival = (
            Verdict(records[epoch - 1], each.get(name)) for name in ("kept", "rival")
        )
