"""The command that exports a model."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import RunArgument, say, writes_files


class Target(enum.StrEnum):
    """What a model can be written as."""

    onnx = "onnx"
    safetensors = "safetensors"


@writes_files()
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
    from tertium.prediction.exporting import export as export_model

    check = export_model(run, to.value, out)
    real = f" and {check.real} of the run's own" if check.real else ""
    say(f"Differs from the model by {check.worst:.0e} at most, on {check.random} random inputs{real}.")
    say(f"{check.out.stat().st_size / 2**20:.1f} MB → {check.out}")
