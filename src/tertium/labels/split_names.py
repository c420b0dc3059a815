"""What the parts of a data set are called: train, val and test, and the other words for them."""

from __future__ import annotations

from collections.abc import Iterable

from tertium.errors import InputError

TRAIN, VALIDATION, TEST = "train", "val", "test"
_WORDS = {
    TRAIN: (TRAIN, "training"),
    VALIDATION: (VALIDATION, "valid", "validation", "dev"),
    TEST: (TEST, "testing"),
}
_PARTS = {word: part for part, words in _WORDS.items() for word in words}


def part_called(name: str) -> str | None:
    """Return which of train, val and test a name stands for, if it does.

    >>> part_called("Validation"), part_called("holdout")
    ('val', None)
    """
    return _PARTS.get(name.strip().casefold())


def find_split(wanted: str, names: Iterable[str]) -> str | None:
    """Return the split that is meant: the one of this name, or else the one with another word for it.

    >>> find_split("val", ["train", "valid"]), find_split("val", ["val", "valid"]), find_split("val", ["x"])
    ('valid', 'val', None)
    """
    known = list(names)
    if wanted in known:
        return wanted
    part = part_called(wanted)
    found = [name for name in known if part is not None and part_called(name) == part]
    if len(found) > 1:
        shown = " and ".join(f'"{name}"' for name in found)
        raise InputError(f'the splits {shown} could both be "{part}"; rename one of them to "{part}"')
    return found[0] if found else None


def unused_splits(names: Iterable[str]) -> list[str]:
    """Return the names that stand for no part, or for one that another name stands for already.

    >>> unused_splits(["train", "val", "valid", "holdout", ""])
    ['valid', 'holdout', '']
    """
    known = list(names)
    return [name for name in known if (part := part_called(name)) is None or (name != part and part in known)]
