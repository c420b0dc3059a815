import gzip
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.cli import main
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.coco import read, read_boxes, read_panoptic
from tertium.labels.readers import read_labels
from tertium.labels.tree import LabelTree
from tertium.schemes import parse
from tests.labels.test_json_stream import damaged, judged


def write(tmp_path, document, name="instances.json"):
    path = tmp_path / name
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


def instances():
    """Return a small instances file with the awkward cases."""
    return {
        "info": {"description": "COCO 2014 Dataset", "year": 2014},
        "licenses": [{"url": "x", "id": 1, "name": "{]"}],
        "images": [
            {"license": 5, "file_name": "0012.jpg", "height": 480, "width": 640, "id": 57870},
            {"file_name": "b.jpg", "height": 10, "width": 20, "id": 7, "coco_url": "http://x/b.jpg"},
            {"file_name": "nothing.jpg", "height": 10, "width": 20, "id": 9},
        ],
        "annotations": [
            _annotation(1, 57870, 18, segmentation=[[1.5, 2, 3, 4]], bbox=[1.5, 2, 3, 4]),
            _annotation(2, 57870, 18, segmentation=[[9, 9, 9, 9]], bbox=[0, 0, 5, 5]),
            _annotation(3, 57870, 1, iscrowd=1, segmentation={"counts": [1, 2], "size": [4, 4]}),
            _annotation(4, 7, 1, iscrowd=1),
            _annotation(5, 7, 1),
        ],
        "categories": [
            {"supercategory": "animal", "id": 18, "name": "dog"},
            {"supercategory": "person", "id": 1, "name": "person"},
            {"supercategory": "animal", "id": 25, "name": "giraffe"},
        ],
    }


def _annotation(number, image, category, iscrowd=0, bbox=(0, 0, 1, 1), **more):
    fixed = {"id": number, "image_id": image, "category_id": category, "iscrowd": iscrowd, "area": 1.0}
    return {**more, **fixed, "bbox": list(bbox)}


def slow(document, crowd):
    """Read an instances document image by image; None if it has not the documented form."""
    try:
        images, categories = document["images"], document["categories"]
        if not all(type(item["id"]) is int for item in [*images, *categories]):
            return None
        matrix = []
        for image in images:
            row = []
            seen = any(item["image_id"] == image["id"] for item in document["annotations"])
            for category in categories:
                marks = {
                    item.get("iscrowd") or 0
                    for item in document["annotations"]
                    if item["image_id"] == image["id"] and item["category_id"] == category["id"]
                }
                only_crowd = marks == {1} and crowd == "unknown"
                row.append(0 if only_crowd or not seen else 1 if marks else -1)
            matrix.append(row)
        names = [category["name"] for category in categories], [image["file_name"] for image in images]
        return Labels.from_dense(matrix, classes=names[0], images=names[1])
    except (KeyError, TypeError, AttributeError, InputError):
        return None


def test_every_category_is_known_in_annotated_images(tmp_path):
    reading = read(write(tmp_path, instances()))
    assert reading.labels.images.to_pylist() == ["0012.jpg", "b.jpg", "nothing.jpg"]
    assert reading.labels.classes == ("dog", "person", "giraffe")
    np.testing.assert_array_equal(reading.labels.dense(), [[1, 1, -1], [-1, 1, -1], [0, 0, 0]])
    told = "every class is unknown there; --empty absent says otherwise"
    assert reading.notes == (f"1 of 3 images have no annotation: {told}",)
    assert reading.tree is None


def test_images_without_annotations_may_be_empty(tmp_path):
    reading = read(write(tmp_path, instances()), empty="absent")
    np.testing.assert_array_equal(reading.labels.dense(), [[1, 1, -1], [-1, 1, -1], [-1, -1, -1]])
    told = "every class is absent there; --empty unknown says otherwise"
    assert reading.notes == (f"1 of 3 images have no annotation: {told}",)
    document = instances()
    del document["images"][2]
    assert read(write(tmp_path, document)).notes == ()
    with pytest.raises(InputError, match='did you mean "absent"'):
        read(write(tmp_path, document), empty="abesnt")


