import os
import sys

import numpy as np
import pytest
import torch
from torch import nn

from tertium.errors import InputError
from tertium.models.backbones import Backbone
from tertium.models.onnx_files import convert
from tertium.models.onnx_session import about, session

NAMES = {"inputs": "images", "outputs": "features"}


class Bessel(nn.Module):
    """Has no counterpart in ONNX."""

    def forward(self, batch):
        return torch.special.bessel_j0(batch)


class Counting(nn.Module):
    """Is not a function of its input alone: what a tracer sees is not what it does later."""

    def forward(self, batch):
        return batch * len(batch)


@pytest.mark.parametrize("name", ["resnet10t", "test_vit"])
def test_a_network_gives_the_same_in_onnx_runtime(tmp_path, rng, name, capfd):
    backbone = Backbone(name)
    size = 64 if name == "resnet10t" else 160
    path = tmp_path / "net.onnx"
    example = torch.zeros((2, 3, size, size), dtype=torch.uint8)
    convert(backbone, example, path, **NAMES, metadata={"name": name})
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]  # the weights are inside
    assert about(path) == {"name": name}
    images = rng.integers(0, 256, size=(5, 3, size, size), dtype=np.uint8)
    running = session(path, 1)
    (found,) = running.run(["features"], {"images": images})
    with torch.inference_mode():
        np.testing.assert_allclose(found, backbone(torch.from_numpy(images)), atol=1e-4)


def test_what_has_no_counterpart_is_one_sentence(tmp_path, capfd):
    with pytest.raises(InputError, match=r"the Bessel cannot be converted to ONNX \(.*bessel_j0"):
        convert(Bessel(), torch.zeros(2, 3), tmp_path / "net.onnx", **NAMES, metadata={})
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_other_numbers_are_not_kept(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("as it was")
    with pytest.raises(InputError, match="gives other numbers"):
        convert(Counting(), torch.ones(2, 3), path, **NAMES, metadata={})
    assert path.read_text() == "as it was"


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf"{missing}: pip install 'tertium\[onnx\]'"):
        convert(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.onnx", **NAMES, metadata={})
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.onnx: no such file"):
        session(tmp_path / "none.onnx", 1)
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(InputError, match=r"text\.onnx: not a model for ONNX Runtime"):
        about(tmp_path / "text.onnx")


def test_output_goes_on_after_a_conversion(tmp_path, capfd):
    convert(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.onnx", **NAMES, metadata={})
    os.write(1, b"below\n")
    print("above")
    assert capfd.readouterr().out.split() == ["below", "above"]
