"""When checkpoints are written: every few minutes, and at the first Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tertium.errors import Stopped
from tertium.processes import any_of, world
from tertium.training.checkpoints import Checkpoint, Checkpoints
from tertium.training.fit import Course, Keeper

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOGETHER = 16  # steps after which several processes ask each other whether to keep or stop


class Stops:
    """Whether somebody wants the run to stop."""

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0 while there is none
        self.training = False  # whether there is something to keep: steps are taken

    @contextmanager
    def heeded(self, note: Callable[[str], None], *, fresh: bool) -> Iterator[None]:
        """Let the first signal wait for the end of a step; a second one stops at once.

        So does the first one while a ``fresh`` run still prepares, and nothing would be lost.
        """
        self.training = not fresh
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may do this
            return

        def wait(number: int, _: Any) -> None:
            if self.number:
                raise KeyboardInterrupt
            if not self.training and world() == 1:  # several must stop together
                raise Stopped(number, kept=False)
            self.number = number
            note("stopping after this step, to write a checkpoint; once more stops at once")

        before = {number: signal.signal(number, wait) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class CheckpointKeeper(Keeper):
    """Writes a checkpoint every so many minutes, and one before it stops."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        stops: Stops,
        *,
        minutes: float,
        about: Mapping[str, Any],
        extra: Mapping[str, Tensor],
        start: Checkpoint | None,
    ) -> None:
        """``about`` and ``extra`` go into each checkpoint; ``start`` is the one to go on from."""
        self._checkpoints, self._stops, self._minutes = checkpoints, stops, minutes
        self._about, self._extra, self._start = about, extra, start
        self._last = time.monotonic()

    def restore(self, course: Course) -> None:
        """Go on from the given checkpoint; what comes now is worth keeping."""
        self._stops.training = True
        if self._start is not None:
            course.restore(self._start.figures["course"], self._start.shared(), self._start.own())

    def offer(self, course: Course) -> None:
        """Write a checkpoint if it is time, or if the run should stop."""
        if world() > 1 and course.step % _TOGETHER:
            return
        stop = any_of(bool(self._stops.number))
        if not stop and not any_of(time.monotonic() - self._last >= 60 * self._minutes):
            return
        course.check_finite()
        figures = {**self._about, "course": course.figures()}
        self._checkpoints.save(figures, {**course.shared(), **self._extra}, course.own(), course.run.state)
        self._last = time.monotonic()
        if stop:
            raise Stopped(self._stops.number or signal.SIGTERM, kept=True)
