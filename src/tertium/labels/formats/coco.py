"""MS-COCO's JSON files: instances (what `instances_*.json` holds) and panoptic (`panoptic_*.json`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError, did_you_mean, some
from tertium.labels import Labels
from tertium.labels.formats.content import Content
from tertium.labels.formats.json_stream import read_tables
from tertium.labels.ids import normal_ids
from tertium.labels.reading import Reading, everything_else_absent
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

Crowd = Literal["present", "unknown"]
Empty = Literal["unknown", "absent"]
ImageId = Literal["file_name", "id"]
Rows = npt.NDArray[np.int64]

_SHOWN = 10  # ids in an error


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a key that every record must have."""
    return pa.field(name, kind, nullable=False)


CATEGORIES = pa.schema([required("id", pa.int64()), required("name", pa.string())])
_PANOPTIC_CATEGORIES = pa.schema([*CATEGORIES, ("supercategory", pa.string()), ("isthing", pa.int64())])
_ANNOTATIONS = pa.schema(
    [
        ("id", pa.int64()),
        required("image_id", pa.int64()),
        required("category_id", pa.int64()),
        ("iscrowd", pa.int64()),
    ]
)
_SEGMENT = pa.struct([("category_id", pa.int64()), ("iscrowd", pa.int64())])
_PANOPTIC_ANNOTATIONS = pa.schema(
    [required("image_id", pa.int64()), required("segments_info", pa.list_(_SEGMENT))]
)


@dataclass(frozen=True)
class Boxes:
    """Where objects are: one element of the arrays an object, beside the images and classes they point to.

    Corners are in pixels from the image's top left corner, (0, 0); x1 and y1 lie outside the object, so that
    x1 − x0 is its width.
    """

    images: pa.StringArray  # [N] ids, as `read` gives them
    sizes: npt.NDArray[np.int64]  # [N, 2] width, height
    classes: tuple[str, ...]
    rows: Rows  # [K] of the image
    columns: Rows  # [K] of the class
    corners: npt.NDArray[np.float64]  # [K, 4] x0, y0, x1, y1
    unsure: npt.NDArray[np.bool_]  # [K] a crowd (COCO), difficult (VOC)


def read(
    path: str | Path,
    *,
    crowd: Crowd = "present",
    empty: Empty = "unknown",
    image_id: ImageId = "file_name",
    progress: Progress | None = None,
) -> Reading:
    """Read an instances file.

    An image with annotations is fully annotated: a category with an annotation is **present**, every other is
    **absent**. In an image without any annotation everything is **unknown**, because nothing tells whether
    somebody looked; with ``empty`` "absent", everything is absent there. A crowd (``iscrowd`` 1: a region
    with many objects, not outlined one by one) makes its category present too; with ``crowd`` "unknown", a
    category that only has crowds is **unknown**.

    An image's id is its ``file_name`` (so `--images` is the folder of the images), or its ``id`` as text.
    """
    _check_choice("crowd", crowd, get_args(Crowd))
    _check_choice("label in an image without annotations", empty, get_args(Empty))
    wanted = {"images": _images(image_id), "categories": CATEGORIES, "annotations": _ANNOTATIONS}
    tables = read_tables(path, wanted, progress)
    annotations = tables["annotations"]
    rows = rows_of(path, annotations["image_id"], tables["images"], "images")
    columns = rows_of(path, annotations["category_id"], tables["categories"], "categories")
    crowds = _crowds(path, annotations["iscrowd"])
    annotated = np.bincount(rows, minlength=len(tables["images"])) > 0
    return everything_else_absent(
        rows,
        columns,
        crowds & (crowd == "unknown"),
        classes=class_names(path, tables["categories"]),
        images=image_ids(path, tables["images"][image_id]),
        source=str(path),
        notes=[*repeated_ids(annotations), *_empty_images(annotated, empty)],
        annotated=annotated if empty == "unknown" else None,
    )


