"""What the service says of itself: a log without content, figures that Prometheus reads, and who may ask."""

import asyncio
import io
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tertium.errors import InputError
from tertium.prediction.exported import Exported
from tertium.web import bearer
from tertium.web.bearer import Token, find_token
from tertium.web.monitoring import BUCKETS, Metrics, Record, RequestLog, _escaped, watched
from tertium.web.serving import application
from tests.prediction.test_exported import as_they_are
from tests.web.test_serving import PATIENCE, ask, command, until

SECRET = "s3cret-s3cret-s3cret"
VERSION = "first@0123456789ab"
ROWS = {"features": [[0, 1, 2], [3, 4, 5]]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Exported.load(as_they_are(tmp_path_factory.mktemp("monitoring") / "m.onnx"), 1)


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def client(model, log):
    with TestClient(application(model, log=RequestLog(log)), raise_server_exceptions=False) as found:
        yield found


@pytest.fixture
def locked(model, log):
    app = application(model, token=Token(SECRET, "test"), log=RequestLog(log))
    with TestClient(app, raise_server_exceptions=False) as found:
        yield found


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


# ---- the format, read strictly -----------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ([-+0-9.eE]+|\+Inf|NaN)")
KINDS = {"counter", "gauge", "histogram"}


def parsed(text):
    """Read Prometheus' text format 0.0.4 as its description has it; whatever it does not allow fails."""
    assert text.endswith("\n")
    families, samples, current = {}, {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, current, about = line.split(" ", 3)
            assert re.fullmatch(NAME, current)
            assert current not in families  # each family once, its lines together
            assert about
            families[current] = None
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, families[name]) == (current, None)
            assert kind in KINDS
            families[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name, inside = found[1], found[2] or ""
            labels = [(key, unescaped(value)) for key, value in re.findall(LABEL, inside)]
            assert len(dict(labels)) == len(labels)
            endings = ("_bucket", "_sum", "_count") if families[current] == "histogram" else ("",)
            assert name in [current + ending for ending in endings]
            if families[current] == "counter":
                assert name.endswith("_total")
            key = (name, frozenset(labels))
            assert key not in samples
            samples[key] = float(found[len(found.groups())])
    for name, kind in families.items():
        assert kind is not None
        if kind == "histogram":
            check_histogram(name, samples)
    return samples


def unescaped(value):
    return re.sub(r'\\(["\\n])', lambda found: "\n" if found[1] == "n" else found[1], value)


def check_histogram(name, samples):
    """Buckets must grow, end with +Inf, and that one be the count."""
    series = {}
    for (each, labels), value in samples.items():
        if each == f"{name}_bucket":
            bound = next(float(text) for key, text in labels if key == "le")
            series.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append(
                (bound, value)
            )
    for labels, found in series.items():
        bounds, counts = zip(*found, strict=True)
        assert list(bounds) == sorted(set(bounds)) == [*BUCKETS, math.inf]
        assert list(counts) == sorted(counts)
        assert samples[f"{name}_count", labels] == counts[-1]
        assert samples[f"{name}_sum", labels] >= 0


@pytest.mark.parametrize(
    "broken",
    [
        "a_total 1\n",  # of no family
        "# HELP a_total x\n# TYPE a_total counter\na_total 1",  # no line end
        "# HELP a_total x\n# TYPE a_total counter\na_total{b='c'} 1\n",
        '# HELP a_total x\n# TYPE a_total counter\na_total{b="c\\d"} 1\n',
        "# HELP a_total x\n# TYPE a_total counter\na_total 1\na_total 2\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a x\na 1\n",
    ],
)
def test_the_reader_of_this_test_is_strict(broken):
    with pytest.raises((AssertionError, KeyError)):
        parsed(broken)


def test_figures_are_what_was_asked(client):
    client.post("/predict", json=ROWS)
    client.post("/predict", json=ROWS)
    client.post("/predict", content=b"x", headers={"content-type": "application/json"})
    client.get("/secret name")
    reply = client.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(reply.text)

    def value(name, **labels):
        return found[f"tertium_{name}", frozenset(labels.items())]

    assert value("requests_total", path="/predict", status="200") == 2
    assert value("requests_total", path="/predict", status="400") == 1
    assert value("requests_total", path="other", status="404") == 1
    assert "secret" not in reply.text
    assert value("images_predicted_total") == 4
    assert value("requests_in_flight") == 1  # this one
    assert value("images_in_progress") == 0
    assert value("request_duration_seconds_count", path="/predict") == 3
    assert value("model_info", version=VERSION, run="first", checksum="0123456789ab") == 1
    assert time.time() - 3600 < found["process_start_time_seconds", frozenset()] <= time.time()
    again = parsed(client.get("/metrics").text)  # counted once it was answered
    key = ("tertium_requests_total", frozenset({("path", "/metrics"), ("status", "200")}))
    assert key not in found
    assert again[key] == 1


@settings(max_examples=50, deadline=None)
@given(st.text(), st.lists(st.tuples(st.sampled_from(["/a", "/b", "x"]), st.integers(100, 599)), max_size=9))
def test_any_name_of_a_run_and_any_requests_are_valid(run, requests):
    metrics = Metrics(["/a", "/b"], {"run": run})
    for path, status in requests:
        record = metrics.begin(path)
        record.status = status
        metrics.end(record)
    found = parsed(metrics.text(0))
    assert found["tertium_model_info", frozenset({("run", run)})] == 1
    total = sum(value for (name, _), value in found.items() if name == "tertium_requests_total")
    assert total == len(requests)
    assert unescaped(_escaped(run)) == run


def test_times_fall_into_their_bucket(monkeypatch):
    metrics = Metrics(["/a"], {})
    for seconds in (0.005, 0.006, 31.0):  # a bound belongs to its bucket
        monkeypatch.setattr(Record, "seconds", seconds)
        metrics.end(metrics.begin("/a"))
    found = parsed(metrics.text(0))
    counts = {
        dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("_bucket")
    }
    assert (counts["0.005"], counts["0.01"], counts["30.0"], counts["+Inf"]) == (1, 2, 2, 3)


# ---- the log -----------------------------------------------------------------------------------------------


def test_each_request_is_a_line_without_content(client, log):
    sent = json.dumps(ROWS).encode()
    client.post(
        "/predict?top=2&name=ada", content=sent, headers={"content-type": "application/json", "cookie": "me"}
    )
    client.post("/predict?top=2", content=sent, headers={"content-type": "application/json"})
    client.get("/photos/ada.jpg")
    client.get("/health")
    found = lines(log)
    assert [(each["path"], each["status"], each["images"], each["bytes"]) for each in found] == [
        ("/predict", 422, 0, 0),  # refused before the body was read
        ("/predict", 200, 2, len(sent)),
        ("other", 404, 0, 0),
        ("/health", 200, 0, 0),
    ]
    assert all(list(each) == ["time", "path", "status", "ms", "images", "bytes"] for each in found)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", each["time"]) for each in found)
    assert all(0 <= each["ms"] < 1000 * PATIENCE for each in found)
    assert "ada" not in log.getvalue()


def test_a_request_that_fails_is_logged_as_such(log):
    async def failing(scope, receive, send):
        raise RuntimeError("gone")

    metrics = Metrics(["/a"], {})
    app = watched(failing, metrics, RequestLog(log), {})
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(app({"type": "http", "path": "/a"}, None, None))
    assert (lines(log)[0]["status"], metrics.in_flight) == (500, 0)


def test_a_full_disk_ends_the_log_and_not_the_service(model, caplog):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    with TestClient(application(model, log=RequestLog(Full()))) as client:
        assert [client.get("/health").status_code for _ in range(3)] == [200] * 3
    assert [record.message for record in caplog.records if "log ends" in record.message] == [
        "The request log ends here: it cannot be written ([Errno 28] No space left on device)"
    ]


# ---- which model -------------------------------------------------------------------------------------------


def test_every_answer_names_the_model(client, locked):
    replies = [
        client.post("/predict", json=ROWS),
        client.post("/predict", json={}),
        client.get("/health"),
        client.get("/nothing"),
        client.put("/predict"),
        client.get("/"),
        client.get("/metrics"),
        locked.get("/"),
    ]
    for reply in replies:
        assert reply.headers["x-tertium-model"] == VERSION
        if reply.headers["content-type"] == "application/json":
            assert reply.json()["version"] == VERSION
    assert sum(reply.headers["content-type"] == "application/json" for reply in replies) == 6


def test_a_failing_model_is_named_too(model):
    class Failing:
        def __getattr__(self, name):
            return getattr(model, name)

        def probabilities(self, inputs):
            raise RuntimeError("secret")

    with TestClient(application(Failing()), raise_server_exceptions=False) as client:
        reply = client.post("/predict", json=ROWS)
    assert (reply.status_code, reply.headers["x-tertium-model"]) == (500, VERSION)
    assert reply.json()["version"] == VERSION


def test_a_run_of_any_name_fits_a_header(model):
    class Named:
        version, run = "Füchse\r\n1@ab", "Füchse\r\n1"

        def __getattr__(self, name):
            return getattr(model, name)

    with TestClient(application(Named())) as client:
        reply = client.get("/health")
    assert reply.headers["x-tertium-model"] == "F%C3%BCchse%0D%0A1@ab"
    assert reply.json()["version"] == "Füchse\r\n1@ab"


# ---- the token ---------------------------------------------------------------------------------------------


def test_the_token_opens_everything(locked):
    for given_as in (f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET} "):
        assert locked.post("/predict", json=ROWS, headers={"authorization": given_as}).status_code == 200
    for path in ("/", "/metrics", "/health"):
        assert locked.get(path, headers={"authorization": f"Bearer {SECRET}"}).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Bearer " + SECRET[:-1].encode()],  # a prefix
        [b"Bearer " + SECRET.encode() + b"x"],
        [b"Bearer " + SECRET.upper().encode()],
        [b"Bearer wrong-wrong-wrong-wrong"],
        [b"Bearer " + SECRET.encode() + b"\x00"],
        [b"Bearer \xc3\xa9\xff" + SECRET.encode()],
        [b"Bearer " + "s3cret－s3cret".encode()],
        [b"Basic " + SECRET.encode()],
        [SECRET.encode()],
        [b"Bearer" + SECRET.encode()],
        [b"Bearer\t" + SECRET.encode()],
        [b"Bearer Bearer " + SECRET.encode()],
        [b"Bearer wrong", b"Bearer " + SECRET.encode()],  # several: which would a proxy have checked?
        [b"Bearer " + SECRET.encode(), b"Bearer " + SECRET.encode()],
        [b"Bearer wrong, Bearer " + SECRET.encode()],
        [b"Bearer " + b"a" * 10_000],
    ],
)
def test_whoever_lacks_the_token_gets_nothing(locked, log, sent):
    headers = [("authorization", value) for value in sent]
    for method, path in (("POST", "/predict"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing")):
        reply = locked.request(method, path, headers=headers)
        assert reply.status_code == 401
        challenge = reply.headers["www-authenticate"]
        assert challenge == 'Bearer realm="tertium"' + (', error="invalid_token"' if sent else "")
        assert list(reply.json()) == ["error", "version"]
        assert SECRET not in reply.text
    assert locked.get("/health", headers=headers).status_code == 200  # open, so that it can be watched
    assert [each["status"] for each in lines(log)] == [401] * 4 + [200]
    assert SECRET not in log.getvalue()


@pytest.mark.parametrize("path", ["/health/", "//health", "/health/../predict", "/Health", "/%68ealth/x"])
def test_what_looks_like_the_open_path_is_not_open(locked, path):
    assert locked.get(path, follow_redirects=False).status_code == 401


def test_a_token_elsewhere_does_not_count(locked):
    assert locked.get(f"/metrics?token={SECRET}").status_code == 401
    assert locked.get("/metrics", headers={"cookie": f"token={SECRET}"}).status_code == 401
    assert locked.get("/metrics", headers={"proxy-authorization": f"Bearer {SECRET}"}).status_code == 401


def test_the_comparison_takes_as_long_whatever_was_sent(monkeypatch):
    """By construction: what is compared in constant time are hashes, which are all of one length."""
    seen = []
    monkeypatch.setattr(
        bearer.hmac, "compare_digest", lambda a, b: seen.append((len(a), len(b))) or a == b, raising=True
    )
    token = Token(SECRET, "test")
    for sent in (b"Bearer x", b"Bearer " + SECRET.encode(), b"Basic " + b"x" * 1000, b""):
        token.opens([sent])
    assert seen == [(32, 32)] * 4


def test_where_tokens_come_from(tmp_path):
    file = tmp_path / "token.txt"
    file.write_text(f"{SECRET}\n")
    assert find_token(None, {}) is None
    for found in (find_token(file, {bearer.VARIABLE: "x" * 20}), find_token(None, {bearer.VARIABLE: SECRET})):
        assert found.opens([f"Bearer {SECRET}".encode()])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the token is empty"),
        (" \n", "the token is empty"),
        ("short", "has 5 characters, at least 16"),
        ("two words of some length", "one word of letters"),
        ("ünïcödé-ünïcödé-ünïcödé", "one word of letters"),
        ("line-one-is-long-enough\nline-two", "one word of letters"),
    ],
)
def test_tokens_that_are_refused(tmp_path, text, complaint):
    """An empty one above all: it would look as if the service was closed, and anybody could send it."""
    (tmp_path / "token.txt").write_text(text)
    with pytest.raises(InputError, match=complaint):
        find_token(tmp_path / "token.txt", {})
    with pytest.raises(InputError, match=f"TERTIUM_TOKEN: .*{complaint}"):
        find_token(None, {bearer.VARIABLE: text})


