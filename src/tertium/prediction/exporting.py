"""Exporting trained models: ONNX with everything that prediction needs, or weights for timm.

A file is kept only if it reproduces the numbers of its model.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tertium.data.feature_files import load_features
from tertium.data.inputs import open_inputs
from tertium.data.views import resized
from tertium.errors import InputError
from tertium.files import read_sealed, replacing
from tertium.models.backbones import Backbone
from tertium.models.classifier import Classifier
from tertium.models.onnx_files import TOLERANCE, convert
from tertium.models.onnx_session import seal
from tertium.prediction.exported import FORMAT, Exported
from tertium.prediction.trained import Trained
from tertium.runs import RunFolder

_RANDOM, _REAL = 8, 16  # inputs that the file and the model are compared on


@dataclass(frozen=True)
class Check:
    """How far a file's numbers are from the model's, and on how many inputs that was measured."""

    worst: float
    random: int
    real: int
    out: Path


class ImageClassifier(nn.Module):
    """A classifier that takes images as Pillow and NumPy have them, uint8 [B, H, W, 3]."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        logits: Tensor = self.model(images.permute(0, 3, 1, 2))
        return logits


def export(
    run: str | Path, to: Literal["onnx", "safetensors"] = "onnx", out: str | Path | None = None
) -> Check:
    """Write a trained model as one file for use elsewhere: ONNX with all it needs, or weights for timm.

    By default the file goes into the run folder. It is kept only if it gives the model's own numbers.
    """
    folder = RunFolder(Path(run))
    if to == "onnx":
        return export_onnx(run, folder.onnx_file if out is None else out)
    if to != "safetensors":
        raise InputError(f'a model is exported to onnx or safetensors, not to "{to}"; its place is out')
    return export_timm(run, folder.timm_file if out is None else out)


# ---- ONNX ------------------------------------------------------------------------------------------------


def export_onnx(run: str | Path, path: str | Path) -> Check:
    """Write the model of a run as one ONNX file: images or features in, probabilities and logits out."""
    run, path = Path(run), Path(path)
    _check_path(run, path, ".onnx")
    trained = Trained.load(run)
    model = trained.model
    module = model if model.backbone is None else ImageClassifier(model)
    kind = "features" if model.backbone is None else "images"
    inputs = np.concatenate([_random(trained), real := _real(run, trained)])
    with replacing(path) as temporary:
        try:
            convert(
                module,
                torch.from_numpy(inputs[:2]),
                temporary,
                inputs=kind,
                outputs="logits",
                metadata=_metadata(run, trained) | {"kind": kind},
            )
        except InputError as error:
            raise InputError(str(error).replace(str(temporary), str(path))) from None
        _add_probabilities(temporary, len(model.classes))
        seal(temporary)
        worst = _difference(module, Exported.load(temporary, 1), inputs)
        if not worst <= TOLERANCE:
            raise InputError(f"{path}: not kept, its probabilities differ from the model's by {worst:.1e}")
    return Check(worst, _RANDOM, len(real), path)


def _add_probabilities(path: Path, classes: int) -> None:
    """Let the graph give probabilities too, as its first output."""
    import onnx

    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Sigmoid", ["logits"], ["probabilities"]))
    kind, shape = onnx.TensorProto.FLOAT, ("batch", classes)
    found = onnx.helper.make_tensor_value_info("probabilities", kind, shape)
    model.graph.output.insert(0, found)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _difference(module: nn.Module, exported: Exported, inputs: Any) -> float:
    with torch.inference_mode():
        wanted = module(torch.from_numpy(inputs)).sigmoid().numpy()
    return float(np.abs(exported.probabilities(inputs) - wanted).max())


# ---- weights for timm ------------------------------------------------------------------------------------


def export_timm(run: str | Path, path: str | Path) -> Check:
    """Write the model of a run as weights that ``timm.create_model(name, num_classes=C)`` loads strictly.

    The mean and the spread of the features become part of the classifier's weights.
    """
    run, path = Path(run), Path(path)
    _check_path(run, path, ".safetensors")
    trained = Trained.load(run)
    backbone = trained.model.backbone
    if backbone is None:
        raise InputError(
            f"{run}: was trained on ready features, so timm has no model for it; export --to onnx"
        )
    if not backbone.recipe.architecture:
        raise InputError(f"{run}: its network is not one of timm's; export --to onnx")
    if trained.model.boost != 1:
        raise InputError(
            f"{run}: was trained with boost={trained.model.boost:g}, which timm's models do not compute; "
            "export --to onnx"
        )
    scaling = {
        "mean": (backbone.mean / 255).flatten().tolist(),
        "std": (backbone.std / 255).flatten().tolist(),
    }
    built = {"architecture": backbone.recipe.architecture, "arguments": dict(backbone.recipe.arguments)}
    about = _metadata(run, trained) | {"format": "pt", **_as_json(scaling | built)}
    inputs = np.concatenate([_random(trained), real := _real(run, trained)])
    with replacing(path) as temporary:
        save_file(_timm_state(trained.model, backbone), temporary, about)
        worst = _timm_difference(trained.model, backbone, temporary, inputs)
        if not worst <= TOLERANCE:
            raise InputError(f"{path}: not kept, its probabilities differ from the model's by {worst:.1e}")
    return Check(worst, _RANDOM, len(real), path)


