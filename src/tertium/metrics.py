"""Metrics: how good scores are on the labels that are known; what nobody looked at never counts.

Scores are floats [N, C], also memory-mapped; labels `Labels` or int8 [N, C]; NaN where known is an error.
Scores that do not fit into memory come block by block: `KnownScores` keeps what counts in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.labels import Labels

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Scores = npt.NDArray[np.floating[Any]]
Truth = Labels | npt.NDArray[np.int8]
_Matrix = npt.NDArray[np.integer[Any]]

_SHARE, _FLOOR = 0.15, 2**21  # working memory: a share of the scores' bytes, but no less than two megabytes
_HELD, _SORTED = 2**20, 2**22  # how many keys of 8 bytes are held before they are written, sorted at once
_MOSTLY = 0.25  # known share from which a row's entries are read on from class to class, not searched anew
_BINS = 15  # of the calibration error


def average_precision(scores: Scores, labels: Truth) -> Floats:
    """Return the average precision of each class [C] over its known entries, equal scores taken together.

    The values are scikit-learn's; NaN where a class lacks known-present or known-absent images. Working
    memory is at most 15 % of the scores' bytes or 2 MB, unless a single class needs more than that.

    >>> scores = np.array([[0.9, 0.2], [0.8, 0.7], [0.3, 0.1]], dtype=np.float32)
    >>> average_precision(scores, np.array([[-1, 1], [1, 1], [-1, 0]], dtype=np.int8))
    array([0.5, nan])
    """
    return _Known.read(scores, labels).per_class(_area, np.nan)


def best_thresholds(scores: Scores, labels: Truth) -> Floats:
    """Return for each class [C] the threshold that maximises F1 over its known entries.

    A score at or above the threshold predicts present. The threshold is the score of a known-present entry,
    the highest of those equally good; a class that cannot be scored gets 0.5. Choose thresholds on
    validation data and pass them to `evaluate` with the test data.

    >>> scores = np.array([[0.9, 0.1], [0.75, 0.2], [0.25, 0.3], [0.1, 0.4]])
    >>> best_thresholds(scores, np.array([[1, 1], [-1, 0], [1, 0], [-1, 1]], dtype=np.int8))
    array([0.25, 0.5 ])
    """
    known = _Known.read(scores, labels)
    return known.per_class(lambda hits, predicted, cuts: cuts[np.argmax(hits / (predicted + hits[-1]))], 0.5)


@dataclass(frozen=True)
class Unscored:
    """A class that could not be scored, and why."""

    column: int
    name: str
    reason: str  # "no known present", "no known absent", or both with "and" between


@dataclass(frozen=True)
class Group:
    """A fifth of the classes, taken together by how many annotations they have."""

    name: str  # "G1" has the fewest annotations, "G5" the most
    classes: int
    scored: int  # how many of them
    fewest: int  # annotations of a class
    most: int
    map_c: float  # mean AP of the scored ones, NaN if there are none


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found; every average is over the scored classes only, NaN where there are none.

    A scored class has known-present and known-absent images. A precision without any prediction is 0.
    """

    classes: tuple[str, ...]
    ap: Floats  # [C] NaN where a class is not scored
    positives: Counts  # [C] known present
    negatives: Counts  # [C] known absent
    thresholds: Floats  # [C] behind mF1 and everything after it
    scored: int  # how many classes
    unscored: tuple[Unscored, ...]
    map_c: float  # mean AP
    map_o: float  # mean AP weighted by known positives
    mF1: float  # mean of the classes' F1
    CP: float  # mean of the classes' precision
    CR: float  # mean of the classes' recall
    CF1: float  # harmonic mean of CP and CR
    OP: float  # precision over all known entries of the scored classes
    OR: float  # recall over the same
    OF1: float  # harmonic mean of OP and OR
    ece: float  # calibration error over all known entries; NaN if the scores are not probabilities
    groups: tuple[Group, ...]  # none if all classes have equally many annotations

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain JSON values; NaN and infinities, which JSON lacks, become None."""
        return dict(_plain(asdict(self)))


def evaluate(
    scores: Scores,
    labels: Truth,
    thresholds: npt.ArrayLike | None = None,
    annotations: Counts | None = None,
) -> Evaluation:
    """Score the known entries: average precision, and precision, recall and F1 at the given thresholds.

    ``thresholds`` is one number or one per class [C], 0.5 by default; a score at or above it predicts
    present. Nothing is chosen here: take thresholds from `best_thresholds` on validation data. The classes
    are grouped by ``annotations`` [C], for example of the training labels; by default by these labels.

    >>> scores = np.array([[0.9, 0.2], [0.8, 0.7], [0.3, 0.1]], dtype=np.float32)
    >>> result = evaluate(scores, np.array([[1, 1], [1, 1], [-1, 0]], dtype=np.int8))
    >>> result.map_c, result.scored, result.unscored
    (1.0, 1, (Unscored(column=1, name='1', reason='no known absent'),))
    """
    return _evaluation(_Known.read(scores, labels), thresholds, annotations)


def _evaluation(
    known: _Known | KnownScores, thresholds: npt.ArrayLike | None, annotations: Counts | None
) -> Evaluation:
    cuts = np.asarray(0.5 if thresholds is None else thresholds, dtype=np.float64)
    if cuts.shape not in ((), known.positives.shape) or np.isnan(cuts).any():
        raise InputError(f"thresholds must be one number or one per class ({len(known.names)}), none NaN")
    cuts = np.broadcast_to(cuts, known.positives.shape).copy()
    ap, hits, predicted, ece = _measured(known, cuts)
    scored = ~np.isnan(ap)
    hits, predicted, present = (count[scored] for count in (hits, predicted, known.positives))
    cp, cr = _mean(hits / np.maximum(predicted, 1)), _mean(hits / present)
    op, recall = (_over(hits.sum(), max(count.sum(), scored.any())) for count in (predicted, present))
    return Evaluation(
        classes=known.names,
        ap=ap,
        positives=known.positives,
        negatives=known.negatives,
        thresholds=cuts,
        scored=present.size,
        unscored=_unscored(known),
        map_c=_mean(ap[scored]),
        map_o=_over((ap[scored] * present).sum(), present.sum()),
        mF1=_mean(2 * hits / (predicted + present)),
        CP=cp,
        CR=cr,
        CF1=_harmonic(cp, cr),
        OP=op,
        OR=recall,
        OF1=_harmonic(op, recall),
        ece=ece,
        groups=_grouped(ap, known.positives + known.negatives if annotations is None else annotations),
    )


def _measured(known: _Known | KnownScores, cuts: Floats) -> tuple[Floats, Counts, Counts, float]:
    """Return AP, hits and predictions of each class [C], and the calibration error: all in one pass."""
    ap = np.full(len(known.names), np.nan)
    hits, predicted = np.zeros((2, ap.size), dtype=np.int64)
    gaps, total, probable = np.zeros(_BINS), 0, True
    for column, keys, levels in known.by_class():
        values, present = _unpack(keys, levels)  # from the highest score downwards
        probable = probable and bool(values[0] <= 1 and values[-1] >= 0)
        if probable:
            gaps += _gaps(values.astype(np.float64), present, _BINS)
        total += values.size
        if known.positives[column] and known.negatives[column]:
            ap[column] = _area(*_curve(keys, levels))
            predicted[column] = np.count_nonzero(values >= cuts[column])
            hits[column] = np.count_nonzero(present[: predicted[column]])
        del keys, levels, values, present  # before the next ones are made
    return ap, hits, predicted, _over(np.abs(gaps).sum(), total) if probable else np.nan


def precision_recall_at_k(scores: Scores, labels: Truth, k: int) -> tuple[float, float]:
    """Return P@k and R@k: each image's k highest scores among its known entries, averaged over images.

    An image with fewer than k known entries offers all of them, and its precision is the share of present
    ones. Images without a known entry are left out of P@k, without a known-present one out of R@k; NaN if
    none is left. Among equal scores the absent ones come first: a tie never helps.

    >>> scores = np.array([[0.9, 0.8, 0.1], [0.5, 0.6, 0.7]], dtype=np.float32)
    >>> precision_recall_at_k(scores, np.array([[1, -1, 1], [0, 1, 0]], dtype=np.int8), k=2)
    (0.75, 0.75)
    """
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    precision = recall = images = images_with_present = 0.0
    for piece in _Known.read(scores, labels).pieces():
        keys = _pack(piece.rows - piece.rows.min(), _codes(piece.values)[0], piece.present)
        keys.sort()
        rows, present = (keys >> np.uint64(33)).astype(np.int64), (keys & np.uint64(1)).astype(np.bool_)
        known, positives = np.bincount(rows), np.bincount(rows, weights=present)  # [R] each
        place = np.arange(rows.size) - np.repeat(np.cumsum(known) - known, known)
        hits = np.bincount(rows, weights=present & (place < k))
        precision += (hits / np.clip(known, 1, k)).sum()
        recall += (hits / np.maximum(positives, 1)).sum()
        images += np.count_nonzero(known)
        images_with_present += np.count_nonzero(positives)
    return _over(precision, images), _over(recall, images_with_present)


def calibration_error(scores: Scores, labels: Truth, bins: int = 15) -> float:
    """Return the expected calibration error of probabilities over all known entries; NaN if there are none.

    Bins of equal width: the gap between mean score and share of present entries, weighted by bin size.

    >>> calibration_error(np.array([[0.75, 0.75, 0.25]]), np.array([[1, -1, -1]], dtype=np.int8), bins=2)
    0.25
    """
    if bins < 1:
        raise InputError(f"calibration needs at least 1 bin, not {bins}")
    gaps, total = np.zeros(bins), 0
    for piece in _Known.read(scores, labels).pieces():
        values = piece.values.astype(np.float64)
        outside = (values < 0) | (values > 1)
        if outside.any():
            raise InputError(f"calibration needs probabilities, not {values[np.argmax(outside)]:g}")
        gaps += _gaps(values, piece.present, bins)
        total += values.size
    return _over(np.abs(gaps).sum(), total)


def groups(labels: Truth) -> list[Counts]:
    """Split the classes by how many entries are known into G1 (fewest) … G5, ties by class number.

    The groups differ in size by at most one class; with fewer than five classes the last are empty.

    >>> [group.tolist() for group in groups(np.array([[1, 0, -1, 1, 0, 1], [1, 1, 0, 0, 0, 1]], np.int8))]
    [[4, 1], [2], [3], [0], [5]]
    """
    positives, negatives = _counts(_signs(labels))
    return _fifths(positives + negatives)


def _fifths(annotations: Counts) -> list[Counts]:
    return np.array_split(np.argsort(annotations, kind="stable"), 5)


def grouped_map(ap: Floats, groups: Sequence[Counts]) -> Floats:
    """Return the mean AP of each group over its scored classes; NaN for a group without any.

    >>> grouped_map(np.array([0.5, np.nan, 0.7]), [np.array([0, 1]), np.array([2]), np.array([1])])
    array([0.5, 0.7, nan])
    """
    return np.array([_mean(ap[group][~np.isnan(ap[group])]) for group in groups])


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the rank correlation, average ranks for ties; pairs with a NaN are dropped.

    It is NaN with fewer than two pairs or where one side is constant.

    >>> round(spearman([0.1, 0.2, 0.3, np.nan], [10, 20, 20, 0]), 4)
    0.866
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"a rank correlation needs two lists of one length, not {x.shape} and {y.shape}")
    paired = ~(np.isnan(x) | np.isnan(y))
    x, y = _centred_ranks(x[paired]), _centred_ranks(y[paired])
    return _over(x @ y, np.sqrt((x @ x) * (y @ y)))


def _grouped(ap: Floats, annotations: Counts) -> tuple[Group, ...]:
    if annotations.shape != ap.shape:
        raise InputError(f"annotations must be one count per class ({ap.size}), not {annotations.shape}")
    if not annotations.size or annotations.min() == annotations.max():
        return ()  # then the groups would go by the class numbers
    fifths = _fifths(annotations)
    return tuple(
        Group(
            name=f"G{number}",
            classes=fifth.size,
            scored=int(np.count_nonzero(~np.isnan(ap[fifth]))),
            fewest=int(annotations[fifth].min()),
            most=int(annotations[fifth].max()),
            map_c=float(mean),
        )
        for number, (fifth, mean) in enumerate(zip(fifths, grouped_map(ap, fifths), strict=True), start=1)
        if fifth.size
    )


def _gaps(values: Floats, present: Flags, bins: int) -> Floats:
    """Return by how much the scores of each bin [bins] exceed its present entries, in sum."""
    bin_of = np.minimum((values * bins).astype(np.int64), bins - 1)
    return np.asarray(np.bincount(bin_of, weights=values - present, minlength=bins), dtype=np.float64)


def _unscored(known: _Known | KnownScores) -> tuple[Unscored, ...]:
    lacks = (known.positives == 0, "no known present"), (known.negatives == 0, "no known absent")
    reasons = [" and ".join(why for lack, why in lacks if lack[column]) for column in range(len(known.names))]
    return tuple(Unscored(at, known.names[at], reason) for at, reason in enumerate(reasons) if reason)


def _over(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else np.nan


def _mean(values: Floats) -> float:
    return _over(values.sum(), values.size)


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b != 0 else 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _centred_ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(counts) - (counts + values.size) / 2)[inverse]


# ---- the known entries ---------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """All known entries of some rows, in some classes."""

    rows: Counts
    columns: Counts
    values: Scores
    present: Flags


@dataclass(frozen=True, eq=False)
class _Known:
    """The known entries of scores, whether the labels are sparse or dense."""

    scores: Scores
    signs: Labels | _Matrix
    names: tuple[str, ...]
    positives: Counts  # [C]
    negatives: Counts  # [C]
    budget: int  # bytes of working memory

    @classmethod
    def read(cls, scores: Scores, labels: Truth) -> _Known:
        scores, signs = np.asarray(scores), _signs(labels)
        if scores.dtype not in (np.float16, np.float32, np.float64):
            raise InputError(f"scores must be float16, float32 or float64, not {scores.dtype}")
        if scores.shape != signs.shape:
            raise InputError(f"scores of shape {scores.shape} do not fit labels of shape {signs.shape}")
        names = labels.classes if isinstance(labels, Labels) else tuple(map(str, range(signs.shape[1])))
        return cls(scores, signs, names, *_counts(signs), max(_FLOOR, int(scores.nbytes * _SHARE)))

    def pieces(
        self, first: int = 0, last: int | None = None, cursors: _Matrix | None = None
    ) -> Iterator[_Piece]:
        """Give the known entries of classes first … last − 1 in pieces of whole rows, none of them empty.

        ``cursors`` [N] says where a row's entries from class ``first`` on begin, and is moved on to ``last``.
        """
        size = min(self.budget // 120, 2**17)  # an entry takes some 60 bytes on its way: half the budget
        last = len(self.names) if last is None else last
        if not isinstance(self.signs, Labels):
            found = _dense_pieces(self.scores, self.signs, first, last, size)
        elif cursors is None:
            found = _sparse_pieces(self.scores, self.signs, first, last, size)
        else:
            found = _next_pieces(self.scores, self.signs, cursors, last - first, last, size // 2)
        for piece in found:
            missing = np.isnan(piece.values)
            if missing.any():
                row, column = (int(axis[np.argmax(missing)]) for axis in piece[:2])
                raise _nan(self.names, row, column)
            if missing.size:
                yield piece

    def per_class(self, measure: Callable[[Counts, Counts, Scores], Any], otherwise: float) -> Floats:
        """Measure the curve of each class that can be scored."""
        result = np.full(len(self.names), otherwise)
        for column, keys, levels in self.by_class():
            if self.positives[column] and self.negatives[column]:
                result[column] = measure(*_curve(keys, levels))
            del keys, levels  # before the next ones are made
        return result

    def by_class(self) -> Iterator[tuple[int, Keys, Scores]]:
        """Give each class that has known entries, its sorted keys, and what codes stand for (see `_codes`).

        As many classes are sorted at a time as the budget allows.
        """
        ends = np.cumsum(self.positives + self.negatives)
        size = self.budget // (128 if self.scores.dtype == np.float64 else 18)  # ranking takes more arrays
        cursors: _Matrix | None = None
        if isinstance(self.signs, Labels) and self.signs.known > self.scores.size * _MOSTLY:
            cursors = self.signs.offsets[:-1].copy()
        for first, last in _ranges(ends, size):
            before = int(ends[first - 1]) if first else 0
            keys, levels = self._sorted_keys(first, last, int(ends[last - 1]) - before, cursors)
            parts = _parts(keys, first, ends[first:last] - before, levels)
            del keys, levels
            yield from parts
            del parts

    def _sorted_keys(self, first: int, last: int, size: int, cursors: _Matrix | None) -> tuple[Keys, Scores]:
        keys, levels, at = np.empty(size, dtype=np.uint64), self.scores[:0, 0], 0
        found: Iterable[_Piece] = self.pieces(first, last, cursors)
        if size and self.scores.dtype == np.float64:  # ranks need all scores of a class at once
            found = [_Piece(*map(np.concatenate, zip(*found, strict=True)))]
        for piece in found:
            codes, levels = _codes(piece.values)
            keys[at : at + codes.size] = _pack(piece.columns - first, codes, piece.present)
            at += codes.size
        keys.sort()
        return keys, levels


class KnownScores:
    """The known entries of scores that come block by block, in files: memory does not grow with the images.

    The rows may be divided into shares, one for each process: each adds the scores of its own, and when all
    are closed whoever sees the folder evaluates. What comes out does not depend on the shares. Scores count
    as float32. Classes are matched by name; those of the labels that have no score are left out.

    >>> import tempfile
    >>> labels = Labels.from_dense([[1, -1], [-1, 0], [1, 1]], classes=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder, KnownScores(labels, ["cat", "dog"], folder) as known:
    ...     known.add(np.array([[0.9, 0.2], [0.8, 0.7]], dtype=np.float32))
    ...     known.add(np.array([[0.3, 0.1]], dtype=np.float32))
    ...     known.close()
    ...     known.evaluate().ap.round(2).tolist()
    [0.83, 0.5]
    """

    def __init__(
        self,
        labels: Labels,
        classes: Sequence[str],
        folder: str | Path,
        shares: Sequence[range] | None = None,
        share: int = 0,
    ) -> None:
        self.names = tuple(classes)
        self._labels, self._folder = labels, Path(folder)
        self._shares = [range(len(labels))] if shares is None else shares
        self._share, self._row = share, self._shares[share].start
        place = {name: column for column, name in enumerate(self.names)}
        self._moved = np.array([place.get(name, -1) for name in labels.classes], dtype=np.int64)
        self.positives, self.negatives = np.zeros((2, len(self.names)), dtype=np.int64)
        for ours, theirs in zip((self.positives, self.negatives), _counts(_signs(labels)), strict=True):
            ours[self._moved[self._moved >= 0]] = theirs[self._moved >= 0]
        self._ranges = list(_ranges(np.cumsum(self.positives + self.negatives), _SORTED))
        # Where in a sorted run of keys each range of classes begins, and where the last one ends.
        self._edges = np.array([0, *(last for _, last in self._ranges)], dtype=np.uint64) << np.uint64(33)
        self._runs: list[Counts] = []
        self._held: list[Keys] = []
        self._file = open(self._keys_file(share), "wb")  # noqa: SIM115  # closed by `close`

    def __enter__(self) -> KnownScores:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, scores: Scores) -> None:
        """Keep what counts of the scores [B, C] of the next rows."""
        offsets = self._labels.offsets[self._row : self._row + len(scores) + 1]
        if len(offsets) <= len(scores) or scores.shape[1] != len(self.names):
            raise InputError(f"scores of shape {scores.shape} do not fit the labels from row {self._row} on")
        entries = self._labels.entries[offsets[0] : offsets[-1]]
        columns = self._moved[np.abs(entries) - 1]
        rows = np.repeat(np.arange(len(scores)), np.diff(offsets))
        if (columns < 0).any():
            kept = np.flatnonzero(columns >= 0)
            rows, columns, entries = rows[kept], columns[kept], entries[kept]
        values = scores[rows, columns].astype(np.float32, copy=False)
        missing = np.isnan(values)
        if missing.any():
            first = int(np.argmax(missing))
            raise _nan(self.names, self._row + int(rows[first]), int(columns[first]))
        self._held.append(_pack(columns, _codes(values)[0], entries > 0))
        self._row += len(scores)
        if sum(keys.size for keys in self._held) >= _HELD:
            self._write()

    def close(self) -> None:
        """Write what is left; from then on others can read it."""
        rows = self._shares[self._share]
        if self._row != rows.stop:
            raise InputError(f"{self._row - rows.start:,} of {len(rows):,} rows were scored")
        self._write()
        self._file.close()
        np.save(self._runs_file(self._share), np.array(self._runs))

    def evaluate(
        self, thresholds: npt.ArrayLike | None = None, annotations: Counts | None = None
    ) -> Evaluation:
        """Do what `evaluate` does, with what all shares have kept."""
        return _evaluation(self, thresholds, annotations)

    def by_class(self) -> Iterator[tuple[int, Keys, Scores]]:
        """Give each class that has known entries, and its sorted keys."""
        ends = np.cumsum(self.positives + self.negatives)
        runs = [np.load(self._runs_file(share), allow_pickle=False) for share in range(len(self._shares))]
        for number, (first, last) in enumerate(self._ranges):
            before = int(ends[first - 1]) if first else 0
            keys = self._read([found[:, number : number + 2] for found in runs], int(ends[last - 1]) - before)
            keys.sort()
            parts = _parts(keys, first, ends[first:last] - before, np.empty(0, dtype=np.float32))
            del keys
            yield from parts
            del parts

    def _write(self) -> None:
        """Write the held keys as one sorted run, in which each range of classes is one stretch."""
        keys = np.concatenate([np.empty(0, dtype=np.uint64), *self._held])
        keys.sort()
        begun = self._runs[-1][-1] if self._runs else 0
        self._runs.append(begun + np.searchsorted(keys, self._edges))
        self._file.write(keys.data)
        self._held.clear()

    def _read(self, stretches: Sequence[Counts], size: int) -> Keys:
        """Read a stretch of every run of every share: `stretches` has from where to where."""
        keys, at = np.empty(size, dtype=np.uint64), 0
        for share, bounds in enumerate(stretches):
            with open(self._keys_file(share), "rb", buffering=0) as file:
                for start, stop in bounds.tolist():
                    file.seek(8 * start)
                    at += file.readinto(keys[at : at + stop - start].view(np.uint8).data) // 8
        if at != size:
            raise InputError(f"{self._folder}: the scores of {size - at:,} known labels are missing")
        return keys

    def _keys_file(self, share: int) -> Path:
        return self._folder / f"{share}.keys"

    def _runs_file(self, share: int) -> Path:
        return self._folder / f"{share}.runs.npy"


def _nan(names: Sequence[str], row: int, column: int) -> InputError:
    return InputError(f'the score of class {column} ("{names[column]}") in row {row} is NaN')


def _ranges(ends: Counts, size: int) -> Iterator[tuple[int, int]]:
    """Give ranges of classes first … last − 1 that have at most ``size`` entries, or are a single class."""
    first = 0
    while first < ends.size:
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield first, last
        first = last


def _parts(keys: Keys, first: int, ends: Counts, levels: Scores) -> Iterator[tuple[int, Keys, Scores]]:
    """Give the keys of each class from ``first`` on that has any; ``ends`` says where a class's keys end."""
    for column, part in enumerate(np.split(keys, ends[:-1]), start=first):
        if part.size:
            yield column, part, levels


def _signs(labels: Truth) -> Labels | _Matrix:
    """Check labels; those without an unknown entry read as a matrix whose signs count, others stay sparse."""
    if isinstance(labels, Labels):
        return labels.entries.reshape(labels.shape) if labels.is_full else labels
    labels = np.asarray(labels)
    if labels.ndim != 2 or labels.dtype != np.int8:
        raise InputError(f"labels must be a matrix of int8, not {labels.dtype} of shape {labels.shape}")
    extremes = int(labels.min(initial=0)), int(labels.max(initial=0))
    if not -1 <= extremes[0] <= extremes[1] <= 1:
        raise InputError(f"a label is +1 (present), −1 (absent) or 0 (unknown), not {max(extremes, key=abs)}")
    return labels


def _counts(signs: Labels | _Matrix) -> tuple[Counts, Counts]:
    """Count the known-present and the known-absent entries of each class."""
    size = signs.shape[1]
    if isinstance(signs, Labels):  # `class_counts` would take 8 bytes for each known entry
        both = np.zeros(2 * size + 1, dtype=np.int64)
        for start in range(0, signs.known, 2**15):
            both += np.bincount(signs.entries[start : start + 2**15] + np.int64(size), minlength=both.size)
        return both[size + 1 :], both[:size][::-1]
    positives, negatives = np.zeros((2, size), dtype=np.int64)
    for top in range(0, len(signs), 127):  # bytes add up fastest, and 127 flags cannot overflow one
        part = signs[top : top + 127]
        positives += (part > 0).view(np.int8).sum(axis=0, dtype=np.int8)
        negatives += (part < 0).view(np.int8).sum(axis=0, dtype=np.int8)
    return positives, negatives


def _dense_pieces(scores: Scores, signs: _Matrix, first: int, last: int, size: int) -> Iterator[_Piece]:
    by_class = last - first < signs.shape[1]  # some columns of many copy faster one after the other
    order: Any = "F" if by_class else "C"
    step = max(1, size // max(1, last - first))
    for top in range(0, len(signs), step):
        here = slice(top, top + step), slice(first, last)
        part, values = signs[here].ravel(order), scores[here].ravel(order)
        axes = np.arange(top, min(top + step, len(signs))), np.arange(first, last)
        outer, inner = axes[::-1] if by_class else axes
        known = part != 0
        if known.all():
            cells = np.repeat(outer, inner.size), np.tile(inner, outer.size)
        else:
            where = np.flatnonzero(known)
            part, values = part[where], values[where]
            cells = where // inner.size + outer[0], where % inner.size + inner[0]
        rows, columns = cells[::-1] if by_class else cells
        yield _Piece(rows, columns, values, part > 0)


def _sparse_pieces(scores: Scores, labels: Labels, first: int, last: int, size: int) -> Iterator[_Piece]:
    offsets, width = labels.offsets, len(labels.classes)
    size *= min(8, width // (last - first))  # what is not chosen takes little memory
    starts = np.arange(0, labels.known, size, dtype=offsets.dtype)
    edges = np.unique(np.append(np.searchsorted(offsets, starts), len(labels)))
    for top, bottom in pairwise(edges.tolist()):
        entries = labels.entries[offsets[top] : offsets[bottom]]
        columns = np.abs(entries) - 1
        if last - first < width:
            where = np.flatnonzero((columns >= first) & (columns < last))
            entries, columns = entries[where], columns[where]
            rows = np.searchsorted(offsets[top:bottom], where + offsets[top], side="right") + (top - 1)
        else:
            rows = np.repeat(np.arange(top, bottom), np.diff(offsets[top : bottom + 1]))
        columns = columns.astype(np.int64)
        yield _Piece(rows, columns, scores[rows, columns], entries > 0)


def _next_pieces(
    scores: Scores, labels: Labels, cursors: _Matrix, width: int, last: int, size: int
) -> Iterator[_Piece]:
    """Read on where the last classes ended: a row's entries ascend, so the wanted ones come next."""
    ahead, step = np.arange(width, dtype=cursors.dtype)[:, None], max(1, size // width)
    for top in range(0, len(labels), step):
        places = cursors[top : top + step] + ahead  # [width, R]: long rows are what NumPy is quick with
        entries = labels.entries.take(places, mode="clip")
        columns = np.abs(entries) - 1
        wanted = (places < labels.offsets[top + 1 : top + 1 + places.shape[1]]) & (columns < last)
        cursors[top : top + step] += wanted.sum(axis=0, dtype=cursors.dtype)
        where = np.flatnonzero(wanted)
        rows, columns = where % places.shape[1] + top, columns.ravel()[where].astype(np.int64)
        yield _Piece(rows, columns, scores[rows, columns], entries.ravel()[where] > 0)


# ---- sorting packed keys -------------------------------------------------------------------------------
# A key is (class or row, score, label) in one uint64 of 31, 32 and 1 bits. Higher scores get smaller codes
# and the label comes last, so that after a plain sort each class runs from its highest score downwards, and
# among equal scores the present entries come last: the last of them closes the group of equal scores.


def _pack(groups: Counts, codes: npt.NDArray[np.uint32], present: Flags) -> Keys:
    keys = groups.astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= codes
    keys <<= np.uint64(1)
    keys |= present
    return keys


def _codes(values: Scores) -> tuple[npt.NDArray[np.uint32], Scores]:
    """Return 32-bit codes that fall as the scores rise; for 64-bit scores ranks, and what they stand for."""
    if values.dtype != np.float64:
        zeroed = values.astype(np.float32, copy=False) + np.float32(0)  # −0.0 equals 0.0, so give it its bits
        return _flip(zeroed.view(np.int32)).view(np.uint32), values[:0]
    order = np.argsort(values)[::-1]
    ordered = values[order]
    new = np.append(True, ordered[1:] != ordered[:-1])
    codes = np.empty(values.size, dtype=np.uint32)
    codes[order] = np.cumsum(new) - 1
    return codes, ordered[new]


def _flip(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return bits ^ (~(bits >> 31) & np.int32(2**31 - 1))  # bits of positive floats rise with them; own inverse


def _unpack(keys: Keys, levels: Scores) -> tuple[Scores, Flags]:
    """Return the scores and labels of one class's keys."""
    codes = (keys >> np.uint64(1)).astype(np.uint32)  # the class falls off
    return _values(codes, levels), (keys & np.uint64(1)).astype(np.bool_)


def _values(codes: npt.NDArray[np.uint32], levels: Scores) -> Scores:
    return levels[codes] if levels.size else _flip(codes.view(np.int32)).view(np.float32)


def _curve(keys: Keys, levels: Scores) -> tuple[Counts, Counts, Scores]:
    """Return for each score of a known-present entry how many present and known entries reach it, and it."""
    place = np.flatnonzero((keys & np.uint64(1)).astype(np.bool_))
    found = keys[place]
    last = np.flatnonzero(np.append(found[1:] != found[:-1], True))
    codes = (found[last] >> np.uint64(1)).astype(np.uint32)  # the class falls off
    return last + 1, place[last] + 1, _values(codes, levels)


def _area(hits: Counts, predicted: Counts, _: Scores) -> float:
    steps = hits.copy()
    steps[1:] -= hits[:-1]
    return float((steps * (hits / predicted)).sum() / hits[-1])
