"""What a reader gives: labels, and what a person should know about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError
from tertium.labels.gathering import Gathering, Settled, SplitError
from tertium.labels.labels import ContradictionError, Labels, Rule
from tertium.labels.tree import LabelTree


@dataclass(frozen=True)
class Reading:
    """Labels from a file."""

    labels: Labels
    notes: tuple[str, ...] = ()  # one sentence each: duplicates, contradictions, what was left out
    tree: LabelTree | None = None  # where the format has one
    seen: str = ""  # which values stand in the file, in words


class DisagreementError(InputError):
    """Rows of a file that disagree; ``what`` says where, without a hint what to do."""

    def __init__(self, what: str) -> None:
        """Take what is wrong."""
        self.what = what
        super().__init__(f"{what}; say which holds with --contradictions absent, present or unknown")


def settle(
    rows: npt.ArrayLike,
    columns: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    classes: Sequence[str],
    images: Iterable[str] | pa.Array,
    splits: pa.DictionaryArray | None = None,
    contradictions: Rule = "error",
    source: str,
    notes: Sequence[str] = (),
    tree: LabelTree | None = None,
) -> Reading:
    """Return labels from (row, column, ±1) triples, with notes on duplicates and contradictions.

    ``source`` names the file in an error.
    """
    with _naming(source):
        found = Settled(
            *Labels.merged(
                rows,
                columns,
                values,
                classes=classes,
                images=images,
                splits=splits,
                contradictions=contradictions,
            )
        )
    return _told(found, contradictions, notes, tree)


def settle_rows(
    rows: Gathering,
    columns: npt.NDArray[np.int64],
    *,
    classes: Sequence[str],
    splits: Sequence[str] = (),
    contradictions: Rule = "error",
    suffix: str = "",
    source: str,
    notes: Sequence[str] = (),
) -> Reading:
    """Return labels from rows that were gathered, of which there may be any number; see `settle`.

    An image in two splits raises `SplitError`, which the caller explains.
    """
    with _naming(source):
        found = rows.settled(
            columns, classes=classes, splits=splits, contradictions=contradictions, suffix=suffix
        )
    return _told(found, contradictions, notes, None)


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Name the file in an error."""
    try:
        yield
    except SplitError:
        raise
    except ContradictionError as error:
        raise DisagreementError(f"{source}: {error}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _told(found: Settled, contradictions: Rule, notes: Sequence[str], tree: LabelTree | None) -> Reading:
    told = list(notes)
    if found.duplicates:
        told.append(f"{found.duplicates:,} labels were given more than once; each counts once")
    if found.clashes:
        told.append(
            f"{found.clashes:,} labels were given as both present and absent; taken as {contradictions}"
        )
    return Reading(found.labels, tuple(told), tree)


def everything_else_absent(
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    doubtful: npt.NDArray[np.bool_],
    *,
    classes: Sequence[str],
    images: Iterable[str] | pa.Array,
    source: str,
    splits: pa.DictionaryArray | None = None,
    notes: Sequence[str] = (),
    annotated: npt.NDArray[np.bool_] | None = None,
) -> Reading:
    """Return full labels in which unknown is what is only doubtful, and all in an image not annotated."""
    cells = rows * len(classes) + columns
    sure = np.unique(cells[~doubtful])  # several objects of a class are no duplicates
    reading = settle(
        sure // len(classes),
        sure % len(classes),
        np.ones(len(sure), dtype=np.int8),
        classes=classes,
        images=images,
        splits=splits,
        source=source,
        notes=notes,
    )
    full = reading.labels.unlisted_absent()
    kept = np.ones(full.shape, dtype=bool)
    kept.reshape(-1)[np.setdiff1d(cells[doubtful], sure)] = False
    if annotated is not None:
        kept[~annotated] = False
    return replace(reading, labels=full if kept.all() else full.with_entries(kept.reshape(-1)))
