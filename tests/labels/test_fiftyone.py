"""FiftyOne: classifications of exported data sets, read and written."""

import json

import numpy as np
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.fiftyone import read


def many(*names):
    found = [{"_cls": "Classification", "label": name, "confidence": 0.5, "tags": []} for name in names]
    return {"_cls": "Classifications", "classifications": found}


SAMPLES = [
    {"filepath": "data/0012.jpg", "tags": ["train"], "ground_truth": many("cat", "dog"), "id": {"$oid": "1"}},
    {"filepath": "data/x/b.jpg", "ground_truth": {"_cls": "Classification", "label": "dog", "logits": None}},
    {"filepath": "data/c.jpg", "ground_truth": many(), "metadata": None},
    {"filepath": "data/d.jpg", "ground_truth": None},
]
TARGETS = {"classes": ["cat", "dog"], "labels": {"0012": [0, {"label": 1, "confidence": 0.5}], "x/b": "dog"}}


def sample(folder):
    """Write a FiftyOneDataset for the checks that all formats share."""
    (folder / "samples.json").write_text(json.dumps({"samples": SAMPLES}, indent=1))


def sample_of_targets(folder):
    """Write a FiftyOneImageClassificationDataset."""
    more = {"c": [], "d": None}
    (folder / "labels.json").write_text(json.dumps(TARGETS | {"labels": TARGETS["labels"] | more}, indent=1))


def dense(found):
    return dict(zip(found.labels.images.to_pylist(), found.labels.dense().tolist(), strict=True))


@pytest.mark.parametrize("write", [sample, sample_of_targets])
def test_both_forms_say_the_same(tmp_path, write):
    write(tmp_path)
    suffix = ".jpg" if write is sample_of_targets else None
    found = read(tmp_path, suffix=suffix)
    assert found.labels.classes == ("cat", "dog")
    assert dense(found) == {"0012.jpg": [1, 1], "x/b.jpg": [0, 1], "c.jpg": [0, 0], "d.jpg": [0, 0]}
    assert found.notes[0] == "1 of 4 samples are not labelled; all is unknown there"
    told = dense(read(tmp_path, suffix=suffix, unlisted="absent"))
    assert (told["x/b.jpg"], told["c.jpg"], told["d.jpg"]) == ([-1, 1], [0, 0], [0, 0])
    told = dense(read(tmp_path, suffix=suffix, unlisted="absent", empty="absent"))
    assert (told["c.jpg"], told["d.jpg"]) == ([-1, -1], [0, 0])


def test_endings_are_those_of_the_images(tmp_path):
    (tmp_path / "labels.json").write_text(json.dumps(TARGETS))
    (tmp_path / "data" / "x").mkdir(parents=True)
    for name in ("0012.png", "x/b.jpeg"):
        (tmp_path / "data" / name).touch()
    assert list(dense(read(tmp_path))) == ["0012.png", "x/b.jpeg"]
    (tmp_path / "data" / "0012.jpg").touch()
    with pytest.raises(
        InputError, match=r'"0012" is several images in .*data; give the ending with --suffix'
    ):
        read(tmp_path)


