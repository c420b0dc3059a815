"""The command line as a person uses it: what it prints, what it writes, what it exits with."""

import csv
import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from tertium.readers import read_labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features and labels of 120 images in two splits, and a few pictures."""
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(120, 6)).astype(np.float32)
    np.save(path / "train.npy", features[:80])
    np.save(path / "test.npy", features[80:])
    names = np.array(["cat", "dog", "[fox]"])
    lines = ["image,present,split"]
    for number, row in enumerate(features):
        split = "train" if number < 80 else "test"
        lines.append(f"{number:03d}.png,{';'.join(names[row[:3] > 0.3])},{split}")
    (path / "labels.csv").write_text("\n".join(lines) + "\n")
    (path / "photos").mkdir()
    for number in range(12):
        pixels = rng.integers(0, 256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / "photos" / f"{number:03d}.png")
    return path


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    from tertium.training import train

    out = tmp_path_factory.mktemp("runs") / "run"
    labels = read_labels(folder / "labels.csv", unlisted="absent")
    train(labels, features=folder / "train.npy", out=out, epochs=20, lr=0.01)
    return out


def test_help_is_quick_and_names_every_command():
    """`tertium --help` must not import what takes seconds."""
    code = "import sys, tertium.cli; print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    shown = subprocess.run(
        [sys.executable, "-m", "tertium", "--help"], capture_output=True, text=True, check=True
    )
    for command in (
        "train",
        "evaluate",
        "predict",
        "describe",
        "simulate",
        "methods",
        "report",
        "demo",
        "scenes",
    ):
        assert command in shown.stdout


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "predict", "describe", "simulate", "methods", "report", "demo", "scenes"]
)
def test_every_command_shows_an_example(tertium, command):
    code, out, _ = tertium(command, "--help")
    assert code == 0
    assert f"tertium {command}" in out.replace("\n", " ").partition("Example")[2]


def test_train_evaluate_predict_report(tertium, folder, tmp_path):
    run = tmp_path / "run"
    data = ("--labels", folder / "labels.csv", "--unlisted", "absent")
    code, out, errors = tertium(
        "train",
        *data,
        "--features",
        folder / "train.npy",
        "--out",
        run,
        "--method",
        "an",
        "epochs=12",
        "lr=0.01",
        "positive_weight=2",
    )
    assert code == 0
    assert "negative" in out
    assert f"Run: {run}" in out
    assert "epoch 12: loss" in errors
    assert json.loads((run / "config.json").read_text())["settings"]["parameters"] == {"positive_weight": 2.0}
    assert "epoch 12: loss" in (run / "log.txt").read_text()

    code, out, _ = tertium("evaluate", run, *data, "--features", folder / "test.npy", "--split", "test")
    assert code == 0
    figures = json.loads((run / "evaluation.json").read_text())
    assert f"{100 * figures['map_c']:.1f} (3 of 3 classes)" in out
    assert (run / "evaluation.csv").read_text().splitlines()[0] == "class,ap,present,absent,threshold"
    assert "[fox]" in (run / "evaluation.csv").read_text()
    assert f"(ECE): {100 * figures['ece']:.1f}" in out
    assert "G1" not in out  # all classes have equally many labels

    wide, top = tmp_path / "p.csv", tmp_path / "p.parquet"
    assert tertium("predict", run, "--features", folder / "test.npy", "--out", wide)[0] == 0
    lines = list(csv.reader(wide.open()))
    assert lines[0] == ["image", "[fox]", "cat", "dog"]
    assert len(lines) == 41
    named = ("--labels", folder / "labels.csv", "--split", "test")
    code, out, _ = tertium(
        "predict", run, "--features", folder / "test.npy", *named, "--out", top, "--top", "2"
    )
    assert "40 images × 3 classes" in out
    table = pyarrow.parquet.read_table(top)
    assert table.column_names == ["image", "label", "probability"]
    assert table["image"][:4].to_pylist() == ["080.png", "080.png", "081.png", "081.png"]
    assert table["probability"][0].as_py() >= table["probability"][1].as_py()

    page = tmp_path / "report.html"
    assert tertium("report", run, "--out", page)[0] == 0
    assert "[fox]" in page.read_text()
    assert page.with_suffix(".csv").is_file()


def test_evaluate_groups_classes_by_their_training_labels(tertium, folder, tmp_path):
    labels = tmp_path / "labels.csv"
    rows = ["image,present,absent"]
    for row, values in enumerate(np.load(folder / "train.npy")):
        known = ["cat", "dog", "[fox]"][: 1 + row % 3]
        present = [name for name, value in zip(known, values[:3], strict=False) if value > 0]
        rows.append(f"{row}.png,{';'.join(present)},{';'.join(n for n in known if n not in present)}")
    labels.write_text("\n".join(rows) + "\n")
    run = tmp_path / "run"
    data = ("--labels", labels, "--features", folder / "train.npy")
    assert tertium("train", *data, "--out", run, "--method", "ignore", "epochs=2", "validation=0")[0] == 0
    code, out, _ = tertium("evaluate", run, *data, "--out", tmp_path / "e.json")
    assert code == 0
    groups = json.loads((tmp_path / "e.json").read_text())["groups"]
    assert [(group["name"], group["fewest"]) for group in groups] == [("G1", 26), ("G2", 53), ("G3", 80)]
    lines = [line for line in out.splitlines() if "G2" in line]
    assert [cell.strip() for cell in lines[0].split("│")[1:4]] == ["G2", "53", "1 of 1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "e.json", "labels.csv", "run"]


def test_train_on_photos(tertium, folder, tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "image,present\n" + "".join(f"{n:03d}.png,{'cat' if n % 2 else 'dog'}\n" for n in range(12))
    )
    run = tmp_path / "run"
    photos = folder / "photos"
    code, _, errors = tertium(
        "train", "--labels", labels, "--images", photos, "--out", run, "image_size=32", "epochs=2"
    )
    assert code == 0
    assert "extracting features" in errors
    assert tertium("predict", run, "--images", photos, "--out", tmp_path / "p.csv")[0] == 0
    lines = list(csv.reader((tmp_path / "p.csv").open()))
    assert lines[0] == ["image", "cat", "dog"]
    assert [line[0] for line in lines[1:]] == [f"{n:03d}.png" for n in range(12)]


def test_config_files(tertium, folder, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('method = "wan"\nseed = 4\n[head]\nepochs = 2\n')
    data = ("--labels", folder / "labels.csv", "--unlisted", "absent", "--features", folder / "train.npy")
    assert tertium("train", *data, "--config", config, "--out", tmp_path / "a", "seed=5")[0] == 0
    settings = json.loads((tmp_path / "a" / "config.json").read_text())["settings"]
    assert (settings["method"], settings["seed"], settings["head"]["epochs"]) == ("wan", 5, 2)
    again = tmp_path / "a" / "config.json"
    assert tertium("train", *data, "--config", again, "--out", tmp_path / "b")[0] == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (
        tmp_path / "b" / "model.safetensors"
    ).read_bytes()


def test_describe(tertium, folder):
    code, out, _ = tertium("describe", folder / "labels.csv")
    assert code == 0
    assert "120 images, 3 classes" in out
    assert "split train: 80 images" in out
    assert "Resembles: positives only" in out
    code, out, _ = tertium(
        "describe", folder / "labels.csv", "--unlisted", "absent", "--split", "test", "--json"
    )
    about = json.loads(out)
    assert about["images"] == 40
    assert about["setting"]["name"] == "full"


def test_simulate(tertium, folder, tmp_path):
    out = tmp_path / "partial.csv"
    labels = folder / "labels.csv"
    command = ("simulate", labels, "--unlisted", "absent", "--scheme", "random:0.25", "--out", out)
    code, said, _ = tertium(*command)
    assert code == 0
    assert "random:0.25: kept 90 of 360 known labels (25.0%)" in said
    full = read_labels(labels, unlisted="absent")
    partial = read_labels(out).with_classes(full.classes)
    assert ((partial.dense() == full.dense()) | (partial.dense() == 0)).all()
    code, _, _ = tertium(*command, "--only", "train")
    partial = read_labels(out).with_classes(full.classes)
    assert code == 0
    assert partial.part("test") == full.part("test")
    assert partial.part("train").known == 60


def test_simulate_hierarchy(tertium, folder, tmp_path):
    tree = tmp_path / "tree.csv"
    tree.write_text("parent,child\ncat,dog\n")
    command = (
        "simulate",
        folder / "labels.csv",
        "--unlisted",
        "absent",
        "--scheme",
        "hierarchy",
        "--out",
        tmp_path / "h.csv",
    )
    assert tertium(*command, "--tree", tree)[0] == 0
    code, _, errors = tertium(*command)
    assert code == 2
    assert "tree" in errors


def test_methods(tertium):
    code, out, _ = tertium("methods")
    assert code == 0
    assert "weighted_ignore, wne, wce" in out
    assert "positive_weight=1.0" in out
    rows = json.loads(tertium("methods", "--json")[1])
    assert {"name", "paper", "does", "parameters", "aliases"} == set(rows[0])
    _, out, _ = tertium("methods", "an")
    assert out.startswith("negative (")
    assert "positive_weight = 1.0" in out


def test_demo(tertium, tmp_path, monkeypatch):
    monkeypatch.setattr("tertium.demo._TRAINING", 200)
    monkeypatch.setattr("tertium.demo._TEST", 100)
    monkeypatch.setattr("tertium.demo._IMAGE_SIZE", 32)
    monkeypatch.setattr("tertium.demo._PLAN", (("full", ("bce",)), ("random:0.3", ("negative",))))
    out = tmp_path / "demo"
    code, said, _ = tertium("demo", "--out", out)
    assert code == 0
    assert "mAP(C)" in said
    assert "random:0.3" in said
    assert f"Report: {out / 'report.html'}" in said
    assert "the ceiling" in (out / "report.html").read_text()
    assert (out / "random-0.3-negative" / "model.safetensors").is_file()
    assert tertium("demo", "--out", out)[0] == 0  # an earlier demo is replaced
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    code, _, errors = tertium("demo", "--out", tmp_path / "mine")
    assert code == 2
    assert "holds no demo" in errors


def test_scenes(tertium, tmp_path):
    code, out, _ = tertium("scenes", tmp_path / "photos", "--count", "5")
    assert code == 0
    assert "5 scenes and labels.csv" in out
    labels = read_labels(tmp_path / "photos" / "labels.csv", unlisted="absent")
    assert labels.images.to_pylist() == [f"scene-00000{n}.png" for n in range(5)]
    assert (tmp_path / "photos" / "scene-000004.png").is_file()
    code, _, errors = tertium("scenes", tmp_path / "photos")
    assert code == 2
    assert "already exists" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--method", "ignroe"], 'there is no method "ignroe"; did you mean "ignore"?'),
        (["train", "epoch=3"], 'there is no setting "epoch"; did you mean "epochs"?'),
        (["train", "--method", "an", "positive_wieght=2"], 'did you mean "positive_weight"?'),
        (["train", "--features", "test.npy"], "40 rows of features for 80 labelled images"),
        (["train", "--config", "none.toml"], "none.toml: no such file"),
        (["train", "--classes", "labels.csv"], "there is no class"),
        (["describe", "none.csv"], "none.csv: no such file"),
        (["describe", "labels.csv", "--split", "tset"], 'there is no split "tset"; did you mean "test"?'),
        (["simulate", "labels.csv", "--scheme", "randon:0.1", "--out", "x.csv"], 'did you mean "random"?'),
        (["simulate", "labels.csv", "--scheme", "random:2", "--out", "x.csv"], "keep must be"),
        (["simulate", "labels.csv", "--scheme", "full", "--out", "x.txt"], "written as"),
        (["evaluate", "none", "--labels", "labels.csv", "--features", "test.npy"], "no trained model in it"),
        (["predict", "RUN", "--features", "test.npy", "--out", "x.txt"], "written as .csv or .parquet"),
        (["predict", "RUN", "--out", "x.csv"], "give either images or features"),
        (["evaluate", "RUN", "--labels", "labels.csv", "--out", "no/x.json"], "the folder no does not exist"),
        (["predict", "RUN", "--images", "photos", "--out", "x.csv"], "trained on features"),
        (["predict", "RUN", "--features", "none.npy", "--out", "x.csv"], "none.npy: no such file"),
        (["methods", "nothing_like_it"], "there is no method"),
        (["report", "photos", "--out", "x.html"], "holds no run"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(tertium, folder, run, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    words = [str(run) if word == "RUN" else word for word in words]
    if words[0] == "train":
        defaults = {"--labels": "labels.csv", "--features": "train.npy", "--out": "x", "--unlisted": "absent"}
        words += [part for key in defaults if key not in words for part in (key, defaults[key])]
    before = sorted(path.name for path in folder.iterdir())
    code, out, errors = tertium(*words)
    assert code == 2
    assert out == ""
    assert errors.startswith("Error: ")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == before  # nothing half-written


def test_an_existing_run_is_kept(tertium, folder, run):
    words = ("train", "--labels", folder / "labels.csv", "--features", folder / "train.npy", "--out", run)
    before = (run / "model.safetensors").read_bytes()
    code, _, errors = tertium(*words)
    assert code == 2
    assert "already holds a run" in errors
    assert (run / "model.safetensors").read_bytes() == before


def test_unknown_options_exit_with_2(tertium):
    assert tertium("train", "--labls", "x")[0] == 2
