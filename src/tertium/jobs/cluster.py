"""Ray: a cluster that is started or joined, and pieces of work that go through its workers.

Nothing else knows Ray's actors, and nothing imports this module unless somebody asks for Ray.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from types import ModuleType
from typing import Any, Generic, TypeVar

from tertium.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_STORE = 256 << 20  # bytes of the object store of a cluster of our own: results are small
_REACH = 5.0  # seconds in which an address has to answer
_LOOK = 1.0  # seconds between looks at whether workers can start at all
_PATIENCE = 300.0  # seconds that a cluster has to bring a machine on which a worker can run
_SETTINGS = b"\x04"  # the kind of frame with which an HTTP/2 connection begins, which all of Ray's are
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + _SETTINGS + b"\x00" + b"\x00" * 4
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": a cluster that no other machine can reach


@dataclass(frozen=True)
class Failure:
    """Why a piece of work was not done."""

    reason: str  # one sentence
    trace: str = ""  # where a mistake of the program happened; empty if the input is at fault


# ---- joining ----------------------------------------------------------------------------------------------


@contextmanager
def joined(address: str | None) -> Iterator[Cluster]:
    """Join the cluster at an address ("auto", HOST:PORT, ray://HOST:PORT), or start one on this machine.

    A cluster that was started ends with the block. A program that has joined one already stays in it.
    """
    ray = _imported(alone=address is None)
    if ray.is_initialized():
        yield Cluster(ray)
        return
    try:
        with _signals_kept():
            if address is None:
                _start(ray)
            else:
                _join(ray, address)
        yield Cluster(ray, local=address is None)
    finally:
        ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray does about SIGTERM: a command that is ended would have another exit code."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _imported(*, alone: bool) -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if alone and "ray" not in sys.modules:
        os.environ.setdefault(_LOOPBACK, "0")  # Ray reads it once; without it, it listens to the network
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed, which --engine ray needs: pip install 'tertium[ray]'"
        ) from None
    module: ModuleType = ray
    return module


def _quiet() -> dict[str, Any]:
    """Return what keeps Ray from printing where results are printed."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None  # of a lost worker it tells in spite of the options
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _start(ray: ModuleType) -> None:
    try:
        ray.init("local", include_dashboard=False, object_store_memory=_STORE, **_quiet())
    except Exception as error:  # Ray's many processes can fail in many ways
        raise InputError(f"no Ray cluster could be started on this machine: {first_line(error)}") from None


def _join(ray: ModuleType, address: str) -> None:
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address != "auto":
        _reach(address)
    try:
        ray.init(address, **_quiet())
    except Exception as error:
        raise InputError(_why_not_joined(address, error)) from None


def _reach(address: str) -> None:
    """Raise `InputError` if no Ray can be at an address: Ray itself would try for ten minutes."""
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", address)
    if found is None:
        raise InputError(
            f'"{address}" is no address of a Ray cluster; say auto, HOST:PORT or ray://HOST:PORT'
        )
    try:
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), _REACH) as there:
            there.settimeout(_REACH)
            there.sendall(_GREETING)
            answer = there.recv(9)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{address}: no Ray cluster answers there ({reason})") from None
    if answer[3:4] != _SETTINGS and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise InputError(f"{address}: something answers there, but not Ray")


def _why_not_joined(address: str, error: Exception) -> str:
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", str(error))
    if len(versions) == 2:
        there, here = (f"Ray {ray} and Python {python}" for ray, python in versions)
        return f"{address}: the cluster has {there}, this machine has {here}; they must be the same"
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "no Ray cluster runs on this machine, and RAY_ADDRESS names none; "
            "start one (ray start --head), or leave out --address"
        )
    return f"{address}: no Ray cluster could be joined there: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


# ---- working ----------------------------------------------------------------------------------------------


