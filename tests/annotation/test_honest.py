"""The estimated mAP over all labels, on problems whose truth is known."""

import numpy as np
import pytest

from bench import honest as bench
from tertium.annotation import honest
from tertium.annotation.honest import expected_map
from tertium.annotation.record import Annotation
from tertium.labels import Labels
from tertium.metrics.evaluation import average_precision

CLASSES = 12
RATE = np.geomspace(0.03, 0.4, CLASSES)


def drawn(rng, images):
    """Truth, and scores of a model of middling skill that is not calibrated."""
    truth = np.where(rng.random((images, CLASSES)) < RATE, 1, -1).astype(np.int8)
    logits = np.linspace(0.8, 1.8, CLASSES) * truth + rng.normal(size=truth.shape)
    return truth, 1 / (1 + np.exp(-(0.8 * logits - 2)))


def annotated(rng, truth, present, absent):
    known = rng.random(truth.shape) < np.where(truth > 0, present, absent)
    return Labels.from_dense(np.where(known, truth, 0))


def annotation(labels, present, absent, error=1.3):
    """What a method that models annotation would have found."""
    each = np.ones(CLASSES)
    return Annotation(labels.classes, RATE, RATE / error, RATE * error, present * each, absent * each)


@pytest.fixture(scope="module")
def truth():
    """The mAP on very many images."""
    labels, scores = drawn(np.random.default_rng(9), 100_000)
    return average_precision(scores, labels).mean()


@pytest.mark.parametrize(
    ("present", "absent"),
    [(0.1, 0.1), (0.4, 0.4), (0.3, 0.0), (0.5, 0.02), (0.9, 0.1)],
    ids=["few at random", "at random", "positives", "sought", "nearly all"],
)
@pytest.mark.parametrize("modelled", [True, False], ids=["modelled", "found out"])
def test_the_truth_is_in_the_interval(rng, truth, present, absent, modelled):
    full, scores = drawn(rng, 1200)
    labels = annotated(rng, full, present, absent)
    found = expected_map(scores, labels, annotation(labels, present, absent) if modelled else None)
    assert found.low < truth < found.high
    assert found.value == pytest.approx(truth, abs=0.08)
    assert found.classes == CLASSES


DRAWS = 10


@pytest.mark.parametrize("plainer", [0.0, 1.5], ids=["by chance", "chosen"])
@pytest.mark.parametrize(("present", "absent"), [(0.3, 0.3), (0.3, 0.0), (0.4, 0.05)])
def test_nine_of_ten_intervals_hold_the_truth(truth, plainer, present, absent):
    """Also if what shows plainly is noted more often; and the estimate is the better headline."""
    held, width, errors = 0, [], []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        full, scores = drawn(rng, 500)
        logits = np.log(scores / (1 - scores))
        plain = (logits - logits.mean(axis=0)) / logits.std(axis=0) - 1  # 0 for what shows as most do
        odds = present / (1 - present) * np.exp(plainer * plain)
        known = rng.random(full.shape) < np.where(full > 0, odds / (1 + odds), absent)
        labels = Labels.from_dense(np.where(known, full, 0))
        found = expected_map(scores, labels)
        held += found.low <= truth <= found.high
        width.append(found.high - found.low)
        judged = np.where(known, full, -1) if absent == 0 else labels.dense()
        errors.append([abs(found.value - truth), abs(np.nanmean(average_precision(scores, judged)) - truth)])
    assert held >= 0.85 * DRAWS
    assert np.mean(width) < 0.6  # not because they hold everything
    ours, known = np.mean(errors, axis=0)
    if absent < present:  # else known labels are a sample, and their own mAP is right
        assert ours < known / 2


def test_labels_that_were_not_sought_settle_it(rng):
    full, scores = drawn(rng, 500)
    labels = [annotated(rng, full, *both) for both in ((0.3, 0.3), (0.3, 0.0))]
    assert [expected_map(scores, each).settled for each in labels] == [True, False]


def test_it_is_nearer_to_the_truth_than_known_labels(rng, truth):
    full, scores = drawn(rng, 1200)
    labels = annotated(rng, full, 0.5, 0.02)
    known = np.nanmean(average_precision(scores, labels))
    found = expected_map(scores, labels, annotation(labels, 0.5, 0.02))
    assert abs(found.value - truth) < 0.3 * abs(known - truth)


def test_full_labels_give_their_own_map(rng):
    full, scores = drawn(rng, 4000)
    found = expected_map(scores, Labels.from_dense(full))
    assert found.value == pytest.approx(average_precision(scores, full).mean(), abs=0.01)
    assert found.high - found.low < 0.15


def test_few_images_are_not_flattered(rng, truth):
    """The AP of few images is too high on average; this estimate is not."""
    ours, plain = [], []
    for _ in range(20):
        full, scores = drawn(rng, 100)
        ours.append(expected_map(scores, Labels.from_dense(full)).value)
        plain.append(np.nanmean(average_precision(scores, full)))
    assert np.mean(plain) > truth + 0.02
    assert np.mean(ours) == pytest.approx(truth, abs=0.02)


