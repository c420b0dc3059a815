"""Images are matched by name: the order of a label file changes the order of what comes out, nothing else."""

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import tertium
from tertium.data.feature_files import write_feature_names
from tertium.labels import Labels
from tertium.labels.readers import write_labels

COUNT, CLASSES = 24, ("bee", "cat", "dog")
ORDERS = st.permutations(range(COUNT))
KNOBS = settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run on named features, one on images, both also exported; and partly known labels."""
    folder = tmp_path_factory.mktemp("order")
    rng = np.random.default_rng(0)
    names = [f"{number:02d}.png" for number in range(COUNT)]
    features = rng.normal(size=(COUNT, 5)).astype(np.float32)
    np.save(folder / "x.npy", features)
    write_feature_names(folder / "x.npy", features, names, {})
    (folder / "photos").mkdir()
    for name, row in zip(names, features, strict=True):
        colour = tuple(int(value) for value in (128 + 40 * row[:3]).clip(0, 255))
        Image.new("RGB", (16, 16), colour).save(folder / "photos" / name)
    known = np.where(rng.random((COUNT, 3)) < 0.7, np.where(features[:, :3] > 0, 1, -1), 0)
    labels = Labels.from_dense(known, classes=CLASSES, images=names)
    for kind in ("features", "images"):
        out = folder / f"on-{kind}"
        tertium.train(labels, **inputs(folder, kind), out=out, epochs=2, image_size=32, validation=0.0)
        tertium.export(out, out=folder / f"{kind}.onnx")
    return folder, labels


def inputs(folder, kind):
    return {kind: folder / ("x.npy" if kind == "features" else "photos")}


def rows_of(path):
    """Return what a table says of each image, in its order."""
    table = pyarrow.csv.read_csv(path).to_pydict()
    return {name: [table[each][row] for each in CLASSES] for row, name in enumerate(table["image"])}


def models(folder, kind):
    return {"run": folder / f"on-{kind}", "onnx": folder / f"{kind}.onnx"}


@pytest.mark.parametrize("model", ["run", "onnx"])
@pytest.mark.parametrize("kind", ["features", "images"])
@KNOBS
@given(order=ORDERS)
def test_predict(world, tmp_path, kind, model, order):
    folder, labels = world
    place = models(folder, kind)[model]
    plain = tertium.predict(place, **inputs(folder, kind), labels=labels)
    write_labels(labels[np.array(order)], tmp_path / "moved.csv")
    moved = tertium.predict(place, **inputs(folder, kind), labels=tmp_path / "moved.csv")
    assert moved.images == [plain.images[row] for row in order]
    np.testing.assert_allclose(moved.probabilities, plain.probabilities[order], atol=1e-6)


def test_the_command_with_an_exported_model(world, tmp_path, tertium):
    """Row names beside the features were once ignored here: images got each other's probabilities."""
    folder, labels = world
    order = np.random.default_rng(3).permutation(COUNT)
    write_labels(labels[order], tmp_path / "moved.csv")
    tables = []
    for number, words in enumerate(([], ["--labels", tmp_path / "moved.csv"])):
        out = tmp_path / f"{number}.csv"
        command = ["predict", folder / "features.onnx", "--features", folder / "x.npy", *words, "--out", out]
        assert tertium(*command)[0] == 0
        tables.append(rows_of(out))
    assert list(tables[1]) == [labels.images[int(row)].as_py() for row in order]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("model", ["run", "onnx"])
@pytest.mark.parametrize("kind", ["features", "images"])
@KNOBS
@given(order=ORDERS)
def test_evaluate(world, kind, model, order):
    folder, labels = world
    place = models(folder, kind)[model]
    plain, moved = (
        tertium.evaluate(place, each, **inputs(folder, kind)).evaluation
        for each in (labels, labels[np.array(order)])
    )
    np.testing.assert_allclose(moved.ap, plain.ap, atol=1e-9)
    assert moved.map_c == pytest.approx(plain.map_c, abs=1e-9)


@pytest.mark.parametrize("kind", ["features", "images"])
@KNOBS
@given(order=ORDERS)
def test_complete_and_suggest(world, tmp_path, kind, order):
    folder, labels = world
    run = folder / f"on-{kind}"
    rows = []
    for each in (labels, labels[np.array(order)]):
        tertium.complete(run, each, **inputs(folder, kind), out=tmp_path / "done.csv")
        rows.append(rows_of(tmp_path / "done.csv"))
    assert rows[0].keys() == rows[1].keys()
    for name, chances in rows[0].items():
        assert chances == pytest.approx(rows[1][name], abs=1e-5)
    first, second = (
        tertium.suggest(run, each, **inputs(folder, kind), budget=5)
        for each in (labels, labels[np.array(order)])
    )
    assert first.score == pytest.approx(second.score, abs=1e-5)


@pytest.mark.parametrize("kind", ["features", "images"])
def test_train(world, tmp_path, kind):
    """One batch holds all rows, so that their order says nothing."""
    folder, labels = world
    order = np.random.default_rng(5).permutation(COUNT)
    found = []
    for number, each in enumerate((labels, labels[order])):
        plan = {"method": "ignore", "epochs": 3, "batch_size": 64, "image_size": 32, "validation": 0.0}
        tertium.train(each, **inputs(folder, kind), out=tmp_path / str(number), **plan)
        found.append(tertium.load(tmp_path / str(number)).predict_proba(**inputs(folder, kind)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