def test_a_file_that_is_no_text_or_not_there(tmp_path, tertium):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("bytes", "none"):
        code, _, errors = tertium("serve", tmp_path / "m.onnx", "--token-file", tmp_path / name)
        assert (code, "the token cannot be read" in " ".join(errors.split())) == (2, True)
    code, _, errors = tertium("serve", tmp_path / "m.onnx", "--log", tmp_path / "no" / "log", "--port", 0)
    assert (code, "the log cannot be written" in " ".join(errors.split())) == (2, True)


def test_lines_are_added_only_to_a_log(tmp_path, tertium):
    model = as_they_are(tmp_path / "m.onnx")
    (tmp_path / "labels.csv").write_text("image,present\n")
    for path in (model, tmp_path / "labels.csv"):
        before = path.read_bytes()
        code, _, errors = tertium("serve", model, "--port", 0, "--log", path)
        assert (code, "something other than a log of requests" in " ".join(errors.split())) == (2, True)
        assert path.read_bytes() == before


# ---- the command -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_the_command_logs_to_a_file_and_asks_for_the_token(tmp_path):
    (tmp_path / "token.txt").write_text(SECRET)
    os.chmod(tmp_path / "token.txt", 0o600)
    (tmp_path / "log.jsonl").write_text('{"time": "earlier"}\n')
    model, log = as_they_are(tmp_path / "m.onnx"), tmp_path / "log.jsonl"
    with command(model, "--token-file", tmp_path / "token.txt", "--log", log) as (child, port):
        assert SECRET not in Path(f"/proc/{child.pid}/cmdline").read_text()
        assert ask(port, b"{}", kind="application/json")[0] == 401
        assert ask(port, None, "/health", "GET")[0] == 200
        until(lambda: log.read_text().count("\n") == 3)  # the last line follows the answer
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert found[0] == {"time": "earlier"}  # lines are added
    assert [(each["path"], each["status"]) for each in found[1:]] == [("/predict", 401), ("/health", 200)]


def test_a_log_that_is_printed_is_all_that_is_printed(tmp_path):
    model = as_they_are(tmp_path / "m.onnx")
    words = [sys.executable, "-m", "tertium", "serve", str(model), "--port", "0", "--log", "-"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as child:
        try:
            line = child.stderr.readline()
            assert "(3 classes) on http://127.0.0.1:" in line
            ask(int(line.rpartition(":")[2]), None, "/health", "GET")
            assert json.loads(child.stdout.readline())["path"] == "/health"
        finally:
            child.kill()


def test_a_token_file_that_others_can_read_is_said(tertium, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tertium.web.serving.server", lambda *_: type("Server", (), {"run": lambda self, sockets: None})()
    )
    model, file = as_they_are(tmp_path / "m.onnx"), tmp_path / "token.txt"
    file.write_text(SECRET)
    words = ("serve", model, "--port", 0, "--token-file", file)
    for mode, said in ((0o644, True), (0o600, False)):
        os.chmod(file, mode)
        assert ("other accounts can read" in tertium(*words)[1]) == said
    assert "there is no encryption" in tertium(*words, "--host", "0.0.0.0")[1]
    assert "no authentication" not in tertium(*words, "--host", "0.0.0.0")[1]
