"""Run folders: nothing of a user's is removed, two runs never mix."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.files import write_json
from tertium.labels import Labels
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


@pytest.mark.parametrize("name", ["notes.txt", "labels.csv", "own.sqlite", "photos", "explained"])
def test_what_no_run_writes_is_named_and_stays(tmp_path, problem, name):
    begin(problem, tmp_path / "run")
    place = tmp_path / "run" / name
    place.mkdir() if "." not in name else place.write_text("mine")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=f"also holds what no run writes \\({name}\\)"):
        begin(problem, tmp_path / "run", overwrite=True)
    assert contents(tmp_path / "run") == before
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
