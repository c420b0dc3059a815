"""Scores that come block by block give what all of them at once give."""

import tempfile
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.metrics import evaluation as metrics
from tertium.metrics import ranking
from tertium.metrics.ranking import KnownScores
from tests.metrics.test_metrics import probabilities, problems, random_problem, ties


def evaluate_in_blocks(scores, labels, classes, shares, block, thresholds=None):
    """Add the scores of the last share first, in blocks; the first share evaluates."""
    with tempfile.TemporaryDirectory() as folder:
        for number in reversed(range(len(shares))):
            with KnownScores(labels, classes, folder, shares, number) as known:
                for start in range(shares[number].start, shares[number].stop, block):
                    known.add(scores[start : min(start + block, shares[number].stop)])
                known.close()
        return metrics.evaluate_known(known, thresholds)


@settings(max_examples=100, deadline=None)
@given(problems(probabilities | ties), st.data())
def test_blocks_give_what_all_scores_give(problem, data):
    scores, labels = problem
    scores = scores.astype(np.float32)
    count, width = labels.shape
    names = [f"class {column}" for column in range(width)]
    order = data.draw(st.permutations(range(width)))
    edges = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    shares = [range(*pair) for pair in pairwise([0, *edges, count])]
    thresholds = data.draw(st.lists(probabilities, min_size=width, max_size=width))
    held, size = (data.draw(st.sampled_from([1, 7, 2**20])) for _ in range(2))
    truth = Labels.from_dense(labels[:, order], classes=[names[column] for column in order])
    with mock.patch.multiple(ranking, _HELD=held, _SORTED=size):
        found = evaluate_in_blocks(scores, truth, names, shares, data.draw(st.integers(1, 9)), thresholds)
    expected = metrics.evaluate(scores, Labels.from_dense(labels, classes=names), thresholds)
    assert found.to_dict() == expected.to_dict()


def test_classes_without_scores_are_left_out():
    scores, labels = random_problem(50, 3, 0.6, 0.4)
    truth = Labels.from_dense(labels, classes=["cat", "yak", "dog"])
    found = evaluate_in_blocks(scores[:, :2], truth, ["dog", "cat"], [range(50)], 8)
    expected = metrics.evaluate(scores[:, :2], np.ascontiguousarray(labels[:, [2, 0]]))
    assert found.ap.tolist() == expected.ap.tolist()
    assert found.positives.tolist() == expected.positives.tolist()


def test_blocks_are_checked(tmp_path):
    scores, labels = random_problem(50, 3, 0.6, 0.4)
    labels[33, 2] = 1
    truth = Labels.from_dense(labels, classes=["cat", "dog", "fox"])
    known = KnownScores(truth, truth.classes, tmp_path)
    known.add(scores[:30])
    with pytest.raises(InputError, match=r"\(21, 3\) do not fit the labels from row 30 on"):
        known.add(np.zeros((21, 3), np.float32))
    with pytest.raises(InputError, match="30 of 50 rows were scored"):
        known.close()
    scores[33, 2] = np.nan
    with pytest.raises(InputError, match=r'class 2 \("fox"\) in row 33 is NaN'):
        known.add(scores[30:])
    scores[33, 2] = 0.5
    known.add(scores[30:])
    known.close()
    assert metrics.evaluate_known(known).to_dict() == metrics.evaluate(scores, truth).to_dict()
    (tmp_path / "0.keys").write_bytes(b"")
    with pytest.raises(InputError, match="known labels are missing"):
        metrics.evaluate_known(known)
