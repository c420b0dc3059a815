import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tertium import train
from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import make, parameters_of
from tertium.methods.cole2021 import Role, expected_positives
from tertium.metrics.evaluation import average_precision
from tertium.schemes import parse
from tests.methods.doors import labels_of, make_run, started
from tests.reference import VARIANTS
from tests.reference.cole2021 import expected, role

ROLES = [{}] + [parameters for name, parameters in VARIANTS if name == "role"]


def batch_of(labels, rows):
    return Batch(torch.empty(len(rows), 0), labels[rows], rows)


def take_step(method, run, labels, rows, logits):
    """One step on these rows; return the loss and the gradients of the logits and of the estimates."""
    batch, logits = batch_of(labels, rows), logits.clone().requires_grad_()
    value = sum(method.terms(logits, batch, run).values())
    value.backward()
    gradient = run.scratch["estimate"].grad.clone()
    with torch.no_grad():
        method.after_step(logits, batch, run)
    return value.detach(), logits.grad, gradient


def hidden_positives(rng, images=400, classes=8, width=16):
    """Features whose linear scores decide the truth, about two positives an image; one of them is shown."""
    features = rng.normal(size=(images, width))
    scores = features @ rng.normal(size=(width, classes)) / np.sqrt(width)
    truth = np.where(scores > 0.7, 1, -1)
    truth[np.arange(images), scores.argmax(axis=1)] = 1
    shown = np.zeros_like(truth)
    chosen = [rng.choice(np.flatnonzero(row > 0)) for row in truth]
    shown[np.arange(images), chosen] = 1
    return torch.from_numpy(features).float(), truth, torch.from_numpy(shown.astype(np.int8))


def train_linear(method, features, labels, steps=400, lr=0.02):
    """Return the run and the final logits [N, C] of a linear model."""
    run = make_run(labels)
    run.lr = lr
    started(method, run)
    head = torch.nn.Linear(features.shape[1], labels.shape[1])
    torch.nn.init.zeros_(head.weight)
    rate = torch.from_numpy(method.initial_rate(run.labels)).float()
    head.bias.data.copy_(torch.logit(rate))
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randperm(len(labels), generator=order)[:32]
        optimizer.zero_grad()
        logits = head(features[rows])
        sum(method.terms(logits, batch_of(labels, rows), run).values()).backward()
        optimizer.step()
        with torch.no_grad():
            method.after_step(logits, batch_of(labels, rows), run)
    return run, head(features).detach()


# ---- role against slow loops -----------------------------------------------------------------------------


def slopes(value, at, step=1e-5):
    """Differences of a function of a matrix, entry by entry."""
    found = torch.zeros_like(at)
    for place in np.ndindex(*at.shape):
        moved = torch.zeros_like(at)
        moved[place] = step
        found[place] = (value(at + moved) - value(at - moved)) / (2 * step)
    return found


@pytest.mark.parametrize("parameters", ROLES)
def test_role_agrees_with_slow_loops(parameters, rng):
    """The value, and the slopes of the logits and of the estimates."""
    method, labels = make("role", parameters), labels_of(rng, 4, 5)
    given = parameters_of(method)
    run = started(method, make_run(labels))
    estimates = run.state.table("role").values.double()
    logits = torch.from_numpy(rng.normal(scale=3, size=(4, 5)))

    def slow(model, guesses, fixed_model, fixed_guesses):
        four = [part.tolist() for part in (model, guesses, fixed_model, fixed_guesses)]
        return role(*four, labels.tolist(), run, **given)

    value, gradient, estimate_gradient = take_step(method, run, labels, torch.arange(4), logits)
    assert value.item() == pytest.approx(slow(logits, estimates, logits, estimates), abs=1e-6)
    by_hand = slopes(lambda moved: slow(moved, estimates, logits, estimates), logits)
    torch.testing.assert_close(gradient, by_hand, atol=1e-6, rtol=1e-5)
    by_hand = slopes(lambda moved: slow(logits, moved, logits, estimates), estimates)
    torch.testing.assert_close(estimate_gradient, by_hand, atol=1e-6, rtol=1e-5)


