"""PyTorch modules as ONNX files, kept only if ONNX Runtime gives the same numbers."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from tertium.errors import InputError
from tertium.files import replacing
from tertium.models.onnx_session import session

TOLERANCE = 1e-4  # of the largest output, or of 1 where outputs are smaller
_OPSET = 18  # what both exporters of torch can write


def convert(
    module: nn.Module,
    example: Tensor,
    path: Path,
    *,
    inputs: str,
    outputs: str,
    metadata: Mapping[str, str],
) -> None:
    """Write a module of one input and one output as one ONNX file, for batches of any size.

    The module is left in evaluation mode. The file is kept only if it gives what the module gives for random
    inputs like the example; a module that cannot be converted is an `InputError`.
    """
    if find_spec("onnx") is None:
        raise InputError("writing ONNX files needs the package onnx: pip install 'tertium[onnx]'")
    module.eval()
    kind = type(module).__name__
    with replacing(path) as temporary:
        _export(module, example, temporary, inputs, outputs)
        _describe(temporary, metadata)
        worst = _difference(module, example, temporary)
        if not worst <= TOLERANCE:
            raise InputError(f"{path}: the {kind} gives other numbers in ONNX Runtime (by {worst:.1e})")


def _export(module: nn.Module, example: Tensor, path: Path, inputs: str, outputs: str) -> None:
    """Let torch write the file: by its older exporter, or by the newer one where that fails.

    They agree on every network tried, but the older one takes 1 s where the newer takes 18.
    """
    names = {"input_names": [inputs], "output_names": [outputs], "opset_version": _OPSET, "verbose": False}
    older = {"dynamo": False, "dynamic_axes": {inputs: {0: "batch"}, outputs: {0: "batch"}}}
    newer = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("batch")},), "external_data": False}
    causes = []
    for exporter in (older, newer):
        try:
            # What tracers say is for the authors of networks; what matters is checked on the result.
            with torch.no_grad(), warnings.catch_warnings(), _silent():
                warnings.simplefilter("ignore")
                torch.onnx.export(module, (example,), path, **names, **exporter)  # type: ignore[arg-type]
            return
        except Exception as error:  # exporters raise whatever the network's own code raises under a tracer
            causes.append(str(error).strip().partition("\n")[0] or type(error).__name__)
    raise InputError(f"the {type(module).__name__} cannot be converted to ONNX ({causes[0]})")


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the standard output still: the older exporter prints whole graphs to it from compiled code."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _describe(path: Path, metadata: Mapping[str, str]) -> None:
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)


def _difference(module: nn.Module, example: Tensor, path: Path) -> float:
    """Return by how much the outputs differ, in parts of the largest one or of 1."""
    running = session(path, 1)
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for count in (1, len(example) + 1):
        shape = (count, *example.shape[1:])
        if example.is_floating_point():
            batch = torch.randn(shape, generator=generator)
        else:
            batch = torch.randint(0, 256, shape, generator=generator)
        batch = batch.to(example.dtype)
        with torch.inference_mode():
            wanted = module(batch.to(example.device)).cpu()
        (found,) = running.run(None, {running.get_inputs()[0].name: batch.numpy()})
        if found.shape != tuple(wanted.shape):
            return float("inf")
        size = max(1.0, float(wanted.abs().max()))
        worst = max(worst, float((torch.from_numpy(found) - wanted).abs().max()) / size)
    return worst
