"""Answers that nothing loses, questions that nobody gets twice, and a page that strangers cannot use."""

import csv
import io
import json
import re
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from tertium.annotation.together import Among
from tertium.data.inputs import open_inputs
from tertium.data.pictures import ArrayPictures
from tertium.errors import InputError
from tertium.labelling import suggesting
from tertium.labelling.collective import Relation
from tertium.labels import Labels
from tertium.labels.merging import Part, join
from tertium.labels.readers import read_labels, write_labels
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.prediction.trained import Trained
from tertium.web.reviewing.access import Access
from tertium.web.reviewing.answers import Answer, Answers, Question, Standing
from tertium.web.reviewing.app import make_app
from tertium.web.reviewing.desk import LEASE, Desk, Person, StaleError, find_round
from tertium.web.reviewing.results import agreed, contradictions, disputed, export, given_values
from tertium.web.reviewing.summary import Summary
from tertium.web.reviewing.views import Views
from tertium.web.sockets import listen

EVIL = "<img src=x onerror=alert(1)>"
CLASSES = ["cat", "dog", "fox", EVIL]
ADA, BOB = Person("ada", "w1"), Person("bob", "w2")
SAFE = {"X-Tertium": "review"}


class Clock:
    """A time that moves when told to."""

    def __init__(self):
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def answers(tmp_path, clock):
    found = Answers(tmp_path / "review.sqlite", clock)
    yield found
    found.close()


@pytest.fixture
def labels():
    """Ten images; the first four have two known labels each."""
    values = np.zeros((10, 4), dtype=np.int8)
    values[:4, 0], values[:4, 1] = 1, -1
    return Labels.from_dense(values, classes=CLASSES, images=[f"{row}.jpg" for row in range(10)])


QUESTIONS = [
    Question("4.jpg", "cat", 0.5, "a close call"),
    Question("4.jpg", "dog", 0.4, "a close call; asked with others of this image"),
    Question("4.jpg", EVIL, 0.3, "a close call; asked with others of this image"),
    Question("5.jpg", "cat", 0.6, "a close call"),
    Question("6.jpg", "fox", 0.7, "a close call"),
]


@pytest.fixture
def desk(answers, labels):
    return Desk(answers, labels, answers.add_round("key", QUESTIONS, ["mind the gap"]))


def shown(reply):
    """What a window shows: the image and its labels."""
    sheet = reply["sheet"]
    return None if sheet is None else (sheet["image"], [question["label"] for question in sheet["questions"]])


# ---- answers that tell about one another ------------------------------------------------------------------


def related(slope=1.5):
    """Three labels of one image: cat and dog go together, the third has nothing to do with them."""
    covariance = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    among = Among(covariance, np.full(3, 0.2), np.zeros(3), np.outer([-1, 1], np.ones(3)), np.full(3, slope))
    return {"4.jpg": Relation(("cat", "dog", EVIL), among)}


def likely(reply):
    return {each["label"]: each["probability"] for each in reply["sheet"]["questions"]}


def test_an_answer_moves_the_other_labels_of_its_image(answers, labels):
    desk = Desk(answers, labels, answers.add_round("key", QUESTIONS, [], related()))
    ada = Person("ada", "w1")
    assert likely(desk.next(ada)) == {"cat": 0.5, "dog": 0.4, EVIL: 0.3}
    reply = desk.answer(ada, "s1", desk.round.id, [(0, "present")], False)
    moved = 1.5 * 0.9 / 1.2  # slope times the gain of one answer
    expected = 1 / (1 + np.exp(-(np.log(0.4 / 0.6) + moved)))
    assert reply["chances"] == pytest.approx({0: 0.5, 1: expected, 2: 0.3})
    assert reply["certain"] == []
    assert likely(desk.next(ada))["dog"] == pytest.approx(expected)
    again = Desk(answers, labels, answers.round("key"))  # the server was started again
    assert likely(again.next(ada))["dog"] == pytest.approx(expected)
    undone = desk.undo(ada, "s2", desk.round.id)
    assert likely(undone) == {"cat": 0.5, "dog": 0.4, EVIL: 0.3}


def test_what_has_become_certain_is_not_asked(answers, labels):
    desk = Desk(answers, labels, answers.add_round("key", QUESTIONS, [], related(slope=9.0)))
    ada = Person("ada", "w1")
    desk.next(ada)
    reply = desk.answer(ada, "s1", desk.round.id, [(0, "present")], False)
    assert reply["certain"] == [1]
    assert shown(desk.next(ada)) == ("4.jpg", ["cat", EVIL])
    assert dict(reply["classes"])["dog"] == 0
    desk.undo(ada, "s2", desk.round.id)
    assert shown(desk.next(ada)) == ("4.jpg", ["cat", "dog", EVIL])


def test_the_next_question_is_the_one_that_tells_most(answers, labels):
    """The cat says much about the dog, so the third label is next, though it comes last."""
    desk = Desk(answers, labels, answers.add_round("key", QUESTIONS, [], related(slope=2.5)))
    ada = Person("ada", "w1")
    assert desk.next(ada)["sheet"]["next"] is None  # nothing was answered: in their order
    reply = desk.answer(ada, "s1", desk.round.id, [(0, "present")], False)
    assert reply["chances"][1] > 0.8
    assert reply["next"] == 2
    assert desk.next(ada)["sheet"]["next"] == 2
    assert desk.next(Person("ada", "w1"), "dog")["sheet"]["next"] == 2  # not shown; the page takes what is
    assert desk.answer(ada, "s2", desk.round.id, [(2, "skip")], False)["next"] == 1
    assert desk.answer(ada, "s3", desk.round.id, [(1, "absent")], False)["next"] is None


def test_a_file_of_answers_from_before_is_opened(tmp_path, clock):
    path = tmp_path / "review.sqlite"
    old = Answers(path, clock)
    old.add_round("key", QUESTIONS, [])
    old.close()
    with sqlite3.connect(path) as file:
        file.execute("DROP TABLE relations")
    again = Answers(path, clock)
    assert again.round("key").relations == {}
    again.close()


# ---- the log -----------------------------------------------------------------------------------------------


def add(answers, said, number=0, who="ada", window="w1", step=None):
    step = step or f"step {len(answers.after(0))}"
    answers.add(
        [Answer(QUESTIONS[number], said, {"heat": False})], who=who, window=window, step=step, round=1
    )


