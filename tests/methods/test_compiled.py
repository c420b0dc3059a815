"""The compiled form of a loss is the written one: same value, same gradient, whatever the batch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from tertium.data.batches import Batch
from tertium.methods import make
from tertium.methods.losses import compiled, curves, known
from tests.methods.doors import labels_of, make_run, started

QUICK = [("negative", {})]
SLOW = [
    ("negative", {"positive_weight": 5.0}),
    ("p_asl", {}),
    ("wan", {}),
    ("an_ls", {}),
    ("bce", {}),
    ("epr", {"k": 3.0}),
    ("role", {"k": 3.0}),
    ("ll_r", {}),
    ("ll_ct", {}),
    ("ll_cp", {}),
    ("selective", {}),
    ("selective", {"prior": None, "pool": "batch"}),
    ("p_asl", {"gamma_negative": 2.0, "gamma_unknown": 7.0}),
    ("asl", {}),
    ("asl", {"clip": 0.0, "gamma_positive": 1.0}),
    ("focal", {}),
    ("hill", {}),
    ("splc", {}),
    ("gr", {}),
    ("likelihood", {"labels_per_image": 6.0}),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not tried its compiler yet, and gathers whatever the size."""
    monkeypatch.delenv("TERTIUM_COMPILE", raising=False)
    monkeypatch.setattr(compiled, "_compiler", compiled._Compiler())
    monkeypatch.setattr(known, "_GATHER_FROM", 0)
    monkeypatch.setattr(known, "_FEW", 1.0)


def from_size(monkeypatch, entries):
    monkeypatch.setattr(compiled, "_COMPILE_FROM", entries)


def problem(rows, columns=40, seed=0, scale=4.0):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(-1, scale, size=(rows, columns)).astype(np.float32))
    return logits, labels_of(rng, rows, columns, known=0.1)


def step(name, parameters, logits, labels, epoch=2):
    """Return the terms and the gradient of one step on a new run."""
    method = make(name, parameters)
    run = started(method, make_run(labels, epoch=epoch))
    logits = logits.clone().requires_grad_()
    batch = Batch(torch.empty(len(logits), 0), labels, torch.arange(len(logits)))
    terms = method.terms(logits, batch, run)
    sum(terms.values()).backward()
    return [value.detach() for value in terms.values()], logits.grad


def graphs():
    return counters["stats"]["unique_graphs"]


def check_equal(monkeypatch, name, parameters):
    for rows, scale in ((33, 4.0), (57, 30.0)):
        logits, labels = problem(rows, scale=scale)
        from_size(monkeypatch, 10**12)
        values, gradient = step(name, parameters, logits, labels)
        from_size(monkeypatch, 0)
        before = graphs()
        found_values, found = step(name, parameters, logits, labels)
        assert compiled._compiler.tried
        assert not compiled._compiler.broken
        torch.testing.assert_close(found_values, values, rtol=2e-6, atol=1e-6)
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6 * gradient.abs().max().item())
    assert graphs() == before  # the second batch is of another size


@pytest.mark.parametrize(("name", "parameters"), QUICK)
def test_compiled_equals_written(monkeypatch, name, parameters):
    check_equal(monkeypatch, name, parameters)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), SLOW)
def test_every_compiled_loss_equals_the_written_one(monkeypatch, name, parameters):
    check_equal(monkeypatch, name, parameters)


@pytest.mark.slow
def test_a_schedule_does_not_compile_each_epoch_anew(monkeypatch):
    from_size(monkeypatch, 0)
    logits, labels = problem(33)
    step("gr", {}, logits, labels, epoch=2)
    before = graphs()
    for epoch in (3, 4, 9):
        step("gr", {}, logits, labels, epoch=epoch)
    assert graphs() == before