class Cluster:
    """A cluster that this program has joined."""

    def __init__(self, ray: ModuleType, *, local: bool = False) -> None:
        self._ray, self._local = ray, local

    def cores(self) -> int:
        """Return how many cores the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def queue(self) -> Any:
        """Return a queue on this machine, for what workers say to this program."""
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def room_for(self, workers: int, *, gpus: bool) -> dict[str, float]:
        """Return what each of workers that run at once gets: a core, and a GPU if there are enough of them.

        `InputError` if the cluster has no room for them, or other versions than this program.
        """
        if self._local:
            each = {"CPU": min(1.0, (os.cpu_count() or 1) / workers)}
        else:
            self._check_nodes()
            each = {"CPU": 1.0}
            self._wait_for_cores(workers)
        enough = self._ray.cluster_resources().get("GPU", 0) >= workers
        return {**each, "GPU": 1.0} if gpus and enough else each

    def _check_nodes(self) -> None:
        """Raise `InputError` if a machine has another Python or another Tertium."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        kind = self._ray.remote(num_cpus=0)(_worker_kind())
        alive = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
        for actor in [kind.options(scheduling_strategy=where).remote() for where in there]:
            _check_versions(self._ray.get(actor.versions.remote()))

    def _wait_for_cores(self, workers: int) -> None:
        since = time.monotonic()
        while self.cores() < workers:
            if time.monotonic() - since >= _PATIENCE:
                raise InputError(f"the Ray cluster has {self.cores()} cores, for {workers} workers")
            time.sleep(_LOOK)

    def run(
        self,
        make: Callable[[], Callable[[Item], Result]],
        items: Iterable[Item],
        *,
        workers: int,
        cpus: float = 1,
        gpus: float = 0,
        tries: int = 3,
    ) -> Iterator[tuple[Item, Result | Failure]]:
        """Give each item to one of several workers; yield what each gave, in the order in which they end.

        Every worker is a process of its own with so many ``cpus`` and ``gpus``. It calls ``make`` once, and
        what that returns with one item after the other. A worker that is lost is replaced, and another gets
        its item; an item that has cost ``tries`` workers is a `Failure`. So is one for which an exception
        is raised, at once. An `InputError` of ``make`` ends the work. Each worker has one item at a time, and
        only one more is taken from ``items`` than that.
        """
        source = iter(items)
        first = list(islice(source, workers))  # no more workers than items
        if self._local:  # they share what cores there are, as processes do
            cpus = min(cpus, (os.cpu_count() or 1) / max(1, len(first)))
        crew = _Crew[Item, Result](self._ray, make, cpus, gpus, tries, 0.0 if self._local else _PATIENCE)
        try:
            yield from crew.work(first, source)
        finally:
            crew.dismiss()


@dataclass(eq=False)
class _Worker:
    """An actor, and how many before it were lost in the same place before they could begin."""

    actor: Any
    unborn: int = 0


@dataclass(eq=False)
class _Piece(Generic[Item]):
    """An item, and how many workers it has cost."""

    item: Item
    lost: int = 0


@dataclass(eq=False)
class _Call(Generic[Item]):
    """What a worker is doing: it says its versions, loads, or works on a piece."""

    worker: _Worker
    step: str
    piece: _Piece[Item] | None = None


@dataclass(eq=False)
class _Crew(Generic[Item, Result]):
    """The workers of one job, what they are doing, and the pieces that wait for one of them."""

    ray: ModuleType
    make: Callable[[], Callable[[Item], Result]]
    cpus: float
    gpus: float
    tries: int
    patience: float
    _calls: dict[Any, _Call[Item]] = field(default_factory=dict)  # under way
    _idle: list[_Worker] = field(default_factory=list)
    _waiting: deque[_Piece[Item]] = field(default_factory=deque)

    def work(self, first: list[Item], rest: Iterator[Item]) -> Iterator[tuple[Item, Result | Failure]]:
        """Yield what each item gave."""
        self._waiting.extend(map(_Piece, first))
        self._kind = self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0)(_worker_kind())
        self._loader = self.ray.put(self.make)  # once, however large it is
        self._since = time.monotonic()  # when a worker was last seen at work, or might have been
        for _ in first:
            self._hire()
        while True:
            self._hand_out(rest)
            self._look_ahead(rest)  # there may be no worker at the moment, and still be something to do
            if not self._waiting and not any(call.piece for call in self._calls.values()):
                return
            calls = list(self._calls)
            ready, _ = self.ray.wait(calls, timeout=_LOOK)
            if ready:  # perhaps more than one
                ready, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0)
            self._check_that_one_can_work()
            for done in ready:
                ended = self._settle(done)
                if ended is not None:
                    self._hand_out(rest)  # before the caller takes its time
                    yield ended

    def dismiss(self) -> None:
        """End all workers."""
        for worker in {call.worker for call in self._calls.values()} | {*self._idle}:
            self.ray.kill(worker.actor)
        self._calls.clear()
        self._idle.clear()

    def _hire(self, unborn: int = 0) -> None:
        worker = _Worker(self._kind.remote(), unborn)
        self._calls[worker.actor.versions.remote()] = _Call(worker, "versions")

    def _hand_out(self, rest: Iterator[Item]) -> None:
        """Give every idle worker a piece: one whose worker was lost, or a new one."""
        while self._idle:
            self._look_ahead(rest)
            if not self._waiting:
                return
            worker, piece = self._idle.pop(), self._waiting.popleft()
            self._calls[worker.actor.work.remote(piece.item)] = _Call(worker, "work", piece)

    def _look_ahead(self, rest: Iterator[Item]) -> None:
        """Take a new piece if none waits."""
        if not self._waiting:
            self._waiting.extend(map(_Piece, islice(rest, 1)))

    def _settle(self, done: Any) -> tuple[Item, Result | Failure] | None:
        """Take what a call gave; return what that says of an item."""
        call, errors = self._calls.pop(done), self.ray.exceptions
        try:
            value = self.ray.get(done)
        except (errors.ObjectStoreFullError, errors.OutOfDiskError):
            raise InputError(
                "the object store of the Ray cluster has no space for a result, and neither has the disk; "
                "make room, or give it more (ray start --object-store-memory)"
            ) from None
        except errors.RayTaskError as error:  # what could not be sent, for one
            value = Failure(first_line(error.cause or error), str(error))
        except errors.RayError as error:
            return self._replace(call, error)
        if call.step == "work":
            self._idle.append(call.worker)
            assert call.piece is not None
            return call.piece.item, value
        self._go_on(call, value)
        return None

    def _go_on(self, call: _Call[Item], value: Any) -> None:
        """Let a worker load once its versions are right, and begin once it has loaded."""
        if isinstance(value, Failure):
            raise RuntimeError(value.trace) if value.trace else InputError(value.reason)
        worker = call.worker
        if call.step == "versions":
            _check_versions(value)
            self._calls[worker.actor.load.remote(self._loader, os.getcwd())] = _Call(worker, "load")
        else:
            worker.unborn = 0
            self._idle.append(worker)

    def _replace(self, call: _Call[Item], error: Exception) -> tuple[Item, Failure] | None:
        """Put another worker in the place of one that was lost, and its piece back; or give up."""
        self.ray.kill(call.worker.actor)  # it may only have been out of reach
        reason, unborn = _why_lost(error), call.worker.unborn
        if call.piece is None:
            unborn += 1
            if unborn >= self.tries:
                raise InputError(f"{unborn} workers one after the other were lost while they began: {reason}")
        self._hire(unborn)
        if call.piece is None:
            return None
        call.piece.lost += not getattr(
            error, "preempted", False
        )  # a machine that was taken back is nobody's fault
        if call.piece.lost < self.tries:
            self._waiting.appendleft(call.piece)
            return None
        return call.piece.item, Failure(f"{call.piece.lost} workers were lost with it: {reason}")

    def _check_that_one_can_work(self) -> None:
        """Raise `InputError` if no machine has been able to run a worker for too long."""
        at_work = self._idle or any(call.step != "versions" for call in self._calls.values())
        if at_work or any(map(self._suits, self.ray.nodes())):
            self._since = time.monotonic()
        elif time.monotonic() - self._since >= self.patience:
            wanted = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs" if self.gpus else f"{self.cpus:g} CPUs"
            raise InputError(f"no machine of the Ray cluster has {wanted}, which a worker needs")

    def _suits(self, node: dict[str, Any]) -> bool:
        has = node["Resources"]
        enough = has.get("CPU", 0) >= self.cpus and has.get("GPU", 0) >= self.gpus
        return bool(node["Alive"] and enough)