def test_an_answer_is_a_whole_row_and_so_is_taking_it_back(answers):
    answers.add_round("key", QUESTIONS, [])
    add(answers, "present", who="ada", step="a")
    assert answers.undo(who="ada", window="w1", step="b", round=1) == [("4.jpg", "cat")]
    with sqlite3.connect(answers.path) as other:  # what is committed, others can read
        other.row_factory = sqlite3.Row
        rows = [dict(row) for row in other.execute("SELECT * FROM answers ORDER BY id")]
    assert rows[0] == {
        "id": 1,
        "time": "2026-01-02T03:04:05.678+00:00",
        "who": "ada",
        "window": "w1",
        "step": "a",
        "round": 1,
        "image": "4.jpg",
        "label": "cat",
        "probability": 0.5,
        "answer": "present",
        "shown": '{"heat": false}',
        "undoes": None,
        "seconds": None,
    }
    assert (rows[1]["answer"], rows[1]["undoes"]) == ("undo", 1)
    assert len(rows) == 2


def test_the_file_is_synced_and_only_grows(answers):
    answers.add_round("key", QUESTIONS, [])
    add(answers, "present")
    assert answers._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert answers._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    for statement in ("UPDATE answers SET answer = 'absent'", "DELETE FROM answers"):
        with pytest.raises(sqlite3.IntegrityError, match="only added"):
            answers._db.execute(statement)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["present", "absent", "skip", "undo"]),
            st.sampled_from([("ada", "w1"), ("ada", "w2"), ("bob", "w3")]),
            st.lists(st.integers(0, len(QUESTIONS) - 1), min_size=1, max_size=2, unique=True),
        ),
        max_size=25,
    )
)
def test_what_stands_is_the_last_answer_not_taken_back(tmp_path_factory, acts):
    """Against a list of steps from which an undo removes one."""
    answers = Answers(tmp_path_factory.mktemp("log") / "review.sqlite")
    answers.add_round("key", QUESTIONS, [])
    steps, growing = [], Standing()
    for number, (act, (who, window), places) in enumerate(acts):
        if act == "undo":
            mine = [step for step in steps if step[0] == who]
            last = ([step for step in mine if step[1] == window] or mine)[-1:]
            undone = answers.undo(who=who, window=window, step=str(number), round=1)
            assert undone == [
                (QUESTIONS[place].image, QUESTIONS[place].label) for s in last for place in s[3]
            ]
            steps = [step for step in steps if step not in last]
        else:
            given_now = [Answer(QUESTIONS[place], act, {}) for place in places]
            answers.add(given_now, who=who, window=window, step=str(number), round=1)
            steps.append((who, window, act, tuple(places), number))
        growing.update(answers.after(growing.last))
    expected: dict = {}
    for who, _, act, places, _ in steps:
        for place in places:
            expected.setdefault((QUESTIONS[place].image, QUESTIONS[place].label), {})[who] = act
    for standing in (growing, Standing.of(answers)):
        assert {cell: standing.said(cell) for cell in standing.cells()} == expected
    answers.close()


def test_a_step_that_is_sent_twice_counts_once(answers):
    answers.add_round("key", QUESTIONS, [])
    add(answers, "present", step="a")
    add(answers, "absent", number=1, step="b")
    add(answers, "absent", number=1, step="b")
    for _ in range(2):
        assert answers.undo(who="ada", window="w1", step="c", round=1) == [("4.jpg", "dog")]
    assert Standing.of(answers).cells() == [("4.jpg", "cat")]
    assert len(answers.after(0)) == 3


def test_a_window_takes_back_its_own_answers_first_and_never_those_of_another_person_or_round(answers):
    answers.add_round("key", QUESTIONS, [])
    add(answers, "present", 0, window="w1")
    add(answers, "present", 1, window="w2")
    add(answers, "present", 2, who="bob", window="w1")
    undone = [answers.undo(who="ada", window="w1", step=f"undo {n}", round=1) for n in range(3)]
    assert undone == [[("4.jpg", "cat")], [("4.jpg", "dog")], []]
    assert answers.undo(who="bob", window="w1", step="later", round=2) == []
    assert Standing.of(answers).cells() == [("4.jpg", EVIL)]


WRITER = """
import sys
from tertium.web.reviewing.answers import Answer, Answers, Question
answers, who = Answers(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    question = Question(f"{number}.jpg", "cat", 0.5, "")
    answers.add([Answer(question, "present", {})], who=who, window=who, step=f"{who} {number}", round=1)
    print(number, flush=True)
"""


