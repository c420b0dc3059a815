"""The one door out: labels, completed labels and predictions as files of other tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tertium.errors import InputError, did_you_mean
from tertium.files import keep_inputs, replacing
from tertium.labels.formats import coco, cvat, fiftyone, labelstudio, wide
from tertium.labels.formats.content import Content
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.probabilities import open_probabilities
from tertium.labels.readers import Unlisted
from tertium.progress import Progress


@dataclass(frozen=True)
class Published:
    """What was written."""

    images: int
    listed: int  # labels that are written as present
    notes: tuple[str, ...]  # what the format could not say


@dataclass(frozen=True)
class _Format:
    """How a format is written, and what may be said about it."""

    write: Callable[..., None]
    endings: tuple[str, ...]
    options: tuple[str, ...] = ()
    says_probabilities: bool = False  # of every class; otherwise a threshold decides which classes are listed
    says_absent: bool = False
    says_scores: bool = True  # how probable what is listed is


FORMATS = {
    "label-studio": _Format(
        labelstudio.write, (".json",), ("prefix", "from_name", "to_name", "model_version")
    ),
    "cvat": _Format(cvat.write, (".xml",), says_scores=False),
    "fiftyone": _Format(fiftyone.write, (".json",)),
    "coco": _Format(coco.write, (".json",), says_absent=True),
    "wide": _Format(wide.write, (".csv", ".tsv", ".parquet"), says_probabilities=True, says_absent=True),
}


def publish(
    labels: Source | None = None,
    *,
    probabilities: str | Path | None = None,
    to: str,
    out: str | Path,
    threshold: float | None = None,
    split: str | None = None,
    unlisted: Unlisted = "unknown",
    prefix: str | None = None,
    from_name: str | None = None,
    to_name: str | None = None,
    model_version: str | None = None,
    progress: Progress | None = None,
) -> Published:
    """Write labels, or a table of `predict` or `complete`, to ``out`` as a file that another tool reads.

    ``to`` is "label-studio", "cvat", "fiftyone", "coco" or "wide". A format that lists the classes of an
    image lists those whose probability is at least ``threshold``. Of Label Studio are ``prefix``, which is
    put before each image's name to make an address, ``from_name`` and ``to_name``, the names of the control
    and the image in the labelling interface, and ``model_version``, which says where predictions are from.
    """
    if to not in FORMATS:
        raise InputError(f'there is no format "{to}" to write; {did_you_mean(to, FORMATS)}')
    kind, out = FORMATS[to], Path(out)
    keep_inputs([out], [place_of(labels), probabilities])
    if out.suffix not in kind.endings:
        raise InputError(f"{out}: {to} is written as {' or '.join(kind.endings)}")
    given = {
        "prefix": prefix,
        "from_name": from_name,
        "to_name": to_name,
        "model_version": model_version,
    }
    options = {name: value for name, value in given.items() if value is not None}
    strange = [f"--{name.replace('_', '-')}" for name in options if name not in kind.options]
    if strange:
        raise InputError(f"{strange[0]} says nothing about {to}")
    content = _content(labels, probabilities, kind, to, threshold, split, unlisted, progress)
    with replacing(out) as temporary:
        kind.write(temporary, content, **options)
    notes = []
    if content.absent and not kind.says_absent:
        notes.append(f"{content.absent:,} labels are known to be absent, which {to} cannot say; left out")
    if content.is_probable and not kind.says_scores:
        notes.append(f"{to} has no place for the probabilities; only the classes are listed")
    return Published(content.images, content.present, tuple(notes))


def _content(
    labels: Source | None,
    probabilities: str | Path | None,
    kind: _Format,
    to: str,
    threshold: float | None,
    split: str | None,
    unlisted: Unlisted,
    progress: Progress | None,
) -> Content:
    if (labels is None) == (probabilities is None):
        raise InputError(
            "give either --labels, a label file, or --probabilities, a table of predict or complete"
        )
    if labels is not None:
        if threshold is not None:
            raise InputError("--threshold is for --probabilities; labels are present or not")
        return Content.of_labels(open_labels(labels, split=split, unlisted=unlisted, progress=progress))
    if split is not None:
        raise InputError("--split is for --labels; a table of probabilities has no splits")
    if kind.says_probabilities and threshold is not None:
        raise InputError(f"--threshold says nothing about {to}, which has every probability")
    if not kind.says_probabilities and (threshold is None or not 0 < threshold <= 1):
        shown = "" if threshold is None else f", not {threshold:g}" if math.isfinite(threshold) else ""
        raise InputError(
            f"{to} lists the classes of an image: say from which probability on, above 0 and up to 1, with "
            f"--threshold, such as --threshold 0.5{shown}"
        )
    return Content.of_probabilities(open_probabilities(str(probabilities)), threshold)
