"""What an answer tells about other labels: against plain computations, one label at a time."""

import dataclasses

import numpy as np
import pytest

from tertium.annotation.together import FOLDS, Among, Together
from tertium.labelling.collective import Relation
from tertium.labelling.telling import Doubt, pick

CLASSES, RANK, IMAGES = 7, 3, 6


@pytest.fixture
def doubt(rng):
    """Labels that were dropped at random, and go together somehow."""
    share, size = np.full(CLASSES, 0.3), (CLASSES, RANK)
    together = Together(
        tuple(f"c{number}" for number in range(CLASSES)),
        rng.normal(size=size).astype(np.float32) / 2,
        rng.normal(size=CLASSES).astype(np.float32) / 10,
        rng.uniform(0.5, 1, CLASSES).astype(np.float32),
        rng.uniform(0.1, 0.4, CLASSES),
        share,
        share,
        np.stack([rng.normal(size=CLASSES), rng.uniform(1, 2, CLASSES)]),
        rng.normal(size=(FOLDS, 4, RANK)).astype(np.float32),
    )
    shown = rng.normal(size=(IMAGES, RANK)).astype(np.float32)
    labels = rng.choice(np.array([-1, 0, 0, 0, 1], dtype=np.int8), size=(IMAGES, CLASSES))
    labels[:, :3] = 0
    chances = rng.random((IMAGES, CLASSES))
    worth = np.where(labels == 0, chances * (1 - chances), 0)
    return shown, labels, Doubt(together, 0.7 * together.curve[1], worth, together.covariance(shown, labels))


def plainly(doubt, image, asked):
    """Move every chance by either answer, and average the squares of the moves."""
    together, worth = doubt.together, doubt.worth[image]
    covariance = together.weights @ doubt.covariance[image] @ together.weights.T
    gain = covariance[:, asked] / (covariance[asked, asked] + together.noise[asked])
    q = (1 - np.sqrt(1 - 4 * worth[asked])) / 2
    unit = np.sqrt(together.rate[asked] * (1 - together.rate[asked]))
    moves = [worth * doubt.slope * gain * (said - q) / unit for said in (0, 1)]
    return (1 - q) * moves[0] ** 2 + q * moves[1] ** 2


def test_doubt_falls_by_the_variance_of_what_an_answer_changes(doubt, rng):
    *_, doubt = doubt
    importance = rng.random(CLASSES)
    told = doubt.told(importance)
    for image in range(IMAGES):
        for asked in range(CLASSES):
            expected = plainly(doubt, image, asked)
            others = np.arange(CLASSES) != asked
            assert told[image, asked] == pytest.approx((importance * expected)[others].sum(), abs=1e-5)
            taken = doubt.taken(np.full(IMAGES, asked))[image]
            cut = np.minimum(expected, doubt.worth[image])
            np.testing.assert_allclose(taken[others], cut[others], atol=1e-5)
            assert taken[asked] == doubt.worth[image, asked]


def test_many_images_are_looked_at_as_a_few_are(doubt, rng):
    *_, doubt = doubt
    together = doubt.together
    counts = rng.random((IMAGES, CLASSES)).astype(np.float32)
    assert len(counts) > RANK
    for some in (counts, counts[:2]):
        summed = np.einsum("bc,cr,cs->brs", some, together.weights, together.weights)
        np.testing.assert_allclose(together.summed(some), summed, rtol=1e-4, atol=1e-5)
        squared = np.einsum(
            "brs,cr,cs->bc", doubt.covariance[: len(some)], together.weights, together.weights
        )
        found = together.squared(doubt.covariance[: len(some)])
        np.testing.assert_allclose(found, squared, rtol=1e-4, atol=1e-5)


def test_a_known_label_is_nothing_to_ask_about_and_nothing_to_learn(doubt):
    _, labels, doubt = doubt
    image, known = (int(part[0]) for part in np.nonzero(labels))
    assert doubt.told(np.ones(CLASSES))[image, known] == 0
    alone = doubt.told((np.arange(CLASSES) == known).astype(float))
    assert alone[image].max() == 0


def test_after_an_answer_the_factors_are_known_as_if_the_label_had_been(doubt):
    shown, labels, doubt = doubt
    after = doubt.after(np.arange(IMAGES) % 3)
    told = labels.copy()
    told[np.arange(IMAGES), np.arange(IMAGES) % 3] = 1
    np.testing.assert_allclose(after.covariance, doubt.together.covariance(shown, told), atol=1e-5)
    assert (after.worth[np.arange(IMAGES), np.arange(IMAGES) % 3] == 0).all()
    assert (after.worth >= 0).all()
    assert (after.worth <= doubt.worth).all()


