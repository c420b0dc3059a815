"""Two gloo processes on this machine."""

import torch
from torch import distributed, multiprocessing

from tertium.distributed import all_mean
from tertium.processes import world


def test_one_process_changes_nothing():
    value = torch.tensor(2.0, requires_grad=True)
    assert world() == 1
    assert all_mean(value) is value


def _worker(rank, meeting):
    distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=2)
    value = torch.tensor(float(rank), requires_grad=True)
    mean = all_mean(value)
    assert mean.item() == 0.5
    # Each process squares the mean; the sum over processes depends on each value by 2 · 2·mean / 2.
    mean.square().backward()
    assert value.grad.item() == 1.0
    distributed.destroy_process_group()


def test_two_processes_agree(tmp_path):
    # They meet at a file: a port that is free now may be another's by then.
    multiprocessing.spawn(_worker, args=(tmp_path / "meeting",), nprocs=2)
