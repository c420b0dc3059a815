import numpy as np
import pytest
import torch

from tertium.errors import InputError
from tertium.labels import Labels
from tests.methods.doors import labels_of
from tests.methods.test_conformance import loss, make

GRID = torch.linspace(-8, 8, 321, dtype=torch.float64)[None]


def slope(method, logits, labels, **about):
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(method, logits, labels, **about), logits)
    return gradient * logits.numel()


def test_hill_turns_back_for_confident_unknowns():
    """Up to p = 1/2 the push downwards grows, then it fades: 3p²(1 − p)² with λ = 1.5."""
    p = GRID.sigmoid()
    found = slope(make("hill"), GRID, torch.zeros(GRID.shape, dtype=torch.int8))
    torch.testing.assert_close(found, 3 * p**2 * (1 - p) ** 2)
    assert found.argmax() == GRID.numel() // 2
    assert found[0, -1] < found.max() / 1000
    raised = slope(make("hill", {"lam": 3.0}), GRID, torch.zeros(GRID.shape, dtype=torch.int8))
    assert GRID[0, raised.argmax()] > 0.25


def test_known_absences_do_not_fade():
    absent = torch.full(GRID.shape, -1, dtype=torch.int8)
    torch.testing.assert_close(slope(make("hill"), GRID, absent), GRID.sigmoid())
    pushed = slope(make("splc"), GRID, absent)
    assert (pushed.diff() > 0).all()


@pytest.mark.parametrize("name", ["hill", "splc"])
def test_positives_are_pulled_as_if_a_margin_lower(name):
    present = torch.ones(GRID.shape, dtype=torch.int8)
    miss = (1 - GRID).sigmoid()
    torch.testing.assert_close(slope(make(name), GRID, present), -(miss**3))
    whole = slope(make(name, {"detached": False}), GRID, present)
    assert (whole < -(miss**3)).all()


def test_splc_changes_nothing_before_its_start(rng):
    logits, labels = torch.from_numpy(rng.normal(scale=3, size=(40, 30))), labels_of(rng, 40, 30)
    early, never = make("splc"), make("splc", {"start": 100})
    assert loss(early, logits, labels, epoch=1) == loss(never, logits, labels, epoch=1)
    assert loss(early, logits, labels, epoch=2) != loss(never, logits, labels, epoch=2)
    # Without margin, and with no label above the threshold, that is the focal loss on unknown as absent.
    plain = make("splc", {"margin": 0.0, "start": 3})
    torch.testing.assert_close(loss(plain, logits, labels), loss(make("focal"), logits, labels))


def test_splc_turns_only_unknown_labels_above_its_threshold(rng):
    logits, labels = torch.from_numpy(rng.normal(scale=3, size=(40, 30))), labels_of(rng, 40, 30)
    before, after = (slope(make("splc"), logits, labels, epoch=epoch) for epoch in (1, 2))
    turned = (labels == 0) & (logits.sigmoid() > 0.6)
    assert turned.any()
    assert (after[turned] < 0).all()
    assert (before[turned] > 0).all()
    assert torch.equal(before[~turned], after[~turned])


def test_hill_starts_where_its_curves_balance(rng):
    """p² hardly pushes a small p down, so the answer lies far above the observed rate."""
    labels = np.where(rng.random((20_000, 2)) < [0.01, 0.2], 1, 0).astype(np.int8)
    labels[:5000] -= (labels[:5000] == 0) * (rng.random((5000, 2)) < [0, 0.5]).astype(np.int8)
    known = Labels.from_dense(labels)
    rate = make("hill").initial_rate(known)
    assert rate[0] == pytest.approx(0.055, abs=0.005)  # √(0.01/3), less the fading
    bias = torch.logit(torch.from_numpy(rate)).expand(labels.shape)
    pull = slope(make("hill"), bias, torch.from_numpy(labels)).mean(dim=0)
    assert pull.abs().max() < 1e-4
    observed = torch.logit(torch.from_numpy((labels > 0).mean(axis=0))).expand(labels.shape)
    assert slope(make("hill"), observed, torch.from_numpy(labels)).mean(dim=0).abs().min() > 1e-3


@pytest.mark.parametrize("detached", [True, False])
def test_splc_starts_where_its_curves_balance_before_any_correction(rng, detached):
    labels = (rng.random((20_000, 3)) < [0.01, 0.2, 0.9]).astype(np.int8)
    method = make("splc", {"detached": detached})
    rate = method.initial_rate(Labels.from_dense(labels))
    bias = torch.logit(torch.from_numpy(rate)).expand(labels.shape)
    pull = slope(method, bias, torch.from_numpy(labels), epoch=1).mean(dim=0)
    assert pull[:2].abs().max() < 1e-4
    assert rate[0] > 0.1
    assert rate[2] == 0.6  # believing in everything is no start


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("hill", {"lam": 0.5}, "at least 1"),
        ("hill", {"gamma": -1}, "gamma of hill must be at least 0"),
        ("splc", {"threshold": 1.0}, r"must lie in \(0, 1\)"),
        ("splc", {"start": 0}, "before epoch 1"),
        ("splc", {"margin": "inf"}, "finite"),
    ],
)
def test_bad_parameters_are_named(name, parameters, message):
    with pytest.raises(InputError, match=message):
        make(name, parameters)
