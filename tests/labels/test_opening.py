"""The one door for labels: what is said about a file holds for `Labels` too."""

import numpy as np
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.opening import open_labels
from tertium.labels.readers import LabelFile, read_labels

CLASSES = ["fox", "dog", "cat"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("image,present,absent,split\na,cat,dog,train\nb,dog,,test\n")
    return path


@pytest.mark.parametrize("split", [None, "test"])
@pytest.mark.parametrize("classes", [None, CLASSES, [" dog", "cat"]])
@pytest.mark.parametrize("unlisted", ["unknown", "absent"])
def test_labels_and_their_file_agree(file, unlisted, classes, split):
    options = {"unlisted": unlisted, "classes": classes, "split": split}
    from_file, found = open_labels(file, **options), open_labels(read_labels(file), **options)
    assert found == from_file
    assert open_labels(found, unlisted=unlisted, classes=classes) == found


def test_what_is_said_about_labels_reaches_them(file):
    labels = read_labels(file)
    assert package.simulate(labels, "full", unlisted="absent").known == 4
    others = Labels.from_dense([[1], [0]], classes=["fox"], images=["b", "z"])
    merged = package.merge([labels, others], unlisted=["unknown", "absent"]).labels
    assert merged.dense().tolist() == [[1, -1, 0], [0, 1, 1], [0, 0, -1]]
    features = np.random.default_rng(0).normal(size=(2, 3))
    trained = package.train(
        labels, features=features, method="negative", validation=0, epochs=1, classes=CLASSES
    ).trained
    assert list(trained.classes) == CLASSES


def test_full_labels_stay_as_they_are():
    full = Labels.from_dense([[1, -1], [-1, -1]])
    assert open_labels(full, unlisted="absent") is full


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"unlisted": "absnt"}, 'unlisted labels cannot be "absnt"; did you mean "absent"?'),
        ({"classes": ["cat", "dgo"]}, 'the labels: there is no class "dog"; did you mean "dgo"?'),
        ({"classes": "cat"}, 'classes are a list of names, not the text "cat"'),
    ],
)
def test_what_cannot_be_is_refused(file, options, sentence):
    with pytest.raises(InputError) as caught:
        open_labels(read_labels(file), **options)
    assert sentence in str(caught.value)
    with pytest.raises(InputError) as caught:
        open_labels(file, **options)
    assert sentence.removeprefix("the labels: ") in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"missing": "nan"}, {"positive": 1}, {"rename": {"cat": "dog"}}])
def test_labels_are_not_read_again(options):
    labels = Labels.from_dense([[1]])
    for read in (read_labels, LabelFile.with_options):
        with pytest.raises(InputError, match="a label file is a path, and these are Labels already"):
            read(labels, **options)
