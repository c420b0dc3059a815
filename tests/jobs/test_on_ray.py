"""Jobs on a real Ray cluster: whatever is killed, every row comes once, with the bits of one process."""

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.jobs.running import Request, Workers, run
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.models.features import weights_of
from tertium.prediction.exporting import export
from tertium.prediction.sharded import predict
from tertium.prediction.trained import Trained
from tests.jobs.toy import draw, rows, sizes

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="no ray")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: its clusters are on loopback
IMAGES = 1100  # five shards, the last of which is short


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    draw(folder / "photos", IMAGES)
    backbone = pretrained("test_resnet", "random", 32)
    model = Classifier(["cat", "dog", "fox"], backbone.width, backbone)
    model.head.weight.data.normal_()
    for name, frozen in (("tuned", None), ("frozen", weights_of(backbone))):
        (folder / name).mkdir()
        Trained(model.eval(), np.full(3, 0.5), frozen=frozen).save(folder / name)
    export(folder / "tuned", out=folder / "model.onnx")
    return folder


def contents(folder):
    """Return the bytes of all parts."""
    return {path.name: path.read_bytes() for path in sorted((folder / "parts").rglob("*.parquet"))}


def request(out, *workers, **how):
    return Request(str(out), Workers(*workers, **how), images=256)


def test_workers_give_the_same_parts_and_one_may_be_killed(world, tmp_path):
    """One cluster for all of it: starting one takes seconds."""
    from tertium.jobs.cluster import joined

    photos, model = world / "photos", world / "model.onnx"
    predict(model, photos, request=request(tmp_path / "one"))
    with joined(None):
        predict(model, photos, request=request(tmp_path / "many", "ray", actors=2))
        notes = tmp_path / "notes"
        done = run(sizes(photos, notes, deadly=2), request(tmp_path / "sizes", "ray", actors=2))
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert rows(done) == rows(run(sizes(photos), request(tmp_path / "here")))
    workers, shards = zip(*(line.split() for line in notes.read_text().splitlines()), strict=True)
    assert sorted(shards) == ["0", "1", "2", "2", "3", "4"]
    assert len({*workers}) >= 2
    assert str(os.getpid()) not in workers
    assert Path(f"{notes}.killed").exists()


# ---- slow --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tuned", "frozen"])
def test_models_in_torch(world, tmp_path, model):
    predict(world / model, world / "photos", request=request(tmp_path / "one"))
    predict(world / model, world / "photos", request=request(tmp_path / "many", "ray", actors=2))
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.slow
def test_a_shard_that_fails_in_a_worker(world, tmp_path):
    photos = draw(tmp_path / "photos", 600)
    (photos / "0300.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"1 of 3 shards failed.*0300\.png"):
        predict(world / "model.onnx", photos, request=request(tmp_path / "job", "ray"))
    assert "0300.png" in (tmp_path / "job" / "failures.csv").read_text()
    done = predict(world / "model.onnx", photos, request=request(tmp_path / "job", "ray"), skip_damaged=True)
    assert done.images == 599


def command(world, out, *more):
    words = ["predict", world / "model.onnx", "--images", world / "photos", "--out", f"{out}/", *more]
    return [sys.executable, "-m", "tertium", *map(str, [*words, "--shard-images", 256])]


@pytest.mark.slow
def test_the_driver_is_killed_and_started_again(world, tmp_path):
    words = command(world, tmp_path / "job", "--engine", "ray", "--actors", 2)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        while not list((tmp_path / "job").glob("done/*/*.json")):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "job" / "done").rglob("*.json")}
    time.sleep(5)  # workers notice that it is gone
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert f"1,100 images in 5 parts → {tmp_path}/job" in done.stdout
    assert "were done before" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before  # not done again
    predict(world / "model.onnx", world / "photos", request=request(tmp_path / "one"))
    assert contents(tmp_path / "job") == contents(tmp_path / "one")


@pytest.mark.slow
def test_the_raylet_of_a_second_machine_is_killed(world, tmp_path):
    from tests.jobs.test_cluster import machines

    notes = tmp_path / "notes"
    job = sizes(world / "photos", notes, images=256, seconds=1.0)
    with machines(1, 1) as (there, (_, second)):

        def kill():
            while len(list((tmp_path / "job").glob("done/*/*.json"))) < 2:
                time.sleep(0.05)
            second.kill_raylet()

        threading.Thread(target=kill, daemon=True).start()
        done = run(job, request(tmp_path / "job", "ray", address=there.address, actors=2))
    assert rows(done) == rows(run(sizes(world / "photos"), request(tmp_path / "here")))
    assert len({line.split()[0] for line in notes.read_text().splitlines()}) >= 2


@pytest.mark.slow
def test_addresses_and_models_that_are_not_there(world, tmp_path):
    words = command(world, tmp_path / "job", "--engine", "ray", "--address", "127.0.0.1:9")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Error: 127.0.0.1:9: no Ray cluster answers there" in " ".join(done.stderr.split())
    assert not list((tmp_path / "job").glob("parts/*"))
