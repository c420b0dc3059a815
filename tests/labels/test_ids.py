"""Image ids: spellings of one path are one image, others that nearly agree are noted."""

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels.ids import look_alike_ids, normal_ids, surely_distinct
from tertium.labels.readers import LabelFile, read_labels

LETTERS = st.text(alphabet="aA_./é\u0301", max_size=12)


def write(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("./a.jpg", "a.jpg"),
        ("././/a.jpg", "a.jpg"),
        ("b/./c//d.jpg", "b/c/d.jpg"),
        ("b/././c.jpg", "b/c.jpg"),
        ("../a.jpg", "../a.jpg"),
        ("b/../a.jpg", "b/../a.jpg"),
        ("/data//a.jpg", "/data/a.jpg"),
        ("https://x.org/a.jpg", "https://x.org/a.jpg"),
        (".hidden/a.jpg", ".hidden/a.jpg"),
        ("a./b.jpg", "a./b.jpg"),
    ],
)
def test_paths_are_written_in_one_way(written, normal):
    assert normal_ids(pa.array(["z.jpg", written])).to_pylist() == ["z.jpg", normal]


def test_two_spellings_of_a_path_are_one_image(tmp_path):
    path = write(
        tmp_path, "image,label,value\n./a.jpg,cat,1\na.jpg,dog,-1\nb//c.jpg,cat,-1\nb/c.jpg,cat,-1\n"
    )
    labels = read_labels(path)
    assert labels.images.to_pylist() == ["a.jpg", "b/c.jpg"]
    np.testing.assert_array_equal(labels.dense(), [[1, -1], [-1, 0]])
    both = write(tmp_path, "image,label,value\n./a.jpg,cat,1\na.jpg,cat,-1\n")
    with pytest.raises(InputError, match=r'image "a.jpg" is listed both .* \(line 2 and line 3\)'):
        read_labels(both)
    split = write(tmp_path, "image,present,split\n./a.jpg,cat,train\na.jpg,dog,test\n")
    with pytest.raises(InputError, match=r'line 2: image "a\.jpg" is in another split elsewhere'):
        read_labels(split)


def test_ids_that_differ_in_case_or_ending_are_noted(tmp_path):
    path = write(tmp_path, "image,present\na.jpg,cat\nA.JPG,cat\nb.jpg,cat\nb.png,cat\nc.jpg,cat\n")
    assert len(read_labels(path)) == 5
    (note,) = LabelFile(path).read().notes
    assert note.endswith("count as different ones: a.jpg and A.JPG, b.jpg and b.png")


@given(st.lists(LETTERS, max_size=8, unique=True))
def test_look_alikes_are_those_of_a_slow_search(names):
    ids = pa.array(names, pa.string())
    found = {name for pair in look_alike_ids(ids) for name in pair}

    def common(name):
        return re.sub(r"([^/])\.[A-Za-z0-9]{1,5}$", r"\1", unicodedata.normalize("NFC", name).lower())

    keys = [common(name) for name in names]
    assert found == {name for name, key in zip(names, keys, strict=True) if keys.count(key) > 1}


@given(st.lists(LETTERS, max_size=8))
def test_distinct_ids_are_told_from_others(names):
    assert surely_distinct(pa.array(names, pa.string())) == (len(set(names)) == len(names))
    assert surely_distinct(pa.array(["x", *names], pa.string())[1:]) == (len(set(names)) == len(names))
