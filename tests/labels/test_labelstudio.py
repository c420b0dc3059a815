"""Label Studio: what people chose becomes labels, and predictions are tasks that it reads."""

import json

import numpy as np
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.labelstudio import image_id, read

CONFIG = """<View><Image name="image" value="$image"/>
<Choices name="choice" toName="image" choice="multiple"><Choice value="cat"/><Choice value="dog"/></Choices>
</View>"""


def annotation(*names, control="choice", kind="choices", **more):
    result = {"from_name": control, "to_name": "image", "type": kind, "value": {kind: list(names)}}
    return {"completed_by": 1, "was_cancelled": False, "result": [result] if names else [], **more}


def task(image, *annotations):
    return {"id": 5, "data": {"image": image, "text": 3}, "annotations": annotations, "predictions": [7]}


def write(folder, *tasks):
    path = folder / "project.json"
    path.write_text(json.dumps(tasks, indent=1))
    return path


def sample(folder):
    """Write an export for the checks that all formats share."""
    return write(
        folder,
        task("/data/local-files/?d=0012.jpg", annotation("cat", "dog"), annotation("cat")),
        task("b.jpg", annotation("dog")),
        task("c.jpg"),
    )


def dense(found):
    return dict(zip(found.labels.images.to_pylist(), found.labels.dense().tolist(), strict=True))


def test_choices_are_present_and_the_user_says_what_else_is(tmp_path):
    path = write(
        tmp_path,
        task("a.jpg", annotation("cat")),
        task("b.jpg", annotation("cat", "dog", "dog")),
        task("c.jpg", annotation("cat", was_cancelled=True)),
        task("d.jpg"),
        task("e.jpg", annotation()),
    )
    nothing = [0, 0]
    assert dense(read(path)) == {"a.jpg": [1, 0], "b.jpg": [1, 1]} | dict.fromkeys(
        ["c.jpg", "d.jpg", "e.jpg"], nothing
    )
    found = read(path, unlisted="absent")
    assert dense(found) == {"a.jpg": [1, -1], "b.jpg": [1, 1]} | dict.fromkeys(
        ["c.jpg", "d.jpg", "e.jpg"], nothing
    )
    assert found.notes == (
        "1 annotations were skipped; they say nothing",
        "2 of 5 tasks have no annotation that counts; all is unknown there",
        "1 of 3 records name no class: they say nothing",
    )
    assert dense(read(path, unlisted="absent", empty="absent"))["e.jpg"] == [-1, -1]
    fixed = read(path, classes=["fox", "dog", "cat"], unlisted="absent").labels
    assert fixed.classes == ("fox", "dog", "cat")
    assert fixed.dense().tolist()[0] == [-1, -1, 1]


@pytest.mark.parametrize(
    ("votes", "two", "three"),
    [("majority", [1, 0], [1, -1]), ("present", [1, 1], [1, 1]), ("absent", [1, -1], [-1, -1])],
)
def test_several_annotators(tmp_path, votes, two, three):
    path = write(
        tmp_path,
        task("two.jpg", annotation("cat"), annotation("cat", "dog")),
        task("three.jpg", annotation("cat"), annotation("cat")),
        task("three.jpg", annotation("dog")),  # another task with the same image
    )
    assert dense(read(path)) == {"two.jpg": [1, 1], "three.jpg": [1, 1]}  # nobody can disagree
    with pytest.raises(InputError, match=r'disagree on "dog" in "two.jpg", .* --contradictions majority'):
        read(path, unlisted="absent")
    found = read(path, unlisted="absent", votes=votes)
    assert dense(found) == {"two.jpg": two, "three.jpg": three}
    how = "most decide, and 1 ties are unknown" if votes == "majority" else f"taken as {votes}"
    assert f"people disagree on 3 labels: {how}" in found.notes


def test_reviews(tmp_path):
    path = write(
        tmp_path,
        task("a.jpg", annotation("cat", reviews=[{"accepted": True}])),
        task("b.jpg", annotation("dog", reviews=[{"accepted": False}])),
        task("c.jpg", annotation("cat")),
    )
    assert dense(read(path)) == {"a.jpg": [1], "b.jpg": [0], "c.jpg": [1]}
    found = read(path, reviewed=True)
    assert dense(found) == {"a.jpg": [1], "b.jpg": [0], "c.jpg": [0]}
    assert "1 annotations were rejected by a reviewer; left out" in found.notes
    assert "1 annotations were not reviewed; left out" in found.notes


def test_several_controls(tmp_path):
    boxes = {"from_name": "box", "type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["cat"]}}
    mixed = annotation("sharp", control="quality")
    mixed["result"] += [boxes, *annotation("dog")["result"]]
    path = write(tmp_path, task("a.jpg", mixed))
    with pytest.raises(InputError, match=r"in 2 controls: choice, quality; .* --from-name"):
        read(path)
    assert read(path, from_name="choice").labels.classes == ("dog",)
    with pytest.raises(InputError, match='no control "choise" with choices; did you mean "choice"'):
        read(path, from_name="choise")
    path = write(tmp_path, task("a.jpg", {"result": [boxes]}))
    with pytest.raises(InputError, match="no annotation has choices; there are only rectanglelabels"):
        read(path)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/data/local-files/?d=photos/a%20b.jpg", "photos/a b.jpg"),
        ("http://host:8080/data/local-files/?d=photos/a.jpg", "photos/a.jpg"),
        ("/data/upload/12/0f9e8d7c-a-b.jpg", "a-b.jpg"),
        ("/data/upload/old.jpg", "old.jpg"),
        ("https://host/x/a.jpg?token=1", "x/a.jpg"),
        ("gs://bucket/x/%C3%A4.jpg", "x/ä.jpg"),
        ("x/100%.jpg", "x/100%.jpg"),
        ("take:2.jpg", "take:2.jpg"),
    ],
)
def test_names_of_images(address, name):
    assert image_id(address) == name


