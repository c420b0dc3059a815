"""Several label files, whose images and classes may overlap, merged into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tertium.errors import InputError, did_you_mean, some
from tertium.files import keep_inputs
from tertium.labels.closure import close as closed
from tertium.labels.gathering import Gathering, SplitError
from tertium.labels.ids import normal_ids
from tertium.labels.labels import ContradictionError, Labels, Rule, check_rule
from tertium.labels.names import misspelt
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import Unlisted, write_labels
from tertium.labels.renaming import Renaming, read_renaming
from tertium.labels.tables import Runs
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

_BLOCK = 2**18  # images that are taken at once


@dataclass(frozen=True)
class Part:
    """The labels of one file."""

    name: str
    labels: Labels


@dataclass(frozen=True)
class Merged:
    """The merged labels of several files."""

    labels: Labels
    duplicates: int  # labels that several files give
    contradicted: int  # labels that files give differently


def merge(
    files: Sequence[Source],
    *,
    unlisted: Unlisted | Sequence[Unlisted] = "unknown",
    rename: str | Path | None = None,
    close: LabelTree | str | Path | None = None,
    contradictions: Rule = "error",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Merged:
    """Merge labels whose images and classes may overlap; write them to ``out`` if it is given.

    ``unlisted`` says what it means if a file does not list a label of its own classes and images: once for
    all files, or for each. ``rename`` is a CSV file from,to or file,from,to with new names of classes.
    ``close`` completes the labels along a tree: present goes up, absent goes down. A name in the tree that is
    no class is passed through.
    """
    check_rule(contradictions)
    keep_inputs([out], [*map(place_of, files), rename, close])
    if len(files) < 2:
        raise InputError("give at least two label files to merge")
    choices = [unlisted] * len(files) if isinstance(unlisted, str) else list(unlisted)
    if len(choices) != len(files):
        raise InputError(f"unlisted was given {len(choices)} times for {len(files)} files; once for each")
    parts = [
        Part(place_of(file) or f"labels {number}", open_labels(file, unlisted=choice, progress=progress))
        for number, (file, choice) in enumerate(zip(files, choices, strict=True), start=1)
    ]
    if rename is not None:
        parts = _with_new_names(parts, read_renaming(rename))
    tree = close if isinstance(close, LabelTree | None) else LabelTree.read(close)
    if tree is not None:
        _check_tree(tree, [name for part in parts for name in part.labels.classes], progress)
    merged = join(parts, contradictions=contradictions)
    if tree is not None:
        try:
            labels, more = closed(merged.labels, tree, contradictions=contradictions)
        except ContradictionError as error:
            raise InputError(f"by {close}, {error}; say which holds with --contradictions") from None
        merged = Merged(labels, merged.duplicates, merged.contradicted + more)
    if out is not None:
        write_labels(merged.labels, out, progress=progress)
    return merged


def _check_tree(tree: LabelTree, classes: Sequence[str], progress: Progress | None) -> None:
    """Refuse a tree that implies nothing for the classes; say which of its names are nearly those of one.

    A tree that was written beside converted labels may well have inner nodes that are no classes.
    """
    known = set(classes)
    near = misspelt([name for name in tree.names if name not in known], dict.fromkeys(classes))
    if all(known.isdisjoint(tree.ancestors(name)) for name in known):
        if near:
            name, other = near[0]
            raise InputError(f'the label tree names "{name}", which is not a class; did you mean "{other}"?')
        tree.check(dict.fromkeys(classes))
    if near:
        shown = some(f'"{name}", where "{other}" is one' for name, other in near)
        (progress or Progress()).note(f"Note: the label tree names what is not a class: {shown}.")


def join(parts: Sequence[Part], *, contradictions: Rule = "error") -> Merged:
    """Return one set of labels over all images and classes, each matched by name.

    A class that a file does not have stays unknown in its images, unless another file has labels for it.
    Splits are kept; an image that two files put in different splits is an error.

    >>> cats = Labels.from_dense([[1], [-1]], classes=["cat"], images=["a", "b"])
    >>> dogs = Labels.from_dense([[1]], classes=["dog"], images=["b"])
    >>> join([Part("cats", cats), Part("dogs", dogs)]).labels.dense()
    array([[ 1,  0],
           [-1,  1]], dtype=int8)
    """
    if not parts:
        raise InputError("there are no label files to merge")
    classes = list(dict.fromkeys(name for part in parts for name in part.labels.classes))
    place = {name: number for number, name in enumerate(classes)}
    splits = sorted({name for part in parts for name in part.labels.split_names()})
    rows = Gathering()
    for part in parts:
        moved = np.array([place[name] for name in part.labels.classes], dtype=np.int32)
        codes = _split_codes(part.labels, splits)
        for start in range(0, len(part.labels), _BLOCK):
            _add(rows, part.labels, start, moved, codes)
    try:
        found = rows.settled(
            np.arange(len(classes)), classes=classes, splits=splits, contradictions=contradictions
        )
    except SplitError as error:
        raise InputError(_in_two_splits(parts, error, splits)) from None
    except ContradictionError as error:
        raise InputError(f"{error} {_who(parts, error)}; say which holds with --contradictions") from None
    return Merged(*found)


def _add(
    rows: Gathering,
    labels: Labels,
    start: int,
    moved: npt.NDArray[np.int32],
    codes: npt.NDArray[np.int32] | None,
) -> None:
    """Add some images of a part."""
    offsets = labels.offsets[start : start + _BLOCK + 1]
    count = len(offsets) - 1
    entries = labels.entries[offsets[0] : offsets[-1]]
    rows.add(
        Runs(labels.images[start : start + count], np.ones(count, dtype=np.int32)),
        (moved[np.abs(entries) - 1] << 1) | (entries > 0),
        row=np.repeat(np.arange(count), np.diff(offsets)),
        split=None if codes is None else codes[start : start + count],
    )


def _split_codes(labels: Labels, names: Sequence[str]) -> npt.NDArray[np.int32] | None:
    if not names:
        return None
    code = np.full(len(labels), -1, dtype=np.int32)
    for name in labels.split_names():
        code[labels.rows_in(name)] = names.index(name)
    return code


def _in_two_splits(parts: Sequence[Part], error: SplitError, splits: Sequence[str]) -> str:
    """Name the last file that has an image in another split than a file before."""
    name, other = splits[error.last], splits[error.split]
    own = [part for part in parts if name in part.labels.split_names()]
    return f'{own[-1].name}: image "{error.image}" is in split {name}, elsewhere in {other}'


def _who(parts: Sequence[Part], error: ContradictionError) -> str:
    """Return the names of the files that contradict each other."""
    said: dict[int, str] = {}
    for part in parts:
        if error.label in part.labels.classes:
            # As `Gathering` compares them: ./a and a are one image, even in one file.
            own = pc.equal(normal_ids(part.labels.images), error.image).to_numpy(zero_copy_only=False)
            for value in part.labels.dense(own)[:, part.labels.column(error.label)].tolist():
                said.setdefault(value, part.name)
    return f"(with it in {said[1]}, without it in {said[-1]})"


# ---- renaming ----------------------------------------------------------------------------------------------


def _with_new_names(parts: Sequence[Part], renaming: Renaming) -> list[Part]:
    """Return the parts with new names of classes; a name that no class has is an error.

    Classes of a file that get the same name become one: present where one of them is, absent where all are.
    """
    files = [name for part in parts for name in (part.name, Path(part.name).name)]
    for file, old in renaming.pairs:
        if file and file not in files:
            raise InputError(f'{renaming.source}: there is no file "{file}"; {did_you_mean(file, files)}')
        mine = [part for part in parts if not file or file in (part.name, Path(part.name).name)]
        known = [name for part in mine for name in part.labels.classes]
        if old not in known:
            where = f" in {file}" if file else ""
            raise InputError(
                f'{renaming.source}: there is no class "{old}"{where}; {did_you_mean(old, known)}'
            )
    return [Part(part.name, _renamed(part.labels, renaming.of(part.name))) for part in parts]


def _renamed(labels: Labels, new: Mapping[str, str]) -> Labels:
    names = [new.get(name, name) for name in labels.classes]
    if names == list(labels.classes):
        return labels
    kept = list(dict.fromkeys(names))
    place = {name: number for number, name in enumerate(kept)}
    moved = np.array([place[name] for name in names], dtype=np.int64)
    rows, columns, values = labels.coo()
    columns = moved[columns]
    # Classes that become one: any of them present makes it present, only all of them absent absent.
    cells = (rows * len(kept) + columns) * 2 + (values > 0)
    _, which, times = np.unique(cells, return_inverse=True, return_counts=True)
    whole = (values > 0) | (times[which] == np.bincount(moved)[columns])
    return Labels.merged(
        rows[whole],
        columns[whole],
        values[whole],
        classes=kept,
        images=labels.images,
        splits=labels.splits,
        contradictions="present",
    )[0]
