"""Which near copies are found among photographs; prints the table of docs/evaluate.md.

Run it as ``python -m bench.likeness ../shared/data``. A thousand photographs are divided in halves, of
which each is looked for in the other; then each is altered and looked for among all of them.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tertium.data.inputs import open_inputs
from tertium.data.likeness import Looks, looks, near

COUNT = 1000


def encoded(image: Image.Image) -> Image.Image:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=40)
    return Image.open(sink)


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = image.size
    edges = (share / 2 * width, share / 2 * height, (1 - share / 2) * width, (1 - share / 2) * height)
    return image.crop(tuple(map(round, edges)))


ALTERED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG of quality 40": encoded,
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "5 % cropped": lambda image: cropped(image, 0.05),
    "10 % cropped": lambda image: cropped(image, 0.1),
}


def looked(files: list[Path], alter: Callable[[Image.Image], Image.Image]) -> Looks:
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            alter(Image.open(file).convert("RGB")).save(Path(folder) / f"{file.stem}.jpg", quality=92)
        return looks(open_inputs(folder).pictures)[1]


def main(data: Path) -> None:
    print("| photographs | " + " | ".join(ALTERED) + " | others taken for copies |")
    print("|---" * (len(ALTERED) + 2) + "|")
    for name in ("coco", "ucmerced"):
        files = sorted((data / name / "images").iterdir())
        files = files[:: max(1, len(files) // COUNT)][:COUNT]
        plain = looked(files, lambda image: image)
        wrong = len(near(plain[::2], plain[1::2]))
        shares = []
        for alter in ALTERED.values():
            pairs = near(looked(files, alter), plain)
            right = sum(pair.row == pair.other for pair in pairs)
            wrong += len(pairs) - right
            shares.append(f"{right / len(files):.1%}")
        print(f"| {len(files):,} of {name} | {' | '.join(shares)} | {wrong} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
