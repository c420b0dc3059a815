"""Evaluating and predicting in several processes on this machine, started by --devices and by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tertium.labels import Labels
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.prediction.trained import Trained
from tests.prediction.test_trained import trained_on

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
PATIENCE = 120  # seconds that starting processes may take on a busy machine


def environment():
    """Without what torchrun or a test runner may have set."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return kept | {"OMP_NUM_THREADS": "1"}


def run(*words):
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on features, 1,000 rows of them, and labels of which half are known."""
    path = tmp_path_factory.mktemp("processes")
    rng = np.random.default_rng(0)
    classes = ["cat", "dog", "fox", "owl", "yak"]
    np.save(path / "x.npy", rng.normal(size=(1000, 8)).astype(np.float32))
    truth = rng.choice(np.array([-1, 0, 1], dtype=np.int8), size=(1000, 5), p=[0.4, 0.5, 0.1])
    Labels.from_dense(truth, classes=classes).save(path / "labels.arrow")
    (path / "run").mkdir()
    trained_on(8, classes).save(path / "run")
    return path


def test_predictions_are_those_of_one_process(folder, tmp_path):
    words = ("predict", folder / "run", "--features", folder / "x.npy", "--out")
    one = run(sys.executable, "-m", "tertium", *words, tmp_path / "one.csv")
    two = run(sys.executable, "-m", "tertium", *words, tmp_path / "two.csv", "--devices", 2)
    three = run(*TORCHRUN, 3, "-m", "tertium", *words, tmp_path / "three.csv")
    for done, name in ((one, "one"), (two, "two"), (three, "three")):
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"1,000 images × 5 classes → {tmp_path / name}.csv"]
        assert (tmp_path / f"{name}.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert len(list(tmp_path.iterdir())) == 3
    assert two.stderr.count("predicting:") == 1  # one of them talks


def test_an_evaluation_is_that_of_one_process(folder, tmp_path):
    words = ("evaluate", folder / "run", "--features", folder / "x.npy", "--labels", folder / "labels.arrow")
    one = run(sys.executable, "-m", "tertium", *words, "--out", tmp_path / "one.json")
    two = run(*TORCHRUN, 2, "-m", "tertium", *words, "--out", tmp_path / "two.json")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert json.loads((tmp_path / "one.json").read_text())["scored"] == 5
    assert one.stdout.replace("one.", "two.") == two.stdout
    assert len(list(tmp_path.iterdir())) == 4


def test_a_mistake_is_said_once(folder, tmp_path):
    words = ("predict", folder / "run", "--features", tmp_path / "none.npy", "--out", tmp_path / "p.csv")
    done = run(sys.executable, "-m", "tertium", *words, "--devices", 2)
    assert done.returncode == 2
    assert f"Error: {tmp_path / 'none.npy'}: no such file\n" in done.stderr
    assert done.stderr.count("Error") == 1  # a process that is ended at its start may add a line of C++'s
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run on images, and 300 of them: the last 44 are the share of the second process."""
    path = tmp_path_factory.mktemp("photos")
    backbone = pretrained(weights="random", size=32)
    model = Classifier(["cat", "dog"], backbone.width, backbone)
    (path / "run").mkdir()
    Trained(model.eval(), np.full(2, 0.5)).save(path / "run")
    (path / "new").mkdir()
    for number in range(300):
        Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(path / "new" / f"{number:03d}.png")
    return path


def start(photos, out):
    words = ("predict", photos / "run", "--images", photos / "new", "--out", out, "--devices", "2")
    return subprocess.Popen(
        [sys.executable, "-m", "tertium", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def test_a_process_that_fails_ends_all(photos, tmp_path):
    damaged = photos / "new" / "290.png"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:40])
    try:
        out, errors = start(photos, tmp_path / "p.csv").communicate(timeout=PATIENCE)
    finally:
        damaged.write_bytes(whole)
    assert out == ""
    said = [line for line in errors.splitlines() if not line.startswith("predicting:")]
    assert len(said) == 1
    assert said[0].startswith(f"Error: {damaged}: not an image that can be read")
    assert not set(tmp_path.iterdir()) - {tmp_path / "p.csv.partial"}  # what the next attempt goes on with


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before it joins", marks=pytest.mark.slow),
        pytest.param("as the folder is shared", marks=pytest.mark.slow),
        "at work",
    ],
)
def test_a_process_that_is_killed_ends_all(photos, tmp_path, moment):
    """The second process is killed; at work, it waits for an image that never comes."""
    slow = photos / "new" / "280.png"
    whole = slow.read_bytes()
    slow.unlink()
    os.mkfifo(slow)
    try:
        parent = start(photos, tmp_path / "p.csv")
        second = _second(parent.pid)
        while moment != "before it joins" and not list(tmp_path.glob(".tertium-*")):
            time.sleep(0.001)
        if moment == "at work":
            time.sleep(1)
        os.kill(second, signal.SIGKILL)
        since = time.monotonic()
        _, errors = parent.communicate(timeout=PATIENCE)
        taken = time.monotonic() - since
    finally:
        slow.unlink()
        slow.write_bytes(whole)
    assert parent.returncode == 2
    assert "Error: process 1 of 2 ended with signal 9; the others were stopped\n" in errors
    assert "Traceback" not in errors
    assert taken < 30
    assert not set(tmp_path.iterdir()) - {tmp_path / "p.csv.partial"}  # what the next attempt goes on with


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("launcher", signal.SIGTERM),
        (0, signal.SIGKILL),
        pytest.param("launcher", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("launcher", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_whoever_is_ended_nothing_runs_on_and_nothing_is_left(photos, tmp_path, whom, number):
    """While files are half-written. A launcher that is killed cannot sweep: process 0 removes its own."""
    parent = start(photos, tmp_path / "p.csv")
    children = [_child(parent.pid, rank) for rank in (0, 1)]
    until = time.monotonic() + PATIENCE
    while not list(tmp_path.glob(".p-*")):
        assert parent.poll() is None
        assert time.monotonic() < until
        time.sleep(0.001)
    os.kill(parent.pid if whom == "launcher" else children[whom], number)
    _, errors = parent.communicate(timeout=PATIENCE)
    while any(_is_running(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not set(tmp_path.iterdir()) - {tmp_path / "p.csv.partial"}  # what the next attempt goes on with
    assert "Traceback" not in errors
    if whom == 0:
        assert parent.returncode == 2
        assert "Error: process 0 of 2 ended with signal 9; the others were stopped\n" in errors
    elif number != signal.SIGKILL:
        assert parent.returncode == 128 + number


def _is_running(process):
    try:
        with open(f"/proc/{process}/stat") as about:
            return about.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _second(parent):
    return _child(parent, 1)


def _child(parent, rank):
    """Return the id of the child that has this rank, once it is there."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with open(f"/proc/{parent}/task/{parent}/children") as listed:
            children = listed.read().split()
        for child in children:
            with open(f"/proc/{child}/environ", "rb") as variables:
                if f"\0RANK={rank}\0".encode() in b"\0" + variables.read() + b"\0":
                    return int(child)
        time.sleep(0.1)
    raise AssertionError(f"process {rank} did not start")
