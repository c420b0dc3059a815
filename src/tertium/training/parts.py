"""The images that are trained on and those that validate: how they are divided, and what is noted of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tertium.annotation.answered import about
from tertium.config import Settings
from tertium.data.coverage import unused_files
from tertium.data.feature_files import feature_names, load_features
from tertium.data.identity import contents
from tertium.data.in_memory import count_images
from tertium.data.inputs import Features, Images, open_inputs
from tertium.data.likeness import Taught
from tertium.data.sources.opening import Place, is_place
from tertium.errors import InputError, some
from tertium.labels import Labels
from tertium.labels.splits import TRAIN, VALIDATION, divide
from tertium.progress import Progress
from tertium.runs import RunData

if TYPE_CHECKING:
    from tertium.training.session import Part


def divide_parts(
    labels: Labels,
    images: Images | None,
    features: Features | None,
    settings: Settings,
    progress: Progress | None,
    validation: Sequence[str] = (),
) -> tuple[Part, Part]:
    """Return the training and the validation part: the file's own splits, or by the names of the images.

    A run that goes on keeps the ``validation`` images that it began with.
    """
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    if labels.split_names():
        rows = labels.rows_in(TRAIN)
        held_out = labels.rows_in(VALIDATION) if labels.has_split(VALIDATION) else rows[:0]
        used = np.sort(np.concatenate([rows, held_out]))
    else:
        rows = used = np.arange(len(labels))
        held_out = rows[:0]
    if not rows.size:
        raise InputError("there are no images to train on")
    # An array of inputs has a row for every image of the file, or for every image of the parts used.
    if _rows(images, features) == len(labels):
        used = np.arange(len(labels))
    part = labels[used]
    inputs = open_inputs(images, features, part.images.to_pylist())
    from tertium.training.session import Part  # loads torch: now that nothing trivial is wrong

    source = Part(part, inputs, contents(inputs, progress))
    rows, held_out = np.searchsorted(used, rows), np.searchsorted(used, held_out)
    if not held_out.size and settings.validation and len(rows) > 1:
        names = source.labels.images.take(rows)
        if validation:
            kept = np.asarray(pc.is_in(names, value_set=pa.array(validation, pa.string())))
            first, second = np.flatnonzero(~kept), np.flatnonzero(kept)
        else:
            # Features of different images may well be the same; image files are not.
            same = None if inputs.pictures is None else source.contents[rows]
            first, second = divide(names, settings.validation, settings.seed, same)
        rows, held_out = rows[first], rows[second]
    return source.select(rows), source.select(held_out)


def _rows(images: Images | None, features: Features | None) -> int | None:
    """Return how many rows an array of inputs has; a folder has names instead, and so may a file."""
    if isinstance(features, str | Path):
        return None if feature_names(features) is not None else len(load_features(features))
    if features is not None:
        return len(features)
    return None if images is None or is_place(images) else count_images(images)


def with_answers(
    training: Part, validation: Part, answers: Labels | None, progress: Progress | None
) -> tuple[Part, Part, Labels | None]:
    """Put the answers into both parts; return also those that are about their images."""
    if answers is None:
        return training, validation, None
    images = pa.concat_arrays([part.labels.images for part in (training, validation)])
    used = about(answers, images, training.labels.classes)
    if not used.known:
        raise InputError("none of the answers is about an image that is trained or validated on")
    if progress is not None:
        unused = answers.known - used.known
        rest = f"; {unused:,} others are about images that are not used" if unused else ""
        progress.note(
            f"{used.known:,} answers are learned, and not taken as a sign of how labels were annotated{rest}"
        )
    return training.with_answers(used), validation.with_answers(used), used


def note_unused(images: Place, labels: Labels, progress: Progress | None) -> None:
    """Say how many files of a place no label is about."""
    unused = None if progress is None else unused_files(images, labels.images.to_pylist())
    if progress is not None and unused is not None:
        progress.note(f"Note: {unused}.")


def note_copies(training: Part, validation: Part, progress: Progress | None) -> None:
    """Say how many images stand under several names, and how many validate what they have taught."""
    if progress is None or training.inputs.pictures is None:
        return
    every = np.concatenate([training.contents, validation.contents])
    copies = len(every) - len(np.unique(every))
    shared = int(np.isin(validation.contents, training.contents).sum())
    if shared:
        progress.note(
            f"Note: {shared:,} of {len(validation.contents):,} validation images are copies of training "
            "images: the validation figures flatter."
        )
    elif copies:
        progress.note(f"Note: {copies:,} images are copies of others; all copies of one validate, or none.")


def note_untaught(training: Part, validation: Part, progress: Progress | None) -> None:
    """Say which classes have all their known positives among the validation images."""
    only = np.flatnonzero((validation.labels.class_counts[0] > 0) & (training.labels.class_counts[0] == 0))
    if progress is None or not only.size:
        return
    what = "1 class is" if only.size == 1 else f"{only.size:,} classes are"
    progress.note(
        f"Note: {what} known present in validation images alone, so that training sees no example: "
        f"{some([training.labels.classes[number] for number in only])}. Another seed, or a split column in "
        "the label file, divides the images in another way."
    )


def taught_by(training: Part, progress: Progress | None) -> Taught | None:
    """Look at the training images, so that near copies of them are found."""
    pictures = training.inputs.pictures
    return None if pictures is None else Taught.of(pictures, training.labels.images.to_pylist(), progress)


def near_copies(
    taught: Taught | None, training: Part, validation: Part, progress: Progress | None
) -> list[tuple[str, str, float]]:
    """Return the validation images that look nearly the same as training images, and say how many."""
    pictures = validation.inputs.pictures
    if taught is None or pictures is None or not len(validation.labels):
        return []
    others = np.flatnonzero(~np.isin(validation.contents, training.contents))  # copies are said apart
    names = validation.labels.images.take(others).to_pylist()
    found = taught.like(pictures.select(others), names, progress)
    if found and progress is not None:
        shown = some([f"{image} and {like}" for image, like, _ in found])
        progress.note(
            f"Note: {len(found):,} of {len(validation.labels):,} validation images look nearly the same as "
            f"training images ({shown}): the validation figures flatter. summary.json lists them."
        )
    return found


def describe(training: Part, validation: Part, truth: Labels | None) -> RunData:
    """Return what a run folder says about its data."""
    from tertium.training.memorisation import true_counts

    counts = dict(zip(("present", "absent"), training.labels.class_counts, strict=True))
    if truth is not None:
        counts["true"] = true_counts(training.labels, truth)
    return RunData(
        training_images=len(training.labels),
        validation_images=len(validation.labels),
        validation=validation.labels.images.to_pylist(),
        classes={
            name: {kind: int(column[number]) for kind, column in counts.items()}
            for number, name in enumerate(training.labels.classes)
        },
        **fingerprints(training, validation),
    )


def fingerprints(training: Part, validation: Part) -> dict[str, Any]:
    """Tell apart the data of two runs."""
    return {
        f"{name}_{kind}": value
        for name, part in (("training", training), ("validation", validation))
        for kind, value in (("labels", part.labels.fingerprint()), ("inputs", part.inputs.fingerprint()))
    }