def test_estimates_start_where_the_paper_says_wherever_an_image_stands(rng):
    values = labels_of(rng, 40, 6)
    images, classes = [f"{n}.jpg" for n in range(40)], list("fbadce")
    straight = make_run(values)
    straight.labels = Labels.from_dense(values.numpy(), images=images, classes=classes)
    start = started(make("role"), straight).state.table("role").values
    sure, wide = np.log(0.995 / 0.005), np.log(0.6 / 0.4)
    torch.testing.assert_close(start[values != 0], values[values != 0] * float(sure))
    unknown = start[values == 0]
    assert unknown.abs().max() <= wide
    assert unknown.std().item() == pytest.approx(wide / np.sqrt(3), rel=0.15)
    rows, columns = rng.permutation(40), rng.permutation(6)
    moved = make_run(values)
    moved.labels = Labels.from_dense(
        values.numpy()[rows][:, columns],
        images=[images[row] for row in rows],
        classes=[classes[column] for column in columns],
    )
    again = started(make("role"), moved).state.table("role").values
    assert torch.equal(again, start[rows][:, columns])
    other = started(make("role"), make_run(values, seed=1)).state.table("role").values
    assert not torch.equal(other, start)


def test_preparing_again_keeps_the_estimates(rng):
    labels, method = labels_of(rng, 6, 5), make("role")
    run = started(method, make_run(labels))
    take_step(method, run, labels, torch.arange(6), torch.randn(6, 5))
    learnt = run.state.table("role").values.clone()
    assert torch.equal(started(method, run).state.table("role").values, learnt)
    assert set(run.state.tensors) == {"expected_positives"}


# ---- how the estimates move ------------------------------------------------------------------------------


def test_dense_updates_are_those_of_adam(rng):
    labels, method = labels_of(rng, 6, 5), make("role", {"optimizer": "dense", "lr_factor": 10.0})
    run = started(method, make_run(labels))
    weight = run.state.table("role").values.clone().requires_grad_()
    adam = torch.optim.Adam([weight], lr=10 * run.lr)
    for _ in range(5):
        logits = torch.from_numpy(rng.normal(size=(6, 5))).float()
        rows = torch.from_numpy(rng.permutation(6))
        _, _, gradient = take_step(method, run, labels, rows, logits)
        weight.grad = torch.zeros(6, 5).index_copy(0, rows, gradient)
        adam.step()
        torch.testing.assert_close(run.state.table("role").values, weight.detach(), atol=1e-5, rtol=1e-4)


def test_rows_move_by_the_gradient_over_its_root_mean_square(rng):
    labels, method = labels_of(rng, 6, 5), make("role", {"lr_factor": 10.0})
    run = started(method, make_run(labels))
    estimates = run.state.table("role").values.tolist()
    squares = {place: [] for place in np.ndindex(6, 5)}
    for _ in range(12):
        rows = torch.from_numpy(rng.permutation(6)[:3])
        logits = torch.from_numpy(rng.normal(size=(3, 5))).float()
        _, _, gradient = take_step(method, run, labels, rows, logits)
        for place, column in np.ndindex(3, 5):
            row, slope = int(rows[place]), float(gradient[place, column])
            seen = squares[row, column]
            seen.append(slope**2)
            weights = [0.999**age for age in range(len(seen))]
            mean = sum(w * v for w, v in zip(weights, reversed(seen), strict=True)) / sum(weights)
            estimates[row][column] -= 10 * run.lr * slope / (math.sqrt(mean) + 1e-8)
        found = run.state.table("role").values
        torch.testing.assert_close(found, torch.tensor(estimates), atol=1e-3, rtol=1e-4)


def test_a_whole_network_with_smoothed_targets_starts_where_its_loss_rests(rng):
    labels, method = labels_of(rng, 60, 5), make("an_ls", {})
    run = make_run(labels)
    observed = method.starting_rate(run)
    run.whole = True
    share = (run.labels.dense() > 0).mean(axis=0)
    np.testing.assert_allclose(method.starting_rate(run), 0.1 + 0.8 * share, atol=0.02)
    np.testing.assert_allclose(observed, share, atol=0.02)


@pytest.mark.parametrize("optimizer", ["rows", "dense"])
def test_estimates_of_a_whole_network_start_where_it_does(rng, optimizer):
    """With the authors' own optimizer as they have it, at one half."""
    labels, method = labels_of(rng, 400, 5), make("role", {"optimizer": optimizer})
    run = make_run(labels)
    run.whole = True
    started(method, run)
    estimates, rate = run.state.table("role").values, method.starting_rate(run)
    for column, start in enumerate(torch.logit(torch.from_numpy(rate)).tolist()):
        center, unknown = start if optimizer == "rows" else 0.0, labels[:, column] == 0
        assert abs(estimates[unknown, column].mean().item() - center) < 0.1
        assert (estimates[unknown, column] - center).abs().max() < 0.41
    assert estimates[labels > 0].min() > 5


