"""Two gloo processes on this machine."""

import os
import socket

import torch
from torch import distributed, multiprocessing

from tertium.distributed import all_mean, world


def test_one_process_changes_nothing():
    value = torch.tensor(2.0, requires_grad=True)
    assert world() == 1
    assert all_mean(value) is value


def _worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    value = torch.tensor(float(rank), requires_grad=True)
    mean = all_mean(value)
    assert mean.item() == 0.5
    # Each process squares the mean; the sum over processes depends on each value by 2 · 2·mean / 2.
    mean.square().backward()
    assert value.grad.item() == 1.0
    distributed.destroy_process_group()


def test_two_processes_agree():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_worker, args=(port,), nprocs=2)