def _worker_kind() -> type:
    """Return the class of actors; made here, it is sent whole: where Tertium is missing, it can say so."""

    class Worker:
        def versions(self) -> dict[str, str]:
            import platform
            from importlib.metadata import PackageNotFoundError, version

            try:
                tertium = version("tertium")
            except PackageNotFoundError:
                tertium = ""
            return {"machine": platform.node(), "python": platform.python_version(), "tertium": tertium}

        def load(self, make: Callable[[], Callable[[Any], Any]], folder: str) -> Failure | None:
            import contextlib
            import os

            from tertium.jobs.cluster import Failure, attempted

            with contextlib.suppress(OSError):  # there may be nothing but addresses to open
                os.chdir(folder)
            made = attempted(make)
            if isinstance(made, Failure):
                return made
            self._work = made
            return None

        def work(self, item: Any) -> Any:
            from tertium.jobs.cluster import attempted

            return attempted(self._work, item)

    return Worker


def attempted(work: Callable[..., Result], *given: Any) -> Result | Failure:
    """Return what a function gives, or why it fails."""
    try:
        return work(*given)
    except InputError as error:
        return Failure(str(error))
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU
            return Failure(f"does not fit into the memory of a worker ({first_line(error)})")
        return Failure(f"{type(error).__name__}: {first_line(error)}", traceback.format_exc())


def _own_versions() -> dict[str, str]:
    return {"python": platform.python_version(), "tertium": version("tertium")}


def _check_versions(there: dict[str, str]) -> None:
    """Raise `InputError` if a worker has another Python or another Tertium; Ray's own has Ray compared."""
    if not there["tertium"]:
        raise InputError(f"{there['machine']}: a worker of the Ray cluster has no Tertium; install it there")
    for name, here in _own_versions().items():
        if there[name] != here:
            raise InputError(
                f"{there['machine']}: a worker of the Ray cluster has {name} {there[name]}, "
                f"this machine has {here}; they must be the same"
            )


def _why_lost(error: Exception) -> str:
    """Say in a few words why a worker is gone."""
    told = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "low on memory" in told:
        return "killed, for the memory of its machine was full; take fewer workers, or more memory for each"
    if type(error).__name__ == "NodeDiedError" or "node has died" in told or "node was terminated" in told:
        return "its machine is gone"
    return "its process ended, killed from outside or out of memory"