def test_every_question_is_picked_given_those_before(doubt, rng):
    """Against a search that looks at every candidate of every image in turn."""
    _, labels, doubt = doubt
    rows, columns = np.nonzero(labels == 0)
    mixed = rng.permutation(len(rows))
    rows, columns = rows[mixed], columns[mixed]
    value, importance = rng.random(len(rows)) / 5, rng.random(CLASSES)
    halves = [slice(0, IMAGES // 2), slice(IMAGES // 2, IMAGES)]
    blocks = [
        (
            np.arange(IMAGES)[half],
            dataclasses.replace(doubt, worth=doubt.worth[half], covariance=doubt.covariance[half]),
        )
        for half in halves
    ]
    found = pick(iter(blocks), rows, columns, value, importance, 2)
    for image in range(IMAGES):
        left, now, begun = set(np.flatnonzero(rows == image)), doubt, doubt.worth[image]
        mine = [number for number, place in enumerate(found.places) if rows[place] == image]
        assert len(mine) == 2
        for number in mine:
            told = now.told(importance)[image]
            worth = {p: value[p] * now.worth[image, columns[p]] / begun[columns[p]] for p in left}
            best = max(left, key=lambda p: worth[p] + told[columns[p]])
            assert found.places[number] == best
            assert found.worth[number] == pytest.approx(now.worth[image, columns[best]])
            assert found.others[number] == pytest.approx(told[columns[best]], rel=1e-4)
            taken = importance * now.taken(np.full(IMAGES, columns[best]))[image]
            taken[columns[best]] = 0
            assert found.named[number].tolist() == np.argsort(-taken)[:2].tolist()
            left.remove(best)
            now = now.after(np.full(IMAGES, columns[best]))


def test_two_classes_name_one_another_only(doubt):
    """With nothing else to tell about, nothing else is named."""
    *_, doubt = doubt
    worth = np.where(np.arange(CLASSES) < 2, np.maximum(doubt.worth, 0.1), 0)
    doubt = dataclasses.replace(doubt, worth=worth)
    rows = np.arange(IMAGES)
    blocks = iter([(rows, doubt)])
    found = pick(blocks, rows, np.zeros(IMAGES, dtype=int), np.ones(IMAGES), np.ones(CLASSES), 1)
    assert found.named.tolist() == [[1, -1]] * IMAGES


def three(importance=None):
    """Cat and dog go together closely, cat and fox a little less; what is said of the cow tells nothing."""
    covariance = np.array([[1, 0.9, 0.6, 0], [0.9, 1, 0.54, 0], [0.6, 0.54, 1, 0], [0, 0, 0, 1.0]])
    size = len(covariance)
    ends = np.outer([-1, 1], np.ones(size))
    among = Among(covariance, np.full(size, 0.2), np.zeros(size), ends, np.ones(size))
    return Relation(("cat", "dog", "fox", "cow"), among, importance)


def test_the_next_question_tells_most_given_the_answers():
    before = dict.fromkeys(("cat", "dog", "fox", "cow"), 0.5)
    relation = three()
    assert relation.next(before, {}, before) == "cat"
    assert relation.next(before, {}, {"dog", "cow"}) == "dog"
    # The answer about the cat has told of dog and fox: most is open about the cow.
    assert relation.next(before, {"cat": 1}, {"dog", "fox", "cow"}) == "cow"
    assert relation.next(before, {"cat": 1}, {"dog"}) == "dog"
    assert relation.next(before, {"cat": 1}, set()) is None
    heavy = three(np.array([1.0, 100.0, 1.0, 1.0]))
    assert heavy.next(before, {"cat": 1}, {"dog", "fox", "cow"}) == "dog"


def test_what_an_answer_takes_is_what_two_answers_leave_on_average():
    """The moves that `Among.moved` makes, averaged over both answers."""
    relation = three()
    among, q = relation.among, np.array([0.5, 0.5, 0.5, 0.5])
    taken = among.taken(np.zeros(4, dtype=np.int8), q * (1 - q))
    for asked in range(4):
        squares = 0.0
        for sign in (-1, 1):
            said = np.zeros(4, dtype=np.int8)
            said[asked] = sign
            squares = squares + 0.5 * (q * (1 - q) * among.moved(said)) ** 2
        others = np.arange(4) != asked
        np.testing.assert_allclose(taken[asked, others], squares[others], atol=1e-12)
        assert taken[asked, asked] == 0.25


def test_relations_are_kept_with_or_without_importance():
    for importance in (None, np.array([1.0, 2.0, 3.0, 4.0])):
        again = Relation.from_json(three(importance).as_json())
        assert again.labels == ("cat", "dog", "fox", "cow")
        if importance is None:
            assert again.importance is None
        else:
            np.testing.assert_array_equal(again.importance, importance)
