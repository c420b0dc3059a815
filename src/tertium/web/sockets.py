"""Servers that strangers may reach: where they listen, and how long a client may keep them busy."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from tertium.errors import InputError

CONNECTIONS = 512  # open at once; a process may often have 1,024 files
HEADERS = 10  # seconds for a client to send the headers of a request
PATIENCE = 30  # seconds to send a body, to take an answer, and for open requests at the end


def is_loopback(name: str) -> bool:
    """Return whether a host name or address is this machine and nothing else.

    >>> [is_loopback(name) for name in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    address = parse_address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is; None if it is a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def listen(host: str, port: int) -> socket.socket:
    """Take a port before any long work is done; 0 takes any that is free."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError(f"cannot listen on {host}: it is no address of this machine ({error})") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(place)
        found.listen(128)
    except OSError as error:
        found.close()
        reason = error.strerror or error
        raise InputError(f"cannot listen on {host} port {port} ({reason}); choose another --port") from None
    return found


def make_server(app: Any, **more: Any) -> uvicorn.Server:
    """Return what answers requests until SIGINT or SIGTERM, and then finishes what it has taken on."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,  # it would hold tokens
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS + 1,  # beyond, requests are refused with 503
        timeout_graceful_shutdown=PATIENCE,
        **more,
    )
    return uvicorn.Server(config)


class PatientProtocol(H11Protocol):
    """HTTP for clients that may mean no good, or that are gone without a word.

    A connection is closed if the headers of a request do not come in time, or if its client does not take
    the answer. Where too many are open, the one that has been idle for longest is closed.
    """

    _coming: asyncio.TimerHandle | None = None  # until the headers must be there
    _taking: asyncio.TimerHandle | None = None  # until the client must have taken what was sent
    _idle_since = 0.0

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in place of another connection if there are too many."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._coming = self.loop.call_later(HEADERS, self._close_if_idle)
        if len(self.connections) > CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        patient = [each for each in self.connections if isinstance(each, PatientProtocol)]
        still = [each for each in patient if not each.transport.is_closing()]
        idle = [each for each in still if each._is_idle and each is not self]
        if len(still) > CONNECTIONS and idle:
            min(idle, key=lambda each: each._idle_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of headers must be followed by the rest in time."""
        super().data_received(data)
        if not self._is_idle:
            _stop(self._coming)
            self._coming = None
        elif self._coming is None:
            self._coming = self.loop.call_later(HEADERS, self._close_if_idle)

    def on_response_complete(self) -> None:
        """Become idle; without another request the connection is soon closed."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to take what was sent, but not for ever."""
        super().pause_writing()
        self._taking = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client takes what is sent."""
        _stop(self._taking)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        _stop(self._coming)
        _stop(self._taking)
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        self._coming = None
        if self._is_idle:
            self.transport.abort()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request: never more bytes than allowed, and not waited for without end."""
    too_large = HTTPException(413, f"the body is larger than {most:,} bytes")
    if int(request.headers.get("content-length", "0")) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        gone = {"Connection": "close"}
        raise HTTPException(408, f"the body did not come within {PATIENCE} seconds", gone) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed before the body had come") from None
    return b"".join(parts)
