"""Image ids: different spellings of one path become one id, and millions of ids are compared quickly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
_BLOCK = 1 << 20  # ids, or 16 letters, worked on at once
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array(
    [(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64
)  # of the first bytes of a word
_ENDING, _LONGEST = r"([^/])\.[A-Za-z0-9]{1,5}$", 6  # letters with the dot
_ALNUM = np.array([chr(code).isascii() and chr(code).isalnum() for code in range(256)])
# "./" at the start or after a slash, and repeated slashes; the two of "https://" stay.
_NEEDLESS = ((r"^(\./+)+", ""), (r"/(\./+)+", "/"), (r"([^:/])//+", r"\1/"), (r"^//+", "/"))


# ---- one spelling ------------------------------------------------------------------------------------------


def normal_ids(ids: pa.StringArray) -> pa.StringArray:
    """Return ids without needless "./" and repeated slashes; ".." stays, for only a folder can resolve it.

    >>> normal_ids(pa.array(["./a.jpg", "b//c.jpg", "../d.jpg", "https://e.org/f.jpg"])).to_pylist()
    ['a.jpg', 'b/c.jpg', '../d.jpg', 'https://e.org/f.jpg']
    """
    letters = _letters(ids)
    for start in range(0, len(letters), 16 * _BLOCK):
        block = letters[start : start + 16 * _BLOCK + 1]
        before = block[:-1]
        if ((block[1:] == ord("/")) & ((before == ord(".")) | (before == ord("/")))).any():
            break
    else:
        return ids
    for pattern, instead in _NEEDLESS:
        ids = pc.replace_substring_regex(ids, pattern, instead)
    return ids


# ---- telling apart -----------------------------------------------------------------------------------------


def surely_distinct(ids: pa.StringArray) -> bool:
    """Whether all ids have different hashes: then they differ; otherwise they may or may not.

    Sorting numbers is several times as quick as a hash table of millions of texts.
    """
    if len(ids) < 2 or ids.null_count:
        return len(ids) < 2
    found = np.sort(_hashes(ids, _lengths(ids)))
    return bool((found[1:] != found[:-1]).all())


def look_alike_ids(ids: pa.StringArray) -> list[tuple[str, str]]:
    """Return pairs of ids that differ in case, in their ending or in Unicode's normal form only.

    >>> look_alike_ids(pa.array(["a.jpg", "b.jpg", "A.JPG", "b.png"]))
    [('a.jpg', 'A.JPG'), ('b.jpg', 'b.png')]
    """
    if not len(ids):
        return []
    plain = _letters(ids).max(initial=0) < 128
    lower = pc.ascii_lower(ids) if plain else _folded(ids)
    ending = _ending(lower)
    if ending is not None and lower.equals(ids):
        return []
    found = _hashes(lower, _stem_lengths(lower) if ending is None else _lengths(lower))
    ordered = np.sort(found)
    if (ordered[1:] != ordered[:-1]).all():
        return []
    again = np.isin(found, ordered[1:][ordered[1:] == ordered[:-1]])
    return _pairs(ids.filter(pa.array(again)))


def spelling(ids: pa.StringArray) -> pa.StringArray:
    """Return what ids of one file have in common however they are spelt: case, ending and normal form apart.

    >>> spelling(pa.array(["x.y/A.JPG", "x.y/a"])).to_pylist()
    ['x.y/a', 'x.y/a']
    """
    return pc.replace_substring_regex(_folded(ids), _ENDING, r"\1")


def _folded(ids: pa.StringArray) -> pa.StringArray:
    return pc.utf8_lower(pc.utf8_normalize(ids, "NFC"))


def _pairs(ids: pa.StringArray) -> list[tuple[str, str]]:
    """Return each id that is spelt like an earlier one, after the first that is."""
    first: dict[str, str] = {}
    pairs = []
    for name, common in zip(ids.to_pylist(), spelling(ids).to_pylist(), strict=True):
        if common in first:
            pairs.append((first[common], name))
        else:
            first[common] = name
    return pairs


def _ending(ids: pa.StringArray) -> str | None:
    """Return what all ids end with, from the dot on; "" if none has a dot, None if endings differ."""
    _, dot, ending = ids[0].as_py().rpartition(".")
    if dot and "/" not in ending:
        return dot + ending if pc.all(pc.ends_with(ids, dot + ending)).as_py() else None
    return None if (_letters(ids) == ord(".")).any() else ""


def _letters(ids: pa.StringArray) -> npt.NDArray[np.uint8]:
    offsets = _offsets(ids)
    return np.frombuffer(ids.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]


def _offsets(ids: pa.StringArray) -> npt.NDArray[np.int32]:
    if not len(ids):
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(ids.buffers()[1], dtype=np.int32)[ids.offset : ids.offset + len(ids) + 1]


def _lengths(ids: pa.StringArray) -> Ints:
    return np.diff(_offsets(ids)).astype(np.int64)


def _stem_lengths(ids: pa.StringArray) -> Ints:
    """Return the lengths without the ending: a dot and up to five letters or digits."""
    letters, ends, lengths = _letters(ids), _offsets(ids)[1:] - _offsets(ids)[0], _lengths(ids)
    stem = lengths.copy()
    rows = np.arange(len(ids))  # whose last letters are letters or digits so far
    for size in range(2, _LONGEST + 1):
        rows = rows[lengths[rows] > size]
        rows = rows[_ALNUM[letters[ends[rows] - size + 1]]]
        here = rows[letters[ends[rows] - size] == ord(".")]
        here = here[letters[ends[here] - size - 1] != ord("/")]
        stem[here] = lengths[here] - size
    return stem


def hashes(ids: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Return a hash of each id."""
    return _hashes(ids, _lengths(ids))


def _hashes(ids: pa.StringArray, lengths: Ints) -> npt.NDArray[np.uint64]:
    """Return a hash of the first letters of each id, eight of them at a time."""
    starts = _offsets(ids)[:-1].astype(np.int64) - _offsets(ids)[0]
    letters = np.concatenate([_letters(ids), np.zeros(8, dtype=np.uint8)])
    words = np.ndarray((len(letters) - 7,), dtype=np.uint64, buffer=letters.data, strides=(1,))
    found = lengths.astype(np.uint64)
    for start in range(0, len(found), _BLOCK):
        block = slice(start, start + _BLOCK)
        _mix(found[block], words, starts[block], lengths[block])
    return found


def _mix(sums: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64], starts: Ints, lengths: Ints) -> None:
    """Add the letters of a block to its sums."""
    for place in range(0, int(lengths.max(initial=0)), 8):
        rows = np.flatnonzero(lengths > place)
        word = words[starts[rows] + place] & _MASKS[np.minimum(lengths[rows] - place, 8)]
        mixed = (sums[rows] + word) * _MIX
        sums[rows] = mixed ^ (mixed >> np.uint64(29))
