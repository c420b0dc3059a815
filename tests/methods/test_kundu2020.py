import math

import numpy as np
import pytest
import torch

from tertium import methods
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods import kundu2020
from tests.methods.doors import labels_of, make_run
from tests.methods.test_conformance import loss
from tests.reference.kundu2020 import temperatures


def slopes(name, labels, features, **parameters):
    """1/T as the method keeps it."""
    method = methods.make(name, parameters)
    labels = torch.as_tensor(labels, dtype=torch.int8)
    run = make_run(labels, features=np.asarray(features, dtype=np.float64))
    method.prepare(run)
    return run.state.table("slope").values.double().numpy()


def at(degrees):
    return [[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in degrees]


# Images 0 to 3 make the medians of classes 0 to 3, at these angles; the fifth image is the one that is asked.
CLASSES = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("temperature", ["equation", "prose"])
def test_the_sign_is_that_of_the_nearer_known_label(temperature):
    """Class 0 is present and class 3 absent: class 1 lies beside the one, class 2 beside the other."""
    labels = [*CLASSES, [1, 0, 0, -1]]
    found = slopes("se_l", labels, at([0, 20, 70, 90, 0]), temperature=temperature)[4]
    assert found[0] == 1
    assert found[3] == -1
    assert found[1] > 0 > found[2]
    # 20° and 20° are the same distance, and the largest is the 70° that both have to the other side.
    d = (1 - math.cos(math.radians(20))) / (1 - math.cos(math.radians(70)))
    size = math.exp(5 * (1 - d if temperature == "equation" else d))
    assert found[1] == pytest.approx(1 / size, rel=1e-3)
    assert found[2] == pytest.approx(-1 / size, rel=1e-3)


def test_the_two_readings_disagree_on_what_is_close():
    labels, features = [*CLASSES, [1, 0, 0, -1]], at([0, 5, 60, 90, 0])
    printed = np.abs(slopes("se_l", labels, features, temperature="equation")[4])
    spoken = np.abs(slopes("se_l", labels, features, temperature="prose")[4])
    assert printed[1] < printed[2]  # as printed, the closest label is nearly without gradient
    assert spoken[1] > spoken[2]


def test_a_tie_is_absent():
    labels = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, -1]]
    found = slopes("se_l", labels, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], temperature="prose")[3]
    assert found[1] == pytest.approx(-math.exp(-5), rel=1e-3)  # both sides are the largest distance


def test_labels_and_images_are_each_asked_alone():
    """Class 1 is close to a known present label of image 4; its nearest image says that it is absent."""
    labels, features = [*CLASSES, [1, 0, 0, -1], [0, -1, 0, 0]], at([0, 20, 70, 90, 130, 131])
    about = {"neighbours": 1, "temperature": "prose"}
    assert slopes("se_l", labels, features, **about)[4, 1] > 0
    assert slopes("se_i", labels, features, **about)[4, 1] < 0
    assert slopes("soft_exposure", labels, features, **about)[4, 1] < 0  # the image is closer than the label
    moved = [*features[:4], *at([200, 300])]
    assert (slopes("se_l", labels, moved)[4, 1:3] != 0).all()
    relabelled = [*CLASSES, [0, 0, 0, 0], [0, -1, 0, 0]]
    before, after = (slopes("se_i", which, features, **about)[4, 1:3] for which in (labels, relabelled))
    assert np.array_equal(before, after)  # not a matter of the image's own labels


def test_se_l_leaves_out_what_lacks_a_sign_or_a_median():
    labels = [[1, 0, 0, 0], [1, -1, 0, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, 0, 0, -1], [1, 0, 0, -1]]
    features = at([0, 10, 40, 60, 80, 20])
    found = slopes("se_l", labels, features)
    assert found[0].tolist() == [1, 0, 0, 0]  # nothing known absent
    assert found[1, 2] != 0
    assert found[1, 3] == 0  # class 3 is known present nowhere
    assert found[5].tolist() == [1, 0, 0, -1]  # its only absent class has no median
    both = slopes("soft_exposure", labels, features)
    assert (both != 0).all()  # the neighbours, or their distance of 1, stand in


def test_left_out_means_no_loss_and_no_gradient():
    labels = torch.tensor([[1, 0, 0], [0, 0, 0]], dtype=torch.int8)
    logits = torch.tensor([[2.0, 5.0, -7.0], [1.0, 3.0, -4.0]], requires_grad=True)
    value = loss(methods.make("se_l", {}), logits, labels)
    assert value.item() == pytest.approx(5 * math.log1p(math.exp(-2)) / 6, rel=1e-5)
    (gradient,) = torch.autograd.grad(value, logits)
    assert (gradient != 0).tolist() == [[True, False, False], [False, False, False]]