def test_file_names_are_paths(tmp_path):
    document = instances()
    document["images"][0]["file_name"] = "./photos//0012.jpg"
    path = write(tmp_path, document)
    assert read(path).labels.images[0].as_py() == "photos/0012.jpg"
    assert read_boxes(path).images[0].as_py() == "photos/0012.jpg"


def test_a_crowd_may_be_unknown(tmp_path):
    labels = read(write(tmp_path, instances()), crowd="unknown").labels
    np.testing.assert_array_equal(labels.dense(), [[1, 0, -1], [-1, 1, -1], [0, 0, 0]])


def test_images_by_number(tmp_path):
    labels = read(write(tmp_path, instances()), image_id="id").labels
    assert labels.images.to_pylist() == ["57870", "7", "9"]


def test_gzip_and_order_of_keys(tmp_path):
    document = instances()
    found = read(write(tmp_path, document)).labels
    turned = dict(reversed(document.items()))
    assert (
        read(write(tmp_path, gzip.compress(json.dumps(turned, indent=1).encode()), "x.json.gz")).labels
        == found
    )


def test_notes_on_repeated_annotations(tmp_path):
    document = instances()
    document["annotations"].append(document["annotations"][0])
    reading = read(write(tmp_path, document))
    assert reading.notes[0] == "1 annotations have the id of an earlier one"
    assert reading.labels == read(write(tmp_path, instances())).labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("annotations"), 'there is no "annotations"'),
        (lambda d: d.update(images=[]), 'not in "images": 57870, 7'),
        (lambda d: d.update(images=[], annotations=[]), "there are no images"),
        (lambda d: d.update(categories=[], annotations=[]), "there are no classes"),
        (lambda d: d["annotations"][1].pop("image_id"), 'record 2 of "annotations" has no "image_id"'),
        (lambda d: d["annotations"][1].pop("category_id"), 'record 2 of "annotations" has no "category_id"'),
        (lambda d: d["annotations"][1].update(category_id="18"), '"category_id" must be of the kind number'),
        (lambda d: d["annotations"][1].update(iscrowd=2), '"iscrowd" is 2 in an annotation'),
        (lambda d: d["annotations"][4].update(image_id=8), 'ids that are not in "images": 8'),
        (lambda d: d["categories"].pop(0), 'ids that are not in "categories": 18'),
        (lambda d: d["images"][1].update(id=9), 'an id is there twice in "images": 9'),
        (lambda d: d["categories"][1].update(id=18), 'an id is there twice in "categories": 18'),
        (lambda d: d["images"][1].update(file_name="0012.jpg"), "two rows: 0012.jpg"),
        (lambda d: d["images"][1].update(file_name=""), 'record 2 of "images" has an empty file name'),
        (lambda d: d["images"][1].pop("file_name"), 'record 2 of "images" has no "file_name"'),
        (lambda d: d["categories"][1].update(name="dog"), "a class is named twice: dog"),
        (lambda d: d["categories"][1].update(name=" "), 'record 2 of "categories" has an empty name'),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, message):
    document = instances()
    change(document)
    with pytest.raises(InputError) as raised:
        read(write(tmp_path, document))
    assert message in str(raised.value)
    assert "instances.json" in str(raised.value)


def test_ten_ids_are_shown_and_the_others_counted(tmp_path):
    document = instances()
    document["annotations"] = [_annotation(number, 1000 + number, 1) for number in range(13)]
    with pytest.raises(InputError, match=r"1008, 1009 and 3 more$"):
        read(write(tmp_path, document))


def test_a_choice_that_is_none(tmp_path):
    with pytest.raises(InputError, match='the crowd cannot be "unknwon"; did you mean "unknown"'):
        read(write(tmp_path, instances()), crowd="unknwon")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["present", "unknown"]))
