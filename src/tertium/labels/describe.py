"""What a set of labels looks like, and which annotation setting it resembles."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.files import replacing
from tertium.labels import Labels
from tertium.labels.split_names import TRAIN

_SHOWN = 5  # images without labels
_FEW = 0.05  # share of images or labels that may deviate: files get merged, answers get added
_ALIKE = 0.3  # of the variance that chance would give; a validation part of 15 % makes it 0.15


class Setting(NamedTuple):
    """A way of annotating that the papers study, and why the labels look like it."""

    name: str
    reason: str


class ClassCount(NamedTuple):
    """How many images a class is known to be present in and absent from, and in how many it is unknown."""

    name: str
    present: int
    absent: int
    unknown: int


class Spread(NamedTuple):
    """How a count is distributed."""

    mean: float
    least: int
    median: float
    most: int


@dataclass(frozen=True)
class Description:
    """Counts of a set of labels."""

    images: int
    classes: int
    present: int
    absent: int
    unknown: int
    present_per_image: Spread
    absent_per_image: Spread
    present_per_class: Spread
    absent_per_class: Spread
    images_without_labels: int
    unlabelled: tuple[str, ...]  # the first of these images
    per_class: tuple[ClassCount, ...]  # the most frequent first
    classes_without_present: tuple[str, ...]
    classes_without_absent: tuple[str, ...]
    splits: dict[str, int]
    setting: Setting

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = asdict(self)
        for name, value in plain.items():
            if isinstance(value, Spread | Setting):
                plain[name] = value._asdict()
        plain["per_class"] = [count._asdict() for count in self.per_class]
        return plain

    def write_classes(self, path: str | Path) -> None:
        """Write the counts of each class as a CSV file."""
        path = Path(path)
        if path.suffix != ".csv":
            raise InputError(f"{path}: the counts of the classes are written as .csv")
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as text:
            lines = csv.writer(text, lineterminator="\n")
            lines.writerow(("class", *ClassCount._fields[1:]))
            lines.writerows(self.per_class)


def describe(labels: Labels) -> Description:
    """Count what is known, and say which annotation setting it resembles.

    If there are several splits, only "train" is judged: test labels are often full when the others are not.

    >>> describe(Labels.from_dense([[1, 0, 0], [0, 1, 0], [0, 1, 0]])).setting
    Setting(name='single positive', reason='every labelled image has exactly one present label, none absent')
    """
    present, absent = labels.class_counts
    in_image, out_of_image = labels.image_counts
    names = np.array(labels.classes, dtype=object)
    bare = np.flatnonzero(in_image + out_of_image == 0)
    return Description(
        images=len(labels),
        classes=len(labels.classes),
        present=int(present.sum()),
        absent=int(absent.sum()),
        unknown=len(labels) * len(labels.classes) - labels.known,
        present_per_image=_spread(in_image),
        absent_per_image=_spread(out_of_image),
        present_per_class=_spread(present),
        absent_per_class=_spread(absent),
        images_without_labels=len(bare),
        unlabelled=tuple(labels.images[int(row)].as_py() for row in bare[:_SHOWN]),
        per_class=_per_class(labels),
        classes_without_present=tuple(names[present == 0]),
        classes_without_absent=tuple(names[absent == 0]),
        splits={name: len(labels.rows_in(name)) for name in labels.split_names()},
        setting=setting_of_training(labels),
    )


def setting_of_training(labels: Labels) -> Setting:
    """Return which setting the labels resemble: those of the split "train", if there are several splits."""
    if not labels.has_split(TRAIN) or len(labels.split_names()) < 2:
        return setting_of(labels)
    name, reason = setting_of(labels.part(TRAIN))
    return Setting(name, f"in the split {TRAIN}, which alone is judged, {reason}")


def _per_class(labels: Labels) -> tuple[ClassCount, ...]:
    present, absent = labels.class_counts
    order = np.argsort(-present, kind="stable")
    columns = (each[order].tolist() for each in (present, absent, len(labels) - present - absent))
    names = [labels.classes[place] for place in order]
    return tuple(ClassCount(*line) for line in zip(names, *columns, strict=True))


def setting_of(labels: Labels) -> Setting:
    """Return the papers' annotation setting that the counts resemble; a likeness, not a proof."""
    present, absent = labels.class_counts
    if labels.known == 0:
        return Setting("nothing known", "there is no present and no absent label")
    if labels.is_full:
        return Setting("full", "every label is known")
    if absent.sum() <= _FEW * labels.known:
        return _positives_only(labels)
    shared = _shared_count(present, absent)
    if shared is not None:
        return Setting("fixed per class", shared)
    known = present + absent
    if _tracks(known, len(labels), labels.known):
        share = labels.known / (len(labels) * len(labels.classes))
        return Setting(
            "partial", f"each class has about {share:.1%} of its labels known, as if dropped at random"
        )
    if _proportional(present, absent):
        ratio = absent.sum() / max(present.sum(), 1)
        return Setting(
            "federated", f"each class has its own verified images, about {ratio:.2g} absent for each present"
        )
    return Setting("partial", "classes are verified both ways, each to another extent")


