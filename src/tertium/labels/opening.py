"""The one door for labels: a label file or `Labels`, all of them or one split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tertium.errors import InputError
from tertium.labels.labels import Labels, listed
from tertium.labels.names import tidy
from tertium.labels.readers import LabelFile, Unlisted, check_unlisted, with_all_classes
from tertium.progress import Progress

Source = Labels | LabelFile | str | Path


def open_labels(
    labels: Source,
    *,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Labels:
    """Return labels, or read them from a file; of one split if it is named.

    ``unlisted`` and ``classes`` mean the same for both: unlisted is what is unknown in `Labels`. What a
    person should know about the names in the file is told to ``progress``.

    >>> labels = Labels.from_dense([[1, 0]])
    >>> open_labels(labels).known, open_labels(labels, unlisted="absent").known
    (1, 2)
    """
    if not isinstance(labels, Labels | LabelFile | str | Path):
        raise InputError(
            f"labels cannot be a {type(labels).__name__}; give a label file or tertium.Labels, such as "
            f"{_maker(labels)}"
        )
    if isinstance(labels, Labels):
        labels = _declared(labels, unlisted, classes)
    else:
        file = labels if isinstance(labels, LabelFile) else LabelFile(Path(labels))
        reading = file.read(unlisted=unlisted, classes=classes)
        for note in reading.notes:
            (progress or Progress()).note(f"Note: {note}.")
        labels = reading.labels
    return labels if split is None else labels.part(split)


def _declared(labels: Labels, unlisted: Unlisted, classes: Sequence[str] | None) -> Labels:
    """Return labels as they would be read from a file that lists what is known."""
    check_unlisted(unlisted)
    if classes is not None:
        own = set(labels.classes)  # names that a program made may be untidy, and are meant as they are
        names = [name if name in own else tidy(name) for name in listed(classes)]
        labels = with_all_classes(labels, names, "the labels")
    return labels.unlisted_absent() if unlisted == "absent" else labels


def _maker(given: object) -> str:
    """Return how to make labels of what a caller has: the meaning of its values has to be said."""
    meaning = "present=1, absent=0, unknown=None), with the values that mean so"
    if any(hasattr(given, name) for name in ("__arrow_c_stream__", "__dataframe__", "columns")):
        return f"Labels.from_frame(frame, {meaning}"
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "dtype"):
        return f"Labels.from_dataset(dataset, {meaning}"
    return "Labels.from_dense(Y) with 1 for present, -1 for absent and 0 for unknown"


def place_of(labels: Source | None) -> str | None:
    """Return the path of labels that were given as a file."""
    return None if labels is None or isinstance(labels, Labels) else str(labels)
