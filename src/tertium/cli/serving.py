"""The command that puts a model behind HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import say, say_aside
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.web.monitoring import RequestLog


def serve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An exported .onnx file, or a folder that train wrote.")
    ],
    host: Annotated[
        str, typer.Option(help="Address; by default only this machine can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8000,
    max_batch: Annotated[int, typer.Option(min=1, help="Images that the model gets together.")] = 16,
    wait_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="How long the first of them waits for others.")
    ] = 5.0,
    queue: Annotated[
        int, typer.Option(min=1, help="Images in progress at once; beyond that the answer is 503.")
    ] = 64,
    max_body: Annotated[float, typer.Option(min=0.001, help="Largest request in MB; above it, 413.")] = 16.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of the model, and as many that decode (default: cores)."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with a token that clients must send (default: $TERTIUM_TOKEN, or none)."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Where a line of JSON goes for each request; - prints it."),
    ] = None,
) -> None:
    """Answer requests for predictions over HTTP.

    **Examples**

      tertium serve model.onnx

      curl --data-binary @photo.jpg 'http://127.0.0.1:8000/predict?top=5'

      tertium serve model.onnx --host 0.0.0.0 --token-file token.txt --log requests.jsonl

    POST /predict takes one image as the body, or JSON: {"images": [BASE64, ...]}, and for a model trained on
    features {"features": [[...], ...]}. GET /health says whether it is ready, GET /metrics counts for
    Prometheus. With a token, everything but /health needs the header "Authorization: Bearer TOKEN". The log
    has the time, path, status, milliseconds, images and bytes of each request, and no content. Ctrl-C ends
    it, after open requests are answered.
    """
    from tertium.web.bearer import find_token
    from tertium.web.serving import Limits, load, server
    from tertium.web.sockets import listen

    limits = Limits(max_batch, wait_ms, queue, int(max_body * 2**20), threads)
    token = find_token(token_file)
    tell = say_aside if log == "-" else say  # what is printed shall then be JSON alone
    with listen(host, port) as listener, _log(log) as sink:
        loaded = load(model, threads)
        _warn(host, token_file, token is not None, tell)
        place = f"[{host}]" if ":" in host else host
        tell(f"{model} ({len(loaded.classes):,} classes) on http://{place}:{listener.getsockname()[1]}")
        try:
            server(loaded, limits, token, sink).run(sockets=[listener])
        except KeyboardInterrupt:  # Uvicorn raises it again, once all is answered
            tell("Stopped.")


@contextmanager
def _log(place: str | None) -> Iterator[RequestLog | None]:
    """Open the log that an option names; lines are added to a file that is there."""
    from tertium.web.monitoring import RequestLog

    if place is None or place == "-":
        yield None if place is None else RequestLog(sys.stdout)
        return
    try:
        _check_log(Path(place))
        file = open(place, "a", encoding="utf-8")  # noqa: SIM115 (what fails later is no fault of the path)
    except OSError as error:
        raise InputError(f"{place}: the log cannot be written ({error.strerror})") from None
    with file:
        yield RequestLog(file)


def _check_log(path: Path) -> None:
    """Refuse to add lines to what is no log: a model, a label file."""
    if path.is_file():
        with open(path, "rb") as there:
            if there.read(9) not in (b"", b'{"time": '):
                raise InputError(
                    f"{path}: holds something other than a log of requests; choose another --log"
                )


def _warn(host: str, token_file: Path | None, locked: bool, tell: Callable[[str], None]) -> None:
    """Say what strangers may do."""
    from tertium.web.bearer import others_can_read
    from tertium.web.sockets import is_loopback

    if token_file is not None and others_can_read(token_file):
        tell(f"Warning: other accounts can read {token_file}; chmod 600 {token_file}")
    if is_loopback(host):
        return
    if locked:
        tell("Warning: there is no encryption; whoever can read the network can read the token.")
    else:
        tell(f"Warning: whoever reaches {host} may use it; there is no authentication and no encryption.")