def writer(path, who, count):
    command = [sys.executable, "-c", WRITER, str(path), who, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_and_several_writers_lose_nothing(answers):
    """One process writes to its end; another is killed in the middle of its work."""
    answers.add_round("key", QUESTIONS, [])
    doomed, steady = writer(answers.path, "doomed", 100_000), writer(answers.path, "steady", 50)
    told = [doomed.stdout.readline() for _ in range(20)]
    doomed.send_signal(signal.SIGKILL)
    told += doomed.stdout.readlines()
    assert steady.wait(60) == 0
    steady.stdout.close()
    doomed.stdout.close()
    doomed.wait()
    found = [row.who for row in answers.after(0)]
    assert found.count("steady") == 50
    assert found.count("doomed") >= len([line for line in told if line.endswith("\n")]) >= 20
    assert answers._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_images_are_lent_to_one_window_at_a_time(answers, clock):
    images = ["a", "b"]
    assert answers.lease("w1", images, 100) == "a"
    assert answers.lease("w2", images, 100) == "b"
    assert answers.lease("w3", images, 100) is None
    assert answers.lease("w1", images, 100) == "a"  # a reload goes on with it
    clock.wait(50)
    assert answers.lease("w1", ["b", "a"], 100) == "a"
    clock.wait(60)
    assert answers.lease("w3", images, 100) == "b"  # w2 has left
    answers.seize("w4", "b", 100)
    assert answers.lease("w3", images, 100) is None
    assert answers.lease("w4", ["c", "b"], 100) == "b"


def test_a_clock_that_is_put_back_blocks_no_image(answers, clock):
    assert answers.lease("w1", ["a"], 100) == "a"
    clock.wait(-1)  # as a clock is set right by the network
    assert answers.lease("w2", ["a"], 100) is None
    clock.wait(-3 * 3600)
    assert answers.lease("w2", ["a"], 100) == "a"
    answers.seize("w1", "a", 100)
    clock.wait(-3 * 3600)
    assert answers.lease("w2", ["a"], 100) == "a"


def test_files_that_hold_no_answers(tmp_path):
    (tmp_path / "text.sqlite").write_text("these are not answers " * 100)
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("CREATE TABLE answers (id)")
    for name in ("text", "other"):
        with pytest.raises(InputError, match=f"{name}.sqlite: answers cannot be kept in this file"):
            Answers(tmp_path / f"{name}.sqlite")
    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        Answers(tmp_path / "no" / "review.sqlite")
    with pytest.raises(InputError, match="no such file of answers"):
        Answers.existing(tmp_path / "none.sqlite")


# ---- what answers come to ----------------------------------------------------------------------------------


@pytest.fixture
def told(answers):
    """Ada and Bob agree on one label, differ on another, and know one each; a skip says nothing."""
    answers.add_round("key", QUESTIONS, [])
    for who, number, said in (
        ("ada", 0, "present"),
        ("bob", 0, "present"),
        ("ada", 1, "present"),
        ("bob", 1, "absent"),
        ("ada", 3, "absent"),
        ("bob", 3, "skip"),
        ("bob", 4, "present"),
        ("ada", 2, "skip"),
    ):
        add(answers, said, number, who=who)
    return answers


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_exported_answers_are_read_and_merged(told, labels, tmp_path, suffix):
    out = tmp_path / f"answers.{suffix}"
    done = export(told, labels, out)
    found = read_labels(out)
    assert found == done.labels
    assert found.images.to_pylist() == ["4.jpg", "5.jpg", "6.jpg"]
    assert found.classes == ("cat", "fox")
    assert found.dense().tolist() == [[1, 0], [-1, 0], [0, 1]]
    merged = join([Part("labels", labels), Part("answers", found)]).labels
    expected = labels.dense()
    expected[4, 0], expected[5, 0], expected[6, 2] = 1, -1, 1
    np.testing.assert_array_equal(merged.with_classes(CLASSES).dense(merged.rows_of(labels.images)), expected)
    with open(done.table, encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    about = {"image": "4.jpg", "label": "dog", "present": "ada", "absent": "bob"}
    assert lines == [about | {"labels": "", "decided": ""}]


def test_contradictions_with_the_label_file_are_listed_and_written_as_people_say(told, labels, tmp_path):
    values = labels.dense()
    values[4, 0], values[4, 1], values[5, 0], values[6, 2] = -1, 1, 1, 1
    other = Labels.from_dense(values, classes=CLASSES, images=labels.images.to_pylist())
    done = export(told, other, tmp_path / "answers.csv")
    assert [(each.image, each.label, each.given, each.among_people) for each in done.contradictions] == [
        ("4.jpg", "cat", -1, False),
        ("4.jpg", "dog", 1, True),
        ("5.jpg", "cat", 1, False),
    ]
    assert read_labels(tmp_path / "answers.csv").dense()[0, 0] == 1


def test_splits_go_with_the_answers(told, tmp_path):
    lines = ["image,present,split", "4.jpg,cat,train", "5.jpg,dog,val", "9.jpg,fox,test"]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    given_labels = read_labels(tmp_path / "labels.csv")
    export(told, given_labels, tmp_path / "answers.parquet")
    found = read_labels(tmp_path / "answers.parquet")
    assert found.part("train").images.to_pylist() == ["4.jpg"]
    assert found.part("val").images.to_pylist() == ["5.jpg"]  # 6.jpg is in no split that is known
    join([Part("labels", given_labels), Part("answers", found)])


def test_nothing_to_export(answers, labels, tmp_path):
    answers.add_round("key", QUESTIONS, [])
    add(answers, "skip")
    with pytest.raises(InputError, match="nobody has called a label present or absent yet"):
        export(answers, labels, tmp_path / "answers.csv")
    add(answers, "present", who="ada")
    add(answers, "absent", who="bob")
    with pytest.raises(InputError, match="as many people contradict as agree on every label"):
        export(answers, labels, tmp_path / "answers.csv")
    assert {path.suffix for path in tmp_path.iterdir()} <= {".sqlite", ".sqlite-wal", ".sqlite-shm"}


def test_given_values_are_those_of_the_file(labels, rng):
    cells = [(f"{row}.jpg", name) for row in rng.permutation(12) for name in [*CLASSES, "yak"]]
    found = given_values(labels, cells)
    dense = labels.dense()
    assert len(found) == 40
    for (image, name), value in found.items():
        assert value == dense[int(image[:-4]), CLASSES.index(name)]
    assert given_values(labels, []) == {}
    assert contradictions(Standing(), {}) == []


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_file_of_answers_says_who_when_and_how_long(answers, labels, clock, tmp_path, suffix):
    """A line for each answer; as a label file it says what most people say."""
    answers.add_round("key", QUESTIONS, [])
    for who, said, seconds in (("ada", "present", 2.25), ("bob", "absent", None), ("eve", "present", 4.0)):
        given_now = [Answer(QUESTIONS[0], said, {}, seconds)]
        answers.add(given_now, who=who, window=who, step=who, round=1)
        clock.wait(60)
    add(answers, "skip", 3, who="ada")
    out = tmp_path / f"answers.{suffix}"
    done = export(answers, labels, out)
    with open(out, encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="," if suffix == "csv" else "\t"))
    assert [(line["who"], line["said"], line["value"], line["seconds"]) for line in lines] == [
        ("ada", "present", "present", "2.2"),
        ("bob", "absent", "present", ""),
        ("eve", "present", "present", "4.0"),
    ]
    assert [line["time"][11:19] for line in lines] == ["03:04:05", "03:05:05", "03:06:05"]
    assert read_labels(out) == done.labels
    assert done.labels.dense().tolist() == [[1]]
    (only,) = done.contradictions
    assert (only.present, only.absent, only.decided) == (("ada", "eve"), ("bob",), 1)


def test_splits_and_odd_names_survive_the_file_of_answers(answers, tmp_path):
    """Commas, quotes, semicolons and another person's separator are text."""
    odd = 'a "cat", or; two'
    lines = ["image,label,value,split", f'4.jpg,"{odd.replace(chr(34), chr(34) * 2)}",present,val']
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    given_labels = read_labels(tmp_path / "labels.csv")
    answers.add_round("key", QUESTIONS, [])
    for who in ("ada;bob", "=1+1"):
        said = [Answer(Question("4.jpg", odd, 0.5, ""), "present", {})]
        answers.add(said, who=who, window=who, step=who, round=1)
    add(answers, "absent", 4, who="ada")  # an image that is in no split
    done = export(answers, given_labels, tmp_path / "answers.csv")
    found = read_labels(tmp_path / "answers.csv")
    assert (found.classes, found.images) == (done.labels.classes, done.labels.images)
    np.testing.assert_array_equal(found.dense(), done.labels.dense())
    assert found.classes == (odd, "fox")
    assert found.part("val").images.to_pylist() == ["4.jpg"]


def test_most_people_decide_and_ties_enter_nothing(answers, labels, tmp_path):
    answers.add_round("key", QUESTIONS, [])
    words = {0: "ppa", 1: "pa", 2: "paap", 3: "aaps", 4: "pass"}
    for number, said in words.items():
        for place, word in enumerate(said):
            full = {"p": "present", "a": "absent", "s": "skip"}[word]
            add(answers, full, number, who=f"person {place}")
    standing = Standing.of(answers)
    assert agreed(standing) == {("4.jpg", "cat"): 1, ("5.jpg", "cat"): -1}
    assert sorted(disputed(standing)) == [("4.jpg", EVIL), ("4.jpg", "dog"), ("6.jpg", "fox")]
    done = export(answers, labels, tmp_path / "answers.parquet")
    assert done.labels.known == 2
    assert len(done.contradictions) == 5  # all that people differ on are listed, decided or not


def test_a_file_from_before_is_read_and_added_to(tmp_path):
    """One whose answers do not say how long they took."""
    path = tmp_path / "review.sqlite"
    answers = Answers(path)
    answers.add_round("key", QUESTIONS, [])
    add(answers, "present")
    answers._db.execute("ALTER TABLE answers DROP COLUMN seconds")
    answers.close()
    with sqlite3.connect(path) as file:
        assert "seconds" not in [row[1] for row in file.execute("PRAGMA table_info(answers)")]
    for _ in range(2):  # opened twice
        again = Answers(path)
        add(again, "absent", 1)
        again.close()
    again = Answers(path)
    found = [(row.answer, row.seconds) for row in again.after(0)]
    assert found == [("present", None), ("absent", None), ("absent", None)]
    with pytest.raises(sqlite3.IntegrityError, match="only added"):
        again._db.execute("UPDATE answers SET seconds = 1")
    again.close()


# ---- several people, and what comes next -------------------------------------------------------------------


def test_a_question_stays_open_until_enough_people_have_answered(answers, labels):
    desk = Desk(answers, labels, answers.add_round("key", QUESTIONS, []), per_question=2)
    everyone = [Person(name, f"w-{name}") for name in ("ada", "bob", "eve")]
    asked = {person.who: [] for person in everyone}
    for _ in range(20):
        for person in everyone:
            reply = desk.next(person)
            if reply["sheet"] is not None:
                number = next(q["number"] for q in reply["sheet"]["questions"] if q["said"] is None)
                said = "skip" if (person.who, number) == ("ada", 0) else "present"
                answer(desk, person, (number, said))
                asked[person.who].append(number)
    for numbers in asked.values():  # each person once
        assert len(set(numbers)) == len(numbers)
    said = [desk._standing.said((question.image, question.label)) for question in QUESTIONS]
    assert [sum(word != "skip" for word in each.values()) for each in said] == [2] * 5
    assert said[0] == {"ada": "skip", "bob": "present", "eve": "present"}
    progress = desk.next(everyone[0])
    assert (progress["counts"]["answered"], progress["wanted"]) == (5, 2)


def test_what_others_said_is_not_shown(answers, labels):
    desk = Desk(answers, labels, answers.add_round("key", QUESTIONS, []), per_question=2)
    answer(desk, ADA, (0, "present"), (1, "absent"), (2, "absent"))
    desk.next(ADA)
    reply = desk.next(BOB)
    assert [question["said"] for question in reply["sheet"]["questions"]] == [None] * 3
    assert reply["counts"]["answered"] == 0


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (2.5, 2.5),
        (0, 0.0),
        (1e9, 600.0),
        pytest.param(10**400, 600.0, id="more than a float can be"),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        ("3", None),
        (None, None),
    ],
)
def test_seconds_are_kept_within_reason_and_never_cost_an_answer(client, desk, sent, kept):
    whole = body(answers=[{"number": 0, "said": "present"}], seconds=sent)
    assert client.post("/api/answer", content=json.dumps(whole)).status_code == 200
    assert desk.answers.after(0)[0].seconds == kept


