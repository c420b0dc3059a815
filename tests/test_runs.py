"""Run folders: nothing of a user's is removed, two runs never mix."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.files import write_json
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.runs import RunData, RunFolder
from tertium.training.train import resume, train


@pytest.fixture
def problem(rng):
    features = rng.normal(size=(40, 4)).astype(np.float32)
    return {"labels": Labels.from_dense(np.where(features[:, :2] > 0, 1, -1)), "features": features}


def begin(problem, out, **settings):
    return train(
        problem["labels"], features=problem["features"], out=out, method="ignore", epochs=2, **settings
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_folder_with_a_config_of_somebody_else_stays(tmp_path, problem):
    (tmp_path / "thesis").mkdir()
    write_json(tmp_path / "thesis" / "config.json", {"editor": "dark"})
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    before = contents(tmp_path / "thesis")
    with pytest.raises(InputError, match=r"config\.json: has no checksum"):
        begin(problem, tmp_path / "thesis", overwrite=True)
    assert contents(tmp_path / "thesis") == before


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "labels.csv",
        "own.sqlite",
        "photos",
        "explained",
        "report-of-a-year.csv",
        "reported labels.csv",
        "checkpoints/mine.pth",
        "checkpoints/best/weights.pt",
        "tables/results.csv",
        ".replaced/thesis.tex",
        ".report-mine.html",
    ],
)
def test_what_no_run_writes_is_named_and_stays(tmp_path, problem, name):
    begin(problem, tmp_path / "run")
    place = tmp_path / "run" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir() if "." not in name else place.write_text("mine")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"also holds what no run writes \(") as refused:
        begin(problem, tmp_path / "run", overwrite=True)
    assert name.split("/best")[0] in str(refused.value)
    assert contents(tmp_path / "run") == before
    assert place.exists()


def test_links_and_folders_with_the_names_of_a_run_stay(tmp_path, problem):
    begin(problem, tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "photos")
    with pytest.raises(InputError, match=r"no run writes \(checkpoints\)"):
        begin(problem, tmp_path / "run", overwrite=True)
    (tmp_path / "run" / "checkpoints").unlink()
    (tmp_path / "run" / "log.txt").unlink()
    (tmp_path / "run" / "log.txt").mkdir()
    with pytest.raises(InputError, match=r"no run writes \(log\.txt\)"):
        begin(problem, tmp_path / "run", overwrite=True)


def test_a_folder_that_only_looks_set_aside_stays(tmp_path, problem):
    (tmp_path / "run" / ".replaced").mkdir(parents=True)
    (tmp_path / "run" / "log.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no run"):
        begin(problem, tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "log.txt").read_text() == "mine"


def test_what_a_killed_process_left_does_not_block_a_run(tmp_path, problem):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config-0123abc_.json").write_text("half")
    begin(problem, tmp_path / "run")
    (tmp_path / "run" / ".model-0123abc_.safetensors").write_text("half")
    begin(problem, tmp_path / "run", overwrite=True)
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("input_", ["labels", "features", "truth"])
def test_an_input_inside_the_run_is_not_replaced(tmp_path, problem, input_):
    begin(problem, tmp_path / "run")
    place = tmp_path / "run" / "evaluation.csv"
    place.write_text("image,present\na.jpg,cat\n")
    given = {"labels": problem["labels"], "features": problem["features"], input_: place}
    with pytest.raises(InputError, match=r"evaluation\.csv: is an input, and would be replaced"):
        train(**given, out=tmp_path / "run", overwrite=True)
    assert place.exists()


def test_a_run_is_replaced(tmp_path, problem):
    begin(problem, tmp_path / "run")
    (tmp_path / "run" / "report-classes.csv").write_text("run,")
    begin(problem, tmp_path / "run", overwrite=True, seed=7)
    assert RunFolder.open(tmp_path / "run").config()["settings"]["seed"] == 7
    assert not (tmp_path / "run" / "report-classes.csv").exists()
    assert not RunFolder(tmp_path / "run").replaced.exists()


def test_a_run_that_fails_at_once_leaves_the_old_one(tmp_path, problem, monkeypatch):
    begin(problem, tmp_path / "run")
    before = contents(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("tertium.training.fit.rate_factor", lambda *_: float("inf"))
        with pytest.raises(InputError, match="not finite"):
            begin(problem, tmp_path / "run", overwrite=True, seed=7)
    assert contents(tmp_path / "run") == before
    assert not RunFolder(tmp_path / "run").replaced.exists()


def test_a_killed_beginning_is_cleared_and_the_old_run_waits(tmp_path, problem):
    """As a kill before the first epoch leaves it; the next attempt fails, and the old run is back."""
    begin(problem, tmp_path / "run")
    before = contents(tmp_path / "run")
    RunFolder.create(tmp_path / "run", overwrite=True).write_config({}, RunData())
    folder = RunFolder.create(tmp_path / "run", overwrite=True)
    assert contents(tmp_path / "run") == {}
    folder.restore()
    assert contents(tmp_path / "run") == before


def test_a_kill_at_any_moment_of_setting_aside_loses_nothing(tmp_path, problem, monkeypatch):
    """A run is set aside and put back file by file: after a kill between any two, the next one has all."""
    begin(problem, tmp_path / "run")
    before = contents(tmp_path / "run")

    class Killed(BaseException):
        pass

    def killed_after(moves, act):
        left = [moves]
        whole = type(tmp_path).rename

        def rename(self, target):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return whole(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(type(tmp_path), "rename", rename)
            with pytest.raises(Killed):
                act()

    for moves in range(len(before)):
        killed_after(moves, lambda: RunFolder.create(tmp_path / "run", overwrite=True))
        RunFolder.create(tmp_path / "run", overwrite=True).restore()
        assert contents(tmp_path / "run") == before, moves
    for moves in range(len(before)):
        RunFolder.create(tmp_path / "run", overwrite=True)
        killed_after(moves, RunFolder(tmp_path / "run").restore)
        RunFolder.create(tmp_path / "run", overwrite=True).restore()
        assert contents(tmp_path / "run") == before, moves


def test_through_a_link(tmp_path, problem):
    begin(problem, tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    begin(problem, tmp_path / "link", overwrite=True, seed=3)
    assert (tmp_path / "link").is_symlink()
    assert RunFolder.open(tmp_path / "real").config()["settings"]["seed"] == 3
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="link to a folder that does not exist"):
        begin(problem, tmp_path / "lost")


def test_one_process_at_a_time(tmp_path, problem):
    begin(problem, tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        before = contents(tmp_path / "run")
        with pytest.raises(InputError, match="another process is training in this folder"):
            begin(problem, tmp_path / "run", overwrite=True)
        assert contents(tmp_path / "run") == before
    begin(problem, tmp_path / "run", overwrite=True)


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = """
import sys, time
from pathlib import Path
from tertium.runs import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match="another process"), RunFolder(tmp_path).locked():
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    time.sleep(0.05)
    with RunFolder(tmp_path).locked():
        pass


