"""How far people agree: Krippendorff's alpha for nominal values, where not everybody says something.

1 is perfect agreement, 0 what chance gives. Alpha compares the pairs of different values within units (what
several people said about one thing) with the pairs that one would find if values were dealt out at random.
A unit with one value alone says nothing. Where all values are the same there is nothing to be told apart:
alpha is then not defined, NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def alpha(counts: npt.ArrayLike) -> float:
    """Return alpha of a table [U, K]: how many people gave unit u the value k.

    >>> round(alpha([[2, 0], [0, 2], [1, 1], [2, 0]]), 3)  # 8 values, 5 and 3; one unit of four differs
    0.533
    """
    table = np.asarray(counts, dtype=np.float64)
    return float(alphas(table, np.zeros(len(table), dtype=np.int64), 1)[0])


def alphas(counts: Floats, groups: Whole, size: int) -> Floats:
    """Return alpha of each group of units [G], such as those of one class; ``groups`` [U] from 0 on."""
    people = counts.sum(axis=1)
    several = people > 1
    counts, groups, people = counts[several], groups[several], people[several]
    # Ordered pairs of different values; a unit of m values counts as m, as it has m (m − 1) ordered pairs.
    different = (people**2 - (counts**2).sum(axis=1)) / (people - 1)
    return _alphas(_summed(counts, groups, size), np.bincount(groups, different, size).astype(np.float64))


def alphas_of_people(values: npt.NDArray[np.int8], people: Whole, units: Whole, size: int) -> Floats:
    """Return alpha of each person [P] against all others: only pairs of values with one of that person's.

    Values are ±1 [A], said by ``people`` [A] of ``units`` [A], at most one by a person of a unit. For two
    people this is the alpha of both.
    """
    both = np.stack([values > 0, values < 0], axis=1).astype(np.float64)  # [A, 2]
    total = _summed(both, units, int(units.max(initial=-1)) + 1)[units]
    others = total - both
    count = others.sum(axis=1)
    shared = count > 0
    both, others, count, people = both[shared], others[shared], count[shared], people[shared]
    share = others / count[:, None]  # what the others say of it, one value in all
    different = 2 * (1 - (both * share).sum(axis=1))
    return _alphas(
        _summed(both + share, people, size), np.bincount(people, different, size).astype(np.float64)
    )


def _summed(rows: Floats, groups: Whole, size: int) -> Floats:
    found = np.zeros((size, rows.shape[1]))
    np.add.at(found, groups, rows)
    return found


def _alphas(totals: Floats, different: Floats) -> Floats:
    """Return 1 − observed / expected disagreement; ``totals`` [G, K] are values, ``different`` [G] pairs."""
    values = totals.sum(axis=1)
    expected = values**2 - (totals**2).sum(axis=1)  # times 1 / (values − 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = 1 - (values - 1) * different / expected
    return np.where(expected > 0, found, np.nan)
