"""Other words for train, val and test are understood, and other splits are said to be unused."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.describe import describe
from tertium.labels.readers import LabelFile, read_labels
from tertium.training.train import train


def write(tmp_path, *splits):
    lines = [f"{number}.jpg,cat,{split}\n" for number, split in enumerate(splits)]
    path = tmp_path / "labels.csv"
    path.write_text("image,present,split\n" + "".join(lines))
    return path


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ("train", "Training"),
        ("val", "valid"),
        ("val", "validation"),
        ("val", "DEV"),
        ("test", "testing"),
        ("validation", "val"),
        ("Test", "test"),
    ],
)
def test_other_words_are_understood(tmp_path, asked, word):
    labels = read_labels(write(tmp_path, "x", word, "x"))
    assert labels.part(asked).images.to_pylist() == ["1.jpg"]
    assert labels.has_split(asked)
    assert not labels.has_split("holdout")
    assert labels.split_names() == sorted(["x", word])  # the file's own words stay


def test_a_split_is_never_guessed(tmp_path):
    labels = read_labels(write(tmp_path, "val", "valid", "train"))
    assert labels.part("val").images.to_pylist() == ["0.jpg"]
    assert labels.part("valid").images.to_pylist() == ["1.jpg"]
    two = read_labels(write(tmp_path, "dev", "valid"))
    with pytest.raises(
        InputError, match='"dev" and "valid" could both be "val"; rename one of them to "val"'
    ):
        two.part("val")
    with pytest.raises(InputError, match='there is no split "train"'):
        two.part("train")


def test_unused_splits_are_named(tmp_path):
    path = write(tmp_path, "train", "val", "valid", "holdout", "holdout", "")
    (note,) = LabelFile(path).read().notes
    assert note.endswith("(images in brackets): images without a split (1), holdout (2), valid (1)")
    assert LabelFile(write(tmp_path, "train", "valid", "test")).read().notes == ()


def test_the_training_part_is_judged_whatever_it_is_called(tmp_path):
    assert describe(read_labels(write(tmp_path, "Training", "test"))).setting.reason.startswith(
        "in the split"
    )


def test_training_validates_on_the_part_called_valid():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4)).astype(np.float32)
    splits = pa.array(["Training"] * 40 + ["valid"] * 15 + ["holdout"] * 5).dictionary_encode()
    labels = Labels.from_dense(np.where(features[:, :2] > 0, 1, -1), images=[str(n) for n in range(60)])
    outcome = train(replace(labels, splits=splits), features=features, epochs=1)
    assert outcome.summary["validation_images"] == 15
    assert outcome.summary["training_images"] == 40
