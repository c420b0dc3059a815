"""Tiny inputs of every kind, and the commands that read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IMAGES, CLASSES = 16, ("bee", "cat", "dog")
DATA = "--labels {world}/labels.csv --features {world}/x.npy"


@dataclass(frozen=True)
class Command:
    """A command, what it writes, and what of this is the same whenever it succeeds."""

    words: str  # {world} is the folder of inputs, {out} a folder for outputs
    same: tuple[str, ...] = ()  # files in {out}
    again: str = "--overwrite"  # what makes it replace its own output
    reads: tuple[str, ...] = ("labels.csv", "x.npy")  # what may be damaged; folders end with /
    into: str = "{out}"  # the folder that it makes, if it makes one

    @property
    def name(self) -> str:
        """The command as `tertium --help` lists it."""
        first, second, *_ = self.words.split()
        return f"{first} {second}" if first == "convert" else first


_RUN, _IMAGES = ("run/", "labels.csv", "x.npy"), ("pictured/", "photos/")
COMMANDS = (
    Command(
        "simulate {world}/labels.csv --scheme random:0.5 --out {out}/a.csv", ("a.csv",), reads=("labels.csv",)
    ),
    Command("simulate {world}/labels.csv --scheme random:0.5 --out {out}/a.arrow", (), reads=("labels.csv",)),
    Command(
        "merge {world}/labels.csv {world}/more.csv --out {out}/a.csv",
        ("a.csv",),
        reads=("labels.csv", "more.csv"),
    ),
    Command(
        "describe {world}/labels.csv --images {world}/photos --out {out}/a.csv --twins {out}/b.csv",
        ("a.csv", "b.csv"),
        reads=("labels.csv", "photos/"),
    ),
    Command(
        "convert wide {world}/wide.csv --positive 1 --negative 0 --out {out}/a.csv",
        ("a.csv",),
        reads=("wide.csv",),
    ),
    Command("convert coco {world}/boxes.json --out {out}/a.csv", ("a.csv",), reads=("boxes.json",)),
    Command(
        "publish --labels {world}/labels.csv --to wide --out {out}/a.csv", ("a.csv",), reads=("labels.csv",)
    ),
    Command(f"prior {DATA} --out {{out}}/a.csv --plot {{out}}/a.svg", ("a.csv",)),
    Command(f"complete {{world}}/run {DATA} --out {{out}}/a.csv", ("a.csv",), reads=_RUN),
    Command(f"suggest {{world}}/run {DATA} --out {{out}}/a.csv", ("a.csv",), reads=_RUN),
    Command(f"rehearse {DATA} --budget 4 --rounds 1 --out {{out}}/a.csv", ("a.csv",)),
    Command(
        "answers {world}/run --labels {world}/labels.csv --answers {world}/answers.sqlite --out {out}/a.csv",
        ("a.csv", "a-contradictions.csv"),
        reads=("labels.csv", "answers.sqlite", "run/"),
    ),
    Command(
        "features --images {world}/photos --weights random --image-size 32 --out {out}/a.npy",
        ("a.npy", "a.npy.json"),
        reads=("photos/",),
    ),
    Command(
        f"train {DATA} --method role --out {{out}}/run epochs=3 checkpoint_minutes=0",
        ("run/model.safetensors", "run/model.json", "run/metrics.jsonl"),
        into="{out}/run",
    ),
    Command(
        "train --labels {world}/labels.csv --images {world}/photos --out {out}/run epochs=2 weights=random"
        " image_size=32 checkpoint_minutes=0",
        ("run/model.safetensors", "run/model.json", "run/annotation.json"),
        reads=("labels.csv", "photos/"),
        into="{out}/run",
    ),
    Command(f"evaluate {{world}}/run {DATA} --out {{out}}/a.json", ("a.json", "a.csv"), reads=_RUN),
    Command("predict {world}/run --features {world}/x.npy --out {out}/a.csv", ("a.csv",), reads=_RUN),
    Command(
        "predict {world}/run --features {world}/x.npy --out {out}/job/ --join {out}/a.csv",
        ("a.csv", "job/parts/000/000000.parquet"),
        reads=_RUN,
        into="{out}/job",
    ),
    Command(
        "predict {world}/pictured --images {world}/photos --out {out}/a.parquet",
        ("a.parquet",),
        reads=_IMAGES,
    ),
    Command(
        "predict {world}/model.onnx --features {world}/x.npy --out {out}/a.csv",
        ("a.csv",),
        reads=("model.onnx", "x.npy"),
    ),
    Command(
        f"compare {DATA} --methods ignore --schemes random:0.5 --seeds 1 --jobs 1 --out {{out}}/all epochs=2",
        ("all/results-classes.csv", "all/table.md"),
        again="",
        into="{out}/all",
    ),
    Command(
        "explain {world}/pictured {world}/photos/0.png {world}/photos/1.png --out {out}/maps",
        ("maps/explained.csv", "maps/0.png"),
        reads=_IMAGES,
        into="{out}/maps",
    ),
    Command(
        "pointing {world}/pictured {world}/boxes.json --images {world}/photos --out {out}/points",
        ("points/pointing.csv",),
        reads=(*_IMAGES, "boxes.json"),
        into="{out}/points",
    ),
    Command(
        f"better {{world}}/run {{world}}/model.onnx {DATA} --out {{out}}/a.json",
        ("a.json", "a.csv"),
        reads=(*_RUN, "model.onnx"),
    ),
    Command("export {world}/run --out {out}/a.onnx", reads=("run/",)),
    Command(
        "export {world}/pictured --to safetensors --out {out}/a.safetensors",
        ("a.safetensors",),
        reads=_IMAGES,
    ),
    Command(f"report {{world}}/run {DATA} --out {{out}}/a.html", ("a-epochs.csv",), reads=_RUN),
    Command(
        "scenes {out}/new --count 5",
        ("new/labels.csv", "new/boxes.json"),
        again="",
        reads=(),
        into="{out}/new",
    ),
)
SERVERS = (
    "serve {world}/model.onnx --port 0",
    "serve {world}/run --port 0",
    "review {world}/run --labels {world}/partial.csv --features {world}/x.npy --images {world}/photos"
    " --answers {out}/kept.sqlite --port 0",
)
LEFT_OUT = {
    "demo": "it renders 4,500 scenes",
    "encoders": "it neither reads nor writes files",
    "methods": "it neither reads nor writes files",
}


def make(world: Path) -> None:
    """Write the inputs, the same ones each time."""
    from PIL import Image

    from tertium import export, train
    from tertium.web.reviewing.answers import Answer, Answers, Question

    rng = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(IMAGES)]
    (world / "photos").mkdir(parents=True)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(world / "photos" / name)
    features = rng.normal(size=(IMAGES, 4)).astype(np.float32)
    np.save(world / "x.npy", features)
    signs = np.where(features[:, : len(CLASSES)] > 0, 1, -1)
    lines = ["image,present,absent,split"]
    for number, (name, row) in enumerate(zip(names, signs, strict=True)):
        said = [
            ";".join(each for each, value in zip(CLASSES, row, strict=True) if value == sign)
            for sign in (1, -1)
        ]
        lines.append(",".join([name, *said, "test" if number % 4 == 0 else "train"]))
    (world / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (world / "more.csv").write_text("\n".join(lines[:9]) + "\n", encoding="utf-8")
    bare = [
        "image,present,absent",
        *(f"{name},{'cat' if n % 2 else 'dog'},bee" for n, name in enumerate(names)),
    ]
    (world / "partial.csv").write_text("\n".join(bare) + "\n", encoding="utf-8")
    (world / "wide.csv").write_text("image,cat,dog\n0.png,1,0\n1.png,0,1\n", encoding="utf-8")
    boxes = {
        "images": [{"id": n, "file_name": name, "width": 24, "height": 24} for n, name in enumerate(names)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(CLASSES)],
        "annotations": [
            {"id": n, "image_id": n, "category_id": n % 3, "bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0}
            for n in range(IMAGES)
        ],
    }
    (world / "boxes.json").write_text(json.dumps(boxes), encoding="utf-8")
    data = {"labels": world / "labels.csv", "epochs": 2}
    train(**data, features=world / "x.npy", out=world / "run")
    train(**data, images=world / "photos", out=world / "pictured", weights="random", image_size=32)
    export(world / "run", out=world / "model.onnx")
    log = Answers(world / "answers.sqlite")
    asked = log.add_round("key", [Question("0.png", "cat", 0.5, "a close call")], [])
    log.add([Answer(asked.questions[0], "present", {})], who="ada", window="w", step="s", round=asked.id)
    log.close()
