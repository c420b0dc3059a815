"""Two gloo processes against one, on the same batches."""

import os
import subprocess
import sys

import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file

from tertium import methods
from tertium.methods.state import SampleState
from tests.ddp.two import CASES, COUNT, train_one


def test_two_processes_agree_with_one(tmp_path):
    """Weights, losses and tables: but for the order of sums, nothing tells how many processes there were.

    One test for all methods, since starting the processes takes longer than training.
    """
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*start, "-m", "tests.ddp.two", str(tmp_path)],
        check=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    fabric = Fabric(accelerator="cpu", devices=1)
    differ = {}
    for number, (name, parameters) in enumerate(CASES):
        if not methods.make(name, parameters).alone:
            alone, state = train_one(name, parameters, fabric)
            reason = difference(alone, state, tmp_path / str(number))
            if reason:
                differ[name, str(parameters)] = reason
    assert not differ
    first, second = (load_file(tmp_path / f"random{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def difference(alone, state, folder):
    """Say what two processes have found otherwise than one; nothing if they agree."""
    found = load_file(folder / "found.safetensors")
    both = SampleState(*state.shape)
    both.load(folder)
    if both.tables.keys() != state.tables.keys():
        return f"tables {sorted(both.tables)} for {sorted(state.tables)}"
    rows = torch.arange(COUNT)
    pairs = {key: (value, found[key], 1e-5) for key, value in alone.items()}
    for name, table in state.tables.items():
        pairs[name] = (table.read(rows), both.table(name).read(rows), 1e-4)
    for key, (one, two, tolerance) in pairs.items():
        if not torch.allclose(one, two, rtol=10 * tolerance, atol=tolerance, equal_nan=True):
            return f"{key} differs by {(one.float() - two.float()).abs().max():.2e}"
    return ""


def test_the_exceptions_say_why():
    """Where several processes may differ, a method says so, and only there (docs/methods.md repeats it)."""
    alone = {name for name, parameters in CASES if methods.make(name, parameters).alone}
    assert alone == {"ll_r", "ll_ct", "ll_cp", "sampled_negative", "selective", "pseudo"}
