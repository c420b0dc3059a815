import math

import numpy as np
import pytest
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.methods import make
from tertium.methods.kim2022 import LlCp, LlR, _share, large_losses
from tests.methods.doors import labels_of, make_run, started
from tests.methods.test_conformance import loss
from tests.reference import REFERENCES

NAMES = ["ll_r", "ll_ct", "ll_cp"]


@pytest.fixture
def scores(rng):
    """Logits without ties [40, 50], and labels of which 60 % are unknown."""
    return torch.from_numpy(rng.normal(scale=2, size=(40, 50))).float(), labels_of(rng, 40, 50)


def gradient_of(method, logits, labels, **about):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(method, logits, labels, **about), logits)[0]


def modified_by(method, logits, labels, epoch):
    """The entries that are not treated as `negative` treats them, told by the gradient."""
    plain = gradient_of(make("negative"), logits, labels)
    return (gradient_of(method, logits, labels, epoch=epoch) - plain).abs() > 1e-7


def on_batch(method, logits, labels, run, index=None):
    """One whole step; returns the loss."""
    index = torch.arange(len(logits)) if index is None else index
    batch = Batch(torch.empty(len(logits), 0), labels, index)
    value = method.terms(logits, batch, run)["bce"]
    method.after_step(logits, batch, run)
    return value


