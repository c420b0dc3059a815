"""Stopping a run at any moment, and going on as if it had not been stopped."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tertium import methods
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together
from tertium.config import HEAD
from tertium.data.identity import load_contents
from tertium.errors import InputError, Stopped
from tertium.files import write_sealed
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.methods.state import SampleState
from tertium.metrics.scored import Scored
from tertium.models.classifier import Classifier
from tertium.prediction.trained import Trained
from tertium.progress import Progress
from tertium.runs import RunFolder
from tertium.training import fit
from tertium.training.checkpoints import Checkpoints
from tertium.training.fit import Course, FitRun, Offers
from tertium.training.train import resume, train

WITH_STATE = [
    ("auto", {}),
    ("role", {}),
    ("ll_cp", {"delta": 5.0}),
    ("pseudo", {"share": 0.5}),
    ("em", {"apl": True, "warmup": 1}),
    ("curriculum", {"rounds": 3, "confidence": 0.0}),
    ("sampled_negative", {}),
    ("selective", {}),
]


class Heard(Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


@pytest.fixture
def problem(tmp_path, rng):
    """Files of a small problem with three kinds of labels."""
    features = rng.normal(size=(70, 6)).astype(np.float32)
    truth = np.where(features[:, :4] + 0.5 * rng.normal(size=(70, 4)) > 0, 1, -1)
    labels = Labels.from_dense(
        truth * (rng.random(truth.shape) < 0.6), classes=list("abcd"), images=[f"i{n:03d}" for n in range(70)]
    )
    write_labels(labels, tmp_path / "labels.csv")
    np.save(tmp_path / "features.npy", features)
    return tmp_path


def begin(problem, out, method, parameters, **settings):
    return train(
        problem / "labels.csv",
        features=problem / "features.npy",
        out=problem / out,
        method=method,
        parameters=parameters,
        epochs=3,
        batch_size=8,
        checkpoint_minutes=0.0,
        **settings,
    )


def outcome_of(folder):
    """What must not depend on an interruption: the weights, and every figure but the time."""
    run = RunFolder.open(folder)
    records, summary = run.records(), run.summary()
    for record in records:
        del record["seconds"]
    del summary["seconds"]
    return load_file(folder / "model.safetensors"), records, summary


def assert_same(one, other):
    (weights, records, summary), (weights2, records2, summary2) = outcome_of(one), outcome_of(other)
    assert records == records2
    assert summary == summary2
    for name, value in weights.items():
        assert torch.equal(value, weights2[name]), name


def kill_after(monkeypatch, count):
    """End the run right after its ``count``-th checkpoint."""
    save, calls = Checkpoints.save, []

    def counted(self, *parts):
        save(self, *parts)
        calls.append(1)
        if len(calls) == count:
            raise Killed

    monkeypatch.setattr(Checkpoints, "save", counted)


@pytest.mark.parametrize(("method", "parameters"), WITH_STATE, ids=[name for name, _ in WITH_STATE])
def test_a_killed_run_goes_on_to_the_same_bits(problem, monkeypatch, method, parameters):
    """Two kills, in the middle of an epoch and at one's end; checkpoints are written at every step."""
    begin(problem, "whole", method, parameters)
    with monkeypatch.context() as patched:
        kill_after(patched, 3)
        with pytest.raises(Killed):
            begin(problem, "cut", method, parameters)
    with monkeypatch.context() as patched:
        kill_after(patched, 9)
        with pytest.raises(Killed):
            resume(problem / "cut")
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")
    assert not (problem / "cut" / "checkpoints").exists()


def test_the_record_of_an_epoch_that_was_cut_is_the_same_text(problem, monkeypatch):
    """Several terms, not in the order of their names: the last bit of their sum depends on the order."""
    kind = methods.find("negative")
    terms = kind.terms

    def three(self, logits, batch, run):
        (loss,) = terms(self, logits, batch, run).values()
        return {"z": 1e-3 * loss, "a": loss / 3, "m": 0.7 * loss}

    monkeypatch.setattr(kind, "terms", three)
    begin(problem, "whole", "negative", {})
    with monkeypatch.context() as patched:
        kill_after(patched, 3)
        with pytest.raises(Killed):
            begin(problem, "cut", "negative", {})
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")
    for one, other in zip(
        *(RunFolder.open(problem / name).records() for name in ("whole", "cut")), strict=True
    ):
        assert list(one["terms"]) == list(other["terms"]) == ["z", "a", "m"]


