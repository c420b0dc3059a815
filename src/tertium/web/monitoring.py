"""What the prediction service has done: a log of requests, and figures for Prometheus. Neither has content.

Paths that the service does not have are counted as "other": a stranger shall not write into the log, nor
make up as many time series as there are names.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import IO, Any

OTHER = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
# Seconds. An image takes milliseconds; a batch in a long queue, seconds; a slow client's body up to 30.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Record:
    """One request: what is known of it when it is answered."""

    def __init__(self, path: str) -> None:
        self.path, self.status = path, 500  # what a client sees if nothing was answered
        self.images = self.bytes = 0  # predicted; of the body, as far as it was read
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.perf_counter() - self._began


class RequestLog:
    """A line of JSON for each request, in the order of the answers."""

    def __init__(self, sink: IO[str]) -> None:
        """Write to a text file that is open."""
        self._sink: IO[str] | None = sink

    def write(self, record: Record) -> None:
        """Write one line at once; a full disk ends the log, not the service."""
        if self._sink is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "path": record.path,
            "status": record.status,
            "ms": round(1000 * record.seconds, 1),
            "images": record.images,
            "bytes": record.bytes,
        }
        try:
            self._sink.write(json.dumps(line) + "\n")
            self._sink.flush()
        except OSError as error:
            self._sink = None
            logging.getLogger(__name__).warning("The request log ends here: it cannot be written (%s)", error)


class Metrics:
    """Counts since the start, as Prometheus reads them; used by one thread alone."""

    def __init__(self, paths: Collection[str], model: Mapping[str, str]) -> None:
        """Count requests of these paths; ``model`` says which one it is, by names and values."""
        self._paths, self._model = frozenset(paths), dict(model)
        self._began = time.time()
        self._requests: Counter[tuple[str, str]] = Counter()  # by path and status
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._images = 0
        self.in_flight = 0

    def begin(self, path: str) -> Record:
        """Count a request that has come."""
        self.in_flight += 1
        return Record(path if path in self._paths else OTHER)

    def end(self, record: Record) -> None:
        """Count a request that is answered."""
        self.in_flight -= 1
        self._requests[record.path, str(record.status)] += 1
        self._buckets[record.path][bisect_left(BUCKETS, record.seconds)] += 1
        self._seconds[record.path] += record.seconds
        self._images += record.images

    def text(self, images_in_progress: int) -> str:
        """Return all figures in Prometheus' text format."""
        requests = [
            _sample("tertium_requests_total", {"path": path, "status": status}, count)
            for (path, status), count in sorted(self._requests.items())
        ]
        latency = [line for path in sorted(self._buckets) for line in self._histogram(path)]
        model = [_sample("tertium_model_info", self._model, 1)]
        progress = "Images between their first byte and the answer."
        families = [
            _family("tertium_requests_total", "counter", "Requests answered.", requests),
            _family("tertium_request_duration_seconds", "histogram", "Until all is answered.", latency),
            _family("tertium_images_predicted_total", "counter", "Images or rows of features.", self._images),
            _family("tertium_requests_in_flight", "gauge", "This request included.", self.in_flight),
            _family("tertium_images_in_progress", "gauge", progress, images_in_progress),
            _family("tertium_model_info", "gauge", "Which model answers.", model),
            _family("process_start_time_seconds", "gauge", "When the service was started.", self._began),
        ]
        return "\n".join(line for family in families for line in family) + "\n"

    def _histogram(self, path: str) -> Iterable[str]:
        name, total = "tertium_request_duration_seconds", 0
        for bound, count in zip((*BUCKETS, float("inf")), self._buckets[path], strict=True):
            total += count
            yield _sample(f"{name}_bucket", {"path": path, "le": _number(bound)}, total)
        yield _sample(f"{name}_sum", {"path": path}, self._seconds[path])
        yield _sample(f"{name}_count", {"path": path}, total)


def _family(name: str, kind: str, about: str, samples: list[str] | float) -> list[str]:
    lines = samples if isinstance(samples, list) else [_sample(name, {}, samples)]
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    if not labels:
        return f"{name} {_number(value)}"
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}"


def _escaped(text: str) -> str:
    r"""Return a text as the value of a label.

    >>> print(_escaped('a "b" \\ c'))
    a \"b\" \\ c
    """
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)


def watched(app: Any, metrics: Metrics, log: RequestLog | None, headers: Mapping[str, str]) -> Any:
    """Return an ASGI application that counts and logs requests, and sends headers with every answer."""
    extra = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]

    async def watching(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        record = scope["tertium"] = metrics.begin(scope["path"])

        async def counted() -> Any:
            message = await receive()
            record.bytes += len(message.get("body", b""))
            return message

        async def answered(message: Any) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = message | {"headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await app(scope, counted, answered)
        finally:
            metrics.end(record)
            if log is not None:
                log.write(record)

    return watching
