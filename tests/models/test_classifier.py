import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tertium.errors import InputError
from tertium.models.backbones import Backbone
from tertium.models.classifier import Average, Classifier, load_model, save_model
from tertium.models.encoders import pretrained


@pytest.fixture(scope="module")
def shipped():
    return pretrained().eval()


def test_untrained_head_predicts_the_given_rates():
    model = Classifier(["a", "b"], 3)
    model.start_at(np.array([0.1, 0.7]))
    torch.testing.assert_close(model(torch.randn(4, 3)).sigmoid(), torch.tensor([[0.1, 0.7]] * 4))


def test_standardised_features_have_mean_0_and_spread_1(rng):
    features = rng.normal(5, 3, size=(500, 4)).astype(np.float16)
    features[:, 2] = 7  # a constant feature must not blow up
    model = Classifier(["a"], 4)
    model.standardise(features)
    scaled = (torch.from_numpy(features).float() - model.center) * model.scale
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(4), atol=1e-3, rtol=0)
    assert scaled.isfinite().all()
    spread = scaled.std(dim=0, correction=0)
    torch.testing.assert_close(spread[[0, 1, 3]], torch.ones(3), atol=1e-3, rtol=0)


def test_features_are_standardised_in_full_precision(rng):
    """Far from 0, and of more rows than are looked at in one go."""
    features = rng.normal(1000, 0.5, size=(3000, 3)).astype(np.float32)
    model = Classifier(["a"], 3)
    model.standardise(features)
    exact = features.astype(np.float64)
    np.testing.assert_allclose(model.center, exact.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(model.scale, 1 / exact.std(axis=0), rtol=1e-6)


def test_shipped_weights_see_what_imagenet_taught(shipped, rng):
    """Pretrained features separate two textures far better than random weights do."""
    stripes = np.zeros((8, 3, 96, 96), dtype=np.uint8)
    stripes[:, :, ::8] = 255
    noise = rng.integers(0, 256, size=(8, 3, 96, 96), dtype=np.uint8)
    stripes = np.clip(stripes + rng.integers(0, 30, size=stripes.shape), 0, 255).astype(np.uint8)
    with torch.inference_mode():
        first, second = (shipped(torch.from_numpy(batch)) for batch in (stripes, noise))
    within = torch.cdist(first, first).mean() + torch.cdist(second, second).mean()
    assert torch.cdist(first, second).mean() > within


def test_pixels_are_scaled_to_plus_minus_one(shipped):
    scaled = (torch.tensor([0.0, 255.0]).view(2, 1, 1, 1) - shipped.mean) / shipped.std
    torch.testing.assert_close(scaled[:, 0, 0, 0], torch.tensor([-1.0, 1.0]))


def test_features_agree_with_the_ones_shared(shipped, coco):
    """The stored COCO features came from the same network (at 224 px; the images here are 144 px copies)."""
    from PIL import Image

    from tertium.data.views import resized

    names = (coco / "labels.csv").read_text().splitlines()[1:9]
    pixels = np.stack(
        [np.asarray(resized(Image.open(coco / "images" / line.split(",")[0]), 224)) for line in names]
    )
    with torch.inference_mode():
        ours = shipped(torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
    stored = torch.from_numpy(np.load(coco / "train_features.npy")[:8]).float()
    similar = nn.functional.cosine_similarity(ours[:, None], stored[None], dim=2)
    assert (similar.argmax(dim=1) == torch.arange(8)).all()
    assert similar.diagonal().mean() > 0.6


@pytest.mark.parametrize(("weights", "stay"), [(None, True), ("random", False)])
def test_statistics_of_pretrained_layers_stay(weights, stay):
    model = Classifier(("a", "b"), 1280, pretrained(weights=weights))
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.train()
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.nn.init.ones_(model.head.weight)
    model(images).sum().backward()
    changed = [name for name, value in model.named_buffers() if not torch.equal(value, before[name])]
    assert bool(changed) is not stay
    assert all(value.grad is not None for value in model.parameters())  # scales and shifts are learned


def test_parameter_groups_cover_every_parameter_once():
    model = Classifier(["a", "b"], 1280, Backbone())
    groups = model.groups(1e-3, 1e-4, 0.05)
    chosen = [id(value) for group in groups for value in group["params"]]
    assert sorted(chosen) == sorted(id(value) for value in model.parameters())
    for group in groups:
        assert group["weight_decay"] == (0.05 if group["params"][0].ndim > 1 else 0)
        of_head = any(value is model.head.weight or value is model.head.bias for value in group["params"])
        assert group["lr"] == (1e-3 if of_head else 1e-4)


def test_average_follows_slowly_and_holds_buffers_too():
    model = Classifier(["a"], 2)
    average = Average(model, decay=0.9)
    with torch.no_grad():
        model.head.weight.fill_(1.0)
        model.center.fill_(1.0)
    average.update()
    # Warm-up: the first step has a decay of (1 + 1) / (10 + 1).
    torch.testing.assert_close(average.model.head.weight, torch.full((1, 2), 9 / 11))
    for _ in range(500):
        average.update()
    torch.testing.assert_close(average.model.head.weight, torch.ones(1, 2))
    torch.testing.assert_close(average.model.center, torch.ones(2))
    assert not any(value.requires_grad for value in average.model.parameters())


def test_save_and_load(tmp_path):
    model = Classifier(["a", "ü<b>"], 3)
    nn.init.normal_(model.head.weight)
    model.center.fill_(2.0)
    save_model(model, tmp_path, np.array([0.25, 0.5]))
    loaded, about = load_model(tmp_path)
    assert loaded.classes == ("a", "ü<b>")
    assert about["thresholds"] == [0.25, 0.5]
    inputs = torch.randn(5, 3)
    torch.testing.assert_close(loaded(inputs), model(inputs), rtol=0, atol=0)


def test_a_head_moves_behind_a_backbone(shipped):
    head = Classifier(["a"], shipped.width)
    nn.init.normal_(head.head.weight, std=0.01)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    whole = head.on_images(shipped).eval()
    torch.testing.assert_close(whole(images), head(shipped(images)))


def test_boost_multiplies_positive_places(shipped):
    images = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)
    plain = Classifier(["a", "b"], shipped.width, shipped).eval()
    nn.init.normal_(plain.head.weight, std=0.1)
    nn.init.normal_(plain.head.bias)
    boosted = plain.on_images(shipped, boost=5.0).eval()
    maps = shipped.maps(images)
    torch.testing.assert_close(maps.mean(dim=(2, 3)), shipped(images))
    places = torch.einsum("bdhw,cd->bchw", maps, plain.head.weight) + plain.head.bias[:, None, None]
    torch.testing.assert_close(plain(images), places.mean(dim=(2, 3)), atol=1e-4, rtol=1e-4)
    expected = (places.clamp(min=0) * 5 + places.clamp(max=0)).mean(dim=(2, 3))
    torch.testing.assert_close(boosted(images), expected, atol=1e-4, rtol=1e-4)


def test_boost_is_kept_with_the_model(tmp_path, shipped):
    save_model(Classifier(["a"], shipped.width, shipped, boost=5.0), tmp_path, np.array([0.5]))
    assert load_model(tmp_path)[0].boost == 5.0


def test_the_width_is_what_comes_out():
    backbone = pretrained("mobilenetv3_small_050", "random").eval()  # has a layer behind what it pools
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, backbone.width)


