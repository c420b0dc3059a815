"""What `auto` does beyond its loss: which epoch it keeps, and the second head that it averages in."""

import numpy as np
import pytest
import torch

from tertium.labels import Labels
from tertium.methods import make
from tertium.models.classifier import Classifier
from tertium.schemes import parse
from tertium.training.train import train
from tests.methods.doors import labels_of, make_run
from tests.reference.observation import explained


def prepared(rng, images=60, classes=4, width=6):
    labels = labels_of(rng, images, classes)
    run = make_run(labels, features=rng.normal(size=(images, width)).astype(np.float32))
    method = make("auto")
    method.prepare(run)
    return method, run, labels


def test_the_judgement_is_the_loss_of_all_labels(rng):
    method, run, labels = prepared(rng)
    logits = rng.normal(size=labels.shape)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    rates = list(zip(*run.state.tensors["propensity"].tolist(), strict=True))
    found = method.judge(scores, Labels.from_dense(labels.numpy()), run)
    for row, each in enumerate(found):
        expected = -explained([logits[row].tolist()], [labels[row].tolist()], rates)
        assert each == pytest.approx(expected, abs=1e-6)


def test_overconfidence_of_a_whole_network_is_forgiven(rng):
    method, run, labels = prepared(rng, images=400)
    logits = 0.5 * labels.numpy() + rng.normal(size=labels.shape)
    found = []
    for run.whole in (False, True):
        for scale in (1, 4):
            scores = (1 / (1 + np.exp(-scale * logits))).astype(np.float32)
            found.append(method.judge(scores, Labels.from_dense(labels.numpy()), run).mean())
    plain, overconfident, scaled, mended = found
    assert overconfident < plain - 0.1
    assert scaled == pytest.approx(mended, abs=0.002)


def test_least_squares_of_completed_labels_are_averaged_in(rng):
    """Against a plain computation: completed labels one by one, a ridge regression by augmented rows."""
    method, run, labels = prepared(rng)
    features = run.features()
    model = Classifier(run.labels.classes, features.shape[1])
    model.standardise(features)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    before = model.head.weight.detach().double().numpy().copy()
    bias = model.head.bias.detach().clone()
    next(method.finish(model, run))
    x = (features - features.mean(axis=0)) / features.std(axis=0)
    x = x.astype(np.float64)
    for column, (seen_present, seen_absent) in enumerate(
        zip(*run.state.tensors["propensity"].tolist(), strict=True)
    ):
        completed = []
        for row, y in enumerate(labels[:, column].tolist()):
            p = 1 / (1 + np.exp(-(x[row] @ before[column])))
            missed, never = p * (1 - seen_present), (1 - p) * (1 - seen_absent)
            completed.append({1: 1.0, -1: 0.0, 0: missed / (missed + never)}[y])
        ridge = np.sqrt(2 * x.shape[1] * np.mean(x.var(axis=0))) * np.eye(x.shape[1])
        target = np.concatenate([completed, np.zeros(x.shape[1])])
        other = np.linalg.lstsq(np.concatenate([x, ridge]), target, rcond=None)[0]
        both = before[column] / (x @ before[column]).std() + other / (x @ other).std()
        both *= (x @ before[column]).std() / (x @ both).std()
        np.testing.assert_allclose(model.head.weight[column].detach(), both, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model.head.bias, bias)


def test_a_head_without_scores_stays_as_it_is(rng):
    """Zero weights have no direction to average with."""
    method, run, _ = prepared(rng)
    model = Classifier(run.labels.classes, run.features().shape[1])
    list(method.finish(model, run))
    assert not model.head.weight.any()


def test_full_labels_are_not_completed(rng):
    labels = labels_of(rng, 40, 3, known=1.0)
    run = make_run(labels, features=rng.normal(size=(40, 6)).astype(np.float32))
    method = make("auto")
    method.prepare(run)
    model = Classifier(run.labels.classes, 6)
    torch.nn.init.ones_(model.head.weight)
    assert not list(method.finish(model, run))
    assert (model.head.weight == 1).all()


def clusters(rng, images, classes=6, width=40):
    """Images that show a class lie around its centre: where few labels are known, completing them helps."""
    centres = rng.normal(size=(classes, width))
    truth = rng.random((images, classes)) < 0.2
    features = truth @ centres * 0.6 + rng.normal(size=(images, width))
    return features.astype(np.float32), Labels.from_dense(np.where(truth, 1, -1))


@pytest.mark.parametrize("scheme", ["random:0.05", "positives:0.1"])
def test_few_known_labels_are_made_more_of(rng, scheme, monkeypatch):
    features, truth = clusters(rng, 3000)
    partial = parse(scheme).apply(truth[:2000], 0)
    scores = []
    for finishes in (True, False):
        if not finishes:
            monkeypatch.setattr("tertium.methods.auto.Auto.finish", lambda self, model, run: iter(()))
        outcome = train(partial, features=features[:2000], method="auto")
        scores.append(outcome.trained.evaluate(truth[2000:], features=features[2000:]).map_c)
    assert scores[0] > scores[1]


def test_it_is_the_default(rng):
    features, truth = clusters(rng, 200)
    outcome = train(parse("random:0.5").apply(truth, 0), features=features, epochs=1)
    assert outcome.summary["method"] == "auto"


def traits(rng, images, classes=30, width=40):
    """Labels that go by six traits, which the features show: classes can learn from one another."""
    factors = rng.normal(size=(images, 6))
    loadings = rng.normal(size=(6, classes)) / np.sqrt(6)
    truth = factors @ loadings + 0.2 * rng.normal(size=(images, classes)) > 0.7
    features = factors @ rng.normal(size=(6, width)) / 2 + rng.normal(size=(images, width))
    return features.astype(np.float32), Labels.from_dense(np.where(truth, 1, -1))


def mean_ap(outcome, truth, features):
    return outcome.trained.evaluate(truth, features=features).map_c


def test_classes_learn_from_one_another(rng, monkeypatch):
    features, truth = traits(rng, 3000)
    partial = parse("random:0.05").apply(truth[:2000], 0)
    found = train(partial, features=features[:2000])
    monkeypatch.setattr("tertium.methods.auto.find", lambda *_: None)
    alone = train(partial, features=features[:2000])
    gained = mean_ap(found, truth[2000:], features[2000:]) - mean_ap(alone, truth[2000:], features[2000:])
    assert gained > 0.01


def test_nothing_is_fitted_where_labels_agree_by_chance_alone(rng, monkeypatch):
    features, truth = clusters(rng, 3000)
    partial = parse("random:0.5").apply(truth, 0)
    looked = []
    monkeypatch.setattr("tertium.methods.auto.find", lambda *_: looked.append(1))
    train(partial, features=features, epochs=1)
    assert not looked
    monkeypatch.setattr("tertium.methods.auto.LITTLE", 0.0)
    train(partial, features=features, epochs=1)
    assert looked


def test_labels_that_do_not_go_together_leave_it_as_it_was(rng, monkeypatch):
    features, truth = clusters(rng, 800)
    partial = parse("random:0.3").apply(truth, 0)
    found = train(partial, features=features, epochs=3)
    monkeypatch.setattr("tertium.methods.auto.find", lambda *_: None)
    alone = train(partial, features=features, epochs=3)
    assert torch.equal(found.trained.model.head.weight, alone.trained.model.head.weight)
