"""Copies of images never stand on both sides, and what a model has seen is said."""

import shutil

import numpy as np
import pytest
from PIL import Image

import tertium as package
from tertium.data.identity import contents, load_contents, save_contents
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.labels.splits import divide
from tertium.runs import RunFolder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty photos of noise, each under three names, with labels that mean nothing."""
    folder = tmp_path_factory.mktemp("copies")
    rng = np.random.default_rng(0)
    (folder / "photos").mkdir()
    names, values = [], []
    for number in range(40):
        pixels = rng.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
        value = np.where(rng.random(3) < 0.5, 1, -1)
        for copy in range(3):
            names.append(f"{copy}-{number:02d}.png")
            values.append(value)
            Image.fromarray(pixels).save(folder / "photos" / names[-1])
    labels = Labels.from_dense(np.array(values), classes=["a", "b", "c"], images=names)
    write_labels(labels, folder / "labels.csv")
    return folder, labels


def test_copies_have_one_content(photos):
    folder, labels = photos
    found = contents(open_inputs(folder / "photos", names=labels.images.to_pylist()))
    assert len(np.unique(found)) == 40
    assert (found.reshape(40, 3) == found[::3, None]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_features(rng, dtype):
    features = rng.normal(size=(5000, 7)).astype(dtype)
    features[4999] = features[3]
    found = contents(open_inputs(features=features))
    assert found[4999] == found[3]
    assert len(np.unique(found)) == 4999
    np.testing.assert_array_equal(contents(open_inputs(features=np.asfortranarray(features))), found)


def test_a_division_keeps_copies_together():
    same = np.arange(900) % 450
    first, second = divide([str(row) for row in range(900)], 0.2, 0, same)
    assert sorted([*first, *second]) == list(range(900))
    assert not set(same[first]) & set(same[second])
    assert 130 <= len(second) <= 230


def test_meaningless_labels_of_copies_validate_as_such(photos, tmp_path, tertium):
    """With copies on both sides this came out at 100."""
    folder, _ = photos
    words = ("--labels", folder / "labels.csv", "--images", folder / "photos", "--out", tmp_path / "run")
    code, _, errors = tertium(
        "train", *words, "image_size=32", "--method", "bce", "epochs=20", "validation=0.3"
    )
    assert code == 0
    assert "80 images are copies of others; all copies of one validate, or none" in " ".join(errors.split())
    assert RunFolder.open(tmp_path / "run").summary()["validation_score"] < 0.85


def test_splits_of_the_file_that_share_images_are_said(photos, tmp_path, tertium):
    folder, labels = photos
    lines = ["image,present,absent,split"]
    for name, row in zip(labels.images.to_pylist(), labels.dense(), strict=True):
        shown = [";".join(np.array(labels.classes)[row == sign]) for sign in (1, -1)]
        lines.append(f"{name},{shown[0]},{shown[1]},{'val' if name.startswith('0') else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    words = ("--labels", tmp_path / "labels.csv", "--images", folder / "photos", "--out", tmp_path / "run")
    code, _, errors = tertium("train", *words, "image_size=32", "--method", "ignore", "epochs=1")
    assert code == 0
    assert "40 of 40 validation images are copies of training images" in " ".join(errors.split())


def test_evaluate_says_what_was_seen(photos, tmp_path, tertium):
    folder, labels = photos
    one, other = labels[np.arange(0, 60)], labels[np.arange(30, 90)]
    write_labels(one, tmp_path / "one.csv")
    write_labels(other, tmp_path / "other.csv")
    plan = {"method": "ignore", "epochs": 1, "image_size": 32, "validation": 0.0}
    package.train(tmp_path / "one.csv", folder / "photos", out=tmp_path / "run", **plan)
    shutil.copytree(folder / "photos", tmp_path / "moved")  # another folder: by content, not by path
    done = package.evaluate(tmp_path / "run", tmp_path / "other.csv", tmp_path / "moved")
    assert (done.images, done.seen) == (60, 30)
    rest = package.evaluate(tmp_path / "run", labels[np.arange(60, 90)], tmp_path / "moved")
    assert (rest.seen, rest.unseen) == (0, None)
    assert done.unseen.map_c == pytest.approx(rest.evaluation.map_c)
    words = ("--labels", tmp_path / "other.csv", "--images", tmp_path / "moved")
    code, out, _ = tertium("evaluate", tmp_path / "run", *words)
    assert code == 0
    assert "trained or validated on 30 of these images; mAP(C) without them: " in " ".join(out.split())


def test_what_was_seen_is_kept_whole(tmp_path):
    save_contents(tmp_path / "images.npz", np.array([7, 3, 7], np.uint64), np.array([5], np.uint64))
    assert load_contents(tmp_path / "images.npz").tolist() == [3, 5, 7]
    assert load_contents(tmp_path / "images.npz", "training").tolist() == [3, 7]
    np.savez_compressed(tmp_path / "images.npz", contents=np.array([9], np.uint64))  # an earlier version
    assert load_contents(tmp_path / "images.npz", "training").tolist() == [9]
    assert load_contents(tmp_path / "none.npz") is None
    (tmp_path / "images.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"images\.npz: was changed"):
        load_contents(tmp_path / "images.npz")
