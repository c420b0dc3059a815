"""A model written for others gives the same numbers there, and says all that one must know to use it."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from tertium.errors import InputError
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.prediction import exporting
from tertium.prediction.exported import Exported
from tertium.prediction.exporting import export_onnx, export_timm
from tertium.prediction.trained import Trained
from tertium.runs import RunData, RunFolder

CLASSES = ["cat", "naïve dog", 'a "fox", red', "owl"]


def random_head(model):
    torch.nn.init.normal_(model.head.weight, std=0.1)
    torch.nn.init.normal_(model.head.bias)
    model.center.normal_()
    model.scale.uniform_(0.5, 2)
    return model.eval()


def colours(count, size):
    """Images that an untrained network tells apart: each of one colour, with some noise."""
    rng = np.random.default_rng(1)
    base = rng.integers(0, 200, size=(count, 1, 1, 3))
    return (base + rng.integers(0, 56, size=(count, size, size, 3))).astype(np.uint8)


def save_run(folder, name="test_efficientnet", size=32, boost=1.0):
    """A run folder with an untrained model; its weights are random everywhere."""
    folder.mkdir()
    backbone = pretrained(name, "random", size)
    model = random_head(Classifier(CLASSES, backbone.width, backbone, boost))
    for module in model.modules():  # an untrained normalisation does nothing
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    with torch.no_grad():  # features of which no two images have the same
        model.standardise(backbone.eval()(torch.from_numpy(colours(16, size)).permute(0, 3, 1, 2)).numpy())
    trained = Trained(model, np.array([0.25, 0.5, 0.75, 1.0]))
    trained.save(folder)
    return trained


def save_feature_run(folder, width=6):
    folder.mkdir()
    trained = Trained(random_head(Classifier(CLASSES, width)), np.full(4, 0.5))
    trained.save(folder)
    return trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a model of images and the file made of it."""
    folder = tmp_path_factory.mktemp("exporting") / "first"
    torch.manual_seed(0)
    trained = save_run(folder)
    check = export_onnx(folder, folder / "model.onnx")
    return SimpleNamespace(folder=folder, trained=trained, file=folder / "model.onnx", check=check)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, pixels in enumerate(colours(7, 40)):
        image = Image.fromarray(pixels[: 20 + number])
        if number % 2:
            image.save(folder / f"{number}.png")
        else:
            image.convert("L" if number == 4 else "RGB").save(folder / f"{number}.jpg")
    return folder


# ---- ONNX ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 11])
def test_images_of_any_number_give_what_the_model_gives(run, rng, count):
    images = rng.permutation(colours(count, 32))
    with torch.inference_mode():
        logits = run.trained.model(torch.from_numpy(images).permute(0, 3, 1, 2))
    session = onnxruntime.InferenceSession(run.file)
    assert [each.name for each in session.get_outputs()] == ["probabilities", "logits"]
    found = session.run(None, {"images": images})
    np.testing.assert_allclose(found[1], logits.numpy(), atol=1e-4 * max(1, logits.abs().max()))
    np.testing.assert_allclose(found[0], logits.sigmoid().numpy(), atol=1e-4)
    assert count == 1 or np.ptp(found[0], axis=0).min() > 1e-2


def test_a_place_is_not_taken_for_a_kind(tmp_path):
    with pytest.raises(InputError, match=r'to onnx or safetensors, not to "model\.onnx"; its place is out'):
        exporting.export(tmp_path, "model.onnx")


def test_the_file_says_all_that_one_must_know(run):
    said = onnxruntime.InferenceSession(run.file).get_modelmeta().custom_metadata_map
    assert json.loads(said["classes"]) == CLASSES
    assert json.loads(said["thresholds"]) == [0.25, 0.5, 0.75, 1.0]
    assert (said["kind"], said["backbone"], said["run"]) == ("images", "test_efficientnet", "first")
    assert (said["image_size"], said["tertium_format"]) == ("32", "2")
    assert said["weights"] == json.loads((run.folder / "model.json").read_text())["weights"]
    assert said["preprocessing"] == "RGB, squashed to 32 × 32 by Pillow's bicubic filter"
    assert (said["filter"], said["crop"]) == ('"bicubic"', "null")
    assert json.loads(said["source"]) == {"weights": "random"}
    assert said["tertium"]


def test_features(tmp_path, rng):
    trained = save_feature_run(tmp_path / "run")
    export_onnx(tmp_path / "run", tmp_path / "m.onnx")
    features = rng.normal(size=(5, 6)).astype(np.float32)
    found = Exported.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        found.probabilities(features), trained.predict_proba(features=features), atol=1e-6
    )
    assert (found.size, found.width, found.classes) == (0, 6, tuple(CLASSES))


