"""Whether one model is better than another: both judged on the same labels of the same images."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tertium.data.identity import contents, load_contents
from tertium.data.inputs import Features, Images
from tertium.errors import InputError, some
from tertium.files import keep_inputs, replacing, write_json
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted
from tertium.metrics.paired import LEVEL, Paired, compare_paired
from tertium.metrics.scored import Scored
from tertium.prediction.using import described, opened
from tertium.progress import Progress
from tertium.runs import RunFolder

if TYPE_CHECKING:
    from tertium.labels import Labels
    from tertium.prediction.exported import Exported
    from tertium.prediction.trained import Trained

_PERCENT = round(100 * LEVEL)
Names = npt.NDArray[np.str_]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Better:
    """What `better` found."""

    old: str
    new: str
    on: str  # which images
    left_out: int  # images that either model was trained on, or that only one of two runs validates
    left_out_classes: tuple[str, ...]  # that not both models know
    paired: Paired

    def words(self) -> str:
        """Return the answer as a sentence.

        >>> from tertium.metrics.paired import ClassDifference, Difference, Paired
        >>> gain, same = Difference(0.581, 0.593, 0.004, 0.02), Difference(0.5, 0.5, 0, 0)
        >>> found = Paired(412, gain, same, (ClassDifference("cat", gain, 40, 372),))
        >>> Better("first", "second", "the images of test.csv", 0, (), found).words()
        'second is better by 1.2 mAP (90 % interval 0.4 to 2.0), on the same 412 images.'
        """
        return sentence(self.paired, self.new)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "old": self.old,
            "new": self.new,
            "on": self.on,
            "left_out": self.left_out,
            "left_out_classes": list(self.left_out_classes),
            "words": self.words(),
            **self.paired.to_dict(),
        }


def sentence(paired: Paired, new: str) -> str:
    """Say by how much the new model is better, if that can be told."""
    found, count = paired.map_c, f"{paired.images:,}"
    if not paired.classes:
        return f"Nothing can be told: no class is known both present and absent in the {count} images."
    interval = f"{_PERCENT} % interval {_points(found.low)} to {_points(found.high)}"
    if not found.told:
        gain = f"{'+' if found.gain > 0 else ''}{_points(found.gain)}"
        return f"No difference can be told: {gain} mAP ({interval}), on the same {count} images."
    by = f"{'better' if found.gain > 0 else 'worse'} by {_points(abs(found.gain))} mAP"
    if found.gain < 0:
        interval = f"{_PERCENT} % interval {_points(-found.high)} to {_points(-found.low)}"
    return f"{new} is {by} ({interval}), on the same {count} images."


def _points(value: float) -> str:
    return f"{100 * value:.1f}".replace("-", "−")


def better(
    old: Trained | Exported | str | Path,
    new: Trained | Exported | str | Path,
    labels: Source | None = None,
    images: Images | None = None,
    *,
    features: Features | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Better:
    """Return by how much a new model is better than an old one, with an interval, on the same images.

    With ``labels`` and their images or features both models predict; images that either run was trained on
    are left out. Without, two runs are compared by the scores that they kept of their validation images:
    those that both have, which neither was trained on. ``out``, .json, gets the figures, and a .csv beside it
    those of each class.
    """
    place = None if out is None else Path(out)
    if place is not None:
        if place.suffix != ".json":
            raise InputError(f'{place}: the figures are written as JSON; call it "{place.stem}.json"')
        keep_inputs([place, place.with_suffix(".csv")], [old, new, features, place_of(labels)])
        if not place.parent.is_dir():
            raise InputError(f"{place}: the folder {place.parent} does not exist")
    if labels is not None:
        truth = open_labels(labels, split=split, unlisted=unlisted, progress=progress)
        found = _predicted(old, new, truth, images, features, progress)
        on = f"the images of {place_of(labels) or 'the labels given'}" + (f", split {split}" if split else "")
    else:
        if (images, features, split) != (None, None, None):
            raise InputError("images, features and split belong to a label file: give labels")
        found = _kept(old, new)
        on = "the validation images that both runs share"
    result = Better(_name(old), _name(new), on, *found)
    if place is not None:
        _write(place, result)
    return result


def _name(model: object) -> str:
    return str(model) if isinstance(model, str | Path) else "the model"


# ---- validation images ---------------------------------------------------------------------------------


def _kept(old: object, new: object) -> tuple[int, tuple[str, ...], Paired]:
    """Compare two runs by the scores that they kept."""
    folders = []
    for model in (old, new):
        if not isinstance(model, str | Path) or Path(model).suffix == ".onnx":
            raise InputError("only run folders keep scores of validation images: give labels to compare on")
        folders.append(RunFolder.open(model))
    names = [folder.data().validation for folder in folders]
    scored = [_scored(folder, listed) for folder, listed in zip(folders, names, strict=True)]
    paired = paired_scores(scored, names)
    if paired is None:
        raise InputError(
            f"{old} and {new} have no validation image in common "
            f"(of {len(names[0]):,} and {len(names[1]):,}): give labels of images that neither was trained on"
        )
    classes = _not_shared([each.classes.tolist() for each in scored])
    return len({*names[0], *names[1]}) - len({*names[0]} & {*names[1]}), classes, paired


def _scored(folder: RunFolder, names: Sequence[str]) -> Scored:
    scored = Scored.of_run(folder.path)
    if scored is None or len(names) != scored.images[0]:
        raise InputError(
            f"{folder.path}: has not kept the scores of all its validation images; give labels to compare on"
        )
    return scored


def paired_scores(scored: Sequence[Scored], names: Sequence[Sequence[str]]) -> Paired | None:
    """Compare an old and a new model by their scores of images with these names.

    Images and classes are those that both have; a label counts if it is known to either and both have scored
    it, with what the new one says of it. None if there is no image in common.
    """
    (first, second), (old_names, new_names) = scored, names
    images = np.intersect1d(old_names, new_names)
    classes = np.intersect1d(first.classes, second.classes)
    if not images.size:
        return None
    keys = [_keys(one, each, images, classes) for one, each in zip(scored, names, strict=True)]
    shared, old, new = np.intersect1d(keys[0][0], keys[1][0], return_indices=True)
    old, new = keys[0][1][old], keys[1][1][new]
    sign = np.where(second.sign[new] == 0, first.sign[old], second.sign[new])
    known = sign != 0
    return compare_paired(
        (first.score[old][known], second.score[new][known]),
        shared[known] // len(classes),
        shared[known] % len(classes),
        sign[known] > 0,
        classes.tolist(),
        (_cuts(first, classes), _cuts(second, classes)),
    )


def _cuts(scored: Scored, classes: Names) -> npt.NDArray[np.float64]:
    """Return the thresholds of these classes."""
    order = np.argsort(scored.classes)
    return scored.thresholds[order[np.searchsorted(scored.classes, classes, sorter=order)]]


def _keys(scored: Scored, names: Sequence[str], images: Names, classes: Names) -> tuple[Whole, Whole]:
    """Return one number for image and class of each entry that both models have, and which entries."""
    row, column = _places(np.array(names), images), _places(scored.classes, classes)
    there = np.flatnonzero((row[scored.row] >= 0) & (column[scored.column] >= 0))
    return row[scored.row[there]] * len(classes) + column[scored.column[there]], there


def _places(names: Names, among: Names) -> Whole:
    """Return the place of each name in a sorted list, -1 where it is not."""
    places = np.searchsorted(among, names).clip(max=max(len(among) - 1, 0))
    return np.where(among[places] == names, places, -1) if len(among) else np.full(len(names), -1)


def _not_shared(classes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the classes that are not in all of these lists."""
    sets: list[set[str]] = [set(names) for names in classes]
    return tuple(sorted({name for each in sets for name in each if not all(name in one for one in sets)}))


