"""Training with people's answers: they are learned, and are no sign of how labels were annotated."""

import numpy as np
import pyarrow.parquet
import pytest

from tertium.annotation.answered import Answered, learned_by
from tertium.annotation.record import Annotation
from tertium.errors import InputError
from tertium.labelling.completion import complete
from tertium.labelling.prepared import Prepared
from tertium.labelling.suggesting import suggest
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.metrics.evaluation import average_precision
from tertium.runs import RunFolder
from tertium.training.train import class_frequencies, resume, train
from tests.training.test_resume import Heard, Killed, assert_same, kill_after

CLASSES = [f"class {number}" for number in range(8)]
QUICK = {"epochs": 3, "seed": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Labels dropped at random, and answers, most of which are present; the truth."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(3)
    features = rng.normal(size=(1200, 12)).astype(np.float32)
    logits = 2 * features[:, :8] - 2.5 + 0.5 * rng.normal(size=(1200, 8))
    truth = np.where(rng.random(logits.shape) < 1 / (1 + np.exp(-logits)), 1, -1).astype(np.int8)
    images = [f"{number:04d}.jpg" for number in range(1200)]
    dense = truth * (rng.random(truth.shape) < 0.15)
    labels = Labels.from_dense(dense, classes=CLASSES, images=images)
    unknown = rng.permutation(np.argwhere((dense == 0) & (logits > 0)))[:500]
    rows, columns = unknown.T
    answers = Labels.from_entries(rows, columns, truth[rows, columns], classes=CLASSES, images=images)
    np.save(folder / "x.npy", features)
    write_labels(labels, folder / "labels.csv")
    write_labels(answers, folder / "answers.csv")
    train(labels, features=features, answers=answers, out=folder / "run", **QUICK)
    return folder, labels, answers, truth


def expected(run):
    return Annotation.of_run(run).rate.sum()


def data_of(folder):
    return {"features": folder / "x.npy"}


# ---- learning ----------------------------------------------------------------------------------------------


def test_answers_do_not_move_how_labels_look_annotated(world, tmp_path):
    """Merged, they look as if present labels had been sought out: then fewer are expected."""
    folder, labels, answers, truth = world
    true = (truth > 0).sum(axis=1).mean()
    merged = Answered.among(labels, answers).put_into(labels)
    for name, given in (("before", labels), ("merged", merged)):
        train(given, **data_of(folder), out=tmp_path / name, **QUICK)
    assert expected(folder / "run") == expected(tmp_path / "before") == pytest.approx(true, rel=0.1)
    assert expected(tmp_path / "merged") < 0.8 * true
    annotation = Annotation.of_run(folder / "run")
    np.testing.assert_allclose(annotation.present, annotation.absent, rtol=0.1)  # dropped at random
    # Merged labels are no obstacle, if the answers among them are named.
    train(merged, **data_of(folder), answers=answers, out=tmp_path / "both", **QUICK)
    assert expected(tmp_path / "both") == expected(folder / "run")


def test_answers_are_learned(world):
    """One class is known by answers alone."""
    folder, labels, _, truth = world
    hidden = labels.dense()
    hidden[:, 0] = 0
    rest = Labels.from_dense(hidden, classes=CLASSES, images=labels.images.to_pylist())
    told = np.zeros_like(truth)
    told[:600, 0] = truth[:600, 0]
    answers = Labels.from_dense(told, classes=CLASSES, images=labels.images.to_pylist())
    given = np.load(folder / "x.npy")
    with_them, without = (
        average_precision(
            train(rest, features=given, answers=said, epochs=5).trained.predict_proba(features=given)[600:],
            truth[600:],
        )[0]
        for said in (answers, None)
    )
    assert with_them > without + 0.2


def test_the_expected_map_is_by_labels_before_the_answers(world, monkeypatch):
    folder, labels, answers, _ = world
    seen = []
    monkeypatch.setattr("tertium.training.session.expected_map", lambda *given: seen.append(given))
    train(labels, **data_of(folder), answers=answers, **QUICK)
    (_, known, *_), own = seen[0], labels.dense(labels.rows_of(seen[0][1].images))
    assert (known.dense() == own).all()
    assert Answered.among(known, answers).rows.size > 0


@pytest.mark.parametrize("method", ["likelihood", "negative", "role"])
def test_every_method_takes_answers(world, method):
    folder, labels, answers, _ = world
    train(labels, **data_of(folder), answers=answers, method=method, epochs=1)


def test_likelihood_knows_annotation_by_labels_before_the_answers(world, tmp_path):
    folder, labels, answers, _ = world
    for name, given in (("with", answers), ("without", None)):
        options = {"answers": given, "method": "likelihood", "out": tmp_path / name}
        train(labels, **data_of(folder), **options, epochs=1)
    assert expected(tmp_path / "with") == expected(tmp_path / "without")


def test_answers_do_not_stand_in_for_labels_that_show_annotation(world):
    """Answers are all that is known to be absent: how often annotators note that is still unknown."""
    folder, labels, answers, _ = world
    positives = labels.with_entries(labels.entries > 0)
    with pytest.raises(InputError, match="needs labels_per_image"):
        train(positives, **data_of(folder), answers=answers, method="likelihood")


def test_frequencies_leave_answers_out(world):
    folder, labels, answers, _ = world
    merged = Answered.among(labels, answers).put_into(labels)
    before, after = (
        class_frequencies(given, **data_of(folder), answers=said)[1].rate
        for given, said in ((labels, None), (merged, answers))
    )
    np.testing.assert_array_equal(before, after)


# ---- what is kept and said ---------------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_its_answers(world, tmp_path, monkeypatch):
    """The answers are in the run folder: their file may be gone by then."""
    folder, _, answers, _ = world
    write_labels(answers, tmp_path / "answers.csv")
    given = {**data_of(folder), "epochs": 3, "batch_size": 64, "checkpoint_minutes": 0.0}
    train(folder / "labels.csv", answers=tmp_path / "answers.csv", out=tmp_path / "whole", **given)
    with monkeypatch.context() as patched:
        kill_after(patched, 3)
        with pytest.raises(Killed):
            train(folder / "labels.csv", answers=tmp_path / "answers.csv", out=tmp_path / "cut", **given)
    (tmp_path / "answers.csv").unlink()
    resume(tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert RunFolder(tmp_path / "whole").id() == RunFolder(tmp_path / "cut").id()
    assert expected(tmp_path / "whole") == expected(tmp_path / "cut")


def test_a_run_with_other_answers_is_another_run(world, tmp_path):
    folder, labels, answers, _ = world
    merged = Answered.among(labels, answers).put_into(labels)
    train(merged, **data_of(folder), out=tmp_path / "merged", **QUICK)
    assert RunFolder(folder / "run").id() != RunFolder(tmp_path / "merged").id()
    assert RunFolder(folder / "run").data().training_labels == (
        RunFolder(tmp_path / "merged").data().training_labels
    )


def test_answers_that_cannot_be_used_are_counted(world):
    folder, labels, answers, _ = world
    rows, columns, values = answers.coo()
    names = answers.images.to_pylist()
    stranger = {names[rows[0]]: "nowhere.jpg"}
    some = Labels.from_entries(
        rows, columns, values, classes=CLASSES, images=[stranger.get(name, name) for name in names]
    )
    heard = Heard()
    train(labels, **data_of(folder), answers=some, progress=heard, epochs=1)
    lost = int((rows == rows[0]).sum())
    assert f"Note: {lost} of 500 answers are about other images or classes, and are left out." in heard.notes
    assert any(note.startswith(f"{500 - lost} answers are learned") for note in heard.notes)


def test_contradictions_are_named_and_replaced(world, tmp_path):
    folder, labels, _, _ = world
    rows, columns, values = (part[:30] for part in labels.coo())
    against = Labels.from_entries(rows, columns, -values, classes=CLASSES, images=labels.images)
    heard = Heard()
    run = tmp_path / "run"
    train(labels, **data_of(folder), answers=against, out=run, progress=heard, epochs=1)
    (note,) = (note for note in heard.notes if "contradict the label file" in note)
    assert note.startswith("Note: 30 of 30 answers contradict")
    assert note.endswith("; they replace it.")
    ready = Prepared.of_run(run, labels, **data_of(folder))
    assert (ready.labels.dense()[rows, columns] == -values).all()
    assert not any(note.startswith("calibrated by") for note in ready.notes)


def test_answers_about_nothing_that_is_there_are_refused(world, tmp_path):
    folder, labels, _, _ = world
    others = Labels.from_dense([[1, 1]], classes=["class 0", "yak"], images=["nowhere.jpg"])
    with pytest.raises(InputError, match=r"none of 2 answers is about .* such as 0000\.jpg and class 0$"):
        train(labels, **data_of(folder), answers=others, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_answers_about_test_images_are_not_learned(tmp_path, rng):
    lines = ["image,present,absent,split"]
    for number in range(40):
        lines.append(f"{number}.jpg,{'ba'[number % 2]},,{'test' if number < 10 else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    features = rng.normal(size=(40, 3))
    said = Labels.from_dense([[-1, 0]], classes=["b", "a"], images=["1.jpg"])
    with pytest.raises(InputError, match="none of the answers is about an image that is trained"):
        train(tmp_path / "labels.csv", features=features, answers=said, method="negative")
    both = Labels.from_dense([[-1, 0], [-1, 0]], classes=["b", "a"], images=["1.jpg", "21.jpg"])
    heard = Heard()
    given = {"features": features, "method": "negative", "epochs": 1, "out": tmp_path / "run"}
    train(tmp_path / "labels.csv", answers=both, **given, progress=heard)
    assert any(note.endswith("; 1 others are about images that are not used") for note in heard.notes)
    assert learned_by(tmp_path / "run").images.to_pylist() == ["21.jpg"]


# ---- a run that has learned answers ------------------------------------------------------------------------


def test_learned_answers_are_known_and_calibrate_nothing(world, tmp_path):
    """But for those of validation images, which the run did not learn from."""
    folder, labels, answers, truth = world
    rows, columns, values = answers.coo()
    held_out = labels.rows_of(RunFolder(folder / "run").data().validation)
    own = int(np.isin(rows, held_out).sum())
    assert 0 < own < 200
    known = Answered.among(labels, answers).put_into(labels)
    for given in (None, answers):
        ready = Prepared.of_run(folder / "run", labels, **data_of(folder), answers=given)
        assert ready.labels == known
        assert "500 answers that the run was given to learn from count as known" in ready.notes
        assert any(note.startswith(f"calibrated by {own} answers") for note in ready.notes)
    row, column = np.argwhere(known.dense() == 0)[0]
    new = Labels.from_entries([row], [column], [truth[row, column]], classes=CLASSES, images=labels.images)
    ready = Prepared.of_run(folder / "run", labels, **data_of(folder), answers=new)
    assert any(note.startswith(f"calibrated by {own + 1} answers") for note in ready.notes)
    out, filled = tmp_path / "c.parquet", tmp_path / "filled.parquet"
    done = complete(folder / "run", labels, **data_of(folder), out=out, precision=0.9, filled=filled)
    table = pyarrow.parquet.read_table(out)
    found = np.stack([table[name].to_numpy() for name in CLASSES], axis=1)
    assert (found[rows, columns] == (values > 0)).all()
    assert done.unknown == labels.dense().size - known.known
    assert (read_labels(filled).dense()[rows, columns] == values).all()


def test_learned_answers_are_not_asked_again(world):
    folder, labels, answers, _ = world
    asked = suggest(folder / "run", labels, **data_of(folder), budget=300)
    rows, columns, _ = answers.coo()
    names = answers.images.to_pylist()
    learned = {(names[row], CLASSES[column]) for row, column in zip(rows, columns, strict=True)}
    assert not learned & set(zip(asked.images, asked.labels, strict=True))


def test_a_later_answer_holds_against_one_that_was_learned(world):
    folder, labels, answers, _ = world
    rows, columns, values = (part[:1] for part in answers.coo())
    changed = Labels.from_entries(rows, columns, -values, classes=CLASSES, images=answers.images)
    ready = Prepared.of_run(folder / "run", labels, **data_of(folder), answers=changed)
    assert ready.labels.dense()[rows, columns] == -values


# ---- the commands ------------------------------------------------------------------------------------------


def test_the_round_by_commands(world, tmp_path, tertium):
    folder, labels, answers, _ = world
    data = ("--labels", folder / "labels.csv", "--features", folder / "x.npy")
    run, said = tmp_path / "run", ("--answers", folder / "answers.csv")
    code, out, err = tertium("train", *data, *said, "--out", run, "epochs=1")
    assert code == 0
    assert "500 answers are learned" in out + err
    assert learned_by(run).known == answers.known
    code, out, _ = tertium("complete", run, *data, "--out", tmp_path / "c.parquet")
    assert code == 0
    assert "Note: 500 answers that the run was given to learn from count as known." in out
    code, out, _ = tertium("prior", *data, *said, "--out", tmp_path / "prior.csv")
    assert code == 0
    assert f"{(labels.dense() > 0).sum() / len(labels):.2f} known to be present" in out
    code, _, _ = tertium("train", *data, *said, "--out", run, "--overwrite", "epochs=1")
    assert code == 0


def test_wrong_answers_are_refused_in_one_sentence(world, tmp_path, tertium):
    folder, *_ = world
    data = ("--labels", folder / "labels.csv", "--features", folder / "x.npy", "--out", tmp_path / "run")
    (tmp_path / "text.csv").write_text("hello\n")
    (tmp_path / "others.csv").write_text("image,present,absent\nnowhere.jpg,class 0,class 1\n")
    for file, words in (
        (tmp_path / "gone.csv", "no such file"),
        (tmp_path / "text.csv", "text.csv"),
        (tmp_path / "others.csv", "none of 2 answers is about an image and a class of the labels"),
    ):
        code, _, err = tertium("train", *data, "--answers", file)
        assert code == 2
        assert words in err
        assert len(err.strip().splitlines()) == 1
    code, _, err = tertium("train", "--resume", folder / "run", "--answers", tmp_path / "others.csv")
    assert code == 2
    assert "goes on with what the run began with" in err
    assert not (tmp_path / "run").exists()


def test_labels_given_as_answers_are_refused(world):
    """Then nothing shows how they were annotated."""
    folder, labels, _, _ = world
    with pytest.raises(InputError, match="every known label is among the answers"):
        train(labels, features=folder / "x.npy", answers=labels, **QUICK)
    train(labels, features=folder / "x.npy", answers=labels, method="negative", **QUICK)  # does not ask
