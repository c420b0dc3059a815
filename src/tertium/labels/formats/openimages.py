"""Open Images, V3 to V7: human-verified image labels, boxes, class descriptions, the hierarchy."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.closure import ancestors, close
from tertium.labels.formats.text import read_bytes, read_lines, read_names
from tertium.labels.gathering import Gathering, SplitError
from tertium.labels.labels import ContradictionError, Rule
from tertium.labels.reading import Reading, settle_rows
from tertium.labels.tables import Columns, Runs, TextTable, Vocabulary, Words, runs, words
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

Machine = Literal["refuse", "drop"]
_NEEDED = ("ImageID", "Source", "LabelName", "Confidence")
_BOX = "XMin"  # the column that tells boxes from image labels
_GROUP, _DEPICTION = "IsGroupOf", "IsDepiction"
_HEADERS = (("id", "name"), ("LabelName", "DisplayName"))  # of class descriptions in V6, in V7
_SPLITS = {"train": "train", "validation": "val", "val": "val", "test": "test"}
_KNOWN_KEYS = ("LabelName", "Subcategory", "Part")


def read(
    files: Sequence[Path],
    *,
    splits: Sequence[str] = (),
    descriptions: Path | None = None,
    classes: Path | None = None,
    hierarchy: Path | None = None,
    propagate: bool = False,
    parts: bool = False,
    groups: bool = True,
    depictions: bool = True,
    machine: Machine = "refuse",
    suffix: str = ".jpg",
    contradictions: Rule = "error",
    progress: Progress | None = None,
) -> Reading:
    """Read image-label and box files of Open Images, recognised by their columns.

    An image label with confidence 1 is present, with confidence 0 absent: a person verified it. A box makes
    its class present; without ``groups`` or ``depictions``, a class that only has such boxes stays unknown,
    as does everything that no file mentions, since nobody was asked about it. Machine-generated rows,
    recognised by their source or by a confidence between 0 and 1, are refused, or dropped.

    ``splits`` names the split of each file; otherwise the file's name says train, validation (which becomes
    ``val``) or test. An image's id is its ImageID with ``suffix``, the name of the published image file.
    ``descriptions`` gives the classes their names, ``classes`` restricts them to a list of MIDs.

    With ``propagate`` the classes above a present one in the ``hierarchy`` become present and those below an
    absent one absent, by subcategories, with ``parts`` also by parts.
    """
    if not files:
        raise InputError("give at least one file of image labels or boxes")
    names = None if descriptions is None else _descriptions(descriptions)
    wanted = None if classes is None else _class_list(classes)
    edges = None if hierarchy is None else _edges(hierarchy, parts=parts)
    if propagate and edges is None:
        raise InputError("to propagate labels, give the hierarchy file with --hierarchy")
    rules = _Rules(groups, depictions, machine)
    found = _Found()
    for path, split in zip(files, _file_splits(files, splits), strict=True):
        _read_file(TextTable.open(path), split, rules, found, progress)
    if not found.rows.rows:
        raise InputError(f"{files[0]}: there are no rows below the header")
    chosen = _choose(found, wanted, names, edges if propagate else None, files)
    shown = _shown(chosen, names)
    reading = _settled(found, chosen, shown, suffix, contradictions, some(map(str, files)))
    if edges is not None:
        reading = _with_hierarchy(
            reading, edges, dict(zip(chosen, shown, strict=True)), propagate, contradictions
        )
    return reading


# ---- the files of labels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rules:
    groups: bool
    depictions: bool
    machine: Machine


@dataclass
class _Found:
    """What the files said so far, a block after the other."""

    mids: Vocabulary = field(default_factory=Vocabulary)
    rows: Gathering = field(default_factory=Gathering)
    times: Counter[int] = field(default_factory=Counter)  # how often each MID's number is said
    splits: dict[str, Path] = field(default_factory=dict)  # the first file of each split
    machine: int = 0
    left_out: int = 0


class _Block(NamedTuple):
    runs: Runs
    words: dict[str, Words]


def _read_file(
    table: TextTable, split: str | None, rules: _Rules, found: _Found, progress: Progress | None
) -> None:
    boxes = _BOX in table.columns
    needed = [*_NEEDED]
    if boxes:
        needed += [_GROUP] * (not rules.groups) + [_DEPICTION] * (not rules.depictions)
    for name in needed:
        if name not in table.columns:
            raise InputError(
                f'{table.path}: there is no column "{name}" among {some(table.columns, 10)}; '
                f"Open Images has {','.join(_NEEDED)}"
            )

    def work(columns: Columns) -> _Block:
        return _Block(
            runs(columns["ImageID"]), {name: words(columns[name]) for name in needed if name != "ImageID"}
        )

    if split is not None:
        found.splits.setdefault(split, table.path)
    start = found.rows.rows
    for block in table.blocks(needed, work, progress):
        entries = _entries(block, table, found.rows.rows - start, boxes, rules, found)
        found.times.update(dict(enumerate(np.bincount(entries[entries >= 0] >> 1).tolist())))
        code = None if split is None else np.full(len(entries), list(found.splits).index(split), np.int32)
        found.rows.add(block.runs, entries, split=code)


def _entries(
    block: _Block, table: TextTable, before: int, boxes: bool, rules: _Rules, found: _Found
) -> npt.NDArray[np.int32]:
    """Return what each row says: its MID's number × 2 + present, or −1 for nothing."""

    def fault(name: str, wrong: Callable[[str], bool], what: str) -> None:
        column = block.words[name]
        strange = np.flatnonzero(np.array([wrong(word) for word in column.names], dtype=bool)[column.codes])
        if strange.size:
            where = f"{table.path}: line {table.line(before + int(strange[0]))}"
            raise InputError(f"{where}: {what.format(column.names[column.codes[strange[0]]])}")

    _check_images(block.runs, table, before)
    fault("LabelName", lambda word: not word, "the LabelName is empty")
    fault("Confidence", lambda word: math.isnan(_confidence(word)), 'the Confidence is "{}", not from 0 to 1')
    if rules.machine == "refuse":
        hint = "; drop such rows with --machine drop, or give the human-verified file"
        fault("Source", _is_machine, 'the Source is "{}": no person verified it' + hint)
        fault(
            "Confidence",
            lambda word: _confidence(word) not in (0, 1),
            'the Confidence is "{}": a machine\'s' + hint,
        )
    if boxes:
        fault("Confidence", lambda word: _confidence(word) == 0, 'a box has the Confidence "{}"')
    kept = ~_each(block.words["Source"], _is_machine)
    kept &= _each(block.words["Confidence"], lambda word: _confidence(word) in (0, 1))
    found.machine += int((~kept).sum())
    for name in (_GROUP, _DEPICTION):
        if name in block.words:  # −1 says that it is not known whether: no reason to call the class present
            fault(name, lambda word: word not in ("0", "1", "-1"), f'{name} is "{{}}", not 0, 1 or -1')
            whole = _each(block.words[name], lambda word: word == "0")
            found.left_out += int((kept & ~whole).sum())
            kept &= whole
    entries = found.mids.take(block.words["LabelName"]) << 1
    entries |= _each(block.words["Confidence"], lambda word: _confidence(word) == 1)
    entries[~kept] = -1
    return entries


