"""The command that puts a model behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import say


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
) -> None:
    """Answer requests for predictions over HTTP.

    **Examples**

      tertium serve model.onnx

      curl --data-binary @photo.jpg 'http://127.0.0.1:8000/predict?top=5'

    POST /predict takes one image as the body, or JSON: {"images": [BASE64, ...]}, and for a model trained on
    features {"features": [[...], ...]}. GET /health says whether it is ready. Ctrl-C ends it, after open
    requests are answered. There is no authentication.
    """
    from tertium.web.serving import Limits, load, server
    from tertium.web.sockets import is_loopback, listen

    limits = Limits(max_batch, wait_ms, queue, int(max_body * 2**20), threads)
    with listen(host, port) as listener:
        loaded = load(model, threads)
        if not is_loopback(host):
            say(f"Warning: whoever reaches {host} may use it; there is no authentication and no encryption.")
        place = f"[{host}]" if ":" in host else host
        say(f"{model} ({len(loaded.classes):,} classes) on http://{place}:{listener.getsockname()[1]}")
        try:
            server(loaded, limits).run(sockets=[listener])
        except KeyboardInterrupt:  # Uvicorn raises it again, once all is answered
            say("Stopped.")
