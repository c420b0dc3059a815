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


@pytest.mark.parametrize("workers", [1, 2])
def test_an_item_that_is_given_up_does_not_end_the_work(workers):
    """At that moment all workers may be gone: others begin, and go on with the rest."""
    given_up = 0
    for seed in range(20):
        found = simulate(workers, 60, dying=1.0, tries=1, seed=seed)
        assert (found["lost"], found["twice"]) == (0, 0)
        assert found["failed"] <= found["died"]
        given_up += found["failed"]
    assert given_up > 5


def test_time_is_that_of_the_work_if_all_goes_well():
    assert simulate(10, 1000, dying=0, slow=0)["makespan"] == pytest.approx(1, abs=0.02)
    # One of ten is ten times as slow: with a tenth of the shards for each, all would wait ten times as long.
    assert simulate(10, 100, dying=0, slow=0.1, factor=10)["makespan"] < 2
