"""LVIS's JSON files: federated labels, of which only a few are known for each image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tertium.errors import InputError
from tertium.labels.formats.coco import (
    CATEGORIES,
    Rows,
    class_names,
    image_ids,
    repeated_ids,
    required,
    rows_of,
)
from tertium.labels.formats.json_stream import read_tables
from tertium.labels.labels import Rule
from tertium.labels.reading import Reading, settle
from tertium.progress import Progress

_LISTS = ("neg_category_ids", "not_exhaustive_category_ids")
_IMAGES = pa.schema(
    [
        required("id", pa.int64()),
        ("coco_url", pa.string()),
        ("file_name", pa.string()),
        *(required(name, pa.list_(pa.int64())) for name in _LISTS),
    ]
)
_ANNOTATIONS = pa.schema(
    [("id", pa.int64()), required("image_id", pa.int64()), required("category_id", pa.int64())]
)


def read(path: str | Path, *, contradictions: Rule = "error", progress: Progress | None = None) -> Reading:
    """Read an LVIS file (version 1; 0.5 has the same keys).

    A category with an annotation is **present**. The categories in an image's ``neg_category_ids`` were
    looked for and are **absent**. Every other is **unknown**, because nobody looked.
    ``not_exhaustive_category_ids`` names categories of which not all objects are outlined: present if there
    is an annotation, else unknown, even if they are listed as absent too.

    An image's id is the end of its ``coco_url`` with the folder, "val2017/000000397133.jpg" (LVIS divides
    COCO's images in its own way, so `--images` is the folder that holds train2017 and val2017); an image
    without an address has its ``file_name``.
    """
    wanted = {"images": _IMAGES, "categories": CATEGORIES, "annotations": _ANNOTATIONS}
    tables = read_tables(path, wanted, progress)
    images, categories, annotations = (tables[name] for name in wanted)
    classes = class_names(path, categories)
    ids = _ids(path, images)
    present = _cells(path, annotations["image_id"], annotations["category_id"], images, categories)
    negative, incomplete = (_listed(path, images, name, categories) for name in _LISTS)
    open_ended = np.isin(negative, incomplete) & ~np.isin(negative, present)
    notes = repeated_ids(annotations)
    if open_ended.any():
        notes.append(
            f"{int(open_ended.sum()):,} labels are listed both as absent and as not exhaustive; unknown"
        )
    present, absent = np.unique(present), negative[~open_ended]  # several objects are no duplicates
    cells = np.concatenate([present, absent])
    return settle(
        cells // len(classes),
        cells % len(classes),
        np.repeat([1, -1], [len(present), len(absent)]),
        classes=classes,
        images=ids,
        contradictions=contradictions,
        source=str(path),
        notes=notes,
    )


def _ids(path: str | Path, images: pa.Table) -> pa.StringArray:
    inside = pc.replace_substring_regex(images["coco_url"], r"^[A-Za-z]+://[^/]*/", "")  # without the host
    folder_and_name = pc.extract_regex(inside, r"(?:^|/)(?P<tail>[^/]+/[^/]+)$")
    ids = pc.coalesce(pc.struct_field(folder_and_name, "tail"), images["file_name"])
    if ids.null_count:
        number = int(np.flatnonzero(np.asarray(ids.is_null()))[0])
        raise InputError(
            f'{path}: record {number + 1:,} of "images" has neither a "coco_url" that ends in folder/name '
            'nor a "file_name"'
        )
    return image_ids(path, ids)


def _listed(path: str | Path, images: pa.Table, name: str, categories: pa.Table) -> Rows:
    """Return the cells that a list of category ids in each image names."""
    lists = images[name].combine_chunks()
    owner, ids = pc.list_parent_indices(lists), pc.list_flatten(lists)
    return np.asarray(owner) * len(categories) + rows_of(path, ids, categories, "categories")


def _cells(path: str | Path, image: Any, category: Any, images: pa.Table, categories: pa.Table) -> Rows:
    rows = rows_of(path, image, images, "images")
    return rows * len(categories) + rows_of(path, category, categories, "categories")
