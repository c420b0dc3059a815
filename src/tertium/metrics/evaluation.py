"""Metrics: how well scores agree with the known labels; unknown labels never count.

Scores are floats [N, C], also memory-mapped; labels `Labels` or int8 [N, C]; NaN where known is an error.
Scores that do not fit into memory come block by block: `ranking.KnownScores` keeps those of known labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.metrics.ranking import (
    Counts,
    Floats,
    Known,
    KnownScores,
    Scores,
    Truth,
    codes_of,
    known_counts,
    pack,
)

_BINS = 15  # of the calibration error


def average_precision(scores: Scores, labels: Truth) -> Floats:
    """Return the average precision of each class [C] over its known entries, equal scores taken together.

    The values are scikit-learn's; NaN where a class lacks known-present or known-absent images. Working
    memory is at most 15 % of the scores' bytes or 2 MB, unless a single class needs more than that.

    >>> scores = np.array([[0.9, 0.2], [0.8, 0.7], [0.3, 0.1]], dtype=np.float32)
    >>> average_precision(scores, np.array([[-1, 1], [1, 1], [-1, 0]], dtype=np.int8))
    array([0.5, nan])
    """
    return Known.read(scores, labels).per_class(_area, np.nan)


def best_thresholds(scores: Scores, labels: Truth) -> Floats:
    """Return for each class [C] the threshold that maximises F1 over its known entries.

    A score at or above the threshold predicts present. The threshold is the score of a known-present entry,
    the highest of those equally good; a class that cannot be scored gets 0.5. Choose thresholds on
    validation data and pass them to `evaluate` with the test data.

    >>> scores = np.array([[0.9, 0.1], [0.75, 0.2], [0.25, 0.3], [0.1, 0.4]])
    >>> best_thresholds(scores, np.array([[1, 1], [-1, 0], [1, 0], [-1, 1]], dtype=np.int8))
    array([0.25, 0.5 ])
    """
    known = Known.read(scores, labels)
    return known.per_class(lambda hits, predicted, cuts: cuts[np.argmax(hits / (predicted + hits[-1]))], 0.5)


def expected_thresholds(scores: Scores, presence: Floats) -> Floats:
    """Return for each class [C] the threshold with the highest expected F1, given chances of presence [N, C].

    It lies midway between two scores. A class that is expected less than once gets 0.5.

    >>> scores = np.array([[0.9, 0.1], [0.75, 0.2], [0.25, 0.3], [0.1, 0.4]])
    >>> expected_thresholds(scores, np.array([[1.0, 0.1], [0.8, 0.1], [0.1, 0.1], [0.0, 0.2]]))
    array([0.5, 0.5])
    """
    order = np.argsort(-scores, axis=0)
    ranked = np.take_along_axis(np.asarray(scores, dtype=np.float64), order, axis=0)
    hits = np.cumsum(np.take_along_axis(presence, order, axis=0), axis=0)
    total = hits[-1]
    found = hits / (np.arange(1, len(hits) + 1)[:, None] + total)
    after = np.vstack([ranked[1:], np.zeros_like(ranked[:1])])
    found[ranked == after] = -1.0  # equal scores are called together
    best = found.argmax(axis=0)[None, :]
    cuts = (np.take_along_axis(ranked, best, axis=0) + np.take_along_axis(after, best, axis=0))[0] / 2
    return np.where(total < 1, 0.5, cuts)


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
    return evaluate_known(Known.read(scores, labels), thresholds, annotations)


def evaluate_known(
    known: Known | KnownScores,
    thresholds: npt.ArrayLike | None = None,
    annotations: Counts | None = None,
) -> Evaluation:
    """Do what `evaluate` does, with known entries that were already read, or collected block by block.

    >>> import tempfile
    >>> from tertium.labels import Labels
    >>> labels = Labels.from_dense([[1, -1], [-1, 0], [1, 1]], classes=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder, KnownScores(labels, ["cat", "dog"], folder) as known:
    ...     known.add(np.array([[0.9, 0.2], [0.8, 0.7]], dtype=np.float32))
    ...     known.add(np.array([[0.3, 0.1]], dtype=np.float32))
    ...     known.close()
    ...     evaluate_known(known).ap.round(2).tolist()
    [0.83, 0.5]
    """
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


def _measured(known: Known | KnownScores, cuts: Floats) -> tuple[Floats, Counts, Counts, float]:
    """Return AP, hits and predictions of each class [C], and the calibration error: all in one pass."""
    ap = np.full(len(known.names), np.nan)
    hits, predicted = np.zeros((2, ap.size), dtype=np.int64)
    gaps, total, probable = np.zeros(_BINS), 0, True
    for column, ranked in known.by_class():
        probable = probable and bool(ranked.values[0] >= 0 and ranked.values[-1] <= 1)
        if probable:
            gaps += _gaps(*ranked)
        total += ranked.values.size
        if known.positives[column] and known.negatives[column]:
            ap[column] = _area(*ranked.curve())
            hits[column], predicted[column] = ranked.reached(cuts[column])
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
    for piece in Known.read(scores, labels).pieces():
        keys = pack(piece.rows - piece.rows.min(), codes_of(piece.values), piece.present)
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
    for piece in Known.read(scores, labels).pieces():
        values = piece.values.astype(np.float64)
        outside = (values < 0) | (values > 1)
        if outside.any():
            raise InputError(f"calibration needs probabilities, not {values[np.argmax(outside)]:g}")
        gaps += _gaps(values, values[piece.present], bins)
        total += values.size
    return _over(np.abs(gaps).sum(), total)


def groups(labels: Truth) -> list[Counts]:
    """Split the classes by how many entries are known into G1 (fewest) … G5, ties by class number.

    The groups differ in size by at most one class; with fewer than five classes the last are empty.

    >>> [group.tolist() for group in groups(np.array([[1, 0, -1, 1, 0, 1], [1, 1, 0, 0, 0, 1]], np.int8))]
    [[4, 1], [2], [3], [0], [5]]
    """
    positives, negatives = known_counts(labels)
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


def _area(hits: Counts, predicted: Counts, _: Scores) -> float:
    steps = hits.copy()
    steps[1:] -= hits[:-1]
    return float((steps * (hits / predicted)).sum() / hits[-1])


def _gaps(values: Scores, present: Scores, bins: int = _BINS) -> Floats:
    """Return by how much the scores of each bin [bins] exceed its present entries, in sum."""
    bin_of, of_present = (
        np.minimum((each.astype(np.float64) * bins).astype(np.int64), bins - 1) for each in (values, present)
    )
    sums = np.bincount(bin_of, weights=values, minlength=bins)
    return np.asarray(sums - np.bincount(of_present, minlength=bins), dtype=np.float64)


def _unscored(known: Known | KnownScores) -> tuple[Unscored, ...]:
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