def test_boost_needs_an_averaged_map():
    backbone = Backbone("vit_tiny_patch16_224")
    with pytest.raises(InputError, match="does not average a map"):
        backbone.maps(torch.zeros(1, 3, 224, 224, dtype=torch.uint8))


def test_weights_from_files(tmp_path, shipped):
    state = {name: value.contiguous() for name, value in shipped.net.state_dict().items()}
    save_file(state | {"bn1.bias": state["bn1.bias"] + 0.5}, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pth")
    moved = pretrained(weights=tmp_path / "w.safetensors")
    torch.testing.assert_close(moved.net.bn1.bias, shipped.net.bn1.bias + 0.5)
    torch.testing.assert_close(pretrained(weights=tmp_path / "w.pth").net.bn1.bias, shipped.net.bn1.bias)
    random = pretrained(weights="random")
    assert not torch.equal(random.net.conv_stem.weight, shipped.net.conv_stem.weight)


class _Bomb:
    def __reduce__(self):
        import os

        return os.mkdir, ("executed",)


def test_loading_never_executes_what_a_file_contains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": _Bomb()}, tmp_path / "bomb.pth")
    with pytest.raises(InputError, match=r"bomb\.pth: refused"):
        pretrained(weights=tmp_path / "bomb.pth")
    assert not (tmp_path / "executed").exists()


def test_bad_models_are_named(tmp_path, shipped):
    with pytest.raises(InputError, match='no model "resnet5"; did you mean "resnet'):
        pretrained("resnet5")
    with pytest.raises(InputError, match="no such file"):
        pretrained(weights=tmp_path / "none.safetensors")
    save_file({"other": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="it has no conv_stem"):
        pretrained(weights=tmp_path / "w.safetensors")
    state = shipped.net.state_dict() | {"conv_stem.weight": torch.zeros(1)}
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"conv_stem\.weight has another shape"):
        pretrained(weights=tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_text("text")
    with pytest.raises(InputError, match="not a file of weights alone"):
        pretrained(weights=tmp_path / "w.safetensors")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (torch.ones(3), "holds a bare Tensor, not weights by their names"),
        (3, "holds a bare int"),
        (["conv1"], "holds a bare list"),
        ("text", "holds a bare str"),
        (b"text", "damaged or not a file of weights alone"),
        (b"", "damaged or not a file of weights alone"),
        (lambda _: 3, "is not a dense tensor of finite numbers"),
        (lambda value: value.to("meta"), "is not a dense tensor of finite numbers"),
        (lambda value: value.to(torch.complex64), "is not a dense tensor of finite numbers"),
        (lambda value: value.to_sparse() if value.ndim else value, "is not a dense tensor of finite numbers"),
        (lambda value: value * float("nan"), "is not a dense tensor of finite numbers"),
    ],
)
def test_weights_of_other_kinds_are_refused_in_one_sentence(tmp_path, content, complaint):
    path = tmp_path / "w.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif callable(content):
        state = pretrained("test_resnet", "random").net.state_dict()
        torch.save({name: content(value) for name, value in state.items()}, path)
    else:
        torch.save(content, path)
    with pytest.raises(InputError, match=rf"w\.pth: .*{complaint}"):
        pretrained("test_resnet", path)