BAD = {
    "a key": ('[{"annotations": []}]', 'record 1 of "tasks" has no "data"'),
    "no image": ('[{"data": {"picture": "a"}}]', 'task 1 has no "image" in its data; .* --image-key'),
    "an object": ('{"data": {}}', "the array"),
    "a number": ('[{"data": {"image": 3}}]', "image"),
    "no tasks": ("[]", "there are no tasks"),
    "null": (
        '[{"data": {"image": "a"}, "annotations": [{"result": [{"from_name": "c", "type": "choices", '
        '"value": {"choices": [null]}}]}]}]',
        "a choice is null",
    ),
    "a blank name": (
        '[{"data": {"image": "a"}, "annotations": [{"result": [{"from_name": "c", "type": "choices", '
        '"value": {"choices": [" "]}}]}]}]',
        "the name of a class is empty",
    ),
    "a cut file": ('[{"data": {"image": "a"}}, {"da', 'the file ends inside "tasks", after 1 records'),
    "nobody chose": ('[{"data": {"image": "a"}}]', "no class is named"),
    "more": ('[{"data": {"image": "a"}}] 3', "more after the end"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_sentence(tmp_path, name):
    text, sentence = BAD[name]
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=sentence) as error:
        read(tmp_path / "bad.json")
    assert str(error.value).startswith(str(tmp_path / "bad.json"))
    assert "\n" not in str(error.value)


def test_a_prefix_and_unknown_choices(tmp_path):
    path = write(tmp_path, task("https://host/x/a%20b.jpg", annotation("cat")))
    assert read(path, prefix="https://host/x/").labels.images.to_pylist() == ["a b.jpg"]
    with pytest.raises(InputError, match=r'"https://host/x/a%20b.jpg" does not begin with "s3://x/"'):
        read(path, prefix="s3://x/")
    with pytest.raises(InputError, match='there is no class "cat"; did you mean "cats"'):
        read(path, classes=["cats"])
    with pytest.raises(InputError, match="--unlisted absent"):
        read(path, empty="absent")


# ---- writing -----------------------------------------------------------------------------------------------


def test_labels_go_out_and_come_back(tmp_path):
    rng = np.random.default_rng(0)
    full = Labels.from_dense(
        np.where(rng.random((30, 3)) < 0.4, 1, -1),
        classes=["a b", "c", "d"],
        images=[f"f é/{n}.jpg" for n in range(30)],
    )
    out, prefix = tmp_path / "tasks.json", "/data/local-files/?d=photos/"
    done = package.publish(full, to="label-studio", out=out, prefix=prefix)
    assert (done.images, done.listed) == (30, int((full.dense() > 0).sum()))
    assert done.notes[0].endswith("labels are known to be absent, which label-studio cannot say; left out")
    back = read(out, prefix=prefix, classes=full.classes, unlisted="absent", empty="absent").labels
    assert back == full
    assert read(out).labels.images[0].as_py() == "photos/f é/0.jpg"


def test_probabilities_become_predictions(tmp_path):
    table = tmp_path / "completed.csv"
    table.write_text("image,cat,dog\na.jpg,0.9,0.25\nb.jpg,0.5,1\nc.jpg,0,0.1\n")
    out = tmp_path / "tasks.json"
    done = package.publish(probabilities=table, to="label-studio", out=out, threshold=0.5, model_version="v1")
    assert (done.images, done.listed, done.notes) == (3, 3, ())
    tasks = json.loads(out.read_text())
    assert [each["data"]["image"] for each in tasks] == ["a.jpg", "b.jpg", "c.jpg"]
    (second,) = tasks[1]["predictions"]
    assert (second["score"], second["model_version"]) == (0.75, "v1")
    assert second["result"][0]["value"] == {"choices": ["cat", "dog"]}
    assert tasks[2]["predictions"] == []
    with pytest.raises(InputError, match="no class is named"):  # predictions are no labels
        read(out)


def test_label_studio_itself_accepts_what_is_written(tmp_path):
    interface = pytest.importorskip(
        "label_studio_sdk.label_interface", reason="skipped: no label-studio-sdk"
    ).LabelInterface(CONFIG)
    labels = Labels.from_dense([[1, -1], [1, 1]], classes=["cat", "dog"], images=["a.jpg", "b.jpg"])
    package.publish(labels, to="label-studio", out=tmp_path / "labels.json")
    table = tmp_path / "p.csv"
    table.write_text("image,cat,dog\na.jpg,0.9,0.25\nb.jpg,0.5,1\n")
    package.publish(probabilities=table, to="label-studio", out=tmp_path / "p.json", threshold=0.5)
    for each in json.loads((tmp_path / "labels.json").read_text()):
        assert interface.validate_task({"data": each["data"]})
        assert all(interface.validate_annotation(one) for one in each["annotations"])
    for each in json.loads((tmp_path / "p.json").read_text()):
        assert interface.validate_task({"data": each["data"]})
        assert each["predictions"]
        assert all(interface.validate_prediction(one) for one in each["predictions"])
        wrong = json.loads(json.dumps(each["predictions"][0]).replace("cat", "fox"))
        assert not interface.validate_prediction(wrong)
