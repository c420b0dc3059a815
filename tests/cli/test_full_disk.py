"""A disk without room: one sentence, exit code 2, and nothing half-written, whatever the command."""

import contextlib
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

import tertium as package
from tertium.labels import Labels
from tertium.labels.readers import write_labels


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 4)).astype(np.float32)
    np.save(folder / "x.npy", features)
    full = Labels.from_dense(np.where(features[:, :3] > 0, 1, -1), classes=["bee", "cat", "dog"])
    write_labels(full, folder / "labels.csv")
    write_labels(full, folder / "more.csv")
    package.train(folder / "labels.csv", features=folder / "x.npy", out=folder / "run", epochs=1)
    (folder / "photos").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8), (50 * number, 0, 0)).save(folder / "photos" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A file system of a few pages, on which nothing more has room."""
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place]
    made = subprocess.run(mount, check=False, capture_output=True)
    if made.returncode:
        pytest.skip("no small file system can be mounted here")
    with contextlib.suppress(OSError), open(place / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(512))
    yield place
    subprocess.run(["umount", place], check=True)


DATA = "--labels {world}/labels.csv --features {world}/x.npy"


@pytest.mark.parametrize(
    "words",
    [
        "simulate {world}/labels.csv --scheme random:0.9 --out {disk}/a.csv",
        "simulate {world}/labels.csv --scheme random:0.9 --out {disk}/a.arrow",
        "merge {world}/labels.csv {world}/more.csv --out {disk}/a.parquet",
        "predict {world}/run --features {world}/x.npy --out {disk}/a.csv",
        "predict {world}/run --features {world}/x.npy --out {disk}/a.parquet",
        f"complete {{world}}/run {DATA} --out {{disk}}/a.csv",
        f"suggest {{world}}/run {DATA} --out {{disk}}/a.csv",
        "report {world}/run --out {disk}/a.html",
        "export {world}/run --out {disk}/a.onnx",
        f"train {DATA} --out {{disk}}/run epochs=1",
        "features --images {world}/photos --out {disk}/a.npy --image-size 32",
    ],
)
def test_one_sentence(world, disk, tertium, words):
    code, _, errors = tertium(*words.format(world=world, disk=disk).split())
    shown = " ".join(errors.split())
    assert code == 2, shown
    assert "Error: " in shown
    assert "full" in shown or "No space left" in shown
    shutil.rmtree(disk / "run", ignore_errors=True)  # the folder of a run may be there, with nothing in it
    assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_an_unwritable_folder(world, tmp_path, tertium, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)  # root may write everywhere
    out = tmp_path / "a.csv"
    code, _, errors = tertium("simulate", world / "labels.csv", "--scheme", "random:0.5", "--out", out)
    assert code == 2
    assert "a.csv: cannot be written (Permission denied)" in " ".join(errors.split())