def test_seconds_of_answers_given_at_once_are_shared_out(client, desk):
    given_now = [{"number": number, "said": "absent"} for number in (0, 1, 2)]
    client.post("/api/answer", json=body(answers=given_now, seconds=6))
    assert [row.seconds for row in desk.answers.after(0)] == [2.0] * 3


def test_results_are_what_people_said(client):
    for who, said in (("ada", "present"), ("bob", "absent"), ("eve", "absent")):
        whole = body(who=who, step=who, answers=[{"number": 0, "said": said}], seconds=3)
        client.post("/api/answer", json=whole)
    client.post("/api/answer", json=body(step="x", answers=[{"number": 3, "said": "present"}], seconds=1))
    found = client.get("/api/results").json()
    assert (found["answered"], found["total"], found["wanted"]) == (2, 5, 1)
    assert [share["name"] for share in found["people"]] == ["ada", "bob", "eve"]
    ada = {"name": "ada", "answers": 2, "present": 2, "shared": 1, "differ": 1, "seconds": 2.0}
    assert {name: found["people"][0][name] for name in ada} == ada
    where = {"image": "4.jpg", "label": "cat", "row": 4, "given": 0, "decided": -1}
    assert found["differing"] == [where | {"present": ["ada"], "absent": ["bob", "eve"]}]
    assert found["forecast"] is None  # too few answers
    assert "people differ on 1." in found["agreement"]


def many(answers, count, asked=60):
    """Ask about so many images, and answer the first of them: every third is present."""
    questions = [Question(f"{row}.jpg", "cat", 0.3 + 0.4 * (row % 2), "") for row in range(asked)]
    found = answers.add_round("key", questions, [])
    for row in range(count):
        said = "present" if row % 3 == 0 else "absent"
        answers.add([Answer(questions[row], said, {}, 3.0)], who="ada", window="w", step=str(row), round=1)
    return found


def test_what_comes_next_is_about_open_questions(answers):
    asked = many(answers, 30)
    found = Summary.of(Standing.of(answers), asked).forecast
    assert (found.answers, found.present, found.next) == (30, 10, 30)
    assert found.next_present.low <= 10 <= found.next_present.high
    tie = [Answer(asked.questions[0], "absent", {})]  # undecided: neither answered nor asked again
    answers.add(tie, who="bob", window="b", step="tie", round=1)
    found = Summary.of(Standing.of(answers), asked, ahead=7).forecast
    assert (found.answers, found.next) == (29, 7)
    assert Summary.of(Standing(), asked).forecast is None
    assert Summary.of(Standing.of(answers), None).forecast is None


