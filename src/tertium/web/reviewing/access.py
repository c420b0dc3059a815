"""Who may use the page: this machine, or whoever has the token; and never another site's scripts."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tertium.web.sockets import is_loopback, parse_address

HEADER = "x-tertium"  # which no form of another site can send
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # an address with the token must not reach another site
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """What a request must show; ``token`` is None where only this machine can reach the page."""

    names: frozenset[str]  # that the server goes by, besides addresses
    token: str | None

    @classmethod
    def at(cls, host: str) -> Access:
        """Ask for a random token unless the host is this machine alone."""
        if is_loopback(host):
            return cls(frozenset({"localhost"}), None)
        own = ("localhost", host, socket.gethostname(), socket.getfqdn())
        return cls(frozenset(name.lower() for name in own), secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The cookie's name, another for each token: servers at other ports share a browser's cookies."""
        return "tertium-" + hashlib.sha256((self.token or "").encode()).hexdigest()[:12]

    def allows(self, given: str | None) -> bool:
        """Return whether this is the token; the comparison takes as long whatever is wrong."""
        return self.token is None or hmac.compare_digest((given or "").encode(), self.token.encode())

    def knows(self, name: str) -> bool:
        """Return whether a Host header may name this server.

        Another site's name that was made to point here is refused (DNS rebinding). An address cannot be
        made to point elsewhere.
        """
        if parse_address(name) is None:
            return name in self.names
        return self.token is not None or is_loopback(name)


class Guard:
    """Refuses requests before the app sees them, and sends every answer with strict headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope)
        first = request.query_params.get("token")
        invited = scope["path"] == "/" and first is not None and self._access.allows(first)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
                if invited and self._access.token is not None:
                    about = "HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", f"{self._access.cookie}={self._access.token}; {about}")
            await send(message)

        refusal = self._refusal(request, invited)
        app = self._app if refusal is None else PlainTextResponse(refusal, 403)
        await app(scope, receive, send_safely)

    def _refusal(self, request: Request, invited: bool) -> str | None:
        headers = request.headers
        host = headers.get("host", "")
        if not self._access.knows(_named(f"//{host}")[0]):
            return "This server does not go by that name."
        opened = request.method == "GET" and request.scope["path"] == "/" and _is_visit(request)
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opened:
            return "Another site asked for this."
        if request.method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if HEADER not in headers or (origin is not None and _named(origin)[1] != host):
                return "Another site may have sent this."
        if not invited and not self._access.allows(request.cookies.get(self._access.cookie)):
            return "Open the address that `tertium review` printed, with its token."
        return None


def _named(address: str) -> tuple[str, str]:
    """Return the host of an address without its port and with it; both are empty if it makes no sense."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "", parts.netloc
    except ValueError:
        return "", ""


def _is_visit(request: Request) -> bool:
    """Return whether a person follows a link here, rather than another site fetching or framing the page."""
    headers = request.headers
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