@pytest.mark.parametrize(("optimizer", "times"), [("rows", 0.3), ("dense", 1.0)])
def test_estimates_of_a_whole_network_move_as_those_of_a_head(rng, optimizer, times):
    """Its rates are three times as high; the authors' own optimizer is as they have it."""
    labels, logits = labels_of(rng, 6, 5), torch.randn(6, 5)
    moved = []
    for whole in (False, True):
        method = make("role", {"optimizer": optimizer})
        run = started(method, make_run(labels))
        run.whole = whole
        before = run.state.table("role").values.clone()
        take_step(method, run, labels, torch.arange(6), logits)
        moved.append(run.state.table("role").values - before)
    torch.testing.assert_close(moved[1], times * moved[0])


def test_rows_outside_the_batch_rest_unless_dense(rng):
    labels = labels_of(rng, 8, 5)
    for optimizer in ("rows", "dense"):
        method = make("role", {"optimizer": optimizer})
        run = started(method, make_run(labels))
        take_step(method, run, labels, torch.arange(4), torch.randn(4, 5))
        before = run.state.table("role").values
        take_step(method, run, labels, torch.arange(4, 8), torch.randn(4, 5))
        table = run.state.table("role").values
        table = run.state.table("role").values
        assert not torch.equal(table[4:], before[4:])
        assert torch.equal(table[:4], before[:4]) == (optimizer == "rows")


def test_a_late_row_steps_as_far_as_an_early_one(rng):
    """Each row counts its own steps: the first moves every entry by the learning rate, whenever it comes."""
    labels, method = labels_of(rng, 8, 5), make("role")
    run = started(method, make_run(labels))
    for _ in range(20):
        take_step(method, run, labels, torch.arange(4), torch.randn(4, 5))
    before = run.state.table("role").values.clone()
    take_step(method, run, labels, torch.arange(4, 8), torch.randn(4, 5))
    moved = (run.state.table("role").values - before)[4:].abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 3000 * run.lr), rtol=0.05, atol=0)


# ---- what they are for -----------------------------------------------------------------------------------


def hidden_map(scores, truth, shown):
    """Mean average precision over the entries that training did not see."""
    return np.nanmean(
        average_precision(np.asarray(scores), np.where(shown.numpy() == 0, truth, 0).astype(np.int8))
    )


def test_role_finds_hidden_positives(rng):
    features, truth, shown = hidden_positives(rng)
    _, plain = train_linear(make("negative"), features, shown)
    run, model = train_linear(make("role", {"k": 2.0, "lr_factor": 10.0}), features, shown)
    baseline = hidden_map(plain, truth, shown)
    assert hidden_map(model, truth, shown) > baseline + 0.05
    assert hidden_map(run.state.table("role").values, truth, shown) > baseline + 0.05


@dataclasses.dataclass(frozen=True)
class Watched(Role):
    """Role that hands out its estimates."""

    def before_epoch(self, run):
        ESTIMATES[:] = [run.state.table("role")]


ESTIMATES = []


@pytest.mark.parametrize("scheme", ["single_positive", "positives:0.3"])
def test_role_recovers_hidden_positives_of_photographs_better_than_negative(scheme, coco):
    """Both ways: as the model predicts its own training images, and as the estimates say."""
    full, features = coco_train(coco, 1000)
    shown = parse(scheme).apply(full, 0)
    found = {}
    for method in (make("negative"), Watched()):
        outcome = train(shown, features=features, method=method, validation=0.0)
        found[method.name] = outcome.trained.predict_proba(features=features)
    truth, dense = full.dense(), torch.from_numpy(shown.dense())
    baseline = hidden_map(found["negative"], truth, dense)
    assert hidden_map(found["role"], truth, dense) > baseline + 0.01
    assert hidden_map(ESTIMATES[0].values, truth, dense) > baseline + 0.01


@pytest.mark.parametrize("name", ["epr", "role"])
def test_predicted_positives_are_pulled_towards_k(name, rng):
    features, _, shown = hidden_positives(rng)
    found = []
    for k in (2.0, 4.0, 6.0):
        _, logits = train_linear(make(name, {"k": k, "strength": 20.0}), features, shown, steps=100)
        found.append(logits.sigmoid().sum(dim=1).mean().item())
    assert found == pytest.approx([2.0, 4.0, 6.0], rel=0.1)