def test_the_command_says_how_far_people_agree_and_what_comes_next(world, tmp_path, tertium):
    names = [f"{row}.jpg" for row in range(60)]
    nothing = np.zeros((60, 1), dtype=np.int8)
    write_labels(Labels.from_dense(nothing, classes=["cat"], images=names), tmp_path / "l.parquet")
    answers = Answers(tmp_path / "kept.sqlite")
    asked = many(answers, 30)
    for row in range(12):
        said = "present" if row in (0, 3, 6, 7) else "absent"
        answers.add([Answer(asked.questions[row], said, {})], who="bob", window="b", step=f"b{row}", round=1)
    answers.close()
    out = tmp_path / "a.csv"
    where = ("--labels", tmp_path / "l.parquet", "--answers", tmp_path / "kept.sqlite", "--out", out)
    code, said, errors = tertium("answers", world / "run", *where, "--agreement", "--next", 20)
    assert (code, errors) == (0, "")
    text = " ".join(said.split())
    assert "2 between people (2 undecided and left out)" in text
    assert "people differ on 2, 2 of them undecided" in text
    assert "Of the next 20, " in text
    assert "At 3.0 s an answer and 1.4 answers a label, that takes about a minute." in text
    with open(tmp_path / "a-agreement.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    columns = ("of", "name", "answers", "shared", "differ")
    assert [tuple(line[name] for name in columns) for line in lines] == [
        ("all", "", "42", "12", "2"),
        ("class", "cat", "42", "12", "2"),
        ("person", "ada", "30", "12", "2"),
        ("person", "bob", "12", "12", "2"),
    ]
    assert len({line["alpha"] for line in lines}) == 1  # one class and two people: the same pairs
    code, _, errors = tertium("answers", world / "run", *where)
    assert (code, "already exists" in " ".join(errors.split())) == (2, True)


# ---- who is asked what -------------------------------------------------------------------------------------


def answer(desk, person, *given_now, step=None):
    return desk.answer(person, step or f"step {len(desk.answers.after(0))}", desk.round.id, given_now, False)


def test_a_person_is_led_through_the_questions(desk):
    first = desk.next(ADA)
    assert shown(first) == ("4.jpg", ["cat", "dog", EVIL])
    assert first["sheet"]["row"] == 4
    assert first["ahead"] == 5
    answer(desk, ADA, (0, "present"))
    again = desk.next(ADA)  # reloaded: what was answered stands there as answered
    assert [question["said"] for question in again["sheet"]["questions"]] == ["present", None, None]
    counts = answer(desk, ADA, (1, "absent"), (2, "absent"))["counts"]
    assert counts == {"present": 1, "absent": 2, "skip": 0, "answered": 3, "total": 5}
    assert shown(desk.next(ADA)) == ("5.jpg", ["cat"])
    answer(desk, ADA, (3, "skip"))
    assert shown(desk.next(ADA)) == ("6.jpg", ["fox"])
    done = answer(desk, ADA, (4, "present"))
    assert done["counts"]["answered"] == 4
    end = desk.next(ADA)
    assert (end["sheet"], end["waiting"]) == (None, 0)
    assert shown(desk.next(BOB)) == ("5.jpg", ["cat"])  # what Ada could not tell, Bob may


def test_undo_goes_back_to_the_image(desk):
    desk.next(ADA)
    answer(desk, ADA, (0, "present"), (1, "absent"), (2, "absent"))
    assert shown(desk.next(ADA)) == ("5.jpg", ["cat"])
    back = desk.undo(ADA, "undo", desk.round.id)
    assert back["undone"] == ["cat", "dog", EVIL]
    assert shown(back) == ("4.jpg", ["cat", "dog", EVIL])
    assert back["counts"]["answered"] == 0
    assert shown(desk.next(ADA))[0] == "4.jpg"
    assert desk.undo(BOB, "other", desk.round.id)["sheet"] is None


def test_two_windows_get_different_images_until_one_is_left_behind(desk, clock):
    assert [shown(desk.next(person))[0] for person in (ADA, BOB)] == ["4.jpg", "5.jpg"]
    assert shown(desk.next(Person("ada", "w3")))[0] == "6.jpg"
    late = desk.next(Person("eve", "w4"))
    assert (late["sheet"], late["waiting"]) == (None, 3)
    clock.wait(LEASE - 1)
    answer(desk, ADA, (0, "present"))  # still at it
    clock.wait(2)
    assert shown(desk.next(Person("eve", "w4")))[0] == "5.jpg"


def test_both_answers_to_one_question_are_kept(desk, clock):
    desk.next(ADA)
    clock.wait(LEASE + 1)
    assert shown(desk.next(BOB))[0] == "4.jpg"
    answer(desk, ADA, (0, "present"))
    reply = answer(desk, BOB, (0, "absent"))
    assert reply["contradictions"] == {"people": 1, "labels": 0}
    assert desk.answers.after(0)[-1].who == "bob"
    reply = answer(desk, BOB, (0, "present"))  # changed: the last one counts
    assert reply["contradictions"] == {"people": 0, "labels": 0}
    assert len(desk.answers.after(0)) == 3


def test_what_another_process_writes_counts_at_once(desk, clock):
    with_other = Desk(Answers(desk.answers.path, clock), desk.labels, desk.round)
    assert shown(desk.next(ADA))[0] == "4.jpg"
    assert shown(with_other.next(BOB))[0] == "5.jpg"
    answer(with_other, BOB, (3, "present"))
    assert answer(desk, ADA, (0, "absent"), (1, "absent"), (2, "absent"))["counts"]["answered"] == 4
    assert shown(desk.next(ADA))[0] == "6.jpg"


def test_one_class_alone(desk):
    reply = desk.next(ADA, "cat")
    assert shown(reply) == ("4.jpg", ["cat"])
    assert reply["classes"] == sorted([(EVIL, 1), ("cat", 2), ("dog", 1), ("fox", 1)])
    reply = answer(desk, ADA, (0, "absent"))
    assert dict(reply["classes"])["cat"] == 1
    assert shown(desk.next(ADA, "cat")) == ("5.jpg", ["cat"])
    with pytest.raises(InputError, match='no question is about "catt"; did you mean "cat"'):
        desk.check_class("catt")


def test_examples_are_images_known_to_have_the_label(desk, labels, answers):
    assert desk.examples("cat") == (0, 1, 2, 3)
    assert desk.examples("dog") == ()
    many = Labels.from_dense(
        np.where(np.arange(100)[:, None] % 2, 1, -1), classes=["cat"], images=map(str, range(100))
    )
    rows = Desk(answers, many, answers.add_round("other", [], [])).examples("cat")
    assert len(rows) == len(set(rows)) == 6
    assert all(row % 2 for row in rows)
    assert rows[-1] - rows[0] == 98
    row = json.loads(_logged(desk, lambda: answer(desk, ADA, (0, "present")))["shown"])
    assert row == {"heat": False, "examples": ["0.jpg", "1.jpg", "2.jpg", "3.jpg"], "why": "a close call"}


def _logged(desk, act):
    act()
    with sqlite3.connect(desk.answers.path) as other:
        other.row_factory = sqlite3.Row
        return dict(other.execute("SELECT * FROM answers ORDER BY id DESC LIMIT 1").fetchone())


def test_answers_to_questions_of_another_round(desk, answers, labels):
    """A page that is still open answers what it shows, not what has that number now."""
    for act in (
        lambda: desk.answer(ADA, "a", desk.round.id + 1, [(0, "present")], False),
        lambda: desk.undo(ADA, "b", desk.round.id + 1),
    ):
        with pytest.raises(StaleError, match="the questions have changed"):
            act()
    later = Desk(answers, labels, answers.add_round("other", QUESTIONS[::-1], []))
    reply = later.answer(ADA, "c", desk.round.id, [(0, "present")], False)
    assert (reply["round"], reply["counts"]["present"]) == (later.round.id, 1)
    assert answers.after(0)[0][3:7] == (desk.round.id, "4.jpg", "cat", "present")


def test_numbers_that_no_question_has(desk):
    with pytest.raises(InputError, match="there is no question 5; there are 5"):
        answer(desk, ADA, (0, "present"), (5, "present"))
    assert desk.answers.after(0) == []


# ---- a run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run on features of 200 images, a third of their labels, and pictures of them."""
    from tertium.schemes import parse
    from tertium.training.train import train

    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(2)
    features = rng.normal(size=(200, 6)).astype(np.float32)
    truth = np.where(features[:, :3] > 0.4, 1, -1)
    full = Labels.from_dense(truth, classes=CLASSES[:3], images=[f"{row:03d}.png" for row in range(200)])
    write_labels(parse("random:0.3").apply(full, 0), folder / "labels.parquet")
    np.save(folder / "x.npy", features)
    train(folder / "labels.parquet", features=features, out=folder / "run", epochs=2, lr=0.01)
    return folder


def rounds(world, answers, budget=20):
    found = read_labels(world / "labels.parquet")
    return found, find_round(answers, world / "run", found, None, world / "x.npy", budget=budget, per_image=3)


def test_started_again_the_questions_are_the_same(world, answers, monkeypatch):
    found, first = rounds(world, answers)
    desk = Desk(answers, found, first)
    values = found.dense()
    for question in first.questions:
        assert values[found.rows_of([question.image])[0], found.column(question.label)] == 0
    answer(desk, ADA, (0, "present"), (1, "absent"), (2, "skip"))
    with monkeypatch.context() as patched:
        patched.setattr(suggesting, "suggest", None)  # nothing is worked out again
        _, again = rounds(world, answers)
    assert again == first
    _, more = rounds(world, answers, budget=200)
    assert more.id == first.id + 1
    asked = {(question.image, question.label) for question in more.questions}
    before = [(question.image, question.label) for question in first.questions]
    assert not set(before[:2]) & asked
    assert len(set(before[2:]) & asked) > 10


def test_what_people_dispute_is_not_asked_again_and_calibrates_nothing(world, answers, monkeypatch):
    desk = Desk(answers, *rounds(world, answers))
    answer(desk, ADA, (0, "present"), (1, "absent"))
    answer(desk, BOB, (1, "present"))
    agreed, differ = ((each.image, each.label) for each in desk.round.questions[:2])
    given = {}
    real = suggesting.Prepared.of_run

    def spy(*args, answers=None, **rest):
        given["answers"] = answers
        return real(*args, answers=answers, **rest)

    monkeypatch.setattr(suggesting.Prepared, "of_run", spy)
    _, more = rounds(world, answers, budget=200)
    asked = {(question.image, question.label) for question in more.questions}
    assert not {agreed, differ} & asked
    assert len(asked) > 50
    said = given["answers"]
    assert (said.images.to_pylist(), said.classes, said.dense().tolist()) == (
        [agreed[0]],
        (agreed[1],),
        [[1]],
    )
    assert any("calibrated by 1 answers" in note for note in more.notes)


def test_the_command_exports(world, tmp_path, tertium):
    kept = tmp_path / "kept.sqlite"
    answers = Answers(kept)
    desk = Desk(answers, *rounds(world, answers))
    answer(desk, ADA, (0, "present"), (1, "absent"))
    answer(desk, BOB, (1, "present"))
    out = tmp_path / "answers.csv"
    labels = world / "labels.parquet"
    code, said, _ = tertium("answers", world / "run", "--labels", labels, "--answers", kept, "--out", out)
    assert code == 0
    assert "1 image, 1 class: 1 label present, 0 absent → " in said
    assert "1 between people (1 undecided and left out), 0 with the label file" in said
    assert out.with_name("answers-contradictions.csv").is_file()
    merged = tmp_path / "more.parquet"
    code, *_ = tertium("merge", world / "labels.parquet", out, "--out", merged)
    assert code == 0
    assert read_labels(merged).known == read_labels(world / "labels.parquet").known + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("review nowhere --labels {labels} --features {x}", "nowhere: no such run folder"),
        ("review {run} --labels {labels}", "give the images that people look at"),
        ("review {run} --labels {labels} --images none --port 0", "none: no such folder"),
        (
            "review {run} --labels {labels} --features {x} --answers no/a.sqlite --port 0",
            "folder no does not",
        ),
        ("answers {run} --labels {labels} --out out.csv", "no such file of answers"),
        ("review {run} --labels {labels} --features {x} --name  --port 0", "must be a text of 1 to 80"),
        ("review {run} --labels {labels} --features {x} --host nowhere.invalid", "cannot listen on nowhere"),
    ],
)
def test_what_is_wrong_is_one_sentence(world, tmp_path, monkeypatch, words, message, tertium):
    monkeypatch.chdir(tmp_path)
    places = {"run": world / "run", "labels": world / "labels.parquet", "x": world / "x.npy"}
    code, _, errors = tertium(*(word.format(**places) for word in words.split(" ")))
    assert code == 2
    assert message in errors
    assert not any(tmp_path.iterdir())


