"""What a run keeps of its validation images gives back the figures of the full scores."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.metrics.evaluation import evaluate
from tertium.metrics.scored import Scored


def collected(scores, labels, thresholds, cuts=(3,)):
    return Scored.collect(np.split(scores, cuts), Labels.from_dense(labels), thresholds)


@given(seed=st.integers(0, 10**6), images=st.integers(1, 30), classes=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_figures_are_those_of_the_full_scores(seed, images, classes):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 8, (images, classes)).astype(np.float32) / 7  # with ties
    labels = rng.integers(-1, 2, (images, classes)).astype(np.int8)
    labels[:, rng.random(classes) < 0.3] = np.abs(labels[:, [0]])  # some classes are known absent nowhere
    thresholds, annotations = rng.random(classes), rng.integers(0, 9, classes)
    scored = collected(scores, labels, thresholds, (images // 2,))
    full = evaluate(scores, labels, thresholds, annotations).to_dict()
    assert scored.evaluate(annotations).to_dict() == full
    np.testing.assert_array_equal(scored.blind, ~(labels < 0).any(axis=0))
    ranked = scored.against_the_rest().evaluate().ap
    for column in range(classes):
        present = labels[:, column] > 0
        judged = not (labels[:, column] < 0).any() and present.any() and not present.all()
        expected = average_precision_score(present, scores[:, column]) if judged else np.nan
        np.testing.assert_allclose(ranked[column], expected, rtol=1e-6)


def test_of_too_many_labels_those_of_evenly_spread_images_are_kept(monkeypatch, rng):
    monkeypatch.setattr("tertium.metrics.scored._ENTRIES", 40)
    scores, labels = rng.random((50, 3)), rng.choice([-1, 1], (50, 3)).astype(np.int8)
    scored = collected(scores, labels, np.full(3, 0.5), (7, 8, 33))
    assert scored.images.tolist() == [13, 50]
    found = np.full((13, 3), np.nan)
    found[scored.row, scored.column] = scored.score
    np.testing.assert_allclose(found, scores[::4], rtol=1e-6)
    np.testing.assert_array_equal(scored.sign, labels[::4].ravel())


def test_it_is_read_back(tmp_path, rng):
    assert Scored.of_run(tmp_path) is None
    scored = collected(rng.random((9, 2)), rng.integers(-1, 2, (9, 2)).astype(np.int8), np.array([0.2, 0.7]))
    scored.save(tmp_path)
    again = Scored.of_run(tmp_path)
    for field in fields(Scored):
        one, two = getattr(scored, field.name), getattr(again, field.name)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def test_a_damaged_file_is_named(tmp_path, rng):
    collected(rng.random((40, 2)), rng.choice([-1, 1], (40, 2)).astype(np.int8), np.ones(2)).save(tmp_path)
    path = tmp_path / "validation.npz"
    content = path.read_bytes()
    before = Scored.of_run(tmp_path)
    noticed = 0
    for _ in range(150):
        changed = bytearray(content)
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            found = Scored.of_run(tmp_path)
        except InputError as error:
            noticed += "validation.npz: was changed" in str(error)
        else:  # times and attributes in the archive say nothing
            for field in fields(Scored):
                np.testing.assert_array_equal(getattr(found, field.name), getattr(before, field.name))
    assert noticed > 75
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged"):
        Scored.of_run(tmp_path)
