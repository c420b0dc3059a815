"""A prediction that was ended goes on, and its file is the same as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tertium.errors import InputError
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.prediction.exporting import export
from tertium.prediction.trained import Trained
from tertium.prediction.using import predict
from tertium.progress import Progress

IMAGES = 600  # three blocks of a run, the last of which is short


class Told(Progress):
    """What was said, and how many images were predicted."""

    def __init__(self):
        self.notes, self.images = [], None

    def note(self, text):
        self.notes.append(text)

    def start(self, what, total=None, unit=""):
        if what == "predicting":
            self.images = total


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    backbone = pretrained("test_resnet", "random", 32)
    model = Classifier(["cat", "dog", "fox"], backbone.width, backbone)
    model.head.weight.data.normal_()
    Trained(model.eval(), np.full(3, 0.5)).save(folder)
    return folder


def break_off(run, photos, out, at, **options):
    """Predict until a damaged image; then mend it."""
    image = photos / f"{at:03d}.png"
    whole = image.read_bytes()
    image.write_bytes(whole[:40])
    try:
        with pytest.raises(InputError, match=f"{at:03d}.png"):
            predict(run, photos, out=out, **options)
    finally:
        image.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "top"), [("p.csv", None), ("p.parquet", None), ("p.csv", 2), ("p.parquet", 2)]
)
def test_the_file_is_the_same_bit_for_bit(run, photos, tmp_path, name, top):
    whole = tmp_path / f"whole-{name}"
    predict(run, photos, out=whole, top=top)
    out, told = tmp_path / name, Told()
    break_off(run, photos, out, 520, top=top)
    assert not out.exists()
    assert [each.name for each in tmp_path.glob("*.partial/*")] == ["0-of-1"]
    predict(run, photos, out=out, top=top, progress=told)
    assert told.notes == ["goes on after 512 images that were predicted before"]
    assert told.images == IMAGES - 512
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, whole.name])


@pytest.mark.parametrize("change", ["cut", "byte", "image", "renamed", "other columns", "other model"])
def test_what_has_changed_is_predicted_again(run, photos, tmp_path, change):
    out, told, top = tmp_path / "p.csv", Told(), None
    break_off(run, photos, out, 520)
    kept = tmp_path / "p.csv.partial" / "0-of-1"
    content = bytearray(kept.read_bytes())
    old = photos / "300.png"
    before = old.read_bytes()
    try:
        if change == "cut":
            kept.write_bytes(content[:-5])
        elif change == "byte":
            content[-50] ^= 1
            kept.write_bytes(content)
        elif change == "image":
            Image.new("RGB", (8, 8), "red").save(old)
        elif change == "renamed":
            old.rename(photos / "300a.png")
        elif change == "other columns":
            top = 1
        else:
            other, run = Trained.load(run), tmp_path / "other"
            other.model.head.weight.data.neg_()
            run.mkdir()
            other.save(run)
        predict(run, photos, out=out, top=top, progress=told)
        predict(run, photos, out=tmp_path / "whole.csv", top=top)
    finally:
        (photos / "300a.png").unlink(missing_ok=True)
        old.write_bytes(before)
    wanted = 0 if change.startswith("other") else 256
    assert told.images == IMAGES - wanted
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_failure_in_the_first_block_leaves_nothing(run, photos, tmp_path):
    break_off(run, photos, tmp_path / "p.csv", 3)
    assert list(tmp_path.iterdir()) == []


class Full:
    """A file on a disk that becomes full at its second block."""

    def __init__(self, path, mode):
        self.file, self.writes = open(path, mode), 0  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        self.writes += 1
        if self.writes == 5:
            raise OSError(28, "No space left on device")
        self.file.write(content)


def test_a_full_disk_ends_the_keeping_alone(run, photos, tmp_path, monkeypatch):
    predict(run, photos, out=tmp_path / "whole.csv")
    monkeypatch.setattr("tertium.prediction.keeping.open", Full, raising=False)
    predict(run, photos, out=tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_features_are_not_kept(tmp_path):
    model = Classifier(["cat"], 4)
    (tmp_path / "run").mkdir()
    Trained(model.eval(), np.full(1, 0.5)).save(tmp_path / "run")
    rows = np.zeros((600, 4), dtype=np.float32)
    rows[590] = np.nan
    with pytest.raises(InputError, match="row 590"):
        predict(tmp_path / "run", features=rows, out=tmp_path / "p.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_a_killed_command_goes_on(run, photos, tmp_path):
    export(run, out=tmp_path / "model.onnx")
    words = [sys.executable, "-m", "tertium", "predict", "model.onnx", "--images", str(photos), "--out"]
    options = {
        "cwd": tmp_path,
        "capture_output": True,
        "text": True,
        "env": os.environ | {"OMP_NUM_THREADS": "1"},
    }
    whole = subprocess.run([*words, "whole.csv"], **options, check=False)
    assert whole.returncode == 0, whole.stderr
    started = subprocess.Popen(
        [*words, "p.csv"],
        cwd=tmp_path,
        env=options["env"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    kept = tmp_path / "p.csv.partial" / "0-of-1"
    while started.poll() is None and not (kept.is_file() and kept.stat().st_size > 2000):
        time.sleep(0.001)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert started.returncode == -signal.SIGKILL, "it was quicker than the test"
    assert not (tmp_path / "p.csv").exists()
    again = subprocess.run([*words, "p.csv"], **options, check=True)
    assert "goes on after" in again.stderr
    assert again.stdout == whole.stdout.replace("whole", "p")
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not kept.parent.exists()
