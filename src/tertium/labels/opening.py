"""The one door for labels: a label file or `Labels`, all of them or one split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tertium.labels.labels import Labels
from tertium.labels.readers import Unlisted, read_labels

Source = Labels | str | Path


def open_labels(
    labels: Source,
    *,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
) -> Labels:
    """Return labels as they are, or read them from a file; of one split if it is named.

    >>> open_labels(Labels.from_dense([[1, -1]])).known
    2
    """
    if not isinstance(labels, Labels):
        labels = read_labels(labels, unlisted=unlisted, classes=classes)
    return labels if split is None else labels.part(split)
