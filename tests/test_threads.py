"""Threads: one where more would not pay, and none that wait in a loop."""

import os
import subprocess
import sys

import pytest
import torch

from tertium.threads import WORTH_SHARING, suited_to


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_small_steps_take_one_thread_and_large_ones_all():
    with suited_to(128 * 1280 * 80):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with suited_to(WORTH_SHARING):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_comes_back_after_an_error():
    with pytest.raises(KeyError), suited_to(1):
        raise KeyError
    assert torch.get_num_threads() == 2


def policy(**given):
    """What OpenMP is told where tertium is imported with these variables set."""
    free = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_"))
    }
    code = "import tertium, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    run = [sys.executable, "-c", code]
    return subprocess.run(run, env=free | given, capture_output=True, text=True, check=True).stdout.strip()


def test_waiting_threads_sleep_unless_a_user_chose():
    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"
    assert policy(GOMP_SPINCOUNT="1000") == "None"


@pytest.mark.usefixtures("two_threads")
def test_a_linear_head_trains_on_one_thread(rng):
    import numpy as np

    from tertium import Labels, train

    seen = []
    labels = Labels.from_dense(np.where(rng.random((40, 3)) < 0.5, 1, -1))
    features = rng.normal(size=(40, 8)).astype(np.float32)
    train(labels, features=features, epochs=2, watch=lambda _: seen.append(torch.get_num_threads()) or {})
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
