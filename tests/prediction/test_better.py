"""Whether a model got better: on the same images, without those that either was trained on."""

import csv
import json

import numpy as np
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.metrics.evaluation import evaluate
from tertium.metrics.scored import Scored
from tertium.prediction.better import Better, sentence
from tertium.runs import RunFolder

CLASSES = ["cat", "dog", "fox"]
COUNT, TEST = 500, 300


def labels_of(features, names, share, rng):
    full = np.where(features[:, :3] + 0.5 * rng.normal(size=(len(features), 3)) > 0.5, 1, -1)
    return Labels.from_dense(
        full * (rng.random(full.shape) < share), classes=CLASSES, images=[f"{name:04d}.jpg" for name in names]
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run on 500 images with few labels; one with all of them; test images."""
    folder = tmp_path_factory.mktemp("better")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(COUNT + TEST, 12)).astype(np.float32)
    full = labels_of(features, range(COUNT + TEST), 1.0, rng)
    hidden = np.where(rng.random(full.shape) < 0.15, full.dense(), 0)
    few = Labels.from_dense(hidden, classes=CLASSES, images=full.images.to_pylist())
    taught = np.arange(COUNT)
    plan = {"features": features[:COUNT], "method": "ignore", "epochs": 15, "lr": 0.01}
    package.train(few[taught], out=folder / "old", **plan)
    package.train(full[taught], out=folder / "new", **plan)
    return folder, features, full, few


def test_validation_images_that_both_have(world):
    folder, features, _, few = world
    found = package.better(folder / "old", folder / "new")
    names = RunFolder.open(folder / "old").data().validation
    rows = few.rows_of(names)
    labelled = rows[(few.dense(rows) != 0).any(axis=1)]
    assert found.paired.images == len(labelled)
    assert found.left_out == 0
    for name, figure in (("old", found.paired.map_c.old), ("new", found.paired.map_c.new)):
        trained = package.load(folder / name)
        expected = evaluate(trained.predict_proba(features=features[labelled]), few.dense(labelled))
        assert figure == pytest.approx(expected.map_c, abs=1e-6)


def test_test_images_are_judged_without_those_that_were_trained_on(world, tmp_path):
    folder, features, full, _ = world
    plan = {"features": features, "out": tmp_path / "better.json"}
    found = package.better(folder / "old", folder / "new", full, **plan)
    data = RunFolder.open(folder / "old").data()
    assert found.left_out == data.training_images
    rest = np.array(
        [row for row, name in enumerate(full.images.to_pylist()) if row >= COUNT or name in data.validation]
    )
    assert found.paired.images == len(rest) == TEST + data.validation_images
    old = package.load(folder / "old")
    expected = evaluate(old.predict_proba(features=features[rest]), full.dense(rest), old.thresholds)
    assert found.paired.map_c.old == pytest.approx(expected.map_c, abs=1e-6)
    assert found.paired.mF1.old == pytest.approx(expected.mF1, abs=1e-6)
    written = json.loads((tmp_path / "better.json").read_text())
    assert written["map_c"]["difference"] == pytest.approx(found.paired.map_c.gain)
    assert written["words"] == found.words()
    with open(tmp_path / "better.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["class"] for row in rows} == set(CLASSES)
    assert all(float(row["low"]) <= float(row["difference"]) <= float(row["high"]) for row in rows)


def test_labels_that_turned_up_later_count_where_both_have_scores():
    """A class without known absences keeps the scores of its unknown labels."""
    names = ["a", "b", "c", "d"]
    old = Labels.from_dense([[1], [0], [0], [0]], classes=["x"], images=names)
    new = Labels.from_dense([[1], [-1], [1], [-1]], classes=["x"], images=names)
    scores = np.array([[0.9], [0.8], [0.2], [0.1]], dtype=np.float32), np.array([[0.9], [0.1], [0.8], [0.2]])
    cuts = np.array([0.5])
    scored = [Scored.collect([block], part, cuts) for block, part in zip(scores, (old, new), strict=True)]
    from tertium.prediction.better import paired_scores

    found = paired_scores(scored, [names, names])
    assert found.images == 4
    assert (found.map_c.old, found.map_c.new) == (pytest.approx((1 + 2 / 3) / 2), 1.0)


def test_images_and_classes_are_matched_by_name():
    from tertium.prediction.better import paired_scores

    rng = np.random.default_rng(3)
    values, scores = rng.choice([-1, 1], size=(40, 2)).astype(np.int8), rng.random((40, 2)).astype(np.float32)
    names = [f"{number}.jpg" for number in range(40)]
    first = Labels.from_dense(values, classes=["x", "y"], images=names)
    order = rng.permutation(40)[:30]
    second = Labels.from_dense(values[order][:, ::-1], classes=["y", "x"], images=[names[r] for r in order])
    one = Scored.collect([scores], first, np.array([0.3, 0.6]))
    other = Scored.collect([scores[order][:, ::-1]], second, np.array([0.6, 0.3]))
    found = paired_scores([one, other], [names, second.images.to_pylist()])
    assert found.images == 30
    assert found.map_c.gain == found.mF1.gain == 0
    expected = evaluate(scores[order], values[order], np.array([0.3, 0.6]))
    assert found.mF1.old == pytest.approx(expected.mF1)


def test_a_run_that_is_an_exported_file_is_compared_on_labels(world, tmp_path):
    pytest.importorskip("onnxruntime")
    folder, features, full, _ = world
    package.export(folder / "new", to="onnx", out=tmp_path / "new.onnx")
    test = np.arange(COUNT, COUNT + TEST)
    found = package.better(folder / "old", tmp_path / "new.onnx", full[test], features=features[test])
    direct = package.better(folder / "old", folder / "new", full[test], features=features[test])
    assert found.paired.map_c.gain == pytest.approx(direct.paired.map_c.gain, abs=1e-4)
    with pytest.raises(InputError, match="only run folders keep scores"):
        package.better(folder / "old", tmp_path / "new.onnx")


def test_runs_without_a_common_validation_image_are_refused(world, tmp_path):
    folder, features, full, _ = world
    held_out = set(RunFolder.open(folder / "old").data().validation)
    other = [row for row in range(COUNT) if full.images[row].as_py() not in held_out]
    plan = {"features": features[other], "method": "ignore", "epochs": 1, "seed": 3}
    package.train(full[other], out=tmp_path / "other", **plan)
    with pytest.raises(InputError, match="no validation image in common"):
        package.better(folder / "old", tmp_path / "other")


def test_images_that_were_all_trained_on_are_refused(world):
    folder, features, full, _ = world
    held_out = set(RunFolder.open(folder / "old").data().validation)
    rows = np.array([row for row in range(COUNT) if full.images[row].as_py() not in held_out])
    with pytest.raises(InputError, match="trained on each of the"):
        package.better(folder / "old", folder / "new", full[rows], features=features[rows])


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.004, 0.02, "new is better by 1.2 mAP (90 % interval 0.4 to 2.0), on the same 412 images."),
        (-0.02, -0.004, "new is worse by 1.2 mAP (90 % interval 0.4 to 2.0), on the same 412 images."),
        (-0.01, 0.014, "No difference can be told: +0.2 mAP (90 % interval −1.0 to 1.4), on the same 412"),
    ],
)
def test_in_words(low, high, said):
    from tertium.metrics.paired import ClassDifference, Difference, Paired

    figure = Difference(0.5, 0.5 + (low + high) / 2, low, high)
    paired = Paired(412, figure, figure, (ClassDifference("x", figure, 1, 1),))
    assert sentence(paired, "new").startswith(said)
    assert Better("old", "new", "somewhere", 0, (), paired).words().startswith(said)


def test_the_command(world, tmp_path, tertium):
    folder, features, full, _ = world
    write_labels(full, tmp_path / "full.csv")
    np.save(tmp_path / "x.npy", features)
    words = (
        "--labels",
        tmp_path / "full.csv",
        "--features",
        tmp_path / "x.npy",
        "--out",
        tmp_path / "b.json",
    )
    code, out, _ = tertium("better", folder / "old", folder / "new", *words)
    said = " ".join(out.split())
    assert code == 0
    assert "is better by" in said
    assert "that either was trained on" in said
    assert (tmp_path / "b.csv").is_file()
    assert tertium("better", folder / "old", folder / "new", *words)[0] == 2  # the files are there
    code, out, _ = tertium("better", folder / "old", folder / "new")
    assert code == 0
    assert "on the same" in " ".join(out.split())
    code, _, errors = tertium("better", folder / "old", folder / "new", "--features", tmp_path / "x.npy")
    assert code == 2
    assert "give labels" in " ".join(errors.split())
