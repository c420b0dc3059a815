"""Chances of unknown labels: right where the truth is known, and checked on what no fit has seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium.annotation import calibration
from tertium.annotation.calibration import (
    Chances,
    calibrate,
    posterior,
    present_range,
    shifted,
    thresholds,
    told_by_answers,
)
from tertium.annotation.record import Annotation
from tertium.labelling import prepared
from tertium.labels import Labels
from tertium.metrics.evaluation import best_thresholds, calibration_error, evaluate
from tests.labelling.test_completion import CLASSES, observed, sigmoid

# ---- the posterior -----------------------------------------------------------------------------------------


@given(*(st.floats(0.001, 0.999) for _ in range(3)))
def test_posterior_counts_as_many_images_would(p, present, absent):
    """Of a million labels, those that stay unknown, told one kind after the other."""
    present_labels, absent_labels = 1e6 * p, 1e6 - 1e6 * p
    unknown_present = present_labels - present_labels * present
    unknown_absent = absent_labels - absent_labels * absent
    expected = unknown_present / (unknown_present + unknown_absent)
    assert posterior(p, present, absent) == pytest.approx(expected, rel=1e-6)


def test_posterior_of_drawn_labels(rng):
    p = rng.random(200_000)
    truth = np.where(rng.random(p.shape) < p, 1, -1)
    unknown = observed(rng, truth, 0.7, 0.2) == 0
    chance = posterior(p, 0.7, 0.2)
    for low in (0.1, 0.3, 0.5, 0.7):
        here = unknown & (chance > low) & (chance <= low + 0.2)
        assert (truth[here] > 0).mean() == pytest.approx(chance[here].mean(), abs=0.02)


def test_certain_annotation_leaves_nothing_present():
    assert posterior(0.5, 1.0, 0.2) < 1e-5
    assert posterior(0.5, 1.0, 1.0) == pytest.approx(0.5)


# ---- calibration -------------------------------------------------------------------------------------------


def distorted(rng, scale, shift, present, absent, images=2000):
    """Scores whose logits must be scaled and shifted back to tell the truth."""
    logits = rng.normal(-1, 2, size=(images, len(shift)))
    p = sigmoid(logits)
    truth = np.where(rng.random(p.shape) < p, 1, -1).astype(np.int8)
    scores = sigmoid((logits - shift) / scale)
    return scores, observed(rng, truth, present, absent), p, truth


@pytest.mark.parametrize(
    ("present", "absent"), [(0.3, 0.3), (0.6, 0.1), (0.5, 0.0)], ids=["dropped", "sought", "positives"]
)
def test_calibration_recovers_a_distortion(rng, present, absent):
    shift = np.array([0.8, 1.1, 0.9, 1.4])
    scores, labels, p, _ = distorted(rng, 0.6, shift, present, absent)
    found = calibrate(scores, labels, np.full(4, present), np.full(4, absent))
    assert found.scale == pytest.approx(0.6, abs=0.08)
    np.testing.assert_allclose(found.shift, shift, atol=0.35)
    assert np.abs(found.calibrated(scores) - p).mean() < 0.3 * np.abs(scores - p).mean()


@pytest.mark.parametrize(
    ("present", "absent"), [(0.1, 0.1), (0.6, 0.02), (0.3, 0.0)], ids=["dropped", "sought", "positives"]
)
def test_thresholds_are_nearly_those_of_full_labels(rng, monkeypatch, present, absent):
    monkeypatch.setattr(calibration, "_BLOCK", 5000)  # so that the classes come in parts
    scores, labels, _, truth = distorted(rng, 0.6, np.array([0.8, 1.1, 0.9, 1.4]), present, absent)
    known = np.full(4, present), np.full(4, absent)
    assumed = np.where(labels == 0, -1, labels) if absent == 0 else labels  # what can be done without e⁺, e⁻
    ours, theirs, best = (
        evaluate(scores, truth, cuts).mF1
        for cuts in (
            thresholds(scores.astype(np.float32), Labels.from_dense(labels), *known),
            best_thresholds(scores, assumed),
            best_thresholds(scores, truth),
        )
    )
    assert ours > best - 0.01
    assert ours > theirs - 0.001


def test_calibration_is_the_top_of_the_likelihood(rng):
    """No other scale or shift of a class explains the labels better, prior included."""
    scores, labels, *_ = distorted(rng, 1.5, np.array([0.5, -0.5, 0.2]), 0.6, 0.2, images=300)
    present, absent = np.full(3, 0.6), np.full(3, 0.2)
    found = calibrate(scores, labels, present, absent)

    def slow(scale, shift):
        """With the common shift where the classes' own are least drawn: in the middle of all, nearly."""
        total = 0.0
        for row in range(len(labels)):
            for column in range(3):
                score = scores[row, column]
                p = 1 / (1 + np.exp(-(scale * np.log(score / (1 - score)) + shift[column])))
                seen = {1: 0.6 * p, -1: 0.2 * (1 - p), 0: 0.4 * p + 0.8 * (1 - p)}
                total += np.log(seen[int(labels[row, column])])
        common = np.sum(shift) / 0.25 / (3 / 0.25 + 1 / 4)
        return total - (scale - 1) ** 2 / 2 - common**2 / 8 - np.sum((shift - common) ** 2) / 0.5

    best = slow(found.scale, found.shift)
    for change in (-0.05, 0.05):
        assert slow(found.scale + change, found.shift) < best
        for column in range(3):
            assert slow(found.scale, found.shift + change * np.eye(3)[column]) < best