def read_panoptic(
    path: str | Path,
    *,
    crowd: Crowd = "present",
    image_id: ImageId = "file_name",
    groups: bool = False,
    progress: Progress | None = None,
) -> Reading:
    """Read a panoptic file, and its tree: category, supercategory, things or stuff.

    An annotated image is segmented as a whole, so a category with a segment is **present** and every other is
    **absent**; crowds as in `read`. An image that the file lists without a record in ``annotations`` was not
    annotated: everything is **unknown** in it.

    A category that has its supercategory's name (person) is right below things. With ``groups`` the
    supercategories, things and stuff are classes too, as is needed to use the tree: present if a category
    below is, absent if all below are, otherwise unknown.

    An image's id is its ``file_name`` (the photograph's, not the segmentation's), or its ``id`` as text.
    """
    _check_choice("crowd", crowd, get_args(Crowd))
    wanted = {
        "images": _images(image_id),
        "categories": _PANOPTIC_CATEGORIES,
        "annotations": _PANOPTIC_ANNOTATIONS,
    }
    tables = read_tables(path, wanted, progress)
    records = rows_of(path, tables["annotations"]["image_id"], tables["images"], "images")
    owner, segments = _segments(path, tables["annotations"])
    columns = rows_of(path, segments.field("category_id"), tables["categories"], "categories")
    crowds = _crowds(path, segments.field("iscrowd"))
    classes = class_names(path, tables["categories"])
    tree, notes = _tree(tables["categories"])
    annotated = np.bincount(records, minlength=len(tables["images"]))
    if (annotated > 1).any():
        notes.append(f"{int((annotated > 1).sum()):,} images have several annotation records; joined")
    if not annotated.all():
        notes.append(
            f"{int((annotated == 0).sum()):,} images have no annotation record; all is unknown there"
        )
    reading = everything_else_absent(
        records[owner],
        columns,
        crowds & (crowd == "unknown"),
        classes=classes,
        images=image_ids(path, tables["images"][image_id]),
        source=str(path),
        notes=notes,
        annotated=annotated > 0,
    )
    if groups:
        if tree is None:
            raise InputError(f"{path}: {notes[0]}, so there are no groups to add")
        reading = replace(reading, labels=_with_groups(reading.labels, tree))
    return replace(reading, tree=tree)


def read_boxes(
    path: str | Path, *, image_id: ImageId = "file_name", progress: Progress | None = None
) -> Boxes:
    """Read the boxes of an instances file; rows and columns are those of the labels that `read` gives."""
    sizes = [required("width", pa.int64()), required("height", pa.int64())]
    wanted = {
        "images": pa.schema([*_images(image_id), *sizes]),
        "categories": CATEGORIES,
        "annotations": pa.schema([*_ANNOTATIONS, required("bbox", pa.list_(pa.float64()))]),
    }
    tables = read_tables(path, wanted, progress)
    images, annotations = tables["images"], tables["annotations"]
    corners = _corners(path, annotations["bbox"])
    return Boxes(
        images=image_ids(path, images[image_id]),
        sizes=np.stack([np.asarray(images["width"]), np.asarray(images["height"])], axis=1),
        classes=class_names(path, tables["categories"]),
        rows=rows_of(path, annotations["image_id"], images, "images"),
        columns=rows_of(path, annotations["category_id"], tables["categories"], "categories"),
        corners=corners,
        unsure=_crowds(path, annotations["iscrowd"]),
    )


def write(path: Path, content: Content) -> None:
    """Write labels of whole images: an annotation without a box for each class that is present.

    What is absent goes into the image's ``neg_category_ids``, as in LVIS, so that what is unknown stays so.
    """
    number = {name: place for place, name in enumerate(content.classes, start=1)}
    count = 0
    with open(path, "w", encoding="utf-8") as sink, TemporaryFile("w+", encoding="utf-8") as later:
        categories = [{"id": place, "name": name} for name, place in number.items()]
        sink.write(f'{{"categories": {json.dumps(categories, ensure_ascii=False)},\n"images": [')
        for row, each in enumerate(content.listed(), start=1):
            image = {
                "id": row,
                "file_name": each.image,
                "neg_category_ids": [number[name] for name in each.absent],
                "not_exhaustive_category_ids": [],
            }
            sink.write(f"{',' * (row > 1)}\n{json.dumps(image, ensure_ascii=False)}")
            for place, name in enumerate(each.names):
                record: dict[str, Any] = {"id": count + 1, "image_id": row, "category_id": number[name]}
                if each.probabilities is not None:
                    record["score"] = each.probabilities[place]
                later.write(f"{',' * (count > 0)}\n{json.dumps(record)}")
                count += 1
        sink.write('\n],\n"annotations": [')
        later.seek(0)
        shutil.copyfileobj(later, sink)
        sink.write("\n]}\n")


# ---- what LVIS shares --------------------------------------------------------------------------------------


def rows_of(path: str | Path, ids: Any, table: pa.Table, name: str) -> Rows:
    """Return the row in ``table`` of each id; ids that are not there are an error."""
    if pc.count_distinct(table["id"]).as_py() < len(table):
        counts = pc.value_counts(table["id"])
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
        raise InputError(f'{path}: an id is there twice in "{name}": {some(map(str, twice), _SHOWN)}')
    rows = pc.index_in(ids, value_set=table["id"])
    if rows.null_count:
        missing = pc.unique(ids.filter(pc.is_null(rows))).to_pylist()
        raise InputError(
            f'{path}: annotations point to ids that are not in "{name}": {some(map(str, missing), _SHOWN)}'
        )
    return np.asarray(rows).astype(np.int64)


def class_names(path: str | Path, categories: pa.Table) -> tuple[str, ...]:
    """Return the names of the categories, in the file's order."""
    names = tuple(categories["name"].to_pylist())
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise InputError(f'{path}: record {number} of "categories" has an empty name')
    return names


def repeated_ids(annotations: pa.Table) -> list[str]:
    """Return a note on annotations that share an id, if there are some."""
    ids = np.sort(np.asarray(annotations["id"].drop_null()))  # Arrow's hash table takes 150 bytes an id
    repeated = int((ids[1:] == ids[:-1]).sum())
    return [f"{repeated:,} annotations have the id of an earlier one"] if repeated else []