def _positives_only(labels: Labels) -> Setting:
    absent = int(labels.class_counts[1].sum())
    also = f"only {absent / labels.known:.1%} of the known labels are absent" if absent else ""
    per_image = labels.image_counts[0]
    labelled = per_image > 0
    single = float((per_image[labelled] == 1).mean())
    # Where few images have a label at all, chance alone gives most of those just one.
    if single == 1 or (single >= 1 - _FEW and labelled.mean() >= 0.5):
        share = "every labelled image" if single == 1 else f"{single:.1%} of the labelled images"
        has = "has" if single == 1 else "have"
        return Setting("single positive", f"{share} {has} exactly one present label, {also or 'none absent'}")
    return Setting("positives only", also or "no label is known to be absent")


def _shared_count(present: npt.NDArray[np.int64], absent: npt.NDArray[np.int64]) -> str | None:
    """Return how many present and absent labels most classes have, if chance would not make them so similar.

    If labels were dropped at random, the number of present ones follows the frequency of the class, give or
    take its square root. If a fixed number was kept for each class, all classes are alike, even after some of
    the images went to validation; a class that is rarer than that number has fewer present labels.
    """
    middle = float(np.median(absent))
    root = np.sqrt(middle)  # what chance gives or takes
    short = (present < middle - 1.5 * root - 1) | (absent < middle - 1.5 * root - 1)
    if short.mean() > 0.5 or max(present.max(), absent.max()) > middle + 3 * root + 1:
        return None
    counts = np.concatenate([present[~short], absent[~short]])
    # Of few classes some are alike by chance: the fewer, the more alike they must be.
    alike = min(_ALIKE, max(0.0, 1 - 1.7 / np.sqrt(np.sum(~short))))
    if counts.var() > alike * counts.mean():
        return None
    exact = ((present == counts.max()) & (absent == counts.max())).mean() >= 0.5
    told = f"exactly {counts.max():,}" if exact else f"about {np.median(counts):,.0f}"
    return f"most classes have {told} present labels and as many absent, whether they are rare or frequent"


def _tracks(known: npt.NDArray[np.int64], images: int, total: int) -> bool:
    """Whether the known counts of the classes differ no more than random dropping makes them differ."""
    share = total / (images * len(known))
    sigma = np.sqrt(images * share * (1 - share)) + 1
    return bool((np.abs(known - images * share) <= 4 * sigma).mean() >= 0.95)


def _proportional(present: npt.NDArray[np.int64], absent: npt.NDArray[np.int64]) -> bool:
    """Whether classes with more present labels have more absent ones, by a common factor."""
    both = present > 0
    if both.sum() < 2:
        return False
    ratio = np.log((absent[both] + 0.5) / (present[both] + 0.5))
    return bool(np.median(np.abs(ratio - np.median(ratio))) < 0.2)


def _spread(counts: npt.NDArray[np.int64]) -> Spread:
    if not counts.size:
        return Spread(0.0, 0, 0.0, 0)
    return Spread(
        round(float(counts.mean()), 3), int(counts.min()), float(np.median(counts)), int(counts.max())
    )
