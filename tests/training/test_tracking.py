"""Trackers get settings, figures and the report; one that fails stops nothing."""

import gc

import numpy as np
import pytest

from tertium import train
from tertium.config import settings_from
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.runs import RunFolder
from tertium.training import tracking
from tertium.training.session import Session
from tertium.training.tracking import Trackers


@pytest.fixture
def data(rng):
    features = rng.normal(size=(60, 4))
    return Labels.from_dense(np.where(features[:, :2] > 0, 1, -1)), features


class Heard:
    """A logger that remembers."""

    def __init__(self, fails=()):
        self.fails, self.settings, self.metrics, self.ended = fails, {}, [], False

    def _may(self, what):
        if what in self.fails:
            raise OSError(f"no {what} today\nand more")

    def log_hyperparams(self, settings):
        self._may("settings")
        self.settings = settings

    def log_metrics(self, figures, step=None):
        self._may("figures")
        self.metrics.append((step, figures))

    def finalize(self, status):
        self.ended = status == "success"


def sessions():
    return sum(type(each) is Session for each in gc.get_objects())


def test_a_tracker_hears_everything(data, tmp_path, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(tracking, "_opened", lambda name, folder: heard)
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    labels, features = data
    before = sessions()
    outcome = train(labels, features=features, out=tmp_path / "run", epochs=3, log="wandb", seed=4)
    assert (heard.settings["seed"], heard.settings["head.epochs"]) == (4, 3)
    epochs = [step for step, _ in heard.metrics[:-1]]
    assert epochs == [1, 2, 3][: len(outcome.records)]
    assert heard.metrics[0][1]["head/loss"] == outcome.records[0]["loss"]
    assert heard.metrics[-1][1]["summary/validation_score"] == outcome.summary["validation_score"]
    assert heard.ended
    assert sessions() == before  # no session is kept, with its features


@pytest.mark.parametrize("what", ["settings", "figures"])
def test_a_tracker_that_fails_stops_nothing(data, tmp_path, monkeypatch, what):
    monkeypatch.setattr(tracking, "_opened", lambda name, folder: Heard([what]))
    monkeypatch.setattr(tracking, "find_spec", lambda name: True)
    labels, features = data
    train(labels, features=features, out=tmp_path / "run", epochs=2, log="mlflow")
    said = RunFolder(tmp_path / "run").log_file.read_text()
    assert said.count("mlflow failed and gets nothing more") == 1
    assert f"(no {what} today)" in said


def test_one_that_cannot_be_opened_is_left_out(tmp_path, monkeypatch):
    def refuse(name, folder):
        raise ConnectionError("nobody there")

    said = []
    monkeypatch.setattr(tracking, "_opened", refuse)
    trackers = Trackers(["wandb"], tmp_path, said.append)
    trackers.begin({})
    trackers.epoch("head", {"epoch": 1, "loss": 0.5})
    trackers.attach(tmp_path / "report.html")
    assert said == ["Note: wandb failed and gets nothing more (nobody there)."]


def test_tensorboard_keeps_the_curves(tertium, tmp_path, data):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tertium.labels.readers import write_labels

    labels, features = data
    write_labels(labels, tmp_path / "labels.csv")
    np.save(tmp_path / "x.npy", features)
    words = ["train", "--labels", tmp_path / "labels.csv", "--features", tmp_path / "x.npy"]
    words += ["--out", tmp_path / "run", "--log", "tensorboard", "epochs=3", "patience=9"]
    code, _, errors = tertium(*words)
    assert code == 0, errors
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tracking" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("head/loss")] == [1, 2, 3]
    code, _, errors = tertium(*words, "--overwrite")  # what a tracker has kept is the run's
    assert code == 0, errors


def test_words_that_name_no_tracker(data, tmp_path):
    labels, features = data
    with pytest.raises(InputError, match='no tracker "tensorbord"; did you mean "tensorboard"'):
        settings_from({"log": "mlflow,tensorbord"})
    with pytest.raises(InputError, match="log needs a run folder"):
        train(labels, features=features, log="tensorboard")


def test_a_tracker_that_is_not_installed_is_said_before_training(data, tmp_path, monkeypatch):
    labels, features = data
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"log=wandb needs a package .*: pip install wandb"):
        train(labels, features=features, out=tmp_path / "run", log="wandb")
    assert not (tmp_path / "run").exists()
