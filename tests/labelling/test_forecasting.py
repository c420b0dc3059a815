"""What the next answers will bring: intervals that hold, also where the model's probabilities do not."""

import numpy as np
import pytest
from scipy.special import expit, logit

from tertium.labelling.forecasting import FEWEST, forecast


def asked(rng, size=220, shift=0.0, slope=1.0, classes=10, differ=0.5):
    """Questions with the model's probabilities, and answers that follow others."""
    chances = rng.uniform(0.1, 0.9, size)
    own = rng.integers(0, classes, size)
    truth = expit(shift + slope * logit(chances) + differ * rng.standard_normal(classes)[own])
    return chances, own, rng.random(size) < truth


@pytest.mark.parametrize(
    ("shift", "slope", "differ"), [(0.0, 1.0, 0.0), (2.0, 1.0, 0.5), (-1.5, 0.3, 0.5), (0.0, 2.0, 1.0)]
)
def test_the_interval_holds_what_comes(shift, slope, differ):
    """In at least 85 of 100 draws, whether or not the probabilities were right."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        chances, own, present = asked(rng, shift=shift, slope=slope, differ=differ)
        for given in (40, 120):
            said = forecast(chances, own, present[:given])
            came = present[given : given + said.next]
            surprises = (came != (chances[given : given + said.next] >= 0.5)).sum()
            for interval, number in ((said.next_present, came.sum()), (said.next_surprising, surprises)):
                held.append(interval.low <= number <= interval.high)
    assert np.mean(held) >= 0.85


def test_answers_correct_the_model():
    """Where the model said 44 % and people find 96 %, fifty answers are enough to say so."""
    rng = np.random.default_rng(1)
    present = rng.random(150) < 0.96
    said = forecast(np.full(150, 0.44), np.zeros(150), present[:50])
    assert said.next_present.low > 75
    assert said.next_present.expected == pytest.approx(present[50:].sum(), abs=8)
    assert said.surprising == said.present  # the model held all absent


def test_more_answers_narrow_it():
    rng = np.random.default_rng(2)
    chances, own, present = asked(rng, size=500)
    widths = []
    for given in (25, 400):
        found = forecast(chances, own, present[:given]).next_present
        widths.append(found.high - found.low)
    assert widths[1] < widths[0]


def test_what_is_counted():
    chances = [0.9, 0.2] * 30
    present = [True, True] * 12  # each second one surprising
    found = forecast(chances, ["a"] * 60, present, ahead=10)
    assert (found.answers, found.present, found.surprising) == (24, 24, 12)
    assert (found.recent, found.recent_surprising, found.next) == (10, 5, 10)
    before, _, after = found.words().partition(". ")
    assert before == "Of 24 labels answered, 12 contradict what the model held likelier: 5 of the last 10"
    assert after.startswith("Of the next 10, ")
    assert forecast(chances, ["a"] * 60, present, ahead=10) == found  # no chance in it


def test_nothing_is_said_too_early_or_at_the_end():
    chances, own = np.full(30, 0.5), np.zeros(30)
    assert forecast(chances, own, np.ones(FEWEST - 1)) is None
    assert forecast(chances, own, np.ones(30)) is None
    assert forecast(chances, own, np.ones(29)).next == 1
    assert forecast([], [], []) is None


@pytest.mark.parametrize("answer", [True, False])
def test_answers_that_are_all_the_same_and_sure_probabilities(answer):
    """Nothing overflows."""
    found = forecast(np.tile([0.0, 1.0], 50), np.arange(100), np.full(60, answer))
    assert 0 <= found.next_present.low <= found.next_present.high <= 40
