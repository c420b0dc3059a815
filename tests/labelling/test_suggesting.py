"""What to ask next: unknown labels only, spread over classes and images, and worth the asking."""

import csv
import dataclasses
import shutil
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest

from tertium.annotation.answered import Answered
from tertium.annotation.record import Annotation
from tertium.errors import InputError
from tertium.labelling import simulating, suggesting
from tertium.labelling.collective import Collective, Relation
from tertium.labelling.prepared import Prepared
from tertium.labelling.simulating import RULES, Point, averaged, simulate, write_points
from tertium.labelling.suggesting import Candidates, Pool, choose, class_weights, gains, suggest
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.reporting.asking import draw_points
from tertium.schemes import parse
from tertium.training.train import train

CLASSES = [f"class {number}" for number in range(6)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run on 600 images of which three labels in ten are known; and the truth."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(2)
    features = rng.normal(size=(600, 8)).astype(np.float32)
    truth = np.where(features[:, :6] + 0.5 * rng.normal(size=(600, 6)) > np.linspace(0, 1.5, 6), 1, -1)
    full = Labels.from_dense(truth, classes=CLASSES, images=[f"{number}.jpg" for number in range(600)])
    labels = parse("random:0.3").apply(full, 0)
    np.save(folder / "x.npy", features)
    write_labels(labels, folder / "labels.parquet")
    write_labels(full, folder / "full.parquet")
    train(labels, features=features, out=folder / "run", method="auto", epochs=10, lr=0.01)
    return folder, labels, full


# ---- what a question is worth ------------------------------------------------------------------------------


def test_gains_are_what_one_question_after_the_other_adds(rng):
    columns = rng.integers(0, 4, 50)
    worth, known = rng.random(50) / 4, np.array([0.5, 1.0, 2.0, 8.0])
    found = gains(columns, worth, known)
    told = known.copy()
    for place in np.argsort(-worth):
        before = np.log(told[columns[place]])
        told[columns[place]] += worth[place]
        assert found[place] == pytest.approx(np.log(told[columns[place]]) - before)


def test_the_best_gains_are_those_of_a_greedy_choice(rng):
    """One by one, always the question that adds the most to the sum of logarithms."""
    candidates = Candidates(np.arange(60), rng.integers(0, 5, 60), rng.random(60))
    known, weight = rng.random(5) + 0.2, 1 + rng.random(5)
    best, scores, *_ = choose(candidates, known, weight, 20)
    told, left, greedy = known.copy(), set(range(60)), []
    for _ in range(20):
        adds = {
            place: weight[column] * np.log1p(candidates.worth[place] / told[column])
            for place, column in enumerate(candidates.columns)
            if place in left
        }
        place = max(adds, key=lambda place: adds[place])
        told[candidates.columns[place]] += candidates.worth[place]
        left.remove(place)
        greedy.append(place)
    assert best.tolist() == greedy
    assert (np.diff(scores) <= 0).all()


def test_little_known_classes_and_unsure_frequencies_come_first():
    same = Candidates(np.arange(4), np.array([0, 1, 0, 1]), np.full(4, 0.5))
    first, *_ = choose(same, np.array([5.0, 1.0]), np.ones(2), 1)
    assert same.columns[first].tolist() == [1]
    rate = np.array([0.1, 0.1])
    unsure = Annotation(("a", "b"), rate, np.array([0.03, 0.09]), np.array([0.3, 0.11]), rate, rate)
    weight = class_weights(unsure, 2)
    assert weight[0] == pytest.approx(2)
    assert weight[1] < 1.1
    assert class_weights(dataclasses.replace(unsure, low=np.zeros(2)), 2).max() == pytest.approx(3)
    assert class_weights(None, 2).tolist() == [1, 1]
    first, *_ = choose(same, np.ones(2), weight, 1)
    assert same.columns[first].tolist() == [0]


def test_questions_about_one_image(rng):
    candidates = Candidates(np.repeat(np.arange(10), 5), np.tile(np.arange(5), 10), rng.random(50))
    for most in (1, 2, 4):
        best, *_ = choose(candidates, np.ones(5), np.ones(5), 24, most)
        rows = candidates.rows[best]
        assert len(set(best.tolist())) == len(best) == min(24, 10 * most)
        assert np.bincount(rows).max() <= most
        ends = np.flatnonzero(np.diff(rows)) + 1
        assert most == 1 or len(ends) + 1 == len(set(rows.tolist()))  # they stand together


def test_another_question_about_an_image_costs_half():
    """Two fair questions about one image come before one good question about another."""
    candidates = Candidates(np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([0.2, 0.2, 0.3]))
    alone, *_ = choose(candidates, np.ones(3), np.ones(3), 3, 1)
    assert candidates.rows[alone].tolist() == [1, 0]
    together, *_ = choose(candidates, np.ones(3), np.ones(3), 3, 2)
    assert candidates.rows[together].tolist() == [0, 0, 1]
    dear, *_ = choose(
        Candidates(candidates.rows, candidates.columns, np.array([0.2, 0.01, 0.3])),
        np.ones(3),
        np.ones(3),
        3,
        2,
    )
    assert candidates.columns[dear].tolist() == [2, 0]  # the poor one is not worth half a question


# ---- images that go by -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_a_pool_keeps_the_closest_calls_of_each_class(rng, size):
    p = rng.random((300, 4))
    labels = rng.choice(np.array([-1, 0, 0, 1], dtype=np.int8), size=p.shape)
    chances = rng.random((300, 4), dtype=np.float32)
    pool = Pool(4, size)
    for start in range(0, 300, 64):
        part = slice(start, start + 64)
        pool.add(p[part], labels[part], chances[part])
    found = pool.candidates()
    worth = np.where(labels == 0, chances.astype(float) * (1 - chances.astype(float)), -1)
    for column in range(4):
        best = np.argsort(-worth[:, column])[: min(size, (labels[:, column] == 0).sum())]
        assert found.rows[found.columns == column].tolist() == sorted(best.tolist())
        known = sum(
            p[row, column] * (1 - p[row, column]) - max(worth[row, column], 0) * (labels[row, column] == 0)
            for row in range(300)
        )
        assert pool.told()[column] == pytest.approx(max(known, 0))


@pytest.mark.parametrize("per_image", [1, 3])
def test_suggest_asks_within_the_budget_about_unknown_labels(world, tmp_path, per_image):
    folder, labels, _ = world
    found = suggest(folder / "run", labels, features=folder / "x.npy", budget=120, per_image=per_image)
    pairs = list(zip(found.images, found.labels, strict=True))
    assert len(set(pairs)) == len(pairs) == 120
    values = labels.dense()
    rows, columns = labels.rows_of(found.images), [labels.column(name) for name in found.labels]
    assert (values[rows, columns] == 0).all()
    counts = np.bincount(columns, minlength=6)
    assert counts.max() < 80
    assert np.count_nonzero(counts) >= 4
    assert np.bincount(rows).max() == per_image
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    chances = np.concatenate([each for *_, each in ready.blocks()])
    np.testing.assert_allclose(found.probability, chances[rows, columns], atol=1e-5)
    unknown = chances[values == 0]
    asked = found.probability * (1 - found.probability)
    assert asked.mean() > 1.3 * (unknown * (1 - unknown)).mean()
    assert all(found.why)
    found.write(tmp_path / "q.csv")
    with open(tmp_path / "q.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["image", "label", "probability", "score", "why"]
    assert [(line["image"], line["label"]) for line in lines] == pairs


def test_a_class_gets_no_more_than_its_share(world, monkeypatch):
    folder, labels, _ = world
    monkeypatch.setattr(suggesting, "_FEWEST", 5)
    monkeypatch.setattr(suggesting, "_EVEN", 2)
    found = suggest(folder / "run", labels, features=folder / "x.npy", budget=60)
    assert max(found.labels.count(name) for name in CLASSES) <= 20


def test_batches_and_order_change_no_question(world, rng):
    folder, labels, _ = world
    features = np.load(folder / "x.npy")
    order = rng.permutation(len(labels))
    first = suggest(folder / "run", labels, features=features, budget=50)
    moved = labels[order].with_classes(CLASSES[::-1])
    second = suggest(folder / "run", moved, features=features[order], budget=50)
    asked = [set(zip(found.images, found.labels, strict=True)) for found in (first, second)]
    assert len(asked[0] & asked[1]) >= 48  # equal scores may fall either way


def test_labels_of_which_nothing_is_known(world, tmp_path):
    """Nothing told, and an unknown label more likely present than its image says: scores stay finite."""
    folder, labels, _ = world
    shutil.copytree(folder / "run", tmp_path / "run")
    half = np.full(6, 0.5)
    Annotation(tuple(CLASSES), half, half, half, 0 * half, 0.9 + 0 * half).save(
        tmp_path / "run" / "annotation.json"
    )
    nothing = Labels.unknown(labels.images.to_pylist(), CLASSES)
    found = suggest(tmp_path / "run", nothing, features=folder / "x.npy", budget=40)
    assert len(found.images) == 40
    assert np.isfinite(found.score).all()
    assert (found.score > 0).all()
    assert any("too few" in note for note in found.notes)


def test_all_that_is_left_may_be_asked(world):
    folder, _, full = world
    few = full.with_entries(np.arange(full.known) >= 4)
    found = suggest(folder / "run", few, features=folder / "x.npy", budget=50, per_image=6)
    assert set(found.images) == {"0.jpg"}
    assert 1 <= len(found.images) <= 4
    for budget, per_image in ((0, 1), (5, 0)):
        with pytest.raises(InputError, match="must be at least 1, not 0"):
            suggest(folder / "run", few, features=folder / "x.npy", budget=budget, per_image=per_image)


# ---- simulation --------------------------------------------------------------------------------------------


def test_answers_help_in_a_simulation(world, tmp_path):
    folder, _, full = world
    points = simulate(full, folder / "x.npy", scheme=parse("random:0.02"), budget=150, rounds=2, seed=1)
    assert [point.rule for point in points] == [rule for rule in RULES for _ in range(3)]
    by_rule = {rule: averaged(points, rule) for rule in RULES}
    assert len({steps[0] for steps in by_rule.values()}) == 1
    assert [step.answers for step in by_rule["tertium"]] == [0, 150, 300]
    first, *_, last = by_rule["tertium"]
    assert last.map > first.map + 0.02
    assert last.known >= first.known + 100
    assert last.right > 0.9
    write_points(tmp_path / "asked.csv", points)
    figure = tmp_path / "asked.svg"
    draw_points(figure, points)
    assert ET.parse(figure).getroot().tag.endswith("svg")
    with open(tmp_path / "asked.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["map"]) for line in lines] == [point.map for point in points]


def test_a_simulation_keeps_test_images_apart(world, tmp_path):
    folder, _, full = world
    path = tmp_path / "split.csv"
    names = np.array(CLASSES)
    lines = ["image,present,split"]
    for number, row in enumerate(full.dense()):
        lines.append(f"{number}.jpg,{';'.join(names[row > 0])},{'test' if number % 3 == 0 else 'train'}")
    path.write_text("\n".join(lines) + "\n")
    split = read_labels(path, unlisted="absent")
    features = np.load(folder / "x.npy")
    training, held_out, inputs, held_inputs = simulating.parts(split, features, 100, seed=0)
    assert len(training) == len(inputs) == 100
    assert held_out.images.to_pylist() == [f"{number}.jpg" for number in range(0, 600, 3)]
    np.testing.assert_array_equal(held_inputs, features[::3])
    training, held_out, inputs, _ = simulating.parts(full, features, 200, seed=0)
    assert len(training) + len(held_out) == 200
    assert not set(training.images.to_pylist()) & set(held_out.images.to_pylist())
    np.testing.assert_array_equal(inputs, features[full.rows_of(training.images)])


def test_answers_are_the_truth(world):
    _, labels, full = world
    rows, columns = (part[:40] for part in np.nonzero(labels.dense() == 0))
    answers = simulating.answered(full, rows, columns)
    assert answers.known == 40
    assert (answers.dense()[rows, columns] == full.dense()[rows, columns]).all()


def test_known_labels_are_counted_and_checked(world):
    """Unknown labels of two classes are all but certain, some of them wrongly; of the others, nothing is."""
    _, labels, full = world
    chances = np.full((600, 6), 0.5, dtype=np.float32)
    chances[:, 0], chances[:, 1] = 0.96, 0.04
    values = labels.dense()
    blocks = [(None, values[part], chances[part]) for part in (slice(0, 400), slice(400, 600))]
    known, right, error = simulating._known(SimpleNamespace(blocks=lambda: iter(blocks)), full)
    given, true = values != 0, full.dense() > 0
    assert known == given.sum() + (~given[:, :2]).sum()
    assert right == given.sum() + (~given[:, 0] & true[:, 0]).sum() + (~given[:, 1] & ~true[:, 1]).sum()
    assert error == pytest.approx((np.where(given, 0, chances - true) ** 2).mean())


def test_what_was_foretold_is_compared_with_what_came(world):
    _, _, full = world
    truth = full.dense()
    rows = np.arange(200)
    columns = rows % truth.shape[1]
    chances = np.where(rows % 2, 0.8, 0.3)
    found = simulating._foretold(simulating._Asked(rows, columns, chances), full, 3)
    assert [(each.round, each.said.answers, each.said.next) for each in found] == [
        (3, 20, 100),
        (3, 50, 100),
        (3, 100, 100),
    ]
    present = truth[rows, columns] > 0
    for each, given in zip(found, (20, 50, 100), strict=True):
        came = present[given : given + 100]
        assert (each.present, each.said.present) == (came.sum(), present[:given].sum())
        assert each.surprising == (came != (rows[given : given + 100] % 2 > 0)).sum()
        assert each.held[0] == (each.said.next_present.low <= each.present <= each.said.next_present.high)
    assert simulating._foretold(simulating._Asked(rows, columns), full, 3) == ()


def test_points_are_averaged_over_seeds():
    points = [
        Point("random", 0, 10, 4, 0.5, 100, 90, 0.1),
        Point("random", 1, 10, 2, 0.7, 140, 120, 0.3),
        Point("tertium", 0, 10, 1, 0.1, 1, 0, 1.0),
    ]
    assert averaged(points, "random") == [pytest.approx((10, 0.3, 0.6, 120, 105 / 120, 0.2))]


# ---- the command -------------------------------------------------------------------------------------------


def test_the_command_asks(world, tmp_path, tertium):
    folder, *_ = world
    data = ("--labels", folder / "labels.parquet", "--features", folder / "x.npy")
    place = tmp_path / "questions.csv"
    code, out, _ = tertium("suggest", folder / "run", *data, "--budget", 30, "--out", place)
    assert code == 0
    assert "30 questions about 30 images" in out
    assert len(place.read_text().splitlines()) == 31


def test_the_command_simulates(world, tmp_path, tertium):
    folder, *_ = world
    data = ("--labels", folder / "full.parquet", "--features", folder / "x.npy", "--sample", 120)
    options = ("--scheme", "random:0.1", "--budget", 60, "--rounds", 1, "--out", tmp_path / "asked.csv")
    code, out, _ = tertium("rehearse", *data, *options)
    assert code == 0
    assert "mAP, uncertainty" in out
    assert "known, others" in out
    assert "Forecasts: 1 were made of the next answers" in out  # after half of 60; before, there are too few
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"asked.csv", "asked.svg", "asked-forecasts.csv"}
    header, line = (tmp_path / "asked-forecasts.csv").read_text().splitlines()
    assert header.startswith(
        "seed,round,answers,next,present,present_said,present_low,present_high,surprising"
    )
    assert line.startswith("0,1,30,30,")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("suggest --labels {labels} --features {x}", "RUN"),
        ("suggest nowhere --labels {labels} --features {x}", "nowhere: no such run folder"),
        ("suggest {run} --labels other.csv --features {x}", "knows none of these classes"),
        ("suggest {run} --labels {labels} --features {x} --out q.parquet", "written as .csv"),
        ("suggest {run} --labels {labels} --features {x} --out no/q.csv", "folder no does not exist"),
        ("rehearse --labels {labels} --features {x} --out a.csv", "needs full labels"),
        ("rehearse --labels {labels} --features {x} --out a.csv --scheme sigle_positive", "did you mean"),
    ],
)
def test_what_is_wrong_is_one_sentence(world, tmp_path, monkeypatch, words, message, tertium):
    folder, *_ = world
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("image,present\n0.jpg,yak\n")
    places = {"run": folder / "run", "labels": folder / "labels.parquet", "x": folder / "x.npy"}
    code, _, errors = tertium(*(word.format(**places) for word in words.split()))
    assert code == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


