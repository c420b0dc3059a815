"""What a paper leaves open, measured; prints the tables of docs/readings.md.

Run it as ``python -m bench.readings ../shared/data/coco [TABLE]...``; without a name all tables are measured.
Models train on 4,000 images and are judged on 4,000 other TRAINING images with full labels; the test images
are not looked at. Two tables ask something else: how well hidden labels of the training images themselves are
found (recovery), and how well class frequencies are estimated (prior).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import Method, Run, make
from tertium.methods.asymmetric import Asl, Focal
from tertium.methods.base import observed_rate
from tertium.methods.benbaruch2021 import PAsl, Selective
from tertium.methods.cole2021 import AnLs, Role, expected_positives
from tertium.methods.kim2022 import LlCp
from tertium.methods.kundu2020 import SoftExposure
from tertium.methods.starts import rest
from tertium.methods.state import Table
from tertium.methods.zhang2021 import Splc
from tertium.metrics.evaluation import average_precision, spearman
from tertium.schemes import parse
from tertium.training.train import train

SEEDS = (0, 1, 2)
IMAGES = 4000


@dataclass(frozen=True, eq=False)
class Data:
    """Images with full labels."""

    labels: Labels
    features: np.ndarray

    def parts(self, seed: int, images: int = IMAGES) -> tuple[Data, Data]:
        """Draw so many images to train on, and as many others (at most 4,000) to judge by."""
        order = np.random.default_rng(seed).permutation(len(self.labels))
        parts = np.sort(order[:images]), np.sort(order[images : images + IMAGES])
        first, second = (Data(self.labels[rows], self.features[rows]) for rows in parts)
        return first, second


# ---- what one run gives -----------------------------------------------------------------------------------

Judge = Callable[[Data, str, int], float]  # of data, a scheme and a seed: a figure


@cache
def held_out(method: Method, data: Data, scheme: str, seed: int, batch_size: int | None = None) -> float:
    """Return the mAP in per cent on images that training has not seen."""
    seen, unseen = data.parts(seed)
    shown = parse(scheme).apply(seen.labels, seed)
    trained = train(shown, features=seen.features, method=method, seed=seed, batch_size=batch_size).trained
    return 100 * trained.evaluate(unseen.labels, features=unseen.features).map_c


@dataclass(frozen=True)
class Watched(Role):
    """`role` that hands out the table of its estimates."""

    def before_epoch(self, run: Run) -> None:
        ESTIMATES[:] = [run.state.table("role")]


ESTIMATES: list[Table] = []


@cache
def recovered(method: Method, data: Data, scheme: str, seed: int) -> tuple[float, float]:
    """Return the mAP in per cent over the unknown labels of the training images.

    By the predictions of the model, and by the estimates of `role`. Nothing is held out and the last epoch
    counts, so that methods are compared after equal epochs.
    """
    seen, _ = data.parts(seed)
    shown = parse(scheme).apply(seen.labels, seed)
    trained = train(shown, features=seen.features, method=method, seed=seed, validation=0.0).trained
    hidden = np.where(shown.dense() == 0, seen.labels.dense(), 0).astype(np.int8)
    predicted = trained.predict_proba(features=seen.features)
    estimated = ESTIMATES[0].values.numpy() if isinstance(method, Watched) else predicted
    found = [100 * float(np.nanmean(average_precision(scores, hidden))) for scores in (predicted, estimated)]
    return found[0], found[1]


def ranked(method: Method, lr: float, data: Data, scheme: str, seed: int) -> float:
    """Return Spearman's correlation of mean predictions and true frequencies, over the classes."""
    seen, _ = data.parts(seed, images=16_000)
    shown = parse(scheme).apply(seen.labels, seed)
    trained = train(shown, features=seen.features, method=method, seed=seed, validation=0.0, lr=lr).trained
    estimated = trained.predict_proba(features=seen.features).mean(axis=0, dtype=np.float64)
    return spearman(estimated, seen.labels.class_counts[0])


