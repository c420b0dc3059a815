"""What the known labels of an image say about its unknown ones, as far as they say anything.

A model judges each label by the image alone. `tertium.annotation.together` also judges it by the image's
other known labels. Both logits are mixed. How much the second counts is decided on the run's validation
images, none of whose labels were used to fit it: by the likelihood of each label given the others. Unless
that is clearly higher, and known labels are clearly ranked better, labels are judged by the image alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.annotation.calibration import (
    Block,
    Chances,
    Floats,
    Signs,
    calibrate,
    log_likelihood,
    shifted,
)
from tertium.annotation.together import Among, Together

if TYPE_CHECKING:
    from tertium.prediction.trained import Trained

_SHARES = (0.25, 0.5, 0.75, 1.0)  # of the logits given the other labels, between which is chosen
_CHOSEN = 2**19  # labels by which, at most


class Told(NamedTuple):
    """How well known validation labels are ranked, each without itself: mean AP."""

    alone: float  # by the image
    given: float  # and by the other known labels too
    labels: int  # how many


@dataclass(frozen=True)
class Relation:
    """Labels of one image that are asked about, and what an answer about one says of the others."""

    labels: tuple[str, ...]
    among: Among
    importance: Floats | None = None  # [K] of each class, by which doubt counts; None where all count alike

    def chances(self, before: Mapping[str, float], said: Mapping[str, int]) -> dict[str, float]:
        """Return the chance of each label, from that before anybody answered and the answers, ±1.

        Answers themselves leave the chance that their label had.
        """
        signs = np.array([said.get(label, 0) for label in self.labels], dtype=np.int8)
        moves = np.where(signs == 0, self.among.moved(signs), 0.0)
        found = shifted(np.array([before[label] for label in self.labels]), moves)
        return dict(zip(self.labels, found.tolist(), strict=True))

    def next(
        self, before: Mapping[str, float], said: Mapping[str, int], still: Collection[str]
    ) -> str | None:
        """Return the label to ask about next, among those that may ``still`` be asked; None if there is none.

        It is the one whose answer takes away most doubt about these labels, given the answers so far.
        """
        places = np.array([label in still for label in self.labels])
        if not places.any():
            return None
        signs = np.array([said.get(label, 0) for label in self.labels], dtype=np.int8)
        now = self.chances(before, said)
        chance = np.array([now[label] for label in self.labels])
        doubt = np.where(signs == 0, chance * (1 - chance), 0.0)
        taken = self.among.taken(signs, doubt)
        if self.importance is not None:
            taken = self.importance * taken
        return self.labels[int(np.where(places, taken.sum(axis=1), -1.0).argmax())]

    def as_json(self) -> str:
        """Return a text that `from_json` reads."""
        parts = self.among if self.importance is None else (*self.among, self.importance)
        return json.dumps([self.labels, *(np.round(part, 6).tolist() for part in parts)])

    @classmethod
    def from_json(cls, text: str) -> Relation:
        """Read what `as_json` wrote."""
        labels, *parts = json.loads(text)
        size = len(Among._fields)
        numbers = [np.array(part, dtype=np.float64) for part in parts]
        return cls(tuple(labels), Among(*numbers[:size]), *numbers[size:])


@dataclass(frozen=True)
class Collective:
    """A model that also hears the known labels of an image."""

    trained: Trained  # with further units, from which the image's factors come
    together: Together
    share: float  # of the logits given the other labels; 0 leaves the model's own
    told: Told | None = None  # None where nothing can be checked

    @classmethod
    def of(cls, trained: Trained, together: Together) -> Collective:
        """Put both together; nothing counts yet."""
        return cls(trained.with_units(together.units), together, 0.0)

    def apart(self, outputs: Block) -> tuple[Block, Block]:
        """Return the probabilities [B, C] by the image alone, and the logits of the other units."""
        classes = len(self.together.classes)
        return outputs[:, :classes], _logits(outputs[:, classes:]).astype(np.float32)

    def scores(self, outputs: Block, labels: Signs, folds: npt.NDArray[np.int8]) -> Block:
        """Return the probability [B, C] of each label given its image and the image's other known labels."""
        alone, units = self.apart(outputs)
        if not self.share:
            return alone
        given = self.together.given_others(self.together.shown(units, folds), labels)
        return _mixed(_logits(alone), given, self.share)

    def chosen(
        self, outputs: Block, labels: Signs, folds: npt.NDArray[np.int8], chances: Chances
    ) -> Collective:
        """Decide on validation images [V] how much the other labels count."""
        step = max(1, -(-labels.size // _CHOSEN))
        outputs, labels, folds = outputs[::step], labels[::step], folds[::step]
        alone, units = self.apart(outputs)
        given = self.together.given_others(self.together.shown(units, folds), labels)
        plain = _logits(alone)
        half = folds % 2 == 0
        before, ranked = _explained(alone, labels, half, chances), _ranked(alone, labels, chances)
        share, most = 0.0, np.zeros(len(labels))
        for each in _SHARES:
            mixed = _mixed(plain, given, each)
            gains = _explained(mixed, labels, half, chances) - before
            # Twice the error: it is itself unsure where few labels are known. A larger share must gain more.
            is_better = _clear(gains - most, 2)
            if is_better and _clear(_ranked(mixed, labels, chances) - ranked, 1):
                share, most = each, gains
        if not np.isfinite(ranked).any():
            return replace(self, share=0.0)
        now = _ranked(_mixed(plain, given, share), labels, chances)
        told = Told(float(np.nanmean(ranked)), float(np.nanmean(now)), int(np.count_nonzero(labels)))
        return replace(self, share=share, told=told)

    def relation(
        self, outputs: Block, labels: Signs, fold: int, columns: npt.NDArray[np.int64], scale: float
    ) -> Relation:
        """Return what some unknown labels of one image [C] say about one another; logits are scaled after."""
        _, units = self.apart(outputs[None])
        shown = self.together.shown(units, np.array([fold], dtype=np.int8))[0]
        among = self.together.among(shown, labels, columns)
        among = among._replace(slope=self.share * scale * among.slope)
        return Relation(tuple(self.together.classes[column] for column in columns), among)

    def note(self) -> str:
        """Say in a line what the known labels tell."""
        if not self.share or self.told is None:
            return "each label is judged by its image alone: known ones do not speak for the others"
        alone, given, count = self.told
        return (
            f"known labels speak for the others of their image: mean AP {100 * given:.1f} instead of "
            f"{100 * alone:.1f} on {count:,} known validation labels, each judged without itself"
        )


def _explained(scores: Block, labels: Signs, half: npt.NDArray[np.bool_], chances: Chances) -> Floats:
    """Return the log-likelihood of each image's labels [V], by a calibration on the other half."""
    found = np.empty(len(labels))
    for seen, rest in ((half, ~half), (~half, half)):
        fit = calibrate(scores[seen], labels[seen], chances.present, chances.absent)
        p = fit.calibrated(scores[rest])
        found[rest] = log_likelihood(p, labels[rest], fit.present, fit.absent).sum(axis=1)
    return found


def _clear(gains: Floats, errors: float) -> bool:
    """Return whether the mean of gains, those that are not NaN, is above so many of its standard errors."""
    some = gains[np.isfinite(gains)]
    return len(some) > 0 and bool(some.mean() > errors * some.std() / np.sqrt(max(len(some) - 1, 1)))


def _ranked(scores: Block, labels: Signs, chances: Chances) -> Floats:
    """Return the average precision of each class [C] as over all its labels; NaN without a known present one.

    A known absent label stands for as many as it would if present ones were known as often. In a class that
    is known absent nowhere, unknown labels count as absent.
    """
    blind = ~(labels < 0).any(axis=0)
    stands = np.where(blind, 1.0, chances.present / np.maximum(chances.absent, 1e-12))
    order = np.argsort(-scores, axis=0, kind="stable")
    ordered = np.take_along_axis(np.where(blind & (labels == 0), np.int8(-1), labels), order, axis=0)
    hits = np.cumsum(ordered > 0, axis=0)
    above = hits + stands * np.cumsum(ordered < 0, axis=0)
    right = np.where(ordered > 0, hits / np.maximum(above, 1e-12), 0.0).sum(axis=0)
    return np.where(hits[-1] > 0, right / np.maximum(hits[-1], 1), np.nan)


def _mixed(alone: Floats, given: Block, share: float) -> Block:
    logits = (1 - share) * alone + share * np.clip(given, -16, 16)
    return np.asarray(1 / (1 + np.exp(-logits)), dtype=np.float32)


def _logits(scores: Block) -> Floats:
    inside = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    return np.asarray(np.log(inside / (1 - inside)))