def test_a_checkpoint_of_another_run_is_refused(tmp_path, problem, monkeypatch):
    from tests.training.test_resume import Killed, kill_after

    for name, seed in (("one", 1), ("two", 2)):
        with monkeypatch.context() as patched:
            kill_after(patched, 2)
            with pytest.raises(Killed):
                begin(problem, tmp_path / name, seed=seed, checkpoint_minutes=0)
    foreign = tmp_path / "one" / "checkpoints"
    foreign.rename(tmp_path / "two" / "mine")
    (tmp_path / "two" / "checkpoints").rename(tmp_path / "one" / "checkpoints")
    with pytest.raises(InputError, match="is a checkpoint of another run"):
        resume(tmp_path / "one", problem["labels"], features=problem["features"])


@pytest.mark.parametrize(
    ("names", "use"),
    [
        (["model.json"], "predict"),
        (["model.json", "model.safetensors"], "predict"),
        (["annotation.json"], "complete"),
        (["validation.npz"], "report"),
        (["metrics.jsonl"], "report"),
        (["images.npz"], "evaluate"),
    ],
)
def test_a_file_of_another_run_is_refused(two_runs, tmp_path, tertium, names, use):
    shutil.copytree(two_runs, tmp_path / "all")
    one, two = tmp_path / "all" / "one", tmp_path / "all" / "two"
    for name in names:
        shutil.copy(two / name, one / name)
    data = ["--labels", two_runs / "labels.csv", "--features", two_runs / "x.npy"]
    words = {
        "predict": ["predict", one, "--features", data[3], "--out", tmp_path / "p.csv"],
        "complete": ["complete", one, *data, "--out", tmp_path / "p.csv"],
        "report": ["report", one, "--out", tmp_path / "p.html"],
        "evaluate": ["evaluate", one, *data],
    }[use]
    code, _, errors = tertium(*words)
    assert (code, "is of another run" in errors) == (2, True), errors
    code, _, errors = tertium(*(two if word == one else word for word in words))
    assert code == 0, errors


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    features = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.save(folder / "x.npy", features)
    write_labels(Labels.from_dense(np.where(features[:, :2] > 0, 1, -1)), folder / "labels.csv")
    for name, seed in (("one", 1), ("two", 2)):
        train(folder / "labels.csv", features=folder / "x.npy", out=folder / name, epochs=2, seed=seed)
    return folder
