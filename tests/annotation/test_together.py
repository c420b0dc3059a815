"""How labels go together: against plain computations, on labels that do and that do not, and what is odd."""

import warnings

import numpy as np
import pytest

from tertium.annotation.record import Annotation
from tertium.annotation.together import FOLDS, LITTLE, Together, agreement, find, folds_of
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.metrics.evaluation import average_precision
from tertium.runs import RunFolder
from tertium.schemes import parse


def made(rng, classes=5, rank=2, width=3, present=0.3, absent=0.3):
    """Some factors, whatever they mean."""
    share = np.ones(classes)
    return Together(
        tuple(f"c{number}" for number in range(classes)),
        rng.normal(size=(classes, rank)).astype(np.float32),
        rng.normal(size=classes).astype(np.float32) / 10,
        rng.uniform(0.5, 1, classes).astype(np.float32),
        rng.uniform(0.1, 0.4, classes),
        present * share,
        absent * share,
        np.stack([rng.normal(size=classes), rng.uniform(1, 2, classes)]),
        rng.normal(size=(FOLDS, width, rank)).astype(np.float32),
    )


def test_the_others_speak_as_a_normal_distribution_says(rng):
    """One label at a time is left out, and the joint distribution of all others is written down in full."""
    together = made(rng)
    shown = rng.normal(size=(20, 2)).astype(np.float32)
    labels = rng.integers(-1, 2, size=(20, 5)).astype(np.int8)
    found = together.given_others(shown, labels)
    deviation = np.sqrt(together.rate * (1 - together.rate))
    for row in range(20):
        for own in range(5):
            known = [c for c in range(5) if labels[row, c] and c != own]
            weights, noise = together.weights[known], np.diag(together.noise[known])
            seen = ((labels[row, known] > 0) - together.rate[known]) / deviation[known]
            gap = seen - together.height[known] - weights @ shown[row]
            gain = weights.T @ np.linalg.inv(weights @ weights.T + noise)
            score = together.weights[own] @ (shown[row] + gain @ gap)
            expected = together.curve[0, own] + together.curve[1, own] * score
            assert found[row, own] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("present", "absent"), [(0.3, 0.3), (0.5, 0.0)])
def test_a_label_never_speaks_for_itself_when_it_is_known(rng, present, absent):
    together = made(rng, present=present, absent=absent)
    shown = rng.normal(size=(30, 2)).astype(np.float32)
    labels = rng.integers(-1, 2, size=(30, 5)).astype(np.int8)
    labels[:, 1] = 1
    other = labels.copy()
    other[:, 1] = -1
    one, two = (together.given_others(shown, each) for each in (labels, other))
    np.testing.assert_allclose(one[:, 1], two[:, 1], atol=1e-3)
    assert np.abs(one[:, [0, 2, 3, 4]] - two[:, [0, 2, 3, 4]]).max(axis=0).min() > 0.1


def test_an_answer_tells_what_the_label_would_have_told_if_it_had_been_known(rng):
    together = made(rng)
    shown = rng.normal(size=2).astype(np.float32)
    labels = np.array([1, 0, 0, 0, -1], dtype=np.int8)
    columns = np.array([1, 2, 3])
    among = together.among(shown, labels, columns)
    for answers in ((1, 0, 0), (0, -1, 0), (1, 0, -1), (0, 0, 0)):
        said = np.array(answers, dtype=np.int8)
        later = labels.copy()
        later[columns] = said
        before, after = (together.given_others(shown[None], each[None])[0] for each in (labels, later))
        open_ = said == 0
        moved = (after - before)[columns]
        np.testing.assert_allclose(among.moved(said)[open_], moved[open_], atol=1e-3)


def world(rng, images=1500, classes=24, hidden=True):
    """Labels that go by four factors, of which the features show two; or each by a feature of its own."""
    factors = rng.normal(size=(images, 4))
    loadings = rng.normal(size=(4, classes))
    loadings /= np.linalg.norm(loadings, axis=0)
    own = rng.normal(size=(images, classes))
    features = np.concatenate([factors[:, :2], own], axis=1) + 0.3 * rng.normal(size=(images, 2 + classes))
    score = factors @ loadings + 0.3 * rng.normal(size=own.shape) if hidden else own
    truth = np.where(score > 0.8, 1, -1).astype(np.int8)
    return features.astype(np.float32), Labels.from_dense(truth)


def annotated(labels, truth):
    rate = (truth.dense() > 0).mean(axis=0).clip(1e-3, 1 - 1e-3)
    known = [(labels.dense() == sign).mean(axis=0) / part for sign, part in ((1, rate), (-1, 1 - rate))]
    if (labels.entries < 0).any():
        known = 2 * [np.mean(known) * np.ones(len(rate))]
    return Annotation(labels.classes, rate, rate / 2, rate * 2, *known)


def found_in(features, labels, truth):
    return find(features.__getitem__, labels, annotated(labels, truth), np.arange(len(labels)))


def mean_ap(logits, labels):
    return np.nanmean(average_precision(logits.astype(np.float32), labels))