def test_more_images_say_more(rng):
    width = []
    for images in (150, 5000):
        full, scores = drawn(rng, images)
        labels = annotated(rng, full, 0.2, 0.2)
        found = expected_map(scores, labels, annotation(labels, 0.2, 0.2))
        width.append(found.high - found.low)
    assert width[0] > 1.3 * width[1]


def test_what_annotators_may_have_chosen_widens_the_interval(rng):
    full, scores = drawn(rng, 1200)
    width = []
    for absent in (0.3, 0.1, 0.0):
        labels = annotated(rng, full, 0.3, absent)
        found = expected_map(scores, labels, annotation(labels, 0.3, absent))
        width.append(found.high - found.low)
    assert width[0] < width[1] < width[2]
    assert width[2] > 2 * width[0]


def test_unsure_frequencies_widen_the_interval(rng):
    full, scores = drawn(rng, 1200)
    labels = annotated(rng, full, 0.3, 0.3)
    sure, unsure = (expected_map(scores, labels, annotation(labels, 0.3, 0.3, error)) for error in (1.1, 4.0))
    assert unsure.high - unsure.low > sure.high - sure.low


def test_classes_that_were_not_taught_are_left_out(rng):
    full, scores = drawn(rng, 800)
    labels = annotated(rng, full, 0.3, 0.3)
    taught = np.arange(CLASSES) >= CLASSES // 2
    some = expected_map(scores, labels, annotation(labels, 0.3, 0.3), taught)
    names = [labels.classes[column] for column in np.flatnonzero(taught)]
    alone = expected_map(
        scores[:, taught], labels.with_classes(names), annotation(labels, 0.3, 0.3).for_classes(names)
    )
    assert some == alone
    assert some.classes == CLASSES // 2


def test_blocks_of_classes_change_nothing(rng, monkeypatch):
    full, scores = drawn(rng, 400)
    labels = annotated(rng, full, 0.3, 0.1)
    whole = expected_map(scores, labels, annotation(labels, 0.3, 0.1))
    monkeypatch.setattr(honest, "_BLOCK", 5)
    assert expected_map(scores, labels, annotation(labels, 0.3, 0.1)).value == pytest.approx(whole.value)


def test_of_very_many_classes_and_images_some_are_looked_at(rng, monkeypatch):
    full, scores = drawn(rng, 3000)
    labels = annotated(rng, full, 0.3, 0.3)
    monkeypatch.setattr(honest, "_CLASSES", 6)
    monkeypatch.setattr(honest, "_ENTRIES", 6000)
    found = expected_map(scores, labels, annotation(labels, 0.3, 0.3))
    chosen = np.ix_(np.arange(0, 3000, 3), np.arange(0, CLASSES, 2))
    monkeypatch.undo()
    names = labels.classes[::2]
    part = Labels.from_dense(labels.dense()[chosen], classes=names)
    assert found == expected_map(scores[chosen], part, annotation(labels, 0.3, 0.3).for_classes(names))


def test_nothing_known_to_be_present_says_nothing(rng):
    _, scores = drawn(rng, 50)
    assert expected_map(scores, Labels.from_dense(np.full(scores.shape, -1))) is None
    labels = Labels.from_dense(np.ones(scores.shape))
    assert expected_map(scores, labels, taught=np.zeros(CLASSES, dtype=bool)) is None


def test_extremes_stay_within_bounds(rng):
    """A perfect model, a blind one, and classes that are everywhere or known once."""
    full, scores = drawn(rng, 300)
    full[:, 0], full[1:, 1] = 1, -1
    full[0, 1] = 1
    for values in (np.where(full > 0, 0.99, 0.01), np.full(full.shape, 0.5), scores):
        for labels in (Labels.from_dense(full), annotated(rng, full, 0.5, 0.0)):
            found = expected_map(values, labels)
            assert 0 <= found.low <= found.value <= found.high <= 1
    assert expected_map(np.where(full > 0, 0.99, 0.01), Labels.from_dense(full)).value > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coco", "ucmerced", "scenes"])
def test_real_intervals_hold_the_truth(name, coco):
    """One draw of every scheme: of the expected mAP and of the number of present labels."""
    parts = bench.data(name, coco.parent)
    draws = [bench.draw(name, spec, 1000, *parts) for spec in bench.SIX + bench.CHOSEN]
    counts = [tuple(f"{name}{when}" for name in ("least", "present", "most")) for when in ("", "_after")]
    for low, truth, high in [("low", "truth", "high"), *counts]:
        held = [each[low] <= each[truth] <= each[high] for each in draws]
        assert np.mean(held) >= 0.8, (truth, draws)
    ours, known = (
        np.mean([abs(each[key] - each["truth"]) for each in draws]) for key in ("value", "headline")
    )
    assert ours < known
    assert np.mean([abs(each["said_after"] - each["present_there"]) for each in draws]) < 0.15
