"""Clients at bare sockets: those that keep a server busy, and those that are gone."""

import http.client
import logging
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tertium.web import sockets
from tertium.web.sockets import listen, make_server, read_body

PATIENCE = 60  # seconds that anything may take on a busy machine
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def running(app):
    """Serve in a thread; give the port and the server."""
    with listen("127.0.0.1", 0) as listener:
        served = make_server(app)
        thread = threading.Thread(target=served.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1], served
        finally:
            served.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.fixture
def app():
    """Answers at once, after it was told to go on, with much, or with what was sent."""
    go = threading.Event()

    def wait(_):
        assert go.wait(PATIENCE)
        return PlainTextResponse("waited")

    async def echo(request):
        return Response(await read_body(request, 1000))

    routes = [
        Route("/", lambda _: PlainTextResponse("at once")),
        Route("/wait", wait),
        Route("/much", lambda _: Response(bytes(2**25))),
        Route("/echo", echo, methods=["POST"]),
    ]
    found = Starlette(routes=routes)
    found.go = go
    yield found
    go.set()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def ask(port, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_closed(client):
    """Wait until the server hangs up; what it says before is left out."""
    try:
        while client.recv(2**16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(("first", "sent"), [(b"", b""), (b"", b"GET"), (b"", GET[:-2]), (GET, GET[:-2])])
def test_headers_that_do_not_come_are_not_waited_for(app, monkeypatch, first, sent):
    """Also where a first request was answered, and a second one is only begun."""
    monkeypatch.setattr(sockets, "HEADERS", 0.3)
    with running(app) as (port, served), connect(port) as client:
        if first:
            client.sendall(first)
            assert client.recv(2000).startswith(b"HTTP/1.1 200 ")
        client.sendall(sent)
        until(lambda: served.server_state.connections)
        assert is_closed(client)
        until(lambda: not served.server_state.connections)


def test_headers_that_come_drop_by_drop_do_not_buy_time(app, monkeypatch):
    monkeypatch.setattr(sockets, "HEADERS", 0.5)
    with running(app) as (port, served), connect(port) as client:
        client.sendall(GET[:-2] + b"X-More: ")
        until(lambda: served.server_state.connections)
        with suppress(ConnectionError):
            for _ in range(20 * PATIENCE):
                client.sendall(b"a")
                if not served.server_state.connections:
                    break
                time.sleep(0.05)
        assert not served.server_state.connections


def test_a_slow_answer_is_not_taken_for_an_idle_client(app, monkeypatch):
    monkeypatch.setattr(sockets, "HEADERS", 0.2)
    with running(app) as (port, _), connect(port) as client:
        client.sendall(GET.replace(b"/ ", b"/wait "))
        time.sleep(0.6)
        app.go.set()
        assert client.recv(2000).startswith(b"HTTP/1.1 200 ")


def test_idle_clients_lock_nobody_out(app, monkeypatch):
    """More of them than connections: the oldest give way, and whoever asks is answered."""
    monkeypatch.setattr(sockets, "CONNECTIONS", 20)
    with running(app) as (port, served), ExitStack() as open_ones:
        busy = open_ones.enter_context(connect(port))
        busy.sendall(GET.replace(b"/ ", b"/wait "))
        until(lambda: served.server_state.tasks)
        idle = [open_ones.enter_context(connect(port)) for _ in range(60)]
        assert ask(port) == b"at once"
        for _ in range(30):
            idle.append(open_ones.enter_context(connect(port)))
            assert ask(port) == b"at once"
        assert len(served.server_state.connections) <= 21
        assert all(is_closed(client) for client in idle[:69])
        app.go.set()  # who was being answered still is
        assert busy.recv(2000).startswith(b"HTTP/1.1 200 ")


def test_when_all_are_busy_the_next_is_told_so(app, monkeypatch):
    monkeypatch.setattr(sockets, "CONNECTIONS", 3)
    with running(app) as (port, served), ExitStack() as open_ones:
        busy = [open_ones.enter_context(connect(port)) for _ in range(3)]
        for client in busy:
            client.sendall(GET.replace(b"/ ", b"/wait "))
        until(lambda: len(served.server_state.tasks) == 3)
        with connect(port) as client:
            client.sendall(GET)
            assert client.recv(2000).startswith(b"HTTP/1.1 503 ")
        app.go.set()
        assert all(client.recv(2000).startswith(b"HTTP/1.1 200 ") for client in busy)


def test_a_client_that_takes_no_answer_is_let_go(app, monkeypatch):
    monkeypatch.setattr(sockets, "PATIENCE", 0.5)
    with running(app) as (port, served), connect(port) as client:
        client.sendall(GET.replace(b"/ ", b"/much "))
        until(lambda: served.server_state.tasks)
        until(lambda: not served.server_state.connections and not served.server_state.tasks)
        assert ask(port) == b"at once"


@pytest.mark.parametrize("sent", [b"", b"half of it"])
def test_a_client_gone_in_the_middle_of_its_body_leaves_no_traceback(app, caplog, sent):
    with caplog.at_level(logging.INFO), running(app) as (port, served):
        with connect(port) as client:
            client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n" + sent)
            until(lambda: served.server_state.tasks)
        until(lambda: not served.server_state.tasks)
        assert ask(port) == b"at once"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_that_does_not_come_is_not_waited_for(app, monkeypatch):
    monkeypatch.setattr(sockets, "PATIENCE", 0.5)
    with running(app) as (port, _), connect(port) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf")
        found = client.recv(2000)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert is_closed(client)
