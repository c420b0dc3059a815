"""A network without its classifier: images in, features out; and files of weights for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tertium.data.views import View
from tertium.errors import InputError, did_you_mean

DEFAULT_BACKBONE = "tf_efficientnet_lite0"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # means and deviations that most networks expect
# Where checkpoints keep the weights, an average of them first.
_CHECKPOINT_KEYS = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
)


@dataclass(frozen=True)
class Recipe:
    """What a network is: enough to build it again without asking anybody for it."""

    name: str  # as the user gave it
    architecture: str  # timm's name; empty where a module was given
    view: View  # how it sees an image
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of `timm.create_model`
    mean: tuple[float, ...] = _IMAGENET[0]  # of the pixels, from 0 to 1
    std: tuple[float, ...] = _IMAGENET[1]
    source: Mapping[str, str] = field(default_factory=dict)  # of the weights: where from, which, what licence

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "backbone": self.name,
            "architecture": self.architecture,
            "arguments": dict(self.arguments),
            "mean": list(self.mean),
            "std": list(self.std),
            "image_size": self.view.size,
            "filter": self.view.filter,
            "crop": self.view.crop,
            "source": dict(self.source),
        }

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> Recipe:
        """Take what `to_dict` gave; runs of earlier versions have a name of timm and a size alone."""
        name = about["backbone"]
        view = View(int(about["image_size"]), about.get("filter", "bilinear"), about.get("crop"))
        if "architecture" not in about:
            config = _config(name)
            return cls(name, name, view, {}, tuple(config["mean"]), tuple(config["std"]))
        mean, std = (tuple(float(each) for each in about[key]) for key in ("mean", "std"))
        return cls(name, about["architecture"], view, about["arguments"], mean, std, about.get("source", {}))


def _config(architecture: str) -> dict[str, Any]:
    """Return what timm knows of an architecture: sizes, means, deviations."""
    import timm  # takes seconds to import, and ready features do without it

    if architecture not in timm.list_models():
        raise InputError(
            f'timm has no model "{architecture}"; {did_you_mean(architecture, timm.list_models())}'
        )
    return dict(timm.get_pretrained_cfg(architecture).to_dict())


class Backbone(nn.Module):
    """A network without its classifier: uint8 images [B, 3, H, W] in, pooled features [B, D] out."""

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Recipe | str = DEFAULT_BACKBONE, net: nn.Module | None = None) -> None:
        """Build the network, or take ``net``; a bare name is that of a timm model with random weights."""
        import timm

        super().__init__()
        if isinstance(recipe, str):
            config = _config(recipe)
            view = View(config["input_size"][-1])
            recipe = Recipe(recipe, recipe, view, {}, tuple(config["mean"]), tuple(config["std"]))
        self.recipe = recipe
        self.keeps_statistics = False  # of its normalisation layers, while it is trained
        if net is None:
            if not recipe.architecture:
                kind = recipe.name.partition(":")[2]
                raise InputError(f'its network, "{kind}", was given in Python: give it again, as backbone=…')
            net = timm.create_model(recipe.architecture, pretrained=False, num_classes=0, **recipe.arguments)
        self.net: Any = net.to(memory_format=torch.channels_last)  # 1.7 times as fast on two cores
        self.register_buffer("mean", 255 * torch.tensor(recipe.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(recipe.std).view(3, 1, 1), persistent=False)

    @property
    def name(self) -> str:
        """The name by which the user knows it."""
        return self.recipe.name

    @property
    def view(self) -> View:
        """How it sees an image."""
        return self.recipe.view

    @property
    def width(self) -> int:
        """How many features it gives."""
        # Some networks (MobileNetV3, VGG) have one more layer behind what they pool.
        found = getattr(self.net, "head_hidden_size", None) or getattr(self.net, "num_features", None)
        return int(found) if self.recipe.architecture and found else self._tried().shape[1]

    def check(self) -> None:
        """Let an empty image through; raise `InputError` if that fails, or if it gives no vector.

        Many networks take one size only, or none below some size.
        """
        size = self.view.size
        try:
            found = self._tried()
        except (AssertionError, RuntimeError, ValueError, TypeError) as error:  # each in its own way
            reason = str(error).partition("\n")[0].rstrip(".")
            made_for = getattr(self.net, "pretrained_cfg", {}).get("input_size", (0,))[-1]
            hint = f"; it was made for an image size of {made_for}" if made_for else ""
            raise InputError(
                f'"{self.name}" cannot take images of {size} × {size} pixels ({reason}){hint}'
            ) from None
        if not isinstance(found, Tensor) or found.ndim != 2:
            shape = tuple(found.shape[1:]) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f'"{self.name}" gives {shape} for an image, not one vector of features')

    def _tried(self) -> Tensor:
        mode, size = self.training, self.view.size
        with torch.inference_mode():
            device = self.mean.device
            found: Tensor = self.eval()(torch.zeros((1, 3, size, size), dtype=torch.uint8, device=device))
        self.train(mode)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Scale the pixels as the network was trained, and pool what it finds."""
        features: Tensor = self.net(self._scaled(images))
        return features

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode; layers that normalise by batches may keep to the statistics that they came with.

        Those of millions of images are better than those of a few small batches, which moreover differ
        from the running averages that the trained model would be used with.
        """
        super().train(mode)
        if self.keeps_statistics:
            for layer in self.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        return self

    def maps(self, images: Tensor) -> Tensor:
        """Return the features before pooling [B, D, H, W]; their mean over H × W are the pooled ones."""
        pool = getattr(getattr(self.net, "global_pool", None), "pool_type", None)
        forward = getattr(self.net, "forward_features", None)
        found = forward(self._scaled(images)) if forward is not None else None
        if found is None or found.ndim != 4 or found.shape[1] != self.width or pool != "avg":
            raise InputError(
                f'"{self.name}" does not average a map of features, which boost and activation maps need'
            )
        return torch.as_tensor(found)

    def _scaled(self, images: Tensor) -> Tensor:
        return (images.contiguous(memory_format=torch.channels_last) - self.mean) / self.std


# ---- files of weights ------------------------------------------------------------------------------------


def load_backbone(backbone: Backbone, path: Path) -> None:
    """Take weights from a file that has timm's names, or those of a checkpoint around them."""
    ours = backbone.net.state_dict()
    state = _unwrapped(load_weights(path), next(iter(ours)))
    missing = [key for key in ours if key not in state]
    if missing:
        raise InputError(f'{path}: not weights of timm\'s "{backbone.name}": it has no {missing[0]}')
    strange = [key for key in ours if not _is_plain(state[key])]
    if strange:
        raise InputError(f"{path}: {strange[0]} is not a dense tensor of finite numbers")
    wrong = [key for key, value in ours.items() if state[key].shape != value.shape]
    if wrong:
        raise InputError(f'{path}: {wrong[0]} has another shape than in timm\'s "{backbone.name}"')
    backbone.net.load_state_dict({key: state[key] for key in ours})