def test_boost_is_exported_as_it_is_computed(tmp_path):
    trained = save_run(tmp_path / "run", size=64, boost=5.0)
    export_onnx(tmp_path / "run", tmp_path / "m.onnx")
    images = colours(3, 64)
    plain = Classifier(CLASSES, trained.model.width, trained.model.backbone)
    plain.load_state_dict(trained.model.state_dict())
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.inference_mode():
        boosted, bare = (model.eval()(pixels).sigmoid().numpy() for model in (trained.model, plain))
    found = Exported.load(tmp_path / "m.onnx").probabilities(images)
    np.testing.assert_allclose(found, boosted, atol=1e-4)
    assert np.abs(found - bare).max() > 1e-2
    with pytest.raises(InputError, match="boost=5, which timm's models do not compute"):
        export_timm(tmp_path / "run", tmp_path / "m.safetensors")


def test_the_inputs_of_the_run_are_compared_too(run, photos, tmp_path):
    assert run.check.real == 0
    RunFolder(run.folder).write_config({}, RunData(images=str(photos)))
    assert export_onnx(run.folder, tmp_path / "m.onnx").real == 7
    RunFolder(run.folder).write_config({}, RunData(images=str(tmp_path / "gone")))
    assert export_onnx(run.folder, tmp_path / "m.onnx").real == 0
    (run.folder / "config.json").unlink()


@pytest.mark.parametrize(("width", "real"), [(6, 16), (5, 0)])
def test_features_of_the_run_are_compared_too(tmp_path, rng, width, real):
    save_feature_run(tmp_path / "run")
    np.save(tmp_path / "x.npy", rng.normal(size=(20, width)).astype(np.float16))
    RunFolder(tmp_path / "run").write_config({}, RunData(features=str(tmp_path / "x.npy")))
    assert export_onnx(tmp_path / "run", tmp_path / "m.onnx").real == real


def test_a_file_with_other_numbers_is_not_kept(run, tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_text("as it was")
    monkeypatch.setattr(Exported, "probabilities", lambda self, inputs: np.full((len(inputs), 4), 0.5))
    with pytest.raises(InputError, match=r"m\.onnx: not kept, its probabilities differ"):
        export_onnx(run.folder, tmp_path / "m.onnx")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("m.onnx", "as it was")]
    monkeypatch.setattr(exporting, "_timm_difference", lambda *_: float("nan"))
    with pytest.raises(InputError, match=r"m\.safetensors: not kept"):
        export_timm(run.folder, tmp_path / "m.safetensors")
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_converted_is_named_as_it_was_given(run, tmp_path, monkeypatch):
    def fail(module, example, path, **_):
        raise InputError(f"{path}: the {type(module).__name__} gives other numbers")

    monkeypatch.setattr(exporting, "convert", fail)
    with pytest.raises(InputError, match=f"^{tmp_path / 'm.onnx'}: the ImageClassifier"):
        export_onnx(run.folder, tmp_path / "m.onnx")


