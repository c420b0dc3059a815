import dataclasses

import numpy as np
import pytest
import torch

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.chen2024 import Gr, Schedule
from tests.methods.test_conformance import loss, make

UNKNOWN = torch.zeros(1, 321, dtype=torch.int8)
GRID = torch.linspace(-8, 8, 321, dtype=torch.float64)[None]


def slope(method, logits, labels, **about):
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(method, logits, labels, **about), logits)
    return gradient * logits.numel()


def test_schedules_go_from_the_first_epoch_to_the_last():
    for epochs in (2, 7, 10):
        assert Gr().schedule(1, epochs) == Schedule(w=0.0, b=-2.0, mu=0.5, sigma=2.0)
        assert Gr().schedule(epochs, epochs) == Schedule(w=2.0, b=-2.0, mu=0.8, sigma=0.5)
    assert Gr().schedule(1, 1) == Gr().schedule(1, 10)
    assert Gr(mu_end=0.9).schedule(4, 7).mu == pytest.approx(0.7)
    between = Gr(w_start=1.0, w_end=4.0, b_end=1.0).schedule(2, 4)
    assert dataclasses.astuple(between) == pytest.approx((2.0, -1.0, 0.6, 1.5))


def test_small_q_is_the_logarithm_and_q_1_the_distance():
    """With K = 1 or 0 and V = 1 the unknown term is ℓ⁺ or p."""
    flat = {"w_start": 0.0, "w_end": 0.0, "sigma_start": 1e6, "sigma_end": 1e6}
    present = make("gr", {"q2": 1e-7, "b_start": 40.0, "b_end": 40.0, **flat})
    torch.testing.assert_close(slope(present, GRID, UNKNOWN), GRID.sigmoid() - 1, atol=1e-5, rtol=0)
    absent = make("gr", {"q3": 1.0, "b_start": -40.0, "b_end": -40.0, **flat})
    p = GRID.sigmoid()
    torch.testing.assert_close(loss(absent, GRID, UNKNOWN), p.mean())
    torch.testing.assert_close(slope(absent, GRID, UNKNOWN), p * (1 - p))


def test_unknowns_count_most_at_the_confidence_of_the_epoch():
    """V is a weight: narrow, it leaves nothing of a label far from μ."""
    narrow = make("gr", {"sigma_end": 0.05, "mu_end": 0.5})
    last = slope(narrow, GRID, UNKNOWN, epoch=10).abs()
    assert last[0, 160] > 1000 * last[0, 80]  # p = 1/2 against p = 0.02


def test_starts_where_the_losses_of_the_first_epoch_balance(rng):
    labels = (rng.random((20_000, 2)) < [0.01, 0.2]).astype(np.int8)
    rate = make("gr").initial_rate(Labels.from_dense(labels))
    bias = torch.logit(torch.from_numpy(rate)).expand(labels.shape)
    pull = slope(make("gr"), bias, torch.from_numpy(labels), epoch=1).mean(dim=0)
    assert pull.abs().max() < 1e-4
    assert 0.12 < rate[0] < rate[1]


@pytest.mark.parametrize("field", ["q2", "q3", "sigma_start", "sigma_end"])
def test_bad_parameters_are_named(field):
    with pytest.raises(InputError, match=f"{field} of gr must be above 0"):
        make("gr", {field: 0.0})