def load_weights(path: Path) -> dict[str, Any]:
    """Read a ``.safetensors`` file, or one of torch's that holds nothing but weights."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle's own errors, and others, for what it refuses to run
        kind = type(error).__name__
        raise InputError(f"{path}: refused, it is damaged or not a file of weights alone ({kind})") from None
    if not isinstance(weights, dict):
        raise InputError(f"{path}: holds a bare {type(weights).__name__}, not weights by their names")
    return weights


def _unwrapped(weights: dict[str, Any], first: str) -> dict[str, Any]:
    """Return weights under a network's own names, of which this is the ``first``.

    Training loops put them under a key of a checkpoint, and what wraps a network (DataParallel, a Lightning
    module, a compiled one) puts its own name before each.

    >>> _unwrapped({"epoch": 3, "state_dict": {"module.stem": 1, "module.head": 2}}, "stem")
    {'stem': 1, 'head': 2}
    """
    inside = [weights, *(weights[key] for key in _CHECKPOINT_KEYS if isinstance(weights.get(key), dict))]
    for state in inside:
        found = [key for key in state if isinstance(key, str) and (key == first or key.endswith(f".{first}"))]
        if found:
            before = min(found, key=len).removesuffix(first)
            return {key.removeprefix(before): value for key, value in state.items() if key.startswith(before)}
    return weights


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and (value.layout, value.device.type) == (torch.strided, "cpu")
        and not value.is_complex()
        and bool(torch.isfinite(value).all())
    )
