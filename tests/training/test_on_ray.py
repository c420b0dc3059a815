"""Training in the workers of a Ray cluster: one that is killed is replaced, and the result is the same."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.runs import RunFolder
from tests.jobs.test_cluster import machines

pytestmark = [
    pytest.mark.slow,  # starts Ray clusters, whose workers import torch
    pytest.mark.skipif(find_spec("ray") is None, reason="no ray"),
]
GIVEN = ["--labels", "labels.csv", "--features", "x.npy", "--method", "role", "epochs=60", "batch_size=8"]
GIVEN += ["checkpoint_minutes=0", "patience=60"]
RAY = ["--engine", "ray", "--workers", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "tertium"]


@pytest.fixture
def problem(tmp_path, rng):
    features = rng.normal(size=(400, 6)).astype(np.float32)
    truth = np.where(features[:, :4] + 0.5 * rng.normal(size=(400, 4)) > 0, 1, -1)
    names = [f"i{n:03d}" for n in range(400)]
    known = truth * (rng.random(truth.shape) < 0.6)
    write_labels(Labels.from_dense(known, classes=list("abcd"), images=names), tmp_path / "labels.csv")
    np.save(tmp_path / "x.npy", features)
    return tmp_path


def begin(folder, *words):
    paths = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def ended(process):
    output = process.communicate(timeout=500)[0]
    return process.returncode, output


def wait_for_checkpoint(run, number):
    until = time.monotonic() + 300
    while not any(path.name >= f"{number:06}" for path in (run / "checkpoints").glob("[0-9]*")):
        assert time.monotonic() < until
        time.sleep(0.02)


def trainers(run):
    """Find the processes that train here: they hold the lock, or are Ray's workers of this run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title = (place / "cmdline").read_bytes()
            if b"RayTrainWorker" in title and os.readlink(place / "cwd") == str(run.parent):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def outcome_of(run):
    records, summary = RunFolder.open(run).records(), RunFolder.open(run).summary()
    for record in records:
        del record["seconds"]
    del summary["seconds"]
    return records, summary


def assert_same(one, other):
    assert outcome_of(one) == outcome_of(other)
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_a_worker_that_is_killed(problem):
    """The same bits as torchrun that was never stopped, and as torchrun stopped and resumed by hand."""
    assert ended(begin(problem, *TORCHRUN, "train", *GIVEN, "--out", "whole"))[0] == 0
    stopped = begin(problem, *TORCHRUN, "train", *GIVEN, "--out", "hand")
    wait_for_checkpoint(problem / "hand", 20)
    stopped.send_signal(signal.SIGTERM)
    ended(stopped)
    assert not RunFolder(problem / "hand").summary()
    code, output = ended(begin(problem, *TORCHRUN, "train", "--resume", "hand"))
    assert code == 0, output
    assert_same(problem / "whole", problem / "hand")

    running = begin(problem, "-m", "tertium", "train", *GIVEN, "--out", "ray", *RAY)
    wait_for_checkpoint(problem / "ray", 20)
    os.kill(trainers(problem / "ray")[-1], signal.SIGKILL)
    code, output = ended(running)
    assert code == 0, output
    assert "a worker was lost: the run goes on from its last checkpoint" in output
    assert_same(problem / "whole", problem / "ray")
    assert not list(problem.glob(".tertium-*"))


def test_a_machine_that_is_killed(problem):
    """Of two Ray nodes one is lost; when another has come, the run goes on."""
    assert ended(begin(problem, *TORCHRUN, "train", *GIVEN, "--out", "whole"))[0] == 0
    with machines(1, 1) as (there, (_, second)):
        where = ["--address", there.address]
        running = begin(problem, "-m", "tertium", "train", *GIVEN, "--out", "ray", *RAY, *where)
        wait_for_checkpoint(problem / "ray", 20)
        second.kill_raylet()
        there.add_node(num_cpus=1, include_dashboard=False)
        code, output = ended(running)
    assert code == 0, output
    assert "a worker was lost: the run goes on from its last checkpoint" in output
    assert_same(problem / "whole", problem / "ray")


def test_the_command_is_killed_and_goes_on(problem):
    """Without Ray, and with another number of processes."""
    running = begin(problem, "-m", "tertium", "train", *GIVEN, "--out", "run", *RAY)
    wait_for_checkpoint(problem / "run", 5)
    running.kill()
    ended(running)
    until = time.monotonic() + 60
    while trainers(problem / "run"):
        assert time.monotonic() < until
        time.sleep(0.2)
    code, output = ended(begin(problem, "-m", "tertium", "train", "--resume", "run", *RAY))
    assert code == 0, output
    assert RunFolder(problem / "run").summary()


def test_what_is_wrong_is_one_sentence(problem):
    for words, told in (
        (["--workers", "2"], "--workers is of --engine ray"),
        (["--engine", "ray"], "say how many processes train: --workers N"),
        ([*RAY, "--address", "ray://127.0.0.1:1"], "training is started on a machine of the cluster"),
        ([*RAY, "epoch=3"], 'there is no setting "epoch"'),
    ):
        code, output = ended(begin(problem, "-m", "tertium", "train", *GIVEN, "--out", "out", *words))
        assert code == 2, output
        assert told in output
        assert "Traceback" not in output
        assert not (problem / "out" / "model.safetensors").exists()
