"""`tertium.Loss` in two gloo processes against one, on the same batches."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tertium import methods
from tests.ddp.loop import train
from tests.reference import CASES


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes found: by case, by whether tables were compact, by process."""
    folder = tmp_path_factory.mktemp("loop")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*start, "-m", "tests.ddp.loop", str(folder)],
        check=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return {tuple(path.stem.split("-")): load_file(path) for path in folder.iterdir()}


def test_two_processes_agree_with_one(found):
    """Weights and tables, though each process sees other images in every epoch."""
    differ = {}
    for number, (name, parameters) in enumerate(CASES):
        method = methods.make(name, parameters)
        if method.alone:
            continue
        alone, both = train(method), found[str(number), "False", "0"]
        assert both.keys() == alone.keys()
        for key, value in alone.items():
            if not torch.allclose(both[key].float(), value.float(), rtol=1e-3, atol=1e-4, equal_nan=True):
                differ[name, str(parameters), key] = (both[key].float() - value.float()).abs().max().item()
    assert not differ


def test_processes_keep_the_same_tables(found):
    """Also compact ones, whose values are rounded at random."""
    assert sum(compact == "True" for _, compact, _ in found) > 10
    for (number, compact, rank), first in found.items():
        if rank == "0" and number != "drawn":
            second = found[number, compact, "1"]
            for key, value in first.items():
                assert torch.equal(value.nan_to_num(9.0), second[key].nan_to_num(9.0)), (number, key)


def test_each_process_draws_for_itself(found):
    assert found["drawn", "False", "0"]["drawn"] != found["drawn", "False", "1"]["drawn"]
