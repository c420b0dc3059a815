"""The model: a backbone, or none for ready features; standardised embeddings; a linear head."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tertium.errors import InputError
from tertium.files import checksum, read_sealed, replacing, write_sealed
from tertium.models.backbones import Backbone, Recipe, load_weights
from tertium.runs import RunFolder

_ROWS = 256  # of features that are standardised at a time


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

    def start_at_random(self) -> None:
        """Start as torch makes a linear layer: small random weights and biases, so near one half."""
        self.head.reset_parameters()

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
            **({"backbone": None} if model.backbone is None else model.backbone.recipe.to_dict()),
            "frozen": frozen,
            "width": model.width,
            "boost": model.boost,
            "classes": list(model.classes),
            "thresholds": [round(float(value), 6) for value in thresholds],
        },
    )


def load_model(folder: Path, net: nn.Module | None = None) -> tuple[Classifier, dict[str, Any]]:
    """Read what `save_model` wrote; return the model in evaluation mode and its description.

    ``net`` is the network again, if it was one that no name stands for.
    """
    run = RunFolder(folder)
    about, weights = read_sealed(run.model_file), run.weights_file
    run.check_own(run.model_file, about.get("run"))
    if weights.is_file() and about.get("weights", "") not in ("", checksum(weights)):
        raise InputError(f"{weights}: was changed after it was written, or is damaged")
    try:
        backbone = None if about["backbone"] is None else Backbone(Recipe.from_dict(about), net)
        model = Classifier(about["classes"], about["width"], backbone, about["boost"])
        model.load_state_dict(load_weights(weights))
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: the model is damaged ({str(error).splitlines()[0]})") from None
    return model.eval(), about
