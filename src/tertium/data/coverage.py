"""How a label file and a place with images fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa

from tertium.data.sources.opening import Place, open_source
from tertium.errors import some
from tertium.labels.ids import spelling

_NO_ENDING = "no ending"


@dataclass(frozen=True)
class Coverage:
    """Which files have labels, and which labelled images have a file."""

    files: int  # images that there are
    unnamed: list[str]  # of these, what the labels do not name
    missing: list[str]  # labelled images without a file
    respelt: dict[str, str]  # of these, the file whose name differs only in case, ending or normal form
    unread: dict[str, int]  # endings that are not read, and how many files have them


def coverage(place: Place, names: Sequence[str]) -> Coverage:
    """Compare the images of a folder, or of another place, with those that labels name.

    Hidden files do not count.
    """
    source = open_source(place)
    images, others = (
        [name for name in found if not PurePosixPath(name).name.startswith(".")]
        for found in (source.names, source.unread)
    )
    there, named = set(images), set(names)
    missing = [name for name in names if name not in there]
    endings = Counter(PurePosixPath(name).suffix.lower() or _NO_ENDING for name in others)
    return Coverage(
        files=len(images),
        unnamed=[name for name in images if name not in named],
        missing=missing,
        respelt=_respelt(missing, [*others, *images]),  # of two that fit, an image
        unread=dict(endings.most_common()),
    )


def unused_files(place: Place, names: Sequence[str]) -> str | None:
    """Return a sentence on the image files of a place that labels do not name; None if they name all."""
    source = open_source(place)
    found = coverage(source, names)
    if not found.unnamed:
        return None
    share = f"{len(found.unnamed):,} of the {found.files:,} image files in {source.place}"
    return f"{share} are not named by the labels and are not used: {some(found.unnamed)}"


def _respelt(missing: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    if not missing or not files:
        return {}
    known = dict(zip(spelling(pa.array(files)).to_pylist(), files, strict=True))
    alike = zip(missing, spelling(pa.array(missing)).to_pylist(), strict=True)
    return {name: known[common] for name, common in alike if common in known}
