import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.lvis import read
from tests.labels.test_json_stream import damaged, judged


def write(tmp_path, document):
    path = tmp_path / "lvis_v1_val.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


def image(number, negative=(), incomplete=(), folder="val2017"):
    return {
        "date_captured": "2013-11-14 17:02:52",
        "neg_category_ids": list(negative),
        "id": number,
        "coco_url": f"http://images.example.org/{folder}/{number:012}.jpg",
        "not_exhaustive_category_ids": list(incomplete),
        "height": 427,
        "width": 640,
    }


def sample():
    names = ["aerosol_can", "air_conditioner", "airplane", "alarm_clock"]
    return {
        "info": {"version": "v1.0"},
        "annotations": [
            {
                "area": 2.5,
                "id": 1,
                "segmentation": [[1, 2]],
                "image_id": 397133,
                "category_id": 2,
                "bbox": [0, 0, 1, 1],
            },
            {"id": 2, "image_id": 397133, "category_id": 2},
            {"id": 3, "image_id": 37777, "category_id": 4},
        ],
        "images": [
            image(397133, negative=[1, 3], incomplete=[2]),
            image(37777, negative=[2], incomplete=[1], folder="train2017"),
            image(5),
        ],
        "licenses": [],
        "categories": [
            {"id": place, "name": name, "synset": f"{name}.n.01", "frequency": "c", "synonyms": [name]}
            for place, name in enumerate(names, start=1)
        ],
    }


def slow(document):
    """Read image by image; None if the document has not the documented form."""
    try:
        matrix = []
        for item in document["images"]:
            row = []
            for category in document["categories"]:
                number = category["id"]
                seen = any(
                    each["category_id"] == number and each["image_id"] == item["id"]
                    for each in document["annotations"]
                )
                missing = (
                    number in item["neg_category_ids"] and number not in item["not_exhaustive_category_ids"]
                )
                row.append(1 if seen else -1 if missing else 0)
            matrix.append(row)
        ids = ["/".join(item["coco_url"].split("/")[-2:]) for item in document["images"]]
        return Labels.from_dense(
            matrix, classes=[each["name"] for each in document["categories"]], images=ids
        )
    except (KeyError, TypeError, AttributeError, InputError):
        return None


def test_federated(tmp_path):
    reading = read(write(tmp_path, sample()))
    assert reading.labels.images.to_pylist() == [
        "val2017/000000397133.jpg",
        "train2017/000000037777.jpg",
        "val2017/000000000005.jpg",
    ]
    np.testing.assert_array_equal(reading.labels.dense(), [[-1, 1, -1, 0], [0, -1, 0, 1], [0, 0, 0, 0]])
    assert reading.labels == slow(sample())
    assert reading.notes == ()


def test_an_image_without_an_address_has_its_file_name(tmp_path):
    document = sample()
    del document["images"][0]["coco_url"]
    document["images"][0]["file_name"] = "COCO_val2014_1.jpg"
    assert read(write(tmp_path, document)).labels.images[0].as_py() == "COCO_val2014_1.jpg"
    document["images"][0]["coco_url"] = "http://images.example.org/1.jpg"  # no folder, and a host is none
    assert read(write(tmp_path, document)).labels.images[0].as_py() == "COCO_val2014_1.jpg"
    del document["images"][0]["file_name"]
    with pytest.raises(InputError, match=r'record 1 of "images" has neither'):
        read(write(tmp_path, document))


def test_contradictions_by_rule(tmp_path):
    document = sample()
    document["images"][0]["neg_category_ids"].append(2)
    document["images"][0]["not_exhaustive_category_ids"] = []
    path = write(tmp_path, document)
    with pytest.raises(
        InputError, match=r'"val2017/000000397133.jpg" is listed both with and without "air_c'
    ):
        read(path)
    for rule, value in (("present", 1), ("absent", -1), ("unknown", 0)):
        reading = read(path, contradictions=rule)
        assert reading.labels.dense()[0, 1] == value
        assert reading.notes == (f"1 labels were given as both present and absent; taken as {rule}",)


def test_absent_and_not_exhaustive_is_unknown_and_noted(tmp_path):
    document = sample()
    document["images"][1]["neg_category_ids"].append(1)
    document["images"][2]["neg_category_ids"] = [3, 3]
    reading = read(write(tmp_path, document))
    np.testing.assert_array_equal(reading.labels.dense()[1:], [[0, -1, 0, 1], [0, 0, -1, 0]])
    assert reading.notes == (
        "1 labels are listed both as absent and as not exhaustive; unknown",
        "1 labels were given more than once; each counts once",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["images"][1].pop("neg_category_ids"), 'record 2 of "images" has no "neg_category_ids"'),
        (lambda d: d["images"][1].update(neg_category_ids=[9]), 'not in "categories": 9'),
        (lambda d: d["images"][1].update(not_exhaustive_category_ids=[9]), 'not in "categories": 9'),
        (lambda d: d["images"][1].update(neg_category_ids=3), '"neg_category_ids" must be of the kind array'),
        (lambda d: d["images"][1].update(neg_category_ids=[None]), 'not in "categories": None'),
        (lambda d: d["annotations"][1].update(image_id=3), 'not in "images": 3'),
        (lambda d: d["annotations"][1].pop("category_id"), 'record 2 of "annotations" has no "category_id"'),
        (lambda d: d["images"].append(d["images"][0]), 'twice in "images": 397133'),
        (lambda d: d.pop("categories"), 'there is no "categories"'),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, message):
    document = sample()
    change(document)
    with pytest.raises(InputError) as raised:
        read(write(tmp_path, document))
    assert message in str(raised.value)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_written_labels_read_back(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-1, 2, size=(rng.integers(1, 6), rng.integers(1, 6)))
    numbers, keys = rng.permutation(1000)[: len(matrix)], rng.permutation(1203)[: matrix.shape[1]]
    images = [
        image(
            int(number),
            negative=keys[row < 0].tolist(),
            incomplete=keys[(row > 0) & (rng.random(len(row)) < 0.5)].tolist(),
        )
        for number, row in zip(numbers, matrix, strict=True)
    ]
    annotations = [
        {"id": place, "image_id": int(numbers[row]), "category_id": int(keys[column])}
        for place, (row, column) in enumerate(np.argwhere(matrix > 0).repeat(2, axis=0))
    ]
    names = [f"class {key}" for key in keys]
    categories = [{"id": int(key), "name": name} for key, name in zip(keys, names, strict=True)]
    document = {"categories": categories, "annotations": annotations, "images": images}
    ids = [f"val2017/{number:012}.jpg" for number in numbers]
    expected = Labels.from_dense(matrix, classes=names, images=ids)
    assert read(write(tmp_path_factory.mktemp("lvis"), document)).labels == expected


def test_damage_is_an_error_or_reads_as_the_slow_reader_reads_it(tmp_path):
    rng = np.random.default_rng(3)
    whole = json.dumps(sample()).encode()
    kept = 0
    for _ in range(500):
        data = damaged(rng, whole)
        try:
            found = read(write(tmp_path, data)).labels
        except InputError:
            continue
        kept += 1
        document = judged(data)
        assert document is not None, data
        assert found == slow(document), data
    assert 20 < kept < 400