@pytest.fixture(scope="module")
def related(tmp_path_factory):
    """A run on labels that go together: three traits stand behind 16 of them, one trait is visible."""
    folder, rng = tmp_path_factory.mktemp("related"), np.random.default_rng(0)
    traits, loadings = rng.normal(size=(1000, 3)), rng.normal(size=(3, 16)) / np.sqrt(3)
    truth = np.where(traits @ loadings + 0.2 * rng.normal(size=(1000, 16)) > 0.6, 1, -1).astype(np.int8)
    features = np.concatenate([traits[:, :1], rng.normal(size=(1000, 4))], axis=1).astype(np.float32)
    labels = parse("random:0.3").apply(Labels.from_dense(truth), 0)
    train(labels, features=features, out=folder / "run")
    return folder / "run", labels, features


def test_an_answer_counts_for_what_it_tells_about_others(related):
    run, labels, features = related
    found, alone = (suggest(run, labels, features=features, budget=80, others=each) for each in (True, False))
    assert list(zip(found.images, found.labels, strict=True)) != list(
        zip(alone.images, alone.labels, strict=True)
    )
    assert len(found.images) == len(set(found.images)) == 80
    assert not any("also tells about" in why for why in alone.why)
    told = [why for why in found.why if "also tells about" in why]
    assert len(told) > 40
    names = told[0].split("also tells about ")[1].split(";")[0].split(" and ")
    assert len(set(names) & set(labels.classes)) == len(names) == 2
    for label, why in zip(found.labels, found.why, strict=True):
        assert f"about {label} " not in why
        assert not why.endswith(f"and {label}")
    ready = Prepared.of_run(run, labels, features=features)
    doubts = [np.where(each == 0, chances * (1 - chances), 0) for _, each, chances in ready.blocks()]
    doubt = np.concatenate(doubts).sum(axis=1)  # of each image
    first, second = (doubt[labels.rows_of(each.images)].mean() for each in (found, alone))
    assert first > second  # where more is open, an answer tells more