def test_a_port_that_is_taken_and_a_missing_extra(world, tertium, monkeypatch):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1 port {port} .*choose another"):
            listen("127.0.0.1", port)
    monkeypatch.setitem(sys.modules, "starlette.datastructures", None)
    for name in ("access", "app"):
        monkeypatch.delitem(sys.modules, f"tertium.web.reviewing.{name}")
    data = ("--labels", world / "labels.parquet", "--features", world / "x.npy")
    code, _, errors = tertium("review", world / "run", *data)
    assert code == 2
    assert "pip install 'tertium[web]'" in errors


def test_going_on_needs_no_torch():
    code = "import sys, tertium.web.reviewing.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- the page ----------------------------------------------------------------------------------------------


@pytest.fixture
def pixels(rng):
    return ArrayPictures(rng.integers(0, 256, size=(10, 32, 48, 3), dtype=np.uint8))


@pytest.fixture
def client(desk, pixels):
    app = make_app(desk, Views(pixels, None), Access.at("127.0.0.1"), run="first", who="ada")
    return TestClient(app, base_url="http://127.0.0.1:8765", headers=SAFE)


@pytest.fixture
def guarded(desk, pixels):
    access = Access.at("0.0.0.0")
    app = make_app(desk, Views(pixels, None), access, run="first", who="ada")
    return access, TestClient(app, base_url="http://192.168.1.5:8765", headers=SAFE)


