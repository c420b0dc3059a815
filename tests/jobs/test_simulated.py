"""The queue of `tertium.jobs.cluster` in simulated time: workers that die, and some that are slow."""

import pytest

from bench.cluster import simulate


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dying", [0.0, 0.1, 0.5])
def test_nothing_is_lost_and_nothing_done_twice(dying, seed):
    found = simulate(40, 800, dying=dying, seed=seed)
    assert (found["lost"], found["twice"], found["failed"]) == (0, 0, 0)
    assert found["died"] >= round(40 * dying) - 1  # one may draw a moment when all is done
    assert (found["died"] == 0) == (dying == 0)
    assert 1 <= found["makespan"] < 2


def test_time_is_that_of_the_work_if_all_goes_well():
    assert simulate(10, 1000, dying=0, slow=0)["makespan"] == pytest.approx(1, abs=0.02)
    # One of ten is ten times as slow: with a tenth of the shards for each, all would wait ten times as long.
    assert simulate(10, 100, dying=0, slow=0.1, factor=10)["makespan"] < 2
