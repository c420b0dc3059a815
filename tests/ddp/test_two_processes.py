"""Two gloo processes against one, on the same batches."""

import os
import subprocess
import sys

import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file

from tertium import methods
from tertium.state import SampleState
from tests.ddp.two import CASES, COUNT, train_one


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    arguments = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    subprocess.run(
        [sys.executable, "-m", *arguments, "--standalone", "-m", "tests.ddp.two", str(folder)],
        check=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return folder


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{name}-{'-'.join(map(str, given.values()))}" for name, given in CASES]
)
def test_two_processes_agree_with_one(together, number):
    """Weights, losses and tables: but for the order of sums, nothing tells how many processes there were."""
    name, parameters = CASES[number]
    method = methods.make(name, parameters)
    if method.alone:
        pytest.skip(f"{name}: {method.alone}")
    alone, state = train_one(name, parameters, Fabric(accelerator="cpu", devices=1))
    found = load_file(together / str(number) / "found.safetensors")
    for key, value in alone.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")
    both = SampleState(*state.shape)
    both.load(together / str(number))
    assert both.tables.keys() == state.tables.keys()
    rows = torch.arange(COUNT)
    for table in state.tables:
        torch.testing.assert_close(
            both.table(table).read(rows), state.table(table).read(rows), rtol=1e-3, atol=1e-4
        )
