import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.cli import main
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.voc import read, read_boxes
from tertium.labels.readers import read_labels
from tests.labels.test_json_stream import damaged

CLASSES = ["aeroplane", "dog", "person"]


def thing(name, difficult="<difficult>0</difficult>", box=(10, 20, 30, 40), more=""):
    corners = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name>{difficult}<bndbox>{corners}</bndbox>{more}</object>"


HARD = "<difficult>1</difficult>"
HEAD = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"


def annotation(stem, *objects):
    size = "<size><width>486</width><height>500</height><depth>3</depth></size>"
    head = f"<folder>VOC2007</folder><filename>{stem}.jpg</filename>{size}"
    return f"<annotation>\n{head}{''.join(objects)}\n</annotation>\n"


def make(folder, files, lists=None):
    """Write annotation files (by stem) and lists (by name) into a year's folder."""
    for where in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / where).mkdir(parents=True, exist_ok=True)
    for stem, text in files.items():
        (folder / "Annotations" / f"{stem}.xml").write_text(text)
    for name, text in (lists or {}).items():
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_bytes(text.encode())
    return folder


FILES = {
    "000005": annotation("000005", thing("dog"), thing("dog", HARD), thing("person", HARD, more=HEAD)),
    "000007": annotation("000007", thing("person", "")),
    "000009": annotation("000009"),
}
LISTS = {
    "train": "000005\n000007\n",
    "val": "000009\r\n",
    "trainval": "000005\n000007\n000009\n",
    "dog_train": "000005  1\n000007 -1\n",
    "dog_val": "000009 -1\r\n",
    "dog_trainval": "000005  1\n000007 -1\n000009 -1\n",
    "person_train": "000005  0\n000007  1\n",
    "person_val": "\ufeff000009 -1\n",
    "aeroplane_train": "000005 -1\n000007 -1\n",
    "aeroplane_val": "000009 -1\n",
}
TRUTH = [[-1, 1, 0], [-1, -1, 1], [-1, -1, -1]]


@pytest.fixture
def year(tmp_path):
    return make(tmp_path / "VOC2007", FILES, LISTS)


@pytest.mark.parametrize("source", ["annotations", "lists"])
def test_both_sources_say_the_same(year, source):
    reading = read(year, source=source)
    assert reading.labels.images.to_pylist() == ["000005.jpg", "000007.jpg", "000009.jpg"]
    assert reading.labels.classes == tuple(CLASSES)
    np.testing.assert_array_equal(reading.labels.dense(), TRUTH)
    assert reading.labels.part("train").images.to_pylist() == ["000005.jpg", "000007.jpg"]
    assert reading.labels.split_names() == ["train", "val"]
    assert reading.notes == ()


@pytest.mark.parametrize("source", ["annotations", "lists"])
@pytest.mark.parametrize(("difficult", "value"), [("present", 1), ("absent", -1)])
def test_difficult_is_what_the_user_says(year, source, difficult, value):
    dense = read(year, source=source, difficult=difficult).labels.dense()
    assert dense[0].tolist() == [-1, 1, value]


def test_without_lists_every_file_is_an_image(tmp_path):
    labels = read(make(tmp_path, FILES)).labels
    assert labels.classes == ("dog", "person")
    np.testing.assert_array_equal(labels.dense(), np.array(TRUTH)[:, 1:])
    assert labels.splits is None


def test_ids_are_files_where_there_are_files(year):
    (year / "JPEGImages" / "000005.png").touch()
    (year / "JPEGImages" / "000007.jpg").touch()
    assert read(year).labels.images.to_pylist() == ["000005.png", "000007.jpg", "000009.jpg"]


def test_only_listed_images_are_read(year):
    (year / "Annotations" / "action.xml").write_text(annotation("other", thing("unicorn")))
    reading = read(year)
    assert len(reading.labels) == 3
    assert reading.notes == ("1 annotation files are of images that ImageSets/Main does not list; left out",)


def test_an_unpublished_split_is_unknown(year):
    (year / "ImageSets" / "Main" / "test.txt").write_text("000011\n000012\n000011\n")
    reading = read(year)
    assert reading.labels.part("test").known == 0
    assert reading.notes == (
        "1 images stand more than once in a list of a split",
        'none of the 2 images of "test" has an annotation file; all is unknown',
    )