@pytest.mark.parametrize("damage", ["weights", "json", "classes"])
def test_damaged_runs_are_named(tmp_path, damage):
    save_model(Classifier(["a"], 3), tmp_path, np.array([0.5]))
    if damage == "weights":
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "json":
        (tmp_path / "model.json").write_text("{")
    else:
        text = (tmp_path / "model.json").read_text()
        (tmp_path / "model.json").write_text(text.replace('"a"', '"a", "b"'))
    with pytest.raises(InputError, match=str(tmp_path)):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "before"),
    [
        (None, "module."),
        (None, "model."),
        ("state_dict", ""),
        ("state_dict", "module."),
        ("state_dict", "model."),
        ("state_dict", "model.backbone."),
        ("state_dict", "_orig_mod."),
        ("model", "module."),
        ("model_state_dict", ""),
    ],
)
def test_weights_of_a_checkpoint_are_found_under_its_names(tmp_path, key, before):
    small = pretrained("resnet10t", "random")
    state = {f"{before}{name}": value for name, value in small.net.state_dict().items()}
    state[f"{before}fc.weight"] = torch.zeros(3, 512)  # the head of another task
    torch.save({"epoch": 7, key: state} if key else state, tmp_path / "last.ckpt")
    found = pretrained("resnet10t", tmp_path / "last.ckpt")
    for name, value in small.net.state_dict().items():
        assert torch.equal(found.net.state_dict()[name], value), name


def test_an_average_is_preferred_to_the_last_weights(tmp_path):
    small, other = pretrained("resnet10t", "random"), pretrained("resnet10t", "random")
    states = {"state_dict": other.net.state_dict(), "state_dict_ema": small.net.state_dict()}
    torch.save(states, tmp_path / "last.pth")
    found = pretrained("resnet10t", tmp_path / "last.pth")
    assert torch.equal(found.net.conv1[0].weight, small.net.conv1[0].weight)


@pytest.mark.parametrize(("name", "size", "made_for"), [("inception_v3", 32, 299)])
def test_a_network_that_cannot_take_the_size_is_one_sentence(name, size, made_for):
    wanted = rf'"{name}" cannot take images of {size} × {size} pixels \(.+\); .* image size of {made_for}$'
    with pytest.raises(InputError, match=wanted):
        pretrained(name, "random", size)
