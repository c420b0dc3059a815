"""How many threads a computation uses, and how they wait, so that training stays fast beside other work.

Threads that wait for each other in a loop ("spinning") gain a little on an idle machine. Beside one busy
process they burn the time that the thread they wait for would need: small steps become many times slower.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # by which a user chooses
# Multiplications of one step from which on a second thread gains (`python -m bench threads`).
WORTH_SHARING = 2**26

THREADS = "TERTIUM_THREADS"  # the variable by which several processes share the cores of a machine


def cores() -> int:
    """Return how many threads this process may keep busy: what it was told, or one for each core."""
    given = os.environ.get(THREADS, "")
    if given.isdecimal() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wait_quietly() -> None:
    """Let waiting threads sleep. OpenMP reads this once: it must be set before torch is imported."""
    if "torch" not in sys.modules and not any(name in os.environ for name in _WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # GNU's, which torch's packages ship
        os.environ["KMP_BLOCKTIME"] = "0"  # Intel's and LLVM's


@contextmanager
def suited_to(multiplications: int) -> Iterator[None]:
    """Compute steps of this size with one thread where more would not pay; never with more than are set."""
    import torch

    before = torch.get_num_threads()
    if multiplications >= WORTH_SHARING or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
