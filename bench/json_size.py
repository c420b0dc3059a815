"""A COCO file of a gigabyte: the memory and time that its labels take; the json module on a tenth of it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from bench.measure import Row, cost, row, show

BYTES, IMAGES, CATEGORIES = 1_000_000_000, 120_000, 80
_READ = "from tertium.labels.formats.coco import read; print(read({path!r}).labels)"
_LOAD = "import json; print(len(json.load(open({path!r}, encoding='utf-8'))['annotations']))"
_IMPORT = "import tertium.labels.formats.coco"


def rows(smoke: bool = False) -> list[Row]:
    size, images = (100_000, 100) if smoke else (BYTES, IMAGES)
    idle = cost(_IMPORT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "instances.json"
        write(path, size, images)
        read = cost(_READ.format(path=str(path)))
        write(path, size // 10, images)
        loaded = cost(_LOAD.format(path=str(path)))
    return [
        row(
            "JSON",
            f"{size / 1e9:g} GB instances file: peak megabytes of the process",
            read.peak / 2**20,
            "≤",
            300,
        ),
        row("JSON", "peak megabytes before reading", idle.peak / 2**20, "≤", None),
        row("JSON", f"{size / 1e9:g} GB instances file: processor seconds", read.work, "≤", None),
        row(
            "JSON",
            f"json.load, {size / 1e10:g} GB: peak megabytes of the process",
            loaded.peak / 2**20,
            "≤",
            None,
        ),
        row("JSON", f"json.load, {size / 1e10:g} GB: processor seconds", loaded.work, "≤", None),
    ]


def write(path: Path, size: int, images: int) -> None:
    """Write an instances file of about ``size`` bytes: outlines of 8 to 90 corners, as COCO's are."""
    rng = np.random.default_rng(0)
    pictures = [
        {"file_name": f"COCO_train2014_{n:012}.jpg", "height": 480, "width": 640, "id": n}
        for n in range(images)
    ]
    categories = [{"supercategory": "none", "id": n, "name": f"class {n}"} for n in range(1, CATEGORIES + 1)]
    outlines = [
        json.dumps([np.round(640 * rng.random(2 * n), 2).tolist()]) for n in rng.integers(8, 90, 2000)
    ]
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'{{"images": {json.dumps(pictures)}, "categories": {json.dumps(categories)}, "annotations": ['
        )
        number = 0
        while file.tell() < size:
            pairs = zip(
                rng.integers(images, size=2000), rng.integers(1, CATEGORIES + 1, size=2000), strict=True
            )
            for outline, (image, category) in zip(outlines, pairs, strict=True):
                file.write(
                    f'{", " if number else ""}{{"segmentation": {outline}, "area": 702.1, "iscrowd": 0, '
                    f'"image_id": {image}, "bbox": [473.07, 395.93, 38.65, 28.67], "category_id": {category}'
                    f', "id": {number}}}'
                )
                number += 1
        file.write("]}")


if __name__ == "__main__":
    show(rows())
