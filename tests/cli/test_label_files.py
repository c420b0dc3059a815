"""Label files as newcomers have them, on the command line: what is said, and what to type next."""

import csv
import json
import shlex

import numpy as np
import pytest
from PIL import Image

from tertium.labels.readers import read_labels

ANIMALS = ("badger", "deer", "fox", "hare")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Photos, of which the last three have no line, and labels as a spreadsheet program saves them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    lines = ["image,present,absent,split"]
    for number in range(27):
        pixels = rng.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02}.png")
        if number < 24:
            chosen = rng.permutation(ANIMALS)
            split = ("train", "train", "valid", "test")[number % 4]
            lines.append(f'./{number:02}.png,"{chosen[0]}, {chosen[1]}","nan",{split}')
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def settled(*words):
    return (*words, "--separator", ",", "--missing", "nan")


def test_each_refusal_names_the_option_that_settles_it(tertium, folder):
    code, _, errors = tertium("describe", "labels.csv")
    assert code == 2
    assert errors.count("\n") == 1
    assert "say --separator ',', or" in errors
    code, _, errors = tertium("describe", "labels.csv", "--separator", ",")
    assert code == 2
    assert '"nan" (24 times); say --missing nan where nothing is meant' in errors
    code, out, _ = tertium(*settled("describe", "labels.csv"))
    assert code == 0
    assert "24 images, 4 classes" in out


def test_describe_lists_classes_splits_and_what_to_type(tertium, folder):
    code, out, _ = tertium(*settled("describe", "labels.csv"), "--unlisted", "absent")
    assert code == 0
    assert "split valid: 6 images, which is val" in out
    labels = read_labels("labels.csv", separator=",", missing=["nan"], unlisted="absent")
    for name, present in zip(labels.classes, labels.class_counts[0].tolist(), strict=True):
        (row,) = [line for line in out.splitlines() if line.startswith(f"│ {name} ")]
        assert [int(cell) for cell in row.split("│")[2:5]] == [present, 24 - present, 0]
    (step,) = [line.removeprefix("Next: ") for line in out.splitlines() if line.startswith("Next: ")]
    words = shlex.split(step)
    assert words[-2:] == ["--images", "photos"]  # found beside the labels
    code, out, _ = tertium(*words[1:])
    assert code == 0
    assert "not named by the labels: 3 (24.png, 25.png, 26.png)" in out
    assert out.splitlines()[-1].startswith(
        "Next: tertium train --labels labels.csv --separator , --missing nan"
    )


def test_the_steps_lead_to_a_run_that_goes_on_and_is_evaluated(tertium, folder):
    code, out, _ = tertium(*settled("describe", "labels.csv", "--images", "photos"), "--unlisted", "absent")
    train = shlex.split(out.splitlines()[-1].removeprefix("Next: "))[1:]
    code, out, errors = tertium(
        *train, "image_size=32", "--method", "ignore", "epochs=1", "backbone=resnet18", "weights=random"
    )
    assert code == 0, errors
    assert "Note: 3 of the 27 image files in photos are not named by the labels" in errors
    data = json.loads((folder / "runs" / "1" / "config.json").read_text())["data"]
    assert data["reading"] == {"separator": ",", "missing": ["nan"]}
    assert data["validation_images"] == 6
    (evaluate,) = [line for line in out.splitlines() if line.startswith("Next: tertium evaluate")]
    assert tertium(*shlex.split(evaluate)[2:])[0] == 0


def test_describe_as_json_and_csv(tertium, folder):
    code, out, _ = tertium(
        *settled("describe", "labels.csv", "--images", "photos"), "--json", "--out", "c.csv"
    )
    assert code == 0
    about = json.loads(out)
    assert about["files"]["unnamed"] == ["24.png", "25.png", "26.png"]
    assert about["notes"] == []
    rows = list(csv.reader((folder / "c.csv").read_text().splitlines()))
    assert rows[0] == ["class", "present", "absent", "unknown"]
    assert [each["name"] for each in about["per_class"]] == [row[0] for row in rows[1:]]
    assert sum(each["present"] for each in about["per_class"]) == about["present"] == 48
    code, _, errors = tertium(*settled("describe", "labels.csv"), "--out", "c.txt")
    assert code == 2
    assert "c.txt: the counts of the classes are written as .csv" in errors


def test_many_classes_are_shown_from_both_ends(tertium, tmp_path):
    lines = [
        f"{image}.jpg,{';'.join(f'class {name:03}' for name in range(image))}" for image in range(1, 151)
    ]
    path = tmp_path / "many.csv"
    path.write_text("image,present\n" + "\n".join(lines) + "\n")
    code, out, _ = tertium("describe", path)
    assert code == 0
    assert "class 000" in out
    assert "class 149" in out
    assert "class 050" not in out
    assert "… 120 more" in out
    assert "--out classes.csv writes them" in out


def test_missing_files_are_named_with_the_file_that_is_meant(tertium, folder):
    (folder / "photos" / "03.png").rename(folder / "photos" / "03.PNG")
    (folder / "photos" / "07.png").unlink()
    code, out, _ = tertium(*settled("describe", "labels.csv", "--images", "photos"))
    assert code == 0
    assert "labelled images without a file: 2 (03.png, but there is 03.PNG, 07.png)" in out
    assert out.splitlines()[-1].startswith("Next: add the missing files to photos")


def test_notes_are_said_by_every_command_that_reads_labels(tertium, tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("image,present\na.jpg,Cat\nb.jpg,cat\nc.jpg,dog\n")
    told = "Note: classes with nearly the same name: Cat / cat; make them one with --rename FILE"
    for words in (
        ("simulate", labels, "--scheme", "full", "--out", tmp_path / "x.csv"),
        ("merge", labels, labels, "--out", tmp_path / "y.csv"),
    ):
        code, _, errors = tertium(*words)
        assert code == 0
        assert told in errors
    names = tmp_path / "names.csv"
    code, out, _ = tertium("describe", labels, "--twins", names)
    assert code == 0
    assert f"look through it, then add --rename {names}" in out
    assert names.read_text() == "from,to\ncat,Cat\n"
    code, _, errors = tertium(
        "simulate", labels, "--scheme", "full", "--rename", names, "--out", tmp_path / "z.csv"
    )
    assert (code, errors) == (0, "")
    assert read_labels(tmp_path / "z.csv").classes == ("Cat", "dog")


def test_options_need_labels(tertium, tmp_path):
    code, _, errors = tertium("predict", tmp_path, "--out", tmp_path / "p.csv", "--missing", "nan")
    assert code == 2
    assert "--missing says how to read a label file: give --labels too" in errors


COMMANDS = "describe simulate prior complete suggest rehearse review answers features train evaluate predict"


@pytest.mark.parametrize("command", [*COMMANDS.split(), "compare", "report"])
def test_every_command_that_reads_labels_has_the_options(tertium, command):
    code, out, _ = tertium(command, "--help")
    assert code == 0
    for option in ("--separator", "--missing", "--rename", "--positive", "--unknown", "--preset"):
        assert option in out