# ---- weights for timm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "test_vit", "test_convnext"])
def test_timm_loads_the_weights(tmp_path, name):
    trained = save_run(tmp_path / "run", name, 160 if name == "test_vit" else 64)
    export_timm(tmp_path / "run", tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        said = file.metadata()
    theirs = timm.create_model(said["backbone"], num_classes=len(json.loads(said["classes"]))).eval()
    theirs.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    size = int(said["image_size"])
    images = torch.from_numpy(colours(3, size)).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(json.loads(said[key])).view(3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        found, wanted = theirs((images - mean) / std), trained.model(255 * images)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted.max(dim=0).values - wanted.min(dim=0).values).min() > 0.1
    assert (json.loads(said["thresholds"]), said["format"]) == ([0.25, 0.5, 0.75, 1.0], "pt")


def test_a_network_that_does_not_end_in_one_layer(tmp_path):
    trained = save_run(tmp_path / "run")
    backbone = trained.model.backbone
    # Its classifier begins with a normalisation.
    backbone.recipe = replace(backbone.recipe, name="levit_128s", architecture="levit_128s")
    with pytest.raises(InputError, match="levit_128s does not end in one linear layer"):
        exporting._timm_state(trained.model, backbone)


# ---- mistakes --------------------------------------------------------------------------------------------


def test_places_that_cannot_be(run, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export_onnx(run.folder, tmp_path / "model.pt")
    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        export_onnx(run.folder, tmp_path / "no" / "model.onnx")
    with pytest.raises(InputError, match="no trained model in it"):
        export_onnx(tmp_path, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="is the run's own model; choose another --out"):
        export_timm(run.folder, run.folder / "model.safetensors")
    save_feature_run(tmp_path / "features")
    with pytest.raises(InputError, match="ready features, so timm has no model"):
        export_timm(tmp_path / "features", tmp_path / "m.safetensors")


@pytest.mark.parametrize(("package", "words"), [("onnx", "writing"), ("onnxruntime", "running")])
def test_a_missing_package_is_named(run, tmp_path, monkeypatch, package, words):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{words} ONNX files .* pip install 'tertium\[onnx\]'"):
        export_onnx(run.folder, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# ---- the command -----------------------------------------------------------------------------------------


def test_the_command(run, tertium, tmp_path):
    code, out, _ = tertium("export", run.folder, "--out", tmp_path / "m.onnx")
    assert code == 0
    assert "on 8 random inputs." in out
    assert f"MB → {tmp_path / 'm.onnx'}" in out
    assert Exported.load(tmp_path / "m.onnx").classes == tuple(CLASSES)
    code, out, _ = tertium("export", run.folder, "--to", "safetensors")
    assert code == 0
    assert (run.folder / "timm.safetensors").is_file()
    assert Trained.load(run.folder).classes == tuple(CLASSES)  # untouched
    code, _, err = tertium("export", tmp_path, "--to", "safetensors")
    assert (code, err.count("\n")) == (2, 1)


def table(path):
    heading, *lines = path.read_text().splitlines()
    cells = [line.rsplit(",", len(CLASSES)) for line in lines]
    return heading, [name for name, *_ in cells], np.array([numbers for _, *numbers in cells], dtype=float)


def test_predict_takes_the_file_in_the_place_of_the_run(run, photos, tertium, tmp_path):
    for model, out in ((run.folder, "torch.csv"), (run.file, "onnx.csv")):
        code, said, _ = tertium("predict", model, "--images", photos, "--out", tmp_path / out)
        assert code == 0
        assert "7 images × 4 classes" in said
    theirs, ours = table(tmp_path / "torch.csv"), table(tmp_path / "onnx.csv")
    assert ours[:2] == theirs[:2]
    np.testing.assert_allclose(ours[2], theirs[2], atol=1e-4)
    assert np.ptp(ours[2], axis=0).min() > 1e-2  # the images differ, so their order is checked


def test_predict_with_labels_and_top(run, photos, tertium, tmp_path):
    (tmp_path / "labels.csv").write_text("image,split,present\n3.png,a,cat\n1.png,b,owl\n0.jpg,a,\n")
    words = ("--images", photos, "--labels", tmp_path / "labels.csv", "--split", "a", "--top", 2, "--out")
    for model, out in ((run.folder, "torch.csv"), (run.file, "onnx.csv")):
        code, said, _ = tertium("predict", model, *words, tmp_path / out)
        assert code == 0
        assert "2 images, the 2 most probable of 4 classes each" in said
    ours, theirs = ((tmp_path / name).read_text().splitlines() for name in ("onnx.csv", "torch.csv"))
    assert [line.rsplit(",", 1)[0] for line in ours] == [line.rsplit(",", 1)[0] for line in theirs]
    assert [line.split(",")[0] for line in ours[1:]] == ['"3.png"'] * 2 + ['"0.jpg"'] * 2


def test_predict_on_features(tertium, tmp_path, rng):
    trained = save_feature_run(tmp_path / "run")
    export_onnx(tmp_path / "run", tmp_path / "m.onnx")
    features = rng.normal(size=(700, 6)).astype(np.float16)
    np.save(tmp_path / "x.npy", features)
    out = tmp_path / "p.csv"
    assert tertium("predict", tmp_path / "m.onnx", "--features", tmp_path / "x.npy", "--out", out)[0] == 0
    _, names, found = table(out)
    assert names == [f'"{row}"' for row in range(700)]
    np.testing.assert_allclose(found, trained.predict_proba(features=features), atol=1e-5)
    for words, complaint in (
        (("--images", tmp_path), "the model was trained on features; give features"),
        ((), "give either images or features"),
        (("--features", tmp_path / "x.npy", "--devices", 2), "runs in one process"),
    ):
        code, _, err = tertium("predict", tmp_path / "m.onnx", *words, "--out", tmp_path / "other.csv")
        assert code == 2
        assert complaint in " ".join(err.split())
    np.save(tmp_path / "x.npy", features[:, :5])
    words = ("--features", tmp_path / "x.npy", "--out", tmp_path / "other.csv")
    code, _, err = tertium("predict", tmp_path / "m.onnx", *words)
    assert "features of width 6, not 5" in " ".join(err.split())


def test_a_run_and_its_file_refuse_the_same_features(tmp_path, tertium):
    """In one sentence, and without a file of probabilities that are none."""
    save_feature_run(tmp_path / "run")
    export_onnx(tmp_path / "run", tmp_path / "m.onnx")
    rows = np.zeros((400, 6), dtype=np.float32)
    rows[300, 2] = np.nan
    np.save(tmp_path / "x.npy", rows)
    said = []
    for model in ("run", "m.onnx"):
        out = tmp_path / "p.csv"
        code, _, err = tertium("predict", tmp_path / model, "--features", tmp_path / "x.npy", "--out", out)
        assert (code, out.exists()) == (2, False)
        said.append(" ".join(err.split()))
    assert said == [said[0]] * 2
    assert "row 300 of the inputs, counted from 0, holds a value that is not a finite number" in said[0]