def counted(data: Data, scheme: str, seed: int) -> float:
    """Return the expected positives of an image, from partial labels alone."""
    seen, _ = data.parts(seed)
    return expected_positives(parse(scheme).apply(seen.labels, seed))


# ---- other starts of the bias ------------------------------------------------------------------------------


class Observed(Method):
    """Starts at the observed rate, whatever the losses say."""

    def initial_rate(self, labels: Labels) -> np.ndarray:
        return observed_rate(labels)


@dataclass(frozen=True)
class ObservedPAsl(Observed, PAsl):
    """`p_asl` from the observed rate."""


@dataclass(frozen=True)
class ObservedSelective(Observed, Selective):
    """`selective` from the observed rate."""


@dataclass(frozen=True)
class ObservedSplc(Observed, Splc):
    """`splc` from the observed rate."""


@dataclass(frozen=True)
class ObservedSoftExposure(Observed, SoftExposure):
    """`soft_exposure` from the observed rate."""


@dataclass(frozen=True)
class ObservedAsl(Observed, Asl):
    """`asl` from the observed rate."""


@dataclass(frozen=True)
class ObservedFocal(Observed, Focal):
    """`focal` from the observed rate."""


@dataclass(frozen=True)
class RestingAnLs(AnLs):
    """`an_ls` from where its loss rests."""

    def initial_rate(self, labels: Labels) -> np.ndarray:
        return rest(self, labels)


@dataclass(frozen=True)
class RestingRole(Role):
    """`role` whose estimates start where the head does, as they do with a whole network."""

    def _center(self, run: Run) -> np.ndarray:
        rate = self.initial_rate(run.labels)
        return np.log(rate / (1 - rate)).astype(np.float32)


# ---- how many are corrected for good -----------------------------------------------------------------------


@dataclass(frozen=True)
class OneFewer(LlCp):
    """`ll_cp` as the authors' code has it: the last of the k labels counts as present, but only this once."""

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        chosen = run.scratch["chosen"]
        if chosen.any():
            least = logits.masked_fill(~chosen, math.inf).flatten().argmin()
            chosen.view(-1)[least] = False
        super().after_step(logits, batch, run)


# ---- the tables --------------------------------------------------------------------------------------------

READINGS = {
    "negative": [("weight 1", {}), ("weight 5 (Kundu's FE)", {"positive_weight": 5.0})],
    "soft_exposure": [
        ("equation 8", {}),
        ("the prose", {"temperature": "prose"}),
        ("d⁺ and d⁻ each by its own maximum", {"scale": "separate"}),
        ("the prose, each by its own", {"temperature": "prose", "scale": "separate"}),
    ],
    "se_i": [("equation 8", {}), ("the prose", {"temperature": "prose"})],
    "ll_r": [("rate of the unknown", {}), ("rate of all", {"rate_of": "all"})],
    "ll_ct": [("rate of the unknown", {}), ("rate of all", {"rate_of": "all"})],
    "hill": [("weight detached", {}), ("weight differentiated", {"detached": False})],
    "splc": [("weight detached", {}), ("weight differentiated", {"detached": False})],
    "pseudo": [
        ("all unknowns", {}),
        ("a share of 0.3", {"share": 0.3}),
        ("linear exposure", {"exposure": "linear"}),
    ],
    "em": [("plain", {}), ("with apl", {"apl": True})],
}
FACTORS = (10.0, 300.0, 3000.0, 10_000.0)
ROLES: list[tuple[str, Method]] = [
    (f"`role`, lr_factor {factor:g}", make("role", {"lr_factor": factor})) for factor in FACTORS
]
ROLES.append(("`role`, estimates from rest", RestingRole()))
STARTS: list[tuple[str, Method]] = [
    ("`asl`, at rest", Asl()),
    ("`asl`, observed", ObservedAsl()),
    ("`focal`, at rest", Focal()),
    ("`focal`, observed", ObservedFocal()),
    ("`an_ls`, at rest", RestingAnLs()),
    ("`an_ls`, observed", AnLs()),
    ("`p_asl`, at rest", PAsl()),
    ("`p_asl`, observed", ObservedPAsl()),
    ("`selective`, at rest", Selective()),
    ("`selective`, observed", ObservedSelective()),
    ("`splc`, at rest", Splc()),
    ("`splc`, observed", ObservedSplc()),
    ("`soft_exposure`, weighted", SoftExposure()),
    ("`soft_exposure`, observed", ObservedSoftExposure()),
]
SELECTED: list[tuple[str, Method]] = [
    ("top=0.05", Selective()),
    ("eta=0.05 (their code)", Selective(eta=0.05)),
    ("eta=0.5 (their README)", Selective(eta=0.5)),
    ("prior=none", Selective(prior=None)),
]
CORRECTED: list[tuple[str, Method]] = [("k labels for good", LlCp()), ("k − 1", OneFewer())]
Row = tuple[str, Judge]


