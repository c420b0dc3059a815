from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from tertium import train
from tertium.annotation.record import Annotation
from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import Method
from tertium.schemes import parse
from tests.methods.doors import labels_of, make_run
from tests.methods.test_conformance import make


def gradient(method, logits, labels, propensity=None):
    run = make_run(labels)
    method.prepare(run)
    if propensity is not None:
        run.state.tensors["propensity"] = propensity
    logits = logits.clone().requires_grad_()
    terms = method.terms(logits, Batch(torch.empty(len(logits), 0), labels, torch.arange(len(logits))), run)
    return torch.autograd.grad(sum(terms.values()), logits)[0]


def drawn(rng, rate, seen_present, seen_absent, images=40_000):
    """Labels of which a present one is known with one probability, an absent one with another."""
    truth = np.where(rng.random((images, len(rate))) < rate, 1, -1)
    seen = rng.random(truth.shape) < np.where(truth > 0, seen_present, seen_absent)
    return Labels.from_dense((truth * seen).astype(np.int8))


def test_equal_propensities_are_ignore(rng):
    logits, labels = torch.from_numpy(rng.normal(scale=3, size=(40, 6))), labels_of(rng, 40, 6)
    method = make("likelihood")
    seen = method.propensities(Labels.from_dense(labels.numpy()))
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-12)
    found = gradient(method, logits, labels)
    torch.testing.assert_close(found, gradient(make("ignore"), logits, labels))
    assert found[labels == 0].abs().max() < 1e-12


def test_propensities_of_one_are_negative(rng):
    """All present labels would have been seen, so what was not is absent."""
    logits, labels = torch.from_numpy(rng.normal(size=(40, 6))), labels_of(rng, 40, 6)
    sure = torch.tensor([[1 - 1e-6] * 6, [0.3] * 6], dtype=torch.float64)
    found = gradient(make("likelihood"), logits, labels, sure)
    torch.testing.assert_close(found, gradient(make("negative"), logits, labels), atol=1e-6, rtol=0)
    doubtful = torch.tensor([[0.5] * 6, [0.3] * 6], dtype=torch.float64)
    between = gradient(make("likelihood"), logits, labels, doubtful)[labels == 0]
    assert ((between > 0) & (between < found[labels == 0])).all()


def test_as_many_labels_per_image_as_are_known_is_negative(rng):
    labels = (labels_of(rng, 400, 5) == 1).to(torch.int8)
    logits = torch.from_numpy(rng.normal(size=(400, 5)))
    exact = make("likelihood", {"labels_per_image": labels.sum().item() / 400})
    found = gradient(exact, logits, labels)
    torch.testing.assert_close(found, gradient(make("negative"), logits, labels), atol=1e-6, rtol=0)


def test_frequencies_and_propensities_are_recovered(rng):
    """Positives only, annotated alike: from the number of labels per image, without any known absence."""
    rate = np.array([0.02, 0.1, 0.4])
    labels = drawn(rng, rate, seen_present=0.3, seen_absent=0.0)
    method = make("likelihood", {"labels_per_image": rate.sum()})
    np.testing.assert_allclose(method.initial_rate(labels), rate, rtol=0.1)
    seen = method.propensities(labels)
    np.testing.assert_allclose(seen[0], 0.3, rtol=0.1)
    assert seen[1].max() < 1e-4
    by_share = make("likelihood").initial_rate(drawn(rng, rate, seen_present=0.5, seen_absent=0.5))
    np.testing.assert_allclose(by_share, rate, rtol=0.15)


def test_too_large_a_guess_makes_no_class_certain(rng):
    """Four times the truth would be a frequency of 1.6 for the last class."""
    labels = drawn(rng, np.array([0.02, 0.1, 0.4]), seen_present=0.3, seen_absent=0.0)
    rate = make("likelihood", {"labels_per_image": 4 * 0.52}).initial_rate(labels)
    np.testing.assert_allclose(rate, [0.08, 0.4, 0.12 + 0.9 * 0.88], rtol=0.1)


