"""Class frequencies from scores, on problems whose truth is known."""

import numpy as np
import pytest

from tertium.annotation import frequencies
from tertium.annotation.frequencies import estimate, propensities
from tertium.labels import Labels

IMAGES, CLASSES = 6000, 12


@pytest.fixture
def scene(rng):
    """True labels, and scores of a model of middling skill that is not calibrated."""
    rate = np.geomspace(0.02, 0.3, CLASSES)
    truth = np.where(rng.random((IMAGES, CLASSES)) < rate, 1, -1)
    logits = 2.2 * truth + rng.logistic(size=truth.shape) * 0.7
    scores = 1 / (1 + np.exp(-(0.5 * logits - 4)))  # squeezed and far too low
    return truth, scores.astype(np.float32)


def annotated(truth, rng, present, absent):
    """Labels that are known with these probabilities."""
    chance = np.where(truth > 0, present, absent)
    return Labels.from_dense(truth * (rng.random(truth.shape) < chance))


def true_rate(truth):
    return (truth > 0).mean(axis=0)


@pytest.mark.parametrize(
    ("present", "absent"), [(0.3, 0.3), (0.1, 0.1), (0.4, 0.0), (0.2, 0.0), (0.5, 0.02), (0.9, 0.05)]
)
def test_frequencies_are_found_from_partial_labels(scene, rng, present, absent):
    """Whether dropped at random, positives only, or positives sought out."""
    truth, scores = scene
    labels = annotated(truth, rng, present, absent)
    found = estimate(scores, labels)
    # Three standard errors of what so few known positives can say, and a fifth.
    assert (np.abs(np.log(found.rate / true_rate(truth))) < 0.2 + 3 / np.sqrt(labels.class_counts[0])).all()
    assert found.labels_per_image == pytest.approx(true_rate(truth).sum(), rel=0.2)
    assert np.median(found.present) == pytest.approx(present, rel=0.25)
    inside = (found.low <= true_rate(truth)) & (true_rate(truth) <= found.high)
    assert inside.mean() > 0.8
    assert (found.low <= found.rate).all()
    assert (found.rate <= found.high).all()


def noted(truth, scores, rng, plainer):
    """Positives of which three in ten are noted, plain ones likelier; a hundredth of what is absent."""
    logits = np.log(scores / (1 - scores))
    odds = 0.43 * np.exp(plainer * ((logits - logits.mean(axis=0)) / logits.std(axis=0) - 2))
    return annotated(truth, rng, odds / (1 + odds), 0.01)


def test_annotators_who_choose_what_is_plain_are_recognised(scene, rng, monkeypatch):
    truth, scores = scene
    labels = noted(truth, scores, rng, 1.5)
    ours = estimate(scores, labels).labels_per_image
    monkeypatch.setattr(frequencies, "_CHOICES", np.zeros(1))
    blind, right = estimate(scores, labels).labels_per_image, true_rate(truth).sum()
    assert abs(np.log(ours / right)) < 0.7 * abs(np.log(blind / right))
    assert blind < right  # all that is plain is noted, so little seems to be missing


def test_nobody_is_said_to_have_chosen_who_did_not(scene, rng, monkeypatch):
    truth, scores = scene
    labels = noted(truth, scores, rng, 0.0)
    ours = estimate(scores, labels).labels_per_image
    monkeypatch.setattr(frequencies, "_CHOICES", np.zeros(1))
    assert ours == pytest.approx(estimate(scores, labels).labels_per_image, rel=0.05)


def test_labels_dropped_at_random_are_recognised(scene, rng):
    """Then the known labels are a sample, of which the scores say more than the share of present ones."""
    truth, scores = scene
    labels = [annotated(truth, rng, 0.2, 0.2) for _ in range(5)]
    found = [estimate(scores, each) for each in labels]
    shares = [each.class_counts[0] / sum(each.class_counts) for each in labels]
    ours, theirs = (
        np.sqrt(np.mean(np.log(rates / true_rate(truth)) ** 2))
        for rates in (np.stack([each.rate for each in found]), np.stack(shares))
    )
    assert ours < 0.8 * theirs
    for each in found:
        assert np.median(each.present / each.absent) == pytest.approx(1, abs=0.1)
    sought = estimate(scores, annotated(truth, rng, 0.5, 0.2))
    assert (sought.present > 1.5 * sought.absent).all()


def test_classes_annotated_unequally_keep_their_differences(scene, rng):
    truth, scores = scene
    present = np.where(np.arange(CLASSES) % 2, 0.8, 0.15)
    found = estimate(scores, annotated(truth, rng, present, 0.0))
    assert found.spread > 0.5
    assert found.present[1::2].min() > 2 * found.present[::2].max()
    even = estimate(scores, annotated(truth, rng, 0.3, 0.0))
    assert even.spread < 0.3


def test_each_kind_of_class_has_a_common_propensity_of_its_own(scene, rng):
    """Half of the classes were verified both ways, the others have positives only."""
    truth, scores = scene
    both = np.arange(CLASSES) < CLASSES // 2
    found = estimate(scores, annotated(truth, rng, np.where(both, 0.6, 0.2), np.where(both, 0.6, 0.0)))
    np.testing.assert_allclose(found.present, np.where(both, 0.6, 0.2), rtol=0.4)


def test_scores_that_tell_nothing_leave_wide_intervals(scene, rng):
    truth, scores = scene
    labels = annotated(truth, rng, 0.3, 0.0)
    sharp, blind = estimate(scores, labels), estimate(rng.random(truth.shape), labels)
    width = [np.log(found.high / found.low) for found in (sharp, blind)]
    assert (width[1] > 1.5 * width[0]).all()


