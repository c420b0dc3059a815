"""FiftyOne: classifications of exported data sets, FiftyOneDataset and FiftyOneImageClassificationDataset."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError, some
from tertium.labels.formats.content import Content
from tertium.labels.formats.json_stream import read_tables
from tertium.labels.formats.listing import (
    Empty,
    Listing,
    Unlisted,
    check_choice,
    flattened,
    settle_listing,
)
from tertium.labels.formats.text import read_bytes
from tertium.labels.reading import Reading
from tertium.progress import Progress

_MANY, _ONE = "Classifications", "Classification"


def read(
    path: str | Path,
    *,
    field: str = "ground_truth",
    suffix: str | None = None,
    classes: Sequence[str] | None = None,
    unlisted: Unlisted = "unknown",
    empty: Empty = "unknown",
    progress: Progress | None = None,
) -> Reading:
    """Read an exported folder, or its samples.json or labels.json.

    A classification is **present**. Every other class is **unknown**, or **absent** if ``unlisted`` says so.
    A sample without the field says nothing; nor does an empty list, unless ``empty`` is "absent".

    In a FiftyOneDataset (samples.json) the labels are those of ``field``, and an image's id is its path,
    without data/. A FiftyOneImageClassificationDataset (labels.json) names images without their ending: it is
    that of the file in the folder data, or ``suffix``.
    """
    path = Path(path)
    check_choice("unlisted labels", unlisted, get_args(Unlisted))
    if path.is_dir():
        there = [path / name for name in ("samples.json", "labels.json") if (path / name).exists()]
        if len(there) != 1:
            raise InputError(
                f"{path}: must hold either samples.json or labels.json, as FiftyOne exports them"
            )
        path = there[0]
    if path.name.startswith("samples"):
        listing, said, names = _samples(path, field, progress)
    else:
        listing, said, names = _targets(path, suffix)
    chosen = classes if classes is not None else names
    missing = int((~said).sum())
    notes = (
        [f"{missing:,} of {len(said):,} samples are not labelled; all is unknown there"] if missing else []
    )
    kept = Listing(listing.images, np.flatnonzero(said), (np.cumsum(said) - 1)[listing.record], listing.names)
    return settle_listing(kept, source=str(path), classes=chosen, unlisted=unlisted, empty=empty, notes=notes)


_Found = tuple[Listing, "np.ndarray[Any, np.dtype[np.bool_]]", "list[str] | None"]


def _samples(path: Path, field: str, progress: Progress | None) -> _Found:
    """Return what a FiftyOneDataset says: a listing of all samples, which are labelled, and no classes."""
    one = pa.struct([("label", pa.string())])
    kind = pa.struct([("_cls", pa.string()), ("label", pa.string()), ("classifications", pa.list_(one))])
    schema = pa.schema([pa.field("filepath", pa.string(), nullable=False), (field, kind)])
    samples = read_tables(path, {"samples": schema}, progress)["samples"].combine_chunks()
    if not len(samples):
        raise InputError(f"{path}: there are no samples in it")
    labels = samples[field].combine_chunks()
    kinds = pc.struct_field(labels, "_cls")
    said = np.asarray(pc.fill_null(pc.is_in(kinds, pa.array([_MANY, _ONE])), False), dtype=bool)
    others = pc.unique(kinds.filter(pa.array(~said & np.asarray(labels.is_valid())))).to_pylist()
    if others or not said.any():
        why = f"it has {some(str(kind) for kind in others)}" if others else "no sample has it"
        raise InputError(
            f'{path}: the field "{field}" holds no classifications ({why}); name one with --field'
        )
    place, each = flattened(pc.struct_field(labels, "classifications"))
    many = pc.struct_field(each, "label")
    single = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(kinds, _ONE), False), dtype=bool))
    names = pa.chunked_array(
        [many, pc.struct_field(labels, "label").take(pa.array(single))], pa.string()
    ).combine_chunks()
    if names.null_count:
        raise InputError(f'{path}: a classification in "{field}" has no label')
    ids = [name.replace("\\", "/").removeprefix("data/") for name in samples["filepath"].to_pylist()]
    return Listing.of_images(ids, np.concatenate([place, single]), names, str(path)), said, None


# ---- FiftyOneImageClassificationDataset --------------------------------------------------------------------


def _targets(path: Path, suffix: str | None) -> _Found:
    """Return what a file of targets says: a listing of all images, which are labelled, and the classes."""
    try:
        whole = json.loads(read_bytes(path), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {error if isinstance(error, InputError) else f'not valid JSON ({error})'}"
        ) from None
    targets, classes = (
        (whole.get("labels"), whole.get("classes")) if isinstance(whole, dict) else (None, None)
    )
    if not isinstance(targets, dict):
        raise InputError(f'{path}: must hold an object with "labels", as FiftyOne exports it')
    if classes is not None and not (
        isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    ):
        raise InputError(f'{path}: "classes" is not a list of names')
    record, names = [], []
    for row, (key, target) in enumerate(targets.items()):
        for each in target if isinstance(target, list) else [] if target is None else [target]:
            record.append(row)
            names.append(_name(path, key, each, classes))
    said = np.array([target is not None for target in targets.values()], dtype=bool)
    ids = _with_endings(path, list(targets), suffix)
    return Listing.of_images(ids, np.array(record, dtype=np.int64), names, str(path)), said, classes


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f'"{next(key for key in keys if keys.count(key) > 1)}" is there twice')
    return found


def _name(path: Path, key: str, target: Any, classes: list[str] | None) -> str:
    """Return the class that a target means: its name, or its number in the list of classes."""
    label = target.get("label") if isinstance(target, dict) else target
    if isinstance(label, str):
        return label
    if isinstance(label, int) and not isinstance(label, bool) and classes and 0 <= label < len(classes):
        return classes[label]
    shown = json.dumps(label)[:40]
    raise InputError(f'{path}: "{key[:60]}" has {shown}, which is neither a name nor the number of a class')


def _with_endings(path: Path, keys: list[str], suffix: str | None) -> list[str]:
    folder = path.parent / "data"
    if suffix is not None or not folder.is_dir():
        return [key + (suffix or "") for key in keys]
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            name = file.relative_to(folder)
            found.setdefault(name.with_suffix("").as_posix(), []).append(name.as_posix())
    for key in keys:
        if len(found.get(key, ())) != 1:
            many = "several images" if key in found else "no image"
            raise InputError(f'{path}: "{key}" is {many} in {folder}; give the ending with --suffix')
    return [found[key][0] for key in keys]


def write(path: Path, content: Content) -> None:
    """Write a labels.json of a FiftyOneImageClassificationDataset, with the confidence of probabilities.

    Images have no ending there. An image of which nothing is known is not labelled.
    """
    number = {name: place for place, name in enumerate(content.classes)}
    seen: dict[str, str] = {}
    with open(path, "w", encoding="utf-8") as sink:
        sink.write(f'{{"classes": {json.dumps(content.classes, ensure_ascii=False)},\n"labels": {{')
        for row, each in enumerate(content.listed()):
            key = os.path.splitext(each.image)[0]
            other = seen.setdefault(key, each.image)
            if other != each.image:
                raise InputError(
                    f'FiftyOne names images without their ending: "{other}" and "{each.image}" would be one'
                )
            target: list[Any] | None = [number[name] for name in each.names]
            if each.probabilities is not None:
                target = [
                    {"label": number[name], "confidence": chance}
                    for name, chance in zip(each.names, each.probabilities, strict=True)
                ]
            elif not each.names and not each.absent:
                target = None
            sink.write(f"{',' * (row > 0)}\n{json.dumps(key, ensure_ascii=False)}: {json.dumps(target)}")
        sink.write("\n}}\n")
