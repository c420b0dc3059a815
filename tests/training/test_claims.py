"""Claims of the papers that hold here, cheap enough to be tested; docs/results.md has them all.

Heads are trained on 4,000 images of COCO's training split and judged on 2,000 others of it.
"""

from functools import cache

import numpy as np
import pytest

from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.schemes import parse
from tertium.training.train import train

pytestmark = pytest.mark.slow
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def data(coco):
    labels = read_labels(coco / "labels.csv", unlisted="absent").part("train")
    features = np.load(coco / "train_features.npy", mmap_mode="r")[:6000].astype(np.float32)
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images)[:6000], features


@pytest.fixture(scope="module")
def judged(data):
    labels, features = data

    @cache
    def score(method, scheme):
        """Return the mean over the seeds of the mAP in per cent on images that training has not seen."""
        found = []
        for seed in SEEDS:
            known = parse(scheme).apply(labels[:4000], seed)
            trained = train(known, features=features[:4000], method=method, seed=seed).trained
            found.append(100 * trained.evaluate(labels[4000:], features=features[4000:]).map_c)
        return float(np.mean(found))

    return score


def test_absent_labels_are_worth_something_and_the_other_positives_too(judged):
    """Cole 2021: all labels > one positive and every absence (IUN) > one positive alone."""
    alone = max(judged(method, "single_positive") for method in ("negative", "an_ls", "wan", "role"))
    assert judged("bce", "full") - 1 > judged("ignore", "per_image:1,all") > alone + 0.5


def test_what_is_wrong_is_memorised_after_what_is_right_is_learnt(data):
    """Kim 2022, Figure 1 and Table 1, with training that memorises: small batches, no decay."""
    labels, features = data
    known = parse("single_positive").apply(labels[:4000], 0)
    outcome = train(
        known,
        features=features[:4000],
        method="negative",
        truth=labels,
        validation=0.0,
        epochs=20,
        batch_size=16,
        lr=1e-3,
        weight_decay=0.0,
        schedule="constant",
    )
    losses = {
        kind: [record["memory"]["loss"][kind] for record in outcome.records]
        for kind in ("true_positive", "false_negative")
    }
    wrong = int(np.argmax(losses["false_negative"]))
    assert np.argmax(losses["true_positive"]) == 0
    assert 0 < wrong < 19  # it rises first
    assert losses["false_negative"][-1] < 0.9 * losses["false_negative"][wrong]  # and falls in the end
    first = outcome.summary["memorised"]["head"]["highest_in_first_epoch"]
    assert first["true_positive"] > 2 * first["false_negative"]


def test_labels_dropped_at_random_are_left_out(judged):
    """Ben-Baruch 2021, Figure 6: `ignore` is ahead of `negative` there, and `auto` does as it does."""
    for scheme in ("random:0.1", "random:0.3"):
        assert judged("ignore", scheme) > judged("negative", scheme) + 0.5
        assert judged("auto", scheme) > judged("ignore", scheme) - 0.5


def test_a_fixed_number_of_each_class_is_not(judged):
    """Ben-Baruch 2021, Figure 6: `negative` is far ahead of `ignore`, and `auto` is not behind it."""
    assert judged("negative", "per_class:100") > judged("ignore", "per_class:100") + 2
    assert judged("auto", "per_class:100") > judged("negative", "per_class:100") - 0.5
