"""People's answers: found by name, put into labels and taken out again, kept by a run."""

import numpy as np
import pytest

from tertium.annotation.answered import Answered, about, joined, learned_by
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.runs import RunData, RunFolder


@pytest.fixture
def labels():
    return Labels.from_dense([[1, 0], [-1, 1]], classes=["cat", "dog"], images=["a", "b"])


def test_answers_take_the_place_of_what_the_file_says(labels):
    answers = Labels.from_dense([[1, -1], [0, 1]], classes=["dog", "cat"], images=["b", "a"])
    answered = Answered.among(labels, answers)
    assert answered.put_into(labels).dense().tolist() == [[1, 0], [-1, 1]]
    assert answered.taken_out_of(labels).dense().tolist() == [[0, 0], [0, 0]]
    assert answered.given.all()
    other = Labels.from_dense([[-1, 1]], classes=["cat", "dog"], images=["a"])
    assert Answered.among(labels, other).put_into(labels).dense().tolist() == [[-1, 1], [-1, 1]]
    assert (Answered.among(labels, other).given == 0).tolist() == [False, True]


def test_nobody_was_asked(labels):
    nothing = Answered.among(labels, None)
    assert nothing.put_into(labels) is nothing.taken_out_of(labels) is labels
    assert not nothing.notes(labels)


def test_what_a_run_has_learned_tells_nothing_but_of_images_held_out():
    labels = Labels.unknown(["a", "b", "c"], ["cat", "dog"])
    learned = Labels.from_dense([[1, 0], [1, 0]], classes=["cat", "dog"], images=["a", "b"])
    now = Labels.from_dense([[1, 1], [1, 0], [0, -1]], classes=["cat", "dog"], images=["a", "b", "c"])
    found = Answered.among(labels, now)
    left = found.unlearned(np.array([1]), Answered.among(labels, learned))
    assert sorted(zip(left.rows.tolist(), left.columns.tolist(), strict=True)) == [(0, 1), (1, 0), (2, 1)]
    assert len(found.unlearned(np.array([1])).rows) == 4


def test_of_two_answers_the_later_one_holds():
    first = Labels.from_dense([[1, -1]], classes=["cat", "dog"], images=["a"])
    second = Labels.from_dense([[-1], [1]], classes=["cat"], images=["a", "b"])
    both = joined(first, second)
    assert both.with_classes(["cat", "dog"])[both.rows_of(["a", "b"])].dense().tolist() == [[-1, -1], [1, 0]]
    assert joined(None, second) is second
    assert joined(first, None) is first
    assert joined(None, None) is None


def test_answers_about_others_are_left_out(labels):
    said = Labels.from_dense([[1, 1], [1, 0], [0, 1]], classes=["cat", "yak"], images=["c", "b", "a"])
    found = about(said, labels.images, labels.classes)
    assert (found.images.to_pylist(), found.classes, found.known) == (["b"], ("cat", "dog"), 1)


def test_a_run_knows_its_answers(labels, tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config({}, RunData())
    assert learned_by(folder.path) is None
    folder.write_config({}, RunData(answers=labels.fingerprint()))
    with pytest.raises(InputError, match=r"learned-answers\.arrow: is missing"):
        learned_by(folder.path)
    labels.save(folder.learned_file)
    assert learned_by(folder.path) == labels
    labels[:1].save(folder.learned_file)
    with pytest.raises(InputError, match="are not the answers that the run was given"):
        learned_by(folder.path)
