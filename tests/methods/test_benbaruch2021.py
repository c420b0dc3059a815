import dataclasses

import numpy as np
import pytest
import torch

from tertium import Labels, methods, train
from tertium.errors import InputError
from tertium.labels.readers import read_labels
from tertium.methods.baselines import Ignore
from tertium.methods.benbaruch2021 import PAsl, Selective, class_prior
from tertium.metrics.evaluation import spearman
from tertium.schemes import parse
from tests.methods.doors import labels_of, make_run, started, step
from tests.methods.test_conformance import loss


@pytest.fixture
def problem(rng):
    """Logits [8, 12] and labels of which some are unknown in every image."""
    return torch.from_numpy(rng.normal(size=(8, 12))), labels_of(rng, 8, 12)


def gradient(method, logits, labels, **about):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(method, logits, labels, **about), logits)[0]


def priors(*of_classes, rows=8):
    """Predictions whose means over the images are these."""
    return np.tile(np.array(of_classes, dtype=np.float32), (rows, 1))


PRIORS = priors(*np.linspace(0.02, 0.9, 12))


@pytest.mark.parametrize("nothing", [{"k": 0}, {"likelihood": False}])
def test_selecting_nothing_is_p_asl(nothing, problem):
    assert torch.equal(loss(Selective(prior=None, **nothing), *problem), loss(PAsl(), *problem))
    for empty in ({"eta": 1.0}, {"top": None}, {"top": 0.0}, {"soft_prior": 0.0}):
        assert torch.equal(loss(Selective(**empty, **nothing), *problem), loss(PAsl(), *problem))


@pytest.mark.parametrize("pool", ["image", "batch"])
@pytest.mark.parametrize("k", [12, 1000])
def test_selecting_everything_leaves_the_known_labels(pool, k, problem):
    logits, labels = problem
    found = gradient(Selective(k=k, pool=pool, prior=None), logits, labels)
    assert (found[labels == 0] == 0).all()
    whole = gradient(PAsl(), logits, labels)
    torch.testing.assert_close(found[labels != 0], whole[labels != 0])
    # The loss of an unknown label falls to nothing with its logit.
    sunk = logits.where(labels != 0, -80.0)
    torch.testing.assert_close(
        loss(Selective(k=k, pool=pool, prior=None), logits, labels), loss(PAsl(), sunk, labels)
    )


def test_exactly_k_unknown_labels_of_each_image_carry_no_loss(problem):
    logits, labels = problem
    labels[0] = 1  # nothing unknown
    labels[1, 2:] = -1
    labels[1, :2] = 0  # fewer unknown than k
    labels[2] = 0
    found = gradient(Selective(k=3, prior=None), logits, labels)
    unknown = (labels == 0).sum(1)
    free = ((found == 0) & (labels == 0)).sum(1)
    assert free.tolist() == unknown.clamp(max=3).tolist()
    for row in range(8):  # none that carries loss is more likely than one that does not
        carrying = (labels[row] == 0) & (found[row] != 0)
        if carrying.any():
            assert logits[row][carrying].max() < logits[row][(labels[row] == 0) & (found[row] == 0)].min()
    assert (found[labels != 0] != 0).all()


def test_equal_logits_still_leave_out_exactly_k():
    labels = torch.zeros(5, 9, dtype=torch.int8)
    found = gradient(Selective(k=4, prior=None), torch.full((5, 9), -2.0), labels)
    assert ((found == 0).sum(1) == 4).all()
    found = gradient(Selective(k=4, pool="batch", prior=None), torch.full((5, 9), -2.0), labels)
    assert (found == 0).sum() == 20


def test_a_batch_may_share_its_quota(problem):
    logits, labels = problem
    labels[labels == 1] = -1
    logits[0] += 20  # all unknown labels of this image are the likeliest
    found = gradient(Selective(k=1, pool="batch", prior=None), logits, labels)
    free = (found == 0) & (labels == 0)
    assert free.sum() == 8
    assert free[0].sum() == min((labels[0] == 0).sum(), 8)
    assert (gradient(Selective(k=1, prior=None), logits, labels)[0] == 0).sum() == 1


