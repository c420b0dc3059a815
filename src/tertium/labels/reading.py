"""What a reader gives: labels, and what a person should know about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError
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
    try:
        labels, duplicates, clashes = Labels.merged(
            rows,
            columns,
            values,
            classes=classes,
            images=images,
            splits=splits,
            contradictions=contradictions,
        )
    except ContradictionError as error:
        raise DisagreementError(f"{source}: {error}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    found = list(notes)
    if duplicates:
        found.append(f"{duplicates:,} labels were given more than once; each counts once")
    if clashes:
        found.append(f"{clashes:,} labels were given as both present and absent; taken as {contradictions}")
    return Reading(labels, tuple(found), tree)


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


def splits_of(
    image: npt.NDArray[np.int32],
    split: npt.NDArray[np.int32] | None,
    names: Sequence[str],
    images: pa.StringArray,
    where: Callable[[int], str],
) -> pa.DictionaryArray | None:
    """Return the split of each image, given that of each row; None if no row names one.

    ``image`` and ``split`` are numbers [rows]; ``where`` names a row in an error.
    """
    if split is None or not any(names):
        return None
    code = np.empty(len(images), dtype=np.int32)
    code[image] = split  # the last row of an image decides, …
    clash = np.flatnonzero(code[image] != split)
    if clash.size:  # … and all must agree
        row = int(clash[0])
        name = images[int(image[row])].as_py()
        raise InputError(f'{where(row)}: image "{name}" is in another split elsewhere')
    return pa.DictionaryArray.from_arrays(pa.array(code), pa.array(names, pa.string()))
