import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tertium.labels import Labels
from tertium.labels.describe import describe, setting_of
from tertium.labels.splits import divide
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
    labels = parse(scheme).apply(full, 0)
    assert setting_of(labels).name == name
    training, _ = divide(labels.images, 0.15, 0)  # what a run sees
    assert setting_of(labels[training]).name == name


@pytest.mark.parametrize("number", [20, 50])
@pytest.mark.parametrize("classes", [8, 12, 60])
def test_a_number_for_each_class_is_told_from_chance(number, classes):
    rng = np.random.default_rng(1)
    frequency = np.geomspace(0.5, 0.01, classes)  # the rarest have fewer than the number
    names = []
    for seed in range(5):
        full = Labels.from_dense(np.where(rng.random((1500, classes)) < frequency, 1, -1))
        known = parse(f"per_class:{number}").apply(full, seed)
        assert f"exactly {number} present" in setting_of(known).reason
        training, _ = divide(known.images, 0.15, seed)
        found = setting_of(known[training])  # a part of them is harder to tell
        names.append(found.name)
        assert found.name != "fixed per class" or "about" in found.reason
    assert names.count("fixed per class") >= 4


def test_classes_that_are_alike_by_chance_are_not_a_number_for_each():
    rng = np.random.default_rng(2)
    for seed in range(10):  # present and absent are equally frequent: the hardest case
        full = Labels.from_dense(rng.choice([-1, 1], (1000, 25)))
        assert setting_of(parse("random:0.1").apply(full, seed)).name == "partial"


def test_a_few_answers_do_not_change_the_setting(full):
    for scheme, name in (("single_positive", "single positive"), ("positives:0.3", "positives only")):
        known = parse(scheme).apply(full, 0).dense()
        known[:40, :2] = full.dense()[:40, :2]
        found = setting_of(Labels.from_dense(known))
        assert found.name == name
        assert "of the known labels are absent" in found.reason


def test_the_training_part_is_judged(full):
    rows = np.arange(len(full))
    mixed = full.with_rows(rows[:2000], parse("random:0.1").apply(full[:2000], 0))
    splits = pa.array(["train"] * 2000 + ["test"] * 1000).dictionary_encode()
    found = describe(replace(mixed, splits=splits)).setting
    assert found.name == "partial"
    assert found.reason.startswith("in the split train, which alone is judged, each class has about 10")
    alone = replace(mixed, splits=splits).part("test")
    assert describe(alone).setting == ("full", "every label is known")


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