def test_the_series_is_as_exact_as_float32(monkeypatch):
    """Near 0, far out, and between: against float64."""
    from_size(monkeypatch, 0)
    logits = torch.cat([torch.linspace(-90, 90, 40_001), torch.tensor([0.0, -0.0, 1e-30, 200.0, -200.0])])
    exact = logits.double()
    loss, slope = compiled.one_pass(compiled.softplus_and_sigmoid, logits)
    assert compiled._compiler.tried
    assert not compiled._compiler.broken
    torch.testing.assert_close(loss.double(), torch.logaddexp(exact, torch.zeros(())), rtol=1e-6, atol=1e-37)
    torch.testing.assert_close(slope.double(), exact.sigmoid(), rtol=1e-6, atol=1e-37)


def forbid(monkeypatch):
    """Any attempt to compile fails, and is counted."""
    attempts = []

    def fail(*arguments, **options):
        attempts.append(arguments)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled, "_attempt", fail)
    return attempts


@pytest.mark.parametrize("name", ["negative", "epr", "role", "ll_r", "selective", "asl"])
def test_a_broken_compiler_is_tried_once_and_changes_nothing(monkeypatch, name):
    logits, labels = problem(20)
    from_size(monkeypatch, 10**12)
    values, gradient = step(name, {}, logits, labels)
    attempts = forbid(monkeypatch)
    from_size(monkeypatch, 0)
    for _ in range(2):
        found_values, found = step(name, {}, logits, labels)
        torch.testing.assert_close(found_values, values)
        torch.testing.assert_close(found, gradient)
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("entries", "dtype", "setting"), [(801, "float32", ""), (0, "float64", ""), (0, "float32", "0")]
)
def test_not_compiled_below_the_threshold_in_double_or_if_switched_off(monkeypatch, entries, dtype, setting):
    attempts = forbid(monkeypatch)
    logits, labels = problem(20)  # 800 entries
    from_size(monkeypatch, entries)
    monkeypatch.setenv("TERTIUM_COMPILE", setting)
    step("negative", {}, logits.to(getattr(torch, dtype)), labels)
    assert not attempts
    monkeypatch.setenv("TERTIUM_COMPILE", "1")
    from_size(monkeypatch, 800)
    step("negative", {}, logits, labels)
    assert len(attempts) == 1


def test_a_factor_and_a_second_way_back_reach_the_gradient():
    """The gradient is handed out as it is where the factor is 1; it must not be spoilt by that."""
    logits, labels = problem(20)
    logits.requires_grad_()
    value = known.assumed_bce(logits, labels)
    value.backward(retain_graph=True)
    once = logits.grad.clone()
    value.backward(retain_graph=True)
    torch.testing.assert_close(logits.grad, 2 * once)
    (3 * value).backward()
    torch.testing.assert_close(logits.grad, 5 * once)


def test_classes_of_a_vector_stay_with_their_columns(monkeypatch):
    """Where the few are put right, each gets what belongs to its own class."""
    logits, labels = problem(20)
    weight = torch.linspace(0, 1, 40)

    def unknown(logits, weight):
        return logits * weight, weight.expand(logits.shape).clone()

    def nothing(logits, signs):
        return torch.zeros_like(logits), torch.zeros_like(logits)

    found = []
    for entries in (0, 10**12):
        from_size(monkeypatch, entries)
        monkeypatch.setattr(compiled, "_attempt", lambda function, *tensors: function(*tensors))
        found.append(curves.mean_loss(logits, labels, unknown, nothing, classes=(weight,)))
    expected = (logits * weight * (labels == 0)).mean()
    torch.testing.assert_close(found, [expected, expected])


SCRIPT = """
import sys, torch
from tertium.methods.losses import compiled
from tertium.methods.losses.known import assumed_bce
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
logits = torch.linspace(-5, 5, 2**21).reshape(64, -1).requires_grad_()
labels = torch.zeros(logits.shape, dtype=torch.int8)
for _ in range(2):
    value = assumed_bce(logits, labels)
exact = torch.nn.functional.softplus(logits).mean()
print(compiled._compiler.broken, abs(value.item() - exact.item()) < 1e-6)
"""


@pytest.mark.parametrize("works", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_process_without_a_compiler_says_nothing(works, tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    if not works:
        environment["CXX"] = "/bin/false"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(not works), "True"]
    assert done.stderr == ""
