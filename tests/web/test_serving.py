"""A model behind HTTP: right answers, bounded in memory and time, and never a 500 for what a client sends."""

import base64
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from tertium.data import decoding
from tertium.errors import InputError
from tertium.prediction.exported import Exported
from tertium.web import serving, sockets
from tertium.web.serving import Batcher, Limits, application, load, read_json, server
from tertium.web.sockets import is_loopback, listen
from tests.prediction.test_exported import as_they_are, mean_colour, sigmoid, write_model
from tests.prediction.test_exporting import save_feature_run

PATIENCE = 60  # seconds that anything may take on a busy machine


def picture(colour, kind="PNG", size=(9, 7)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


RED = picture((200, 100, 128))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    images = mean_colour(folder / "images.onnx", thresholds="[0.5, 0.5, 0.6]")
    return {"images": Exported.load(images, 1), "features": Exported.load(as_they_are(folder / "f.onnx"), 1)}


@pytest.fixture(scope="module")
def images(models):
    with TestClient(application(models["images"]), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def features(models):
    with TestClient(application(models["features"]), raise_server_exceptions=False) as client:
        yield client


# ---- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image/png", "", "application/x-www-form-urlencoded", "IMAGE/PNG; a=b"])
def test_one_image_as_the_body(images, kind):
    found = images.post("/predict", content=RED, headers={"content-type": kind})
    assert found.status_code == 200
    answer = found.json()
    assert answer["model"] == "0123456789ab"
    (only,) = answer["predictions"]
    wanted = sigmoid([200 - 128, 100 - 128, 0])
    assert list(only["probabilities"]) == ["red", "green", "blue"]
    np.testing.assert_allclose(list(only["probabilities"].values()), wanted, atol=1e-6)
    assert only["present"] == ["red"]  # blue is 0.5, and its threshold 0.6


def test_several_images_in_base64(images):
    sent = [base64.b64encode(picture((0, 0, level), "JPEG")).decode() for level in (90, 250, 100)]
    found = images.post("/predict", json={"images": sent}).json()["predictions"]
    assert [each["present"] for each in found] == [[], ["blue"], []]


def test_features_as_rows(features):
    found = features.post("/predict", json={"features": [[0, 1.5, -2], [-1, -1, 3]]})
    values = [list(each["probabilities"].values()) for each in found.json()["predictions"]]
    np.testing.assert_allclose(values, sigmoid([[0, 1.5, -2], [-1, -1, 3]]), atol=1e-6)


@pytest.mark.parametrize(
    ("query", "classes"),
    [
        ("", ["red", "green", "blue"]),
        ("?top=2", ["green", "blue"]),
        ("?top=99", ["green", "blue", "red"]),
        ("?above=0.5", ["green", "blue"]),
        ("?above=0.99", []),
        ("?above=threshold", ["green", "blue"]),
        ("?above=0.5&top=1", ["green"]),
    ],
)
def test_which_classes_are_shown(features, query, classes):
    found = features.post(f"/predict{query}", json={"features": [[-1, 2, 1]]}).json()["predictions"][0]
    assert list(found["probabilities"]) == classes
    assert found["present"] == ["green", "blue"]


def test_how_it_is_and_how_to_use_it(images, features):
    health = images.get("/health").json()
    assert (health["status"], health["queue"], health["limit"]) == ("ready", 0, 64)
    assert health["model"] == {"id": "0123456789ab", "run": "first", "images": "8 × 8", "classes": 3}
    assert features.get("/health").json()["model"]["features"] == 3
    text = images.get("/")
    assert text.headers["content-type"].startswith("text/plain")
    assert "curl --data-binary @photo.jpg" in text.text


# ---- what a client may get wrong -------------------------------------------------------------------------


BASE64 = base64.b64encode(RED).decode()


@pytest.mark.parametrize(
    ("kind", "body", "status", "complaint"),
    [
        ("image/png", b"", 400, "the body is empty"),
        ("image/png", b"<script>", 422, "not an image that can be read"),
        ("image/png", RED[:45], 422, "the body: the image is damaged"),
        ("image/svg+xml", b"<svg/>", 422, "not an image that can be read"),
        ("multipart/form-data; boundary=x", RED, 415, "send one image as the body"),
        ("text/html", RED, 415, "send one image as the body"),
        ("application/json", b"{", 400, "not valid JSON"),
        ("application/json", b"\xff\xfe", 400, "not valid JSON"),
        ("application/json", b"[" * 900, 400, "not valid JSON"),
        ("application/json", b"[" * 100_000, 413, "holds more than 1,000 values"),
        ("application/json", b'{"images": ["\\u0041"]}', 400, "not valid JSON in plain ASCII"),
        ("application/json", b"9" * 10_000, 400, "not valid JSON"),
        ("application/json", b"[]", 422, 'must be {"images": [...]}'),
        ("application/json", b'{"images": []}', 422, "not empty"),
        ("application/json", b'{"image": ["a"]}', 422, 'must be {"images": [...]}'),
        ("application/json", b'{"images": ["a"], "x": 1}', 422, "nothing else"),
        ("application/json", b'{"images": [7]}', 422, "not base64"),
        ("application/json", b'{"images": ["\xc3\xa9"]}', 400, "not valid JSON in plain ASCII"),
        ("application/json", f'{{"images": ["{BASE64}", "!"]}}'.encode(), 422, "image 2 is not base64"),
        ("application/json", json.dumps({"images": ["a"] * 65}).encode(), 413, "may hold 64 images, not 65"),
    ],
)
def test_bodies_that_are_refused(images, kind, body, status, complaint):
    found = images.post("/predict", content=body, headers={"content-type": kind})
    assert found.status_code == status
    assert complaint in found.json()["error"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([[1, 2]], "width 3, not 2"),
        ([[1, 2, 3], [1, 2]], "all of the same length"),
        ([1, 2, 3], "rows of numbers"),
        ([["1", "2", "3"]], "rows of numbers"),
        ([[True, False, True]], "rows of numbers"),
        ([[None, 1, 2]], "rows of numbers"),
        ([[10**400, 1, 2]], "rows of numbers"),
        ([[float("nan"), 1, 2]], "finite"),
        ([[1e300, 1, 2]], "finite"),
        ([[[[1]]]], "rows of numbers"),
    ],
)
def test_features_that_are_refused(features, value, complaint):
    body = json.dumps({"features": value})
    found = features.post("/predict", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 422
    assert complaint in found.json()["error"]


def test_few_bytes_cannot_take_much_memory():
    """Bodies that are small as text and large as Python objects; what is left to parse is text once more."""
    size = 2**21
    bodies = [
        b'{"features": [' + b"[]," * (size // 3) + b"[]]}",
        b'{"features": ' + b"[" * size + b"]" * size + b"}",
        b'{"features": [' + b"{}," * (size // 3) + b"0]}",
        b'{"features": [[' + b"0," * (size // 2) + b"0]]}",
        b'{"features": {' + b'"":0,' * (size // 5) + b'"a":0}}',
        b'{"features": ["' + b"a" * size + b'\\ud83d\\ude00"]}',
        b'{"features": ["' + b"a" * size + b'\xf0\x9f\x98\x80"]}',
        b'{"features": ["' + b"a" * size + b'"]}',
    ]
    for body in bodies:
        tracemalloc.start()
        with suppress(HTTPException):
            read_json(body, "features", 1000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.2 * len(body), body[:20]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_the_memory_of_a_server_is_bounded(tmp_path):
    """Four bodies at once, of the largest allowed size, that parsed would take 1.6 GB."""
    with command(as_they_are(tmp_path / "m.onnx"), "--threads", 2) as (child, port):
        before = peak_memory(child.pid)
        nested = b'{"features": [' + b"[]," * (16 * 2**20 // 3 - 10) + b"[]]}"
        answers, threads = together(port, [nested] * 4, "application/json")
        for thread in threads:
            thread.join(PATIENCE)
        assert [status for status, _, _ in answers] == [413] * 4
        assert peak_memory(child.pid) - before < 10 * 16  # MB: at most each body twice


def peak_memory(pid):
    """Return the most memory that a process has taken, in MB."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def test_what_the_model_makes_no_number_of_is_refused(tmp_path):
    nodes = [onnx.helper.make_node("Log", ["features"], ["logits"])]
    path = write_model(tmp_path / "log.onnx", nodes, onnx.TensorProto.FLOAT, ["batch", 3])
    with TestClient(application(Exported.load(path, 1)), raise_server_exceptions=False) as client:
        assert client.post("/predict", json={"features": [[1, 2, 3]]}).status_code == 200
        found = client.post("/predict", json={"features": [[1, 2, 3], [1, -2, 3]]})
        assert (found.status_code, "no finite number" in found.json()["error"]) == (422, True)


def test_features_must_be_json(features):
    found = features.post("/predict", content=RED, headers={"content-type": "image/png"})
    assert (found.status_code, "send features" in found.json()["error"]) == (415, True)


@pytest.mark.parametrize("query", ["top=0", "top=-1", "top=x", "top=²", "above=2", "above=nan", "tpo=1"])
def test_wishes_that_are_refused(images, query):
    found = images.post(f"/predict?{query}", content=RED)
    assert found.status_code == 422
    assert found.json()["error"].count(".") == 0  # one sentence


def test_other_paths_and_methods(images):
    for method, path, status in (("GET", "/predict", 405), ("GET", "/<b>", 404), ("POST", "/health", 405)):
        found = images.request(method, path)
        assert (found.status_code, list(found.json())) == (status, ["error", "version"])
        assert "<b>" not in found.text


def test_no_image_may_have_too_many_pixels(images, monkeypatch):
    assert images.post("/predict", content=picture((1, 2, 3), size=(100, 100))).status_code == 200
    monkeypatch.setattr(decoding, "LARGEST", 9999)
    found = images.post("/predict", content=picture((1, 2, 3), size=(100, 100)))
    assert found.status_code == 422
    assert found.json()["error"] == "the body: too large: 100 × 100 pixels, at most 9,999"
    huge = bytearray(picture((1, 2, 3), "BMP"))  # says that it is larger than any memory
    huge[18:26] = (2**30).to_bytes(4, "little") * 2
    found = images.post("/predict", content=bytes(huge))
    assert (found.status_code, "too large" in found.json()["error"]) == (422, True)


def test_postscript_is_not_run(images):
    file = io.BytesIO()
    Image.new("RGB", (9, 7)).save(file, "EPS")
    assert images.post("/predict", content=file.getvalue()).status_code == 422


WHOLE = {kind: picture((10, 20, 30), kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")}


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(WHOLE)), st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255))), st.data()
)
def test_damaged_images_never_fail_the_service(images, kind, changes, data):
    body = bytearray(WHOLE[kind])
    for place, value in changes:
        body[place % len(body)] = value
    cut = data.draw(st.integers(1, len(body)))
    found = images.post("/predict", content=bytes(body[:cut]))
    assert found.status_code in (200, 422)
    assert list(found.json()) == (
        ["error", "version"] if found.status_code == 422 else ["model", "predictions", "version"]
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(BASE64),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["images", "features"]), anything, st.booleans(), st.binary(max_size=3))
def test_damaged_json_never_fails_the_service(images, features, name, value, wrapped, tail):
    body = json.dumps({name: value} if wrapped else value).encode() + tail
    for client in (images, features):
        found = client.post("/predict", content=body, headers={"content-type": "application/json"})
        assert found.status_code in (200, 400, 413, 422)


# ---- batches ---------------------------------------------------------------------------------------------


def test_what_waits_runs_together():
    sizes, begin = [], threading.Event()

    def run(rows):
        begin.wait(PATIENCE)
        sizes.append(len(rows))
        return 10 * rows

    batcher = Batcher(run, most=4, wait=0.0, coming=lambda: 0)
    first = batcher.submit(np.array([0.0]))
    while batcher._waiting:
        time.sleep(0.001)
    rest = [batcher.submit(np.array([float(number)])) for number in range(1, 11)]
    begin.set()
    batcher.close()
    assert [answer.result(0).item() for answer in (first, *rest)] == [10.0 * number for number in range(11)]
    assert sizes == [1, 4, 4, 2]
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(np.zeros(1))


def test_waiting_ends_when_all_are_there():
    coming = 1
    batcher = Batcher(lambda rows: np.full(len(rows), len(rows)), 16, 600.0, lambda: coming)
    first = batcher.submit(np.zeros(1))
    time.sleep(0.05)
    assert not first.done()
    coming = 0
    second = batcher.submit(np.zeros(1))
    assert (first.result(PATIENCE), second.result(PATIENCE)) == (2, 2)
    assert batcher.submit(np.zeros(1)).result(PATIENCE) == 1
    batcher.close()


def test_a_failure_is_told_to_those_it_concerns():
    def run(rows):
        if rows.min() < 0:
            raise ValueError("negative")
        return rows

    batcher = Batcher(run, 1, 0.0, lambda: 0)
    bad, good = batcher.submit(np.array([-1])), batcher.submit(np.array([1]))
    with pytest.raises(ValueError, match="negative"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE) == 1
    batcher.close()


def test_who_has_given_up_is_left_out():
    batcher = Batcher(lambda rows: rows, 16, 600.0, lambda: 1)
    gone, stays = batcher.submit(np.zeros(1)), batcher.submit(np.ones(1))
    assert gone.cancel()
    batcher.close()
    assert stays.result(0) == 1


# ---- a server, with clients at sockets -------------------------------------------------------------------


class Slow:
    """A model that waits until it is told to go on."""

    def __init__(self, model):
        self.model, self.go, self.sizes = model, threading.Event(), []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def probabilities(self, inputs):
        assert self.go.wait(PATIENCE)
        self.sizes.append(len(inputs))
        return self.model.probabilities(inputs)


@contextmanager
def running(model, limits=None):
    """Serve in a thread; give the port and the server."""
    with listen("127.0.0.1", 0) as listener:
        served = server(model, limits)
        thread = threading.Thread(target=served.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1], served
        finally:
            served.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


def ask(port, body=RED, path="/predict", method="POST", kind="image/png"):
    """Send one request; return the status, the headers and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"content-type": kind} if body else {})
        found = connection.getresponse()
        return found.status, dict(found.getheaders()), json.loads(found.read())
    finally:
        connection.close()


def together(port, bodies, kind="image/png"):
    """Send requests at once; return what each thread will have been answered, and the threads."""
    answers = [None] * len(bodies)

    def send(number):
        answers[number] = ask(port, bodies[number], kind=kind)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    return answers, threads


def until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def queue(port):
    return ask(port, None, "/health", "GET")[2]["queue"]


def test_a_full_queue_is_said_at_once(models):
    slow = Slow(models["images"])
    with running(slow, Limits(queue=3, max_batch=2, wait_ms=0)) as (port, _):
        bodies = [picture((level, 0, 0)) for level in (0, 128, 255)]
        answers, threads = together(port, bodies)
        until(lambda: queue(port) == 3)
        status, headers, answer = ask(port)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "3 images are waiting" in answer["error"]
        slow.go.set()
        for thread in threads:
            thread.join(PATIENCE)
        found = [answer["predictions"][0]["probabilities"]["red"] for _, _, answer in answers]
        np.testing.assert_allclose(found, sigmoid([-128, 0, 127]), atol=1e-6)  # each its own answer
        assert ask(port)[0] == 200
        assert queue(port) == 0
        assert max(slow.sizes) <= 2


def test_many_images_in_one_request_take_as_many_places(models):
    slow = Slow(models["images"])
    with running(slow, Limits(queue=3)) as (port, _):
        answers, threads = together(port, [RED])
        until(lambda: queue(port) == 1)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        body = json.dumps({"images": [BASE64] * 3})
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        assert connection.getresponse().status == 503
        connection.close()
        assert queue(port) == 1
        slow.go.set()
        threads[0].join(PATIENCE)
        assert answers[0][0] == 200


def test_a_body_that_is_too_large_is_not_read(models):
    with running(models["images"], Limits(max_body=1000)) as (port, _):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
            assert client.recv(2000).startswith(b"HTTP/1.1 413 ")  # before any of it was sent
        with socket.create_connection(
            ("127.0.0.1", port), PATIENCE
        ) as client:  # one that does not say how long
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"3e8\r\n" + bytes(1000) + b"\r\n1\r\n1\r\n")
            assert client.recv(2000).startswith(b"HTTP/1.1 413 ")
        assert ask(port, bytes(2**22))[0] == 413  # a client that sends it all the same hears why
        assert ask(port)[0] == 200
        assert queue(port) == 0


def test_a_slow_client_stands_in_nobodys_way(models, monkeypatch):
    monkeypatch.setattr(sockets, "PATIENCE", 6)  # time enough to see it wait, on a busy machine too
    with (
        running(models["images"], Limits(wait_ms=0)) as (port, _),
        socket.create_connection(("127.0.0.1", port), PATIENCE) as client,
    ):
        begin = time.monotonic()
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n" + RED[:9])
        until(lambda: queue(port) == 1)
        assert ask(port)[0] == 200
        found = b"".join(iter(lambda: client.recv(2000), b""))  # until the server hangs up
        assert time.monotonic() - begin >= 6
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 6 seconds" in found
        assert queue(port) == 0


def test_clients_that_hang_up_are_forgotten(models):
    slow = Slow(models["images"])
    with running(slow) as (port, _):
        for sent in (RED[:9], RED):
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(RED)}\r\n\r\n".encode()
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                client.sendall(head + sent)
                until(lambda: queue(port) == 1)
            if sent is RED:
                slow.go.set()
            until(lambda: queue(port) == 0)
        assert ask(port)[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # a client that speaks TLS
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http(models, sent):
    with running(models["images"]) as (port, _):
        found = b""
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            with suppress(OSError):  # a server that hangs up before it has read all resets the connection
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                found = client.recv(2000)
        assert not found or found.startswith(b"HTTP/1.1 4")
        assert ask(port)[0] == 200


def test_two_clients_at_once_share_a_batch(models):
    slow = Slow(models["images"])
    with running(slow, Limits(wait_ms=1000 * PATIENCE)) as (port, _):
        answers, threads = together(port, [picture((level, 0, 0)) for level in (120, 140, 130)])
        until(lambda: queue(port) == 3)
        slow.go.set()
        for thread in threads:
            thread.join(PATIENCE)
        found = [answer["predictions"][0]["probabilities"]["red"] for _, _, answer in answers]
        np.testing.assert_allclose(found, sigmoid([-8, 12, 2]), atol=1e-6)
        assert sum(slow.sizes) == 3
        assert max(slow.sizes) >= 2


def test_what_was_taken_on_is_answered_before_the_end(models):
    slow = Slow(models["images"])
    before = set(threading.enumerate())
    with running(slow, Limits(max_batch=1)) as (port, served):
        answers, threads = together(port, [RED] * 3)
        until(lambda: queue(port) == 3)
        served.should_exit = True
        until(lambda: not served.servers[0].is_serving())
        slow.go.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert set(threading.enumerate()) <= before  # none of its threads is left


def test_a_failing_model_is_a_500_that_tells_nothing(models):
    class Failing(Slow):
        def probabilities(self, inputs):
            raise RuntimeError("secret")

    with TestClient(application(Failing(models["images"])), raise_server_exceptions=False) as client:
        found = client.post("/predict", content=RED)
        assert (found.status_code, "secret" in found.text) == (500, False)
        assert client.get("/health").json()["queue"] == 0


# ---- the command -----------------------------------------------------------------------------------------


@contextmanager
def command(*words):
    """Run `tertium serve`; give the process and the port."""
    words = [sys.executable, "-m", "tertium", "serve", *map(str, words), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            line = child.stdout.readline()
            assert "(3 classes) on http://127.0.0.1:" in line
            yield child, int(line.rpartition(":")[2])
        finally:
            child.kill()


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_the_command_answers_until_ctrl_c(tmp_path):
    with command(as_they_are(tmp_path / "m.onnx"), "--max-body", "0.01") as (child, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        body = json.dumps({"features": [[0, 1, 2]]})
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        values = list(answer["predictions"][0]["probabilities"].values())
        np.testing.assert_allclose(values, sigmoid([0, 1, 2]), atol=1e-6)
        connection.request("POST", "/predict", bytes(20_000), {"content-type": "application/json"})
        assert connection.getresponse().status == 413
        connection.close()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, out, err) == (0, "Stopped.\n", "")


def test_a_run_is_exported_for_it(tmp_path, rng, monkeypatch):
    trained = save_feature_run(tmp_path / "run")
    there = sorted(tmp_path.rglob("*"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    rows = rng.normal(size=(2, 6)).astype(np.float32)
    found = load(tmp_path / "run").probabilities(rows)
    np.testing.assert_allclose(found, trained.predict_proba(features=rows), atol=1e-5)
    assert not list((tmp_path / "temporary").iterdir())
    (tmp_path / "temporary").rmdir()
    assert sorted(tmp_path.rglob("*")) == there


def test_mistakes_of_the_command(tertium, tmp_path, models):
    code, _, err = tertium("serve", tmp_path / "no.onnx", "--port", 0)
    assert (code, "no such file" in " ".join(err.split())) == (2, True)
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, _, err = tertium("serve", tmp_path / "no.onnx", "--port", port)
    assert (code, "choose another --port" in " ".join(err.split())) == (2, True)
    with pytest.raises(InputError, match="cannot listen on no such host: it is no address of this machine"):
        listen("no such host", 0)


def test_other_machines_are_let_in_with_a_warning(tertium, tmp_path, monkeypatch):
    monkeypatch.setattr(
        serving, "server", lambda *_: type("Server", (), {"run": lambda self, sockets: None})()
    )
    model = as_they_are(tmp_path / "m.onnx")
    assert "no authentication" in " ".join(
        tertium("serve", model, "--host", "0.0.0.0", "--port", 0)[1].split()
    )
    assert "Warning" not in tertium("serve", model, "--port", 0)[1]
    assert not is_loopback("example.org")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tertium.web.serving")
    with pytest.raises(InputError, match=r"pip install 'tertium\[onnx,web\]'"):
        import tertium.web.serving  # noqa: F401
