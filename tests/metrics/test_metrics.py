"""Metrics against scikit-learn and SciPy, and against computations too slow and plain to be wrong."""

import json
import math
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.metrics import evaluation as metrics
from tertium.metrics import ranking

ties = st.sampled_from([-np.inf, -1.5, -1e-7, -0.0, 0.0, 6e-8, 0.25, 0.5, 1.0, np.inf])
anything = st.floats(width=16, allow_nan=False)
probabilities = st.integers(0, 40).map(lambda n: n / 40)
floors = st.sampled_from([130, 1000, 2**21])


@st.composite
def problems(draw, values):
    """Scores and dense labels: any share of unknown entries from none to all, down to one row or class."""
    shape = draw(st.tuples(st.integers(1, 30), st.integers(1, 7)))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    scores = draw(hnp.arrays(np.float64, shape, elements=values)).astype(dtype)
    signs = draw(st.sampled_from([(-1, 1), (-1, 0, 1), (0, 0, 0, -1, 1), (0,), (1,), (-1, -1, -1, 1)]))
    return scores, draw(hnp.arrays(np.int8, shape, elements=st.sampled_from(signs)))


def small_blocks(floor):
    """Shrink the working memory, so that small inputs too are read in many blocks and pieces."""
    return mock.patch.object(ranking, "_FLOOR", floor)


def known_of(scores, labels, column):
    known = labels[:, column] != 0
    return scores[known, column], labels[known, column] > 0


def oracle(scores, labels):
    result = []
    for column in range(scores.shape[1]):
        values, present = known_of(scores, labels, column)
        if not np.isfinite(values).all():  # scikit-learn refuses infinities; their ranks mean the same
            values = np.unique(values, return_inverse=True)[1]
        both = present.any() and not present.all()
        result.append(average_precision_score(present, values) if both else np.nan)
    return np.array(result)


