"""Pieces of work on a real Ray cluster: nothing is lost with a worker, and what is wrong is one sentence."""

import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path

import pytest

from tertium.errors import InputError
from tertium.jobs import cluster as clusters
from tertium.jobs.cluster import Failure, joined

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="no ray")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: its clusters are on loopback


def doubling(folder):
    """Make a worker that doubles numbers, notes each in the folder, and obeys words."""

    def work(item):
        with open(Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}", "w") as note:
            note.write(str(item))
        if item == "wrong":
            raise InputError("this item is wrong")
        if item == "broken":
            raise KeyError("x")
        if item == "once" and sum(path.read_text() == "once" for path in Path(folder).iterdir()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return item if isinstance(item, str) else 2 * item

    return lambda: work


def notes(folder):
    return Counter(path.read_text() for path in folder.iterdir())


def test_pieces_of_work(tmp_path, capfd):
    """One cluster for all of it: starting one takes seconds."""
    handler = signal.getsignal(signal.SIGTERM)
    with joined(None) as cluster:
        assert signal.getsignal(signal.SIGTERM) == handler
        items = [1, 2, "wrong", 3, "broken", "once", 4, "deadly", 5]
        found = dict(cluster.run(doubling(str(tmp_path)), items, workers=2, tries=2))
        assert list(cluster.run(doubling(str(tmp_path)), [], workers=2)) == []
        assert cluster.cores() >= 1
        addresses = {each["NodeManagerAddress"] for each in sys.modules["ray"].nodes()}
    assert {item: found[item] for item in (1, 2, 3, 4, 5)} == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}
    assert found["once"] == "once"
    assert found["wrong"] == Failure("this item is wrong")
    assert found["broken"].reason == "KeyError: 'x'"
    assert "in work" in found["broken"].trace
    assert found["deadly"].reason.startswith("2 workers were lost with it: its process ended")
    assert notes(tmp_path) == Counter(map(str, items)) + Counter(["once", "deadly"])
    assert addresses == {"127.0.0.1"}  # nobody else can reach it
    assert capfd.readouterr().out == ""  # where results are printed
    with (
        pytest.raises(InputError, match=r'^"nonsense" is no address of a Ray cluster; say auto'),
        joined("nonsense"),
    ):
        pass
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for address in (nobody, f"ray://{nobody}"):
        with (
            pytest.raises(InputError, match=f"^{address}: no Ray cluster answers there .*refused"),
            joined(address),
        ):
            pass


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'tertium\[ray\]'"), joined(None):
        pass


# ---- slow: clusters of several machines, and what goes wrong in them --------------------------------------


@contextmanager
def machines(*cores, **options):
    """Start a Ray node for each number of cores; the first has the driver. Give them.

    They have a folder of their own, so that no other command takes them for the cluster of this machine; its
    name is short, for sockets are in it.
    """
    from ray.cluster_utils import Cluster

    short = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    with short as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_TMPDIR", folder)
        cluster = Cluster()
        try:
            nodes = [cluster.add_node(num_cpus=count, include_dashboard=False, **options) for count in cores]
            yield cluster, nodes
        finally:
            cluster.shutdown()


@pytest.mark.slow
def test_a_machine_that_is_lost(tmp_path):
    """The raylet of the second machine is killed while its workers work: all items come, each once."""

    def make():
        import ray

        where = ray.get_runtime_context().get_node_id()

        def work(item):
            (tmp_path / f"{where}-{item}").touch()
            time.sleep(0.2)
            return item

        return work

    with machines(1, 2) as (there, (_, second)), joined(there.address) as cluster:
        found = []
        for item, result in cluster.run(make, range(60), workers=3):
            found.append((item, result))
            if len(found) == 10:
                second.kill_raylet()
    assert sorted(found) == [(item, item) for item in range(60)]
    used = Counter(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert len(used) == 2  # both machines had worked
    assert min(used.values()) >= 3


@pytest.mark.slow
def test_a_cluster_joined_from_outside():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with machines(2, ray_client_server_port=port):
        until = time.monotonic() + 60
        with socket.socket() as door:  # it opens later than the rest
            while door.connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.2)
        with joined(f"ray://127.0.0.1:{port}") as cluster:
            found = sorted(cluster.run(lambda: lambda item: 2 * item, range(20), workers=2))
    assert found == [(item, 2 * item) for item in range(20)]


