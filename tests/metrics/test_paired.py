"""Two models on the same labels: differences, what leaving out an image does, how often intervals hold."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from tertium.metrics.evaluation import average_precision
from tertium.metrics.paired import _f1, _precision, compare_paired, contributions


def entries(matrix):
    """Known labels of a dense matrix as rows, columns and whether they are present."""
    rows, columns = np.nonzero(matrix)
    return rows, columns, matrix[rows, columns] > 0


def compared(old, new, matrix, cuts=(0.5, 0.5)):
    rows, columns, present = entries(matrix)
    names = [f"class {number}" for number in range(matrix.shape[1])]
    thresholds = tuple(np.full(len(names), cut) for cut in cuts)
    return compare_paired((old[rows, columns], new[rows, columns]), rows, columns, present, names, thresholds)


@pytest.mark.parametrize("digits", [1, 6])  # with ties and without
@pytest.mark.parametrize("positives", [2, 12])
def test_leaving_out_an_entry_is_exact(rng, digits, positives):
    score = rng.normal(size=40).round(digits)
    present = np.zeros(40, dtype=bool)
    present[rng.permutation(40)[:positives]] = True
    ap, without = _precision(score, present)
    f1, less = _f1(score >= 0.3, present)
    assert ap == pytest.approx(average_precision_score(present, score))
    assert f1 == pytest.approx(f1_score(present, score >= 0.3, zero_division=0))
    for row in range(40):
        kept = np.arange(40) != row
        assert without[row] == pytest.approx(average_precision_score(present[kept], score[kept]))
        assert less[row] == pytest.approx(f1_score(present[kept], score[kept] >= 0.3, zero_division=0))


def test_contributions_are_what_is_lost_without_an_image(rng):
    labels = rng.integers(-1, 2, size=(30, 5)).astype(np.int8)
    labels[:, 4] = np.minimum(labels[:, 4], 0)  # a class without known positives is not scored
    scores = rng.normal(size=labels.shape).round(1)
    whole = np.nanmean(average_precision(scores, labels))
    found = contributions(scores, labels)
    for row in range(30):
        kept = np.arange(30) != row
        rest = np.nanmean(average_precision(scores[kept], labels[kept]))
        assert found[row] == pytest.approx(30 * whole - 29 * rest)
    assert (contributions(scores, np.zeros_like(labels)) == 0).all()


def test_a_single_positive_is_extrapolated(rng):
    score = rng.normal(size=30)
    present = np.arange(30) == 7
    ap, without = _precision(score, present)
    step = 1e-6
    heavier = np.where(present, 1 + step, 1.0)
    slope = (average_precision_score(present, score, sample_weight=heavier) - ap) / step
    assert ap - without[7] == pytest.approx(slope, abs=1e-5)
    for row in np.flatnonzero(~present):
        kept = np.arange(30) != row
        assert without[row] == pytest.approx(average_precision_score(present[kept], score[kept]))


def test_figures_are_means_over_the_scored_classes(rng):
    matrix = rng.choice([-1, 0, 1], size=(80, 5))
    matrix[:, 3] = np.abs(matrix[:, 3])  # known absent nowhere
    old, new = rng.random((2, 80, 5))
    found = compared(old, new, matrix, (0.4, 0.6))
    scored = [0, 1, 2, 4]
    for figure, scores, cut in ((0, old, 0.4), (1, new, 0.6)):
        known = [matrix[:, column] != 0 for column in scored]
        aps = [
            average_precision_score(matrix[k, c] > 0, scores[k, c])
            for k, c in zip(known, scored, strict=True)
        ]
        f1 = [f1_score(matrix[k, c] > 0, scores[k, c] >= cut) for k, c in zip(known, scored, strict=True)]
        assert found.map_c[figure] == pytest.approx(np.mean(aps))
        assert found.mF1[figure] == pytest.approx(np.mean(f1))
    assert {each.name for each in found.classes} == {f"class {number}" for number in scored}
    gains = [abs(each.ap.gain) for each in found.classes]
    assert gains == sorted(gains, reverse=True)
    assert found.images == int((matrix != 0).any(axis=1).sum())


def test_a_model_is_no_better_than_itself(rng):
    matrix, scores = rng.choice([-1, 1], size=(50, 4)), rng.random((50, 4))
    found = compared(scores, scores, matrix)
    assert found.map_c[2:] == (0, 0)
    assert not found.map_c.told


def test_without_a_scored_class_there_is_no_figure():
    found = compared(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2), dtype=int))
    assert np.isnan(found.map_c.gain)
    assert found.to_dict()["map_c"]["difference"] is None
    assert not found.map_c.told


def drawn(rng, count, rate, old, new):
    """Scores of two models that err alike: classes as far apart as they say."""
    present = rng.random((count, 10)) < rate
    common = rng.normal(size=present.shape)
    scores = [common + 0.5 * rng.normal(size=present.shape) + gap * present for gap in (old, new)]
    return np.where(present, 1, -1), *scores


@pytest.mark.parametrize(
    ("count", "rate", "old", "new"), [(300, 0.05, 1.5, 1.7), (120, 0.2, 1.5, 1.5), (600, 0.02, 1.0, 1.3)]
)
def test_nine_of_ten_intervals_hold_the_truth(count, rate, old, new):
    """The truth is the difference on very many images; 0.83 is four standard errors below 0.90."""
    rng = np.random.default_rng(5)
    truth = compared(*np.roll(drawn(rng, 30_000, rate, old, new), -1, axis=0)).map_c.gain
    held = []
    for _ in range(300):
        matrix, *scores = drawn(rng, count, rate, old, new)
        found = compared(*scores, matrix)
        held.append(found.map_c.low <= truth <= found.map_c.high)
    assert np.mean(held) >= 0.83
