"""`tertium.Loss` in loops that are not Tertium's; the battery of tests/methods runs through it too."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load, save
from torch import nn

import tertium
from tertium import methods
from tertium.annotation.frequencies import Frequencies
from tertium.annotation.record import Annotation
from tertium.config import HEAD
from tertium.data.batches import FeatureLoader, Order
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.losses import Loss
from tertium.methods import Method
from tertium.methods.state import SampleState
from tertium.models.classifier import Classifier
from tertium.training.choosing import Verdict
from tertium.training.fit import Offers, fit, rate_factor
from tests.reference import CASES, METHODS

COUNT, BATCH, SEED = 25, 8, 3
PLAN = dataclasses.replace(HEAD, epochs=4).resolved(COUNT, BATCH, 1)


# ---- the same as `train` ---------------------------------------------------------------------------------


class Problem:
    """Features, labels that the method accepts, and what it may ask for beside them."""

    def __init__(self, method):
        rng = np.random.default_rng(7)
        self.features = rng.normal(size=(COUNT, 5)).astype(np.float32)
        truth = np.where(self.features[:, :4] + 0.3 * rng.normal(size=(COUNT, 4)) > 0, 1, -1)
        self.labels = Labels.from_dense(truth * (rng.random(truth.shape) < 0.6))
        self.guesses = rng.random(truth.shape, dtype=np.float32)
        try:
            method.check(self.labels)
        except InputError:
            self.labels = Labels.from_dense(truth)
        self.loader = FeatureLoader(self.features, self.labels, Order(COUNT, BATCH, SEED))


def by_fit(method, problem):
    """Return the model, the loss of each epoch, and what the method keeps."""
    model, state = Classifier(problem.labels.classes, 5), SampleState(*problem.labels.shape)
    fitted = fit(
        model,
        method,
        problem.loader,
        PLAN,
        labels=problem.labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=lambda *_: Verdict({"score": None}),
        seed=SEED,
        state=state,
        offers=Offers(lambda: problem.features, lambda _: problem.guesses, lambda *_: problem.guesses),
        new=True,
    )
    return model, [record["terms"] for record in fitted.records], state.to_dict()


def by_loop(method, problem, *, interrupted):
    """The same in a bare loop; interrupted, the loss is saved and made anew in the middle of an epoch."""

    def make():
        given = {"features": problem.features, "predictions": problem.guesses}
        return Loss(method, labels=problem.labels, epochs=PLAN.epochs, seed=SEED, **given)

    loss, model, batches, totals = make(), Classifier(problem.labels.classes, 5), len(problem.loader), []
    loss.start(model.head)
    groups = model.groups(PLAN.lr, PLAN.backbone_lr, PLAN.weight_decay)
    optimizer = torch.optim.AdamW(groups, fused=True)
    for epoch in range(PLAN.epochs):
        loss.epoch()
        totals.append({})
        for step, batch in enumerate(problem.loader.epoch(epoch + 1)):
            rate = PLAN.lr * rate_factor(PLAN, (epoch * batches + step + 0.5) / (PLAN.epochs * batches))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss(model(batch.inputs), batch.labels, batch.index).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.step(lr=rate)
            for name, value in loss.terms.items():
                totals[-1][name] = totals[-1].get(name, 0) + value
            if interrupted and (epoch, step) == (1, 1):
                saved = save(loss.state_dict())
                loss = make()
                loss.load_state_dict(load(saved))
    means = [{name: float(value) / batches for name, value in total.items()} for total in totals]
    kept = {key: value for key, value in loss.state_dict().items() if key.startswith(("table.", "tensor."))}
    return model, means, kept


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_a_bare_loop_gives_what_train_gives(name, parameters, interrupted):
    """To the last bit: each epoch's terms, the weights, and all that the method keeps."""
    method = methods.make(name, parameters)
    problem = Problem(method)
    # What a method makes of a trained model is not in its loss; one variant's parameter suits no labels.
    with mock.patch.multiple(type(method), finish=lambda *_: iter(()), check=lambda *_: None):
        ours, means, kept = by_loop(method, problem, interrupted=interrupted)
        theirs, expected, state = by_fit(method, problem)
    assert means == expected
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    assert kept.keys() == state.keys()
    for key, value in kept.items():
        assert torch.equal(value.nan_to_num(9.0), state[key].nan_to_num(9.0)), key


