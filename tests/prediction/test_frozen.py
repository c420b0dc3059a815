"""A model whose backbone was not trained uses the features that training has left in the cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tertium.data.pictures import SourcePictures
from tertium.data.scenes import render
from tertium.errors import InputError
from tertium.labelling.completion import complete
from tertium.labelling.suggesting import suggest
from tertium.models import features as extracting
from tertium.models.features import Extractor, weights_of
from tertium.prediction.trained import Trained
from tertium.prediction.using import evaluate, predict
from tertium.schemes import parse
from tertium.training.train import train

COUNT, SIZE = 40, 32
SETTINGS = {"backbone": "test_resnet", "weights": "random", "image_size": SIZE, "method": "negative"}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    drawn = render(COUNT, size=SIZE)
    for name, pixels in zip(drawn.labels.images.to_pylist(), drawn.images, strict=True):
        Image.fromarray(pixels).save(folder / name)
    return folder, parse("random:0.5").apply(drawn.labels, 0)


@pytest.fixture
def run(scenes, tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_CACHE", str(tmp_path / "cache"))
    images, labels = scenes
    train(labels, images, out=tmp_path / "run", config=SETTINGS, epochs=2, workers=0)
    return tmp_path / "run"


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that are decoded."""
    names, plain = [], SourcePictures.open

    def noticed(self, row, *more):
        names.append(self.names[row])
        return plain(self, row, *more)

    monkeypatch.setattr(SourcePictures, "open", noticed)
    return names


def test_no_image_is_decoded_again_after_training(run, scenes, decoded, tmp_path):
    images, labels = scenes
    complete(run, labels, images, out=tmp_path / "completed.csv")
    suggest(run, labels, images, budget=5)
    predict(run, images)
    evaluate(run, labels, images)
    assert decoded == []


def test_a_new_image_is_decoded_once(run, scenes, decoded, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes((scenes[0] / "scene-000000.png").read_bytes())
    Image.fromarray(render(1, seed=7, size=SIZE).images[0]).save(tmp_path / "new" / "b.png")
    first, second = predict(run, tmp_path / "new"), predict(run, tmp_path / "new")
    assert decoded == ["b.png"]
    np.testing.assert_array_equal(first.probabilities, second.probabilities)


def test_the_numbers_are_those_that_training_saw(run, scenes):
    trained = Trained.load(run)
    pictures = trained.inputs(scenes[0], None, None).pictures
    features = Extractor(trained.model.backbone, device=torch.device("cpu"))(pictures)
    on_features = Trained(trained.model.on_features(), trained.thresholds)
    found = trained.predict_proba(scenes[0])
    np.testing.assert_array_equal(found, on_features.predict_proba(features=features))
    whole = replace(trained, frozen=None).predict_proba(scenes[0])  # through the network, in float32
    np.testing.assert_allclose(found, whole, atol=2e-3)


def test_windows_and_a_cache_that_is_off_give_the_same(run, scenes, monkeypatch):
    trained = Trained.load(run)
    whole = trained.predict_proba(scenes[0])
    monkeypatch.setattr(extracting, "_WINDOW", 7)
    np.testing.assert_allclose(trained.predict_proba(scenes[0]), whole, rtol=1e-6)
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    np.testing.assert_allclose(trained.predict_proba(scenes[0]), whole, rtol=1e-6)


def test_another_backbone_does_not_use_the_cache(run, scenes, decoded):
    trained = Trained.load(run)
    assert trained.frozen == weights_of(trained.model.backbone)
    with torch.no_grad():
        next(trained.model.backbone.parameters()).mul_(1.01)
    trained.predict_proba(scenes[0])
    assert len(decoded) == COUNT


def test_a_trained_backbone_is_not_called_frozen(scenes, tmp_path):
    images, labels = scenes
    settings = SETTINGS | {"protocol": "finetune", "workers": 0, "epochs": 1}
    train(labels, images, out=tmp_path / "run", config=settings)
    assert Trained.load(tmp_path / "run").frozen is None


def test_a_damaged_image_is_named(run, scenes, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"a\.png"):
        predict(run, tmp_path / "new")
