import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.state import SampleState
from tertium.methods.zhou2022 import Em, Lowest
from tests.methods.doors import labels_of, make_run, started, step
from tests.methods.test_conformance import loss
from tests.reference.zhou2022 import em as slow


def gradient_of(method, logits, labels, run=None):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(step(method, logits, labels, run or make_run(labels))[0], logits)[0]


def predicted(method, logits, labels, run):
    method.after_step(logits, Batch(torch.empty(len(logits), 0), labels, torch.arange(len(logits))), run)


def test_confident_unknown_labels_are_pushed_back_and_doubtful_ones_left_alone():
    logits = torch.tensor([[0.0, 2.0, -2.0, 100.0, -100.0]])
    gradient = gradient_of(Em(), logits, torch.zeros(1, 5, dtype=torch.int8))[0]
    assert gradient[0] == 0
    assert gradient[1] > 0 > gradient[2]  # descent goes towards 0
    p = 1 / (1 + math.exp(-2))
    assert gradient[1].item() == pytest.approx(0.1 * 2 * p * (1 - p) / 5)  # −a·dH/dz = a·z·p·(1 − p)
    assert gradient[3:].abs().max() < 1e-30


def test_the_entropy_is_exact_at_large_logits(rng):
    unknown = torch.zeros(1, 1, dtype=torch.int8)
    for z in (-100.0, -20.0, -3.0, 0.0, 3.0, 20.0, 100.0):
        value = loss(Em(alpha=1.0), torch.tensor([[z]], dtype=torch.float64), unknown).item()
        p, q = 1 / (1 + math.exp(-z)), 1 / (1 + math.exp(z))
        assert value == pytest.approx(p * math.log(p) + q * math.log(q), abs=1e-12)


