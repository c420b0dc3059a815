"""Completing labels: chances that are right where the truth is known, and labels that stay what they are."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tertium.annotation.answered import Answered
from tertium.annotation.calibration import Chances, Checked, posterior, present_range
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together
from tertium.cli import app
from tertium.data import inputs as door
from tertium.errors import InputError
from tertium.files import write_sealed
from tertium.labelling import completion, precision, prepared
from tertium.labelling.completion import complete
from tertium.labelling.precision import Tally
from tertium.labelling.prepared import Prepared
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.labels.tree import LabelTree
from tertium.metrics.evaluation import average_precision, calibration_error
from tertium.reporting.relations import related
from tertium.runs import RunFolder
from tertium.schemes import parse
from tertium.training.train import train

CLASSES = ["cat", "dog", "fox", "owl"]
PRESENT, ABSENT = np.array([0.6, 0.5, 0.7, 0.4]), np.array([0.2, 0.3, 0.1, 0.2])


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def observed(rng, truth, present, absent):
    """Hide labels as annotation does: each present one is known with e⁺, each absent one with e⁻."""
    known = rng.random(truth.shape) < np.where(truth > 0, present, absent)
    return np.where(known, truth, 0).astype(np.int8)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run on 900 images whose labels are known by PRESENT and ABSENT, and the truth."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(1)
    features = rng.normal(size=(900, 6)).astype(np.float32)
    chance = sigmoid(3 * features[:, :4] - 1)
    truth = np.where(rng.random(chance.shape) < chance, 1, -1).astype(np.int8)
    images = [f"{number:04d}.jpg" for number in range(900)]
    labels = Labels.from_dense(observed(rng, truth, PRESENT, ABSENT), classes=CLASSES, images=images)
    np.save(folder / "x.npy", features)
    write_labels(labels, folder / "labels.parquet")
    train(labels, features=features, out=folder / "run", method="auto", epochs=30, lr=0.01, seed=1)
    rate = chance.mean(axis=0)
    annotation = Annotation(tuple(CLASSES), rate, 0.9 * rate, rate * 2, PRESENT, ABSENT)
    annotation.for_classes(CLASSES[::-1]).save(folder / "run" / "annotation.json")  # names decide, not order
    return folder, labels, truth


# ---- thresholds --------------------------------------------------------------------------------------------


def test_thresholds_are_the_lowest_that_do(rng):
    chances = (rng.random((3000, 3)) ** [1, 4, 0.3]).astype(np.float32)
    unknown = rng.random(chances.shape) < 0.8
    tally = Tally(3)
    tally.add(chances[:1000], unknown[:1000])
    tally.add(chances[1000:], unknown[1000:])
    found = tally.thresholds(0.8)
    assert tally.totals() == (unknown.sum(), pytest.approx(chances[unknown].sum(), rel=1e-5))
    for column in range(3):
        mine = chances[unknown[:, column], column]
        above = mine[mine >= found.lowest[column] / 1000]
        assert above.mean() >= 0.8
        assert above.mean() == pytest.approx(found.expected[column], abs=1e-6)
        assert len(above) == found.added[column]
        assert found.found[column] == pytest.approx(above.sum() / mine.sum(), rel=1e-5)
        assert found.lowest[column] >= 500  # what is more likely absent is not called present
        below = mine[(mine >= 0.5) & (mine < found.lowest[column] / 1000)]
        if len(below):
            lower = np.floor(below.max() * 1000) / 1000
            assert mine[mine >= lower].mean() < 0.8


def test_no_threshold_where_none_will_do():
    tally = Tally(2)
    tally.add(np.array([[0.5, 0.1], [0.95, 0.2]], dtype=np.float32), np.ones((2, 2), dtype=bool))
    found = tally.thresholds(0.9)
    assert found.added.tolist() == [1, 0]
    assert np.isnan(found.expected[1])
    assert not found.above(np.ones((1, 2)))[0, 1]


def test_labels_above_a_threshold_are_as_precise_as_expected(rng):
    p = rng.beta(0.5, 1, size=(20_000, 2))
    truth = np.where(rng.random(p.shape) < p, 1, -1)
    unknown = observed(rng, truth, 0.6, 0.1) == 0
    chances = posterior(p, 0.6, 0.1)
    tally = Tally(2)
    tally.add(chances, unknown)
    found = tally.thresholds(0.9)
    for column in range(2):
        above = unknown[:, column] & found.above(chances)[:, column]
        assert above.sum() == found.added[column] > 300
        assert (truth[above, column] > 0).mean() == pytest.approx(0.9, abs=0.04)


# ---- a whole run -------------------------------------------------------------------------------------------


def matrix(path):
    table = (pyarrow.parquet.read_table if path.suffix == ".parquet" else pyarrow.csv.read_csv)(path)
    columns = [table[name].to_numpy() for name in table.column_names[1:]]
    return table["image"].to_pylist(), table.column_names[1:], np.stack(columns, axis=1)


def test_complete_keeps_what_is_known_and_says_the_rest(world, tmp_path):
    folder, labels, truth = world
    out = tmp_path / "completed.parquet"
    done = complete(folder / "run", labels, features=folder / "x.npy", out=out)
    images, classes, found = matrix(out)
    values = labels.dense()
    assert (images, classes) == (labels.images.to_pylist(), CLASSES)
    assert (found[values > 0] == 1).all()
    assert (found[values < 0] == 0).all()
    assert done.unknown == (values == 0).sum()
    assert done.expected == pytest.approx((truth[values == 0] > 0).sum(), rel=0.15)
    assert any(note.startswith("calibrated on ") for note in done.notes)
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    np.testing.assert_array_equal(ready.chances.present, PRESENT)  # the file has the classes in another order
    scores = ready.trained.predict_proba(features=folder / "x.npy")
    for row, column in zip(*np.nonzero(values == 0), strict=True):
        z = np.log(scores[row, column] / (1 - np.float64(scores[row, column])))
        p = 1 / (1 + np.exp(-(ready.chances.scale * z + ready.chances.shift[column])))
        missed = p * (1 - PRESENT[column])
        assert found[row, column] == pytest.approx(
            missed / (missed + (1 - p) * (1 - ABSENT[column])), abs=1e-4
        )


def test_order_of_images_and_classes_changes_nothing(world, tmp_path, rng):
    folder, labels, _ = world
    features = np.load(folder / "x.npy")
    order = rng.permutation(len(labels))
    moved = labels[order].with_classes(["owl", "yak", "cat", "fox", "dog"])
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    complete(folder / "run", labels, features=features, out=first)
    done = complete(folder / "run", moved, features=features[order], out=second)
    images, classes, found = matrix(second)
    assert classes == CLASSES
    assert images == moved.images.to_pylist()
    np.testing.assert_allclose(found, matrix(first)[2][order], atol=1e-5)
    assert any("1 classes" in note for note in done.notes)


def test_windows_change_nothing(world, tmp_path, monkeypatch):
    folder, labels, _ = world
    written = []
    for window in (door._WINDOW, 1):
        monkeypatch.setattr(door, "_WINDOW", window)
        out, filled = tmp_path / f"{window}.parquet", tmp_path / f"{window}-labels.parquet"
        complete(folder / "run", labels, features=folder / "x.npy", out=out, precision=0.8, filled=filled)
        table = out.with_name(f"{window}-thresholds.csv")
        written.append((out.read_bytes(), filled.read_bytes(), table.read_bytes()))
    assert written[0] == written[1]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_filled_labels(world, tmp_path, monkeypatch, suffix):
    folder, labels, truth = world
    monkeypatch.setattr(completion, "_READ", 400)
    out, filled = tmp_path / f"completed{suffix}", tmp_path / "more.parquet"
    done = complete(folder / "run", labels, features=folder / "x.npy", out=out, precision=0.6, filled=filled)
    before, after = labels.dense(), read_labels(filled).dense()
    assert (after[before != 0] == before[before != 0]).all()
    added = (before == 0) & (after != 0)
    assert (after[added] == 1).all()
    assert added.sum() == done.added > 50
    assert (truth[added] > 0).mean() > 0.6
    with open(done.table, encoding="utf-8") as file:
        rows = {row["class"]: row for row in csv.DictReader(file)}
    chances = matrix(out)[2]
    for column, name in enumerate(CLASSES):
        above = (before[:, column] == 0) & (chances[:, column] >= float(rows[name]["threshold"]) - 1e-7)
        assert above.sum() == int(rows[name]["added"]) == added[:, column].sum()
        assert float(rows[name]["expected_precision"]) >= 0.6
        assert rows[name]["checked"] == "assumed" or 0 <= float(rows[name]["precision_there"]) <= 1
    assert any(row["checked"] != "assumed" for row in rows.values())


def test_known_labels_stand_for_unknown_ones(world, tmp_path):
    """The precision that validation labels tell of is that of the unknown labels they stand for."""
    folder, labels, _ = world
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, 0], [-1, 0, 1, 0]], dtype=np.int8)
    checked = Checked(np.full((3, 4), 0.9, dtype=np.float32), signs, None, None, True)
    found = precision.Thresholds(np.full(4, 800), np.ones(4), np.ones(4, dtype=np.int64), np.ones(4))
    told = precision._known_above(
        Prepared(
            ready.trained, ready.labels, ready.inputs, ready.chances, ready.annotation, checked, ready.notes
        ),
        found,
        np.array([False, False, True, False]),
    )
    assert told.count.tolist() == [3, 2, 0, 1]  # nothing can be checked in the third
    right, wrong = 2 * 0.4 / 0.6, 0.8 / 0.2
    assert told.precision[0] == pytest.approx(right / (right + wrong))
    assert np.isnan(told.precision[2:]).all()
    said = precision._note_of(told, np.zeros(4, dtype=bool), 0.9)
    assert said.startswith("judged by 6 known validation labels")


def checkable(ready, rng, surer, known=(0.3, 0.3), images=4000):
    """Validation images and others whose chances are too sure by a factor of their logits."""
    logits = rng.normal(-1, 2, size=(images, 4))
    truth = np.where(rng.random(logits.shape) < 1 / (1 + np.exp(-logits)), 1, -1)
    labels = observed(rng, truth, *known).astype(np.int8)
    chances = (1 / (1 + np.exp(-surer * logits))).astype(np.float32)
    seen, rest = slice(0, images // 4), slice(images // 4, None)
    tally = Tally(4)
    tally.add(chances[rest], labels[rest] == 0)
    about = Chances(1.0, np.zeros(4), *(np.full(4, each) for each in known))
    rate = (truth > 0).mean(axis=0)
    annotation = Annotation(tuple(CLASSES), rate, 0.7 * rate, rate * 2, about.present, about.absent)
    checked = Checked(chances[seen], labels[seen], None, None, True)
    given = Labels.from_dense(labels, classes=CLASSES)
    there = replace(ready, labels=given, chances=about, annotation=annotation, checked=checked)
    return there, tally, chances[rest], np.where(labels[rest] == 0, truth[rest], 0)


@pytest.mark.parametrize("surer", [1.0, 1.5, 2.0])
def test_chances_that_are_too_sure_are_asked_for_more(world, rng, surer):
    folder, labels, _ = world
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    there, tally, chances, hidden = checkable(ready, rng, surer)
    plain = tally.thresholds(0.9).above(chances) & (hidden != 0)
    found, known, said = precision.confirmed(there, tally, 0.9)
    added = found.above(chances) & (hidden != 0)
    assert 100 < added.sum() == found.added.sum() <= plain.sum()
    assert (hidden[added] > 0).mean() > 0.88
    assert ((hidden[plain] > 0).mean() < 0.88) == (surer > 1)
    assert known.surely(0.9) >= 0.9
    assert "hardly less than 9" in said


@pytest.mark.parametrize(
    ("case", "said"),
    [("few", "nothing is added: known validation"), ("positives", "no label is known to be")],
)
def test_nothing_is_added_where_nothing_shows_the_precision(world, rng, case, said):
    folder, labels, _ = world
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    known, images = ((0.3, 0.0), 4000) if case == "positives" else ((0.05, 0.05), 200)
    there, tally, *_ = checkable(ready, rng, 1.0, known, images)
    found, _, note = precision.confirmed(there, tally, 0.9)
    assert not found.added.any()
    assert note.startswith(said)
    # Half of what is there is enough, though the class may be rarer by three tenths.
    assert case == "few" or precision.confirmed(there, tally, 0.5)[0].added.all()


def log_loss(chances, truth):
    """Of the labels that are not 0."""
    inside = np.clip(chances[truth != 0].astype(np.float64), 1e-6, 1 - 1e-6)
    return -np.log(np.where(truth[truth != 0] > 0, inside, 1 - inside)).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["random:0.1", "balanced:0.1", "per_class:100", "positives:0.3", "single_positive"]
)
def test_hidden_labels_of_coco(coco, tmp_path, capsys, scheme):
    """Prints what docs/auto.md tells: errors on hidden validation labels, precision of added ones."""
    everything = read_labels(coco / "labels.csv", unlisted="absent").part("train")[:3000]
    full = Labels.from_dense(everything.dense(), classes=everything.classes, images=everything.images)
    features = np.load(coco / "train_features.npy", mmap_mode="r")[:3000]
    labels = parse(scheme).apply(full, 0)
    run, out, filled = tmp_path / "run", tmp_path / "c.parquet", tmp_path / "more.arrow"
    train(labels, features=features, out=run, method="auto")
    ready = Prepared.of_run(run, labels, features=features)
    rows = prepared._validation_rows(RunFolder.open(run), ready.labels)
    hidden = np.where(labels.dense(rows) == 0, full.dense(rows), 0).astype(np.int8)
    raw = ready.trained.predict_proba(features=features[rows])
    plain = posterior(raw, ready.chances.present, ready.chances.absent)
    told = {"raw": raw, "posterior": plain, "calibrated": ready.checked.unknown}
    losses = {name: log_loss(chances, hidden) for name, chances in told.items()}
    done = complete(run, labels, features=features, out=out, precision=0.9, filled=filled)
    added = full.dense()[read_labels(filled).dense() != labels.dense()]
    with capsys.disabled():
        print(f"\n{scheme}: present {(hidden[hidden != 0] > 0).mean():.4f}")
        for name, chances in told.items():
            error, mean = calibration_error(chances.astype(np.float64), hidden), chances[hidden != 0].mean()
            print(f"  {name}: mean {mean:.4f}, ECE {error:.4f}, log-loss {losses[name]:.4f}")
        print(f"  {done.notes} added {len(added)}, of them present {(added > 0).sum()}")
    assert losses["posterior"] < losses["raw"] + 0.001
    assert losses["calibrated"] < losses["raw"] + 0.002
    assert len(added) == done.added


# ---- how many are present ----------------------------------------------------------------------------------


def test_the_count_has_an_interval_that_holds(world, tmp_path):
    folder, labels, truth = world
    done = complete(folder / "run", labels, features=folder / "x.npy", out=tmp_path / "c.parquet")
    hidden = (truth[labels.dense() == 0] > 0).sum()
    assert done.low < hidden < done.high
    assert done.low < done.expected < done.high < done.unknown


def annotation(present, absent, error=1.2):
    rate, each = np.full(20, 0.1), np.ones(20)
    names = tuple(map(str, range(20)))
    return Annotation(names, rate, rate / error, rate * error, present * each, absent * each)


def test_the_count_is_surest_where_labels_were_dropped_at_random():
    known, unknown, expected = 100, 9000, 900.0
    ranges = [
        present_range(known, unknown, expected, each)
        for each in (annotation(0.1, 0.1), annotation(0.1, 0.05), annotation(0.1, 0.0), None)
    ]
    lows, highs = zip(*ranges, strict=True)
    assert sorted(lows, reverse=True) == list(lows)
    assert sorted(highs[:3]) == list(highs[:3])
    assert highs[0] < 1.25 * expected < 2 * expected < highs[2]


def test_the_count_stays_within_what_is_possible():
    assert present_range(1000, 50, 40.0, annotation(0.96, 0.0)) == (0.0, 50.0)


# ---- answers -----------------------------------------------------------------------------------------------


def asked_about(world, count, lowest=0.3, highest=0.6):
    """True answers about unknown labels with such chances, and the chances."""
    folder, labels, truth = world
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    chances = np.concatenate([chance for _, _, chance in ready.blocks()])
    rows, columns = np.nonzero((labels.dense() == 0) & (chances > lowest) & (chances < highest))
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    return rows[chosen], columns[chosen], truth[rows, columns][chosen]


def answers_of(labels, rows, columns, values):
    dense = np.zeros(labels.shape, dtype=np.int8)
    dense[rows, columns] = values
    found = np.unique(rows)
    images = [labels.images[row].as_py() for row in found]
    return Labels.from_dense(dense[found], classes=labels.classes, images=images)


def test_fifty_answers_mend_what_is_said_of_such_labels(world, tmp_path):
    """Annotators noted less than the run believes: what it holds for unlikely is nearly always there."""
    folder, labels, _ = world
    run = copy_of(folder, tmp_path)
    rows, columns, _ = asked_about(world, 100)
    asked, later = (rows[:50], columns[:50]), (rows[50:], columns[50:])
    answers = answers_of(labels, *asked, 1)
    before = Prepared.of_run(run, labels, features=folder / "x.npy")
    after = Prepared.of_run(run, labels, features=folder / "x.npy", answers=answers)
    said = [
        np.concatenate([chance for _, _, chance in ready.blocks()])[later].mean() for ready in (before, after)
    ]
    assert said[0] < 0.5
    assert said[1] > 0.85
    assert "calibrated by 50 answers" in after.notes[-1]
    assert "100% are" in after.notes[-1]


def test_answers_are_known_and_say_nothing_of_annotation(world, tmp_path):
    folder, labels, truth = world
    rows, columns, values = asked_about(world, 60)
    answers = answers_of(labels, rows, columns, values)
    out = tmp_path / "c.parquet"
    done = complete(folder / "run", labels, features=folder / "x.npy", out=out, answers=answers)
    found = matrix(out)[2]
    assert (found[rows, columns] == (values > 0)).all()
    assert done.unknown == (labels.dense() == 0).sum() - 60
    assert done.low < (truth[labels.dense() == 0] > 0).sum() - (values > 0).sum() < done.high
    plain = Prepared.of_run(folder / "run", labels, features=folder / "x.npy")
    told = Prepared.of_run(folder / "run", labels, features=folder / "x.npy", answers=answers)
    assert (told.chances.scale, told.chances.shift.tolist()) == (
        plain.chances.scale,
        plain.chances.shift.tolist(),
    )


def test_true_answers_leave_right_chances_nearly_as_they_are(world):
    folder, labels, _ = world
    answers = answers_of(labels, *asked_about(world, 200))
    told = Prepared.of_run(folder / "run", labels, features=folder / "x.npy", answers=answers).chances.told
    assert np.abs(told).max() < 0.7


def test_answers_that_the_run_has_learned_calibrate_nothing(world, tmp_path):
    """They are in the label file: then only those of validation images, which it did not train on, do."""
    folder, labels, _ = world
    rows, columns, _ = asked_about(world, 300, 0.05, 0.95)
    answers = answers_of(labels, rows, columns, 1)
    merged = Answered.among(labels, answers).put_into(labels)
    ready = Prepared.of_run(folder / "run", merged, features=folder / "x.npy", answers=answers)
    held_out = set(RunFolder.open(folder / "run").data().validation)
    count = sum(labels.images[int(row)].as_py() in held_out for row in rows)
    assert 0 < count < 100
    assert f"calibrated by {count} answers" in ready.notes[-1]


def test_answers_about_other_images_and_classes_are_left_out(world):
    folder, labels, _ = world
    answers = Labels.from_dense([[1, 1]], classes=["cat", "yak"], images=["nowhere.jpg"])
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy", answers=answers)
    assert ready.labels == labels
    assert not any("answers" in note for note in ready.notes)


def test_answers_against_the_file_are_named_and_calibrate_nothing(world):
    """Once they moved all chances, as if such labels were absent."""
    folder, labels, _ = world
    rows, columns, values = labels.coo()
    against = Labels.from_entries(
        rows[:80], columns[:80], -values[:80], classes=labels.classes, images=labels.images
    )
    ready = Prepared.of_run(folder / "run", labels, features=folder / "x.npy", answers=against)
    assert any(
        note.startswith("80 of 80 answers contradict the label file, such as ") for note in ready.notes
    )
    assert not any(note.startswith("calibrated by") for note in ready.notes)
    assert Answered.among(labels, against).unlearned(np.arange(len(labels))).rows.size == 0


def test_filled_labels_have_the_answers(world, tmp_path):
    folder, labels, _ = world
    rows, columns, values = asked_about(world, 60)
    answers = answers_of(labels, rows, columns, values)
    filled = tmp_path / "more.parquet"
    complete(
        folder / "run",
        labels,
        features=folder / "x.npy",
        out=tmp_path / "c.parquet",
        precision=0.8,
        filled=filled,
        answers=answers,
    )
    assert (read_labels(filled).dense()[rows, columns] == values).all()


# ---- what is not known -------------------------------------------------------------------------------------


def copy_of(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run")
    return tmp_path / "run"


def test_without_annotation_the_calibrated_probability_is_used(world, tmp_path):
    folder, labels, _ = world
    run = copy_of(folder, tmp_path)
    (run / "annotation.json").unlink()
    ready = Prepared.of_run(run, labels, features=folder / "x.npy")
    assert any("did not model annotation" in note for note in ready.notes)
    scores = ready.trained.predict_proba(features=folder / "x.npy")
    np.testing.assert_allclose(ready.chances.unknown(scores), ready.chances.calibrated(scores), atol=1e-6)
    positives = labels.with_entries(labels.entries > 0)
    ready = Prepared.of_run(run, positives, features=folder / "x.npy")
    assert not ready.checked.calibrated
    np.testing.assert_allclose(ready.chances.unknown(scores), scores, atol=1e-5)
    assert any("no label is known to be absent" in note for note in ready.notes)


def test_positives_only_cannot_be_checked(world, tmp_path):
    folder, labels, _ = world
    positives = labels.with_entries(labels.entries > 0)
    out = tmp_path / "c.parquet"
    done = complete(folder / "run", positives, features=folder / "x.npy", out=out, precision=0.5)
    assert any("cannot be checked" in note for note in done.notes)
    assert not any(note.startswith("calibrated on") for note in done.notes)
    with open(done.table, encoding="utf-8") as file:
        assert {row["checked"] for row in csv.DictReader(file)} == {"assumed"}


def test_too_few_validation_labels_are_said(world):
    folder, labels, _ = world
    config = json.loads((folder / "run" / "config.json").read_text())
    held_out = set(config["data"]["validation"])
    rows = np.array([row for row, name in enumerate(labels.images.to_pylist()) if name not in held_out])
    features = np.load(folder / "x.npy")[rows]
    ready = Prepared.of_run(folder / "run", labels[rows], features=features)
    assert any("0 known labels in 0 validation images are too few" in note for note in ready.notes)
    assert ready.chances.scale == 1


# ---- the annotation file -----------------------------------------------------------------------------------


def test_annotation_is_kept_and_matched_by_name(tmp_path, rng):
    path = tmp_path / "annotation.json"
    Annotation(("cat", "dog"), *rng.random((5, 2))).save(path)
    read = Annotation.load(path)
    turned = read.for_classes(["dog", "cat"])
    for name in ("rate", "low", "high", "present", "absent"):
        assert getattr(turned, name).tolist() == getattr(read, name).tolist()[::-1]
    with pytest.raises(InputError, match=r'how "dgo" was annotated; did you mean "dog"\?'):
        read.for_classes(["dgo"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": "cat"}, 'no list "classes"'),
        ({"rate": [0.1]}, '"rate" must be a list of 2 numbers'),
        ({"low": [0.1, "x"]}, '"low" holds something that is not a number'),
        ({"present": [0.1, 1.5]}, r'"present" holds 1\.5, which is not a share'),
        ({"absent": [None, 0.5]}, '"absent" holds None'),
    ],
)
def test_a_damaged_annotation_file_is_named(tmp_path, change, message):
    path = tmp_path / "annotation.json"
    figures = {name: [0.1, 0.2] for name in ("rate", "low", "high", "present", "absent")}
    write_sealed(path, {"classes": ["cat", "dog"], **figures, **change})  # by a version with a fault
    with pytest.raises(InputError, match=message) as caught:
        Annotation.load(path)
    assert str(path) in str(caught.value)


# ---- the command -------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote(world, tmp_path, tertium):
    folder, *_ = world
    data = ("--labels", folder / "labels.parquet", "--features", folder / "x.npy")
    words = ("--out", tmp_path / "c.csv", "--precision", "0.6", "--filled", tmp_path / "more.csv")
    code, out, _ = tertium("complete", folder / "run", *data, *words)
    assert code == 0
    said = r"labels, between ([\d,]+) and ([\d,]+) of them present; ([\d,]+) if nobody chose what to note"
    low, high, expected = (int(number.replace(",", "")) for number in re.search(said, out).groups())
    assert low < expected < high
    assert "calibrated on" in out
    assert "known validation labels above the thresholds" in out
    assert {path.name for path in tmp_path.iterdir()} == {"c.csv", "c-thresholds.csv", "more.csv"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": "nowhere"}, "nowhere: no such run folder"),
        ({"--out": "c.json"}, "written as .csv or .parquet"),
        ({"--precision": "2"}, "between 0 and 1, not 2"),
        ({"--filled": "f.parquet"}, "need a precision"),
        ({"--filled": "f.txt", "--precision": "0.9"}, "f.txt: labels are written as"),
        ({"--filled": "no/f.csv", "--precision": "0.9"}, "the folder no does not exist"),
        ({"--labels": "other.csv"}, "knows none of these classes"),
    ],
)
def test_what_is_wrong_is_one_sentence(world, tmp_path, monkeypatch, change, message, tertium):
    folder, *_ = world
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("image,present\n0000.jpg,yak\n")
    options = {"--labels": folder / "labels.parquet", "--features": folder / "x.npy", "--out": "c.parquet"}
    options |= {name: value for name, value in change.items() if name != "run"}
    words = [word for option in options.items() for word in option]
    code, _, errors = tertium("complete", change.get("run", folder / "run"), *words)
    assert code == 2
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


# ---- labels that go together -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attributes(tmp_path_factory):
    """A run on labels that go by four traits, of which the features show two, and the truth."""
    folder = tmp_path_factory.mktemp("attributes")
    rng = np.random.default_rng(2)
    traits, loadings = rng.normal(size=(1200, 4)), rng.normal(size=(4, 20)) / 2
    truth = np.where(traits @ loadings + 0.2 * rng.normal(size=(1200, 20)) > 0.8, 1, -1).astype(np.int8)
    features = np.concatenate([traits[:, :2], rng.normal(size=(1200, 4))], axis=1).astype(np.float32)
    full = Labels.from_dense(truth, images=[f"{number:04d}.jpg" for number in range(1200)])
    labels = parse("random:0.3").apply(full, 0)
    np.save(folder / "x.npy", features)
    write_labels(labels, folder / "labels.parquet")
    train(labels, features=features, out=folder / "run", seed=1)
    return folder, labels, truth


def completed(folder, name, **options):
    out = folder / name
    done = complete(folder / "run", folder / "labels.parquet", features=folder / "x.npy", out=out, **options)
    table = pyarrow.parquet.read_table(out)
    return done, np.stack([np.asarray(column) for column in table.columns[1:]], axis=1)


def test_known_labels_speak_for_the_others(attributes):
    folder, labels, truth = attributes
    unknown = labels.dense() == 0
    hidden = np.where(unknown, truth, np.int8(0))
    scores, errors, said = [], [], []
    for alone in (True, False):
        done, chances = completed(folder, f"{alone}.parquet", alone=alone)
        scores.append(np.nanmean(average_precision(chances, hidden)))
        errors.append(calibration_error(chances, hidden))
        said.append(any("known labels speak for the others of their image" in note for note in done.notes))
        np.testing.assert_array_equal(chances[~unknown], labels.dense()[~unknown] > 0)
    assert scores[1] > scores[0] + 0.1
    assert errors[1] < errors[0] + 0.01
    assert said == [False, True]


def test_the_precision_is_reached_with_the_help_of_known_labels(attributes):
    folder, labels, truth = attributes
    more = folder / "more.parquet"
    done, _ = completed(folder, "sure.parquet", precision=0.9, filled=more)
    added = read_labels(more).dense() != labels.dense()
    assert added.sum() == done.added > 100
    assert (truth[added] > 0).mean() > 0.86


def test_odd_labels_are_completed_too(attributes):
    """A class known everywhere and one nowhere; an image of which all is known, and one of which nothing."""
    folder, labels, truth = attributes
    known = labels.dense().copy()
    known[:, 0], known[:, 1], known[0], known[1] = 1, 0, truth[0], 0
    odd = Labels.from_dense(known, classes=labels.classes, images=labels.images)
    out = folder / "odd.parquet"
    complete(folder / "run", odd, features=folder / "x.npy", out=out, precision=0.9)
    found = matrix(out)[2]
    assert np.isfinite(found).all()
    assert ((found > 0) & (found < 1))[known == 0].all()
    np.testing.assert_array_equal(found[0], truth[0] > 0)


@pytest.mark.parametrize("shape", [(60, 1), (4, 5)])
def test_one_class_and_a_handful_of_images_are_completed(tmp_path, rng, shape):
    features = rng.normal(size=(shape[0], 3)).astype(np.float32)
    truth = np.where(features[:, :1] + rng.normal(size=shape) > 0, 1, -1).astype(np.int8)
    truth[0], truth[1] = 1, -1
    known = np.where(rng.random(shape) < 0.6, truth, 0).astype(np.int8)
    known[:2], known[2] = truth[:2], 0
    labels = Labels.from_dense(known)
    train(labels, features=features, out=tmp_path / "run", epochs=1)
    done = complete(tmp_path / "run", labels, features=features, out=tmp_path / "c.csv", precision=0.9)
    assert np.isfinite(matrix(tmp_path / "c.csv")[2]).all()
    assert done.added == 0  # too little is known to be sure
    one = complete(tmp_path / "run", labels[:1], features=features[:1], out=tmp_path / "one.csv")
    assert one.unknown == 0


def test_labels_that_do_not_go_together_are_completed_by_the_image_alone(world):
    folder, *_ = world
    both = [completed(folder, f"apart-{alone}.parquet", alone=alone) for alone in (True, False)]
    np.testing.assert_array_equal(both[0][1], both[1][1])
    for done, _ in both:
        assert done.together is None
        assert not any("speak for the others of their image" in note for note in done.notes)


def test_factors_of_another_model_are_refused(attributes, tmp_path):
    folder, *_ = attributes
    shutil.copytree(folder / "run", tmp_path / "run")
    together = Together.of_run(folder / "run")
    replace(together, maps=together.maps[:, :2]).save(RunFolder(tmp_path / "run"))
    with pytest.raises(InputError, match=r"together\.json: is about another model"):
        Prepared.of_run(tmp_path / "run", read_labels(folder / "labels.parquet"), features=folder / "x.npy")


def test_no_class_is_less_likely_than_one_below_it(attributes):
    folder, labels, _ = attributes
    names = labels.classes
    tree = LabelTree({names[1]: names[0], names[2]: names[1], names[3]: names[1]})
    consistent = labels.dense().copy()
    consistent[:, 0] = 0  # whatever is below it may be there
    consistent[:, 1] = np.where((consistent[:, 2:4] > 0).any(axis=1), 1, 0)
    known = Labels.from_dense(consistent, classes=names, images=labels.images)
    out = folder / "tree.parquet"
    found = []
    for given in (None, tree):
        complete(folder / "run", known, features=folder / "x.npy", out=out, tree=given)
        table = pyarrow.parquet.read_table(out)
        found.append(np.stack([np.asarray(column) for column in table.columns[1:]], axis=1))
    before, after = found
    assert (before[:, 0] < before[:, 1]).any()
    assert (after[:, 0] >= after[:, 1]).all()
    assert (after[:, 1] >= after[:, 2:4].max(axis=1)).all()
    assert (after[consistent[:, 1] > 0, 0] == 1).all()  # a present child means a present parent


def test_labels_that_contradict_the_tree_are_one_sentence(attributes):
    folder, labels, _ = attributes
    names, out = labels.classes, folder / "never.parquet"
    dense = np.zeros(labels.shape, dtype=np.int8)
    dense[0, :2] = -1, 1
    known = Labels.from_dense(dense, classes=names, images=labels.images)
    options = {"features": folder / "x.npy", "out": out}
    with pytest.raises(InputError, match=names[0]):
        complete(folder / "run", known, tree=LabelTree({names[1]: names[0]}), **options)
    with pytest.raises(InputError, match='names "unicorn", which is not a class'):
        complete(folder / "run", known, tree=LabelTree({"unicorn": names[0]}), **options)
    assert not out.exists()


def test_what_goes_together_is_drawn(attributes, tmp_path):
    folder, *_ = attributes
    plot = tmp_path / "relations.svg"
    words = f"--labels {folder}/labels.parquet --features {folder}/x.npy --out {tmp_path}/c.parquet"
    found = CliRunner().invoke(app, ["complete", f"{folder}/run", *words.split(), "--plot", str(plot)])
    assert found.exit_code == 0, found.output
    assert "Which labels go together" in found.output
    names, values = related(Together.of_run(folder / "run"))
    drawn = plot.read_text()
    assert len(names) == 20
    assert all(f">{name}<" in drawn for name in names)
    np.testing.assert_allclose(values, values.T)
    # Neighbours are more alike than classes in the order of their names.
    order = np.argsort([int(name) for name in names])
    by_name = values[np.ix_(order, order)]
    assert np.diag(values, 1).mean() > np.diag(by_name, 1).mean() + 0.05


def test_nothing_is_drawn_where_labels_do_not_go_together(world, tmp_path):
    folder, *_ = world
    plot = tmp_path / "relations.svg"
    words = f"--labels {folder}/labels.parquet --features {folder}/x.npy --out {tmp_path}/c.parquet"
    found = CliRunner().invoke(app, ["complete", f"{folder}/run", *words.split(), "--plot", str(plot)])
    assert found.exit_code == 0, found.output
    assert "Nothing is drawn" in found.output
    assert not plot.exists()
