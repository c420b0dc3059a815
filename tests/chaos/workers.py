"""Commands in processes of their own that start at once: forks of a process that has loaded everything."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import tertium
from tertium import cli

LIMIT = 120.0  # seconds after which a command counts as hanging
_GRACE = 5.0  # seconds that what a command has started may outlive it


def load() -> None:
    """Import all of Tertium; nothing is computed here, for threads do not survive a fork."""
    import torch

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(tertium.__path__, "tertium."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


class Worker:
    """A process that runs a function, or a command; what it prints goes to a file."""

    def __init__(self, act: Callable[[], None], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log, self.code = log, None
        with open(log, "wb") as sink:
            self.pid = os.fork()
            if self.pid == 0:
                _become(act, sink, env or {})

    @classmethod
    def command(cls, words: list[str], log: Path, env: Mapping[str, str] | None = None) -> Worker:
        """Run `tertium` with these words."""

        def act() -> None:
            sys.argv = ["tertium", *words]
            cli.main()

        return cls(act, log, env)

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, seconds: float = LIMIT) -> int | None:
        """Wait until it has ended, at most so long; return the exit code."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        return self.code

    def said(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def leaves_processes(self) -> bool:
        """Return whether what it has started runs on; then end that too."""
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.02)
        os.killpg(self.pid, signal.SIGKILL)
        return True


def _become(act: Callable[[], None], sink: IO[bytes], env: Mapping[str, str]) -> None:
    """Run in the forked process, and end it as the interpreter would."""
    code = 1
    try:
        os.setsid()  # a group of its own, in which what it starts is found
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(env)
        act()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
