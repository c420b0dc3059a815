"""The arrays of Cole et al. 2021."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.cole import read
from tertium.labels.formats.text import read_array

FULL = np.array([[1, 0, 1], [0, 1, 0]])
OBSERVED = np.array([[1, 0, 0], [0, 1, -1]])


def write(folder, **changes):
    arrays = {
        "train_images": np.array(["0012.jpg", "b.jpg"]),
        "train_labels": FULL.astype(float),
        "train_labels_obs": OBSERVED.astype(float),
        "val_images": np.array(["c.jpg"]),
        "val_labels": np.array([[0, 0, 1]]),
        "val_labels_obs": np.array([[0, 0, 0]]),
    } | changes
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"formatted_{name}.npy", array)
    return folder


def test_observed_labels_for_training_and_full_ones_for_the_test(tmp_path):
    found = read(write(tmp_path))
    assert found.labels.images.to_pylist() == ["0012.jpg", "b.jpg", "c.jpg"]
    assert found.labels.splits.to_pylist() == ["train", "train", "test"]
    assert found.labels.classes == ("0", "1", "2")
    np.testing.assert_array_equal(found.labels.dense(), [[1, 0, 0], [0, 1, -1], [-1, -1, 1]])
    assert "--classes" in found.notes[0]


def test_full_labels_and_names(tmp_path):
    found = read(write(tmp_path, train_labels_obs=None), which="full", classes=["cat", "dog", "fox"])
    assert found.labels.classes == ("cat", "dog", "fox")
    np.testing.assert_array_equal(found.labels.dense(), [[1, -1, 1], [-1, 1, -1], [-1, -1, 1]])
    assert found.notes == ()


def test_names_as_bytes_and_one_part(tmp_path):
    folder = write(tmp_path, train_images=np.array([b"0012.jpg", "é.jpg".encode()]), val_images=None)
    assert read(folder).labels.images.to_pylist() == ["0012.jpg", "é.jpg"]


def test_pickled_names_are_refused_with_a_way_out(tmp_path):
    write(tmp_path, train_images=np.array(["a", "b"], dtype=object))
    with pytest.raises(InputError, match=r"pickled Python objects.*astype\(str\)"):
        read(tmp_path)
    path = tmp_path / "formatted_train_images.npy"
    np.save(path, np.load(path, allow_pickle=True).astype(str))  # what the sentence says
    assert read(tmp_path).labels.images.to_pylist() == ["a", "b", "c.jpg"]


def test_arrays_by_column_are_read(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(FULL))
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), FULL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels_obs": OBSERVED * 2}, r"labels_obs.npy: row 0, column 0: 2 is not 1, 0 or -1"),
        ({"val_labels": np.array([[0, -1, 1]])}, r"val_labels.npy: row 0, column 1: -1 is not 1 or 0"),
        ({"train_labels_obs": OBSERVED * np.nan}, r"nan is not 1, 0 or -1"),
        ({"train_labels_obs": OBSERVED[:1]}, r"labels_obs.npy: 1 rows for 2 images"),
        ({"train_labels_obs": OBSERVED[:, :2]}, r"the parts have 2 and 3 classes"),
        ({"train_labels_obs": OBSERVED[0]}, r"needs numbers \[images, classes\]"),
        ({"train_labels_obs": OBSERVED.astype(str)}, r"needs numbers \[images, classes\]"),
        ({"train_labels_obs": None}, r"formatted_train_labels_obs.npy: no such file"),
        ({"train_images": np.array([12, 13])}, r"needs a list of names as text, not int64"),
        ({"train_images": np.array(["a", "a"])}, r"1 images are there twice: a"),
        ({"train_images": np.array(["a", "c.jpg"])}, r"an image id stands for two rows: c.jpg"),
        ({"train_images": np.array(["a", ""])}, r"the name of image 1 is empty"),
        ({"train_images": np.array([b"\xff", b"a"])}, r"a name is not text"),
        ({"train_images": np.array(["\ud800", "a"])}, r"a name is not text"),
        ({"train_images": None, "val_images": None}, r"there is no formatted_train_images.npy or"),
        ({"train_images": np.array([], dtype=str)}, r"the array is empty"),
    ],
)
def test_bad_arrays_are_named(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, **changes))


def test_wrong_number_of_names(tmp_path):
    with pytest.raises(InputError, match="2 class names were given for 3 columns"):
        read(write(tmp_path), classes=["cat", "dog"])


@pytest.mark.parametrize("order", "<>")
def test_characters_that_are_none(tmp_path, order):
    path = (
        write(tmp_path, train_images=np.array(["ab", "cd"], dtype=f"{order}U2"))
        / "formatted_train_images.npy"
    )
    assert read(tmp_path).labels.images.to_pylist()[:2] == ["ab", "cd"]
    data = bytearray(path.read_bytes())
    data[-1 if order == "<" else -4] = 0x20
    path.write_bytes(data)
    with pytest.raises(InputError, match="a name is not text"):
        read(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 20, 100, 130, -1])
def test_cut_arrays(tmp_path, cut):
    path = write(tmp_path) / "formatted_train_labels_obs.npy"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=str(path)):
        read(tmp_path)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([float, np.float32, int, np.int8]))
def test_written_labels_read_back(tmp_path_factory, seed, kind):
    rng = np.random.default_rng(seed)
    n, c = rng.integers(1, 6, size=2)
    observed, full = rng.integers(-1, 2, size=(n, c)), rng.integers(0, 2, size=(n, c))
    folder = write(
        tmp_path_factory.mktemp("cole"),
        train_images=np.array([f"{i:04}" for i in range(n)]),
        train_labels_obs=observed.astype(kind),
        val_images=np.array([f"val/{i}" for i in range(n)]),
        val_labels=full.astype(kind),
    )
    splits = pa.array(["train"] * n + ["test"] * n).dictionary_encode()
    plain = Labels.from_dense(
        np.concatenate([observed, 2 * full - 1]),
        images=[f"{i:04}" for i in range(n)] + [f"val/{i}" for i in range(n)],
    )
    assert read(folder).labels == Labels(plain.offsets, plain.entries, plain.classes, plain.images, splits)