def test_written_labels_read_back(tmp_path_factory, seed, crowd):
    rng = np.random.default_rng(seed)
    classes = ["a b", 'quo"te', "ünï", "{", "\\"][: rng.integers(1, 6)]
    matrix = rng.integers(-1, 2, size=(rng.integers(1, 7), len(classes)))
    if crowd == "present":
        matrix[matrix == 0] = -1
    numbers, keys = rng.permutation(1000)[: len(matrix)], rng.permutation(90)[: len(classes)]
    annotations = []
    for row, column in np.argwhere(matrix >= 0):
        kinds = [1] if matrix[row, column] == 0 else [*rng.choice([0, 1], size=3).tolist(), 0]
        annotations += [_annotation(0, int(numbers[row]), int(keys[column]), kind) for kind in kinds]
    rng.shuffle(annotations)
    document = {
        "annotations": [{**item, "id": place} for place, item in enumerate(annotations)],
        "images": [{"id": int(number), "file_name": f"{number:05}.jpg"} for number in numbers],
        "categories": [{"name": name, "id": int(key)} for name, key in zip(classes, keys, strict=True)],
    }
    path = write(tmp_path_factory.mktemp("coco"), document)
    matrix[(matrix < 0).all(axis=1)] = 0  # nothing is annotated there
    expected = Labels.from_dense(matrix, classes=classes, images=[f"{number:05}.jpg" for number in numbers])
    assert read(path, crowd=crowd).labels == expected == slow(document, crowd)


def test_damage_is_an_error_or_reads_as_the_slow_reader_reads_it(tmp_path):
    rng = np.random.default_rng(1)
    whole = json.dumps(instances()).encode()
    kept = 0
    for _ in range(500):
        data = damaged(rng, whole)
        try:
            found = read(write(tmp_path, data), crowd="unknown").labels
        except InputError:
            continue
        kept += 1
        document = judged(data)
        assert document is not None, data
        assert found == slow(document, "unknown"), data
    assert 20 < kept < 400


# ---- panoptic ----------------------------------------------------------------------------------------------


def panoptic():
    segment = {"area": 3, "bbox": [0, 0, 1, 1], "id": 77}
    return {
        "images": [{"id": number, "file_name": f"{number:012}.jpg"} for number in (139, 285, 632)],
        "annotations": [
            {
                "segments_info": [
                    {**segment, "category_id": 17, "iscrowd": 0},
                    {**segment, "category_id": 17, "iscrowd": 0},
                    {**segment, "category_id": 1, "iscrowd": 1},
                    {**segment, "category_id": 187, "iscrowd": 0},
                ],
                "file_name": "000000000139.png",
                "image_id": 139,
            },
            {"segments_info": [], "file_name": "000000000285.png", "image_id": 285},
        ],
        "categories": [
            {"supercategory": "person", "isthing": 1, "id": 1, "name": "person"},
            {"supercategory": "animal", "isthing": 1, "id": 17, "name": "cat"},
            {"supercategory": "animal", "isthing": 1, "id": 18, "name": "dog"},
            {"supercategory": "sky", "isthing": 0, "id": 187, "name": "sky-other-merged"},
        ],
    }


def test_panoptic_and_its_tree(tmp_path):
    reading = read_panoptic(write(tmp_path, panoptic()))
    np.testing.assert_array_equal(reading.labels.dense(), [[1, 1, -1, 1], [-1, -1, -1, -1], [0, 0, 0, 0]])
    assert reading.labels.images[0].as_py() == "000000000139.jpg"
    assert reading.notes == ("1 images have no annotation record; all is unknown there",)
    assert reading.tree is not None
    assert reading.tree.ancestors("dog") == ("animal", "things")
    assert reading.tree.ancestors("person") == ("things",)
    assert reading.tree.ancestors("sky-other-merged") == ("sky", "stuff")


def test_groups_follow_from_what_is_below(tmp_path):
    reading = read_panoptic(write(tmp_path, panoptic()), crowd="unknown", groups=True)
    labels = reading.labels
    assert labels.classes == ("person", "cat", "dog", "sky-other-merged", "animal", "sky", "stuff", "things")
    np.testing.assert_array_equal(labels.dense(), [[0, 1, -1, 1, 1, 1, 1, 1], [-1] * 8, [0] * 8])
    parse("hierarchy", reading.tree).apply(labels, 0)  # every name of the tree is a class