@pytest.mark.parametrize("scheme", ["random:0.3", "positives:0.4"])
def test_known_labels_tell_what_the_image_does_not_show(rng, scheme):
    features, truth = world(rng)
    labels = parse(scheme).apply(truth, 0)
    together, head, _ = found_in(features, labels, truth)
    shown = together.shown(features @ together.units.T, folds_of(labels.images))
    hidden = np.where(labels.dense() == 0, truth.dense(), np.int8(0))
    given = mean_ap(together.given_others(shown, labels.dense()), hidden)
    assert given > mean_ap(features @ head.T, hidden) + 0.1


def test_probabilities_are_about_right(rng):
    features, truth = world(rng)
    labels = parse("random:0.3").apply(truth, 0)
    together, *_ = found_in(features, labels, truth)
    shown = together.shown(features @ together.units.T, folds_of(labels.images))
    p = 1 / (1 + np.exp(-together.given_others(shown, labels.dense()).astype(np.float64)))
    unknown = labels.dense() == 0
    for low, high in ((0.0, 0.1), (0.1, 0.5), (0.5, 0.9)):
        inside = unknown & (p >= low) & (p < high)
        assert (truth.dense()[inside] > 0).mean() == pytest.approx(p[inside].mean(), abs=0.06)


def test_what_goes_together_most_comes_first(rng):
    features, truth = world(rng, classes=8)
    dense = truth.dense().copy()
    dense[:, 5] = dense[:, 2]  # two names of one thing
    truth = Labels.from_dense(dense)
    together, *_ = found_in(features, parse("random:0.5").apply(truth, 0), truth)
    pairs = together.strongest(5)
    assert {pairs[0].first, pairs[0].second} == {truth.classes[2], truth.classes[5]}
    assert pairs[0].correlation > 0.4
    assert len(pairs) == 5
    assert len(together.strongest(1000)) == 28


def scored(features, hidden):
    """Scores by what the features show: two factors, or each label by a feature of its own."""
    return sigmoid(np.resize(features[:, :2], (len(features), 24)) if hidden else 2 * features[:, 2:] - 2)


def sigmoid(logits):
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


@pytest.mark.parametrize("scheme", ["random:0.3", "positives:0.4"])
def test_labels_agree_beyond_their_scores_only_where_they_go_together(rng, scheme):
    found = []
    for hidden in (True, False):
        features, truth = world(rng, images=6000, hidden=hidden)
        labels = parse(scheme).apply(truth, 0)
        found.append(agreement(scored(features, hidden), labels, annotated(labels, truth)))
    assert found[0] > 5 * LITTLE
    assert found[1] < LITTLE


def test_few_labels_cannot_show_that_others_say_nothing(rng):
    features, truth = world(rng, images=300, hidden=False)
    labels = parse("random:0.1").apply(truth, 0)
    assert agreement(scored(features, False), labels, annotated(labels, truth)) > LITTLE


def test_one_known_positive_in_an_image_tells_nothing_of_the_others(rng):
    features, truth = world(rng)
    truth = truth[np.flatnonzero((truth.dense() > 0).any(axis=1))]
    labels = parse("single_positive").apply(truth, 0)
    assert found_in(features, labels, truth) is None


@pytest.mark.parametrize("case", ["one class", "one image", "few known", "no feature"])
def test_too_little_to_learn_from(rng, case):
    features, truth = world(rng, images=100)
    if case == "one class":
        truth = truth.with_classes(truth.classes[:1])
    if case == "one image":
        features, truth = features[:1], truth[:1]
    if case == "no feature":
        features = np.zeros_like(features)
    labels = parse("random:0.1" if case == "few known" else "random:0.5").apply(truth, 0)
    found = found_in(features, labels, truth)
    assert (found is None) is (case != "no feature")


def test_nothing_odd_becomes_nan(rng):
    """Constant classes, classes nobody knows, images of which all or nothing is known."""
    features, truth = world(rng, images=300, classes=10)
    dense = truth.dense().copy()
    dense[:, 0], dense[:, 1] = 1, -1
    truth = Labels.from_dense(dense)
    known = np.where(rng.random(dense.shape) < 0.3, dense, 0).astype(np.int8)
    known[:, 2], known[:5], known[5:10] = 0, dense[:5], 0  # the last: nothing is known of these images
    labels = Labels.from_dense(known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together, head, _ = found_in(features, labels, truth)
        shown = together.shown(features @ together.units.T, folds_of(labels.images))
        assert np.isfinite(together.given_others(shown, labels.dense())).all()
    assert np.isfinite(head).all()


def test_it_is_kept_and_refused_if_damaged(rng, tmp_path):
    together, folder = made(rng), RunFolder(tmp_path)
    assert Together.of_run(tmp_path) is None
    together.save(folder)
    again = Together.of_run(tmp_path)
    for name, value in together.tensors().items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert again.classes == together.classes
    folder.factors_file.write_bytes(folder.factors_file.read_bytes()[:-1])
    with pytest.raises(InputError, match="changed after it was written, or is damaged"):
        Together.of_run(tmp_path)


def test_numbers_of_other_classes_are_refused(rng):
    together = made(rng)
    with pytest.raises(ValueError, match="other classes"):
        Together.from_tensors(["a", "b"], together.tensors())
    with pytest.raises(ValueError, match="not a finite number"):
        Together.from_tensors(
            together.classes, together.tensors() | {"noise": np.full(5, np.nan, dtype=np.float32)}
        )