def test_known_labels_feel_neither_k_nor_the_prior(problem):
    logits, labels = problem
    plain = gradient(PAsl(), logits, labels)[labels != 0]
    for chosen in ({"k": 3}, {"eta": 0.0}, {"top": 0.5}, {"soft_prior": 9.0}, {"k": 2, "pool": "batch"}):
        found = gradient(Selective(**chosen), logits, labels, predictions=PRIORS)
        # Up to the last bit, which depends on where in a vector of the processor an entry lies.
        torch.testing.assert_close(found[labels != 0], plain, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("chosen", "frequent"),
    [({"eta": 0.5}, 5), ({"eta": 0.05}, 11), ({"eta": 0.9}, 0), ({"top": 0.25}, 3), ({"top": 1.0}, 12)],
)
def test_eta_is_a_value_and_top_a_rank(chosen, frequent, problem):
    logits, _ = problem
    labels = torch.zeros(8, 12, dtype=torch.int8)
    found = gradient(Selective(likelihood=False, **chosen), logits, labels, predictions=PRIORS)
    assert (found == 0).all(0).tolist() == [False] * (12 - frequent) + [True] * frequent
    halved = gradient(Selective(likelihood=False, **chosen), logits, labels, predictions=PRIORS / 2)
    assert torch.equal(found, halved) == ("top" in chosen or chosen["eta"] == 0.9)