# ---- labels that are given -----------------------------------------------------------------------------


def _predicted(
    old: Trained | Exported | str | Path,
    new: Trained | Exported | str | Path,
    labels: Labels,
    images: Images | None,
    features: Features | None,
    progress: Progress | None,
) -> tuple[int, tuple[str, ...], Paired]:
    """Compare two models on labels, without the images that either was trained on."""
    descriptions = [described(model) for model in (old, new)]
    inputs = [each.labelled(labels, images, features) for each in descriptions]
    trained = [each for each in map(_trained_on, (old, new)) if each is not None]
    taught = np.zeros(len(labels), dtype=bool)
    if trained:
        taught = np.isin(contents(inputs[0], progress), np.concatenate(trained))
    rest = np.flatnonzero(~taught)
    if not rest.size:
        raise InputError(f"either model was trained on each of the {len(labels):,} images: give others")
    classes = [name for name in labels.classes if all(name in each.classes for each in descriptions)]
    if not classes:
        raise InputError(f"no class of the labels is known to both models ({some(labels.classes)})")
    judged = labels[rest].with_classes(classes)
    rows, columns, signs = judged.coo()
    scores, thresholds = [], []
    for model, description, part in zip((old, new), descriptions, inputs, strict=True):
        ready = opened(model, description)
        chosen = np.array([ready.classes.index(name) for name in classes])
        thresholds.append(np.asarray(ready.thresholds)[chosen])
        scores.append(_scores(ready.stream(part.select(rest), progress), rows, chosen[columns]))
    paired = compare_paired(
        (scores[0], scores[1]), rows, columns, signs > 0, classes, (thresholds[0], thresholds[1])
    )
    left_out = _not_shared([labels.classes, *(each.classes for each in descriptions)])
    return int(taught.sum()), left_out, paired


def _trained_on(model: object) -> npt.NDArray[np.uint64] | None:
    """Return the contents of the images that a run was trained on; an exported file does not say."""
    if not isinstance(model, str | Path):
        return None
    return load_contents(RunFolder(Path(model)).seen_file, "training")


def _scores(
    blocks: Iterable[npt.NDArray[np.float32]], rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the scores of entries [E], of which those of an image are together and in order."""
    found = np.empty(len(rows), dtype=np.float32)
    start = 0
    for block in blocks:
        first, last = np.searchsorted(rows, [start, start + len(block)])
        found[first:last] = block[rows[first:last] - start, columns[first:last]]
        start += len(block)
    return found


def _write(place: Path, result: Better) -> None:
    """Write the figures, and beside them those of each class."""
    write_json(place, result.to_dict())
    with (
        replacing(place.with_suffix(".csv")) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as sink,
    ):
        lines = csv.writer(sink)
        lines.writerow(["class", "old_ap", "new_ap", "difference", "low", "high", "present", "absent"])
        for name, ap, positives, negatives in result.paired.classes:
            lines.writerow([name, ap.old, ap.new, ap.gain, ap.low, ap.high, positives, negatives])