@pytest.mark.parametrize("k", [None, 0.52, 2.0])
def test_the_initial_rate_is_the_answer_of_a_model_that_ignores_the_image(rng, k):
    """π is where the likelihood of one bias per class is largest, whatever k is assumed."""
    labels = drawn(rng, np.array([0.02, 0.1, 0.4]), 0.3, 0.3 if k is None else 0.0)
    method = make("likelihood", {"labels_per_image": k})
    method.check(labels)
    bias = torch.logit(torch.from_numpy(method.initial_rate(labels)))
    found = gradient(method, bias.expand(labels.shape), torch.from_numpy(labels.dense()))
    assert found.sum(dim=0).abs().max() < 1e-5
    moved = gradient(method, (bias + 0.5).expand(labels.shape), torch.from_numpy(labels.dense()))
    assert (moved.sum(dim=0) > 5e-5).all()


def test_the_number_of_labels_per_image_is_asked_for():
    positives = Labels.from_dense([[1, 1, 0], [0, 1, 0]])
    with pytest.raises(InputError, match=r"needs labels_per_image.*no label is known to be absent"):
        make("likelihood").check(positives)
    make("likelihood").check(Labels.from_dense([[1, 1, 0], [0, 1, -1]]))
    make("likelihood", {"labels_per_image": 2}).check(positives)
    for impossible in (1.2, 3.5):
        with pytest.raises(InputError, match=r"1\.5 of 3 labels per image are already known"):
            make("likelihood", {"labels_per_image": impossible}).check(positives)
    with pytest.raises(InputError, match="must be above 0"):
        make("likelihood", {"labels_per_image": 0})


def test_extreme_logits_stay_exact(rng):
    """float32 logits of ±100: the value is the logarithm of what is left of one side."""
    labels = torch.zeros(2, 1, dtype=torch.int8)
    run = make_run(labels)
    run.state.tensors["propensity"] = torch.tensor([[0.75], [0.5]], dtype=torch.float64)
    for z, left in ((100.0, 0.25), (-100.0, 0.5)):
        batch = Batch(torch.empty(2, 0), labels, torch.arange(2))
        (value,) = make("likelihood").terms(torch.full((2, 1), z), batch, run).values()
        assert value.item() == pytest.approx(-np.log(left), abs=2e-5)


def test_single_positives_have_the_scale_of_the_truth(coco):
    """COCO has 2.9 labels per image: given that, π sums to it although one positive each is known."""
    truth = read_labels(coco / "labels.csv", unlisted="absent")[:5000]
    k = truth.class_counts[0].sum() / 5000
    rate = make("likelihood", {"labels_per_image": k}).initial_rate(parse("single_positive").apply(truth, 0))
    assert rate.sum() == pytest.approx(k, rel=0.05)
    assert np.corrcoef(rate, truth.class_counts[0] / 5000)[0, 1] > 0.9


# ---- what a run makes of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told(Method):
    """Keeps figures under names of its own, and says what they mean."""

    says: bool = True
    name: ClassVar[str] = "told"

    def prepare(self, run):
        run.state.tensors["propensity"] = torch.full((2, 2), 0.5)  # a name that means nothing by itself

    def terms(self, logits, batch, run):
        return {"square": logits.square().mean()}

    def annotation(self, run):
        share = np.full(2, 0.25)
        return (
            Annotation(run.labels.classes, share, share / 2, share * 2, share * 3, share)
            if self.says
            else None
        )


def test_how_labels_were_annotated_is_what_the_method_says(rng, tmp_path):
    """A run keeps it and chooses thresholds by it; what a method calls its tensors is its own affair."""
    features = rng.normal(size=(60, 3)).astype(np.float32)
    labels = Labels.from_dense(np.where(features[:, :2] > 0, 1, 0), classes=["cat", "dog"])
    found = {}
    for says in (True, False):
        outcome = train(labels, features=features, method=Told(says), out=tmp_path / str(says), epochs=1)
        found[says] = outcome.trained.thresholds
    kept = Annotation.of_run(tmp_path / "True")
    assert kept.classes == ("cat", "dog")
    figures = [kept.rate, kept.low, kept.high, kept.present, kept.absent]
    assert [column.tolist() for column in figures] == [[x, x] for x in (0.25, 0.125, 0.5, 0.75, 0.25)]
    assert Annotation.of_run(tmp_path / "False") is None
    assert not np.allclose(found[True], found[False])


def test_the_annotation_of_a_run_is_what_its_loss_assumes(rng):
    run = make_run(labels_of(rng, 40, 3))
    method = make("likelihood")
    method.prepare(run)
    found = method.annotation(run)
    np.testing.assert_array_equal(found.rate, method.initial_rate(run.labels))
    np.testing.assert_array_equal([found.present, found.absent], method.propensities(run.labels))
    assert make("negative").annotation(run) is None