BAD = {
    "a field of boxes": (
        "samples.json",
        {"samples": [{"filepath": "a", "ground_truth": {"_cls": "Detections"}}]},
        r'"ground_truth" holds no classifications \(it has Detections\); name one with --field',
    ),
    "no field": ("samples.json", {"samples": [{"filepath": "a"}]}, r"\(no sample has it\)"),
    "no samples": ("samples.json", {"samples": []}, "no samples in it"),
    "no label": (
        "samples.json",
        {"samples": [{"filepath": "a", "ground_truth": many(None)}]},
        "has no label",
    ),
    "an image twice": ("samples.json", {"samples": [SAMPLES[0], SAMPLES[0]]}, "there twice: 0012.jpg"),
    "a number": ("labels.json", TARGETS | {"labels": {"a": 2}}, '"a" has 2, which is neither a name nor'),
    "a wrong kind": ("labels.json", TARGETS | {"labels": {"a": [[0]]}}, "neither a name nor the number"),
    "a wrong name": ("labels.json", TARGETS | {"labels": {"a": "cet"}}, 'no class "cet"; did you mean "cat"'),
    "no labels": ("labels.json", {"classes": []}, 'an object with "labels"'),
    "wrong classes": ("labels.json", {"classes": [1], "labels": {}}, '"classes" is not a list of names'),
    "no images": ("labels.json", {"classes": ["cat"], "labels": {}}, "no images in it"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_sentence(tmp_path, name):
    file, content, sentence = BAD[name]
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=sentence) as error:
        read(tmp_path)
    assert str(error.value).startswith(str(tmp_path / file))


def test_folders_and_keys(tmp_path):
    with pytest.raises(InputError, match=r"must hold either samples.json or labels.json"):
        read(tmp_path)
    (tmp_path / "labels.json").write_text('{"labels": {"a": "cat", "a": "dog"}}')
    with pytest.raises(InputError, match=r'labels.json: "a" is there twice'):
        read(tmp_path)
    (tmp_path / "labels.json").write_text('{"labels": {"a": "cat"')
    with pytest.raises(InputError, match="not valid JSON"):
        read(tmp_path)


@pytest.fixture
def full():
    values = np.where(np.random.default_rng(0).random((40, 3)) < 0.4, 1, -1)
    values[3] = -1
    return Labels.from_dense(values, classes=["a", "é", "c"], images=[f"x.y/{n}.jpg" for n in range(40)])


def test_labels_go_out_and_come_back(full, tmp_path):
    out = tmp_path / "labels.json"
    done = package.publish(full, to="fiftyone", out=out)
    assert "known to be absent, which fiftyone cannot say" in done.notes[0]
    assert read(out, suffix=".jpg", unlisted="absent", empty="absent").labels == full


def test_images_of_one_name_are_refused(tmp_path):
    labels = Labels.from_dense([[1], [1]], classes=["cat"], images=["a.jpg", "a.png"])
    with pytest.raises(InputError, match=r'"a.jpg" and "a.png" would be one'):
        package.publish(labels, to="fiftyone", out=tmp_path / "o.json")
    assert not list(tmp_path.iterdir())


def test_fiftyone_itself_reads_and_writes_the_same(full, tmp_path):
    """Its importer and exporter of this format work without its data base."""
    pytest.importorskip("fiftyone", reason="skipped: no fiftyone")
    from fiftyone.core.labels import Classification, Classifications
    from fiftyone.utils.data.exporters import FiftyOneImageClassificationDatasetExporter
    from fiftyone.utils.data.importers import FiftyOneImageClassificationDatasetImporter

    data, out = tmp_path / "photos", tmp_path / "labels.json"
    (data / "x.y").mkdir(parents=True)
    for name in full.images.to_pylist():
        (data / name).touch()
    table = tmp_path / "p.csv"
    chances = (full.dense() + 1) / 2 * 0.75
    rows = zip(full.images.to_pylist(), chances.tolist(), strict=True)
    table.write_text("image,a,é,c\n" + "".join(f"{name},{','.join(map(str, row))}\n" for name, row in rows))
    package.publish(probabilities=table, to="fiftyone", out=out, threshold=0.5)
    importer = FiftyOneImageClassificationDatasetImporter(data_path=str(data), labels_path=str(out))
    with importer:
        found = {path: label for path, _, label in importer}
    for name, row in zip(full.images.to_pylist(), full.dense(), strict=True):
        each = found[str(data / name)].classifications
        assert [one.label for one in each] == [full.classes[place] for place in np.flatnonzero(row > 0)]
        assert all(one.confidence == 0.75 for one in each)
    exporter = FiftyOneImageClassificationDatasetExporter(
        labels_path=str(tmp_path / "back.json"),
        export_media=False,
        classes=list(full.classes),
        rel_dir=str(data),
    )
    with exporter:
        exporter.export_sample(
            str(data / "x.y" / "0.jpg"), Classifications(classifications=[Classification(label="é")])
        )
        exporter.export_sample(str(data / "x.y" / "1.jpg"), Classification(label="c", confidence=0.5))
    back = read(tmp_path / "back.json", unlisted="absent").labels
    assert back.dense().tolist() == [[-1, 1, -1], [-1, -1, 1]]
    assert back.images.to_pylist() == ["x.y/0", "x.y/1"]