def test_equal_steps_freeze_the_least_likely_unknown_labels_of_each_class(rng):
    """Checked class by class against sorting, with predictions that change each epoch."""
    method = Em(apl=True, warmup=3)
    labels = labels_of(rng, 57, 6)
    labels[:, 5] = 1  # nothing unknown
    labels[:, 4] = 0
    run = make_run(labels, epoch=1)
    method.prepare(run)
    frozen, soft, before = set(), {}, None
    for run.epoch in range(1, 11):
        method.before_epoch(run)
        if run.epoch > 3:
            for label in range(6):
                unknown = [image for image in range(57) if labels[image, label] == 0]
                due = 9 * len(unknown) * (run.epoch - 3) // (10 * 7)
                free = [image for image in unknown if (image, label) not in frozen]
                free.sort(key=lambda image: before[image, label].item())
                for image in free[: due - (len(unknown) - len(free))]:
                    frozen.add((image, label))
                    soft[image, label] = before[image, label].item()
        table = run.state.table("frozen").values
        assert {tuple(place) for place in table.nonzero().tolist()} == frozen
        assert not (table & (labels != 0)).any()
        logits = torch.from_numpy(rng.normal(scale=2, size=(57, 6))).float()
        predicted(method, logits, labels, run)
        before = logits
    assert len(frozen) == sum(9 * int((labels[:, label] == 0).sum()) // 10 for label in range(6))
    values = run.state.table("prediction").values
    assert all(values[place].item() == value for place, value in soft.items())  # kept since


def test_frozen_labels_are_held_at_their_soft_value(rng):
    method = Em(apl=True, warmup=0, frozen=1.0, beta=0.3)
    labels = labels_of(rng, 4, 5)
    run = started(method, make_run(labels, epoch=1))
    logits = torch.from_numpy(rng.normal(size=(4, 5)))
    predicted(method, logits, labels, run)
    run.epoch = 10
    method.before_epoch(run)
    unknown = labels == 0
    assert torch.equal(run.state.table("frozen").values, unknown)
    assert gradient_of(method, logits, labels, run)[unknown].abs().max() < 1e-7  # at rest there
    moved = gradient_of(method, logits + 1, labels, run)
    pull = 0.3 * ((logits + 1).sigmoid() - logits.sigmoid()) / 20
    torch.testing.assert_close(moved[unknown], pull[unknown], atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(moved[~unknown], gradient_of(Em(), logits + 1, labels)[~unknown])
    fast = step(method, logits + 1, labels, run)[0].item()
    expected = slow((logits + 1).tolist(), labels.tolist(), run, **vars(method))
    assert fast == pytest.approx(expected, rel=1e-6)


def test_nothing_is_frozen_twice_before_the_warm_up_ends_or_unseen(rng):
    method = Em(apl=True, warmup=2)
    labels = torch.zeros(20, 3, dtype=torch.int8)
    run = make_run(labels, epoch=3)
    for _ in range(2):
        started(method, run)
    assert not run.state.table("frozen").values.any()  # no image was ever seen
    predicted(method, torch.from_numpy(rng.normal(size=(20, 3))).float(), labels, run)
    run.epoch = 2
    method.before_epoch(run)
    assert not run.state.table("frozen").values.any()
    run.epoch = 5
    for _ in range(2):
        method.before_epoch(run)
        assert run.state.table("frozen").values.sum(dim=0).tolist() == [6, 6, 6]  # 0.9·20·3/8 = 6.75
    assert Em().apl is False
    started(Em(), run := make_run(labels))
    assert not run.state.tables  # without apl nothing is kept


def chosen(keys, count, run, size=4):
    """What `Lowest` chooses from keys in blocks of some rows."""
    blocks = [keys[start : start + size] for start in range(0, len(keys), size)]
    lowest = Lowest(lambda: blocks, 8 * keys.itemsize, np.asarray(count), run)
    return np.concatenate([keys[:0] > 0, *(lowest.next(block) for block in blocks)]), lowest.count


def sorted_choice(keys, count):
    """The same by sorting, column by column."""
    mask = np.zeros(keys.shape, dtype=bool)
    for column, number in enumerate(count):
        free = [(key, row) for row, key in enumerate(keys[:, column]) if key > 0]
        mask[[row for _, row in sorted(free)[: max(number, 0)]], column] = True
    return mask


ALONE = SimpleNamespace(state=SampleState(1, 1))


@given(st.sampled_from([np.uint8, np.uint32]), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_lowest_keys_are_those_of_sorting(kind, size, seed):
    rng = np.random.default_rng(seed)
    top = rng.choice([3, 2**8, 2 ** (8 * kind().itemsize)])  # ties, or none
    keys = rng.integers(0, top, (rng.integers(1, 30), 5)).astype(kind)
    count = rng.integers(-2, 33, 5)
    mask, number = chosen(keys, count, ALONE, size)
    assert np.array_equal(mask, sorted_choice(keys, count))
    assert mask.sum(axis=0).tolist() == number.tolist()


def in_processes(world, work):
    """Run ``work(rank, all_mean)`` as so many processes would, in threads."""
    said, barrier = [None] * world, Barrier(world)

    def at(rank):
        def all_mean(value):
            said[rank] = value
            barrier.wait()
            mean = sum(said) / world
            barrier.wait()
            return mean

        return work(rank, all_mean)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(at, range(world)))


@pytest.mark.parametrize("kind", [np.uint8, np.uint32])
@pytest.mark.parametrize("top", [5, 255])
def test_processes_choose_together(kind, top, rng):
    """As many as from all rows, and as low; of equal keys, process 0 takes first."""
    keys = [rng.integers(0, top, (rows, 6)).astype(kind) for rows in (20, 13, 0)]
    count = np.array([0, 1, 7, 15, 25, 99])

    def work(rank, all_mean):
        state = SampleState(33, 6, rank=rank, world=3)
        return chosen(
            keys[rank], count, SimpleNamespace(state=state, rng=torch.Generator(), all_mean=all_mean)
        )

    found = np.concatenate([mask for mask, _ in in_processes(3, work)])
    assert np.array_equal(found, sorted_choice(np.concatenate(keys), count))


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_frozen_does_not_depend_on_the_processes(compact, rng):
    labels = labels_of(rng, 41, 6)
    said = torch.from_numpy(rng.permutation(np.linspace(-11, 11, 41 * 6)).reshape(41, 6)).float()
    if compact:  # no ties: each logit of a class is another step
        said = torch.from_numpy(np.stack([rng.permutation(41) for _ in range(6)], axis=1)) / 10.0 - 2
    method = Em(apl=True, warmup=1)

    def work(world):
        def at(rank, all_mean):
            run = make_run(labels, epoch=1)
            run.all_mean = all_mean
            run.state = SampleState(41, 6, rank=rank, world=world, compact=compact)
            method.prepare(run)
            rows = torch.tensor(run.state.own)
            method.after_step(said[rows], Batch(torch.empty(len(rows), 0), labels[rows], rows), run)
            for run.epoch in (2, 5, 8):
                method.before_epoch(run)
            mask = torch.zeros(41, 6, dtype=torch.bool)
            mask[rows] = run.state.table("frozen").values
            assert run.state.tensors["frozen"].sum() == sum(
                9 * int((labels[:, column] == 0).sum()) * 7 // 90 for column in range(6)
            )
            return mask

        return torch.stack(in_processes(world, at)).any(dim=0)

    alone = work(1)
    assert alone.any()
    assert torch.equal(work(2), alone)
    assert torch.equal(work(5), alone)


def test_equal_predictions_do_not_freeze_more_than_asked(rng):
    labels = labels_of(rng, 50, 4)
    for compact in (False, True):
        run = make_run(labels, epoch=1)
        run.state = SampleState(50, 4, compact=compact)
        method = Em(apl=True, warmup=1)
        predicted(method, torch.full((50, 4), -20.0), labels, run)
        run.epoch = 4
        method.before_epoch(run)
        due = [9 * int((labels[:, column] == 0).sum()) * 3 // 90 for column in range(4)]
        assert run.state.table("frozen").values.sum(dim=0).tolist() == due


@pytest.mark.parametrize("known", ["half", "few", "positives"])
def test_training_starts_where_the_objective_rests(known, rng):
    labels = labels_of(rng, 4000, 3, known=0.02 if known == "few" else 0.5)
    if known == "positives":
        labels = labels.clamp(min=0)
    rate = Em().initial_rate(Labels.from_dense(labels.numpy()))
    bias = torch.logit(torch.from_numpy(rate)).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Em(), bias.expand(4000, 3), labels), bias)
    assert gradient.abs().max() < 2e-4
    assert (rate > 0.5).all() == (known == "positives")


def test_what_makes_no_sense_is_refused():
    for parameters in ({"alpha": -1.0}, {"beta": -1.0}, {"warmup": -1}, {"frozen": 1.5}):
        with pytest.raises(InputError, match=next(iter(parameters))):
            Em(**parameters)
    with pytest.raises(InputError, match="there are none"):
        Em().check(Labels.from_dense([[0, 0]]))
    Em().check(Labels.from_dense([[1, 0]]))