def test_a_name_inside_that_differs_is_noted(tmp_path):
    reading = read(make(tmp_path, {**FILES, "x": annotation("y", thing("dog"))}))
    assert reading.labels.images[3].as_py() == "x.jpg"
    assert reading.notes == ("1 annotation files name another image inside; their own name counts",)


def test_labels_in_no_list_are_unknown(year):
    (year / "ImageSets" / "Main" / "aeroplane_val.txt").unlink()
    reading = read(year, source="lists")
    assert reading.labels.dense()[2].tolist() == [0, -1, -1]
    assert reading.notes == ("1 labels stand in no list; unknown",)


def test_lists_that_disagree(year):
    (year / "ImageSets" / "Main" / "dog_trainval.txt").write_text("000005  1\n000007  1\n000009 0\n")
    with pytest.raises(InputError) as raised:
        read(year, source="lists")
    assert '"dog" in "000007" (dog_trainval.txt, line 2), "dog" in "000009" (' in str(raised.value)
    for rule, value in (("present", 1), ("absent", -1), ("unknown", 0)):
        reading = read(year, source="lists", contradictions=rule)
        assert reading.labels.dense()[:, 1].tolist() == [1, value, value]
        assert reading.notes == (f"the lists disagree on 2 labels; taken as {rule}",)


BOMB = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]><annotation><folder>&c;</folder></annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("<annotation>", "not valid XML (no element found: line 1, column 12)"),
        ("<annotation></annotations>", "not valid XML (mismatched tag"),
        ("<html></html>", "the XML is <html>; it must be <annotation>"),
        (BOMB, "has a document type"),
        ("<annotation><object></object></annotation>", "object 1 has no name"),
        (
            annotation("a", thing("dog"), thing("dog", "<difficult>2</difficult>")),
            'object 2: difficult is "2"',
        ),
        (annotation("a", thing("dgo")), 'no list for the class dgo; did you mean "dog"'),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "not valid XML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(year, text, message):
    (year / "Annotations" / "000007.xml").write_text(text)
    with pytest.raises(InputError) as raised:
        read(year)
    assert message in str(raised.value)
    assert "000007.xml" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train", "000005\n000006\n000007\n", 'images of "train" have no annotation file: 000006.xml'),
        ("train", "000005 1\n", 'train.txt: line 1: "000005 1"; it must be the name of one image'),
        ("val", "000009\n000005\n", 'val.txt: line 2: "000005" is in train.txt too'),
        ("val", "", "val.txt: the file is empty"),
    ],
)
def test_what_is_wrong_in_a_list_of_images_is_said(year, name, text, message):
    (year / "ImageSets" / "Main" / f"{name}.txt").write_text(text)
    with pytest.raises(InputError) as raised:
        read(year)
    assert message in str(raised.value)


@pytest.mark.parametrize("line", ["000007,1", "000007", "000007 2", "000007 1 1", "000007 present"])
def test_what_is_wrong_in_a_list_of_a_class_is_said(year, line):
    (year / "ImageSets" / "Main" / "dog_val.txt").write_text(f"000009 -1\n{line}\n")
    with pytest.raises(InputError, match=r"dog_val\.txt: line 2: .* it must be an image and 1, -1 or 0"):
        read(year, source="lists")


def test_folders_that_are_no_year(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="there is no folder Annotations"):
        read(tmp_path)
    with pytest.raises(InputError, match="there are no lists"):
        read(tmp_path, source="lists")
    with pytest.raises(InputError, match=r"there are no \.xml files"):
        read(make(tmp_path, {}))
    with pytest.raises(InputError, match="so no classes"):
        read(make(tmp_path, {"a": annotation("a")}))
    with pytest.raises(InputError, match='source cannot be "list"; did you mean "lists"'):
        read(tmp_path, source="list")
    (tmp_path / "Annotations" / "a.xml").unlink()
    (tmp_path / "Annotations").rmdir()
    make_lists = tmp_path / "ImageSets" / "Main" / "dog_val.txt"
    make_lists.write_text("a 1\n")
    with pytest.raises(InputError, match="read them with --source lists"):
        read(tmp_path)


