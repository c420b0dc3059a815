"""No command replaces a file that it reads, nor any other unless it is told to."""

import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import tertium as package
from tertium.errors import Stopped
from tertium.files import replacing
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tests.cli.commands import commands

ARFF = "@relation 'scene: -C 1'\n@attribute cat {0,1}\n@attribute x numeric\n@data\n1,2\n0,3\n"


TASKS = (
    '[{"data": {"image": "a.jpg"}, "annotations": [{"result": '
    '[{"from_name": "c", "type": "choices", "value": {"choices": ["cat"]}}]}]}]'
)


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
    (folder / "tasks.json").write_text(TASKS)
    (folder / "saved").mkdir()
    pa.parquet.write_table(pa.table({"image": ["a"], "tags": [["cat"]]}), folder / "saved" / "t.parquet")
    package.train(folder / "labels.csv", features=folder / "x.npy", out=folder / "run", epochs=1)
    package.export(folder / "run", out=folder / "m.onnx")
    (folder / "photos").mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8), (90 * number, 0, 0)).save(folder / "photos" / f"{number}.png")
    (folder / "scene.arff").write_text(ARFF)
    (folder / "results.csv").write_text("image,present,split\na,cat,train\nb,,test\n")
    (folder / "cells").mkdir()
    (folder / "pointing.json").write_text("{}")
    return folder


@pytest.fixture
def world(original, tmp_path, monkeypatch):
    shutil.copytree(original, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


DATA = "--labels labels.csv --features x.npy"


REPLACING = [  # commands that would write over what they read
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
    "convert label-studio tasks.json --out tasks.json",
    "convert huggingface saved --column tags --out saved/t.parquet",
    "publish --labels labels.csv --to wide --out labels.csv",
    "publish --probabilities wide.csv --to wide --out wide.csv",
    "export run --out run/model.safetensors --to safetensors",
    f"evaluate run {DATA} --out run/config.json",
    f"evaluate run {DATA} --out run/model.json",
    f"report run {DATA} --out labels.html",
    f"better run m.onnx {DATA} --out labels.json",
    "answers run --labels labels.csv --answers x.sqlite --out labels.csv",
    "describe labels.csv --out labels.csv",
    "describe labels.csv --images photos --out photos/0.png",
    "convert arff scene.arff --features scene.arff --out y.csv",
    f"train {DATA} --config run/config.json --out run",
    "pointing run pointing.json --images photos --out .",
]
WRITTEN_TWICE = [
    "describe labels.csv --out a.csv --twins ./a.csv",
    f"prior {DATA} --out a.csv --plot a.csv",
    f"complete run {DATA} --out a.csv --precision 0.5 --filled a-thresholds.csv",
    "convert arff scene.arff --features y.csv --out y.csv",
]


@pytest.mark.parametrize("words", REPLACING)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_stays(world, tertium, words, overwrite):
    before = contents(world)
    code, _, errors = tertium(*words.split(), *(["--overwrite"] if overwrite else []))
    assert code == 2
    refusals = "is an input", "already exists", "own model", "already holds", "would replace the image"
    assert any(refusal in errors for refusal in refusals), errors
    assert contents(world) == before


@pytest.mark.parametrize("words", WRITTEN_TWICE)
def test_two_outputs_are_two_files(world, tertium, words):
    before = contents(world)
    code, _, errors = tertium(*words.split())
    assert code == 2
    assert "would be written twice" in errors
    assert contents(world) == before


def test_a_comparison_replaces_no_input_and_no_folder_of_others(world, tertium):
    before = contents(world)
    words = "compare --features x.npy --methods ignore --seeds 1 --out"
    code, _, errors = tertium(*words.split(), ".", "--labels", "results.csv")
    assert (code, "results.csv: is an input" in errors) == (2, True)
    code, _, errors = tertium(*words.split(), "run", "--labels", "results.csv")
    assert (code, "holds no comparison" in errors) == (2, True)
    assert contents(world) == before


@pytest.mark.parametrize("kept", ["report.html", "thesis.tex", "full-bce/thesis.tex"])
def test_the_demo_removes_only_a_demo(world, tertium, kept):
    (world / "mine" / kept).parent.mkdir(parents=True)
    (world / "mine" / kept).write_text("years of work")
    before = contents(world)
    code, _, errors = tertium("demo", "--out", "mine")
    assert (code, "holds no demo" in errors) == (2, True)
    shutil.copytree(world / "run", world / "mine" / "random-0.1-auto")
    before = contents(world)
    if kept != "report.html":  # now it is one, and has a report
        code, _, errors = tertium("demo", "--out", "mine")
        assert (code, "thesis.tex" in errors or "holds no run" in errors or "no demo writes" in errors) == (
            2,
            True,
        )
    assert contents(world) == before


READS = {
    "answers",
    "boxes",
    "classes",
    "close",
    "config",
    "descriptions",
    "features",
    "file",
    "files",
    "folder",
}
READS |= {
    "hierarchy",
    "images",
    "labels",
    "model",
    "new",
    "old",
    "partial",
    "probabilities",
    "rename",
    "resume",
    "run",
    "runs",
}
READS |= {"test_features", "token_file", "tree", "truth", "xml"}
WRITES = {"out", "plot", "filled", "twins", "join"}
# They write folders, and have tests of their own.
FOLDERS = {"train", "compare", "demo", "scenes", "explain", "pointing", "review"}


def test_no_command_that_writes_is_forgotten():
    """A new command, or a new option that names a file, must be thought of here."""
    tried = {words.split()[0] for words in (*REPLACING, *WRITTEN_TWICE)} | FOLDERS | {"features"}
    for name, options in commands():
        paths = {option for option, kind in options if "Path" in kind}
        if paths & WRITES:
            assert name.split()[0] in tried, f"{name}: no test says that it does not replace what it reads"
            assert "overwrite" in dict(options) or name in FOLDERS, f"{name}: has no --overwrite"
        assert paths <= READS | WRITES, f"{name}: {paths - READS - WRITES} is new"


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
        ("convert label-studio tasks.json --out there.csv", "there.csv"),
        ("publish --labels labels.csv --to coco --out there.json", "there.json"),
        ("report run --out there.html", "there.html"),
        ("convert arff scene.arff --features there.npy --out y.csv", "there.npy"),
    ],
)
def test_another_file_is_replaced_only_if_asked_for(world, tertium, words, written):
    (world / written).write_text("run,mine")
    code, _, errors = tertium(*words.split())
    assert code == 2
    assert f"{written}: already exists; choose another --out, or add --overwrite" in " ".join(errors.split())
    assert (world / written).read_text() == "run,mine"
    assert tertium(*words.split(), "--overwrite")[0] == 0
    assert (world / written).read_bytes() != b"run,mine"


