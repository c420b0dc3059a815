"""Which of several processes this is, and how they share work; a no-op with one process.

Nothing here imports torch: a process without it is alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tertium.errors import InputError, SaidElsewhere
from tertium.files import passing_folder

if TYPE_CHECKING:
    import torch

Found = TypeVar("Found")


def _group() -> Any:
    """Return torch's module of process groups, if this process has joined one."""
    module = sys.modules.get("torch.distributed")
    joined = module is not None and module.is_available() and module.is_initialized()
    return module if joined else None


def world() -> int:
    """Return how many processes work together."""
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def rank() -> int:
    """Return the number of this process, from 0; 0 writes the files that all share."""
    group = _group()
    return 0 if group is None else int(group.get_rank())


def barrier() -> None:
    """Wait until every process is here."""
    if world() > 1:
        _group().barrier()


def shares(count: int, batch: int) -> list[range]:
    """Divide rows among the processes: in order, and in the batches that one process would make.

    >>> shares(600, 256)
    [range(0, 600)]
    """
    batches = -(-count // batch)
    edges = [min(batches * number // world() * batch, count) for number in range(world() + 1)]
    return [range(*pair) for pair in pairwise(edges)]


@contextmanager
def shared_folder(parent: Path) -> Iterator[Path]:
    """Give all processes one folder below ``parent``, which all must see; process 0 removes it at the end."""
    with passing_folder(parent) if rank() == 0 else nullcontext() as made:
        yield Path(from_first(str(made)))


def from_first(value: Any) -> Any:
    """Return what process 0 has of a value that can be pickled."""
    if world() == 1:
        return value
    held = [value]
    _group().broadcast_object_list(held, src=0, device=device())
    return held[0]


def any_of(flag: bool) -> bool:
    """Return whether the flag is set in any process."""
    if world() == 1:
        return flag
    import torch

    shared = torch.tensor([float(flag)], device=device())
    _group().all_reduce(shared, op=_group().ReduceOp.MAX)
    return bool(shared.item())


def device() -> torch.device:
    """Return where tensors must be that processes exchange: NCCL moves them between GPUs only."""
    import torch

    if _group().get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def agreed(prepare: Callable[[], Found]) -> Found:
    """Prepare in every process before any goes on; of those that fail alike only the first says so."""
    if world() == 1:
        return prepare()
    found, error = None, None
    try:
        found = prepare()
    except InputError as caught:
        error = caught
    said = from_first(error is not None)
    if error is not None and (rank() == 0 or not said):
        any_of(True)
        raise error
    if any_of(error is not None) or found is None:
        raise SaidElsewhere
    return found
