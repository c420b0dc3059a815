"""Formats that list what is in an image: they cannot say that a class is absent, so the user says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.ids import normal_ids
from tertium.labels.names import tidy
from tertium.labels.reading import Reading, everything_else_absent, settle

Ints = npt.NDArray[np.int64]
Unlisted = Literal["unknown", "absent"]
Empty = Literal["unknown", "absent"]
Votes = Literal["error", "majority", "absent", "present", "unknown"]
_SHOWN = 3  # labels in an error


@dataclass(frozen=True)
class Listing:
    """Records that each list classes of an image; an image may have several, of several people."""

    images: pa.StringArray  # [N] unique
    image: Ints  # [R] the image of each record
    record: Ints  # [M] the record of each mention
    names: pa.StringArray  # [M] the class that is mentioned

    @classmethod
    def of_images(
        cls,
        ids: Sequence[str] | pa.Array,
        record: npt.ArrayLike,
        names: Sequence[str] | pa.Array,
        source: str,
    ) -> Listing:
        """Take one record for each image."""
        images = normal_ids(pa.array(ids, pa.string()))
        if not len(images):
            raise InputError(f"{source}: there are no images in it")
        if images.null_count or "" in (unique := set(images.to_pylist())):
            raise InputError(f"{source}: an image has no name")
        if len(unique) < len(images):
            counts = pc.value_counts(images)
            twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
            raise InputError(f"{source}: an image is there twice: {some(twice)}")
        return cls(
            images,
            np.arange(len(images)),
            np.asarray(record, dtype=np.int64),
            pa.array(names, pa.string()),
        )


def settle_listing(
    listing: Listing,
    *,
    source: str,
    classes: Sequence[str] | None = None,
    unlisted: Unlisted = "unknown",
    empty: Empty = "unknown",
    votes: Votes = "error",
    how_to_settle: str = "",
    splits: pa.DictionaryArray | None = None,
    notes: Sequence[str] = (),
) -> Reading:
    """Return labels: what a record lists is **present**, and of all else the user says what it is.

    With ``unlisted`` "absent", the other classes are **absent** in an image that has a record. A record that
    lists nothing says so only with ``empty`` "absent". ``votes`` settles what records of one image disagree
    on, and ``how_to_settle`` tells the user how to choose it. ``classes`` names all classes; otherwise they
    are those that are listed.

    >>> listing = Listing.of_images(["a.jpg", "b.jpg"], [0, 1, 1], ["cat", "cat", "dog"], "x.json")
    >>> settle_listing(listing, source="x.json", unlisted="absent").labels.dense()
    array([[ 1, -1],
           [ 1,  1]], dtype=int8)
    """
    if empty == "absent" and unlisted == "unknown":
        raise InputError("--empty absent says that nothing is there, so it needs --unlisted absent too")
    names, columns = _columns(listing.names, classes, source)
    filled = np.bincount(listing.record, minlength=len(listing.image)) > 0
    said = filled | (empty == "absent")
    asked = np.bincount(listing.image[said], minlength=len(listing.images))  # [N] how many said something
    found = list(notes)
    blank = int((~filled).sum())
    if blank:
        meaning = "every class is absent there" if empty == unlisted == "absent" else "they say nothing"
        found.append(f"{blank:,} of {len(filled):,} records name no class: {meaning}")
    once = np.unique(listing.record * len(names) + columns)  # a record that names a class twice says it once
    cells, times = np.unique(
        listing.image[once // len(names)] * len(names) + once % len(names), return_counts=True
    )
    if unlisted == "unknown":
        found.append("classes that are not listed are unknown; --unlisted absent if people looked for all")
        rows, places = np.divmod(cells, len(names))
        ones = np.ones(len(cells), dtype=np.int8)
        return settle(
            rows,
            places,
            ones,
            classes=names,
            images=listing.images,
            splits=splits,
            source=source,
            notes=found,
        )
    others = asked[cells // len(names)] - times  # how many did not list it
    present, doubtful = _decided(listing, names, cells, times, others, votes, source, how_to_settle, found)
    kept = present | doubtful
    return everything_else_absent(
        cells[kept] // len(names),
        cells[kept] % len(names),
        doubtful[kept],
        classes=names,
        images=listing.images,
        splits=splits,
        source=source,
        notes=found,
        annotated=asked > 0,
    )


def _decided(
    listing: Listing,
    names: Sequence[str],
    cells: Ints,
    times: Ints,
    others: Ints,
    votes: Votes,
    source: str,
    how_to_settle: str,
    notes: list[str],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which cells are present, and which are left unknown; say in ``notes`` what was disputed."""
    disputed = others > 0
    if disputed.any() and votes == "error":
        shown = (
            f'"{names[int(cell) % len(names)]}" in "{listing.images[int(cell) // len(names)].as_py()}"'
            for cell in cells[disputed]
        )
        raise InputError(f"{source}: people disagree on {some(shown, _SHOWN)}; {how_to_settle}")
    if votes == "majority":
        present, doubtful = times > others, times == others
    else:
        present, doubtful = ~disputed | (votes == "present"), disputed & (votes == "unknown")
    if disputed.any():
        how = (
            f"most decide, and {int(doubtful.sum()):,} ties are unknown"
            if votes == "majority"
            else f"taken as {votes}"
        )
        notes.append(f"people disagree on {int(disputed.sum()):,} labels: {how}")
    return present, doubtful


def _columns(mentioned: pa.StringArray, classes: Sequence[str] | None, source: str) -> tuple[list[str], Ints]:
    """Return the classes, and the number of that which each mention names."""
    coded = mentioned.dictionary_encode()
    spelt = [tidy(name) for name in coded.dictionary.to_pylist()]
    if "" in spelt:
        raise InputError(f"{source}: the name of a class is empty")
    names = sorted(set(spelt)) if classes is None else [tidy(name) for name in classes]
    if not names:
        raise InputError(f"{source}: no class is named in it, so there are no classes")
    place = {name: number for number, name in enumerate(names)}
    for name in spelt:
        if name not in place:
            raise InputError(f'{source}: there is no class "{name}"; {did_you_mean(name, names)}')
    numbers = np.array([place[name] for name in spelt], dtype=np.int64)
    return names, numbers[np.asarray(coded.indices, dtype=np.int64)]


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise `InputError` if a choice is not one of those there are."""
    if value not in choices:
        raise InputError(f'{what} cannot be "{value}"; {did_you_mean(value, choices)}')


def flattened(lists: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the elements of lists one after the other, and which list each is of; null is an empty list."""
    return np.asarray(pc.list_parent_indices(lists), dtype=np.int64), pc.list_flatten(lists)