def image_ids(path: str | Path, ids: pa.ChunkedArray) -> pa.StringArray:
    """Return the ids of images as one array of text, after checking that none is empty."""
    whole = pa.chunked_array([*ids.cast(pa.string()).chunks], pa.string()).combine_chunks()
    if not len(whole):
        raise InputError(f"{path}: there are no images in it")
    empty = np.flatnonzero(np.asarray(pc.equal(whole, "")))
    if empty.size:
        raise InputError(f'{path}: record {empty[0] + 1:,} of "images" has an empty file name')
    return normal_ids(whole)


# ---- records -----------------------------------------------------------------------------------------------


def _images(image_id: ImageId) -> pa.Schema:
    _check_choice("image id", image_id, get_args(ImageId))
    number = required("id", pa.int64())
    return pa.schema([number] if image_id == "id" else [number, required("file_name", pa.string())])


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f'the {what} cannot be "{value}"; {did_you_mean(value, choices)}')


def _crowds(path: str | Path, values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    crowds: npt.NDArray[np.int64] = np.asarray(pc.fill_null(values, 0))
    strange = crowds[(crowds != 0) & (crowds != 1)]
    if strange.size:
        raise InputError(f'{path}: "iscrowd" is {strange[0]} in an annotation; it must be 0 or 1')
    found: npt.NDArray[np.bool_] = crowds == 1
    return found


def _empty_images(annotated: npt.NDArray[np.bool_], empty: Empty) -> list[str]:
    """Return a note on images without annotations, if there are some."""
    count = int((~annotated).sum())
    other: Empty = "absent" if empty == "unknown" else "unknown"
    told = f"every class is {empty} there; --empty {other} says otherwise"
    return [f"{count:,} of {len(annotated):,} images have no annotation: {told}"] if count else []


def _segments(path: str | Path, annotations: pa.Table) -> tuple[Rows, pa.StructArray]:
    """Return the segments of all annotations, and which annotation each belongs to."""
    lists = annotations["segments_info"].combine_chunks()
    owner, segments = np.asarray(pc.list_parent_indices(lists)), pc.list_flatten(lists)
    nameless = np.flatnonzero(np.asarray(pc.is_null(pc.struct_field(segments, "category_id"))))
    if nameless.size:
        number = owner[nameless[0]] + 1
        raise InputError(f'{path}: a segment in record {number:,} of "annotations" has no "category_id"')
    return owner, segments


def _corners(path: str | Path, boxes: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return x0, y0, x1, y1 from COCO's x, y, width, height."""
    lists = boxes.combine_chunks()
    flat = np.asarray(pc.fill_null(pc.list_flatten(lists), np.nan))
    whole = np.asarray(pc.list_value_length(lists)) == 4
    if whole.all():
        corners = flat.reshape(-1, 4).copy()
        whole = np.isfinite(corners).all(axis=1) & (corners[:, 2:] >= 0).all(axis=1)
    if not whole.all():
        number = int(np.flatnonzero(~whole)[0])
        raise InputError(
            f'{path}: "bbox" in record {number + 1:,} of "annotations" is {lists[number].as_py()}; '
            "it must be [x, y, width, height]"
        )
    corners[:, 2:] += corners[:, :2]
    return corners


# ---- the panoptic tree -------------------------------------------------------------------------------------


def _tree(categories: pa.Table) -> tuple[LabelTree | None, list[str]]:
    """Return the tree of the categories, or none and a note that says why."""
    parents: dict[str, str] = {}
    for record in categories.to_pylist():
        top = None if record["isthing"] is None else "things" if record["isthing"] else "stuff"
        chain = [name for name in dict.fromkeys((record["name"], record["supercategory"], top)) if name]
        for child, parent in pairwise(chain):
            before = parents.setdefault(child, parent)
            if before != parent:
                return None, [f'there is no tree: "{child}" is below both "{before}" and "{parent}"']
    try:
        return (LabelTree(parents), []) if parents else (None, ["there is no tree: no category has a parent"])
    except InputError as error:
        return None, [f"there is no tree: {error}"]


def _with_groups(labels: Labels, tree: LabelTree) -> Labels:
    """Return the labels with the inner nodes of the tree as further classes."""
    groups = [name for name in tree.names if name not in set(labels.classes)]
    known = labels.dense()
    wide = np.empty((len(labels), len(labels.classes) + len(groups)), dtype=np.int8)
    wide[:, : len(labels.classes)] = known
    for place, group in enumerate(groups, start=len(labels.classes)):
        below = [labels.column(name) for name in tree.descendants(group) if name in set(labels.classes)]
        # Present if one is, absent if all are: the largest of 1, 0 and −1.
        wide[:, place] = known[:, below].max(axis=1)
    rows, columns = np.nonzero(wide)
    values = wide[rows, columns]
    return Labels.from_entries(
        rows, columns, values, classes=(*labels.classes, *groups), images=labels.images
    )