def body(**more):
    return {"who": "ada", "window": "w1", "round": 1, "step": "s"} | more


def test_the_page_asks_and_stores(client, desk):
    about = client.get("/api/about").json()
    # What the round notes about the model is for who started it, not for who answers.
    assert about == {"run": "first", "who": "ada", "images": True, "heat": False}
    reply = client.post("/api/next", json=body(only=None)).json()
    assert shown(reply) == ("4.jpg", ["cat", "dog", EVIL])
    reasons = [question["why"] for question in reply["sheet"]["questions"]]
    assert reasons[1:] == ["a close call; asked with others of this image"] * 2
    done = client.post("/api/answer", json=body(heat=True, answers=[{"number": 2, "said": "absent"}]))
    assert done.json()["counts"]["absent"] == 1
    assert desk.answers.after(0)[0][1:7] == ("ada", "w1", 1, "4.jpg", EVIL, "absent")
    assert (reply["undoable"], done.json()["undoable"]) == (False, True)
    back = client.post("/api/undo", json=body(step="t")).json()
    assert (back["undone"], back["undoable"]) == ([EVIL], False)
    assert client.post("/api/undo", json=body(step="u", round=9)).status_code == 409


def test_everything_comes_with_strict_headers(client):
    own = ("/", "/review.js", "/dom.js", "/photo.js", "/review.css", "/results", "/results.js", "/icon.svg")
    for path in (*own, "/api/about", "/api/results", "/image/0", "/nothing"):
        reply = client.get(path)
        assert reply.status_code == (404 if path == "/nothing" else 200)
        assert "default-src 'self'" in reply.headers["content-security-policy"]
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in reply.headers
        assert reply.headers["cache-control"] == ("private, max-age=3600" if "image" in path else "no-store")
    refused = client.get("/", headers={"host": "evil.example"})
    assert "default-src 'self'" in refused.headers["content-security-policy"]


def test_the_page_needs_no_exception_from_its_policy():
    page = files("tertium.web.reviewing") / "page"
    names = [each.name for each in page.iterdir()]
    html, script = (
        "".join((page / name).read_text() for name in names if name.endswith(ending))
        for ending in (".html", ".js")
    )
    assert "Photo" in script
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|javascript:|https?://", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|https?://", script)


def test_images_are_encoded_anew_and_named_by_number_only(client, pixels):
    reply = client.get("/image/3?of=x")
    assert reply.headers["content-type"] == "image/jpeg"
    image = Image.open(io.BytesIO(reply.content))
    assert image.size == (48, 32)
    assert np.abs(np.asarray(image, dtype=float) - pixels.images[3]).mean() < 20
    assert max(Image.open(io.BytesIO(client.get("/thumb/3").content)).size) <= 160
    for path in (
        "/image/10",
        "/image/-1",
        "/image/0/../../../etc/passwd",
        "/image/..%2f..%2fetc%2fpasswd",
        "/image/%2e%2e/review.sqlite",
        "/review.sqlite",
        "/../answers.py",
        "/heat/99",
    ):
        reply = client.get(path)
        assert reply.status_code == 404, path
        assert b"root:" not in reply.content
        assert b"SQLite" not in reply.content


def test_cameras_held_sideways_and_what_they_noted(tmp_path):
    sideways = Image.new("RGB", (40, 20), "red")
    sideways.paste("blue", (0, 0, 20, 20))
    noted = sideways.getexif()
    noted[0x0112], noted[0x010F] = 6, "a camera's maker"
    sideways.save(tmp_path / "a.jpg", exif=noted, comment=b"where I live", quality=95)
    content = Views(open_inputs(tmp_path, names=["a.jpg"]).pictures, None).image(0)
    upright = Image.open(io.BytesIO(content))
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 5))[2] > 200  # the left of the stored pixels is the top
    assert not upright.getexif()
    assert b"maker" not in content
    assert b"where I live" not in content


def test_where_the_model_looks(desk, pixels):
    backbone = pretrained("test_resnet", "random", 64)
    model = Classifier(tuple(CLASSES), backbone.width, backbone)
    model.head.weight.data.uniform_(0, 1)
    trained = Trained(model.eval(), np.full(4, 0.5))
    app = make_app(desk, Views(pixels, lambda: trained), Access.at("127.0.0.1"), run="r", who="ada")
    client = TestClient(app, base_url="http://127.0.0.1:8765")
    assert client.get("/api/about").json()["heat"] is True
    reply = client.get("/heat/0")
    assert reply.headers["content-type"] == "image/jpeg"
    image = Image.open(io.BytesIO(reply.content))
    assert image.size == (48, 32)  # it covers the image
    model.head.weight.data.zero_()
    assert (client.get("/heat/1").status_code, client.get("/heat/1").text) == (
        404,
        'nothing in the image speaks for "dog"',
    )


def test_without_images_or_maps_the_page_says_so(desk, client):
    assert client.get("/heat/0").text == "the model was trained on features: where it looks is not known"
    blind = TestClient(
        make_app(desk, Views(None, None), Access.at("localhost"), run="r", who="ada"),
        base_url="http://localhost:1",
    )
    assert blind.get("/api/about").json()["images"] is False
    assert blind.get("/image/0").status_code == 404
    assert "--images" in blind.get("/image/0").text


