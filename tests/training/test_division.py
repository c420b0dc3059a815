"""Which images validate: what their names and the seed say, whatever else changes."""

import numpy as np
import pytest

import tertium
from tertium.labels import Labels
from tertium.labels.splits import divide
from tertium.progress import Progress
from tertium.runs import RunFolder
from tertium.schemes import parse

COUNT, WIDTH = 300, 4
PLAN = {"method": "ignore", "epochs": 1}


class Notes(Progress):
    """What was said."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(COUNT, WIDTH)).astype(np.float32)
    full = np.where(features[:, :3] > 0.3, 1, -1)
    names = [f"{number:04d}.jpg" for number in range(COUNT)]
    return features, Labels.from_dense(full, classes=["a", "b", "c"], images=names)


def validated(labels, features, out, **words):
    tertium.train(labels, features=features, out=out, **PLAN, **words)
    return set(RunFolder.open(out).data().validation)


def test_answers_more_images_and_another_order_move_nobody(data, tmp_path):
    features, full = data
    partial = parse("random:0.2").apply(full, 0)
    first = validated(partial, features, tmp_path / "first")
    dense, truth = partial.dense(), full.dense()
    unknown = np.argwhere(dense == 0)[:49]
    dense[tuple(unknown.T)] = truth[tuple(unknown.T)]  # 49 answers
    answered = Labels.from_dense(dense, classes=full.classes, images=full.images.to_pylist())
    assert validated(answered, features, tmp_path / "answered") == first
    order = np.random.default_rng(1).permutation(COUNT)
    assert validated(answered[order], features[order], tmp_path / "order") == first
    some = np.arange(200)
    fewer = validated(partial[some], features[some], tmp_path / "fewer")
    assert fewer == first & set(partial[some].images.to_pylist())


def test_a_seed_divides_in_its_own_way(data, tmp_path):
    features, full = data
    assert validated(full, features, tmp_path / "a", seed=1) != validated(full, features, tmp_path / "b")


def test_a_class_that_only_validates_is_named(data):
    features, full = data
    dense = full.dense()
    held_out = divide(full.images, 0.15, 0)[1]
    dense[:, 1] = -1
    dense[held_out[:2], 1] = 1
    notes = Notes()
    labels = Labels.from_dense(dense, classes=full.classes, images=full.images.to_pylist())
    tertium.train(labels, features=features, progress=notes, **PLAN)
    said = [line for line in notes.lines if "validation images alone" in line]
    assert len(said) == 1
    assert "1 class is known present in validation images alone" in said[0]
    assert "no example: b." in said[0]


def test_splits_of_the_user_hold(data, tmp_path):
    features, full = data
    lines = ["image,present,absent,split"]
    for number, name in enumerate(full.images.to_pylist()):
        lines.append(f"{name},a,b,{'val' if number % 10 == 0 else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    found = validated(tmp_path / "labels.csv", features, tmp_path / "run")
    assert found == set(full.images.to_pylist()[::10])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_handful_of_images_trains_and_validates(data, count):
    features, full = data
    found = tertium.train(full[:count], features=features[:count], **PLAN).summary
    assert found["validation_images"] >= 1
    assert found["training_images"] >= 1


def test_a_run_goes_on_with_the_part_that_it_began_with(data, tmp_path, monkeypatch):
    """So does one that another rule has divided, as those of earlier versions were."""
    features, full = data

    def other_rule(images, fraction, seed, same=None):
        rows = np.arange(len(images))
        return rows[rows % 7 != 0], rows[rows % 7 == 0]

    def stop(model):
        raise KeyboardInterrupt

    monkeypatch.setattr("tertium.training.parts.divide", other_rule)
    with pytest.raises(KeyboardInterrupt):
        tertium.train(full, features=features, out=tmp_path / "run", watch=stop, **PLAN)
    monkeypatch.undo()
    done = tertium.resume(tmp_path / "run", full, features=features)
    assert done.summary["validation_images"] == -(-COUNT // 7)