def test_a_soft_prior_weighs_unknown_labels(problem):
    logits, labels = problem
    ratio = gradient(Selective(likelihood=False, soft_prior=2.0), logits, labels, predictions=PRIORS)
    ratio /= gradient(PAsl(), logits, labels)
    expected = torch.from_numpy(np.exp(-2.0 * PRIORS)).double().where(labels == 0, 1.0)
    torch.testing.assert_close(ratio, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("chosen", [{"k": 2, "top": 0.25}, {"k": 1, "pool": "batch", "soft_prior": 1.0}])
def test_the_order_of_images_and_classes_does_not_matter(chosen, problem, rng):
    logits, labels = problem
    rows, columns = rng.permutation(8), rng.permutation(12)
    moved = loss(
        Selective(**chosen),
        logits[rows][:, columns],
        labels[rows][:, columns],
        predictions=PRIORS[rows][:, columns],
    )
    torch.testing.assert_close(moved, loss(Selective(**chosen), logits, labels, predictions=PRIORS))


def test_logits_of_any_layout(problem):
    logits, labels = problem
    for method in (PAsl(), Selective(k=2, prior=None)):
        expected = gradient(method, logits, labels)
        across = logits.T.contiguous().T.requires_grad_()
        found = torch.autograd.grad(loss(method, across, labels.T.contiguous().T), across)[0]
        torch.testing.assert_close(found, expected)


def test_focal_weights_have_no_gradient(problem):
    """The gradient of an unknown label is p^γ·p, not the derivative of p^γ·ℓ⁻."""
    logits, _ = problem
    found = gradient(PAsl(gamma_unknown=2.0), logits, torch.zeros(8, 12, dtype=torch.int8))
    torch.testing.assert_close(found, logits.sigmoid() ** 3 / 8)


@pytest.mark.parametrize("gammas", [(0.0, 3.0, 4.0), (1.0, 0.0, 2.0)])
def test_starts_where_a_model_that_ignores_the_image_rests(gammas, rng):
    labels = labels_of(rng, 4000, 3, known=0.5)
    method = PAsl(*gammas)
    bias = torch.logit(torch.from_numpy(method.initial_rate(Labels.from_dense(labels.numpy()))))
    bias.requires_grad_()
    (found,) = torch.autograd.grad(loss(method, bias.expand(4000, 3), labels), bias)
    assert found.abs().max() < 2e-4


def test_the_prior_is_estimated_once(problem):
    logits, labels = problem
    asked = []
    run = make_run(labels)
    run.predictions = lambda method: asked.append(method) or PRIORS
    for _ in range(2):
        started(Selective(), run)
    assert asked == [Ignore()]
    torch.testing.assert_close(run.state.tensors["prior"], torch.from_numpy(PRIORS[0]))
    none = make_run(labels)
    none.predictions = None
    step(Selective(prior=None), logits, labels, started(Selective(prior=None), none))
    assert not none.state.tensors
    assert class_prior(run).shape == (12,)


def test_what_cannot_be_learnt_from_is_said():
    positives = Labels.from_dense([[1, 0], [0, 1]])
    with pytest.raises(InputError, match="set prior=none"):
        Selective().check(positives)
    with pytest.raises(InputError, match="choose a smaller k"):
        Selective(prior=None).check(positives)
    Selective(prior=None, k=1).check(positives)
    PAsl().check(positives)
    Selective().check(Labels.from_dense([[1, 0], [0, -1]]))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": -1}, "k must be a whole number from 0 up, not -1"),
        ({"eta": 1.5}, r"eta must lie in \[0, 1\], not 1.5"),
        ({"top": -0.1}, "top must lie in"),
        ({"soft_prior": -1}, "soft_prior must be a number from 0 up"),
        ({"gamma_unknown": -1}, "gamma_unknown must be a number from 0 up"),
        ({"pool": "epoch"}, "not a value for pool"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(InputError, match=message):
        methods.make("csl", parameters)


@dataclasses.dataclass(frozen=True)
class Watched(Selective):
    """Selective that hands out the prior it trains with."""

    def before_epoch(self, run):
        SEEN.append(run.state.tensors["prior"].numpy())


SEEN = []


def test_the_estimated_prior_ranks_classes_where_counts_cannot(rng):
    """The same number of labels for every class: only a model can tell which are frequent.

    An easy problem on purpose: noisier features gave 0.25 and 0.44, and on COCO features the prior under
    per_class:100 ranks poorly (docs/readings.md). It shows that the estimate reaches the loss, not that it
    is good.
    """
    frequency = rng.permutation(np.geomspace(0.06, 0.6, 12))
    truth = np.where(rng.random((800, 12)) < frequency, 1, -1)
    features = (truth + 0.4 * rng.normal(size=truth.shape)) @ rng.normal(size=(12, 12))
    partial = parse("per_class:30").apply(Labels.from_dense(truth), 0)
    observed, _ = partial.class_counts
    SEEN.clear()
    settings = {"epochs": 5, "batch_size": 32, "lr": 0.1, "weight_decay": 0.0, "validation": 0.0}
    train(partial, features=features, method=Watched(), **settings)
    assert np.isnan(spearman(observed, frequency))  # all alike
    assert len(SEEN) == 5
    assert spearman(SEEN[0], frequency) > 0.8


def mean_predictions(name, partial, features):
    """What `class_prior` sees of a temporary model that another method has trained."""
    outcome = train(partial, features=features, method=name, validation=0.0)
    run = make_run(torch.from_numpy(partial.dense()))
    run.predictions = lambda _: outcome.trained.predict_proba(features=features)
    return class_prior(run).numpy()


def test_ignore_estimates_frequencies_of_photographs_where_labels_were_dropped_at_random(coco):
    """Both rank the classes, but only with `ignore` is the prior a frequency."""
    full, features = photographs(coco)
    frequency = full.class_counts[0] / len(full)
    partial = parse("random:0.1").apply(full, 0)
    found = mean_predictions("ignore", partial, features)
    assert spearman(found, frequency) > 0.75
    assert frequency.sum() / 2 < found.sum() < 2 * frequency.sum()
    assert mean_predictions("negative", partial, features).sum() < frequency.sum() / 3


def test_a_fixed_number_of_labels_for_each_class_misleads_ignore_less_than_negative(coco):
    """Only classes with as many known positives as any other: counts tell nothing.

    With `negative` the frequent ones seem rare, since most of their positives are taught as absent. With
    `ignore` all seem frequent, by ten times and more together: no eta would do, so ``top`` is the default.
    """
    full, features = photographs(coco)
    partial = parse("per_class:20").apply(full, 0)
    alike = partial.class_counts[0] == 20
    frequency = full.class_counts[0] / len(full)
    ignored, denied = (mean_predictions(name, partial, features) for name in ("ignore", "negative"))
    assert spearman(ignored[alike], frequency[alike]) > spearman(denied[alike], frequency[alike]) + 0.3
    assert spearman(denied[alike], frequency[alike]) < 0
    assert (ignored > 0.05).all()
    assert ignored.sum() > 8 * frequency.sum()


def photographs(folder, images=1500):
    labels = read_labels(folder / "labels.csv", unlisted="absent").part("train")[:images]
    bare = Labels(labels.offsets, labels.entries, labels.classes, labels.images)
    return bare, np.load(folder / "train_features.npy", mmap_mode="r")[:images].copy()
