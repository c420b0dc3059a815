import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file

from tertium.config import HEAD, Settings
from tertium.data.batches import FeatureLoader, Order, loader
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods import Method, make
from tertium.methods.baselines import Negative
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.training import fit as fitting
from tertium.training.choosing import Best, Verdict
from tertium.training.fit import fit, make_fabric, rate_factor
from tertium.training.train import train


@pytest.fixture
def data(rng):
    features = rng.normal(size=(64, 5)).astype(np.float32)
    labels = Labels.from_dense(np.where(features[:, :3] > 0, 1, -1))
    return features, labels


PLAN = HEAD.resolved(64, 16, 1)


def run(data, method=None, phase=PLAN, scores=None, seen=None, **settings):
    """Fit a head; the judge gives these scores one by one, and puts the weights it sees into ``seen``."""
    features, labels = data
    given = iter(scores or [])

    def validate(model, _):
        if seen is not None:
            seen.append(model.head.weight.detach().clone())
        return Verdict({"score": next(given, None)})

    return fit(
        Classifier(labels.classes, features.shape[1]),
        method or make("negative"),
        FeatureLoader(features, labels, Order(len(labels), 16)),
        replace(phase, **settings),
        labels=labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=validate,
    )


def test_training_equals_a_bare_loop(data):
    """The engine adds nothing to the arithmetic: same batches, same steps, same weights."""
    features, labels = data
    phase = replace(PLAN, epochs=3, batch_size=16, lr=0.01, weight_decay=0.1)
    fitted = run(data, phase=phase)
    model = Classifier(labels.classes, 5)
    groups = [
        {"params": [model.head.weight], "weight_decay": 0.1},
        {"params": [model.head.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    step, steps = 0, 12
    for epoch in (1, 2, 3):
        order = np.random.default_rng((0, epoch)).permutation(64)
        for rows in np.split(order, 4):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * rate_factor(phase, (step + 0.5) / steps)
            target = torch.from_numpy(labels.dense(rows) > 0).float()
            logits = model(torch.from_numpy(features[rows]))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    torch.testing.assert_close(fitted.model.head.weight, model.head.weight)
    torch.testing.assert_close(fitted.model.head.bias, model.head.bias)


def test_the_best_epoch_is_kept(data):
    scores = [0.2, 0.5, 0.4, 0.3]
    plan = {"epochs": 4, "patience": 9, "schedule": "constant", "lr": 0.05}
    seen = []
    fitted = run(data, scores=scores, seen=seen, **plan)
    assert fitted.best_epoch == 2
    assert [record["score"] for record in fitted.records] == scores
    assert torch.equal(fitted.model.head.weight, seen[1])
    assert not any(torch.equal(fitted.model.head.weight, seen[other]) for other in (0, 2, 3))


@pytest.mark.parametrize("scores", [[], [0.2, 0.5]], ids=["none", "none later on"])
def test_without_a_score_the_last_epoch_counts(data, scores):
    seen = []
    fitted = run(data, scores=scores, seen=seen, epochs=4, patience=9, schedule="constant", lr=0.05)
    assert fitted.best_epoch == 4
    assert torch.equal(fitted.model.head.weight, seen[3])


def test_early_stopping(data):
    fitted = run(data, scores=[0.5, 0.4, 0.3, 0.9], epochs=4, patience=2)
    assert len(fitted.records) == 3
    assert fitted.best_epoch == 1


def test_records_hold_mean_terms(data):
    fitted = run(data, epochs=2)
    assert [record["epoch"] for record in fitted.records] == [1, 2]
    for record in fitted.records:
        assert record["loss"] == pytest.approx(sum(record["terms"].values()))
        assert 0 < record["loss"] < math.log(2) + 0.1
    assert fitted.records[1]["loss"] < fitted.records[0]["loss"]


def test_average_is_what_is_judged_and_kept(data):
    """The average of the weights after each step, computed here by hand."""
    steps = []

    @dataclass(frozen=True)
    class Watched(Negative):
        name: ClassVar[str] = "watched_for_test"

        def before_epoch(self, run):
            steps.append("epoch")

    class Spy(Classifier):
        def forward(self, inputs):
            steps.append(self.head.weight.detach().clone())  # as the step before left it
            return super().forward(inputs)

    features, labels = data
    seen, model = [], Spy(labels.classes, 5)
    fitted = fit(
        model,
        Watched(),
        FeatureLoader(features, labels, Order(len(labels), 16)),
        replace(PLAN, epochs=2, lr=0.05, ema=0.9),
        labels=labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=lambda model, _: (seen.append(model.head.weight.clone()), Verdict({"score": None}))[1],
    )
    weights = [step for step in steps if not isinstance(step, str)]
    average, wanted = weights[0].clone(), []
    for number, weight in enumerate([*weights[1:], model.head.weight.detach()], start=1):
        average = average.lerp(weight, 1 - min(0.9, (1 + number) / (10 + number)))
        wanted.append(average)
    torch.testing.assert_close(seen[0], wanted[3])
    torch.testing.assert_close(seen[1], wanted[7])
    assert torch.equal(fitted.model.head.weight, seen[1])


def test_clipping_changes_the_steps(data):
    """Gradients that differ in length from step to step lead elsewhere when they are clipped."""

    @dataclass(frozen=True)
    class Steep(Method):
        name: ClassVar[str] = "steep_for_test"
        paper: ClassVar[str] = "test"

        def terms(self, logits, batch, run):
            return {"steep": 1e6 * logits.square().mean() + logits.mean()}

    free, clipped, loose = (run(data, Steep(), epochs=1, clip=clip) for clip in (0.0, 1e-3, 1e6))
    assert not torch.equal(free.model.head.weight, clipped.model.head.weight)
    assert torch.equal(free.model.head.weight, loose.model.head.weight)  # a bound that is never reached


def test_hooks_are_called_in_order(data):
    calls = []

    @dataclass(frozen=True)
    class Spy(Method):
        name: ClassVar[str] = "spy_for_test"
        paper: ClassVar[str] = "test"

        def prepare(self, run):
            calls.append(("prepare", run.epoch))

        def before_epoch(self, run):
            calls.append(("before", run.epoch))

        def terms(self, logits, batch, run):
            assert logits.requires_grad
            return {"one": logits.mean()}

        def after_step(self, logits, batch, run):
            assert not torch.is_grad_enabled()
            calls.append(("after", run.epoch))

    run(data, Spy(), epochs=2)
    epoch = [("after", 0)] * 4
    expected = [("prepare", 1)]
    for number in (1, 2):
        expected += [("before", number)] + [("after", number) for _ in epoch]
    assert calls == expected


def test_a_loss_that_is_not_a_number_stops_the_run(data):
    features, labels = data
    features[3, 2] = np.nan
    with pytest.raises(
        InputError, match=r'not finite in epoch 1, step .*"bce" is nan; the images of this batch are'
    ):
        run((features, labels), epochs=2)


@pytest.fixture
def unread(monkeypatch):
    """Losses are read as those on a GPU are: some steps later."""
    plain = fitting.Losses
    monkeypatch.setattr(fitting, "Losses", lambda labels, _: plain(labels, torch.device("cuda")))


@pytest.fixture
def steps(monkeypatch):
    """Whether the logits of each step are finite."""
    found, plain = [], Negative.terms

    def noticed(self, logits, batch, run):
        found.append(bool(logits.isfinite().all()))
        return plain(self, logits, batch, run)

    monkeypatch.setattr(Negative, "terms", noticed)
    return found


@pytest.fixture
def bad(data):
    """Features of which the first batch has one that is not a number."""
    features, labels = data
    features[np.random.default_rng((0, 1)).permutation(64)[0], 2] = np.nan
    return features, labels


def test_on_the_cpu_a_loss_is_read_at_once(bad, steps):
    with pytest.raises(InputError, match="not finite in epoch 1, step 1: "):
        run(bad, epochs=2)
    assert len(steps) == 1


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(("most", "taken"), [(2, 2), (3, 3), (32, 4)])  # an epoch has 4 steps
def test_losses_that_are_read_later_name_the_first_bad_batch(bad, steps, monkeypatch, most, taken):
    monkeypatch.setattr(fitting, "_UNREAD", most)
    judged = []
    first = np.random.default_rng((0, 1)).permutation(64)[:3]
    names = ", ".join(map(str, first))
    with pytest.raises(InputError, match=rf"not finite in epoch 1, step 1: .*this batch are {names}"):
        run(bad, epochs=2, seen=judged)
    assert len(steps) == taken
    assert judged == []  # nothing that came of it is validated


@pytest.mark.parametrize("late", [False, True])
def test_no_checkpoint_holds_weights_that_are_not_finite(data, tmp_path, monkeypatch, request, late):
    if late:
        request.getfixturevalue("unread")
    features, labels = data
    factors = iter([1.0, 1.0, math.inf])
    monkeypatch.setattr(fitting, "rate_factor", lambda *_: next(factors, 1.0))
    settings = {"method": "negative", "epochs": 3, "batch_size": 8, "checkpoint_minutes": 0}
    with pytest.raises(InputError, match="weights are not finite after epoch 1, step 3"):
        train(labels, features=features, out=tmp_path / "run", config=settings, validation=0.0)
    kept = sorted((tmp_path / "run" / "checkpoints").glob("*/training.safetensors"))
    assert len(kept) == 2
    for path in kept:
        assert all(value.isfinite().all() for value in load_file(path).values())


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle"])
def test_schedules_rise_and_fall(schedule):
    phase = replace(HEAD, schedule=schedule, warmup=0.25)
    rates = [rate_factor(phase, done) for done in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(1)
    assert np.argmax(rates) == 25
    assert all(later > earlier for earlier, later in itertools.pairwise(rates[:26]))
    assert rates[-1] == pytest.approx(1 if schedule == "constant" else 0)
    assert rates[0] == (0.04 if schedule == "one_cycle" else 0)


def test_no_warmup():
    assert rate_factor(replace(HEAD, warmup=0.0), 0.0) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver to find")
def test_no_step_looks_for_a_driver_that_is_not_there(data, monkeypatch):
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning sets it
    make_fabric(Settings(device="cpu"))
    searched = []
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: searched.append(1) or -1)
    run(data, epochs=1)
    assert searched == []


def test_the_engine_uses_what_is_asked_for():
    assert make_fabric(Settings(device="cpu")).device.type == "cpu"
    assert "bf16" in str(make_fabric(Settings(device="cpu", precision="bf16-mixed"))._precision.precision)


@dataclass(frozen=True)
class Ruined(Method):
    """Learns as `negative` does, then spoils its weights."""

    name: ClassVar[str] = "ruined"
    paper: ClassVar[str] = "none"

    def terms(self, logits, batch, run):
        return make("negative").terms(logits, batch, run)

    def finish(self, model, run):
        with torch.no_grad():
            model.head.weight.fill_(7)
        yield ""


@pytest.mark.parametrize(("afterwards", "kept"), [(0.6, True), (0.5, True), (0.4, False), (None, True)])
def test_what_a_method_finishes_must_not_be_worse(data, afterwards, kept):
    fitted = run(data, Ruined(), scores=[0.2, 0.5, 0.3, afterwards], epochs=3, patience=9)
    assert bool((fitted.model.head.weight == 7).all()) is kept
    assert fitted.best_epoch == 2
    assert fitted.kept.figures["score"] == (afterwards if kept else 0.5)


@dataclass(frozen=True)
class Tried(Ruined):
    """Tries two changes, one after the other."""

    name: ClassVar[str] = "tried"

    def finish(self, model, run):
        yield from super().finish(model, run)
        with torch.no_grad():
            model.head.weight.fill_(8)
        yield "eight"


@pytest.mark.parametrize(
    ("scores", "kept"),
    [((0.6, 0.7), 8), ((0.6, 0.6), 7), ((0.4, 0.5), None), ((0.4, 0.6), 8), ((None, None), 7)],
)
def test_a_second_change_must_be_clearly_better(data, scores, kept):
    fitted = run(data, Tried(), scores=[0.2, 0.5, 0.3, *scores], epochs=3, patience=9)
    assert bool((fitted.model.head.weight == 8).all()) is (kept == 8)
    assert bool((fitted.model.head.weight == 7).all()) is (kept == 7)
    assert fitted.kept.figures["score"] == {8: scores[1], 7: scores[0], None: 0.5}[kept]


def test_a_judgement_decides_before_the_score(data):
    features, labels = data
    given = iter([(0.9, [-3.0, -4.0]), (0.5, [-1.0, -1.1]), (0.7, [-0.1, -1.9]), (0.8, [-2.0, -1.0])])
    fitted = fit(
        Classifier(labels.classes, features.shape[1]),
        make("negative"),
        FeatureLoader(features, labels, Order(len(labels), 16)),
        replace(PLAN, epochs=4, patience=9),
        labels=labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=lambda *_: verdict(*next(given)),
    )
    assert fitted.best_epoch == 2  # the third is no better by more than the doubt
    assert fitted.kept.figures["score"] == 0.5


def verdict(score, each):
    return Verdict({"score": score}, np.array(each))


@pytest.mark.parametrize(
    ("later", "epoch"),
    [
        (False, 2),  # a head: what comes after is no better by more than its error
        (True, 4),  # a whole network: the last is behind the third, but not by more than its error
    ],
)
def test_few_images_do_not_overrule_what_is_known_beforehand(later, epoch):
    model = Classifier(("a",), 2)
    said = ([-3, -4], [-1, -1.1], [-0.1, -1.9], [-0.9, -1.2], [-2, -2.1])
    epochs = [verdict(0.5, np.array(2 * each, dtype=float)) for each in said]
    best = Best(later=later)
    for number, offered in enumerate(epochs, 1):
        best.offer(number, offered, model)
    assert best.epoch == epoch
    again = Best(later=later)
    again.restore(epoch, {}, [offered.figures for offered in epochs], best.judgements())
    # Clearly worse than the third epoch, not clearly than the fourth; and no better than the second.
    again.offer(6, verdict(0.9, np.array([-0.3, -2.1, -0.3, -2.1])), model)
    assert again.epoch == epoch


def test_a_whole_network_is_kept_from_its_latest_good_epoch():
    images = np.zeros((8, 32, 32, 3), dtype=np.uint8)
    labels = Labels.from_dense(np.ones((8, 1), dtype=np.int8))
    inputs = open_inputs(images, None, labels.images.to_pylist())
    backbone = pretrained("mobilenetv3_small_050", "random")
    given = iter([verdict(0.5, [0.0, 0.0]), verdict(0.5, [1.0, 1.0]), verdict(0.5, [0.5, 1.2])])
    fitted = fit(
        Classifier(labels.classes, backbone.width, backbone),
        make("negative"),
        loader(inputs, labels, 32, Order(8, 4), workers=0),
        replace(PLAN, epochs=3, patience=9, backbone_lr=1e-3),
        labels=labels,
        fabric=Fabric(accelerator="cpu", devices=1),
        validate=lambda *_: next(given),
    )
    assert fitted.best_epoch == 3


def test_how_much_better_a_model_is():
    assert verdict(0.1, [1.0]).gain(verdict(0.9, [0.0])) == (1.0, 0.0)
    assert Verdict({"score": 0.75}).gain(Verdict({"score": 0.5})) == (0.25, 0.0)
    assert Verdict({"score": None}).gain(Verdict({"score": 0.5})) is None
