import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.zhang2023 import Pseudo
from tests.methods.doors import labels_of, make_run, started, step
from tests.methods.test_conformance import loss
from tests.reference.zhang2023 import pseudo as slow

PLAIN = Pseudo(balance=False, exposure=None, penalty=False)
UNKNOWN = torch.zeros(3, 4, dtype=torch.int8)


def gradient_of(method, logits, labels, run):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(step(method, logits, labels, run)[0], logits)[0]


def test_pseudo_labels_are_the_previous_prediction_and_never_the_current_one(rng):
    """Without weights the gradient on unknown labels is (p − target)/(B·C): it shows the target."""
    run = started(PLAIN, make_run(UNKNOWN))
    expected = torch.full((3, 4), 0.5)
    for _ in range(3):
        logits = torch.from_numpy(rng.normal(scale=2, size=(3, 4))).float()
        target = logits.sigmoid() - 12 * gradient_of(PLAIN, logits, UNKNOWN, run)
        torch.testing.assert_close(target, expected)
        PLAIN.after_step(logits, Batch(torch.empty(3, 0), UNKNOWN, torch.arange(3)), run)
        expected = logits.sigmoid()


def test_pseudo_labels_belong_to_images_not_to_places_in_the_batch():
    run = started(PLAIN, make_run(UNKNOWN))
    PLAIN.after_step(torch.tensor([[3.0] * 4]), Batch(torch.empty(1, 0), UNKNOWN[:1], torch.tensor([2])), run)
    stored = run.state.table("pseudo").values
    assert stored[:2].isnan().all()
    assert stored[2].tolist() == [3.0] * 4


def test_later_steps_agree_with_slow_loops(rng):
    """The battery compares first steps, in which all pseudo-labels are alike."""
    labels = labels_of(rng, 4, 5)
    for method in (Pseudo(), Pseudo(exposure="linear", balance=False)):
        run = started(method, make_run(labels, epoch=5))
        before, logits = torch.from_numpy(rng.normal(scale=3, size=(2, 4, 5))).double()
        method.after_step(before, step(method, before, labels, run)[1], run)
        run.at = logits.tolist()
        fast = step(method, logits, labels, run)[0].item()
        assert fast == pytest.approx(slow(logits.tolist(), labels.tolist(), run, **vars(method)), rel=1e-6)


def test_known_labels_keep_their_own_targets(rng):
    labels = labels_of(rng, 5, 4, known=1.0)
    run = started(PLAIN, make_run(labels))
    logits = torch.from_numpy(rng.normal(size=(5, 4))).float()
    PLAIN.after_step(-logits, Batch(torch.empty(5, 0), labels, torch.arange(5)), run)
    found = logits.sigmoid() - 20 * gradient_of(PLAIN, logits, labels, run)
    torch.testing.assert_close(found, labels.gt(0).float(), atol=1e-5, rtol=0)


def test_the_unknown_part_counts_as_much_as_the_known_one_at_e_minus_m():
    run = make_run(UNKNOWN)  # of 10 epochs
    for exposure in ("exponential", "linear"):
        trust = []
        for run.epoch in range(1, 11):
            trust.append(Pseudo(exposure=exposure).trust(run))
        assert trust[10 - 3] == 1.0  # epochs from 0
        assert all(earlier < later for earlier, later in pairwise(trust))
    assert trust[0] == pytest.approx(0.3)
    run.epoch = 1
    assert Pseudo().trust(run) == pytest.approx(math.exp(-0.7))
    assert Pseudo(margin=10).trust(run) == 1.0
    assert Pseudo(exposure=None).trust(run) == 1.0


def test_exposure_scales_the_unknown_part_alone(rng):
    labels = labels_of(rng, 6, 5)
    logits = torch.from_numpy(rng.normal(size=(6, 5))).float()
    off, on = (
        gradient_of(method, logits, labels, make_run(labels))
        for method in (Pseudo(exposure=None), Pseudo(exposure="linear"))
    )
    torch.testing.assert_close(on[labels != 0], off[labels != 0])
    torch.testing.assert_close(on[labels == 0], off[labels == 0] * (1 + 3) / 10)