@pytest.mark.parametrize("threshold", ["relative", "absolute"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_epoch_is_plain_negative(name, threshold, scores):
    method = make(name, {"delta": 50, "threshold": threshold, "start": 0.1})
    assert torch.equal(loss(method, *scores, epoch=1), loss(make("negative"), *scores))
    assert not torch.equal(loss(method, *scores, epoch=2), loss(make("negative"), *scores))


@pytest.mark.parametrize("rate_of", ["unknown", "all"])
@pytest.mark.parametrize("epoch", [2, 3, 11])
@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_largest_unknown_losses_are_modified(name, epoch, rate_of, scores):
    logits, labels = scores
    method = make(name, {"rate_of": rate_of})
    unknown = int((labels == 0).sum())
    tenths = {"ll_r": 4 * (epoch - 1), "ll_ct": 2 * (epoch - 1), "ll_cp": 2}[name]
    total = unknown if rate_of == "unknown" else 2000
    count = -(-tenths * total // 1000)
    changed = modified_by(method, logits, labels, epoch)
    assert changed.sum() == count
    assert (labels[changed] == 0).all()
    assert logits[changed].min() > logits[(labels == 0) & ~changed].max()
    gradient = gradient_of(method, logits, labels, epoch=epoch)[changed]
    assert (gradient == 0).all() if name == "ll_r" else (gradient < 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_never_more_than_the_unknown_labels(name, scores):
    """The authors' threshold of 0 hits the known labels too once it runs out of unknown ones."""
    logits, labels = scores
    method = make(name, {"delta": 90, "rate_of": "all"})
    assert torch.equal(modified_by(method, logits, labels, 5), labels == 0)


def test_counts_are_exact():
    assert _share(0.2, 1, 1000) == 2
    assert _share(0.2, 3, 500) == 3  # floats say 4: 3 · 0.2/100 · 500 = 3.0000000000000004
    assert math.ceil(3 * 0.2 / 100 * 500) == 4
    assert _share(0.2, 1, 1) == 1
    assert _share(0.2, 1, 0) == 0
    assert _share(1e-5, 1, 10**7 + 1) == 2


@pytest.mark.parametrize("count", [0, 1, 7, 100, 2000, 9999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ties_do_not_change_the_count(count, dtype, rng, scores):
    _, labels = scores
    unknown = labels == 0
    for values in (np.zeros((40, 50)), rng.integers(-3, 3, (40, 50))):
        logits = torch.from_numpy(values).to(dtype)
        chosen = large_losses(logits, labels, count)
        assert chosen.sum() == min(count, int(unknown.sum()))
        assert not chosen[~unknown].any()
        if 0 < count < unknown.sum():
            assert logits[chosen].min() >= logits[unknown & ~chosen].max()
            tied = (unknown & (logits == logits[chosen].min())).nonzero()
            taken = chosen[tied[:, 0], tied[:, 1]].int()
            assert (taken.diff() <= 0).all()  # the first ones, row by row


@pytest.mark.parametrize("kind", ["any", "one class", "equal", "none sampled", "rising"])
def test_exactly_the_largest_of_very_many_are_chosen(rng, kind):
    """Whatever a sample of the logits says about them."""
    shape, count = (100, 600), 400
    values = rng.normal(size=shape).astype(np.float32)
    if kind == "one class":
        values[:, 7] += 20
    elif kind == "equal":
        values[:] = 1
    elif kind == "none sampled":
        values.reshape(-1)[::61] = -5
    elif kind == "rising":
        values = np.sort(values, axis=None).reshape(shape)
    labels = rng.choice(np.array([-1, 0, 1], dtype=np.int8), p=[0.05, 0.9, 0.05], size=shape)
    order = np.argsort(np.where(labels == 0, -values, np.inf), axis=None, kind="stable")
    expected = np.zeros(shape, dtype=bool)
    expected.reshape(-1)[order[:count]] = True
    found = large_losses(torch.from_numpy(values), torch.from_numpy(labels), count)
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_ties_leave_the_loss_to_the_logits(name, rng, scores):
    labels = scores[1]
    logits = torch.from_numpy(rng.integers(-2, 3, (40, 50))).double()
    method, rows, columns = make(name, {"delta": 7}), rng.permutation(40), rng.permutation(50)
    moved = loss(method, logits[rows][:, columns], labels[rows][:, columns])
    torch.testing.assert_close(moved, loss(method, logits, labels))


@pytest.mark.parametrize("name", NAMES)
def test_absolute_threshold_falls_with_the_epochs(name, scores):
    logits, labels = scores
    method = make(name, {"threshold": "absolute", "start": 3.0, "step": 0.5})
    for epoch, limit in ((2, 2.0), (4, 1.0), (6, 0.0), (9, -1.5)):
        expected = (labels == 0) & (torch.nn.functional.softplus(logits) > limit)
        assert torch.equal(modified_by(method, logits, labels, epoch), expected)
        assert expected.any()


def test_corrections_stay_and_grow(rng, scores):
    labels = scores[1]
    method, run = make("ll_cp", {"delta": 5}), make_run(labels, epoch=1)
    table = run.state.table("corrected", kind="flag")
    left, before = int((labels == 0).sum()), table.values.clone()
    for run.epoch in range(1, 6):
        logits = torch.from_numpy(rng.normal(size=(40, 50)))
        run.at = logits.tolist()
        parameters = {"delta": 5.0, "threshold": "relative", "start": 2.0, "step": 0.05, "rate_of": "unknown"}
        expected = REFERENCES["ll_cp"](logits.tolist(), labels.tolist(), run, **parameters)
        assert on_batch(method, logits, labels, run).item() == pytest.approx(expected)
        assert table.values[before].all()
        fresh = int((table.values & ~before).sum())
        assert fresh == (0 if run.epoch == 1 else -(-5 * left // 100))
        assert not table.values[labels != 0].any()
        left, before = left - fresh, table.values.clone()
    assert before.any()
    assert run.state.tensors == {}  # nothing lives on from a step
    run.epoch = 1  # a second phase begins: what was corrected is still present
    logits = torch.from_numpy(rng.normal(size=(40, 50)))
    known = labels.masked_fill(before, 1)
    torch.testing.assert_close(on_batch(method, logits, labels, run), loss(make("negative"), logits, known))


def test_corrections_belong_to_the_images_of_the_batch(scores):
    """Also where a batch holds an image twice, as the last one of several processes may."""
    logits, labels = scores
    method, run = make("ll_cp", {"delta": 10}), make_run(labels)
    index = torch.tensor([31, 4, 31])
    logits = logits[:3].clone()
    logits[0] += 9  # all that is chosen is in the first row
    on_batch(method, logits, labels[index], run, index)
    corrected = run.state.table("corrected").values
    assert corrected[31].sum() == corrected.sum() == -(-10 * int((labels[index] == 0).sum()) // 100)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_modified_is_mostly_a_missed_positive(name, rng):
    """A linear model on features, one in four positives known and nothing else.

    The rate, the batches and the start were set so that the model learns within six epochs; slower
    settings stayed below five times chance for ll_ct and ll_cp.
    """
    features = torch.from_numpy(rng.normal(size=(500, 12))).float()
    weights = torch.from_numpy(rng.normal(size=(12, 6))).float()
    truth = (features @ weights) / weights.norm(dim=0) > 1
    labels = (truth & torch.from_numpy(rng.random((500, 6)) < 0.25)).to(torch.int8)
    model = torch.nn.Linear(12, 6)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.constant_(model.bias, -3.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    method, run = make(name, {"delta": 1}), make_run(labels, epoch=1)
    started(method, run)
    modified = []
    for run.epoch in range(1, 7):
        for rows in torch.from_numpy(rng.permutation(500)).split(20):
            batch = Batch(features[rows], labels[rows], rows)
            logits = model(batch.inputs)
            value = method.terms(logits, batch, run)["bce"]
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            method.after_step(logits.detach(), batch, run)
            if name != "ll_cp":
                changed = modified_by(method, logits.detach(), labels[rows], run.epoch)
                modified.append(truth[rows][changed])
    if name == "ll_cp":
        modified = [truth[run.state.table("corrected").values]]
    found = torch.cat(modified).float()
    chance = truth[labels == 0].float().mean()
    assert len(found) > 100
    assert chance < 0.15
    assert found.mean() > 5 * chance


@pytest.mark.parametrize("name", NAMES)
def test_the_labels_of_the_batch_are_left_alone(name, scores):
    logits, labels = scores
    given, run = labels.clone(), make_run(labels)
    on_batch(make(name, {"delta": 50}), logits, labels, run)
    assert torch.equal(labels, given)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"delta": -0.1}, "percentage"),
        ({"delta": 101}, "percentage"),
        ({"start": 0}, "above 0"),
        ({"step": -1}, "not be negative"),
        ({"threshold": "absolut"}, "absolute"),
        ({"rate_of": "known"}, "unknown"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(InputError, match=message):
        make("ll_r", parameters)
    with pytest.raises(InputError, match=message):
        LlCp(**parameters)


def test_a_rate_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="percentage"):
        LlR(delta=math.nan)
