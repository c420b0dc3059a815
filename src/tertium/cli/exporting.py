"""Commands that export a model, and the use of one that was exported."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import RunArgument, images_of, say, say_predicted, undamaged, watching
from tertium.errors import InputError


class Target(enum.StrEnum):
    """What a model can be written as."""

    onnx = "onnx"
    safetensors = "safetensors"


_NAMES = {Target.onnx: "model.onnx", Target.safetensors: "timm.safetensors"}


def export(
    run: RunArgument,
    to: Annotated[Target, typer.Option(help="ONNX with all it needs, or weights for timm.")] = Target.onnx,
    out: Annotated[
        Path | None, typer.Option(help="The file (default: RUN/model.onnx or RUN/timm.safetensors).")
    ] = None,
) -> None:
    """Write a trained model as one file for use elsewhere.

    **Examples**

      tertium export runs/first --to onnx --out model.onnx

      tertium export runs/first --to safetensors --out weights.safetensors

    The ONNX file takes uint8 images [batch, height, width, 3] or float features, and gives probabilities; its
    metadata hold classes, thresholds and how to resize. `tertium predict` and `tertium serve` take it in the
    place of a run, without torch. The safetensors file is for timm.create_model(name, num_classes=C).
    A file is kept only if it gives the model's own numbers.
    """
    from tertium.prediction.exporting import export_onnx, export_timm

    place = out or run / _NAMES[to]
    check = (export_onnx if to is Target.onnx else export_timm)(run, place)
    real = f" and {check.real} of the run's own" if check.real else ""
    say(f"Differs from the model by {check.worst:.0e} at most, on {check.random} random inputs{real}.")
    say(f"{place.stat().st_size / 2**20:.1f} MB → {place}")


def predict_exported(
    model: Path,
    out: Path,
    images: Path | None,
    features: Path | None,
    labels: Path | None,
    split: str | None,
    top: int | None,
    devices: int,
    skip_damaged: bool,
) -> None:
    """Do what `tertium predict` does with an .onnx file, without torch."""
    from tertium.data.inputs import names_of
    from tertium.prediction.exported import Exported
    from tertium.prediction.files import check_columns, check_path, write_predictions

    if devices > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(f"{model}: an exported model runs in one process, on all cores; leave out --devices")
    check_path(out)
    exported = Exported.load(model)
    check_columns(exported.classes, top)
    names = names_of(images, features) if labels is None else images_of(labels, split)
    with watching() as progress:
        if skip_damaged:
            names = undamaged(images, names, progress)
        blocks = exported.stream(exported.inputs(images, features, names), progress)
        write_predictions(out, names, exported.classes, blocks, top=top)
    say_predicted(len(names), len(exported.classes), top, out)