def test_answers_are_downloaded(client):
    assert client.get("/answers.csv").status_code == 404
    for who, said in (("ada", "present"), ("bob", "absent")):
        client.post("/api/answer", json=body(who=who, step=who, answers=[{"number": 0, "said": said}]))
    client.post("/api/answer", json=body(step="x", answers=[{"number": 3, "said": "present"}]))
    reply = client.get("/answers.csv")
    assert 'filename="answers.csv"' in reply.headers["content-disposition"]
    lines = list(csv.reader(io.StringIO(reply.text)))
    assert lines == [
        ["image", "label", "value", "who", "said", "time", "seconds"],
        ["5.jpg", "cat", "present", "ada", "present", "2026-01-02T03:04:05.678+00:00", ""],
    ]
    assert "4.jpg,cat,ada,bob,," in client.get("/answers-contradictions.csv").text
    assert "person,ada,2,2,1,1,0.0000," in client.get("/answers-agreement.csv").text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"who": ""}, '"name" must be a text of 1 to 80'),
        ({"who": "a\nb"}, '"name" must be a text'),
        ({"window": 7}, '"window" must be a text'),
        ({"step": "x" * 65}, '"step" must be a text of 1 to 64'),
        ({"round": "1"}, '"round" must be a whole number'),
        ({"round": 2**70}, '"round" must be a whole number from 0 up'),
        ({"answers": []}, '"answers" must be a list'),
        ({"answers": ["present"]}, '"answers" must be a list'),
        ({"answers": [{"number": True, "said": "present"}]}, '"number" must be a whole number'),
        ({"answers": [{"number": 0, "said": "presnt"}]}, 'did you mean "present"'),
        ({"answers": [{"number": 77, "said": "present"}]}, "there is no question 77"),
        ({"answers": [{"number": 0, "said": "undo"}]}, 'an answer cannot be "undo"'),
    ],
)
def test_requests_that_make_no_sense_change_nothing(client, desk, change, message):
    whole = body(answers=[{"number": 0, "said": "present"}]) | change
    reply = client.post("/api/answer", json=whole)
    assert reply.status_code == 400
    assert message in reply.json()["error"]
    assert desk.answers.after(0) == []


def test_a_full_disk_is_told_and_what_is_sent_again_is_kept(client, desk):
    pages = desk.answers._db.execute("PRAGMA page_count").fetchone()[0]
    desk.answers._db.execute(f"PRAGMA max_page_count = {pages}")
    whole = body(answers=[{"number": 0, "said": "present"}], who="a" * 80)
    stored = 0
    while (reply := client.post("/api/answer", json=whole | {"step": f"s{stored}"})).status_code == 200:
        stored += 1
    assert reply.status_code == 503
    assert reply.json()["error"].startswith("Not saved: the file of answers cannot be written (")
    assert len(desk.answers.after(0)) == stored
    desk.answers._db.execute("PRAGMA max_page_count = 1000000")
    assert client.post("/api/answer", json=whole | {"step": f"s{stored}"}).status_code == 200
    assert len(desk.answers.after(0)) == stored + 1


def test_requests_that_are_no_json_or_too_long(client):
    for content in (b"{", b"[1]", b"\xff", b"[" * 5000):
        reply = client.post("/api/next", content=content)
        assert reply.status_code == 400
        assert reply.json()["error"].startswith("the request is not")
    for word in ("\\ud800", "\\udfff x"):  # half of a character, which nothing can store or send back
        text = json.dumps(body(answers=[{"number": 0, "said": "WORD"}])).replace("WORD", word)
        reply = client.post("/api/answer", content=text)
        assert (reply.status_code, "not a JSON object of characters" in reply.json()["error"]) == (400, True)
    for sent in ({"json": body(more="x" * 70_000)}, {"content": iter([b"x" * 70_000])}):
        reply = client.post("/api/next", **sent)
        assert (reply.status_code, reply.json()["error"]) == (413, "the body is larger than 65,536 bytes")
    assert client.get("/api/answer").status_code == 405


# ---- strangers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {"host": "evil.example"}),  # a name of theirs that leads here
        ("GET", "/", {"host": "127.0.0.1.evil.example:8765"}),
        ("GET", "/", {"host": "192.168.1.5:8765"}),
        ("GET", "/", {"host": ""}),
        ("GET", "/", {"host": "[::1"}),
        ("GET", "/image/0", {"sec-fetch-site": "cross-site"}),
        ("GET", "/image/0", {"sec-fetch-site": "same-site"}),  # another port of this machine
        ("GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        (
            "GET",
            "/",
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        ),
        ("GET", "/answers.csv", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("POST", "/api/answer", {"sec-fetch-site": "cross-site"}),
        ("POST", "/api/answer", {"origin": "http://evil.example"}),
        ("POST", "/api/answer", {"origin": "http://127.0.0.1:9999"}),
        ("POST", "/api/answer", {"origin": "null"}),
        ("POST", "/api/answer", {"origin": "http://[::1"}),
        ("POST", "/api/answer", {"x-tertium": None}),  # all that a form could do
        ("OPTIONS", "/api/answer", {"x-tertium": None, "origin": "http://evil.example"}),
    ],
)
def test_other_sites_get_nowhere(client, desk, method, path, headers):
    if headers.get("x-tertium", "") is None:
        del client.headers["x-tertium"]
        headers = {key: value for key, value in headers.items() if value is not None}
    content = json.dumps(body(answers=[{"number": 0, "said": "present"}]))
    reply = client.request(method, path, headers=headers, content=content)
    assert reply.status_code == 403
    assert desk.answers.after(0) == []


def test_a_link_on_another_site_may_lead_here_and_own_requests_pass(client):
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=visit).status_code == 200
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    assert client.post("/api/next", json=body(), headers=own).status_code == 200
    for host in ("localhost:1", "127.0.0.1", "[::1]:8765", "127.0.0.2:8765"):
        assert client.get("/", headers={"host": host}).status_code == 200


def test_from_elsewhere_only_with_the_token(guarded):
    access, client = guarded
    assert len(access.token) >= 40
    assert access.token != Access.at("0.0.0.0").token
    for path in (
        "/",
        "/image/0",
        "/api/about",
        "/?token=",
        "/?token=%C3%A9",
        f"/api/about?token={access.token}",
    ):
        assert client.get(path).status_code == 403, path
    assert client.post("/api/next", json=body()).status_code == 403
    first = client.get(f"/?token={access.token}")
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"{access.cookie}={access.token};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/").status_code == 200
    assert client.post("/api/next", json=body()).status_code == 200
    assert "set-cookie" not in client.get("/").headers
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    client.cookies.clear()
    client.cookies.set(access.cookie, access.token[:-1] + "~")
    assert client.get("/").status_code == 403


def test_this_machine_alone_needs_no_token():
    assert Access.at("127.0.0.1").token is None
    assert Access.at("localhost").token is None
    assert Access.at("::1").token is None
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        assert Access.at(host).token is not None