def test_a_class_with_few_known_labels_takes_the_common_shift(rng):
    scores, labels, *_ = distorted(rng, 1.0, np.append(np.ones(15), -0.5), 0.5, 0.5)
    even = np.full(16, 0.5)
    assert calibrate(scores, labels, even, even).shift[15] < 0
    labels[9:, 15] = 0
    assert 0 < np.count_nonzero(labels[:, 15]) < calibration._ENOUGH
    found = calibrate(scores, labels, even, even)
    assert found.shift[15] == pytest.approx(found.shift[:15].mean(), abs=0.1)


def test_the_calibration_error_falls(rng):
    scores, labels, _, truth = distorted(rng, 0.5, np.full(4, 1.0), 0.6, 0.2)
    present, absent = np.full(4, 0.6), np.full(4, 0.2)
    _, checked = prepared._calibrated(
        scores, labels, Annotation(tuple(CLASSES), present, present, present, present, absent)
    )
    assert checked.ece_after < 0.3 * checked.ece_before
    hidden = np.where(labels == 0, truth, 0).astype(np.int8)  # what no fit has seen
    plain = Chances(1.0, np.zeros(4), present, absent).unknown(scores)
    before, after = (calibration_error(each, hidden) for each in (plain, checked.unknown))
    assert after < 0.02
    assert before > 0.05


def test_what_is_checked_was_not_fitted(rng, monkeypatch):
    scores, labels, *_ = distorted(rng, 1.0, np.zeros(4), 0.5, 0.5, images=90)
    seen = []
    monkeypatch.setattr(
        calibration,
        "calibrate",
        lambda scores, labels, *rest: seen.append(scores) or Chances(1.0, np.zeros(4), *rest),
    )
    chances = Chances(1.0, np.zeros(4), np.full(4, 0.5), np.full(4, 0.5))
    calibration.check(scores, labels, chances, True)
    assert [len(part) for part in seen] == [60, 60, 60]
    left_out = [set(map(tuple, scores)) - set(map(tuple, part)) for part in seen]
    assert sum(map(len, left_out)) == len(set.union(*left_out)) == 90


# ---- answers, and how many labels are present --------------------------------------------------------------


def answered(rng, sought, share, asked=50, classes=20):
    """Return what answers make of a chance of 44 %, if this share of them is present; the mean of classes."""
    columns = rng.integers(0, classes, asked)
    present = np.arange(asked) < round(share * asked)
    told = told_by_answers(np.full(asked, 0.44), columns, rng.permutation(present), classes, sought)
    return shifted(np.full(classes, 0.44), told).mean()


@pytest.mark.parametrize("sought", [0.0, 0.3, 1.0])
def test_after_fifty_answers_a_chance_of_44_percent_is_not_96(rng, sought):
    assert answered(rng, sought, 0.96) > 0.8
    assert answered(rng, sought, 0.04) < 0.2
    assert answered(rng, sought, 0.44) == pytest.approx(0.44, abs=0.03)


def test_few_answers_move_little(rng):
    assert 0.44 < answered(rng, 1.0, 1.0, asked=2) < 0.85


def counted(sought):
    """A thousand labels known to be present of some two thousand, and their annotation."""
    rate, ones = np.full(10, 0.2), np.ones(10)
    return Annotation(
        tuple("abcdefghij"), rate, rate / 1.2, rate * 1.2, 0.5 * ones, 0.5 * (1 - sought) * ones
    )


def test_the_count_has_a_range_that_reaches_further_up_where_annotators_may_have_chosen():
    tight, wide = (present_range(1000, 9000, 1000.0, counted(sought)) for sought in (0.0, 1.0))
    assert 700 < tight[0] < 1000 < tight[1] < 1400
    assert 0 < wide[0] < tight[0]
    assert wide[1] > 2000 + 1000  # twice as many as all that were expected
    assert present_range(1000, 9000, 1000.0, None)[1] > tight[1]  # nothing is known of annotation
    assert present_range(1000, 1100, 1000.0, counted(1.0))[1] == 1100  # no more than there are


def test_a_count_is_never_below_nothing():
    assert present_range(1000, 9000, 1.0, counted(1.0))[0] == 0