def test_initial_rate_is_where_epr_rests(rng):
    for labels in (labels_of(rng, 3000, 6), labels_of(rng, 3000, 6).clamp(min=0)):
        run = make_run(labels)
        method = make("epr", {"k": 2.0})
        bias = torch.logit(torch.from_numpy(method.initial_rate(run.labels))).requires_grad_()
        terms = method.terms(bias.expand(3000, 6), batch_of(labels, torch.arange(3000)), started(method, run))
        sum(terms.values()).backward()
        assert bias.grad.abs().max() < 2e-4


# ---- k from the labels alone -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1.0, 0.3, 0.05])
def test_k_is_found_where_labels_are_known_both_ways(keep, rng):
    rates = np.linspace(0.01, 0.4, 12)
    truth = np.where(rng.random((4000, 12)) < rates, 1, -1)
    partial = Labels.from_dense(truth * (rng.random(truth.shape) < keep))
    assert expected_positives(partial) == pytest.approx(rates.sum(), rel=0.06)
    assert expected_positives(partial) == pytest.approx(expected(partial))


def coco_train(folder, images):
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")[:images]
    bare = Labels(labels.offsets, labels.entries, labels.classes, labels.images)
    return bare, np.load(folder / "train_features.npy", mmap_mode="r")[:images].copy()


# of the truth; the seeds stay within
SOUGHT = {"balanced:0.1": 0.35, "balanced:0.3": 0.35, "per_image:1,1": 0.35, "per_image:1,all": 0.1}
FAIR = {"random:0.02": 0.15, "random:0.1": 0.1, "random:0.3": 0.1, "full": 1e-6}


@pytest.mark.parametrize(("scheme", "off"), (SOUGHT | FAIR).items())
def test_k_is_found_however_eagerly_presences_were_noted(scheme, off, coco):
    full, _ = coco_train(coco, 4000)
    truth = full.image_counts[0].mean()
    for seed in range(3):
        partial = parse(scheme).apply(full, seed)
        assert expected_positives(partial) == pytest.approx(truth, rel=off)
        assert expected_positives(partial) == pytest.approx(expected(partial))


@pytest.mark.parametrize("scheme", ["per_class:20", "per_class:100", "federated", "federated:0.2,3"])
def test_k_is_too_low_where_frequency_left_no_trace(scheme, coco):
    """As many absences for each class as presences, or three times as many: what images show, no more."""
    full, _ = coco_train(coco, 4000)
    partial = parse(scheme).apply(full, 0)
    seen = partial.image_counts[0]
    assert expected_positives(partial) == pytest.approx(max(seen[seen > 0].mean(), 1))
    assert expected_positives(partial) < full.image_counts[0].mean()


@given(arrays(np.int8, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.integers(-1, 1)))
def test_k_agrees_with_slow_loops_and_is_possible(values):
    labels = Labels.from_dense(values)
    k = expected_positives(labels)
    assert k == pytest.approx(expected(labels), rel=1e-6)
    assert labels.image_counts[0].mean() - 1e-9 <= k <= max(len(labels.classes), 1)


def test_k_of_positives_is_what_images_show():
    assert expected_positives(Labels.from_dense([[1, 0, 0], [0, 1, 1], [0, 0, 0]])) == 1.5
    assert expected_positives(Labels.from_dense([[0, 0], [0, 0]])) == 1
    # A class nobody looked for adds what was seen of it, not one half.
    unlooked = Labels.from_dense(np.tile([1, -1, -1] + [0] * 50, (20, 1)))
    assert expected_positives(unlooked) == pytest.approx(1, abs=0.1)


def test_bad_values_are_named():
    for name in ("epr", "role"):
        for parameters in ({"k": 0}, {"k": -1}, {"strength": 0}):
            with pytest.raises(InputError, match="must be above 0"):
                make(name, parameters)
        with pytest.raises(InputError, match="known to be present, but there are none"):
            make(name).check(Labels.from_dense([[-1, 0]]))
        with pytest.raises(InputError, match="k = 3 positives are expected, but there are 2 classes"):
            make(name, {"k": 3}).check(Labels.from_dense([[1, 0]]))
        make(name).check(Labels.from_dense([[1, 0]]))
    with pytest.raises(InputError, match="lr_factor"):
        make("role", {"lr_factor": 0})
