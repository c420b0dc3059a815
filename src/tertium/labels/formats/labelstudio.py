"""Label Studio's JSON: what people chose for images, and predictions for them to start from."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError, did_you_mean, some
from tertium.labels.formats.content import Content
from tertium.labels.formats.json_stream import read_records
from tertium.labels.formats.listing import (
    Empty,
    Ints,
    Listing,
    Unlisted,
    Votes,
    check_choice,
    flattened,
    settle_listing,
)
from tertium.labels.ids import normal_ids
from tertium.labels.reading import Reading
from tertium.progress import Progress

_RESULT = pa.struct(
    [
        ("from_name", pa.string()),
        ("type", pa.string()),
        ("value", pa.struct([("choices", pa.list_(pa.string()))])),
    ]
)
_ANNOTATION = pa.struct(
    [
        ("was_cancelled", pa.bool_()),
        ("reviews", pa.list_(pa.struct([("accepted", pa.bool_())]))),
        ("result", pa.list_(_RESULT)),
    ]
)
_CHOICES, _IMAGE = "choices", "image"
_UPLOAD = re.compile(r"^/data/upload/(?:.*/)?(?:[0-9a-f]{8}-)?([^/]+)$")
_LOCAL = "/data/local-files/"


def read(
    path: str | Path,
    *,
    from_name: str | None = None,
    image_key: str = _IMAGE,
    prefix: str = "",
    classes: Sequence[str] | None = None,
    unlisted: Unlisted = "unknown",
    empty: Empty = "unknown",
    votes: Votes = "error",
    reviewed: bool = False,
    progress: Progress | None = None,
) -> Reading:
    """Read an export in the form JSON: choices, single or multiple, that people made for images.

    A choice is **present**. The file does not say what people looked for: every other class is **unknown**,
    or **absent** in images that somebody annotated, if ``unlisted`` says so. Tasks that are skipped or not
    annotated yet are unknown, and so is an annotation without a choice, unless ``empty`` is "absent". What
    annotators disagree on is settled by ``votes``. Annotations that a reviewer rejected do not count, and
    with ``reviewed`` only those that one accepted. Predictions in the file are no labels.

    ``from_name`` is the control that is read if there are several. An image's id is made from the address in
    the task's data (see `image_id`), or what follows ``prefix`` in it.
    """
    check_choice("unlisted labels", unlisted, get_args(Unlisted))
    check_choice("a label in an annotation without a choice", empty, get_args(Empty))
    check_choice("what people disagree on", votes, get_args(Votes))
    tasks = read_records(path, "tasks", _schema(image_key), progress)
    if not len(tasks):
        raise InputError(f"{path}: there are no tasks in it")
    ids = _ids(path, tasks, image_key, prefix).dictionary_encode()
    task, annotations = flattened(tasks["annotations"].combine_chunks())
    counted, notes = _counted(annotations, len(tasks), task, reviewed)
    image = np.asarray(ids.indices, dtype=np.int64)[task[counted]]
    chosen = _chosen(path, annotations.filter(pa.array(counted)), from_name)
    return settle_listing(
        Listing(ids.dictionary, image, chosen.record, chosen.names),
        source=str(path),
        classes=classes,
        unlisted=unlisted,
        empty=empty,
        votes=votes,
        how_to_settle="say which holds with --contradictions majority, absent, present or unknown",
        notes=notes,
    )


def image_id(address: str, prefix: str = "") -> str:
    """Return the name of an image, given the address that Label Studio has for it.

    >>> image_id("/data/local-files/?d=photos/a%20b.jpg")
    'photos/a b.jpg'
    >>> image_id("/data/upload/3/1f0c2a9b-a.jpg")
    'a.jpg'
    >>> image_id("s3://bucket/photos/a.jpg"), image_id("https://host/x/a.jpg", "https://host/x/")
    ('photos/a.jpg', 'a.jpg')
    """
    if prefix:
        if not address.startswith(prefix):
            raise InputError(f'the address "{address}" does not begin with "{prefix}"')
        return unquote(address[len(prefix) :])
    parts = urlsplit(address)
    if parts.path.endswith(_LOCAL) and "d" in parse_qs(parts.query):
        return parse_qs(parts.query)["d"][0].removeprefix("/")
    upload = _UPLOAD.match(parts.path)
    if upload:
        return unquote(upload[1])
    return unquote(parts.path).removeprefix("/") if "://" in address else address


def write(
    path: Path,
    content: Content,
    *,
    prefix: str = "",
    from_name: str = "choice",
    to_name: str = _IMAGE,
    model_version: str = "tertium",
) -> None:
    """Write tasks: probabilities as predictions to start from, with scores; labels as annotations.

    A prediction's score is the mean probability of the classes it lists.
    """
    with open(path, "w", encoding="utf-8") as sink:
        sink.write("[")
        for row, each in enumerate(content.listed()):
            address = prefix + quote(each.image) if prefix else each.image
            result = {
                "from_name": from_name,
                "to_name": to_name,
                "type": _CHOICES,
                "value": {_CHOICES: each.names},
            }
            done: dict[str, Any] = {"result": [result] if each.names else []}
            if each.probabilities:
                score = sum(each.probabilities) / len(each.probabilities)
                done |= {"model_version": model_version, "score": round(score, 6)}
            told = "predictions" if content.is_probable else "annotations"
            task = {"data": {_IMAGE: address}, told: [done] if each.names or each.absent else []}
            sink.write(f"{',' * (row > 0)}\n{json.dumps(task, ensure_ascii=False)}")
        sink.write("\n]\n")


# ---- tasks -------------------------------------------------------------------------------------------------


def _schema(image_key: str) -> pa.Schema:
    data = pa.field("data", pa.struct([(image_key, pa.string())]), nullable=False)
    return pa.schema([data, ("annotations", pa.list_(_ANNOTATION))])


def _ids(path: str | Path, tasks: pa.Table, image_key: str, prefix: str) -> pa.StringArray:
    addresses = pc.struct_field(tasks["data"], image_key).combine_chunks()
    missing = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(addresses, ""), True)))
    if missing.size:
        raise InputError(
            f'{path}: task {missing[0] + 1:,} has no "{image_key}" in its data; name the key that holds the '
            "image with --image-key"
        )
    coded = addresses.dictionary_encode()
    try:
        names = [image_id(address, prefix) for address in coded.dictionary.to_pylist()]
    except ValueError as error:  # an address that cannot be one, or has another beginning
        raise InputError(f"{path}: {error}") from None
    if "" in names:
        address = coded.dictionary[names.index("")].as_py()
        raise InputError(f'{path}: the address "{address}" names no image')
    return normal_ids(pa.array(names, pa.string()).take(coded.indices))


# ---- annotations -------------------------------------------------------------------------------------------


def _counted(
    annotations: pa.StructArray, tasks: int, task: Ints, reviewed: bool
) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which annotations count, and notes on the others."""
    skipped = np.asarray(pc.fill_null(annotations.field("was_cancelled"), False), dtype=bool)
    owner, reviews = flattened(annotations.field("reviews"))
    accepted = np.asarray(pc.fill_null(reviews.field("accepted"), False), dtype=bool)
    good = np.bincount(owner[accepted], minlength=len(annotations))
    bad = np.bincount(owner[~accepted], minlength=len(annotations))
    rejected = ~skipped & (bad > 0)
    waiting = ~skipped & ~rejected & (good == 0) & reviewed
    counted = ~(skipped | rejected | waiting)
    open_tasks = tasks - len(np.unique(task[counted]))
    told = {
        "annotations were skipped; they say nothing": int(skipped.sum()),
        "annotations were rejected by a reviewer; left out": int(rejected.sum()),
        "annotations were not reviewed; left out": int(waiting.sum()),
        f"of {tasks:,} tasks have no annotation that counts; all is unknown there": open_tasks,
    }
    return counted, [f"{count:,} {what}" for what, count in told.items() if count]


