"""The README's journey on files as people have them: each ends in the right figure, or in one plain sentence.

docs/newcomers.md shows the same as a table; what it quotes is what these commands say.
"""

import csv
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tertium import MultiLabelClassifier
from tertium.cli import main
from tertium.data.scenes import render

PAGE = Path(__file__).parents[2] / "docs" / "newcomers.md"
COUNT = 48  # scenes


def lines(path, head, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def present(folder):
    with open(folder / "photos" / "labels.csv", newline="") as file:
        return [(line["image"], line["present"].split(";")) for line in csv.DictReader(file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as people have it: photos, and a spreadsheet saved in many ways."""
    place = tmp_path_factory.mktemp("newcomer")
    render(COUNT).save(place / "photos")
    rows = present(place)
    for name, mark in (("comma", ", "), ("bar", "|"), ("space", " ")):
        lines(place / f"{name}.csv", ["image", "present"], [(image, mark.join(told)) for image, told in rows])
    words = ("nan", "None", "NA")
    lines(
        place / "nan.csv",
        ["image", "present", "absent"],
        [(image, ";".join(told), words[number % 3]) for number, (image, told) in enumerate(rows)],
    )
    accents = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    lines(
        place / "twins.csv",
        ["image", "present"],
        [
            (image, ";".join([*told, ("Cat", "cat")[number % 2], accents[number % 2]]))
            for number, (image, told) in enumerate(rows)
        ],
    )
    lines(
        place / "dots.csv",
        ["image", "present"],
        [(("./" if number % 2 else "") + image, ";".join(told)) for number, (image, told) in enumerate(rows)]
        + [(f"./{rows[0][0]}", "cat")],
    )
    lines(
        place / "valid.csv",
        ["image", "present", "split"],
        [
            (image, ";".join(told), "train" if number % 4 else "valid")
            for number, (image, told) in enumerate(rows)
        ],
    )
    lines(
        place / "holdout.csv",
        ["image", "present", "split"],
        [
            (image, ";".join(told), "train" if number % 4 else "holdout")
            for number, (image, told) in enumerate(rows)
        ],
    )
    classes = sorted({name for _, told in rows for name in told})
    lines(
        place / "wide.csv",
        ["image", *classes],
        [(image, *(int(name in told) for name in classes)) for image, told in rows],
    )
    lines(
        place / "half.csv",
        ["image", "present", "absent"],
        [(image, ";".join(told[:2]), "moon" if "moon" not in told else "") for image, told in rows[::2]],
    )
    lines(
        place / "spelt.csv",
        ["image", "present"],
        [
            (image.replace(".png", ".JPG") if number < 1 else image, told[0])
            for number, (image, told) in enumerate(rows)
        ],
    )
    lines(
        place / "answers.csv",
        ["image", "label", "value"],
        [(image, told[0], "absent") for image, told in rows[::2]],
    )
    (place / "coco.json").write_text(
        '{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}], "categories":'
        ' [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}], "annotations": [{"id": 1, "image_id": 1,'
        ' "category_id": 1, "bbox": [0, 0, 1, 1]}]}'
    )
    return place


@pytest.fixture
def say(folder, monkeypatch, capsys):
    """Run a command line in that folder; return its exit code and all that it says."""

    def run(line):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(
            sys, "argv", ["tertium", *(" " if word == "SPACE" else word for word in line.split())]
        )
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, errors = capsys.readouterr()
        return ended.value.code or 0, " ".join((errors + out).split())

    return run


TRAIN = "--images photos image_size=32 epochs=1 method=ignore"


@pytest.fixture
def trained(folder, say):
    """A run on half of the photos; it is made once."""
    if not (folder / "run").is_dir():
        code, said = say(f"train --labels half.csv --out run {TRAIN}")
        assert code == 0, said
    return folder / "run"


def quoted(row):
    """Return what a row of the page says that the program says."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row} |"))
    return [text.replace("\\|", "|") for text in re.findall("`([^`]+)`", line.split(" | ")[3]) if " " in text]


def probabilities(path):
    with open(path, newline="") as file:
        return {row["image"]: np.array(list(row.values())[1:], dtype=float) for row in csv.DictReader(file)}


# ---- the rows of the page ----------------------------------------------------------------------------------


# The row, the command, the exit code: all that the page quotes is in what the command says.
SAID = [
    ("2a", "describe comma.csv", 2),
    ("2b", "describe bar.csv", 2),
    ("2c", "describe space.csv", 2),
    ("2d", "describe nan.csv", 2),
    ("2e", "describe twins.csv", 0),
    ("9", "convert coco coco.json --out coco.csv --overwrite", 0),
    ("10", "describe valid.csv", 0),
    ("10b", "describe holdout.csv", 0),
    ("12", "describe dots.csv", 0),
    ("14", "describe wide.csv", 2),
    ("15", "describe spelt.csv --images photos", 0),
    ("16", "suggest run --labels half.csv --images photos --count 5", 2),
    ("17", f"train --labels half.csv --out new --epochs 3 {TRAIN}", 2),
    ("18", f"train --labels half.csv --out new {TRAIN} backbone=inception_v3 weights=random", 2),
]


@pytest.mark.parametrize(("row", "line", "code"), SAID, ids=[row for row, _, _ in SAID])
def test_the_page_quotes_what_is_said(say, row, line, code):
    ended, said = say(line)
    assert ended == code, said
    sentences = quoted(row)
    assert sentences
    for sentence in sentences:
        assert sentence in said


def test_with_the_options_that_the_sentences_name_all_are_the_same_labels(say, folder):
    wanted = say("describe photos/labels.csv")[1].partition("Values seen")[0]
    for line in (
        "describe comma.csv --separator ,",
        "describe bar.csv --separator |",
        "describe nan.csv --missing nan,None,NA",
        "describe space.csv --separator SPACE",
    ):
        code, said = say(line)
        assert (code, said.partition("Values seen")[0]) == (0, wanted), line
    wanted = say("describe photos/labels.csv --unlisted absent")[1].partition("Values seen")[0]
    assert say("describe wide.csv --positive 1 --negative 0")[1].partition("Values seen")[0] == wanted
    say("describe twins.csv --twins names.csv --overwrite")
    assert "Cat / cat" not in say("describe twins.csv --rename names.csv")[1]


def test_a_picture_is_the_same_in_every_depth_and_turn(say, folder, trained):
    """Row 1: 16 bits, int32 and floats were pure white. Row 8: EXIF was not heeded."""
    same = folder / "same"
    same.mkdir(exist_ok=True)
    grey = np.asarray(Image.open(folder / "photos" / "scene-000000.png").convert("L"))
    Image.fromarray(grey).save(same / "8-bit.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(same / "16-bit.png")
    Image.fromarray(grey.astype(np.int32)).save(same / "int32.tif")
    Image.fromarray(grey.astype(np.float32) / 255).save(same / "float.tif")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: to be turned by 90° clockwise
    Image.fromarray(np.rot90(grey).copy()).save(same / "turned.png", exif=exif)
    assert say("predict run --images same --out same.csv --overwrite")[0] == 0
    found = probabilities(folder / "same.csv")
    assert len(found) == 5
    for name, values in found.items():
        np.testing.assert_allclose(values, found["8-bit.png"], atol=1e-6, err_msg=name)


def test_images_it_was_trained_on_are_named(say, folder, trained):
    code, said = say("evaluate run --labels half.csv --images photos --overwrite")
    assert code == 0
    for sentence in quoted("3"):
        assert sentence in said
    code, said = say("evaluate run --labels photos/labels.csv --unlisted absent --images photos --overwrite")
    assert re.search(r"trained or validated on 24 of these images; mAP\(C\) without them: \d", said)


def test_zero_and_one_are_full_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    model = MultiLabelClassifier(method="bce", epochs=20, lr=0.01).fit(X, X[:, :2] > 0.3)
    assert abs(model.predict_proba(X).mean() - 0.38) < 0.06
    assert np.isfinite(model.score(X, (X[:, :2] > 0.3).astype(int)))
    assert quoted("7")[0] in repr(model)


def test_a_split_called_valid_validates(say, folder):
    code, said = say(f"train --labels valid.csv --unlisted absent --out valid --overwrite {TRAIN}")
    assert code == 0
    assert f"{COUNT - COUNT // 4} training, {COUNT // 4} validation" in said


def test_files_that_no_line_names_are_counted_and_heic_is_read(say, folder):
    pillow_heif = pytest.importorskip("pillow_heif")
    other = folder / "phone"
    other.mkdir(exist_ok=True)
    for number in range(4):
        image = Image.open(folder / "photos" / f"scene-{number:06d}.png").convert("RGB")
        pillow_heif.from_pillow(image).save(other / f"{number}.heic")
        image.save(other / f"{number}.jpg")
    labelled = [
        (f"{number}.heic", *(("cat", "dog") if number % 2 else ("dog", "cat"))) for number in range(4)
    ]
    lines(folder / "phone.csv", ["image", "present", "absent"], labelled)
    code, said = say(f"train --labels phone.csv --out phone-run --overwrite {TRAIN} --images phone")
    assert code == 0, said
    for sentence in quoted("11"):
        assert sentence in said


def test_answers_against_the_file_calibrate_nothing(say, folder, trained):
    code, said = say(
        "complete run --labels half.csv --images photos --answers answers.csv --out c.csv --overwrite"
    )
    assert code == 0, said
    for sentence in quoted("13"):
        assert sentence in said
    assert "calibrated by" not in said


def test_every_row_of_the_issue_stands_on_the_page():
    rows = re.findall(r"^\| (\d+\w?) \|", PAGE.read_text(), re.MULTILINE)
    assert {str(number) for number in range(1, 14)} <= {row.rstrip("abcde") for row in rows}