def test_what_is_known_bounds_the_estimate(scene, rng):
    truth, scores = scene
    labels = annotated(truth, rng, 0.9, 0.9)
    found = estimate(scores, labels)
    present, absent = (count / IMAGES for count in labels.class_counts)
    for rate in (found.low, found.rate, found.high):
        assert (rate >= present - 1e-12).all()
        assert (rate <= 1 - absent + 1e-12).all()


def test_full_labels_are_counted(scene):
    truth, scores = scene
    found = estimate(scores, Labels.from_dense(truth))
    for rate in (found.low, found.rate, found.high):
        np.testing.assert_allclose(rate, true_rate(truth))


def test_a_given_number_of_labels_is_met(scene, rng):
    truth, scores = scene
    labels = annotated(truth, rng, 0.3, 0.0)
    for wanted in (1.0, 2.5):
        assert estimate(scores, labels, labels_per_image=wanted).labels_per_image == pytest.approx(wanted)


def test_how_many_labels_an_image_has_is_surer_than_if_all_classes_err_alike(scene, rng):
    truth, scores = scene
    found = estimate(scores, annotated(truth, rng, 0.2, 0.2))
    few, many = found.per_image
    assert found.low.sum() < few < true_rate(truth).sum() < many < found.high.sum()
    for labels, given in (
        (annotated(truth, rng, 0.3, 0.0), None),  # positives only
        (annotated(truth, rng, 0.2, 0.2), 1.5),
        (Labels.from_dense(truth), None),
    ):
        assert estimate(scores, labels, labels_per_image=given).per_image is None


def test_labels_that_are_known_together_count_for_less(rng):
    """Half of the images have all labels, the others none: a hundred whole images say less than the like
    number of single labels."""
    truth = np.where(rng.random((1000, 1)) < 0.5, 1, -1) * np.ones((1, CLASSES), dtype=int)
    rate, own, known = np.full(CLASSES, 0.5), np.zeros(CLASSES), np.full(CLASSES, 0.1)
    width = {}
    for name, kept in (("whole", rng.random((1000, 1)) < 0.1), ("single", rng.random(truth.shape) < 0.1)):
        few, many = frequencies._per_image(Labels.from_dense(truth * kept), 1000, rate, own, known)
        assert few < 6 < many
        error = np.log(many / few) / 2 / 1.96
        width[name] = np.sqrt(error**2 - frequencies._COMMON_ERROR**2)
    # An image is known to be full once in twenty, or has 1.2 known labels on average, or none, half the time.
    assert width["whole"] == pytest.approx(np.sqrt(20 - 1) / np.sqrt(1000), rel=0.3)
    assert width["single"] < 0.5 * width["whole"]


def test_only_the_order_of_images_and_classes_changes_with_theirs(scene, rng):
    truth, scores = scene
    labels = annotated(truth, rng, 0.3, 0.1)
    rows, columns = rng.permutation(IMAGES), rng.permutation(CLASSES)
    moved = Labels.from_dense(labels.dense()[rows][:, columns])
    found, other = estimate(scores, labels), estimate(scores[rows][:, columns], moved)
    np.testing.assert_allclose(found.rate[columns], other.rate, rtol=1e-6)


def test_a_class_without_known_positives_is_rare_but_possible(scene, rng):
    truth, scores = scene
    values = annotated(truth, rng, 0.3, 0.0).dense()
    values[:, 3] = 0
    found = estimate(scores, Labels.from_dense(values))
    assert 0 < found.rate[3] < 0.01
    assert np.isfinite(found.high).all()


def test_few_images_and_one_class(rng):
    values = np.zeros((5, 1))
    values[0] = 1
    found = estimate(rng.random((5, 1)), Labels.from_dense(values))
    assert 0.2 <= found.rate[0] <= 1


def test_propensities_add_up_to_what_is_known(scene, rng):
    truth, _ = scene
    labels = annotated(truth, rng, 0.3, 0.1)
    present, absent = propensities(labels, true_rate(truth))
    counts = labels.class_counts
    np.testing.assert_allclose(present * true_rate(truth) * IMAGES, counts[0], atol=0.6)
    np.testing.assert_allclose(absent * (1 - true_rate(truth)) * IMAGES, counts[1], atol=0.6)


def test_one_frequent_class_may_be_annotated_unlike_all_others(rng, monkeypatch):
    """A hundred labels of each sign: all there are of rare classes, few of the one that is everywhere."""
    rate = np.append(np.full(40, 0.025), 0.5)
    truth = np.where(rng.random((3000, 41)) < rate, 1, -1)
    scores = 1 / (1 + np.exp(-(3.0 * truth + rng.logistic(size=truth.shape))))
    order = np.argsort(rng.random(truth.shape), axis=0)
    ranked = np.take_along_axis(truth, order, axis=0)
    first = (np.cumsum(ranked > 0, axis=0) <= 100) & (ranked > 0)
    first |= (np.cumsum(ranked < 0, axis=0) <= 100) & (ranked < 0)
    known = np.zeros_like(truth)
    np.put_along_axis(known, order, ranked * first, axis=0)
    labels = Labels.from_dense(known)
    found = estimate(scores, labels).rate
    assert found[-1] == pytest.approx(0.5, abs=0.1)
    assert np.median(found[:-1]) == pytest.approx(0.025, rel=0.15)
    monkeypatch.setattr(frequencies, "_APART", 0.0)
    assert estimate(scores, labels).rate[-1] < 0.4  # one among equals
