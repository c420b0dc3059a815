"""CUB-200-2011's attribute labels."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.cub import CERTAINTIES, read

IMAGES = "1 001.Albatross/a_0012.jpg\n2 001.Albatross/b.jpg\n3 002.Auk/c.jpg\n"
ATTRIBUTES = "1 has_bill_shape::curved_(up_or_down)\n2 has_wing_color::blue\n"
MENTIONS = "1 1 1 4 27.7080\n1 2 0 3 27.7080\n2 1 0 1 5.0\n2 2 1 2 5.0\n3 1 1 3 1.509\n3 2 0 4 1.509\n"


def write(folder, mentions=MENTIONS, **lists):
    texts = {
        "images": IMAGES,
        "classes": "1 001.Albatross\n2 002.Auk\n",
        "image_class_labels": "1 1\n2 1\n3 2\n",
        "train_test_split": "1 1\n2 0\n3 1\n",
        "attributes/attributes": ATTRIBUTES,
        "attributes/image_attribute_labels": mentions,
    } | lists
    (folder / "attributes").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if text is not None:
            (folder / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_what_could_not_be_seen_is_unknown(tmp_path):
    found = read(write(tmp_path))
    assert found.labels.images.to_pylist() == [
        "001.Albatross/a_0012.jpg",
        "001.Albatross/b.jpg",
        "002.Auk/c.jpg",
    ]
    assert found.labels.classes == ("has_bill_shape::curved_(up_or_down)", "has_wing_color::blue")
    np.testing.assert_array_equal(found.labels.dense(), [[1, -1], [0, 1], [1, -1]])
    assert found.labels.splits.to_pylist() == ["train", "test", "train"]
    assert found.notes == ("1 labels are less certain than “guessing” and count as unknown",)


@pytest.mark.parametrize(
    ("certainty", "expected"),
    [
        ("not-visible", [[1, -1], [-1, 1], [1, -1]]),
        ("probably", [[1, -1], [0, 0], [1, -1]]),
        ("definitely", [[1, 0], [0, 0], [0, -1]]),
    ],
)
def test_the_least_certainty_is_an_option(tmp_path, certainty, expected):
    np.testing.assert_array_equal(read(write(tmp_path), certainty=certainty).labels.dense(), expected)


def test_species_are_classes_on_request(tmp_path):
    labels = read(write(tmp_path), species=True).labels
    assert labels.classes[2:] == ("001.Albatross", "002.Auk")
    np.testing.assert_array_equal(labels.dense()[:, 2:], [[1, -1], [1, -1], [-1, 1]])


def test_the_needless_column_of_the_published_file_is_dropped(tmp_path):
    # As for images 2275 and 9364: "0" and two spaces before the time.
    mended = MENTIONS.replace("3 1 1 3 1.509", "3 1 1 3 0  1.509")
    found = read(write(tmp_path, mended))
    assert found.labels == read(write(tmp_path, MENTIONS)).labels
    assert "1 lines have a needless column before the time, which was dropped" in found.notes


def test_attributes_beside_the_folder_and_gzip(tmp_path):
    expected = read(write(tmp_path / "one")).labels
    folder = write(tmp_path / "two", **{"attributes/attributes": None})
    (tmp_path / "attributes.txt").write_text(ATTRIBUTES)  # where the archive has it
    assert read(folder).labels == expected
    write(folder, gzip.compress(MENTIONS.encode()))
    assert read(folder).labels == expected


def test_no_split_file_no_splits(tmp_path):
    assert read(write(tmp_path, train_test_split=None)).labels.splits is None


def test_lines_that_are_missing_or_given_twice_are_counted(tmp_path):
    found = read(write(tmp_path, MENTIONS.replace("1 2 0 3 27.7080\n", "1 1 1 4 1.0\n")))
    assert found.labels.dense()[0].tolist() == [1, 0]
    assert "1 attributes of images have no line and are unknown" in found.notes
    assert "1 labels were given more than once; each counts once" in found.notes


def test_contradictions_go_by_the_rule(tmp_path):
    folder = write(tmp_path, MENTIONS + "1 1 0 4 2.0\n")
    with pytest.raises(InputError, match=r'"001.Albatross/a_0012.jpg" is listed both with and without'):
        read(folder)
    assert read(folder, contradictions="absent").labels.dense()[0].tolist() == [-1, -1]
    assert read(folder, contradictions="unknown").labels.dense()[0].tolist() == [0, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MENTIONS + "1 1 1 4\n", r"line 7: needs image, attribute, is_present, certainty and time"),
        (MENTIONS + "1 1 1 4 0 3.1 8\n", "line 7: needs image"),
        (MENTIONS + "1 1 1 4 soon\n", "line 7: needs image"),
        (MENTIONS.replace(" ", ","), "line 1: needs image"),
        (MENTIONS.replace(" ", "\t"), "line 1: needs image"),
        (MENTIONS + "1 1 2 4 1.0\n", "present is one of 0, 1, not '2'"),
        (MENTIONS + "1 1 1 5 1.0\n", "certainty is one of 1, 2, 3, 4, not '5'"),
        (MENTIONS + "9 1 1 4 1.0\n8 1 1 4 1.0\n", "no image in the list has the number '9', '8'"),
        (MENTIONS + "1 01 1 4 1.0\n", "no attribute in the list has the number '01'"),
        ("", "the file is empty"),
        ("\n", "image_attribute_labels.txt"),
        (b"1 1 1 4 1.0\n\xff 1 1 1 1.0\n", r"line 2 is not UTF-8 \(byte 0xff\)"),
        (MENTIONS + "1 1 1 \u0664 1.0\n", "line 7: needs image"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("images", "1 a.jpg\n1 b.jpg\n", r"images.txt: line 2: the number 1 is there twice"),
        ("images", "1 a.jpg\n2 a.jpg\n", r'images.txt: the name "a.jpg" is there twice'),
        ("images", "a.jpg\n", r"images.txt: line 1: needs a number and a name"),
        ("train_test_split", "1 1\n2 0\n", r"train_test_split.txt: 1 images of images.txt are missing: 3"),
        ("train_test_split", "1 1\n2 0\n3 2\n", r"train_test_split.txt: line 3: needs an image"),
        ("train_test_split", "1 1\n2 0\n3 1\n3 0\n", r"line 4: image 3 already has another value"),
        ("image_class_labels", "1 1\n2 1\n3 3\n", r"image_class_labels.txt: line 3: needs an image"),
        ("classes", None, r"classes.txt: no such file"),
        ("attributes/attributes", None, r"attributes.txt: no such file, nor"),
    ],
)
def test_bad_lists_are_named(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, **{name: text}), species=True)


def test_unknown_certainty(tmp_path):
    with pytest.raises(InputError, match='did you mean "guessing"'):
        read(write(tmp_path), certainty="guess")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(CERTAINTIES))
def test_written_labels_read_back(tmp_path_factory, seed, certainty):
    rng = np.random.default_rng(seed)
    n, c = rng.integers(1, 6, size=2)
    present, sure = rng.integers(0, 2, size=(n, c)), rng.integers(1, 5, size=(n, c))
    order = rng.permutation(n * c)
    lines = [f"{i // c + 1} {i % c + 1} {present.flat[i]} {sure.flat[i]} {rng.random():.4f}" for i in order]
    folder = write(
        tmp_path_factory.mktemp("cub"),
        "\n".join(lines),
        images="".join(f"{i + 1} {i:04}.jpg\n" for i in range(n)),
        train_test_split=None,
        **{"attributes/attributes": "".join(f"{i + 1} has::{i}\n" for i in range(c))},
    )
    known = sure >= CERTAINTIES.index(certainty) + 1
    expected = Labels.from_dense(
        np.where(known, 2 * present - 1, 0),
        classes=[f"has::{i}" for i in range(c)],
        images=[f"{i:04}.jpg" for i in range(n)],
    )
    assert read(folder, certainty=certainty).labels == expected