@pytest.mark.parametrize("name", ["soft_exposure", "se_i"])
def test_where_nothing_is_known_everything_is_absent(name):
    """d⁺ = d⁻ = 1, a tie: as printed it counts in full, by the prose hardly at all."""
    for rows in (1, 3):
        labels, features = np.zeros((rows, 2)), np.eye(3)[:rows]
        assert (slopes(name, labels, features, temperature="equation") == -1).all()
        assert slopes(name, labels, features, temperature="prose") == pytest.approx(-math.exp(-5), rel=1e-3)


def test_the_softer_minimum_is_a_median_of_five():
    """Six neighbours have the class, at growing distances; one has it not, at the fourth place."""
    angles = [0, 10, 20, 30, 35, 40, 50, 60]
    labels = [[0], [1], [1], [1], [-1], [1], [1], [1]]
    d = {angle: 1 - math.cos(math.radians(angle)) for angle in angles}
    softer = slopes("se_i", labels, at(angles), aggregate="median5", temperature="prose")[0, 0]
    assert softer == pytest.approx(math.exp(-5 * d[30] / d[35]), rel=1e-3)
    hard = slopes("se_i", labels, at(angles), temperature="prose")[0, 0]
    assert hard == pytest.approx(math.exp(-5 * d[10] / d[35]), rel=1e-3)


@pytest.mark.parametrize("name", ["soft_exposure", "se_l", "se_i"])
@pytest.mark.parametrize("aggregate", ["minimum", "median5"])
def test_blocks_fit_together(name, aggregate, rng, monkeypatch):
    """Many images with differing numbers of known labels, a few at a time, against plain loops."""
    monkeypatch.setattr(kundu2020, "_BLOCK", 700)
    labels, features = labels_of(rng, 40, 12, known=0.3).numpy(), rng.normal(size=(40, 6))
    labels[7] = np.where(labels[7] == 0, -1, labels[7])
    about = methods.parameters_of(methods.make(name, {"aggregate": aggregate}))
    del about["positive_weight"]
    expected = temperatures(labels.tolist(), features.tolist(), name, **about)
    found = slopes(name, labels, features, aggregate=aggregate)
    for row in range(40):
        for column in range(12):
            t, y = expected[row][column], labels[row, column]
            assert found[row, column] == pytest.approx(y if y else (1 / t if t else 0), rel=1e-3)


def test_a_saved_table_is_not_computed_again():
    labels = torch.tensor([[1, 0], [0, -1]], dtype=torch.int8)
    method, run = methods.make("se", {}), make_run(labels)
    method.prepare(run)
    run.features = None  # asking for them would fail
    method.prepare(run)


def test_ls_at_temperature_1_is_full_exposure(rng):
    logits, labels = torch.from_numpy(rng.normal(size=(6, 5))).float(), labels_of(rng, 6, 5)
    hard = loss(methods.make("ls", {"temperature": 1.0}), logits, labels)
    torch.testing.assert_close(hard, loss(methods.make("negative", {"positive_weight": 5}), logits, labels))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_ls_starts_where_its_gradient_vanishes(temperature, rng):
    labels = labels_of(rng, 4000, 3, known=0.5)
    method = methods.make("ls", {"temperature": temperature})
    rate = method.initial_rate(Labels.from_dense(labels.numpy()))
    bias = torch.logit(torch.from_numpy(rate)).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(method, bias.expand(4000, 3), labels), bias)
    assert gradient.abs().max() < 3e-4


def test_what_cannot_work_is_said():
    positives = Labels.from_dense([[1, 0], [0, 1]])
    with pytest.raises(InputError, match="known to be absent, but there are none"):
        methods.make("se_l", {}).check(positives)
    methods.make("se", {}).check(positives)
    methods.make("se_i", {}).check(positives)
    for name, parameters, message in (
        ("se", {"neighbours": 0}, "at least 1 neighbour"),
        ("se_i", {"positive_weight": 0}, "above 0"),
        ("se_l", {"beta": float("inf")}, "finite"),
        ("se", {"temperature": "printed"}, "not a value for temperature"),
        ("ls", {"temperature": 0}, "at least 0.001"),
        ("ls", {"positive_weight": -1}, "above 0"),
    ):
        with pytest.raises(InputError, match=message):
            methods.make(name, parameters)
