import json

import numpy as np
import pytest

from tertium.describe import describe, setting_of
from tertium.labels import Labels
from tertium.schemes import parse


@pytest.fixture(scope="module")
def full():
    rng = np.random.default_rng(0)
    frequency = np.geomspace(0.4, 0.03, 25)
    return Labels.from_dense(np.where(rng.random((3000, 25)) < frequency, 1, -1))


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("full", "full"),
        ("random:0.1", "partial"),
        ("random:0.7", "partial"),
        ("positives:0.3", "positives only"),
        ("single_positive", "single positive"),
        ("per_class:50", "fixed per class"),
        ("federated", "federated"),
        ("per_image:1,all", "partial"),
        ("balanced:0.1", "partial"),
    ],
)
def test_settings_are_recognised(full, scheme, name):
    assert setting_of(parse(scheme).apply(full, 0)).name == name


def test_random_dropping_is_told_from_other_partial_labels(full):
    assert "at random" in setting_of(parse("random:0.1").apply(full, 0)).reason
    assert "at random" not in setting_of(parse("balanced:0.1").apply(full, 0)).reason


def test_nothing_known():
    assert setting_of(Labels.unknown(["a"], ["x"])).name == "nothing known"


def test_counts():
    labels = Labels.from_dense([[1, -1, 0], [1, 1, 0], [0, 0, 0]], classes=["a", "b", "c"])
    about = describe(labels)
    assert (about.images, about.classes) == (3, 3)
    assert (about.present, about.absent, about.unknown) == (3, 1, 5)
    assert about.images_without_labels == 1
    assert about.classes_without_present == ("c",)
    assert about.classes_without_absent == ("a", "c")
    assert about.present_per_image == (1.0, 0, 1.0, 2)
    assert about.present_per_class == (1.0, 0, 1.0, 2)
    assert json.loads(json.dumps(about.to_dict()))["setting"]["name"] == "partial"
