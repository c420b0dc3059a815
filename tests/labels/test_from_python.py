"""Labels from what Python programs have: frames with a column of images, and datasets of pairs."""

import numpy as np
import pyarrow as pa
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels

COLUMNS = {"image": ["0012", "b"], "cat": [1, None], "dog": [0, 1]}
VALUES = {"present": 1, "absent": 0, "unknown": None}


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_frames(library):
    module = pytest.importorskip(library, reason=f"skipped: no {library}")
    frame = module.table(COLUMNS) if library == "pyarrow" else module.DataFrame(COLUMNS)
    labels = Labels.from_frame(frame, **VALUES)
    assert labels.images.to_pylist() == ["0012", "b"]
    assert labels.dense().tolist() == [[1, -1], [0, 1]]
    with pytest.raises(InputError, match=r"labels cannot be a .*Labels.from_frame\(frame, present=1"):
        package.train(frame, features=np.zeros((2, 3)))


def test_values_columns_and_truth():
    table = pa.table({"file": ["a", "b"], "cat": [True, False], "n": [7, 8], "split": ["train", "test"]})
    labels = Labels.from_frame(table, present=True, absent=False, unknown=(), image="file", ignore="n")
    assert labels.dense().tolist() == [[1], [-1]]
    assert labels.split_names() == ["test", "train"]
    words = pa.table({"image": ["a", "b"], "cat": ["yes", "maybe"], "dog": ["", "no"]})
    found = Labels.from_frame(words, present="yes", absent="no", unknown=("maybe", None))
    assert found.dense().tolist() == [[1, 0], [0, -1]]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"unknown": ()},
            r'nothing says what these values mean \(cells in brackets\): "" \(1\) in cat; name them as',
        ),
        ({"absent": 1}, 'the value "1" cannot be both positive and negative'),
        ({"image": "file"}, 'there is no column "file" among image, cat, dog'),
    ],
)
def test_nothing_is_guessed(values, sentence):
    with pytest.raises(InputError, match=sentence):
        Labels.from_frame(pa.table(COLUMNS), **VALUES | values)


class Pairs:
    """A dataset like those of torch."""

    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return np.full((8, 8, 3), number, dtype=np.uint8), self.targets[number]


def test_datasets():
    import torch

    labels = Labels.from_dataset(
        Pairs([torch.tensor([1, 0]), np.array([0.0, -1.0])]),
        present=1,
        absent=0,
        unknown=-1,
        classes=["a", "b"],
    )
    assert labels.dense().tolist() == [[1, -1], [-1, 0]]
    assert (labels.images.to_pylist(), labels.classes) == (["0", "1"], ("a", "b"))
    with pytest.raises(
        InputError, match=r"labels cannot be a Pairs; .*Labels.from_dataset\(dataset, present=1"
    ):
        package.train(Pairs([[1]]))


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ([], "the dataset is empty"),
        ([1], "item 0 of the dataset is not a pair of an image and its labels"),
        (Pairs([[1, 0], [1]]), "item 1 of the dataset has 1 labels, and item 0 2"),
        (Pairs([3]), "the labels of item 0 of the dataset are not a value for each class"),
        (Pairs([[[1], [0, 1]]]), "the labels of item 0 of the dataset are not a value for each class"),
        (Pairs([[1, 2]]), '"1" in "0": 2 is none of the three values'),
    ],
)
def test_what_is_no_dataset_of_labels(dataset, sentence):
    with pytest.raises(InputError, match=sentence):
        Labels.from_dataset(dataset, **VALUES)


def test_a_dataset_trains_as_images_and_labels(tmp_path):
    rng = np.random.default_rng(0)
    dataset = Pairs([[int(rng.random() < 0.5), 1 - number % 2] for number in range(40)])
    labels = Labels.from_dataset(dataset, **VALUES)
    settings = {"epochs": 1, "image_size": 32, "weights": "random"}
    outcome = package.train(labels, dataset, **settings)
    assert outcome.trained.predict_proba(dataset).shape == (40, 2)