def _each(column: Words, says: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    return np.array([says(word) for word in column.names], dtype=bool)[column.codes]


def _check_images(found: Runs, table: TextTable, before: int) -> None:
    if isinstance(found.ids, np.ndarray):
        return
    blank = np.flatnonzero(np.asarray(pa.compute.equal(found.ids, "").cast(pa.uint8())))
    if blank.size:
        row = before + int(found.lengths[: blank[0]].sum())
        raise InputError(f"{table.path}: line {table.line(row)}: the ImageID is empty")


def _is_machine(source: str) -> bool:
    return source.lower() == "machine"


def _confidence(word: str) -> float:
    """Return a confidence from 0 to 1, or NaN for anything else."""
    if not re.fullmatch(r"[01](\.\d*)?|0?\.\d+", word):
        return math.nan
    value = float(word)
    return value if value <= 1 else math.nan


def _file_splits(files: Sequence[Path], given: Sequence[str]) -> list[str | None]:
    if given:
        if len(given) not in (1, len(files)):
            raise InputError(f"{len(given)} splits were given for {len(files)} files; give one for each file")
        return [*given] * (len(files) if len(given) == 1 else 1)
    found = [_split_in(path.name) for path in files]
    nameless = [str(path) for path, split in zip(files, found, strict=True) if split is None]
    if nameless and len(nameless) < len(files):
        raise InputError(f"{nameless[0]}: its name says no split; give one --split for each file")
    return found


def _split_in(name: str) -> str | None:
    """Return the split that a published file's name starts with, or has between hyphens.

    >>> _split_in("oidv6-train-annotations-human-imagelabels.csv"), _split_in("labels.csv")
    ('train', None)
    """
    said = {_SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _SPLITS}
    return said.pop() if len(said) == 1 else None


# ---- classes -----------------------------------------------------------------------------------------------


def _descriptions(path: Path) -> dict[str, str]:
    """Read MID,name lines, with or without a header; a name with a comma is quoted."""
    names: dict[str, str] = {}
    lines = csv.reader(read_lines(path))
    try:
        for cells in lines:
            where = f"{path}: line {lines.line_num}"
            if not cells or (not names and tuple(cells) in _HEADERS):
                continue
            if len(cells) != 2 or not all(cell.strip() for cell in cells):
                raise InputError(f"{where}: needs a MID and a name, not {','.join(cells)!r}")
            mid, name = (cell.strip() for cell in cells)
            if names.setdefault(mid, name) != name:
                raise InputError(f'{where}: "{mid}" has two names, "{names[mid]}" and "{name}"')
    except csv.Error as error:
        raise InputError(f"{path}: line {lines.line_num}: {error}") from None
    if not names:
        raise InputError(f"{path}: there are no class descriptions in it")
    return names


def _class_list(path: Path) -> list[str]:
    names = read_names(path)
    strange = [name for name in names if "," in name]
    if strange:
        raise InputError(f'{path}: "{strange[0]}" is not a MID; give the list of classes, one MID a line')
    return names


def _choose(
    found: _Found,
    wanted: list[str] | None,
    names: dict[str, str] | None,
    edges: dict[str, list[str]] | None,
    files: Sequence[Path],
) -> list[str]:
    """Return the MIDs that become classes."""
    met = list(found.mids.numbers)
    if wanted is None:
        inside = {*edges, *(mid for above in edges.values() for mid in above)} if edges else set()
        # The hierarchy's root and the like have no description: they hold it together, nobody labels them.
        chosen = sorted({*met, *(mid for mid in inside if names is None or mid in names)})
    else:
        chosen = wanted
        if not set(met) & set(wanted):
            hint = did_you_mean(met[0], wanted)
            raise InputError(f'{files[0]}: none of its classes is in the list, not "{met[0]}" either; {hint}')
    undescribed = [mid for mid in chosen if names is not None and mid not in names]
    if undescribed:
        raise InputError(f"{len(undescribed):,} classes have no description: {some(undescribed, 10)}")
    return chosen


def _shown(chosen: Sequence[str], names: dict[str, str] | None) -> list[str]:
    """Return the names of the classes; those that several share get their MID appended."""
    if names is None:
        return list(chosen)
    counts: dict[str, int] = {}
    for mid in chosen:
        counts[names[mid]] = counts.get(names[mid], 0) + 1
    return [names[mid] if counts[names[mid]] == 1 else f"{names[mid]} ({mid})" for mid in chosen]


# ---- everything together -----------------------------------------------------------------------------------


def _settled(
    found: _Found, chosen: list[str], shown: list[str], suffix: str, contradictions: Rule, source: str
) -> Reading:
    notes = []
    if found.machine:
        notes.append(f"{found.machine:,} rows of machines were dropped")
    if found.left_out:
        notes.append(f"{found.left_out:,} boxes of groups or depictions were left out")
    place = {mid: number for number, mid in enumerate(chosen)}
    column = np.array([place.get(mid, -1) for mid in found.mids.numbers], dtype=np.int64)
    outside = sum(found.times[number] for number in np.flatnonzero(column < 0).tolist())
    if outside:
        notes.append(f"{outside:,} labels of classes outside the list were left out")
    names = list(found.splits)
    try:
        return settle_rows(
            found.rows,
            column,
            classes=shown,
            splits=names,
            contradictions=contradictions,
            suffix=suffix,
            source=source,
            notes=notes,
        )
    except SplitError as error:
        both = f"{names[error.split]} and {names[error.last]}"
        where = found.splits[names[error.last]]
        raise InputError(f'{where}: image "{error.image}" is in two splits, {both}') from None


# ---- the hierarchy -----------------------------------------------------------------------------------------


def _edges(path: Path, *, parts: bool) -> dict[str, list[str]]:
    """Read the hierarchy's nested objects as MID → the MIDs right above it."""
    try:
        root = json.loads(read_bytes(path).decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    edges: dict[str, list[str]] = {}
    for child, parent, by_part in _walk(path, root):
        above = edges.setdefault(child, [])
        if (parts or not by_part) and parent not in above:
            above.append(parent)
    try:
        ancestors(edges)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return edges


def _walk(path: Path, root: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield (child, parent, whether the child is a part) for every nested pair."""
    _check_node(path, root)
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for key in _KNOWN_KEYS[1:]:
            for child in node.get(key, []):
                _check_node(path, child)
                yield child["LabelName"], node["LabelName"], key == "Part"
                waiting.append(child)


def _check_node(path: Path, node: Any) -> None:
    if not isinstance(node, dict) or not isinstance(node.get("LabelName"), str) or not node["LabelName"]:
        raise InputError(f'{path}: not a hierarchy: every object needs a "LabelName", not {str(node)[:60]}')
    for key in node:
        if key not in _KNOWN_KEYS:
            raise InputError(
                f'{path}: "{node["LabelName"]}" has the key "{key}"; {did_you_mean(key, _KNOWN_KEYS)}'
            )
        if key != "LabelName" and not isinstance(node[key], list):
            raise InputError(f'{path}: the {key} of "{node["LabelName"]}" must be a list')


def _with_hierarchy(
    reading: Reading, edges: dict[str, list[str]], shown: dict[str, str], propagate: bool, rule: Rule
) -> Reading:
    """Return the reading with the hierarchy's tree, if it is one, and with what it implies, if asked for."""
    named = {
        shown.get(child, child): [shown.get(mid, mid) for mid in above]
        for child, above in edges.items()
        if above
    }
    several = [child for child, above in named.items() if len(above) > 1]
    labels, notes, tree = reading.labels, list(reading.notes), None
    if several:
        notes.append(
            f"no label tree is written: {len(several):,} classes have several parents ({some(several)})"
        )
    else:
        tree = LabelTree({child: above[0] for child, above in named.items()})
    if propagate:
        try:
            labels, clashes = close(labels, named, contradictions=rule)
        except ContradictionError as error:
            raise InputError(
                f"by the hierarchy, {error}; say which holds with --contradictions absent, present or unknown"
            ) from None
        notes.append(f"the hierarchy added {labels.known - reading.labels.known:,} labels")
        if clashes:
            notes.append(f"{clashes:,} labels contradict the hierarchy; taken as {rule}")
    return replace(reading, labels=labels, notes=tuple(notes), tree=tree)