def test_boxes_stand_beside_the_labels(year):
    boxes, labels = read_boxes(year), read(year).labels
    assert boxes.images.equals(labels.images)
    assert boxes.classes == labels.classes
    np.testing.assert_array_equal(boxes.sizes, [[486, 500]] * 3)
    np.testing.assert_array_equal(boxes.rows, [0, 0, 0, 1])
    np.testing.assert_array_equal(boxes.columns, [1, 1, 2, 2])
    np.testing.assert_array_equal(boxes.corners, [[9, 19, 30, 40]] * 4)
    np.testing.assert_array_equal(boxes.unsure, [False, True, True, False])


@pytest.mark.parametrize("box", [(1, 2, 0, 4), (1, 2, "x", 4), (1, 2, "nan", 4), (1, 2, "", 4)])
def test_a_box_that_is_none(year, box):
    (year / "Annotations" / "000007.xml").write_text(annotation("000007", thing("dog", box=box)))
    assert read(year).labels.dense()[1].tolist() == [-1, 1, -1]  # the label does not need it
    with pytest.raises(InputError, match=r"an object without a box .* in 000007\.xml"):
        read_boxes(year)


def test_boxes_need_the_size(year):
    (year / "Annotations" / "000007.xml").write_text("<annotation><size><width>a</width></size></annotation>")
    with pytest.raises(InputError, match=r"no size of the image in 000007\.xml"):
        read_boxes(year)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["annotations", "lists"]))
def test_written_labels_read_back(tmp_path_factory, seed, source):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-1, 2, size=(rng.integers(2, 6), 3))
    stems = [f"{number:06}" for number in rng.permutation(100)[: len(matrix)]]
    kinds = {1: ["", HARD], 0: [HARD]}
    files = {
        stem: annotation(
            stem,
            *(
                thing(CLASSES[place], mark)
                for place, value in enumerate(row)
                if value >= 0
                for mark in kinds[value]
            ),
        )
        for stem, row in zip(stems, matrix, strict=True)
    }
    half = len(stems) // 2
    parts = {"train": slice(None, half), "val": slice(half, None)}
    lists = {split: "\n".join(stems[part]) + "\n" for split, part in parts.items()}
    for place, name in enumerate(CLASSES):
        for split, part in parts.items():
            pairs = zip(stems[part], matrix[part, place], strict=True)
            lists[f"{name}_{split}"] = "".join(f"{stem} {value:2}\n" for stem, value in pairs)
    labels = read(make(tmp_path_factory.mktemp("voc"), files, lists), source=source).labels
    expected = Labels.from_dense(matrix, classes=CLASSES, images=[f"{stem}.jpg" for stem in stems])
    assert labels.split_names() == ["train", "val"]
    assert labels.images.equals(expected.images)
    np.testing.assert_array_equal(labels.dense(), expected.dense())


def test_damage_is_an_error_or_labels(year):
    rng = np.random.default_rng(4)
    path = year / "Annotations" / "000005.xml"
    whole = path.read_bytes()
    kept = 0
    for _ in range(400):
        path.write_bytes(damaged(rng, whole))
        try:
            labels = read(year).labels
        except InputError:
            continue
        kept += 1
        np.testing.assert_array_equal(labels.dense()[1:], TRUTH[1:])
        assert labels.dense()[0, 0] == -1
    assert 20 < kept < 380


def test_damaged_lists_are_errors_or_labels(year):
    rng = np.random.default_rng(5)
    for name in ("train", "dog_train", "person_val"):
        path = year / "ImageSets" / "Main" / f"{name}.txt"
        whole = path.read_bytes()
        for _ in range(100):
            path.write_bytes(damaged(rng, whole))
            for source in ("annotations", "lists"):
                try:
                    labels = read(year, source=source).labels
                except InputError:
                    continue
                assert labels.classes == tuple(CLASSES)
        path.write_bytes(whole)


def test_from_the_command_line(year, tmp_path, monkeypatch, capsys):
    out = tmp_path / "labels.parquet"
    monkeypatch.setattr(sys, "argv", ["tertium", "convert", "voc", str(year), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert read_labels(out) == read(year).labels
    assert "3 images, 3 classes: 2 labels present, 6 absent" in capsys.readouterr().out
