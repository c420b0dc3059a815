"""Labels and probabilities as files of other tools, and back."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats import coco, lvis, wide
from tertium.labels.probabilities import open_probabilities
from tertium.prediction.files import write_predictions

CLASSES = ["cat", "big dog", "ä,b"]


@pytest.fixture
def labels():
    rng = np.random.default_rng(0)
    names = [f"x/{n:04}.jpg" for n in range(50)]
    splits = pa.array(["train", "test"] * 25).dictionary_encode()
    rows, columns = np.nonzero(rng.random((50, 3)) < 0.6)
    signs = rng.choice([-1, 1], len(rows))
    return Labels.from_entries(rows, columns, signs, classes=CLASSES, images=names, splits=splits)


@pytest.fixture
def table(tmp_path):
    values = np.array([[0.9, 0.25, 0.5], [0, 0.75, 1]], dtype=np.float32)
    path = tmp_path / "p.parquet"
    write_predictions(path, ["a.jpg", "b.jpg"], CLASSES, [values])
    return path


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_wide_tables_come_back(labels, tmp_path, ending):
    out = tmp_path / f"table{ending}"
    done = package.publish(labels, to="wide", out=out)
    assert (done.images, done.listed, done.notes) == (50, int((labels.dense() > 0).sum()), ())
    back = wide.read(out, wide.chosen_layout(positive=["1"], negative=["0"], unknown=[""])).labels
    assert back == labels


def test_labels_of_whole_images_in_cocos_form_come_back(labels, tmp_path):
    out = tmp_path / "labels.json"
    done = package.publish(labels, to="coco", out=out)
    assert done.notes == ()
    back = lvis.read(out).labels  # which knows what is absent, and what unknown
    assert back.images.equals(labels.images)
    assert back.dense().tolist() == labels.dense().tolist()
    full = labels.unlisted_absent()
    package.publish(full, to="coco", out=tmp_path / "full.json")
    assert coco.read(tmp_path / "full.json", empty="absent").labels.dense().tolist() == full.dense().tolist()


def test_one_split(labels, tmp_path):
    done = package.publish(labels, to="wide", out=tmp_path / "t.csv", split="test")
    assert done.images == 25


def test_probabilities(table, tmp_path):
    done = package.publish(probabilities=table, to="wide", out=tmp_path / "t.csv")
    assert (done.images, done.listed) == (2, 6)
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == '"a.jpg",0.8999999761581421,0.25,0.5'
    package.publish(probabilities=table, to="coco", out=tmp_path / "t.json", threshold=0.5)
    found = json.loads((tmp_path / "t.json").read_text())
    assert [each["score"] for each in found["annotations"]] == [0.9, 0.5, 0.75, 1.0]
    assert coco.read(tmp_path / "t.json").labels.dense().tolist() == [[1, -1, 1], [-1, 1, 1]]


def test_the_most_probable_classes_of_each_image(tmp_path):
    path, values = tmp_path / "top.csv", np.random.default_rng(0).random((5, 3)).astype(np.float32)
    names = [f"{n}.jpg" for n in range(5)]
    write_predictions(path, names, CLASSES, [values], top=2)
    found = open_probabilities(path)
    ((images, block),) = found.blocks()
    order = [CLASSES.index(name) for name in found.classes]
    least = np.sort(values, axis=1)[:, :1]
    expected = np.where(values > least, values, np.nan)[:, order]
    assert images == names
    np.testing.assert_allclose(block, expected)


BAD = {
    "a number above 1": ("image,cat\na.jpg,1.5\n", 'probability of "cat" in "a.jpg" is 1.5; it must be'),
    "an empty cell": ("image,cat,dog\na.jpg,,1\n", 'probability of "cat" in "a.jpg" is empty'),
    "a word": ("image,cat\na.jpg,yes\n", "not a table of probabilities"),
    "an image twice": ("image,cat\na.jpg,0\na.jpg,1\n", 'the image "a.jpg" is there twice'),
    "no name": ("image,cat\n,0\n", "an image has no name"),
    "no images": ("file,cat\na,0\n", 'no column "image" among file, cat'),
    "no classes": ("image\na\n", "no column of a class"),
    "no rows": ("image,cat\n", "no rows below the header"),
    "a label twice": ("image,label,probability\na,cat,1\na,cat,0\n", "a label of an image is there twice"),
    "a label without a probability": ("image,label,probability\na,cat,\n", "no probability between 0 and 1"),
    "a column twice": ("image,cat,cat\na,0,1\n", "a column is there twice"),
    "a cut row": ("image,cat,dog\na,0,1\nb,", "damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_one_sentence_and_nothing_is_written(tmp_path, name):
    text, sentence = BAD[name]
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=sentence) as error:
        package.publish(probabilities=tmp_path / "p.csv", to="coco", out=tmp_path / "o.json", threshold=0.5)
    assert str(error.value).startswith(str(tmp_path / "p.csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_a_damaged_parquet_file(table, tmp_path):
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"p.parquet: not a table, or a damaged one"):
        package.publish(probabilities=table, to="wide", out=tmp_path / "o.csv")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"to": "coco"}, "say from which probability on, above 0 and up to 1"),
        ({"to": "coco", "threshold": 0}, "above 0 and up to 1, .*, not 0"),
        ({"to": "coco", "threshold": float("nan")}, "above 0 and up to 1"),
        ({"to": "wide", "threshold": 0.5, "out": "o.csv"}, "--threshold says nothing about wide"),
        ({"to": "cocoo"}, 'no format "cocoo" to write; did you mean "coco"'),
        ({"to": "coco", "out": "o.csv"}, "o.csv: coco is written as .json"),
        ({"to": "coco", "prefix": "x"}, "--prefix says nothing about coco"),
        ({"to": "coco", "labels": Labels.unknown(["a"], ["b"])}, "give either --labels"),
        ({"to": "coco", "split": "test", "threshold": 1}, "--split is for --labels"),
        ({"to": "wide", "out": "p.parquet"}, "is an input"),
    ],
)
def test_bad_wishes(table, tmp_path, asked, sentence):
    words = {"out": "o.json", **asked}
    words["out"] = tmp_path / words["out"]
    with pytest.raises(InputError, match=sentence):
        package.publish(probabilities=table, **words)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


def test_labels_have_no_threshold_and_a_class_no_columns_name(tmp_path):
    labels = Labels.from_dense([[1]], classes=["split"], images=["a"])
    with pytest.raises(InputError, match="--threshold is for --probabilities"):
        package.publish(labels, to="coco", out=tmp_path / "o.json", threshold=0.5)
    with pytest.raises(InputError, match='a class is called "split"'):
        package.publish(labels, to="wide", out=tmp_path / "o.csv")
    assert not list(tmp_path.iterdir())


def test_the_command(table, tmp_path, tertium):
    out = tmp_path / "o.json"
    words = "publish", "--probabilities", table, "--to", "label-studio", "--threshold", "0.5", "--out", out
    code, text, _ = tertium(*map(str, words))
    assert code == 0
    assert "2 images, 4 labels → " in text
    assert tertium("publish", "--to", "coco", "--out", str(out))[0] == 2
