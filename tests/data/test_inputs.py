"""The one door for inputs: rows follow the names that are asked for, whoever asks."""

import os

import numpy as np
import pytest
from PIL import Image

from tertium.data.feature_files import write_feature_names
from tertium.data.inputs import open_inputs
from tertium.errors import InputError

NAMES = ["a.png", "b.png", "c.png"]


@pytest.fixture
def features(tmp_path, rng):
    """A feature file whose rows are named."""
    array = rng.normal(size=(3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    write_feature_names(tmp_path / "x.npy", array, NAMES, {})
    return tmp_path / "x.npy"


def test_rows_follow_the_names(features):
    array = np.load(features)
    found = open_inputs(features=features, names=["c.png", "a.png"])
    assert found.names == ["c.png", "a.png"]
    np.testing.assert_array_equal(found.features, array[[2, 0]])
    assert open_inputs(features=features).names == NAMES


def test_a_folder_is_asked_by_name(tmp_path):
    for number, name in enumerate(NAMES):
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / name)
    found = open_inputs(tmp_path, names=["b.png", "a.png"])
    assert [found.pictures.open(row).getpixel((0, 0))[0] for row in range(2)] == [1, 0]
    assert open_inputs(tmp_path).names == NAMES


def test_arrays_have_a_row_for_each_name():
    with pytest.raises(InputError, match="2 rows of inputs for 3 labelled images"):
        open_inputs(features=np.zeros((2, 4)), names=NAMES)
    with pytest.raises(InputError, match="2 rows of inputs for 3 labelled images"):
        open_inputs(np.zeros((2, 4, 4, 3), dtype=np.uint8), names=NAMES)


@pytest.mark.parametrize("given", [{}, {"images": "x", "features": "y"}])
def test_one_of_both_is_given(given):
    with pytest.raises(InputError, match="give either images or features"):
        open_inputs(**given)


def test_windows_and_selections_keep_the_names(features):
    found = open_inputs(features=features)
    assert found.select(np.array([2, 1])).names == ["c.png", "b.png"]
    assert [part.names for part in found.windows(range(1, 3))] == [["b.png", "c.png"]]


def test_an_image_edited_in_place_is_another_input(tmp_path):
    """Nothing but the content tells: same name, same size, same date."""
    for number, name in enumerate(NAMES):
        Image.new("RGB", (20, 20), (number, 0, 0)).save((tmp_path / name).with_suffix(".bmp"))
    before = open_inputs(tmp_path).fingerprint()
    assert open_inputs(tmp_path).fingerprint() == before
    path = tmp_path / "b.bmp"
    about, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert open_inputs(tmp_path).fingerprint() != before


def test_a_file_name_that_is_no_text_is_one_sentence(tmp_path):
    for name in (b"a.png", b"\xff\xfeb.png", "c é.png".encode()):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            Image.new("RGB", (2, 2)).save(file, "PNG")
    with pytest.raises(InputError, match=r"the file name '\\udcff\\udcfeb\.png' is not UTF-8; rename it"):
        open_inputs(tmp_path)
    assert open_inputs(tmp_path, names=["c é.png"]).names == ["c é.png"]  # others stand in nobody's way