def test_each_process_goes_on_with_its_own_sums(monkeypatch):
    """Their mean, which is what another number of processes starts from, has been rounded once more."""
    model, plan = Classifier(["a"], 2), HEAD.resolved(100, 8, 10)
    labels = Labels.from_dense(np.ones((4, 1)))

    def course():
        run = FitRun(labels, SampleState(4, 1), 3, torch.Generator(), Offers(), print)
        return Course(model, plan, run)

    cut = course()
    cut.after_step({"z": torch.tensor(1.0), "a": torch.tensor(3.0)}, 0.1)
    monkeypatch.setattr(fit, "all_mean", lambda value: value + 1)
    saved = cut.figures(), cut.shared(), cut.own()
    for own, wanted in ((saved[2], {"z": 1.0, "a": 3.0}), ({}, {"z": 2.0, "a": 4.0})):
        again = course()
        again.restore(saved[0], saved[1], own)
        assert list(again.totals) == ["z", "a"]
        assert {name: value.item() for name, value in again.totals.items()} == wanted


def test_a_run_of_other_versions_is_said_to_be_one(problem, monkeypatch):
    with monkeypatch.context() as patched:
        kill_after(patched, 3)
        with pytest.raises(Killed):
            begin(problem, "cut", "negative", {})
    heard = Heard()
    resume(problem / "cut", progress=heard)
    assert not any("the run began with" in text for text in heard.notes)
    with monkeypatch.context() as patched:
        kill_after(patched, 3)
        with pytest.raises(Killed):
            begin(problem, "old", "negative", {})
    config = RunFolder.open(problem / "old").config()
    config["versions"] |= {"tertium": "99.0"}
    write_sealed(problem / "old" / "config.json", config)
    heard = Heard()
    resume(problem / "old", progress=heard)
    (said,) = [text for text in heard.notes if "the run began with" in text]
    assert said.startswith("the run began with tertium 99.0 (now ")


def test_a_run_killed_while_it_trains_everything(problem, monkeypatch, rng):
    """The second phase needs what the first has left: its model, and what chooses between the two."""
    labels = read_labels(problem / "labels.csv")
    names = [f"{name}.png" for name in labels.images.to_pylist()]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(problem / name)
    named = Labels.from_dense(labels.dense(), classes=labels.classes, images=names)
    write_labels(named, problem / "pictures.csv")

    def on_images(out):
        train(
            problem / "pictures.csv",
            problem,
            out=problem / out,
            method="auto",
            config={"head.epochs": 1, "whole.epochs": 2, "head.batch_size": 32, "whole.batch_size": 32},
            protocol="linear_init",
            backbone="mobilenetv3_small_050",
            weights="random",
            image_size=32,
            workers=0,
            checkpoint_minutes=0.0,
        )

    on_images("whole")
    with monkeypatch.context() as patched:
        kill_after(patched, 6)  # the head took 2 or 3
        with pytest.raises(Killed):
            on_images("cut")
    assert [record["phase"] for record in RunFolder.open(problem / "cut").records()] == ["head", "whole"]
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


def test_a_run_without_a_checkpoint_begins_again(problem, monkeypatch):
    begin(problem, "whole", "negative", {})
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            begin(problem, "cut", "negative", {})
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_a_checkpoint(problem, monkeypatch, number):
    begin(problem, "whole", "role", {})
    steps = []

    def signalled(self, logits, batch, run):
        steps.append(1)
        if len(steps) == 5:
            os.kill(os.getpid(), number)
        return original(self, logits, batch, run)

    kind = methods.find("role")
    original = kind.after_step
    with monkeypatch.context() as patched:
        patched.setattr(kind, "after_step", signalled)
        with pytest.raises(Stopped) as stop:
            begin(problem, "cut", "role", {})
    assert (stop.value.number, stop.value.kept) == (number, True)
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    assert len(steps) == 5  # the step ends, and no other begins
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_method_prepares_stops_at_once(problem, monkeypatch, number):
    """There is nothing to keep yet: `auto` is stopped while its temporary heads train."""
    begin(problem, "whole", "auto", {})
    steps = []

    def signalled(self, logits, batch, run):
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), number)
        return original(self, logits, batch, run)

    helper = methods.find("negative")  # what the temporary heads are trained with
    original = helper.after_step
    with monkeypatch.context() as patched:
        patched.setattr(helper, "after_step", signalled)
        with pytest.raises(Stopped) as stop:
            begin(problem, "cut", "auto", {})
    assert (stop.value.number, stop.value.kept) == (number, False)
    assert len(steps) == 2
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


