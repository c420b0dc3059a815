"""Trivial mistakes are answered before torch is loaded, which takes seconds."""

import gc
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from docs.generate import TABLE, table_module
from tertium import methods
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.methods.plugins import GROUP
from tertium.training import declared as declaring
from tertium.training.declared import declared, table
from tertium.training.train import train

# Runs commands one after the other in one process, and says for each how it ended and what it said.
PROGRAM = """
import contextlib, io, json, sys
from tertium.cli import main
ended = []
for words in json.loads(sys.stdin.read()):
    sys.argv = ["tertium", *words]
    said, code = io.StringIO(), None
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    heavy = [name for name in ("torch", "timm", "lightning") if name in sys.modules]
    ended.append([code, said.getvalue(), heavy])
print(json.dumps(ended))
"""
TRAIN = "train --labels labels.csv --features x.npy --out new"
USE = "run --labels labels.csv --features x.npy --out out.csv"
# The command, and what its one sentence says.
MISTAKES = {
    "train --labels nowhere.csv --features x.npy --out new": "nowhere.csv: no such file",
    "train --labels broken.csv --features x.npy --out new": "broken.csv",
    "train --labels labels.csv --images nowhere --out new": "nowhere",
    "train --labels labels.csv --features nowhere.npy --out new": "nowhere.npy",
    "train --labels labels.csv --features x.npy --out run": "run: already holds a run",
    "train --labels labels.csv --features x.npy": "--out is missing",
    f"{TRAIN} --truth nowhere.csv": "nowhere.csv: no such file",
    f"{TRAIN} --classes other.txt": "mouse",
    f"{TRAIN} --method negatve": 'there is no method "negatve"; did you mean "negative"?',
    f"{TRAIN} epohcs=3": 'there is no setting "epohcs"; did you mean "epochs"?',
    f"{TRAIN} --method wan seed=one": '"one" is not a value for seed',
    f"{TRAIN} --method negative positive_wieght=2": 'did you mean "positive_weight"?',
    "train --resume nowhere": "nowhere: no such run folder",
    "evaluate nowhere --labels labels.csv --features x.npy": "nowhere: no trained model in it",
    "evaluate run --labels nowhere.csv --features x.npy": "nowhere.csv: no such file",
    "evaluate run --labels labels.csv --features x.npy --split tset": 'no split "tset"',
    "evaluate run --labels labels.csv --features narrow.npy": "features of width 4, not 3",
    "evaluate run --labels others.csv --features x.npy": "the model knows none of these classes",
    "predict run --images nowhere --out out.csv": "give features",
    "predict run --features nowhere.npy --out out.csv": "nowhere.npy",
    "predict run --features x.npy --out there.csv": "there.csv: already exists",
    "predict run --features x.npy --labels labels.csv --split tset --out out.csv": 'no split "tset"',
    f"complete {USE} --split tset": 'no split "tset"',
    "complete run --labels nowhere.csv --features x.npy --out out.csv": "nowhere.csv: no such file",
    "complete run --labels others.csv --features x.npy --out out.csv": "the model knows none",
    "suggest run --labels labels.csv --features nowhere.npy --out out.csv": "nowhere.npy",
    "suggest nowhere --labels labels.csv --features x.npy --out out.csv": "nowhere: no such run folder",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 4)).astype(np.float32)
    labels = Labels.from_dense(np.where(features[:, :2] > 0, 1, -1), classes=["cat", "dog"])
    np.save(folder / "x.npy", features)
    np.save(folder / "narrow.npy", features[:, :3])
    write_labels(labels, folder / "labels.csv")
    write_labels(Labels.from_dense(labels.dense(), classes=["cup", "jug"]), folder / "others.csv")
    (folder / "broken.csv").write_bytes(b"image,\xff\n")
    (folder / "other.txt").write_text("cat\nmouse\n")
    (folder / "there.csv").write_text("mine\n")
    train(labels, features=features, out=folder / "run", method="negative", epochs=1)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([command.split() for command in MISTAKES]),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(MISTAKES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered_without_torch(ended, command):
    code, said, heavy = ended[command]
    assert code == 2
    assert MISTAKES[command] in " ".join(said.split())
    assert heavy == []


# ---- the table of methods ----------------------------------------------------------------------------------


def test_the_table_is_what_the_methods_say():
    assert TABLE.read_text(encoding="utf-8") == table_module(), "run make docs"
    kinds = {name: kind for name, kind in methods.available().items() if kind.__module__[:7] == "tertium"}
    assert table().keys() == kinds.keys()
    for name, kind in kinds.items():
        assert (table()[name].aliases, [*table()[name].parameters]) == (
            kind.aliases,
            [*methods.parameters_of(kind)],
        )


def test_a_mistyped_method_gets_the_same_sentence_as_later():
    with pytest.raises(InputError) as early:
        declared("negatve", {})
    with pytest.raises(InputError) as late:
        methods.find("negatve")
    assert str(early.value) == str(late.value)


def test_what_a_newer_source_may_know_is_left_to_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text('class Mine(Method):\n    name = "mine"\n    own: float = 1.0\n')
    monkeypatch.setattr(declaring, "_SOURCES", tmp_path)
    assert declared("mine", {}) is None
    assert declared("negative", {"own": "2"}) is None
    assert declared("an", {"epochs": "2", "positive_weight": "3"}) == table()["negative"]


def test_methods_of_other_packages_are_left_to_them(monkeypatch):
    points = {GROUP: [EntryPoint("theirs", "theirs:Theirs", GROUP)]}
    monkeypatch.setattr(declaring, "entry_points", lambda group: points[group])
    assert declared("theirs", {}) is None


@pytest.fixture
def forgotten():
    """Let a class of the test go with it, so that no other test finds it."""
    yield
    gc.collect()


def test_a_method_of_the_caller_is_found_by_name(rng, forgotten):
    @dataclass(frozen=True)
    class Own(methods.find("negative")):
        """The caller's own."""

        name = "own_of_this_test"

    labels = Labels.from_dense(np.where(rng.random((30, 2)) < 0.5, 1, -1))
    outcome = train(labels, features=rng.normal(size=(30, 4)), method="own_of_this_test", epochs=1)
    assert outcome.summary["method"] == "own_of_this_test"
    assert Own.aliases == ()
    assert methods.find("an").name == "negative"  # not the caller's, although it is made of it


def test_an_alias_of_ours_stays_ours(forgotten):
    @dataclass(frozen=True)
    class Own(methods.find("ignore")):
        """The caller's own."""

        name = "zz_own_of_this_test"
        aliases = ("pal", "zz")

    assert methods.find("zz") is Own
    assert methods.find("pal").name == "pseudo"


def test_a_name_of_ours_is_refused_for_a_class_of_the_caller(rng, tmp_path, forgotten):
    @dataclass(frozen=True)
    class Own(methods.find("negative")):
        """The caller's own."""

        name = "ignore"

    @dataclass(frozen=True)
    class Nameless(methods.find("negative")):
        """Made of ours, and as yet without a name."""

    labels, features = Labels.from_dense([[1, -1], [-1, 1]]), rng.normal(size=(2, 4))
    for method in ("ignore", Own()):
        with pytest.raises(InputError, match='Own has the name "ignore", which is Tertium'):
            train(labels, features=features, method=method, out=tmp_path / "run")
    with pytest.raises(InputError, match='Nameless has the name "negative" of the class it is made of'):
        train(labels, features=features, method=Nameless(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(labels, features=features, method=Nameless(), epochs=1)  # nobody has to find it again
    assert methods.find("negative").__name__ == "Negative"


def test_and_is_gone_afterwards():
    assert not [name for name in methods.available() if name.endswith("own_of_this_test")]
