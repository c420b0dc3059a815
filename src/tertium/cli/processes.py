"""One command in several processes: `evaluate` and `predict` share the images among them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tertium.cli.shared import watching
from tertium.errors import InputError
from tertium.files import MARK
from tertium.threads import THREADS

if TYPE_CHECKING:
    from tertium.progress import Progress

Found = TypeVar("Found")
_SAID, _OTHERS_ENDED = 2, 3  # exit codes: of a process that has said why it ends, and of one left alone
_WATCHED = "TERTIUM_WATCHED"  # the variable that names a pipe, closed when the first process ends
_POLL, _GRACE = 0.1, 3.0  # seconds between looks at the processes; that they have to end


def started(devices: int, model: Path, beside: Path) -> bool:
    """Run this command in several processes, if that is asked for; torchrun has done so already.

    However they end, none is left running, and nothing that they began to write is left in the folder
    ``beside``, where their output goes.
    """
    if devices == 1 or "RANK" in os.environ:
        return False
    if model.suffix == ".onnx":
        raise InputError(f"{model}: an exported model runs in one process, on all cores; leave out --devices")
    mark, children = secrets.token_hex(8), list[subprocess.Popen[bytes]]()
    watched, held = os.pipe()  # it is closed when this process ends, whatever ends it
    before = signal.signal(signal.SIGTERM, end_kindly)
    try:
        for variables in _environments(devices, mark, watched):
            children.append(subprocess.Popen(_command(), env=variables, pass_fds=[watched]))
        _wait_for(children)
    except (KeyboardInterrupt, SystemExit):
        for child in children:
            child.terminate()
        raise
    finally:
        _end(children)
        _sweep(beside, mark)
        signal.signal(signal.SIGTERM, before)
        os.close(watched)
        os.close(held)
    return True


def end_kindly(number: int, _: Any) -> None:
    """End by an exception, so that others are ended and files half-written are removed; but only once."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _command() -> list[str]:
    return [sys.executable, "-m", "tertium", *sys.argv[1:]]


def _environments(devices: int, mark: str, watched: int) -> Iterator[dict[str, str]]:
    """Yield the variables of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // devices)
    own = {"OMP_NUM_THREADS": str(threads), THREADS: str(threads)}
    shared = own | os.environ | {MARK: mark, _WATCHED: str(watched)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(devices)}
    for number in range(devices):
        yield shared | {"RANK": str(number), "LOCAL_RANK": str(number)}


def _sweep(folder: Path, mark: str) -> None:
    """Remove what processes have left that could not do it themselves."""
    for left in folder.glob(f".*-{mark}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _wait_for(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have succeeded, or one has failed."""
    while True:
        ended = [child.poll() for child in children]
        if any(ended) or None not in ended:
            break
        time.sleep(_POLL)
    codes = _failures(children)
    if not codes:
        return
    # One that only lost the others is not the cause, if the cause is known by now.
    if _SAID in codes.values():
        raise typer.Exit(_SAID)
    number, code = min(codes.items(), key=lambda item: item[1] == _OTHERS_ENDED)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise InputError(f"process {number} of {len(children)} ended with {how}; the others were stopped")


def _failures(children: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Return how processes have failed, by their numbers; once one has, another may be about to say why."""
    until = time.monotonic() + _GRACE
    while True:
        codes = {number: code for number, child in enumerate(children) if (code := child.poll())}
        running = any(child.poll() is None for child in children)
        if not codes or _SAID in codes.values() or not running or time.monotonic() > until:
            return codes
        time.sleep(_POLL)


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

    signal.signal(signal.SIGTERM, end_kindly)
    if _WATCHED in os.environ:
        threading.Thread(target=_end_with, args=[int(os.environ[_WATCHED])], daemon=True).start()
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


def _end_with(watched: int) -> None:
    """End this process when the one that has started it is gone."""
    os.read(watched, 1)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def watching_first() -> Iterator[Progress | None]:
    """Show the progress of process 0 alone; its share is as large as any."""
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))  # torchrun's, and Fabric's
    if first == "0":
        with watching() as progress:
            yield progress
    else:
        yield None