def test_a_group_below_which_only_a_crowd_is_stays_unknown(tmp_path):
    document = panoptic()
    document["annotations"][0]["segments_info"] = [{"category_id": 1, "iscrowd": 1}]
    labels = read_panoptic(write(tmp_path, document), crowd="unknown", groups=True).labels
    assert labels.dense()[0, labels.column("things")] == 0
    assert labels.dense()[0, labels.column("animal")] == -1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["annotations"][0].pop("segments_info"),
            'record 1 of "annotations" has no "segments_info"',
        ),
        (
            lambda d: d["annotations"][0]["segments_info"][1].pop("category_id"),
            'a segment in record 1 of "annotations" has no "category_id"',
        ),
        (
            lambda d: d["annotations"][0]["segments_info"].append(None),
            'a segment in record 1 of "annotations"',
        ),
        (lambda d: d["annotations"][0]["segments_info"][1].update(category_id=99), 'in "categories": 99'),
        (lambda d: d["annotations"][1].update(image_id=3), 'in "images": 3'),
    ],
)
def test_what_is_wrong_in_a_panoptic_file_is_said(tmp_path, change, message):
    document = panoptic()
    change(document)
    with pytest.raises(InputError) as raised:
        read_panoptic(write(tmp_path, document))
    assert message in str(raised.value)


def test_names_that_make_no_tree(tmp_path):
    document = panoptic()
    document["categories"][3]["supercategory"] = "animal"
    reading = read_panoptic(write(tmp_path, document))
    assert reading.tree is None
    assert reading.notes[0] == 'there is no tree: "animal" is below both "things" and "stuff"'
    with pytest.raises(InputError, match="so there are no groups"):
        read_panoptic(write(tmp_path, document), groups=True)


def test_damaged_panoptic_files(tmp_path):
    rng = np.random.default_rng(2)
    whole = json.dumps(panoptic()).encode()
    kept = 0
    for _ in range(300):
        data = damaged(rng, whole)
        try:
            labels = read_panoptic(write(tmp_path, data), crowd="unknown").labels
        except InputError:
            continue
        kept += 1
        assert judged(data) is not None, data
        assert labels.shape == (3, 4)
    assert 10 < kept < 250


# ---- boxes -------------------------------------------------------------------------------------------------


def test_boxes_stand_beside_the_labels(tmp_path):
    path = write(tmp_path, instances())
    boxes, labels = read_boxes(path), read(path).labels
    assert boxes.images.equals(labels.images)
    assert boxes.classes == labels.classes
    np.testing.assert_array_equal(boxes.sizes, [[640, 480], [20, 10], [20, 10]])
    np.testing.assert_array_equal(boxes.rows, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(boxes.columns, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(boxes.corners[:2], [[1.5, 2, 4.5, 6], [0, 0, 5, 5]])
    np.testing.assert_array_equal(boxes.unsure, [False, False, True, True, False])


@pytest.mark.parametrize("box", [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, -3, 4], [1, None, 3, 4], []])
def test_a_box_that_is_none(tmp_path, box):
    document = instances()
    document["annotations"][3]["bbox"] = box
    with pytest.raises(InputError, match=r'"bbox" in record 4 of "annotations" is \['):
        read_boxes(write(tmp_path, document))


# ---- the command line --------------------------------------------------------------------------------------


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["tertium", "convert", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_instances_from_the_command_line(tmp_path, monkeypatch, capsys):
    path, out = write(tmp_path, instances()), tmp_path / "labels.arrow"
    assert not run(monkeypatch, "coco", path, "--out", out, "--crowd", "unknown", "--image-id", "id")
    assert read_labels(out) == read(path, crowd="unknown", image_id="id").labels
    path.write_bytes(path.read_bytes()[:-40])
    assert run(monkeypatch, "coco", path, "--out", tmp_path / "none.csv") == 2
    assert 'the file ends inside "categories"' in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()


def test_panoptic_from_the_command_line(tmp_path, monkeypatch):
    path, out = write(tmp_path, panoptic()), tmp_path / "labels.parquet"
    assert not run(monkeypatch, "coco-panoptic", path, "--groups", "--out", out)
    reading = read_panoptic(path, groups=True)
    assert read_labels(out) == reading.labels
    assert LabelTree.from_csv(tmp_path / "labels.tree.csv") == reading.tree
