"""An exported model beside torch, from files to probabilities; and behind HTTP, beside the bare session.

EfficientNet-Lite0 at 224 pixels with 80 classes, on JPEGs of 500×375 pixels. The server is a process of its
own on this machine, the clients are threads here; each level ends after its requests or after SECONDS. The
model has one thread everywhere.
"""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bench.measure import Row, row, show
from tertium.data.scenes import render
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.prediction.exported import Exported
from tertium.prediction.exporting import export_onnx
from tertium.prediction.trained import Trained
from tertium.web.serving import decode

SIZE, CLASSES, SECONDS = 224, 80, 10.0


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    images: int = 64
    repeats: int = 5
    requests: int = 160
    levels: tuple[int, ...] = (1, 4, 16)  # clients at once
    started: tuple[str, ...] = ("torch", "ONNX")


def rows(smoke: bool = False) -> list[Row]:
    scale = Scale(2, 1, 2, (2,), ("ONNX",)) if smoke else Scale()
    with tempfile.TemporaryDirectory(prefix="tertium-bench-") as name:
        folder = Path(name)
        photos = write_photos(folder / "photos", scale.images)
        trained = write_run(folder / "run")
        export_onnx(folder / "run", folder / "model.onnx")
        model = Exported.load(folder / "model.onnx", 1)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        faster, less = predicting(trained, model, folder / "photos", scale.repeats)
        torch.set_num_threads(threads)
        found = [
            row("predict", f"{scale.images} photos to probabilities: times as fast as torch", faster, "≥", 3),
            row("predict", "processor time of torch / that of ONNX Runtime", less, "≥", 3),
        ]
        for what, seconds in starting(folder, scale.started).items():
            found.append(row("predict", f"the command with one photo, {what}: seconds", seconds, "", None))
        return found + load(folder / "model.onnx", model, photos, scale)


def write_photos(folder: Path, count: int) -> list[bytes]:
    folder.mkdir()
    found = []
    for number, pixels in enumerate(render(count, size=128).images):
        file = BytesIO()
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        (folder / f"{number:03d}.jpg").write_bytes(file.getvalue())
        found.append(file.getvalue())
    return found


def write_run(folder: Path) -> Trained:
    folder.mkdir()
    backbone = pretrained(size=SIZE)
    model = Classifier([str(number) for number in range(CLASSES)], backbone.width, backbone)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    trained = Trained(model.eval(), np.full(CLASSES, 0.5))
    trained.save(folder)
    return trained


def predicting(trained: Trained, model: Exported, photos: Path, repeats: int) -> tuple[float, float]:
    """Return torch's time over ours: by the clock, and of the processor, which others may share."""
    inputs, theirs = model.inputs(photos, None, None), trained.inputs(photos, None, None)
    calls = (lambda: trained.stream(theirs), lambda: model.stream(inputs))
    scores = [np.concatenate(list(call())) for call in calls]
    assert np.abs(scores[0] - scores[1]).max() < 1e-4
    spent = np.empty((repeats, 2, 2))
    for repeat in range(repeats):
        for number, call in enumerate(calls):
            before = np.array([time.perf_counter(), time.process_time()])
            list(call())
            spent[repeat, number] = np.array([time.perf_counter(), time.process_time()]) - before
    clock, processor = np.median(spent[:, 0] / spent[:, 1], axis=0).tolist()
    return clock, processor


def starting(folder: Path, kinds: tuple[str, ...]) -> dict[str, float]:
    one = folder / "one"
    one.mkdir()
    (one / "a.jpg").write_bytes((folder / "photos" / "000.jpg").read_bytes())
    seconds = {}
    for what in kinds:
        model = {"torch": "run", "ONNX": "model.onnx"}[what]
        words = ["predict", folder / model, "--images", one, "--out", folder / f"{what}.csv"]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tertium", *words], check=True, capture_output=True)
        seconds[what] = time.perf_counter() - start
    return seconds


# ---- behind HTTP -----------------------------------------------------------------------------------------


def load(path: Path, model: Exported, photos: list[bytes], scale: Scale) -> list[Row]:
    bare = alone(model, photos, scale.requests)
    found = [row("serving", "bare session, one photo at a time: photos a second", bare, "", None)]
    with server(path) as port:
        ask(port, photos, 1, min(20, scale.requests))  # the first requests fill caches
        for clients in scale.levels:
            seconds, took = ask(port, photos, clients, scale.requests)
            rate, text = len(took) / seconds, f"{clients} client{'s' * (clients > 1)}"
            found += [
                row("serving", f"{text}: requests a second", rate, "", None),
                row("serving", f"{text}: of the bare session's rate", rate / bare, "", None),
                row("serving", f"{text}: median ms", 1000 * np.median(took), "", None),
                row("serving", f"{text}: 99th percentile ms", 1000 * np.percentile(took, 99), "", None),
            ]
    return found


def alone(model: Exported, photos: list[bytes], requests: int) -> float:
    """Return how many photos a second are decoded and run with nothing around it."""
    start, count = time.perf_counter(), 0
    while count < requests and time.perf_counter() - start < SECONDS:
        model.probabilities(decode(photos[count % len(photos)], SIZE, "it")[None])
        count += 1
    return count / (time.perf_counter() - start)


@contextmanager
def server(path: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "tertium", "serve", str(path), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            said = re.search(r"http://127\.0\.0\.1:(\d+)", child.stdout.readline() if child.stdout else "")
            assert said, "the server did not start"
            yield int(said[1])
        finally:
            child.terminate()


def ask(port: int, photos: list[bytes], clients: int, requests: int) -> tuple[float, list[float]]:
    """Send requests from several clients, each on one connection; return the time, and each request's."""
    took: list[float] = []
    start = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        for turn in range(number, requests, clients):
            if time.perf_counter() - start > SECONDS:
                break
            begin = time.perf_counter()
            connection.request("POST", "/predict?top=5", photos[turn % len(photos)])
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            took.append(time.perf_counter() - begin)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start, took


if __name__ == "__main__":
    show(rows())