def of(judge: Callable[..., float], methods: Iterable[tuple[str, Method]]) -> list[Row]:
    return [(meant, partial(judge, method)) for meant, method in methods]


def readings() -> list[Row]:
    return [
        (f"`{name}`, {meant}", partial(held_out, make(name, parameters)))
        for name, choices in READINGS.items()
        for meant, parameters in choices
    ]


def recovery() -> list[Row]:
    def row(method: Method, which: int) -> Judge:
        return lambda data, scheme, seed: recovered(method, data, scheme, seed)[which]

    rows = [("`negative`: predictions", row(make("negative"), 0))]
    for factor in FACTORS[:3]:
        method, name = Watched(lr_factor=factor), f"`role`, lr_factor {factor:g}"
        rows += [(f"{name}: predictions", row(method, 0)), (f"{name}: estimates", row(method, 1))]
    return rows


def prior() -> list[Row]:
    return [
        (f"`{name}`, lr {lr:g}", partial(ranked, make(name), lr))
        for name in ("ignore", "negative")
        for lr in (3e-4, 3e-3)
    ]


TABLES: dict[str, tuple[Callable[[], list[Row]], tuple[str, ...], str]] = {
    "readings": (readings, ("single_positive", "random:0.3", "balanced:0.1"), ".1f"),
    "role": (lambda: of(held_out, ROLES), ("single_positive", "random:0.3", "balanced:0.1"), ".1f"),
    "recovery": (recovery, ("single_positive", "positives:0.3"), ".1f"),
    "expected": (
        lambda: [("k", counted)],
        ("random:0.1", "balanced:0.1", "per_image:1,1", "per_image:1,all", "per_class:100", "federated"),
        ".2f",
    ),
    "prior": (prior, ("per_class:100", "random:0.1"), ".2f"),
    "starts": (lambda: of(held_out, STARTS), ("single_positive", "random:0.3", "per_class:100"), ".1f"),
    "selective": (lambda: of(held_out, SELECTED), ("random:0.3", "per_class:100"), ".1f"),
    "corrected": (
        lambda: of(partial(held_out, batch_size=16), CORRECTED),
        ("single_positive", "random:0.3"),
        ".1f",
    ),
}


def main(folder: Path, *names: str) -> None:
    torch.set_num_threads(1)
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")
    labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images)
    data = Data(labels, np.load(folder / "train_features.npy"))
    for name in names or TABLES:
        rows, schemes, form = TABLES[name]
        print(f"\n| {name} | " + " | ".join(schemes) + " |")
        print("|---|" + "---|" * len(schemes))
        for meant, judge in rows():
            cells = [cell(judge, data, scheme, form) for scheme in schemes]
            print(f"| {meant} | " + " | ".join(cells) + " |", flush=True)


def cell(judge: Judge, data: Data, scheme: str, form: str) -> str:
    """Return the mean over seeds and, behind ±, half the range; a dash where the method refuses."""
    try:
        found = [judge(data, scheme, seed) for seed in SEEDS]
    except InputError:
        return "–"
    return f"{np.mean(found):{form}} ± {(max(found) - min(found)) / 2:{form}}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