def test_the_penalty_doubles_images_where_all_is_below_a_tenth():
    edge = math.log(0.1 / 0.9)
    logits = torch.full((4, 3), -4.0, dtype=torch.float64)
    logits[1, 2] = edge + 1e-6  # a hair above: not silent
    logits[2, 2] = edge - 1e-6
    logits[3] = 5.0
    labels = torch.tensor([[1, 0, -1]] * 4, dtype=torch.int8)
    off, on = (
        gradient_of(Pseudo(penalty=penalty), logits, labels, make_run(labels)) for penalty in (False, True)
    )
    factor = torch.tensor([[2.0], [1.0], [2.0], [1.0]])
    torch.testing.assert_close(on, off * factor)


def test_balance_weights_presence_and_absence_by_the_share_of_known_positives(rng):
    labels = -torch.ones(10, 10, dtype=torch.int8)
    labels[:2, 0] = 1  # 2 of 100: the floor of 0.05 holds
    logits = torch.from_numpy(rng.normal(size=(10, 10))).float()
    for count, beta in ((0, 0.05), (1, 0.1), (3, 0.3)):
        labels[:, 1 : 1 + count] = 1
        labels[:2, 0] = -1 if count else 1
        off, on = (
            gradient_of(replace(PLAIN, balance=balance), logits, labels, make_run(labels))
            for balance in (False, True)
        )
        torch.testing.assert_close(on, off * torch.where(labels > 0, 1 - beta, beta))


def test_all_switched_off_full_labels_are_plain_bce(rng):
    labels = labels_of(rng, 6, 5, known=1.0)
    logits = torch.from_numpy(rng.normal(size=(6, 5))).float()
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.gt(0).float())
    torch.testing.assert_close(loss(PLAIN, logits, labels), bce)


def test_a_share_of_the_unknown_labels_enters_each_time(rng):
    labels = labels_of(rng, 300, 40)
    logits = torch.from_numpy(rng.normal(size=(300, 40))).float()
    method = Pseudo(share=0.25)
    run = make_run(labels)
    first, second = (gradient_of(method, logits, labels, run) for _ in range(2))
    entered = first[labels == 0] != 0
    assert entered.float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert (first[labels != 0] != 0).all()
    assert not torch.equal(first != 0, second != 0)  # drawn anew
    assert torch.equal(first, gradient_of(method, logits, labels, make_run(labels)))  # from run.rng
    # The mean over those drawn is the mean over all, in expectation.
    drawn = torch.stack([step(method, logits, labels, run)[0] for _ in range(20)]).mean()
    torch.testing.assert_close(drawn, loss(Pseudo(), logits, labels), rtol=0.01, atol=0)


def test_training_starts_where_the_balanced_known_labels_rest(rng):
    labels = labels_of(rng, 5000, 3, known=1.0)
    rate = torch.from_numpy(Pseudo().initial_rate(Labels.from_dense(labels.numpy())))
    method = replace(PLAIN, balance=True)
    gradient = gradient_of(method, torch.logit(rate).expand(5000, 3), labels, make_run(labels))
    assert gradient.sum(dim=0).abs().max() < 1e-4
    single = Labels.from_dense(np.eye(5, dtype=np.int8))
    assert (Pseudo().initial_rate(single) > 0.5).all()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="margin"):
        Pseudo(margin=-1)
    for share in (0.0, 1.5):
        with pytest.raises(InputError, match="share"):
            Pseudo(share=share)
    with pytest.raises(InputError, match="there are none"):
        Pseudo().check(Labels.from_dense(UNKNOWN.numpy()))
    Pseudo().check(Labels.from_dense([[1, 0]]))
