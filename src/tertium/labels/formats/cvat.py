"""CVAT's XML 1.1 ("CVAT for images"): the tags of whole images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa

from tertium.errors import InputError, did_you_mean
from tertium.labels.formats.content import Content
from tertium.labels.formats.listing import Empty, Listing, Unlisted, check_choice, settle_listing
from tertium.labels.formats.xml_events import parse
from tertium.labels.names import tidy
from tertium.labels.reading import Reading

_NAME, _KIND = ("labels", "label", "name"), ("labels", "label", "type")
_TAGGED = ("tag", "any", "")  # kinds of labels that whole images can have
_SHAPES = ("box", "polygon", "polyline", "points", "ellipse", "mask", "cuboid", "skeleton")
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    unlisted: Unlisted = "unknown",
    empty: Empty = "unknown",
) -> Reading:
    """Read tags: a tag makes its class **present** in the image.

    The file does not say what people looked for: every other class is **unknown**, or **absent** if
    ``unlisted`` says so. An image without a tag is unknown throughout, unless ``empty`` is "absent". The
    classes are those that the file declares for tags, or ``classes``. Boxes and other shapes are left out.
    An image's id is its name, its split its subset.
    """
    path = Path(path)
    check_choice("unlisted labels", unlisted, get_args(Unlisted))
    found = _Tags(path)
    parse(path, found.start, found.end, found.data)
    notes = (
        [f"{found.shapes:,} boxes and other shapes are left out; only tags are read"] if found.shapes else []
    )
    declared = [tidy(name) for name, kind in found.labels if kind in _TAGGED]
    if classes is None and declared:
        for name in map(tidy, found.names):
            if name not in declared:
                hint = did_you_mean(name, declared)
                raise InputError(f'{path}: a tag is called "{name}", and there is no such label; {hint}')
    chosen = list(classes) if classes is not None else list(dict.fromkeys(declared)) or None
    listing = Listing.of_images(found.images, np.array(found.record, dtype=np.int64), found.names, str(path))
    return settle_listing(
        listing,
        source=str(path),
        classes=chosen,
        unlisted=unlisted,
        empty=empty,
        splits=pa.array(found.subsets, pa.string()).dictionary_encode() if any(found.subsets) else None,
        notes=notes,
    )


class _Tags:
    """What has been read so far of a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._open, self._text = path, list[str](), list[str]()
        self.images, self.subsets = list[str](), list[str | None]()
        self.record, self.names = list[int](), list[str]()  # of tags
        self.labels = list[tuple[str, str]]()  # name and kind
        self.shapes = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        if not self._open and name != "annotations":
            raise InputError(f"{self._path}: the XML is <{name}>; it must be <annotations>")
        if len(self._open) == 1 and name == "track":
            raise InputError(f"{self._path}: holds tracks of a video, not images")
        if len(self._open) == 1 and name == "image":
            self.images.append(self._attribute("image", attributes, "name"))
            self.subsets.append(attributes.get("subset") or None)
        elif self._open[1:] == ["image"] and name == "tag":
            self.record.append(len(self.images) - 1)
            self.names.append(self._attribute("tag", attributes, "label"))
        elif self._open[1:] == ["image"] and name in _SHAPES:
            self.shapes += 1
        self._open.append(name)
        self._text.clear()

    def end(self, _: str) -> None:
        """End an element."""
        if self._open[1:2] == ["meta"]:
            text = "".join(self._text).strip()
            if tuple(self._open[-3:]) == _NAME:
                self.labels.append((text, ""))
            elif tuple(self._open[-3:]) == _KIND and self.labels:
                self.labels[-1] = (self.labels[-1][0], text)
        self._open.pop()
        self._text.clear()

    def data(self, text: str) -> None:
        """Take text."""
        if self._open[1:2] == ["meta"]:
            self._text.append(text)

    def _attribute(self, element: str, attributes: dict[str, str], name: str) -> str:
        found = attributes.get(name, "").strip()
        if not found:
            where = f"image {len(self.images) + (element == 'image'):,}"
            raise InputError(f"{self._path}: {where}: <{element}> has no {name}")
        return found


def write(path: Path, content: Content) -> None:
    """Write tags for the classes that are present, or probable enough; those are marked as automatic."""
    source = "auto" if content.is_probable else "manual"
    for name in content.classes:
        _check(name)
    with open(path, "w", encoding="utf-8", newline="\n") as sink:
        sink.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n')
        sink.write("  <meta>\n    <task>\n      <labels>\n")
        for name in content.classes:
            sink.write(f"        <label><name>{escape(name)}</name><type>tag</type></label>\n")
        sink.write("      </labels>\n    </task>\n  </meta>\n")
        for row, each in enumerate(content.listed()):
            subset = f" subset={quoteattr(each.split)}" if each.split else ""
            sink.write(f'  <image id="{row}" name={quoteattr(_check(each.image))}{subset}>\n')
            for name in each.names:
                sink.write(f'    <tag label={quoteattr(name)} source="{source}"></tag>\n')
            sink.write("  </image>\n")
        sink.write("</annotations>\n")


def _check(name: str) -> str:
    if _UNSPEAKABLE.search(name):
        raise InputError(f"the name {name!r} has a character that XML cannot hold")
    return name
