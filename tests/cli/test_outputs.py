"""No command replaces a file that it reads, nor any other unless it is told to."""

import shutil

import numpy as np
import pytest

import tertium as package
from tertium.labels import Labels
from tertium.labels.readers import write_labels


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 4)).astype(np.float32)
    np.save(folder / "x.npy", features)
    full = Labels.from_dense(np.where(features[:, :2] > 0, 1, -1), classes=["cat", "dog"])
    write_labels(full, folder / "labels.csv")
    write_labels(full, folder / "more.csv")
    (folder / "wide.csv").write_text("image,cat\na.jpg,1\n")
    package.train(folder / "labels.csv", features=folder / "x.npy", out=folder / "run", epochs=1)
    package.export(folder / "run", out=folder / "m.onnx")
    return folder


@pytest.fixture
def world(original, tmp_path, monkeypatch):
    shutil.copytree(original, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


DATA = "--labels labels.csv --features x.npy"


@pytest.mark.parametrize(
    "words",
    [
        f"predict run {DATA} --out labels.csv",
        f"predict m.onnx {DATA} --out ./labels.csv",
        f"evaluate run {DATA} --out labels.json",  # its table goes beside it
        f"complete run {DATA} --out labels.csv",
        f"complete run {DATA} --out done.csv --precision 0.9 --filled labels.csv",
        f"suggest run {DATA} --out labels.csv",
        "rehearse --labels labels.csv --features x.npy --out labels.csv",
        "simulate labels.csv --scheme random:0.5 --out labels.csv",
        "merge labels.csv more.csv --out more.csv",
        f"prior {DATA} --out labels.csv",
        "convert wide wide.csv --positive 1 --negative 0 --out wide.csv",
        "export run --out run/model.safetensors --to safetensors",
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_stays(world, tertium, words, overwrite):
    before = contents(world)
    code, _, errors = tertium(*words.split(), *(["--overwrite"] if overwrite else []))
    assert code == 2
    assert "is an input" in errors or "already exists" in errors or "own model" in errors
    assert contents(world) == before


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (f"predict run {DATA} --out there.csv", "there.csv"),
        (f"evaluate run {DATA} --out there.json", "there.csv"),
        (f"complete run {DATA} --out there.csv", "there.csv"),
        (f"suggest run {DATA} --out there.csv", "there.csv"),
        ("simulate labels.csv --scheme random:0.5 --out there.csv", "there.csv"),
        ("merge labels.csv more.csv --out there.csv", "there.csv"),
        ("convert wide wide.csv --positive 1 --negative 0 --out there.csv", "there.csv"),
        ("report run --out there.html", "there.html"),
    ],
)
def test_another_file_is_replaced_only_if_asked_for(world, tertium, words, written):
    (world / written).write_text("run,mine")
    code, _, errors = tertium(*words.split())
    assert code == 2
    assert f"{written}: already exists; choose another --out, or add --overwrite" in " ".join(errors.split())
    assert (world / written).read_text() == "run,mine"
    assert tertium(*words.split(), "--overwrite")[0] == 0
    assert (world / written).read_text() != "run,mine"
