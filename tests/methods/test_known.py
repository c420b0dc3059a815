import numpy as np
import pytest
import torch

from tertium.methods.losses import known
from tertium.methods.losses.curves import known_entries
from tertium.methods.losses.known import assumed_bce, known_bce


@pytest.mark.parametrize("shape", [(4, 6), (16, 8), (3, 7), (1, 1), (40, 50)])
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_places_are_those_of_a_plain_search(shape, share, rng):
    labels = (rng.choice([-1, 1], size=shape) * (rng.random(shape) < share)).astype(np.int8)
    np.testing.assert_array_equal(known_entries(torch.from_numpy(labels)), np.flatnonzero(labels))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_gathering_equals_masking(monkeypatch, weighted, share, rng):
    """Both ways of computing the loss agree in value and gradient."""
    labels = torch.from_numpy(
        (rng.choice([-1, 1], size=(12, 20)) * (rng.random((12, 20)) < share)).astype(np.int8)
    )
    weight = torch.from_numpy(rng.random(12)) if weighted else None
    found = []
    for limit in (0, 10**9):
        monkeypatch.setattr(known, "_GATHER_FROM", limit)
        logits = torch.from_numpy(np.random.default_rng(5).normal(size=(12, 20))).requires_grad_()
        value = 3 * known_bce(logits, labels, weight)  # the factor must reach the gradient
        value.backward()
        found.append((value.detach(), logits.grad))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positive_weight": 5.0},
        {"absent_weight": 0.1},
        {"smoothing": 0.1},
        {"positive_weight": 2.0, "smoothing": 0.2},
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_assuming_the_rest_absent_is_the_same_in_both_ways(monkeypatch, settings, share, rng):
    labels = torch.from_numpy(
        (rng.choice([-1, 1], size=(12, 20)) * (rng.random((12, 20)) < share)).astype(np.int8)
    )
    found = []
    for limit in (0, 10**9):
        monkeypatch.setattr(known, "_GATHER_FROM", limit)
        logits = torch.from_numpy(10 * np.random.default_rng(5).normal(size=(12, 20))).requires_grad_()
        value = 3 * assumed_bce(logits, labels, **settings)
        value.backward()
        found.append((value.detach(), logits.grad))
    torch.testing.assert_close(found[0], found[1])


def test_extreme_logits_stay_exact(monkeypatch):
    """A confident mistake costs what it should, and has its gradient, in float32 too."""
    monkeypatch.setattr(known, "_GATHER_FROM", 0)
    logits = torch.tensor([[-100.0, 100.0]], requires_grad=True)
    value = assumed_bce(logits, torch.tensor([[1, 0]], dtype=torch.int8))
    value.backward()
    assert value.item() == 100.0
    assert logits.grad.tolist() == [[-0.5, 0.5]]


def test_the_gathered_gradient_is_that_of_finite_differences(monkeypatch, rng):
    monkeypatch.setattr(known, "_GATHER_FROM", 0)
    labels = torch.tensor([[1, 0, -1], [0, 0, 1]], dtype=torch.int8)
    logits = torch.from_numpy(rng.normal(size=(2, 3))).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: known_bce(z, labels), (logits,))
