"""A model behind HTTP: images or features in, probabilities out; simultaneous requests run as one batch.

The event loop only moves bytes. Bodies are read and decoded in a few threads, and one thread runs the model.
Requests in progress are counted, and refused beyond a limit, so memory is bounded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from tertium.data.decoding import decode_image
from tertium.data.views import View, resized
from tertium.errors import InputError, did_you_mean
from tertium.prediction.exported import Exported

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tertium.web.bearer import Token
    from tertium.web.monitoring import CONTENT_TYPE, Metrics, Record, RequestLog, watched
    from tertium.web.sockets import make_server, read_body
except ModuleNotFoundError:
    raise InputError("serving needs Starlette and Uvicorn: pip install 'tertium[onnx,web]'") from None

_FEW = 1000  # values that any body may hold, so that what is wrong with it is said
_BARE = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # what curl says by itself

USAGE = """Tertium: the probability of each class.

  curl --data-binary @photo.jpg 'http://HOST:PORT/predict?top=5'
  curl --json '{"images": ["<base64>", "<base64>"]}' http://HOST:PORT/predict
  curl --json '{"features": [[0.1, 0.2]]}' http://HOST:PORT/predict   (a model trained on features)

  ?top=K            the K most probable classes
  ?above=0.3        classes at least this probable; above=threshold: those called present
  GET /health       whether it is ready, which model, how many wait
  GET /metrics      counts and times, for Prometheus