def test_without_a_folder_a_signal_stops_at_once(problem, monkeypatch):
    kind = methods.find("negative")
    original = kind.terms

    def signalled(self, logits, batch, run):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, logits, batch, run)

    monkeypatch.setattr(kind, "terms", signalled)
    with pytest.raises(KeyboardInterrupt):
        train(problem / "labels.csv", features=problem / "features.npy", method="negative", epochs=1)


def killed(problem, monkeypatch, count=6, method="role"):
    with monkeypatch.context() as patched:
        kill_after(patched, count)
        with pytest.raises(Killed):
            begin(problem, "cut", method, {})
    return problem / "cut"


def test_a_damaged_checkpoint_is_passed_over(problem, monkeypatch):
    """Whatever file of the last checkpoint is cut short, changed or gone, the one before is used."""
    begin(problem, "whole", "role", {})
    killed(problem, monkeypatch)
    last = sorted((problem / "cut" / "checkpoints").iterdir())[-1]
    names = sorted(path.name for path in last.iterdir())
    assert "checkpoint.json" in names
    assert len(names) >= 4
    for name in names:
        for damage in ("cut", "flip", "gone"):
            shutil.rmtree(problem / "copy", ignore_errors=True)
            shutil.copytree(problem / "cut", problem / "copy")
            spoil(problem / "copy" / "checkpoints" / last.name / name, damage)
            resume(problem / "copy")
            assert_same(problem / "whole", problem / "copy")
            assert "damaged" in (problem / "copy" / "log.txt").read_text()


def spoil(path, damage):
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


_TRIES = 25  # changes of each file


def test_a_changed_byte_in_a_finished_run_is_noticed(problem, rng):
    """Whatever byte of whatever file is changed or cut off: an error that names it, or the same answer."""
    begin(problem, "whole", "auto", {})
    folder, features = problem / "whole", np.load(problem / "features.npy")
    names = sorted(path.name for path in folder.iterdir() if path.name != "log.txt")
    assert names == [
        "annotation.json",
        "config.json",
        "images.npz",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "summary.json",
        "together.json",
        "together.safetensors",
        "validation.npz",
    ]

    def answer(run):
        opened = RunFolder.open(run)
        annotation, together = Annotation.of_run(run), Together.of_run(run)
        return {
            "config.json": opened.config(),
            "summary.json": opened.summary(),
            "annotation.json": {name: getattr(annotation, name).tolist() for name in ("rate", "present")},
            "together": {name: part.tolist() for name, part in together.tensors().items()},
            "images.npz": load_contents(opened.seen_file).tolist(),
            "validation.npz": Scored.of_run(run).evaluate().to_dict(),
            "model": Trained.load(run).predict_proba(features=features).tolist(),
            "metrics.jsonl": opened.records(),
        }

    expected = answer(folder)
    noticed = dict.fromkeys(names, 0)
    for name in names:
        content = (folder / name).read_bytes()
        for _ in range(_TRIES):
            changed = bytearray(content)
            cut = rng.random() < 0.2
            if cut:
                del changed[rng.integers(len(changed)) :]
            else:
                changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
            (folder / name).write_bytes(changed)
            try:
                found = answer(folder)
            except InputError as error:
                noticed[name] += str(folder) in str(error)
                continue
            if name == "metrics.jsonl" and cut:  # as a run that was killed leaves it: whole lines count
                records = found.pop("metrics.jsonl")
                assert records == expected["metrics.jsonl"][: len(records)]
            # Unnoticed is only what changes nothing: spaces, times in an archive.
            assert found == {key: value for key, value in expected.items() if key in found}, name
        (folder / name).write_bytes(content)
    assert all(count >= _TRIES // 2 for count in noticed.values()), noticed


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), InputError("table: No space left on device")]
)
def test_a_full_disk_leaves_the_checkpoints_before(problem, monkeypatch, error):
    begin(problem, "whole", "role", {})
    calls = []

    def full(folder, figures):
        calls.append(1)
        if len(calls) == 4:
            raise error
        return seal(folder, figures)

    from tertium.training import checkpoints

    seal = checkpoints._seal
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_seal", full)
        with pytest.raises(InputError, match=r"could not be written \(.*No space left on device\)"):
            begin(problem, "cut", "role", {})
    names = sorted(path.name for path in (problem / "cut" / "checkpoints").iterdir())
    assert names == ["000002", "000003"]  # and nothing half-written
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