@dataclass(frozen=True)
class _Chosen:
    """Choices: the annotation and the name of each."""

    record: Ints
    names: pa.StringArray


def _chosen(path: str | Path, annotations: pa.StructArray, from_name: str | None) -> _Chosen:
    owner, results = flattened(annotations.field("result"))
    wanted = _of_control(path, results, from_name)
    owner, results = owner[wanted], results.filter(pa.array(wanted))
    place, names = flattened(results.field("value").field(_CHOICES))
    if names.null_count:
        raise InputError(f"{path}: a choice is null, not a name")
    return _Chosen(owner[place], names)


def _of_control(path: str | Path, results: pa.StructArray, from_name: str | None) -> npt.NDArray[np.bool_]:
    """Return which results are choices of the control that is read."""
    of_choices = np.asarray(pc.fill_null(pc.equal(results.field("type"), _CHOICES), False), dtype=bool)
    controls = results.field("from_name")
    there = sorted(pc.unique(controls.filter(pa.array(of_choices)).drop_null()).to_pylist())
    if from_name is not None:
        if from_name not in there:
            hint = did_you_mean(from_name, there) if there else "no annotation has choices"
            raise InputError(f'{path}: there is no control "{from_name}" with choices; {hint}')
        own: npt.NDArray[np.bool_] = np.asarray(
            pc.fill_null(pc.equal(controls, from_name), False), dtype=bool
        )
        return of_choices & own
    if len(there) > 1:
        raise InputError(
            f"{path}: choices were made in {len(there)} controls: {some(there, 10)}; "
            "say which one holds the labels with --from-name"
        )
    if len(results) and not of_choices.any():
        kinds = sorted(pc.unique(results.field("type").drop_null()).to_pylist())
        raise InputError(f"{path}: no annotation has choices; there are only {some(kinds, 10)}")
    return of_choices
