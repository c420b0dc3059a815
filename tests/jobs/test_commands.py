"""Commands as large jobs give what they give without shards, to the last bit."""

import os
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.models.features import weights_of
from tertium.prediction.exporting import export
from tertium.prediction.trained import Trained
from tertium.prediction.using import predict
from tertium.training.train import train
from tests.jobs.toy import draw

IMAGES = 600
CLASSES = ["cat", "dog", "fox"]
SHARDS = ("--shard-images", 256)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Photos, and models of them: fine-tuned, with a frozen backbone, exported."""
    folder = tmp_path_factory.mktemp("world")
    draw(folder / "photos", IMAGES)
    with tarfile.open(folder / "photos.tar", "w") as archive:
        for name in sorted(os.listdir(folder / "photos")):
            archive.add(folder / "photos" / name, name)
    backbone = pretrained("test_resnet", "random", 32)
    model = Classifier(CLASSES, backbone.width, backbone)
    model.head.weight.data.normal_()
    for name, frozen in (("tuned", None), ("frozen", weights_of(backbone))):
        (folder / name).mkdir()
        Trained(model.eval(), np.full(3, 0.5), frozen=frozen).save(folder / name)
    export(folder / "tuned", out=folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A run of `auto` on features, whose labels are partly known, and a label file."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(1)
    features = rng.normal(size=(900, 6)).astype(np.float32)
    truth = np.where(rng.random((900, 4)) < 1 / (1 + np.exp(1 - 3 * features[:, :4])), 1, -1)
    known = np.where(rng.random(truth.shape) < 0.4, truth, 0).astype(np.int8)
    images = [f"{number:04d}.jpg" for number in range(900)]
    labels = Labels.from_dense(known, classes=["bee", "cat", "dog", "fox"], images=images)
    np.save(folder / "x.npy", features)
    write_labels(labels, folder / "labels.parquet")
    train(labels[:600], features=features[:600], out=folder / "run", method="auto", epochs=10, lr=0.01)
    return folder


@pytest.fixture
def ends(tertium):
    """Run a command that must end with this code; return what it says."""

    def call(*words, code=0):
        found, said, errors = tertium(*words)
        assert found == code, errors
        return " ".join((said + errors).split())

    return call


@pytest.mark.parametrize("model", ["tuned", "frozen", "model.onnx"])
@pytest.mark.parametrize("joined", ["all.parquet", "all.csv"])
def test_predictions_are_the_same_file(world, tmp_path, ends, model, joined):
    words = ("predict", world / model, "--images", world / "photos")
    ends(*words, "--out", tmp_path / joined)
    said = ends(*words, "--out", f"{tmp_path}/job/", "--join", tmp_path / f"joined-{joined}", *SHARDS)
    assert f"600 images in 3 parts → {tmp_path}/job" in said
    assert (tmp_path / joined).read_bytes() == (tmp_path / f"joined-{joined}").read_bytes()


def test_predictions_of_archives_and_of_named_images(world, tmp_path, ends):
    wanted = predict(world / "tuned", world / "photos")
    ends("predict", world / "tuned", "--images", world / "photos.tar", "--out", f"{tmp_path}/tar/", *SHARDS)
    found = pq.read_table(tmp_path / "tar" / "parts")
    assert found["image"].to_pylist() == wanted.images
    matrix = np.stack([found[name].to_numpy() for name in CLASSES], axis=1)
    assert (matrix == wanted.probabilities).all()
    labels = Labels.from_dense(np.ones((300, 3), np.int8), classes=CLASSES, images=wanted.images[::-2])
    write_labels(labels, tmp_path / "labels.csv")
    words = ("--images", world / "photos.tar", "--labels", tmp_path / "labels.csv", "--top", 2)
    ends("predict", world / "tuned", *words, "--out", tmp_path / "one.csv")
    parts = ("--out", f"{tmp_path}/parts/", "--join", tmp_path / "all.csv", *SHARDS)
    ends("predict", world / "tuned", *words, *parts)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "all.csv").read_bytes()


def test_damaged_images_are_left_out_and_listed(world, tmp_path, ends):
    shutil.copytree(world / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "0300.png").write_bytes(b"no image")
    words = ("predict", world / "tuned", "--images", tmp_path / "photos", "--out")
    said = ends(*words, f"{tmp_path}/job/", *SHARDS, code=2)
    assert "1 of 3 shards failed, listed in" in said
    assert "0300.png" in said
    assert "the same command tries them again" in said
    said = ends(*words, f"{tmp_path}/job/", "--skip-damaged", *SHARDS)  # goes on with what is missing
    assert "goes on after 2 of 3 shards that were done before" in said
    assert "Left out: 1 image of 600 that cannot be read" in said
    wanted = predict(world / "tuned", tmp_path / "photos", skip_damaged=True)
    found = pq.read_table(tmp_path / "job" / "parts")
    assert found["image"].to_pylist() == wanted.images
    matrix = np.stack([found[name].to_numpy() for name in CLASSES], axis=1)
    assert np.abs(matrix - wanted.probabilities).max() < 1e-6  # other batches: other last bits
    assert (tmp_path / "job" / "failures.csv").read_text().startswith("shard,image,why\n1,0300.png,")


def test_features_are_the_same_array(world, tmp_path, ends):
    shutil.copytree(world / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "0300.png").write_bytes(b"no image")
    network = ("--backbone", "test_resnet", "--weights", "random", "--image-size", 32)
    words = ("features", "--images", tmp_path / "photos", *network)
    ends(*words, "--out", tmp_path / "one.npy")
    said = ends(*words, "--out", f"{tmp_path}/job/", "--join", tmp_path / "all.npy", *SHARDS)
    assert "599 images in 3 parts" in said
    for name in ("{}.npy", "{}.npy.json", "{}.npy.broken.txt"):
        one, parts = ((tmp_path / name.format(each)).read_bytes() for each in ("one", "all"))
        assert one == parts, name
    said = ends(*words, "--out", f"{tmp_path}/job/", *SHARDS, "--image-size", 64, code=2)
    assert "was begun with another image_size (32, now 64)" in said


def test_figures_are_the_same(labelled, tmp_path, ends):
    """Among them those of images that the run has seen, which are 600 of the 900."""
    words = ("evaluate", labelled / "run", "--labels", labelled / "labels.parquet")
    words = (*words, "--features", labelled / "x.npy")
    one = ends(*words, "--out", tmp_path / "one.json")
    parts = ends(*words, "--out", f"{tmp_path}/job/", *SHARDS)
    for ending in ("json", "csv"):
        assert (tmp_path / f"one.{ending}").read_text() == (
            tmp_path / "job" / f"evaluation.{ending}"
        ).read_text()
    shown = one[: one.index("Figures:")]
    assert "trained or validated on 600 of these images" in shown
    assert shown in parts
    table = pq.read_table(tmp_path / "job" / "parts")
    assert table.column_names == ["image", "label", "probability", "present"]


@pytest.mark.parametrize("more", [(), ("--precision", 0.7), ("--alone",)])
def test_completed_labels_are_the_same(labelled, tmp_path, ends, more):
    words = ("complete", labelled / "run", "--labels", labelled / "labels.parquet")
    words = (*words, "--features", labelled / "x.npy", *more)
    filled = ("--filled", tmp_path / "one-filled.csv") if "--precision" in more else ()
    one = ends(*words, *filled, "--out", tmp_path / "one.parquet")
    filled = ("--filled", tmp_path / "all-filled.csv") if filled else ()
    join = ("--join", tmp_path / "all.parquet")
    parts = ends(*words, *filled, "--out", f"{tmp_path}/job/", *join, *SHARDS)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "all.parquet").read_bytes()
    counted = one.split(" → ")[0]  # how many are unknown, and how many of them present
    assert "unknown labels, " in counted
    assert counted in parts
    if filled:
        thresholds = (tmp_path / "job" / "thresholds.csv").read_text()
        assert thresholds == (tmp_path / "one-thresholds.csv").read_text()
        assert (tmp_path / "one-filled.csv").read_text() == (tmp_path / "all-filled.csv").read_text()


def test_parts_by_processes_of_their_own(labelled, tmp_path, ends):
    words = ("predict", labelled / "run", "--features", labelled / "x.npy")
    ends(*words, "--out", tmp_path / "one.parquet")
    job = (*words, "--out", f"{tmp_path}/job/", "--join", tmp_path / "all.parquet", *SHARDS)
    said = ends(*job, "--part", "1/2")
    assert "2 of 4 shards are left to the others" in said
    assert not (tmp_path / "all.parquet").exists()
    ends(*job, "--part", "2/2")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "all.parquet").read_bytes()


@pytest.mark.slow
def test_processes_that_devices_starts(labelled, tmp_path):
    words = ["predict", labelled / "run", "--features", labelled / "x.npy", "--out"]

    def call(*more):
        command = [sys.executable, "-m", "tertium", *map(str, [*words, *more])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(tmp_path / "one.parquet")
    said = call(f"{tmp_path}/job/", "--join", tmp_path / "all.parquet", *SHARDS, "--devices", 3)
    assert said.count("900 images in 4 parts") == 1
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "all.parquet").read_bytes()


def test_options_that_do_not_go_together(labelled, tmp_path, ends):
    words = ("predict", labelled / "run", "--features", labelled / "x.npy", "--out")
    said = ends(*words, tmp_path / "a.csv", "--engine", "ray", code=2)
    assert "--engine is about a job in parts: let --out be a folder, such as parts/" in said
    said = ends(*words, f"{tmp_path}/job/", "--actors", 2, code=2)
    assert "add --engine ray" in said
    said = ends(*words, f"{tmp_path}/job/", "--part", "3/2", code=2)
    assert '--part is such as 2/8, the second of eight, not "3/2"' in said
    said = ends(*words, f"{tmp_path}/job/", "--engine", "ray", "--part", "1/2", code=2)
    assert "a cluster shares the work by itself" in said
    (tmp_path / "mine.csv").write_text("mine")
    said = ends(*words, f"{tmp_path}/job/", "--join", tmp_path / "mine.csv", code=2)
    assert "mine.csv: already exists" in said
    assert not (tmp_path / "job").exists()
    said = ends(*words, f"{tmp_path}/", code=2)
    assert "has other files in it (mine.csv)" in said
