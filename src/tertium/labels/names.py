"""Class names as people write them: which are the same, which look alike, which are no names.

Everything here looks at the distinct names of a file, never at its rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

SEPARATOR = ";"
_OTHERS = (",", "|")  # what people also write between names, and seldom inside one
_MISSING = frozenset({"nan", "none", "na", "n/a", "#n/a", "<na>", "null", "nil", "-", "?"})
_INVISIBLE = {ord("\u200b"): None, ord("\ufeff"): None}  # zero-width space, byte-order mark
_BREAKS = re.compile(r"[\s_-]+")
_LENGTHS = 4  # of lists; names of classes have two or three words
_COMPARED = 10_000  # names at most that are compared letter by letter
_SHORT = 5  # letters that a word needs for a slip to be told from another word: cat and car are two classes
_RARE = 10  # times as many labels must the other spelling have


def tidy(name: str) -> str:
    """Return a name as it looks: in Unicode's normal form C, with single spaces.

    >>> tidy(" cafe\\u0301\\u00a0 bar ") == "café bar"
    True
    """
    return unicodedata.normalize("NFC", " ".join(name.translate(_INVISIBLE).split()))


def means_nothing(name: str) -> bool:
    """Whether a name is a word that programs write for a missing value.

    >>> means_nothing("NaN"), means_nothing("nun")
    (True, False)
    """
    return name.casefold() in _MISSING


# ---- several names in one ----------------------------------------------------------------------------------


class Joined(NamedTuple):
    """Names that hold what may separate names."""

    separator: str
    names: list[str]
    classes: int  # that there are if they are split
    evident: bool  # whether the parts are classes, beyond reasonable doubt


def joined(names: Sequence[str]) -> Joined | None:
    """Return names that look like lists of names; None if there are none.

    Parts of lists recur: they stand in other lists, and alone. A space is only looked at where it would
    leave half as many classes, or fewer and lists of many lengths: names have spaces for other reasons, and
    "red circle" and "blue square" may well be names.

    >>> joined(["cat,dog", "dog", "cat,fox"])
    Joined(separator=',', names=['cat,dog', 'cat,fox'], classes=3, evident=True)
    >>> joined(["tench, Tinca tinca", "dog"]).evident
    False
    """
    for separator in _OTHERS:
        holders = [name for name in names if separator in name]
        if holders:
            parts = _parts(names, separator)
            own = _parts(holders, separator)
            recurring = sum(parts[part] > 1 for part in own)
            return Joined(separator, holders, len(parts), 2 * recurring >= len(own))
    holders = [name for name in names if " " in name]
    parts = _parts(names, " ")
    lists = len({name.count(" ") for name in holders}) >= _LENGTHS and len(parts) < len(names)
    if holders and (lists or 2 * len(parts) <= len(names)):
        alone = len(names) > len(holders) and any(name in parts for name in set(names).difference(holders))
        return Joined(" ", holders, len(parts), evident=alone or lists)
    return None


def lists_of_classes(names: Sequence[str]) -> list[str]:
    """Return names that consist of other names, with a comma or a bar between them.

    >>> lists_of_classes(["cat", "dog", "cat,dog", "tench, Tinca tinca"])
    ['cat,dog']
    """
    known = set(names)
    return [
        name for name in names if any(mark in name and set(_parts([name], mark)) <= known for mark in _OTHERS)
    ]


def _parts(names: Iterable[str], separator: str) -> Counter[str]:
    """Return in how many names each part stands."""
    return Counter(
        part for name in names for part in {piece.strip() for piece in name.split(separator)} if part
    )


# ---- names that look alike ---------------------------------------------------------------------------------


def look_alike(names: Sequence[str], counts: Callable[[], Mapping[str, int]]) -> list[tuple[str, ...]]:
    """Return groups of names that are probably one: another case, a plural, a slip of the pen.

    A slip of one letter counts where its spelling is much rarer than the other, so ``counts`` is asked how
    many labels each name has; only then, for counting takes a pass over all labels.

    >>> look_alike(["Cat", "cat", "dogs", "dog", "horse"], dict)
    [('Cat', 'cat'), ('dog', 'dogs')]
    >>> look_alike(["bicycle", "bicyle", "horse", "house"], lambda: {"bicycle": 90, "horse": 50, "house": 40})
    [('bicycle', 'bicyle')]
    """
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(_key(name), []).append(name)
    groups = [tuple(group) for group in by_key.values() if len(group) > 1]
    groups += [(by_key[one][0], by_key[many][0]) for one, many in _plurals(by_key)]
    slips = [pair for pair in _slips(by_key) if _is_slip(*pair)] if len(by_key) <= _COMPARED else []
    if slips:
        known = counts()
        for pair in dict.fromkeys(slips):
            rare, common = sorted((by_key[key][0] for key in pair), key=lambda name: known.get(name, 0))
            if _RARE * known.get(rare, 0) <= known.get(common, 0):
                groups.append((common, rare))
    return groups


def misspelt(strangers: Iterable[str], names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (stranger, name) where only case, a plural or one letter tells them apart.

    >>> misspelt(["boatt", "Dog", "animal"], ["boat", "dog"])
    [('Dog', 'dog'), ('boatt', 'boat')]
    """
    known = {_key(name): name for name in names}
    strange = {_key(name): name for name in strangers}
    found = {strange[key]: known[key] for key in strange if key in known}
    every = {**known, **strange}  # names first: of several that are alike, a slip is paired with the first
    pairs = [*_plurals(every), *_slips(every)] if len(every) <= _COMPARED else []
    for one, other in (each for pair in pairs for each in (pair, pair[::-1])):
        if one in strange and one not in known and other in known:
            found.setdefault(strange[one], known[other])
    return list(found.items())


def _key(name: str) -> str:
    return _BREAKS.sub(" ", name.casefold()).strip()


def _plurals(keys: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key in keys:
        if len(key) > 2:
            for many in (f"{key}s", f"{key}es", f"{key[:-1]}ies" if key.endswith("y") else ""):
                if many in keys:
                    yield key, many


def _slips(keys: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield pairs that differ by one letter: another, one more, or two that changed places."""
    without: dict[str, str] = {}
    for key in keys:
        for place in range(len(key)):
            start, end = key[:place], key[place + 1 :]
            if start + end in keys:
                yield start + end, key
            swapped = start + end[:1] + key[place] + end[1:]
            if key < swapped and swapped in keys:
                yield key, swapped
            other = without.setdefault(f"{start}\0{end}", key)
            if other != key:
                yield other, key


def _is_slip(one: str, other: str) -> bool:
    """Whether only words of letters differ, long enough that another letter does not make another word."""
    if one + "s" == other:
        return False  # a plural
    ours, theirs = one.split(), other.split()
    if len(ours) != len(theirs):
        return one.replace(" ", "") == other.replace(" ", "")  # a space more
    differing = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    return all(word.isalpha() and len(word) >= _SHORT for pair in differing for word in pair)