def _timm_state(model: Classifier, backbone: Backbone) -> dict[str, Tensor]:
    """Return the weights under timm's names, the head under those of timm's own classifier."""
    state = backbone.net.state_dict()
    weight = model.head.weight * model.scale
    head = {"weight": weight, "bias": model.head.bias - weight @ model.center}
    for name, wanted in _timm_model(model, backbone).state_dict().items():
        own = head.get(name.rpartition(".")[2])
        if name in state and state[name].shape == wanted.shape:
            continue
        if name in state or own is None or own.numel() != wanted.numel() or len(own) != len(wanted):
            raise InputError(
                f"timm's {backbone.name} does not end in one linear layer ({name} is more); export --to onnx"
            )
        # A copy: a distilled network has two heads, and takes the mean of what they say.
        state[name] = own.reshape(wanted.shape).clone()
    return {name: value.detach().contiguous() for name, value in state.items()}


def _timm_model(model: Classifier, backbone: Backbone) -> nn.Module:
    import timm

    found: nn.Module = timm.create_model(
        backbone.recipe.architecture,
        pretrained=False,
        num_classes=len(model.classes),
        **backbone.recipe.arguments,
    )
    return found.eval()


def _timm_difference(model: Classifier, backbone: Backbone, path: Path, inputs: Any) -> float:
    """Load the file as a user of timm would, and compare probabilities."""
    theirs = _timm_model(model, backbone)
    theirs.load_state_dict(load_file(path))
    images = torch.from_numpy(inputs).permute(0, 3, 1, 2)
    with torch.inference_mode():
        found = theirs((images - backbone.mean) / backbone.std).sigmoid()
        return float((found - model(images).sigmoid()).abs().max())


# ---- what both need --------------------------------------------------------------------------------------


def _check_path(run: Path, path: Path, suffix: str) -> None:
    if path.suffix != suffix:
        raise InputError(f"{path}: the name must end in {suffix}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if os.path.realpath(path) == os.path.realpath(RunFolder(run).weights_file):
        raise InputError(f"{path}: is the run's own model; choose another --out")


def _metadata(run: Path, trained: Trained) -> dict[str, str]:
    """Return all that a user of the file must know, as text."""
    about = read_sealed(RunFolder(run).model_file)
    backbone, view = trained.model.backbone, trained.view
    return {
        "tertium_format": FORMAT,
        "tertium": version("tertium"),
        "run": run.resolve().name,
        "weights": str(about.get("weights", "")),
        "backbone": "" if backbone is None else backbone.name,
        **_as_json({"classes": list(trained.classes), "thresholds": trained.thresholds.tolist()}),
        **_as_json({"image_size": view.size, "filter": view.filter, "crop": view.crop}),
        **_as_json({"width": trained.model.width}),
        **_as_json({"source": {} if backbone is None else dict(backbone.recipe.source)}),
        "preprocessing": "" if backbone is None else f"RGB, {view}",
    }


def _as_json(values: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _random(trained: Trained) -> Any:
    rng = np.random.default_rng(0)
    if trained.model.backbone is None:
        return rng.normal(size=(_RANDOM, trained.model.width)).astype(np.float32)
    size = trained.view.size
    return rng.integers(0, 256, size=(_RANDOM, size, size, 3), dtype=np.uint8)


def _real(run: Path, trained: Trained) -> Any:
    """Return some inputs of the run, if they are still where they were; what cannot be read is left out."""
    empty = _random(trained)[:0]
    try:
        data = RunFolder.open(run).data()
        if trained.model.backbone is None:
            found = load_features(data.features or "")[:_REAL]
            return found.astype(np.float32) if found.shape[1] == trained.model.width else empty
        pictures = open_inputs(data.images or "").pictures
        assert pictures is not None
        some = range(min(len(pictures), _REAL))
        return np.stack([np.asarray(resized(pictures.open(row), trained.view)) for row in some])
    except (InputError, KeyError, TypeError):
        return empty