def test_where_known_labels_say_nothing_questions_are_as_without_them(related, monkeypatch):
    run, labels, features = related
    monkeypatch.setattr(Collective, "chosen", lambda self, *_: dataclasses.replace(self, share=0.0))
    found, alone = (
        suggest(run, labels, features=features, budget=40, per_image=2, others=each) for each in (True, False)
    )
    assert (found.images, found.labels, found.why) == (alone.images, alone.labels, alone.why)
    np.testing.assert_array_equal(found.score, alone.score)


def test_questions_about_one_image_come_with_what_they_say_about_one_another(related):
    run, labels, features = related
    found = suggest(run, labels, features=features, budget=60, per_image=3)
    images = [image for image in dict.fromkeys(found.images) if found.images.count(image) > 1]
    assert set(found.relations) == set(images)
    assert images
    image = images[0]
    relation = found.relations[image]
    before = {
        label: float(chance)
        for name, label, chance in zip(found.images, found.labels, found.probability, strict=True)
        if name == image
    }
    assert set(relation.labels) == set(before)
    assert relation.chances(before, {}) == pytest.approx(before)
    first, second, *_ = relation.labels
    ready = Prepared.of_run(run, labels, features=features)
    for sign in (1, -1):
        told = relation.chances(before, {first: sign})
        row, column = labels.rows_of([image])[0], labels.column(first)
        answer = Labels.from_entries([row], [column], [sign], classes=labels.classes, images=labels.images)
        known = dataclasses.replace(ready, labels=Answered.among(labels, answer).put_into(labels))
        chances = np.concatenate([each for *_, each in known.blocks()])[row, labels.column(second)]
        assert told[second] == pytest.approx(float(chances), abs=2e-3)
        assert told[second] != pytest.approx(before[second], abs=1e-3)
        assert told[first] == pytest.approx(before[first])
    assert Relation.from_json(relation.as_json()).chances(before, {first: 1}) == pytest.approx(
        relation.chances(before, {first: 1}), abs=1e-4
    )
