"""What a reader of a published format gives: labels, and what a person should know about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError
from tertium.labels.labels import ContradictionError, Labels, Rule
from tertium.labels.tree import LabelTree


@dataclass(frozen=True)
class Reading:
    """Labels from a published format."""

    labels: Labels
    notes: tuple[str, ...] = ()  # one sentence each: duplicates, contradictions, what was left out
    tree: LabelTree | None = None  # where the format has one


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
        raise InputError(
            f"{source}: {error}; say which holds with --contradictions absent, present or unknown"
        ) from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    found = list(notes)
    if duplicates:
        found.append(f"{duplicates:,} labels were given more than once; each counts once")
    if clashes:
        found.append(f"{clashes:,} labels were given as both present and absent; taken as {contradictions}")
    return Reading(labels, tuple(found), tree)