def test_only_two_checkpoints_are_kept(problem, monkeypatch):
    folder = killed(problem, monkeypatch, count=7)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000006", "000007"]


def test_other_labels_or_inputs_are_refused(problem, monkeypatch):
    folder = killed(problem, monkeypatch)
    features = np.load(problem / "features.npy")
    np.save(problem / "features.npy", features + 1)
    with pytest.raises(InputError, match="the training inputs are not those that the run began with"):
        resume(folder)
    np.save(problem / "features.npy", features)
    labels = read_labels(problem / "labels.csv")
    write_labels(labels.with_entries(np.arange(labels.known) != 5), problem / "labels.csv")
    with pytest.raises(InputError, match="the training labels are not those that the run began with"):
        resume(folder)


def test_a_run_that_has_ended_cannot_be_resumed(problem):
    begin(problem, "whole", "negative", {})
    with pytest.raises(InputError, match="the run has ended"):
        resume(problem / "whole")


def test_a_loss_that_is_not_finite_leaves_the_last_good_checkpoint(problem, monkeypatch):
    kind = methods.find("role")
    original, steps = kind.terms, []

    def poisoned(self, logits, batch, run):
        steps.append(1)
        found = original(self, logits, batch, run)
        return {name: value * float("nan") for name, value in found.items()} if len(steps) == 5 else found

    begin(problem, "whole", "role", {})
    with monkeypatch.context() as patched:
        patched.setattr(kind, "terms", poisoned)
        with pytest.raises(InputError, match=r"epoch 1, step 5: .* is nan.* the images of this batch are i0"):
            begin(problem, "cut", "role", {})
    resume(problem / "cut")
    assert_same(problem / "whole", problem / "cut")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(problem, rng, before, after):
    """The batches are others from there on; what is done is kept, and the tables are shared out anew."""
    folder = problem / "cut"
    run_and_kill([*command(problem, "cut", "role"), "--devices", str(before)], folder, signal.SIGTERM, rng)
    assert not (folder / "summary.json").exists()
    done = RunFolder.open(folder).records()
    words = ["--resume", str(folder), "--devices", str(after)]
    subprocess.run([sys.executable, "-m", "tertium", "train", *words], check=True, timeout=200)
    records = RunFolder.open(folder).records()
    assert len(records) == 15
    assert records[: len(done)] == done
    assert RunFolder.open(folder).summary()["epochs"] == 15


# ---- real processes ----------------------------------------------------------------------------------------


def command(problem, out, method, *more):
    return [
        *(sys.executable, "-m", "tertium", "train", "--labels", str(problem / "labels.csv")),
        *("--features", str(problem / "features.npy"), "--out", str(problem / out), "--method", method),
        *("epochs=15", "batch_size=8", "patience=15", "checkpoint_minutes=0", *more),
    ]


def run_and_kill(arguments, folder, number, rng):
    """Kill a process some time after its first checkpoint."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list((folder / "checkpoints").glob("0*")):
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.5))
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def kill_and_resume(problem, method, number, rng):
    folder = problem / "cut"
    code, _ = run_and_kill(command(problem, "cut", method), folder, number, rng)
    assert code in (-number, 128 + number, 0)
    if not (folder / "summary.json").exists():
        subprocess.run(
            [sys.executable, "-m", "tertium", "train", "--resume", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    assert_same(problem / "whole", folder)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["role", "ll_cp", "pseudo", "em", "curriculum"])
def test_many_processes_killed_at_random_moments(problem, rng, method):
    subprocess.run(command(problem, "whole", method), check=True, stdout=subprocess.DEVNULL)
    for number in [signal.SIGKILL] * 3 + [signal.SIGINT, signal.SIGTERM]:
        kill_and_resume(problem, method, number, rng)
