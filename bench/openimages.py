"""Label files at the size of Open Images: from published CSV to labels, through the command line."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.measure import Row, cost, row, show
from tertium.labels import Labels

ROWS, IMAGES, CLASSES = 60_000_000, 9_000_000, 9_605
SMALL = 20  # by default a twentieth of it: the full size needs 3 GB of disk and some minutes
_BLOCK = 1_000_000
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SOURCE = b",verification,"
_HEADER = b"ImageID,Source,LabelName,Confidence\n"


def generate(path: Path, rows: int = ROWS, images: int = IMAGES, *, shuffled: bool = False) -> None:
    """Write a CSV file laid out as the human-verified image labels of Open Images.

    The same sizes give the same bytes. Rows are grouped by image, as published, unless ``shuffled``.
    """
    order = np.random.default_rng(0).permutation(rows) if shuffled else None
    with open(path, "wb") as out:
        out.write(_HEADER)
        for start in range(0, rows, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, rows))
            out.write(_lines(numbers if order is None else order[numbers], rows, images).tobytes())


def _lines(numbers: npt.NDArray[np.int64], rows: int, images: int) -> npt.NDArray[np.uint8]:
    """Return the lines with these numbers, all of the same width, as bytes [lines, width]."""
    image = numbers * images // rows
    turn = numbers - -(-image * rows // images)  # which of the image's lines this is
    step = 1 + image % 991  # times fewer than nine lines an image is below CLASSES: no class twice
    column = (image * 7919 + turn * step) % CLASSES
    mixed = image.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # odd, so no two ids are the same
    absent = (mixed >> np.uint64(13)) + turn.astype(np.uint64) & np.uint64(1)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    head = len(_SOURCE) + 16
    lines = np.empty((len(numbers), head + 12), dtype=np.uint8)
    lines[:, :16] = _HEX[(mixed[:, None] >> shifts & np.uint64(15)).astype(np.intp)]
    lines[:, 16:head] = np.frombuffer(_SOURCE, dtype=np.uint8)
    lines[:, head:-3] = _MIDS[column]
    lines[:, -3:] = np.frombuffer(b",1\n", dtype=np.uint8)
    lines[:, -2] -= absent.astype(np.uint8)
    return lines


_MIDS = np.array([list(f"/m/0{number:05x}".encode()) for number in range(CLASSES)], dtype=np.uint8)


def rows(smoke: bool = False, share: float = 1 / SMALL) -> list[Row]:
    """Convert generated files through the command line, each in a process of its own.

    ``python -m bench.openimages 1`` measures the full size, for which the bound is 30 s.
    """
    orders, suffixes = ("grouped", "shuffled"), (".arrow", ".parquet")
    if smoke:
        orders, suffixes, share = orders[1:], suffixes[:1], 1 / 60_000
    lines, images = round(ROWS * share), round(IMAGES * share)
    bound = 30 * share + 2 * (1 - share)  # a small file is mostly the command's start
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for order in orders:
            source = folder / "labels.csv"
            generate(source, lines, images, shuffled=order == "shuffled")
            case = f"{lines:,} rows, {images:,} images, {order}"
            for suffix in suffixes:
                out = folder / f"labels{suffix}"
                out.unlink(missing_ok=True)
                wall, work, most = command("convert", "openimages", source, "--out", out)
                found += [
                    row("open images", f"{case} → {suffix}: seconds", wall, "≤", bound),
                    row("open images", f"{case} → {suffix}: processor seconds", work, "≤", None),
                    row("open images", f"{case} → {suffix}: gigabytes at most", most, "≤", 3),
                ]
        found += reopening(folder)
        found += long_form(folder)
    return found


def reopening(folder: Path) -> list[Row]:
    start = time.perf_counter()
    labels = Labels.load(folder / "labels.arrow")
    opened = time.perf_counter() - start
    wall, _, most = command("describe", folder / "labels.arrow")
    case = f"{len(labels):,} images"
    return [
        row("open images", f"{case}: seconds to map the labels", opened, "≤", 0.2),
        row("open images", f"{case}: seconds of `tertium describe`", wall, "≤", 10),
        row("open images", f"{case}: gigabytes of `tertium describe`", most, "≤", 3),
    ]


def long_form(folder: Path) -> list[Row]:
    """Measure `read_labels` on the same rows as image,label,value."""
    source, long = folder / "labels.csv", folder / "long.csv"
    with open(source, "rb") as lines, open(long, "wb") as out:
        next(lines)
        out.write(b"image,source,label,value\n")
        while block := lines.read(42 * _BLOCK):  # every line is as wide
            letters = np.frombuffer(block, dtype=np.uint8).reshape(-1, 42)
            wider = np.empty((len(letters), 43), dtype=np.uint8)
            wider[:, :40] = letters[:, :40]
            wider[:, 40:] = np.frombuffer(b"+1\n", dtype=np.uint8)
            wider[letters[:, 40] == ord("0"), 40] = ord("-")
            out.write(wider.tobytes())
    wall, work, most = command("describe", long)
    case = "long form, shuffled, `tertium describe`"
    return [
        row("open images", f"{case}: seconds", wall, "≤", None),
        row("open images", f"{case}: processor seconds", work, "≤", None),
        row("open images", f"{case}: gigabytes at most", most, "≤", 3),
    ]


def command(*words: str | Path) -> tuple[float, float, float]:
    """Run the command line; return its seconds, its processor seconds and its peak memory in gigabytes."""
    wall, work, most = cost("from tertium.cli import main; main()", *words)
    return wall, work, most / 1e9


if __name__ == "__main__":
    show(rows(share=float(sys.argv[1]) if len(sys.argv) > 1 else 1 / SMALL))
