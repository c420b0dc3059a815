"""One battery that every method must pass, through both doors; methods are found by discovery."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric

from tertium import methods
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.models.classifier import Classifier
from tests.methods.doors import DOORS, ByLoss, ByTrain, batch_of, labels_of, make_run, started, step
from tests.reference import CASES, DRAWS, EQUALS_BCE, METHODS, REFERENCES

FULL_ONLY = {"bce", "bce_ls"}  # say so through `check`
NEVER_WRITTEN = {"soft_exposure", "se_l", "se_i"}  # have a table that `prepare` fills for good
CORRECTING = {"ll_r", "ll_ct", "ll_cp", "splc", "curriculum"}  # say which labels, through `corrected`


def make(name, parameters=None):
    return methods.make(name, parameters or {})


through_both_doors = pytest.mark.parametrize("door", DOORS)


def loss(method, logits, labels, door=ByTrain, **about):
    return door(method, labels, **about).loss(logits)


def test_there_is_a_reference_for_every_loss():
    assert set(METHODS) - DRAWS == set(REFERENCES)


@through_both_doors
@pytest.mark.parametrize(("name", "parameters"), [case for case in CASES if case[0] not in DRAWS])
def test_value_and_gradient_agree_with_slow_loops(name, parameters, door, rng):
    method = make(name, parameters)
    logits = torch.from_numpy(rng.normal(scale=3, size=(4, 5)))  # float64
    labels = labels_of(rng, 4, 5)
    full = methods.parameters_of(method)

    run = started(method, make_run(labels))
    run.at = logits.tolist()

    def slow(values):
        return REFERENCES[name](values.tolist(), labels.tolist(), run, **full)

    logits.requires_grad_()
    fast = loss(method, logits, labels, door)
    assert fast.item() == pytest.approx(slow(logits), abs=1e-6, rel=1e-6)
    (gradient,) = torch.autograd.grad(fast, logits)
    step = 1e-5
    for row in range(4):
        for column in range(5):
            moved = torch.zeros_like(logits)
            moved[row, column] = step
            expected = (slow(logits + moved) - slow(logits - moved)) / (2 * step)
            assert gradient[row, column].item() == pytest.approx(expected, abs=1e-6)


@through_both_doors
@pytest.mark.parametrize("case", ["all unknown", "all known", "one row", "one class", "one entry"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_finite_on_every_kind_of_batch(name, parameters, case, scale, door, rng):
    rows, columns = {"one row": (1, 6), "one class": (6, 1), "one entry": (1, 1)}.get(case, (6, 6))
    known = {"all unknown": 0.0, "all known": 1.0}.get(case, 0.4)
    labels = labels_of(rng, rows, columns, known)
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=(rows, columns))).float()
    logits = (scale * sign).requires_grad_()
    value = loss(make(name, parameters), logits, labels, door)
    assert value.isfinite()
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()


@through_both_doors
@pytest.mark.parametrize("name", METHODS)
def test_permutations_of_rows_and_classes(name, door, rng):
    if name in DRAWS:
        pytest.skip("draws at random for each entry")
    method = make(name)
    logits, labels = torch.from_numpy(rng.normal(size=(7, 6))).float(), labels_of(rng, 7, 6)
    features, predictions = rng.normal(size=(7, 5)), rng.random((7, 6), dtype=np.float32)
    images, classes = np.array([f"i{n}" for n in range(7)]), np.array([f"c{n}" for n in range(6)])

    def permuted(rows, columns):
        return loss(
            method,
            logits[rows][:, columns],
            labels[rows][:, columns],
            door,
            features=features[rows],
            predictions=predictions[rows][:, columns],
            names=(images[rows].tolist(), classes[columns].tolist()),
        )

    straight = permuted(np.arange(7), np.arange(6))
    torch.testing.assert_close(permuted(rng.permutation(7), np.arange(6)), straight)
    torch.testing.assert_close(permuted(np.arange(7), rng.permutation(6)), straight)


@through_both_doors
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_state_survives_saving_and_loading(name, parameters, door, rng, tmp_path):
    """Two steps, save, load, a third: the same loss as without the interruption."""
    method, labels = make(name, parameters), labels_of(rng, 6, 5)
    kept = door(method, labels)
    for _ in range(2):
        logits = torch.from_numpy(rng.normal(size=(6, 5))).float().requires_grad_()
        kept.loss(logits).backward()
        kept.write_back(logits)
    kept.save(tmp_path)
    loaded = door(method, labels)
    loaded.load(tmp_path)
    logits = torch.from_numpy(rng.normal(size=(6, 5))).float().requires_grad_()
    values = []
    for each in (kept, loaded):
        each.go_to(3)
        values.append(each.loss(logits))
    assert torch.equal(*values)


@through_both_doors
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_compact_tables_change_little(name, parameters, door, rng, monkeypatch):
    """Four epochs of one step; logits lie in the middle of steps, so that no choice hangs on rounding."""
    method, labels = make(name, parameters), labels_of(rng, 6, 5)
    exact = door(method, labels, epoch=1, lr=3e-4)
    monkeypatch.setattr("tertium.methods.state.EXACT", 0)
    if parameters.get("optimizer") == "dense":
        with pytest.raises(InputError, match='choose "rows"'):
            door(method, labels, epoch=1)
        return
    compact = door(method, labels, epoch=1, lr=3e-4)
    for epoch in range(1, 5):
        scores, values = torch.from_numpy(rng.permutation(30).reshape(6, 5) / 5 - 3).float(), []
        for each in (exact, compact):
            each.go_to(epoch)
            logits = scores.clone().requires_grad_()
            value = each.loss(logits)
            value.backward()
            values.append(value.item())
            each.write_back(logits)
        assert values[1] == pytest.approx(values[0], rel=0.03, abs=0.003)


@through_both_doors
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_tables_are_made_before_the_first_step(name, parameters, door, rng):
    """So that a missing index or missing labels are told at once, and a saved state has a place to go."""
    method, labels = make(name, parameters), labels_of(rng, 6, 5)
    tried = door(method, labels)
    before = tried.tables()
    logits = torch.from_numpy(rng.normal(size=(6, 5))).float().requires_grad_()
    tried.loss(logits).backward()
    tried.write_back(logits)
    tried.go_to(3)
    assert tried.tables() == before
    assert not before or method.remembers or name in NEVER_WRITTEN


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_what_is_corrected_was_unknown(name, parameters, rng):
    """Through ten epochs; and a run that is asked goes on like one that is not."""
    method, labels = make(name, parameters), labels_of(rng, 6, 5)
    doors = [ByTrain(method, labels, epoch=1) for _ in range(2)]
    count = 0
    for epoch in range(1, 11):
        scores, values = torch.from_numpy(rng.normal(scale=3, size=(6, 5))).float(), []
        for each, asked in zip(doors, (True, False), strict=True):
            each.go_to(epoch)
            logits = scores.clone().requires_grad_()
            value = each.loss(logits)
            value.backward()
            values.append(value)
            with torch.no_grad():
                corrected = method.corrected(logits, batch_of(logits, labels), each.run) if asked else None
            each.write_back(logits)
            if corrected is not None:
                assert corrected.dtype == torch.bool
                assert corrected.shape == labels.shape
                assert (labels[corrected] == 0).all()
                count += int(corrected.sum())
        assert torch.equal(*values)
    assert count > 0 or name not in CORRECTING


@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_training_gives_the_loss_float32_logits(name, rng):
    labels = labels_of(rng, 8, 6)
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model = Classifier([str(column) for column in range(6)], 3)
    module, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    logits = module(torch.from_numpy(rng.normal(size=(8, 3))).float())
    value = loss(make(name), logits, labels)
    assert logits.dtype == value.dtype == torch.float32
    fabric.backward(value)
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_logits_are_widened(name, dtype, rng):
    """In another loop the logits may come straight out of an autocast region, and the loss be inside it."""
    labels, scores = labels_of(rng, 8, 6), torch.from_numpy(rng.normal(size=(8, 6))).to(dtype)
    logits, wide = scores.clone().requires_grad_(), scores.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(make(name), logits, labels, ByLoss)
    expected = loss(make(name), wide, labels, ByLoss)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    value.backward()
    expected.backward()
    assert torch.equal(logits.grad, wide.grad.to(dtype))


@through_both_doors
@pytest.mark.parametrize("name", METHODS)
def test_all_known_equals_bce_where_only_unknowns_differ(name, door, rng):
    if name not in EQUALS_BCE:
        pytest.skip("differs from BCE on known labels too")
    logits, labels = torch.from_numpy(rng.normal(size=(5, 4))).float(), labels_of(rng, 5, 4, known=1.0)
    torch.testing.assert_close(loss(make(name), logits, labels, door), loss(make("bce"), logits, labels))


@through_both_doors
@pytest.mark.parametrize("name", METHODS)
def test_known_labels_pull_their_own_way(name, door, rng):
    """No rule for unknown labels may turn a known one round."""
    labels = labels_of(rng, 6, 5)
    logits = torch.zeros(6, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(make(name), logits, labels, door), logits)
    assert (gradient[labels > 0] <= 0).all()
    assert (gradient[labels < 0] >= 0).all()
    assert gradient[labels > 0].abs().sum() > 0


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_parameters_survive_json(name, parameters):
    method = make(name, parameters)
    kept = json.loads(json.dumps(methods.parameters_of(method)))
    assert make(name, kept) == method
    as_text = {key: str(value).lower() for key, value in kept.items()}
    assert make(name, as_text) == method


@pytest.mark.parametrize("name", METHODS)
def test_starts_at_a_possible_rate(name, rng):
    labels = Labels.from_dense(labels_of(rng, 50, 6).numpy())
    rate = make(name).initial_rate(labels)
    assert rate.shape == (6,)
    assert ((rate > 0) & (rate < 1)).all()


ELSEWHERE = {  # methods that do not start where their loss rests, and why
    "an_ls": "models are better from the observed rate (docs/readings.md)",
    "bce_ls": "as an_ls",
    "role": "its estimates begin near one half and follow the model: starts where epr rests",
    "ranking": "pairs say nothing about how high all scores lie",
    "pseudo": "unknown labels take the model's side wherever it stands",
    "soft_exposure": "models are better from the weighted observed rate (docs/readings.md)",
    "se_l": "as soft_exposure",
    "se_i": "as soft_exposure",
    "selective": "what it leaves out depends on the order of the scores: starts where p_asl rests",
}


@pytest.mark.parametrize("name", METHODS)
def test_starts_where_the_loss_of_a_model_that_ignores_the_image_rests(name, rng):
    """A tenth of a logit lower the whole data set pulls the bias up, a tenth higher it pulls it down."""
    labels = labels_of(rng, 4000, 3, known=1.0 if name in FULL_ONLY else 0.5)
    method = make(name)
    run = started(method, make_run(labels, epoch=1))
    start = torch.logit(torch.from_numpy(method.starting_rate(run)))
    pulls = []
    for off in (-0.1, 0.1):
        bias = (start + off).requires_grad_()
        value, _ = step(method, bias.expand(4000, 3), labels, run)
        pulls.append(torch.autograd.grad(value, bias)[0])
    rests = bool((pulls[0] < 0).all() and (pulls[1] > 0).all())
    assert rests == (name not in ELSEWHERE)


@pytest.mark.parametrize("name", METHODS)
def test_listed_with_paper_and_one_line(name):
    kind = methods.find(name)
    assert kind.paper
    assert methods.one_line(kind).endswith(".")
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind))
    for alias in kind.aliases:
        assert methods.find(alias) is kind


def test_sampled_negative_enters_at_its_rate(rng):
    labels, logits = labels_of(rng, 400, 50), torch.zeros(400, 50)
    method = make("sampled_negative", {"rate": 0.25})
    known = (labels != 0).sum().item()
    entered = loss(method, logits, labels).item() * labels.numel() / np.log(2)
    assert entered == pytest.approx(known + 0.25 * (labels.numel() - known), rel=0.03)
    assert loss(method, logits, labels, seed=0) == loss(method, logits, labels, seed=0)
    assert loss(method, logits, labels, seed=0) != loss(method, logits, labels, seed=1)
    by_default = loss(make("sampled_negative"), logits, labels).item() * labels.numel() / np.log(2)
    assert by_default == pytest.approx(known + (labels.numel() - known) / 49, rel=0.05)


def test_what_cannot_be_learnt_from_is_said():
    positives = Labels.from_dense([[1, 0], [0, 1]])
    with pytest.raises(InputError, match="2 of 4 are unknown"):
        make("bce").check(positives)
    for name in ("ignore", "weighted_ignore"):
        with pytest.raises(InputError, match="known to be absent, but there are none"):
            make(name).check(positives)
    make("negative").check(positives)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("negtive", {}, 'no method "negtive"; did you mean "negative"'),
        ("negative", {"weight": 1}, 'has no parameter "weight"; did you mean "positive_weight"'),
        ("wan", {"weight": 1}, "it has none"),
        ("negative", {"positive_weight": "five"}, "not a value for positive_weight: it must be a number"),
        ("sampled_negative", {"rate": 2}, "must lie in"),
        ("asl", {"clip": 1}, "must lie in"),
        ("asl", {"gamma_negative": 0.5}, "0 or at least 1"),
        ("asl", {"gamma_positive": -1}, "must not be negative"),
        ("focal", {"gamma": -1}, "must not be negative"),
        ("negative", {"positive_weight": 0}, "must be above 0"),
        ("an_ls", {"smoothing": -0.1}, "must lie in"),
        ("bce_ls", {"smoothing": 0.5}, "of bce_ls must lie in"),
        ("soft_exposure", {"beta": -1}, "beta must not be negative"),
    ],
)
def test_bad_parameters_are_named(name, parameters, message):
    with pytest.raises(InputError, match=message):
        make(name, parameters)
