"""The ranges in which hyper-parameters are searched, and what each trial tries.

The ranges lie around what the papers chose, wide enough for other data. No result was looked at to set them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Space(Protocol):
    """The values that a parameter may take."""

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one of them."""
        ...


@dataclass(frozen=True)
class Log:
    """Numbers between two, each order of magnitude alike."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Return one, to three digits."""
        return _short(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Even:
    """Numbers between two, all alike."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Return one, to three digits."""
        return _short(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Whole:
    """Whole numbers from one to another."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        """Return one."""
        return int(rng.integers(self.low, self.high + 1))


@dataclass(frozen=True)
class Choice:
    """A few values."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one."""
        return self.values[rng.integers(len(self.values))]


def _short(value: float) -> float:
    return float(f"{value:.3g}")


_EXPECTED = Log(1.0, 10.0)  # present labels of an image
_SWITCH = Choice((False, True))
_LARGE_LOSS = {"delta": Log(0.05, 2.0)}
_SMOOTHED = {"smoothing": Log(0.01, 0.3)}
_WEIGHT = {"positive_weight": Log(1.0, 20.0)}
_FOCUS: Mapping[str, Space] = {"gamma_negative": Even(0.0, 5.0), "gamma_unknown": Even(1.0, 7.0)}
_MARGINS: Mapping[str, Space] = {"margin": Even(0.0, 2.0), "gamma": Even(0.0, 4.0)}
_SOFT: Mapping[str, Space] = {**_WEIGHT, "beta": Log(0.5, 10.0), "gamma": Even(0.0, 1.0)}
_NEAR: Mapping[str, Space] = {**_SOFT, "neighbours": Choice((5, 10, 20, 50))}

COMMON: Mapping[str, Space] = {"lr": Log(3e-5, 3e-3), "weight_decay": Log(0.1, 10.0)}
SPACES: Mapping[str, Mapping[str, Space]] = {
    "an_ls": _SMOOTHED,
    "asl": {"gamma_positive": Even(0.0, 1.0), "gamma_negative": Even(1.0, 6.0), "clip": Even(0.0, 0.2)},
    "auto": {"labels_per_image": _EXPECTED},
    "bce_ls": _SMOOTHED,
    "curriculum": {"gamma": Log(0.3, 3.0), "rounds": Whole(2, 5), "confidence": Even(0.5, 4.0)},
    "em": {"alpha": Log(0.01, 0.5), "apl": _SWITCH, "beta": Log(0.02, 0.9)},
    "epr": {"k": _EXPECTED, "strength": Log(0.1, 10.0)},
    "focal": {"gamma": Even(0.5, 4.0)},
    "gr": {
        "q2": Log(0.01, 1.0),
        "q3": Log(0.1, 1.0),
        "w_end": Even(0.0, 4.0),
        "b_end": Even(-4.0, 0.0),
        "mu_end": Even(0.5, 1.0),
        "sigma_end": Log(0.3, 3.0),
    },
    "hill": {**_MARGINS, "lam": Even(1.0, 2.0)},
    "likelihood": {"labels_per_image": _EXPECTED},
    "ll_cp": _LARGE_LOSS,
    "ll_ct": _LARGE_LOSS,
    "ll_r": _LARGE_LOSS,
    "ls": {**_WEIGHT, "temperature": Log(1.0, 10.0)},
    "negative": _WEIGHT,
    "p_asl": _FOCUS,
    "pseudo": {
        "balance": _SWITCH,
        "exposure": Choice(("exponential", "linear", None)),
        "margin": Whole(0, 6),
        "penalty": _SWITCH,
    },
    "role": {"k": _EXPECTED, "strength": Log(0.1, 10.0), "lr_factor": Log(300.0, 30000.0)},
    "sampled_negative": {"rate": Log(0.003, 1.0)},
    "se_i": _NEAR,
    "se_l": _SOFT,
    "selective": {**_FOCUS, "k": Whole(0, 20), "top": Log(0.01, 0.3)},
    "soft_exposure": _NEAR,
    "splc": {**_MARGINS, "threshold": Even(0.5, 0.9), "start": Whole(2, 5)},
    "weighted_ignore": {"gamma": Log(0.3, 3.0)},
}


def trial_settings(method: str, trial: int, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return what a trial changes, apart from what is ``fixed``; the first one changes nothing.

    Every method gets the same rates and decays. A trial depends on the method and its number alone, so a
    larger search contains the smaller one.

    >>> trial_settings("ll_r", 1)
    {}
    >>> list(trial_settings("ll_r", 2))
    ['lr', 'weight_decay', 'delta']
    >>> trial_settings("ll_r", 2)["lr"] == trial_settings("wan", 2, fixed=["weight_decay"])["lr"]
    True
    """
    if trial == 1:
        return {}
    common, own = np.random.default_rng(trial), np.random.default_rng([trial, zlib.crc32(method.encode())])
    drawn = {key: space.draw(common) for key, space in COMMON.items()}
    drawn |= {key: space.draw(own) for key, space in SPACES.get(method, {}).items()}
    return {key: value for key, value in drawn.items() if key not in fixed}