def test_ready_features_are_replaced_only_if_asked_for(world, tertium):
    before = contents(world)
    words = "features --images photos --image-size 32 --weights random --out x.npy"
    code, _, errors = tertium(*words.split())
    assert code == 2
    assert "x.npy: already exists; choose another --out, or add --overwrite" in " ".join(errors.split())
    assert contents(world) == before
    assert tertium(*words.split(), "--overwrite")[0] == 0
    assert tertium(*words.split())[0] == 0  # its own, which it brings up to date


def test_a_signal_leaves_nothing_half_written(world, tertium, monkeypatch):
    before = contents(world)
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("os.fsync", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    code, _, _ = tertium("simulate", "labels.csv", "--scheme", "random:0.5", "--out", "there.csv")
    assert code == 143
    assert contents(world) == before
    assert signal.getsignal(signal.SIGTERM) is handler


def test_signals_at_awkward_moments(world, tertium, monkeypatch):
    """Ctrl-C before the command is found, and SIGTERM in a command that trains by the way."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tertium.cli.app", interrupted)
        assert tertium("describe", "labels.csv") == (130, "", "")

    def stopped(*_, **__):
        raise Stopped(signal.SIGTERM, kept=True)

    monkeypatch.setattr("tertium.training.session.Session.run", stopped)
    code, _, errors = tertium("rehearse", *DATA.split(), "--budget", 4, "--rounds", 1, "--out", "a.csv")
    assert (code, "Traceback" in errors) == (143, False)


def test_a_signal_between_making_and_writing_a_file_leaves_nothing(tmp_path, monkeypatch):
    """The name of a temporary file is known before there is one."""
    whole = os.open

    def interrupted(*words, **more):
        os.close(whole(*words, **more))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.open", interrupted)
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a.csv"):
            pass
    assert list(tmp_path.iterdir()) == []