def random_problem(rows, columns, share=1.0, positive=0.1, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.random((rows, columns)).astype(dtype)
    labels = np.where(rng.random(scores.shape) < positive, 1, -1).astype(np.int8)
    labels[rng.random(scores.shape) >= share] = 0
    return scores, labels


# ---- average precision ---------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(problems(ties), floors)
def test_average_precision_is_scikit_learns_with_heavy_ties(problem, floor):
    scores, labels = problem
    with small_blocks(floor):
        dense = metrics.average_precision(scores, labels)
        sparse = metrics.average_precision(scores, Labels.from_dense(labels))
    np.testing.assert_allclose(dense, oracle(scores, labels), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(dense, sparse)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(problems(anything), floors, st.randoms(use_true_random=False))
def test_order_of_rows_and_classes_does_not_matter(problem, floor, random):
    scores, labels = problem
    rows, columns = list(range(len(scores))), list(range(scores.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    with small_blocks(floor):
        before = metrics.average_precision(scores, labels)
        after = metrics.average_precision(scores[rows][:, columns], labels[rows][:, columns])
    np.testing.assert_array_equal(after, before[columns])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.05])
def test_average_precision_over_many_blocks(dtype, share):
    scores, labels = random_problem(3000, 40, share, dtype=dtype)
    with small_blocks(2**16):
        dense = metrics.average_precision(scores, labels)
        sparse = metrics.average_precision(scores, Labels.from_dense(labels))
    np.testing.assert_allclose(dense, oracle(scores, labels), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(dense, sparse)


def test_64_bits_count_where_32_would_make_ties():
    scores = np.array([[1.0], [1.0 + 1e-12], [1.0 - 1e-12]])
    labels = np.array([[-1], [1], [-1]], dtype=np.int8)
    assert metrics.average_precision(scores, labels).tolist() == [1.0]
    assert metrics.average_precision(scores.astype(np.float32), labels).tolist() == [pytest.approx(1 / 3)]


def test_images_without_a_known_label_and_uneven_rows():
    scores, labels = random_problem(400, 30, 0.3, seed=3)
    labels[:50] = labels[200:260] = labels[-7:] = 0
    labels[100:110] = np.where(labels[100:110] == 0, -1, labels[100:110])
    with small_blocks(4000):
        found = metrics.average_precision(scores, Labels.from_dense(labels))
    np.testing.assert_allclose(found, oracle(scores, labels), rtol=0, atol=1e-12)


def test_views_and_memory_maps_read_like_arrays(tmp_path):
    scores, labels = random_problem(200, 12, 0.5)
    expected = metrics.average_precision(scores, labels)
    np.save(tmp_path / "scores.npy", scores)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    wide = np.zeros((400, 24), dtype=np.float32)
    wide[::2, ::2] = scores
    for view in (mapped, np.asfortranarray(scores), wide[::2, ::2]):
        np.testing.assert_array_equal(metrics.average_precision(view, labels), expected)
        np.testing.assert_array_equal(metrics.average_precision(view, Labels.from_dense(labels)), expected)


def test_no_images_and_no_classes():
    assert np.isnan(metrics.average_precision(np.empty((0, 2)), np.empty((0, 2), np.int8))).all()
    assert metrics.average_precision(np.empty((3, 0)), np.empty((3, 0), np.int8)).shape == (0,)
    empty = metrics.evaluate(np.empty((3, 0)), np.empty((3, 0), np.int8))
    assert empty.scored == 0
    assert math.isnan(empty.map_c)


@pytest.mark.parametrize(
    ("share", "positive", "dtype"),
    [(1.0, 0.03, np.float32), (1.0, 0.5, np.float32), (0.7, 0.1, np.float32), (1.0, 0.1, np.float64)],
)
def test_extra_memory_stays_under_its_share(share, positive, dtype):
    scores, labels = random_problem(20_000, 160, share, positive, dtype)
    for truth in (labels, Labels.from_dense(labels)):
        tracemalloc.start()
        metrics.average_precision(scores, truth)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 0.15 * scores.nbytes


# ---- evaluate ------------------------------------------------------------------------------------------


def slow_f1(scores, present, threshold):
    hits = sum(
        1 for score, is_present in zip(scores, present, strict=True) if is_present and score >= threshold
    )
    predicted = sum(1 for score in scores if score >= threshold)
    return 2 * hits / (predicted + sum(present))


def slow_evaluation(scores, labels, thresholds):
    per_class, total_hits, total_predicted, total_present = [], 0, 0, 0
    for column in range(scores.shape[1]):
        values, present = known_of(scores, labels, column)
        if not present.any() or present.all():
            continue
        above = values >= thresholds[column]
        hits, predicted, positives = int((above & present).sum()), int(above.sum()), int(present.sum())
        precision, recall = hits / predicted if predicted else 0.0, hits / positives
        per_class.append((precision, recall, slow_f1(values, present, thresholds[column]), positives))
        total_hits, total_predicted = total_hits + hits, total_predicted + predicted
        total_present += positives
    if not per_class:
        return dict.fromkeys(("mF1", "CP", "CR", "CF1", "OP", "OR", "OF1"), np.nan)
    precision, recall, f1 = (float(np.mean([row[i] for row in per_class])) for i in range(3))
    overall = total_hits / total_predicted if total_predicted else 0.0, total_hits / total_present

    def harmonic(a, b):
        return 2 * a * b / (a + b) if a + b else 0.0

    return {
        "mF1": f1,
        "CP": precision,
        "CR": recall,
        "CF1": harmonic(precision, recall),
        "OP": overall[0],
        "OR": overall[1],
        "OF1": harmonic(*overall),
    }


@settings(max_examples=80, deadline=None)
@given(problems(probabilities), floors, st.data())
def test_evaluation_against_plain_loops(problem, floor, data):
    scores, labels = problem
    width = scores.shape[1]
    thresholds = data.draw(st.none() | st.lists(probabilities, min_size=width, max_size=width))
    used = np.full(width, 0.5) if thresholds is None else np.array(thresholds)
    with small_blocks(floor):
        found = metrics.evaluate(scores, labels, thresholds)
        sparse = metrics.evaluate(scores, Labels.from_dense(labels), thresholds)
    assert found.to_dict() == sparse.to_dict()
    for name, value in slow_evaluation(scores, labels, used).items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-12, nan_ok=True), name
    ap = oracle(scores, labels)
    scored = ~np.isnan(ap)
    positives = (labels > 0).sum(axis=0)
    assert found.scored == scored.sum()
    assert found.positives.tolist() == positives.tolist()
    assert found.negatives.tolist() == (labels < 0).sum(axis=0).tolist()
    assert {entry.column for entry in found.unscored} == set(np.flatnonzero(~scored).tolist())
    if scored.any():
        assert found.map_c == pytest.approx(np.mean(ap[scored]), abs=1e-12)
        assert found.map_o == pytest.approx(np.average(ap[scored], weights=positives[scored]), abs=1e-12)


def test_a_class_that_cannot_be_scored_is_named_and_never_counts():
    scores = np.array([[0.9, 0.1, 0.9, 0.9], [0.2, 0.1, 0.9, 0.9]], dtype=np.float32)
    dense = [[1, 1, -1, 0], [-1, 1, -1, 0]]
    found = metrics.evaluate(scores, Labels.from_dense(dense, classes=["cat", "dog", "fox", "owl"]))
    assert (found.map_c, found.map_o, found.mF1, found.OP, found.OR) == (1.0, 1.0, 1.0, 1.0, 1.0)
    assert found.unscored == (
        metrics.Unscored(1, "dog", "no known absent"),
        metrics.Unscored(2, "fox", "no known present"),
        metrics.Unscored(3, "owl", "no known present and no known absent"),
    )


def test_to_dict_is_strict_json():
    scores = np.array([[0.9, 0.1], [0.2, 0.1]])
    found = metrics.evaluate(scores, np.array([[1, 1], [-1, 1]], dtype=np.int8), thresholds=0.3).to_dict()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["ap"] == [1.0, None]
    assert again["unscored"] == [{"column": 1, "name": "1", "reason": "no known absent"}]
    assert again["thresholds"] == [0.3, 0.3]
    assert (again["map_c"], again["scored"], again["positives"]) == (1.0, 1, [1, 2])
    unbounded = metrics.evaluate(scores, np.array([[1, 1], [-1, 1]], dtype=np.int8), thresholds=[np.inf, 0])
    assert json.loads(json.dumps(unbounded.to_dict(), allow_nan=False))["thresholds"] == [None, 0.0]
    nothing = metrics.evaluate(scores, np.zeros((2, 2), np.int8)).to_dict()
    json.dumps(nothing, allow_nan=False)
    assert [nothing[name] for name in ("map_c", "map_o", "mF1", "CF1", "OP", "OF1")] == [None] * 6


def test_expected_thresholds_beat_every_other(rng):
    scores = rng.integers(1, 12, size=(60, 5)) / 12  # many are equal
    presence = rng.random(scores.shape) ** [1, 3, 9, 0.2, 1] * [1, 1, 1, 1, 0.01]
    found = metrics.expected_thresholds(scores, presence)
    assert found[4] == 0.5  # expected less than once
    for column in range(4):
        values, chances = scores[:, column], presence[:, column]

        def expected_f1(cut, values=values, chances=chances):
            called = [chance for value, chance in zip(values, chances, strict=True) if value >= cut]
            return 2 * sum(called) / (len(called) + sum(chances))

        assert expected_f1(found[column]) == pytest.approx(max(map(expected_f1, values)))
        assert found[column] not in values


@settings(max_examples=150, deadline=None)
@given(problems(ties), floors)
def test_best_thresholds_beat_every_other(problem, floor):
    scores, labels = problem
    with small_blocks(floor):
        found = metrics.best_thresholds(scores, labels)
        sparse = metrics.best_thresholds(scores, Labels.from_dense(labels))
    np.testing.assert_array_equal(found, sparse)
    for column in range(scores.shape[1]):
        values, present = known_of(scores, labels, column)
        if not present.any() or present.all():
            assert found[column] == 0.5
            continue
        best = max(slow_f1(values, present, threshold) for threshold in values)
        equal = [value for value in values[present] if slow_f1(values, present, value) == best]
        assert found[column] == max(equal)


def test_thresholds_chosen_elsewhere_are_the_ones_used():
    scores, labels = random_problem(300, 5, positive=0.3)
    chosen = metrics.best_thresholds(scores[:150], labels[:150])
    found = metrics.evaluate(scores[150:], labels[150:], chosen)
    assert found.thresholds.tolist() == chosen.tolist()
    expected = [slow_f1(scores[150:, c], labels[150:, c] > 0, chosen[c]) for c in range(5)]
    assert found.mF1 == pytest.approx(np.mean(expected), abs=1e-12)
    on_the_same_data = metrics.best_thresholds(scores[150:], labels[150:])
    assert found.mF1 < metrics.evaluate(scores[150:], labels[150:], on_the_same_data).mF1


def test_groups_and_calibration_are_part_of_it():
    scores, labels = random_problem(300, 11, 0.5, 0.3)
    found = metrics.evaluate(scores, labels)
    assert found.ece == pytest.approx(metrics.calibration_error(scores, labels), abs=1e-12)
    known = (labels != 0).sum(axis=0)
    fifths = metrics.groups(labels)
    assert [group.name for group in found.groups] == ["G1", "G2", "G3", "G4", "G5"]
    assert [group.classes for group in found.groups] == [len(fifth) for fifth in fifths]
    assert [group.map_c for group in found.groups] == metrics.grouped_map(found.ap, fifths).tolist()
    assert [(group.fewest, group.most) for group in found.groups] == [
        (min(known[fifth]), max(known[fifth])) for fifth in fifths
    ]
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["groups"][0]["scored"] == found.groups[0].scored
    by_training = metrics.evaluate(scores, labels, annotations=np.arange(11)[::-1])
    assert by_training.groups[0].map_c == pytest.approx(found.ap[-3:].mean())
    assert metrics.evaluate(scores, labels, annotations=np.full(11, 7)).groups == ()
    with pytest.raises(InputError, match=r"one count per class \(11\), not \(3,\)"):
        metrics.evaluate(scores, labels, annotations=np.arange(3))
    assert math.isnan(metrics.evaluate(scores * 2, labels).ece)
    assert math.isnan(metrics.evaluate(scores - 1, labels).ece)


# ---- the others ----------------------------------------------------------------------------------------


def slow_at_k(scores, labels, k):
    precision, recall = [], []
    for row in range(len(scores)):
        known = [(-float(s), int(t)) for s, t in zip(scores[row], labels[row], strict=True) if t]
        top = [label for _, label in sorted(known)[:k]]  # −1 before +1 among equal scores
        positives = sum(1 for _, label in known if label > 0)
        if known:
            precision.append(top.count(1) / len(top))
        if positives:
            recall.append(top.count(1) / positives)
    return tuple(float(np.mean(x)) if x else np.nan for x in (precision, recall))


@settings(max_examples=150, deadline=None)
@given(problems(ties), floors, st.integers(1, 9))
def test_precision_and_recall_at_k(problem, floor, k):
    scores, labels = problem
    with small_blocks(floor):
        for truth in (labels, Labels.from_dense(labels)):
            found = metrics.precision_recall_at_k(scores, truth, k)
            assert found == pytest.approx(slow_at_k(scores, labels, k), abs=1e-12, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(problems(probabilities), floors, st.integers(1, 20))
def test_calibration_error(problem, floor, bins):
    scores, labels = problem
    members = [[] for _ in range(bins)]
    for score, label in zip(scores.ravel().tolist(), labels.ravel().tolist(), strict=True):
        if label:
            members[min(int(score * bins), bins - 1)].append((score, label > 0))
    total = sum(map(len, members))
    gaps = [len(part) * abs(np.mean([s - p for s, p in part])) for part in members if part]
    expected = sum(gaps) / total if total else np.nan
    with small_blocks(floor):
        for truth in (labels, Labels.from_dense(labels)):
            found = metrics.calibration_error(scores, truth, bins)
            assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(problems(ties))
def test_groups_go_from_the_fewest_annotations_to_the_most(problem):
    _, labels = problem
    known = (labels != 0).sum(axis=0).tolist()
    for truth in (labels, Labels.from_dense(labels)):
        found = metrics.groups(truth)
        sizes = [len(group) for group in found]
        assert len(found) == 5
        assert max(sizes) - min(sizes) <= 1
        order = [column for group in found for column in group.tolist()]
        assert order == sorted(range(len(known)), key=lambda column: (known[column], column))


def test_groups_keep_the_order_of_equally_annotated_classes():
    _, labels = random_problem(3, 101, share=0.5)
    known = (labels != 0).sum(axis=0).tolist()
    order = np.concatenate(metrics.groups(labels)).tolist()
    assert order == sorted(range(101), key=lambda column: (known[column], column))


def test_counting_does_not_overflow_beyond_a_byte():
    labels = np.ones((1000, 3), dtype=np.int8)
    labels[:, 1] = -1
    labels[:300, 2] = 0
    found = metrics.evaluate(np.full(labels.shape, 0.7), labels)
    assert found.positives.tolist() == [1000, 0, 700]
    assert found.negatives.tolist() == [0, 1000, 0]
    assert [group.tolist() for group in metrics.groups(labels)[:3]] == [[2], [0], [1]]


def test_grouped_map_leaves_out_what_is_not_scored():
    ap = np.array([0.2, np.nan, 0.6, 1.0, np.nan])
    found = metrics.grouped_map(ap, [np.array([0, 1, 2]), np.array([3]), np.array([4]), np.array([], int)])
    np.testing.assert_allclose(found, [0.4, 1.0, np.nan, np.nan])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(*2 * [st.sampled_from([0.0, 0.1, 0.2, 0.5, 3.0, math.nan])]), max_size=25))
def test_spearman_is_scipys(pairs):
    a, b = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    kept = ~(np.isnan(a) | np.isnan(b))
    constant = len(set(a[kept].tolist())) < 2 or len(set(b[kept].tolist())) < 2
    expected = np.nan if constant else spearmanr(a[kept], b[kept]).statistic
    assert metrics.spearman(a, b) == pytest.approx(expected, abs=1e-12, nan_ok=True)


# ---- bad input -----------------------------------------------------------------------------------------

EVERY = [
    metrics.average_precision,
    metrics.best_thresholds,
    metrics.evaluate,
    metrics.calibration_error,
    lambda scores, labels: metrics.precision_recall_at_k(scores, labels, 1),
]


@pytest.mark.parametrize("metric", EVERY)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_nan_is_named_where_known_and_ignored_where_not(metric, dtype, share):
    scores, labels = random_problem(40, 4, share, 0.4, dtype)
    names = ["cat", "dog", "fox", "owl"]
    labels[33, 2], labels[8, 1] = 1, 0 if share < 1 else labels[8, 1]
    if share < 1:
        scores[8, 1] = np.nan
        metric(scores, labels)
        metric(scores, Labels.from_dense(labels, classes=names))
    scores[33, 2] = np.nan
    with small_blocks(1500):
        with pytest.raises(InputError, match=r'class 2 \("2"\) in row 33 is NaN'):
            metric(scores, labels)
        with pytest.raises(InputError, match=r'class 2 \("fox"\) in row 33 is NaN'):
            metric(scores, Labels.from_dense(labels, classes=names))


@pytest.mark.parametrize("metric", EVERY)
def test_shapes_and_types_are_checked(metric):
    scores, labels = random_problem(6, 4)
    with pytest.raises(InputError, match=r"\(6, 3\) do not fit labels of shape \(6, 4\)"):
        metric(scores[:, :3], labels)
    with pytest.raises(InputError, match=r"\(5, 4\) do not fit labels of shape \(6, 4\)"):
        metric(scores[:5], Labels.from_dense(labels))
    with pytest.raises(InputError, match="float16, float32 or float64, not int64"):
        metric(labels.astype(np.int64), labels)
    with pytest.raises(InputError, match="int8, not float64"):
        metric(scores, labels.astype(float))
    with pytest.raises(InputError, match="int8, not int8 of shape"):
        metric(scores, labels.ravel())
    for strange in (2, -3):
        wrong = labels.copy()
        wrong[3, 1] = strange
        with pytest.raises(InputError, match=f"unknown\\), not {strange}"):
            metric(scores, wrong)


def test_arguments_are_checked():
    scores, labels = random_problem(6, 4)
    with pytest.raises(InputError, match=r"one per class \(4\)"):
        metrics.evaluate(scores, labels, [0.5, 0.5])
    with pytest.raises(InputError, match="none NaN"):
        metrics.evaluate(scores, labels, [0.5, 0.5, np.nan, 0.5])
    with pytest.raises(InputError, match="k must be at least 1, not 0"):
        metrics.precision_recall_at_k(scores, labels, 0)
    with pytest.raises(InputError, match="at least 1 bin, not 0"):
        metrics.calibration_error(scores, labels, bins=0)
    with pytest.raises(InputError, match=r"probabilities, not 1\.5"):
        metrics.calibration_error(np.full_like(scores, 1.5), labels)
    with pytest.raises(InputError, match=r"two lists of one length, not \(2,\) and \(3,\)"):
        metrics.spearman([1, 2], [1, 2, 3])