# ---- what it asks for ------------------------------------------------------------------------------------

TENSOR = torch.tensor([[1, 0, -1], [0, 1, 0], [-1, 0, 1], [0, 0, 0], [1, -1, 0], [0, 0, 1]])
SCORES = torch.linspace(-2, 2, 6 * 3).view(6, 3)


def test_labels_come_in_any_type():
    expected = Loss("negative")(SCORES, TENSOR)
    for dtype in (torch.int8, torch.int32, torch.float16, torch.float32, torch.float64):
        assert torch.equal(Loss("negative")(SCORES, TENSOR.to(dtype)), expected)
    positives = TENSOR.clamp(min=0)
    assert torch.equal(Loss("an")(SCORES, positives.bool()), Loss("an")(SCORES, positives))


def test_training_labels_come_in_any_form():
    """And where they have names, so have the frequencies that are given with them."""
    first = Loss("epr", labels=TENSOR)(SCORES, TENSOR)
    for labels in (TENSOR.numpy(), TENSOR.tolist(), TENSOR.float(), Labels.from_dense(TENSOR.numpy())):
        assert torch.equal(Loss("epr", labels=labels)(SCORES, TENSOR), first)


def test_the_terms_are_named_and_detached():
    loss = Loss("role", labels=TENSOR)
    value = loss(SCORES.clone().requires_grad_(), TENSOR, torch.arange(6))
    assert set(loss.terms) == {"known", "agree", "count"}
    assert value.item() == pytest.approx(sum(term.item() for term in loss.terms.values()))
    assert not any(term.requires_grad for term in loss.terms.values())


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ll_cp", {}, r'"ll_cp" keeps a row for each training image: pass labels='),
        ("epr", {}, r'"epr" needs the labels of all training images: pass labels='),
        ("se", {"labels": TENSOR}, r'"soft_exposure" compares .* pass features='),
        ("se", {"labels": TENSOR, "features": np.ones((5, 2))}, r"features must have the shape \[6, 2\]"),
        ("csl", {"labels": TENSOR}, r'a model trained with "ignore" says .*: pass predictions='),
        ("csl", {"labels": TENSOR, "predictions": np.ones((6, 2))}, r"shape \[6, 3\], not \[6, 2\]"),
        ("auto", {"labels": TENSOR}, r"pass frequencies=.* or predictions=.* or call tertium.train"),
        ("bce", {"labels": TENSOR}, r"10 of 18 are unknown"),
        ("negative", {"epochs": 0}, r"epochs must be at least 1, not 0"),
        ("negative", {"labels": TENSOR * 2}, r"2"),
        ("negative", {"positive_wight": 2}, r'did you mean "positive_weight"'),
        (
            "ll_cp",
            {"labels": TENSOR, "frequencies": Frequencies(*np.full((5, 2), 0.5), 0)},
            "2 classes, not of 3",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_told_when_it_is_made(name, given, message):
    with pytest.raises(InputError, match=message):
        Loss(name, **given)


@pytest.mark.parametrize(
    ("logits", "labels", "index", "message"),
    [
        (SCORES, TENSOR, None, r"call loss\(logits, labels, index\) with the row numbers"),
        (SCORES, TENSOR[:5], torch.arange(6), r"\[6, 3\] and \[5, 3\]"),
        (SCORES[0], TENSOR[0], torch.arange(1), r"\[3\] and \[3\]"),
        (SCORES[:, :2], TENSOR[:, :2], torch.arange(6), r"2 logits for 3 classes"),
        (SCORES, 2 * TENSOR, torch.arange(6), r"or 0 unknown, not 2"),
        (SCORES, TENSOR * 0.5, torch.arange(6), r"not 0\.5"),
        (SCORES, TENSOR / 0, torch.arange(6), r"not (inf|nan)"),
        (SCORES, TENSOR * 300, torch.arange(6), r"not 300"),
        (SCORES, TENSOR, torch.arange(5), r"6 whole numbers, one for each row of the batch.*\[5\]"),
        (SCORES, TENSOR, torch.arange(6.0), r"6 whole numbers.*float32"),
        (SCORES, TENSOR, torch.arange(1, 7), r"index holds 6, .* from 0 to 5"),
        (SCORES, TENSOR, torch.arange(-1, 5), r"index holds -1"),
    ],
)
def test_bad_batches_are_told(logits, labels, index, message):
    with pytest.raises(InputError, match=message):
        Loss("ll_cp", labels=TENSOR)(logits, labels, index)


def test_an_index_is_asked_for_by_those_alone_that_keep_rows():
    Loss("ll_r", labels=TENSOR)(SCORES, TENSOR)
    Loss("em", labels=TENSOR)(SCORES, TENSOR)
    with pytest.raises(InputError, match='"em" keeps a row for each training image'):
        Loss("em", labels=TENSOR, apl=True)(SCORES, TENSOR)


def test_a_method_of_ones_own(rng):
    @dataclasses.dataclass(frozen=True)
    class Halved(Method):
        """The mean logit, or half of it."""

        factor: float = 0.5
        name: ClassVar[str] = "halved"

        def terms(self, logits, batch, run):
            assert batch.index.tolist() == [2, 0]  # given, though nothing is kept
            return {"mean": self.factor * logits.mean()}

    assert Loss(Halved(2.0), labels=TENSOR)(SCORES[:2], TENSOR[:2], [2, 0]) == 2 * SCORES[:2].mean()
    with pytest.raises(InputError, match=r"give factor to Halved\(…\) itself"):
        Loss(Halved(), factor=2.0)


# ---- frequencies -----------------------------------------------------------------------------------------


def test_frequencies_may_be_given_instead_of_estimated(rng):
    """As predictions of held-out images, as the estimate from these, or as what a run wrote down."""
    features = rng.normal(size=(300, 6)).astype(np.float32)
    truth = np.where(features[:, :3] > 0.5, 1, -1)
    labels = Labels.from_dense(truth * (rng.random(truth.shape) < 0.4), classes=["a", "b", "c"])
    found = tertium.prior(labels, features=features).frequencies
    logits, batch = torch.randn(20, 3), torch.from_numpy(labels.dense(np.arange(20)))
    estimated = Loss("auto", labels=labels, frequencies=found)
    value = estimated(logits, batch)
    assert torch.allclose(estimated.initial_rate(), torch.from_numpy(found.rate))
    assert torch.equal(Loss("auto", frequencies=found)(logits, batch), value)  # then labels say no more
    assert torch.equal(Loss("likelihood", labels=labels, frequencies=found)(logits, batch), value)
    figures = np.stack([found.rate, found.low, found.high, found.present, found.absent])
    written = Annotation(("c", "b", "a"), *figures[:, ::-1])
    assert torch.equal(Loss("auto", labels=labels, frequencies=written)(logits, batch), value)
    predicted = Loss("auto", labels=labels, predictions=torch.rand(300, 3))
    assert not torch.equal(predicted(logits, batch), value)


def test_what_the_method_has_to_say_reaches_the_caller(rng):
    told = []
    progress = tertium.Progress()
    progress.note = told.append
    labels = Labels.from_dense(np.ones((9, 2)))
    Loss("auto", labels=labels, progress=progress)
    assert told == ["all labels are known"]


# ---- where the head begins -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_head_starts_where_train_starts_it(name):
    method = methods.make(name)
    problem = Problem(method)
    loss = Loss(method, labels=problem.labels, features=problem.features, predictions=problem.guesses)
    head = nn.Linear(5, 4)
    loss.start(head)
    assert not head.weight.any()
    torch.testing.assert_close(head.bias.sigmoid().double(), loss.initial_rate(), rtol=0, atol=1e-6)


def test_a_head_that_does_not_fit_is_told():
    loss = Loss("negative", labels=TENSOR)
    for head in (nn.Linear(5, 4), nn.Linear(5, 3, bias=False), nn.ReLU()):
        with pytest.raises(InputError, match="with a bias for each of 3 classes"):
            loss.start(head)
    with pytest.raises(InputError, match="needs the labels of all training images"):
        Loss("negative").initial_rate()


# ---- steps and epochs ------------------------------------------------------------------------------------


def test_an_epoch_may_be_told_at_its_beginning_or_at_its_end():
    first, last = (Loss("gr", labels=TENSOR, epochs=3) for _ in range(2))
    for _ in range(3):
        first.epoch()
        values = [first(SCORES, TENSOR), last(SCORES, TENSOR)]
        last.epoch()
        assert torch.equal(*values)
    assert values[0] != Loss("gr", epochs=3)(SCORES, TENSOR)


def corrections(loss):
    return int(loss.state_dict()["table.corrected"].sum())


def two_epochs(**given):
    loss = Loss("ll_cp", labels=TENSOR, delta=20, **given)
    loss.epoch()
    loss.epoch()
    return loss


def test_accumulated_batches_are_all_written_back():
    loss, rows = two_epochs(), torch.arange(6)
    for part in rows.split(2):
        loss(SCORES[part].requires_grad_(), TENSOR[part], part)
    assert corrections(loss) == 0
    loss.step()
    assert corrections(loss) == 3  # a fifth of three or four unknown labels, rounded up, of each part


def test_a_validation_loss_changes_nothing():
    for loss in (two_epochs(), two_epochs().eval()):
        before = save(loss.state_dict())
        with torch.no_grad() if loss.training else torch.enable_grad():
            loss(SCORES, TENSOR, torch.arange(6))
        loss.step()
        assert save(loss.state_dict()) == before


def test_a_forgotten_step_is_told():
    for forget in (Loss.epoch, lambda loss: [loss(SCORES, TENSOR, torch.arange(6)) for _ in range(2)]):
        loss = two_epochs()
        loss(SCORES, TENSOR, torch.arange(6))
        with pytest.raises(InputError, match=r"call loss\.step\(\) after each step of the optimizer"):
            forget(loss)
    stateless = Loss("em", labels=TENSOR)
    for _ in range(9):
        stateless(SCORES, TENSOR)
        stateless.epoch()


def test_role_needs_the_learning_rate_and_the_gradient():
    loss = Loss("role", labels=TENSOR)
    value = loss(SCORES.clone().requires_grad_(), TENSOR, torch.arange(6))
    with pytest.raises(InputError, match=r"after backward\(\)"):
        loss.step(lr=0.1)
    value.backward()
    loss = Loss("role", labels=TENSOR)
    loss(SCORES.clone().requires_grad_(), TENSOR, torch.arange(6)).backward()
    with pytest.raises(InputError, match=r'"role" moves .* call loss\.step\(lr=…\)'):
        loss.step()


def test_estimates_do_not_mind_a_scaled_loss():
    """As mixed precision and accumulated gradients scale it."""
    kept = []
    for factor in (1.0, 1024.0, 0.25):
        loss = Loss("role", labels=TENSOR, optimizer="dense", lr_factor=10.0)
        (factor * loss(SCORES.clone().requires_grad_(), TENSOR, torch.arange(6))).backward()
        loss.step(lr=0.1)
        kept.append(loss.state_dict())
    for name in ("table.role", "table.role.mean", "table.role.square"):
        assert torch.equal(kept[0][name], kept[1][name])
        assert torch.equal(kept[0][name], kept[2][name])


# ---- saving ----------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.loss = nn.Linear(5, 3), two_epochs()


def test_as_a_part_of_a_model_it_is_saved_with_it():
    model = Model()
    model.loss(SCORES, TENSOR, torch.arange(6))
    model.loss.step()
    saved = model.state_dict()
    assert "loss.table.corrected" in saved
    fresh = Model()
    assert corrections(fresh.loss) == 0
    assert not any(fresh.load_state_dict(load(save(saved))))
    assert corrections(fresh.loss) == corrections(model.loss) > 0
    assert not list(model.loss.parameters())
    assert not list(model.loss.buffers())  # DDP would overwrite these


def test_a_state_that_does_not_fit_is_refused():
    model, saved = Model(), Model().state_dict()
    head = {key: value for key, value in saved.items() if key.startswith("head.")}
    assert model.load_state_dict(head, strict=False).missing_keys == [
        "loss.epoch",
        "loss.calls",
        "loss.rank",
        "loss.rng",
    ]
    with pytest.raises(RuntimeError, match=r"Missing key.*loss\.epoch"):
        model.load_state_dict(head)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"loss\.more"'):
        model.load_state_dict(saved | {"loss.more": torch.zeros(1)})
    with pytest.raises(InputError, match=r'holds the tables "pseudo" \(6, 3\) float32, where .*"corrected"'):
        two_epochs().load_state_dict(Loss("pseudo", labels=TENSOR).state_dict())
    with pytest.raises(InputError, match="of other training images"):
        two_epochs().load_state_dict(Loss("ll_cp", labels=TENSOR[:5]).state_dict())


def test_random_numbers_go_on_where_they_were(rng):
    def draws(loss):
        return [loss(SCORES, TENSOR).item() for _ in range(3)]

    one = Loss("sampled_negative", rate=0.5, seed=4)
    draws(one)
    saved = one.state_dict()
    again = Loss("sampled_negative", rate=0.5, seed=4)
    again.load_state_dict(saved)
    unsaid = again.state_dict()  # before anything is drawn it is still the same
    assert all(torch.equal(value, unsaid[key]) for key, value in saved.items())
    expected = draws(one)
    assert draws(again) == expected
    assert draws(Loss("sampled_negative", rate=0.5, seed=4)) != expected
    elsewhere = Loss("sampled_negative", rate=0.5, seed=4)
    elsewhere.load_state_dict(saved | {"rank": torch.tensor(1)})  # the numbers of another process
    assert draws(elsewhere) != expected


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
@pytest.mark.parametrize("name", ["negative", "ll_cp", "role", "pseudo"])
def test_a_copy_goes_its_own_way(name, copied):
    """Averages of weights copy the module, processes that are spawned get it pickled."""
    loss = Loss(name, labels=None if name == "negative" else TENSOR)
    other = copied(loss)
    values = []
    for each in (loss, other):
        for _ in range(2):
            value = each(SCORES.clone().requires_grad_(), TENSOR, torch.arange(6))
            value.backward()
            each.step(lr=0.1)
            each.epoch()
        values.append(each(SCORES, TENSOR, torch.arange(6)))
    assert torch.equal(*values)


def test_it_says_what_it_is():
    assert repr(Loss("negative", epochs=7)) == "Loss(Negative(positive_weight=1.0), epoch 0 of 7)"
    assert tertium.Loss is Loss


# ---- what docs/own-loop.md says --------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "own-loop.md"


def asked_for(name, parameters):
    """What a method asks for until it has taken a step, by the errors it gives."""
    problem = Problem(methods.make(name, parameters))
    logits, labels = torch.zeros(6, 4), torch.from_numpy(problem.labels.dense(np.arange(6)))
    offers = {
        "labels=": problem.labels,
        "features=": problem.features,
        "frequencies=": Frequencies(*np.full((5, 4), 0.5), spread=0.0),
        "predictions=": problem.guesses,
    }
    wanted: set[str] = set()
    while True:
        given = {key[:-1]: value for key, value in offers.items() if key in wanted}
        try:
            loss = Loss(name, **given, **parameters)
            index = torch.arange(6) if "index" in wanted else None
            loss(logits.clone().requires_grad_(), labels, index).backward()
            if loss.method.remembers:
                wanted.add("loss.step()")
            loss.step(lr=0.1 if "loss.step(lr=…)" in wanted else None)
            return wanted - {"loss.step()"} if "loss.step(lr=…)" in wanted else wanted
        except InputError as error:
            told = [*(f"pass {key}" for key in offers), "index", "loss.step(lr=…)"]
            (first, *_) = [part for part in told if part in str(error)]
            assert first.removeprefix("pass ") not in wanted
            wanted.add(first.removeprefix("pass "))


def test_the_page_says_what_each_method_asks_for():
    table = PAGE.read_text().partition("## What a method asks for")[2].partition("\n- ")[0]
    told = {}
    for cases, wants in re.findall(r"^\| (`.+?) \| (.+?) \|$", table, re.MULTILINE):
        for case in re.findall("`(.+?)`", cases):
            told[case] = set(re.findall("`(.+?)`", wants))
    assert {case.split()[0] for case in told} == set(METHODS)
    for case, wants in told.items():
        name, *parameters = case.split()
        found = asked_for(name, dict(word.split("=") for word in parameters))
        assert found == wants - ({"predictions="} if name == "auto" else set()), case


def test_the_examples_are_short():
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) > 3
    assert max(len(example.splitlines()) for example in examples) < 25