Every answer names the model: X-Tertium-Model. If a token is needed: -H 'Authorization: Bearer TOKEN'
"""
HEADER = "X-Tertium-Model"  # of every answer: run and checksum
_OPEN = "/health"  # what needs no token, so that whatever starts the service can see that it is up


@dataclass(frozen=True)
class Limits:
    """What the service takes on at once."""

    max_batch: int = 16  # images that the model gets together
    wait_ms: float = 5.0  # that the first of them waits for others
    queue: int = 64  # images that are not answered yet; more are refused
    max_body: int = 16 * 2**20  # bytes of a request
    threads: int | None = None  # that decode images, and that the model uses; None: one a core


class _Item(NamedTuple):
    row: npt.NDArray[Any]
    answer: Future[npt.NDArray[np.float32]]


class Batcher:
    """Runs rows that come one by one in batches, in a thread of its own.

    >>> batcher = Batcher(lambda rows: rows + 1, most=4, wait=0.0, coming=lambda: 0)
    >>> batcher.submit(np.zeros(2)).result().tolist()
    [1.0, 1.0]
    >>> batcher.close()
    """

    def __init__(
        self, run: Callable[[npt.NDArray[Any]], Any], most: int, wait: float, coming: Callable[[], int]
    ) -> None:
        self._run, self._most, self._wait, self._coming = run, most, wait, coming
        self._waiting: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def submit(self, row: npt.NDArray[Any]) -> Future[npt.NDArray[np.float32]]:
        """Put one row in line; the future is its row of the result."""
        item = _Item(row, Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(item)
            self._changed.notify()
        return item.answer

    def close(self) -> None:
        """Finish what is in line, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while taken := self._take():
            # Who has given up meanwhile is left out.
            batch = [item for item in taken if item.answer.set_running_or_notify_cancel()]
            if not batch:
                continue
            try:
                found = self._run(np.stack([item.row for item in batch]))
            except Exception as error:  # told to those who asked; the others must still be served
                for item in batch:
                    item.answer.set_exception(error)
            else:
                for item, row in zip(batch, found, strict=True):
                    item.answer.set_result(row)

    def _take(self) -> list[_Item]:
        """Wait for rows; nothing, if there are none and there will be none."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            until = time.monotonic() + self._wait
            # Where nobody else is coming there is nothing to wait for.
            while not self._closed and len(self._waiting) < self._most and self._coming() > 0:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]


class Room:
    """How many images are on their way, from the first byte to the answer; used by one thread alone."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken, self._handed = limit, 0, 0

    @property
    def coming(self) -> int:
        """How many are still read or decoded, before the model has them."""
        return self.taken - self._handed

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Take places for a while; 503 if there are too few."""
        if self.taken + count > self.limit:
            raise HTTPException(
                503, f"{self.taken} images are waiting; try again in a second", {"Retry-After": "1"}
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    @contextmanager
    def hand_over(self, count: int) -> Iterator[None]:
        """Say that so many of the places are with the model from now on."""
        self._handed += count
        try:
            yield
        finally:
            self._handed -= count


@dataclass(frozen=True)
class Wish:
    """Which classes a client wants to see."""

    top: int | None = None
    above: float | str | None = None  # "threshold": each class's own

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Wish:
        """Read the query of a request; what is wrong with it is an `InputError`."""
        for name in query:
            if name not in ("top", "above"):
                raise InputError(
                    f"there is no parameter {name[:40]!r}; {did_you_mean(name, ['top', 'above'])}"
                )
        top, above = query.get("top"), query.get("above")
        if top is not None and not (top.isascii() and top.isdigit() and 0 < len(top) < 10 and int(top) > 0):
            raise InputError("top must be a whole number from 1")
        return cls(None if top is None else int(top), None if above is None else _share(above))

    def shown(self, scores: npt.NDArray[np.float64], thresholds: npt.NDArray[np.float64]) -> Sequence[int]:
        """Return which classes of one image to show, in which order."""
        if self.top is None and self.above is None:
            return range(len(scores))
        order = np.argsort(-scores, kind="stable")
        if self.above is not None:
            least = thresholds if self.above == "threshold" else np.full(len(scores), self.above)
            order = order[(scores >= least)[order]]
        return [int(number) for number in order[: self.top]]


def _share(text: str) -> float | str:
    if text == "threshold":
        return text
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise InputError('above must be a number from 0 to 1, or "threshold"')
    return value


# ---- bodies ----------------------------------------------------------------------------------------------


def decode(image: Any, view: View, what: str) -> npt.NDArray[np.uint8]:
    """Decode an image that a stranger sent, as bytes or in base64, and fit it: uint8 [size, size, 3]."""
    try:
        body = image if isinstance(image, bytes) else base64.b64decode(image, validate=True)
    except (ValueError, TypeError):
        raise InputError(f"{what} is not base64") from None
    return np.asarray(resized(decode_image(body, what), view))


def read_json(body: bytes, name: str, most: int) -> list[Any]:
    """Return the list under the one name that a body of JSON must have.

    A small body can stand for much memory, so its values are counted before it is parsed, and characters
    are not let in that would take four bytes each; base64 and numbers have none of those.
    """
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > most:
        raise HTTPException(413, f"the body holds more than {most:,} values")
    try:
        if b"\\u" in body:
            raise ValueError("an escape")
        value = json.loads(str(body, "ascii"))
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not valid JSON in plain ASCII") from None
    found = value[name] if isinstance(value, dict) and list(value) == [name] else None
    if not isinstance(found, list) or not found:
        raise InputError(f'the body must be {{"{name}": [...]}}, a list that is not empty, and nothing else')
    return found


def read_features(rows: list[Any], width: int) -> npt.NDArray[np.float32]:
    """Return rows of features as an array [rows, width]."""
    try:
        found = np.array(rows)
    except ValueError:  # rows of several lengths
        found = np.array(None)
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise InputError("features must be rows of numbers, all of the same length")
    if found.shape[1] != width:
        raise InputError(f"the model was trained on features of width {width}, not {found.shape[1]}")
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise InputError("features must be finite numbers")
    return narrow


# ---- the service -----------------------------------------------------------------------------------------


class Service:
    """The requests that are answered, and what they share."""

    def __init__(self, model: Exported, limits: Limits) -> None:
        self.model, self.limits = model, limits
        about = {"version": model.version, "run": model.run, "checksum": model.id}
        self.metrics = Metrics(["/", "/health", "/metrics", "/predict"], about)
        self.room = Room(limits.queue)
        self.pool = ThreadPoolExecutor(limits.threads or os.cpu_count(), thread_name_prefix="decode")
        self.batcher = Batcher(
            model.probabilities, limits.max_batch, limits.wait_ms / 1000, lambda: self.room.coming
        )

    def close(self) -> None:
        """Finish what has been taken on."""
        self.pool.shutdown()
        self.batcher.close()

    async def about(self, request: Request) -> Response:
        """Say how to use it, as plain text."""
        return PlainTextResponse(USAGE, headers={"X-Content-Type-Options": "nosniff"})

    async def health(self, request: Request) -> Response:
        """Say that it is ready, with which model, and how many images wait."""
        waiting = {"queue": self.room.taken, "limit": self.room.limit}
        return self._reply({"status": "ready", "model": self.model.summary()} | waiting)

    async def figures(self, request: Request) -> Response:
        """Answer with what was counted, for Prometheus."""
        return Response(self.metrics.text(self.room.taken), headers={"Content-Type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Answer with the probabilities of each image or row of a request."""
        wish = Wish.parse(request.query_params)
        as_json = self._is_json(request)
        with self.room.hold(1):
            parts = await self._parts(await self._body(request), as_json)
            with self.room.hold(len(parts) - 1):
                rows = await self._rows(parts)
                with self.room.hand_over(len(rows)):
                    answers = [asyncio.wrap_future(self.batcher.submit(row)) for row in rows]
                    scores = await asyncio.gather(*answers)
        if not np.isfinite(scores).all():
            raise InputError("the model gives no finite number for this input")
        record: Record = request.scope["tertium"]
        record.images = len(scores)
        return self._reply(
            {"model": self.model.id, "predictions": [self._shown(each, wish) for each in scores]}
        )

    def refused(self, request: Request, error: Exception) -> Response:
        """Say in one sentence what is wrong with a request."""
        if not isinstance(error, HTTPException):
            return self._reply({"error": str(error)}, 422)
        hints = {
            404: "there is nothing here; GET / says what there is",
            405: "not with this method; GET / says how",
        }
        detail = hints.get(error.status_code, error.detail)
        return self._reply({"error": detail}, error.status_code, error.headers)

    def failed(self, request: Request, error: Exception) -> Response:
        """Say that it is not the client's fault, and nothing else."""
        return self._reply({"error": "the service failed; its log says why"}, 500)

    def locked(self, token_was_sent: bool) -> Response:
        """Ask for the token."""
        challenge = 'Bearer realm="tertium"' + (', error="invalid_token"' if token_was_sent else "")
        detail = "this needs the right token: Authorization: Bearer TOKEN"
        return self._reply({"error": detail}, 401, {"WWW-Authenticate": challenge})

    def _reply(
        self, content: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return an object with the version of the model, which every answer has."""
        return JSONResponse(content | {"version": self.model.version}, status, headers)

    def _shown(self, scores: npt.NDArray[np.float32], wish: Wish) -> dict[str, Any]:
        exact, names = scores.astype(np.float64), self.model.classes
        present = np.flatnonzero(exact >= self.model.thresholds)
        return {
            "probabilities": {
                names[number]: round(float(exact[number]), 6)
                for number in wish.shown(exact, self.model.thresholds)
            },
            "present": [names[number] for number in present],
        }

    def _is_json(self, request: Request) -> bool:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return True
        if self.model.size == 0:
            raise HTTPException(415, 'send features as application/json: {"features": [[...], ...]}')
        if kind.startswith("image/") or kind in _BARE:
            return False
        raise HTTPException(415, 'send one image as the body, or application/json: {"images": ["<base64>"]}')

    async def _body(self, request: Request) -> bytes:
        body = await read_body(request, self.limits.max_body)
        if not body:
            raise HTTPException(400, "the body is empty")
        return body

    async def _parts(self, body: bytes, as_json: bool) -> list[Any]:
        """Return an image as it is, or what a body of JSON holds: images in base64, or rows of features."""
        if not as_json:
            return [body]
        name, width = ("images", 1) if self.model.size else ("features", self.model.width)
        most = max(_FEW, (self.limits.queue + 1) * (width + 1))
        found: list[Any] = await self._apart(read_json, body, name, most)
        if len(found) > self.limits.queue:
            raise HTTPException(413, f"a request may hold {self.limits.queue} {name}, not {len(found):,}")
        return found

    async def _rows(self, parts: list[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return them as the model takes them; images one by one, so that others get their turn between."""
        if not self.model.size:
            rows: npt.NDArray[np.float32] = await self._apart(read_features, parts, self.model.width)
            return list(rows)
        names = ["the body"] if len(parts) == 1 else [f"image {number + 1}" for number in range(len(parts))]
        return [
            await self._apart(decode, part, self.model.view, name)
            for part, name in zip(parts, names, strict=True)
        ]

    async def _apart(self, work: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *values)


def application(
    model: Exported, limits: Limits | None = None, token: Token | None = None, log: RequestLog | None = None
) -> ASGIApp:
    """Return the web application that serves a model: to all, or to those who send the token."""
    service = Service(model, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    routes = [
        Route("/", service.about),
        Route("/health", service.health),
        Route("/metrics", service.figures),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    app: ASGIApp = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: service.refused,
            InputError: service.refused,
            500: service.failed,
        },
    )
    if token is not None:
        app = _locked(app, service, token)
    # Headers are ASCII; the name of a run need not be.
    watching: ASGIApp = watched(app, service.metrics, log, {HEADER: quote(model.version, safe="@")})
    return watching


def _locked(app: ASGIApp, service: Service, token: Token) -> ASGIApp:
    """Return an application that answers only those who send the token, before anything else is read."""

    async def guarding(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != _OPEN:
            sent = [value for name, value in scope["headers"] if name == b"authorization"]
            if not token.opens(sent):
                await service.locked(bool(sent))(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarding


# ---- running it ------------------------------------------------------------------------------------------


def load(path: Path, threads: int | None = None) -> Exported:
    """Return an exported model, or the model of a run folder, which is exported to a temporary file."""
    if not path.is_dir():
        return Exported.load(path, threads)
    from tertium.prediction.exporting import export_onnx

    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        place = Path(folder) / "model.onnx"
        export_onnx(path, place)
        return Exported.load(place, threads)


def server(
    model: Exported, limits: Limits | None = None, token: Token | None = None, log: RequestLog | None = None
) -> uvicorn.Server:
    """Return what answers requests until SIGINT or SIGTERM, and then finishes what it has taken on."""
    # What is wrong with an image is told to the client; strangers shall not fill the log with it.
    warnings.filterwarnings("ignore", module="PIL")
    return make_server(application(model, limits, token, log))
