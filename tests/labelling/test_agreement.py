"""Krippendorff's alpha: published examples, and a slow computation by its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.labelling.agreement import alpha, alphas, alphas_of_people


def counted(*people):
    """Return the table of counts of what each person said, one character for a unit; a dot says nothing."""
    values = sorted({value for row in people for value in row} - {"."})
    return [[sum(row[unit] == value for row in people) for value in values] for unit in range(len(people[0]))]


def slow(units):
    """By definition: observed and expected disagreement of pairs, counted one by one."""
    units = [unit for unit in units if len(unit) > 1]
    values = [value for unit in units for value in unit]
    n = len(values)
    observed = sum(
        sum(a != b for a, b in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in units
    )
    expected = sum(a != b for a, b in itertools.permutations(values, 2))
    return math.nan if not expected else 1 - (observed / n) / (expected / (n * (n - 1)))


@pytest.mark.parametrize(
    ("people", "published"),
    [
        # Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), sections A, B and C.
        (("0100000010", "1110010000"), 0.095),
        (("aabbdcccedda", "babbbccceddd"), 0.692),
        (("123321412...", "1233224125.3", ".3332342251.", "12332441251."), 0.743),
    ],
)
def test_published_examples(people, published):
    assert alpha(counted(*people)) == pytest.approx(published, abs=5e-4)
    said = [[row[unit] for row in people if row[unit] != "."] for unit in range(len(people[0]))]
    assert slow(said) == pytest.approx(published, abs=5e-4)


answers = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([-1, 1])), max_size=30
).map(
    lambda found: [(who, unit, value) for (who, unit), value in {(a[0], a[1]): a[2] for a in found}.items()]
)


@settings(max_examples=200, deadline=None)
@given(answers, st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_by_group_as_by_hand(found, groups):
    counts = np.zeros((6, 2))
    for _, unit, value in found:
        counts[unit, int(value < 0)] += 1
    for group, value in enumerate(alphas(counts, np.array(groups), 3)):
        said = [[v for _, u, v in found if u == unit] for unit in range(6) if groups[unit] == group]
        assert value == pytest.approx(slow(said), nan_ok=True)


@settings(max_examples=200, deadline=None)
@given(answers)
def test_by_person_as_by_hand(found):
    """All pairs with a person: each other person of a unit weighs as little as there are many of them."""
    who, units, values = (
        (np.array(each, dtype=np.int64) for each in zip(*found, strict=True))
        if found
        else (np.zeros(0, dtype=np.int64),) * 3
    )
    computed = alphas_of_people(values.astype(np.int8), who, units, 4)
    for person in range(4):
        totals, different = {1: 0.0, -1: 0.0}, 0.0
        for mine in [each for each in found if each[0] == person]:
            others = [each for each in found if each[1] == mine[1] and each[0] != person]
            for other in others:
                for value in (mine[2], other[2]):
                    totals[value] += 1 / len(others)
                different += 2 * (mine[2] != other[2]) / len(others)
        n, expected = sum(totals.values()), 2 * totals[1] * totals[-1]
        wanted = 1 - (n - 1) * different / expected if expected else math.nan
        assert computed[person] == pytest.approx(wanted, nan_ok=True)


@settings(max_examples=100, deadline=None)
@given(answers)
def test_two_people_have_the_alpha_of_both(found):
    two = [(who % 2, unit, value) for who, unit, value in found if who < 2]
    who, units, values = (np.array([each[part] for each in two], dtype=np.int64) for part in range(3))
    said = [[value for _, u, value in two if u == unit] for unit in range(6)]
    for value in alphas_of_people(values.astype(np.int8), who, units, 2):
        assert value == pytest.approx(slow(said), nan_ok=True)


def test_who_answers_by_chance_stands_out():
    rng = np.random.default_rng(0)
    truth = np.where(rng.random(400) < 0.4, 1, -1)
    said = np.stack([truth, truth, np.where(rng.random(400) < 0.4, 1, -1)]).astype(np.int8)
    said[1, rng.random(400) < 0.05] *= -1
    people, units = np.nonzero(said)
    found = alphas_of_people(said[people, units], people, units, 3)
    assert found[2] < 0.15
    assert min(found[:2]) > found[2] + 0.2


def test_nothing_to_compare():
    assert math.isnan(alpha(np.zeros((0, 2))))
    assert math.isnan(alpha([[1, 0], [0, 1]]))  # nobody shares a unit
    assert math.isnan(alpha([[2, 0], [3, 0]]))  # all the same
    assert alpha([[2, 0], [0, 2]]) == 1
