"""The page, and what it asks of the server."""

from __future__ import annotations

import json
import math
import socket
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tertium.errors import InputError, did_you_mean
from tertium.web.reviewing.access import Access, Guard
from tertium.web.reviewing.answers import SAID, Said, Standing
from tertium.web.reviewing.desk import Desk, Person, StaleError
from tertium.web.reviewing.results import export
from tertium.web.reviewing.summary import Summary, write_agreement
from tertium.web.reviewing.views import Views
from tertium.web.sockets import make_server, read_body

_PAGE = {
    "/": ("review.html", "text/html"),
    "/results": ("results.html", "text/html"),
    "/review.css": ("review.css", "text/css"),
    "/review.js": ("review.js", "text/javascript"),
    "/dom.js": ("dom.js", "text/javascript"),
    "/photo.js": ("photo.js", "text/javascript"),
    "/results.js": ("results.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_LONGEST = 2**16  # bytes of a request
_NAME, _MARK = 80, 64  # characters of a person's name, and of a window's or a step's id
_MOST = 2**31  # rounds and questions; SQLite's numbers end somewhere
_LONG = 600.0  # seconds for an answer, at most: whoever took longer did something else meanwhile
_KEEP = "private, max-age=3600"  # images: their address changes with the labels


def make_app(desk: Desk, views: Views, access: Access, *, run: str, who: str) -> Starlette:
    """Return the page about one run; ``who`` is the name that a person who gives none goes by."""
    about = {"run": run, "who": who, "images": views.has_images, "heat": views.has_heat}

    def opening(body: dict[str, Any]) -> dict[str, Any]:
        only = body.get("only")
        return desk.next(_person(body), None if only is None else desk.check_class(str(only)))

    def answering(body: dict[str, Any]) -> dict[str, Any]:
        heat = body.get("heat") is True
        return desk.answer(
            _person(body),
            _text(body, "step", _MARK),
            _whole(body, "round"),
            _given(body),
            heat,
            _seconds(body),
        )

    def undoing(body: dict[str, Any]) -> dict[str, Any]:
        return desk.undo(_person(body), _text(body, "step", _MARK), _whole(body, "round"))

    routes = [Route(path, _asset(*file)) for path, file in _PAGE.items()]
    routes += [
        Route("/api/about", lambda _: JSONResponse(about)),
        Route("/api/results", lambda _: JSONResponse(desk.results())),
        Route("/api/next", _posted(opening), methods=["POST"]),
        Route("/api/answer", _posted(answering), methods=["POST"]),
        Route("/api/undo", _posted(undoing), methods=["POST"]),
        Route("/image/{row:int}", _drawn(lambda p: views.image(p["row"]), "image/jpeg")),
        Route("/thumb/{row:int}", _drawn(lambda p: views.thumb(p["row"]), "image/jpeg")),
        Route("/heat/{number:int}", _drawn(lambda p: _heat(desk, views, p["number"]), "image/jpeg")),
        Route("/answers.csv", lambda _: _download(desk, "answers.csv")),
        Route("/answers-contradictions.csv", lambda _: _download(desk, "answers-contradictions.csv")),
        Route("/answers-agreement.csv", lambda _: _download(desk, "answers-agreement.csv")),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            StaleError: _told(409),
            InputError: _told(400),
            HTTPException: _refused,
            sqlite3.Error: _unsaved,
        },
    )


def check_name(who: Any) -> str:
    """Return a person's name as it is kept."""
    return _text({"name": who}, "name", _NAME)


def serve(app: Starlette, at: socket.socket) -> None:
    """Answer requests until stopped."""
    with suppress(KeyboardInterrupt):  # by then every answer is written and every request is done
        make_server(app, lifespan="off").run(sockets=[at])


# ---- replies -----------------------------------------------------------------------------------------------


def _asset(name: str, kind: str) -> Callable[[Request], Response]:
    content = (files("tertium.web.reviewing") / "page" / name).read_bytes()
    return lambda _: Response(content, media_type=kind)


def _posted(act: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(act, await _body(request)))

    return endpoint


def _drawn(draw: Callable[[dict[str, Any]], bytes], kind: str) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            return Response(draw(request.path_params), media_type=kind, headers={"cache-control": _KEEP})
        except InputError as error:
            return PlainTextResponse(str(error), 404)

    return endpoint


def _heat(desk: Desk, views: Views, number: int) -> bytes:
    question = desk.question(number)
    return views.heat(desk.row(question.image), question.label)


def _download(desk: Desk, name: str) -> Response:
    with tempfile.TemporaryDirectory(prefix="tertium-") as folder:
        try:
            export(desk.answers, desk.labels, Path(folder) / "answers.csv")
            write_agreement(
                Summary.of(Standing.of(desk.answers), None), Path(folder) / "answers-agreement.csv"
            )
        except InputError as error:
            return PlainTextResponse(str(error), 404)
        content = (Path(folder) / name).read_bytes()
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="text/csv", headers=headers)


def _told(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: JSONResponse({"error": str(error)}, status)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _unsaved(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"Not saved: the file of answers cannot be written ({error})."}, 503)


# ---- requests ----------------------------------------------------------------------------------------------


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await read_body(request, _LONGEST))
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    if not isinstance(body, dict) or not _is_unicode(body):
        raise InputError("the request is not a JSON object of characters")
    return body


def _is_unicode(body: dict[str, Any]) -> bool:
    """Return whether there is no half of a surrogate pair, which JSON can name but nobody can store."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _person(body: dict[str, Any]) -> Person:
    return Person(check_name(body.get("who")), _text(body, "window", _MARK))


def _text(body: dict[str, Any], key: str, longest: int) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value.strip() or len(value) > longest or not value.isprintable():
        raise InputError(f'"{key}" must be a text of 1 to {longest} printable characters')
    return value.strip()


def _whole(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise InputError(f'"{key}" must be a whole number from 0 up')
    return value


def _seconds(body: dict[str, Any]) -> float | None:
    """Return how long an answer took, by the page's clock; no answer is lost because of an odd clock."""
    value = body.get("seconds")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        return None
    return float(min(value, _LONG))


def _given(body: dict[str, Any]) -> list[tuple[int, Said]]:
    """Return the question numbers and answers of a request."""
    answers = body.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(each, dict) for each in answers):
        raise InputError('"answers" must be a list of objects with "number" and "said"')
    found = []
    for each in answers:
        said = each.get("said")
        if said not in SAID:
            raise InputError(f'an answer cannot be "{said}"; {did_you_mean(str(said), SAID)}')
        found.append((_whole(each, "number"), cast(Said, said)))
    return found