@pytest.mark.slow
def test_items_are_taken_as_they_are_needed():
    taken = []

    def items():
        for number in range(500):
            taken.append(number)
            yield number

    with joined(None) as cluster:
        for done, _ in enumerate(cluster.run(lambda: lambda item: item, items(), workers=3), start=1):
            assert len(taken) <= done + 3 + 1
    assert len(taken) == 500


@pytest.mark.slow
def test_what_make_says_ends_the_work():
    def wrong():
        raise InputError("no such model")

    def heavy():
        raise MemoryError("Unable to allocate 1 TiB")

    def deadly():
        os.kill(os.getpid(), signal.SIGKILL)

    with joined(None) as cluster:
        with pytest.raises(InputError, match=r"^no such model$"):
            list(cluster.run(wrong, [1], workers=1))
        with pytest.raises(InputError, match=r"does not fit into the memory of a worker .*1 TiB"):
            list(cluster.run(heavy, [1], workers=1))
        with pytest.raises(InputError, match="3 workers one after the other were lost while they began"):
            list(cluster.run(deadly, [1], workers=1))
        with pytest.raises(InputError, match="no machine of the Ray cluster has 1 CPUs and 4 GPUs"):
            list(cluster.run(lambda: abs, [1], workers=1, gpus=4))


@pytest.mark.slow
def test_a_worker_that_is_killed_for_memory(monkeypatch):
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.0001")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    with joined(None) as cluster, pytest.raises(InputError, match="the memory of its machine was full"):
        list(cluster.run(lambda: lambda item: time.sleep(60), [1], workers=1))


@pytest.mark.slow
def test_no_space_for_a_result(monkeypatch):
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "0.0001")
    monkeypatch.setattr(clusters, "_STORE", 80 << 20)
    with (
        joined(None) as cluster,
        pytest.raises(InputError, match="the object store of the Ray cluster has no space"),
    ):
        list(cluster.run(lambda: lambda item: bytes(200 << 20), [1], workers=1))


@pytest.mark.slow
def test_addresses_without_ray(tmp_path, monkeypatch):
    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{server.server_port}"
    began = time.monotonic()
    try:
        for address in (place, f"ray://{place}"):
            with (
                pytest.raises(InputError, match=f"^{address}: something answers there, but not Ray$"),
                joined(address),
            ):
                pass
    finally:
        server.shutdown()
    assert time.monotonic() - began < 60
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # not the cluster of another command
    with pytest.raises(InputError, match=r"^no Ray cluster runs on this machine"), joined("auto"):
        pass


@pytest.mark.slow
def test_versions_that_differ(monkeypatch):
    import ray

    with machines(1) as (there, _):
        with monkeypatch.context() as patched:
            patched.setattr(ray, "__version__", "2.0.0")
            with pytest.raises(InputError) as told, joined(there.address):
                pass
        assert re.fullmatch(
            rf"{there.address}: the cluster has Ray \S+ and Python \S+, this machine has Ray 2.0.0 and .*",
            str(told.value),
        )
        with monkeypatch.context() as patched:
            patched.setattr(clusters, "version", lambda name: "9.9")
            with joined(there.address) as cluster, pytest.raises(InputError) as told:
                list(cluster.run(lambda: abs, [1], workers=1))
        assert re.fullmatch(
            r"\S+: a worker of the Ray cluster has tertium \S+, this machine has 9.9; they must be the same",
            str(told.value),
        )
