"""The command line as a person uses it: what it prints, what it writes, what it exits with."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from rich.console import Console

from tertium.cli import app
from tertium.cli.convert import convert
from tertium.cli.terminal import FIGURES, Lines, show_summary
from tertium.labels.readers import read_labels
from tests.training.test_resume import Killed, kill_after

DOCS = Path(__file__).parents[2] / "docs"


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
    from tertium.training.train import train

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


def test_the_version_is_told_quickly():
    code = (
        "import sys\nfrom tertium.cli import main\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"tertium {version('tertium')}", "False"]


COMMANDS = [
    *((each.callback.__name__,) for each in app.registered_commands),
    *(("convert", each.name) for each in convert.registered_commands),
]


@pytest.mark.parametrize("words", [(), ("convert",), *COMMANDS], ids=" ".join)
def test_help_shows_no_python(tertium, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = tertium(*words, "--help")
    assert code == 0
    assert not re.search(r"<\w|list\[|\bbool\b", out)
    usage = next(line for line in out.splitlines() if "Usage:" in line)
    assert not re.search(r"\[\[|\{|\.\.\.\]?\.\.\.", usage)


def test_help_says_what_values_are_and_which_are_needed(tertium, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    helps = {words[0]: tertium(words[0], "--help")[1] for words in COMMANDS}
    for name in ("train", "predict", "evaluate", "suggest", "complete", "prior"):
        assert "This or --features is needed" in helps[name]
        assert "This or --images is needed" in helps[name]
    assert helps["train"].count("Needed, unless --resume is given") == 2
    assert re.search(r"Usage: tertium train \[OPTIONS\] \[KEY=VALUE\]\.\.\. *\n", helps["train"])
    for name in ("train", "evaluate", "compare", "report", "review"):
        assert ".jsonl" in helps[name]
    assert "report.html" in helps["compare"]
    assert re.search(r"--sample +NUMBER \[x>=2\] +Train on so many images", helps["compare"])
    assert re.search(r"--precision +NUMBER +Above 0, below 1", helps["complete"])
    assert re.search(r"--to +onnx\|safetensors ", helps["export"])


def test_every_figure_is_explained(tertium):
    _, out, _ = tertium("evaluate", "--help")
    page = (DOCS / "evaluate.md").read_text()
    for name, what in FIGURES.items():
        assert f"{name}: {what}" in out
        assert f"| {name} | {what}" in page


def test_one_of_a_kind_needs_no_plural(capsys):
    watch = Lines(Console(stderr=True))
    for total, unit in ((1, "images"), (2, "images"), (1, "batches")):
        watch.start("looking", total, unit)
    assert capsys.readouterr().err.splitlines() == [
        "looking: 1 image",
        "looking: 2 images",
        "looking: 1 batch",
    ]


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "predict", "describe", "simulate", "methods", "report", "demo", "scenes"]
)
def test_every_command_shows_an_example(tertium, command):
    code, out, _ = tertium(command, "--help")
    assert code == 0
    assert f"tertium {command}" in out.replace("\n", " ").partition("Example")[2]


@pytest.mark.parametrize(
    ("change", "said", "unsaid"),
    [
        ({}, "Expected mAP: 61.2, between 55.0 and 67.0.", "chose what to note"),
        ({"settled": False}, "Expected mAP: between 55.0 and 67.0.", "Expected mAP: 61.2"),
        (
            {"settled": False},
            "how annotators chose what to note. If it was by chance, the mAP is about 61.2",
            "of 3",
        ),
        ({"classes": 2}, "for the 2 of 3 classes that training knew to be present", "chose what to note"),
    ],
)
def test_the_headline_is_the_expected_map(capsys, change, said, unsaid):
    """A range where labels do not tell more; the mAP of known labels alone comes second."""
    expected = {"value": 0.612, "low": 0.55, "high": 0.67, "classes": 3, "settled": True} | change
    names = ("training_images", "validation_images", "best_epoch", "epochs", "seconds")
    summary = dict.fromkeys(names, 4) | {"expected_map": expected, "method": "auto", "classes": 3}
    known = {"validation_known_map": 0.9, "validation_known_scored": 2, "validation_score": 0.8}
    show_summary(Console(width=100), summary | known, Path("run"))
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert unsaid not in shown.partition("trained")[0]
    assert shown.index("Expected mAP") < shown.index("mAP of known labels alone")


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
        "patience=99",
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
    assert all(what in out for what in FIGURES.values())
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
    assert f"40 images, the 2 most probable of 3 classes each → {top}" in out
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


def commands_after_training(tertium, *words):
    code, out, _ = tertium("train", *words, "epochs=2")
    assert code == 0
    return [shlex.split(line)[2:] for line in out.splitlines() if line.startswith("Next: tertium ")]


def test_after_training_the_next_commands_work_as_printed(tertium, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = [f"{number:03d}.png" for number in range(12)]
    rows = [
        f"{name},{'cat' if n % 2 else 'dog'},{'test' if n > 7 else 'train'}" for n, name in enumerate(photos)
    ]
    (tmp_path / "my labels.csv").write_text("\n".join(["image,present,split", *rows]) + "\n")
    data = ("--labels", "my labels.csv", "--unlisted", "absent")
    images = ("--images", folder / "photos")
    printed = commands_after_training(tertium, *data, *images, "--out", "run", "image_size=32")
    assert [words[0] for words in printed] == ["evaluate", "predict"]
    assert "--unlisted" in printed[0]
    assert [tertium(*words)[0] for words in printed] == [0, 0]
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 13

    # A feature file without names has no rows for the test images, however many there are.
    features = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", features)
    printed = commands_after_training(tertium, *data, "--features", "x.npy", "--out", "other")
    assert printed == [["predict", "other", "--features", "x.npy", "--out", "predictions.csv"]]
    assert tertium(*printed[0], "--overwrite")[0] == 0


def test_damaged_images_are_left_out_if_asked(tertium, folder, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    shutil.copytree(folder / "photos", photos)
    (photos / "005.png").write_bytes(b"no picture")
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "image,present\n" + "".join(f"{n:03d}.png,{'cat' if n % 2 else 'dog'}\n" for n in range(12))
    )
    begin = (
        "train",
        "--labels",
        labels,
        "--unlisted",
        "absent",
        "--images",
        photos,
        "--out",
        tmp_path / "run",
    )
    code, _, errors = tertium(*begin, "image_size=32", "epochs=2")
    assert (code, errors.count("Error: "), errors.count("005.png")) == (2, 1, 1)
    assert not (tmp_path / "run").exists()
    code, _, errors = tertium(*begin, "--skip-damaged", "image_size=32", "epochs=2")
    assert code == 0
    assert "left out: 1 of 12 images that cannot be read: " in errors
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["left_out"] == ["005.png"]

    # A run that goes on leaves out the same.
    again = (*begin[:-1], tmp_path / "cut", "--skip-damaged", "image_size=32", "epochs=2")
    with monkeypatch.context() as patched:
        kill_after(patched, 1)
        with pytest.raises(Killed):
            tertium(*again, "checkpoint_minutes=0")
    assert tertium("train", "--resume", tmp_path / "cut")[0] == 0

    table = tmp_path / "p.csv"
    predict = ("predict", tmp_path / "run", "--images", photos, "--out", table)
    assert tertium(*predict)[0] == 2
    assert not table.exists()
    assert tertium(*predict, "--skip-damaged")[0] == 0
    assert len(table.read_text().splitlines()) == 12
    assert "005.png" not in table.read_text()
    other = tmp_path / "other.csv"
    code, _, errors = tertium(
        "predict", tmp_path / "run", "--features", "x.npy", "--out", other, "--skip-damaged"
    )
    assert code == 2
    assert "only image files can be damaged and skipped" in errors


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
    code, said, _ = tertium(*command, "--overwrite", "--only", "train")
    assert "random:0.25: kept 60 of 240 known labels of the train part (25.0%)" in said
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
    code, _, errors = tertium(*command, "--overwrite")
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
    monkeypatch.setattr("tertium.cli.demo._TRAINING", 200)
    monkeypatch.setattr("tertium.cli.demo._TEST", 100)
    monkeypatch.setattr("tertium.cli.demo._IMAGE_SIZE", 32)
    monkeypatch.setattr("tertium.cli.demo._PLAN", (("full", ("bce",)), ("random:0.3", ("negative",))))
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", 'there is no command "trian"; did you mean "train"?'),
        ("convert cocco", 'there is no command "cocco"; did you mean "coco"?'),
        ("train --labls x", "tertium train has no option --labls; did you mean --labels?"),
        ("--verison", "tertium has no option --verison; did you mean --version?"),
        ("train --zzz", "tertium train has no option --zzz; see tertium train --help"),
        ("export", "RUN is missing; see tertium export --help"),
        ("suggest RUN", "--labels is missing; see tertium suggest --help"),
        ("merge --out x.csv", "LABELS is missing; see tertium merge --help"),
        ("suggest --budget", "--budget needs a value"),
        ("train --overwrite=yes", "--overwrite takes no value"),
        ("describe a.csv b.csv", 'tertium describe has no place for "b.csv"; see tertium describe --help'),
        ("suggest --budget 0", '--budget cannot be "0"; it must be a whole number of at least 1'),
        ("suggest --budget ten", '--budget cannot be "ten"; it must be a whole number of at least 1'),
        ("serve m.onnx --wait-ms 5000", '--wait-ms cannot be "5000"; it must be a number from 0 to 1000'),
        ("scenes x --seed 1.5", '--seed cannot be "1.5"; it must be a whole number'),
        ("export RUN --to onnnx", '--to cannot be "onnnx"; did you mean "onnx"?'),
        ("merge a b --out c --unlisted absnt", '--unlisted cannot be "absnt"; did you mean "absent"?'),
        ("describe a.csv --unlisted zzz", '--unlisted cannot be "zzz"; choose one of unknown, absent'),
    ],
)
def test_what_is_typed_wrong_is_said_like_all_else(tertium, words, message):
    assert tertium(*words.split()) == (2, "", f"Error: {message}\n")


def test_nothing_typed_shows_the_help(tertium):
    for words in ((), ("convert",)):
        code, out, errors = tertium(*words)
        assert (code, errors) == (2, "")
        assert out.strip() == tertium(*words, "--help")[1].strip()


def test_an_interrupted_command_ends_with_130(tertium, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tertium.labels.readers.LabelFile.read", interrupted)
    assert tertium("describe", "labels.csv") == (130, "", "")


def test_what_is_left_of_labels_is_said_in_words(tertium, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cats.csv").write_text("image,present,absent\na,cat,\nb,,cat\n")
    Path("dogs.csv").write_text("image,present\nb,dog\n")
    code, out, _ = tertium("merge", "cats.csv", "dogs.csv", "--out", "both.csv")
    assert (code, out) == (0, "2 images, 2 classes: 2 labels present, 1 absent → both.csv\n")
    Path("one.json").write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a.jpg"}],
                "categories": [{"id": 7, "name": "cat"}],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "iscrowd": 0}],
            }
        )
    )
    code, out, _ = tertium("convert", "coco", "one.json", "--out", "one.csv")
    assert code == 0
    assert out.splitlines()[0] == "1 image, 1 class: 1 label present, 0 absent → one.csv"
