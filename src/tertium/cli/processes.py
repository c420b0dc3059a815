"""One command in several processes: `evaluate` and `predict` share the images among them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from tertium.cli.shared import watching
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.progress import Progress

Found = TypeVar("Found")
_SAID, _OTHERS_ENDED = 2, 3  # exit codes: of a process that has said why it ends, and of one left alone
_POLL, _GRACE = 0.1, 3.0  # seconds between looks at the processes; that they have to end


def started(devices: int, model: Path) -> bool:
    """Run this command in several processes, if that is asked for; torchrun has done so already."""
    if devices == 1 or "RANK" in os.environ:
        return False
    if model.suffix == ".onnx":
        raise InputError(f"{model}: an exported model runs in one process, on all cores; leave out --devices")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // devices)
    shared = {"OMP_NUM_THREADS": str(threads)} | os.environ
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(devices)}
    command = [sys.executable, "-m", "tertium", *sys.argv[1:]]
    children = [
        subprocess.Popen(command, env=shared | {"RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(devices)
    ]
    try:
        _wait_for(children)
    finally:
        _end(children)
    return True


def _wait_for(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have succeeded, or one has failed."""
    while True:
        ended = [child.poll() for child in children]
        if any(ended) or None not in ended:
            break
        time.sleep(_POLL)
    # Asked again: what a process that was seen to end has died of may have ended just after it was asked.
    codes = {number: code for number, child in enumerate(children) if (code := child.poll())}
    if not codes:
        return
    # One that only lost the others is not the cause, if the cause is known by now.
    number, code = min(codes.items(), key=lambda item: item[1] == _OTHERS_ENDED)
    if code == _SAID:
        raise typer.Exit(code)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise InputError(f"process {number} of {len(children)} ended with {how}; the others were stopped")


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """See that all end: by themselves, for one may have to say why; else kindly, files removed; or killed."""
    for end in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
        running = [child for child in children if child.poll() is None]
        for child in running:
            if end is not None:
                end(child)
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and any(child.poll() is None for child in running):
            time.sleep(_POLL)


@contextmanager
def together(model: Path) -> Iterator[None]:
    """Join the processes that were started together to use a model; alone, nothing happens."""
    # An exported model runs alone, and without torch.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or model.suffix == ".onnx":
        yield
        return
    from torch import distributed

    from tertium.distributed import lost

    # As an exception, so that files half-written are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # They only wait for each other, on GPUs too; the one that has most to do may take long.
    try:
        distributed.init_process_group("gloo", timeout=timedelta(days=7))
        yield
    except RuntimeError as error:
        if lost(error):
            raise typer.Exit(_OTHERS_ENDED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the files are gone: an exception now would only show
    distributed.destroy_process_group()  # not after an error: a process that had joined says its own


@contextmanager
def watching_first() -> Iterator[Progress | None]:
    """Show the progress of process 0 alone; its share is as large as any."""
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))  # torchrun's, and Fabric's
    if first == "0":
        with watching() as progress:
            yield progress
    else:
        yield None
