import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.splits import divide
from tests.labels.test_labels import MATRICES


def test_divide_is_stratified_and_repeatable(rng):
    frequency = np.geomspace(0.5, 0.002, 30)
    matrix = np.where(rng.random((3000, 30)) < frequency, 1, -1)
    labels = Labels.from_dense(matrix)
    first, second = divide(labels, 0.15, seed=3)
    assert sorted([*first, *second]) == list(range(3000))
    assert abs(len(second) - 450) <= 5
    for part in (first, second):
        reached = (matrix[part] > 0).any(axis=0)
        assert reached[(matrix > 0).sum(axis=0) >= 2].all()
    again, _ = divide(labels, 0.15, seed=3)
    np.testing.assert_array_equal(first, again)
    other, _ = divide(labels, 0.15, seed=4)
    assert not np.array_equal(first, other)


@given(MATRICES, st.floats(0.05, 0.95), st.integers(0, 5))
def test_divide_never_loses_a_row(matrix, fraction, seed):
    first, second = divide(Labels.from_dense(matrix), fraction, seed)
    assert sorted([*first, *second]) == list(range(len(matrix)))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_the_share_must_be_possible(fraction):
    with pytest.raises(InputError, match="between 0 and 1"):
        divide(Labels.from_dense([[1]]), fraction, 0)


def test_a_class_of_two_images_reaches_both_parts_even_if_the_draw_says_otherwise():
    matrix = np.full((100, 12), -1)
    matrix[:, 0] = 1
    for column in range(1, 12):
        matrix[[2 * column, 2 * column + 1], column] = 1
    for seed in range(10):
        first, second = divide(Labels.from_dense(matrix), 0.1, seed)
        for part in (first, second):
            assert (matrix[part] > 0).any(axis=0).all()
