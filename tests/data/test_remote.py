"""Images at addresses: from servers on this machine, over lines that break, into a cache that stays small."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request

import fsspec
import numpy as np
import pyarrow.fs as pafs
import pytest
from PIL import Image

from tertium.data.batches import ImageLoader, Order
from tertium.data.inputs import open_inputs
from tertium.data.kinds import table
from tertium.data.sources import places, remote
from tertium.data.sources.cache import image_cache
from tertium.errors import InputError
from tests.data.keeping import kept_as
from tests.data.servers import BadLine, storage

NAMES = [f"{number:02}.jpg" for number in range(12)]
WAYS = ["tar", "zip", "parquet of hugging face", "parquet", "arrow", "feather"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of some 40 kB, alone and kept in each way."""
    base, rng = tmp_path_factory.mktemp("remote"), np.random.default_rng(0)
    (base / "photos").mkdir()
    for name in NAMES:
        pixels = rng.integers(0, 256, size=(120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(base / "photos" / name, quality=95)
    return base / "photos"


@pytest.fixture(scope="module")
def kept(folder):
    """The address of each way, below a folder that is the root of a server."""
    places = {way: kept_as(way, folder, NAMES, folder.parent) for way in WAYS}
    relative = {way: place.removeprefix(f"{folder.parent}/") for way, place in places.items()}
    (folder.parent / "list.csv").write_text("image,path\n" + "".join(f"{n},photos/{n}\n" for n in NAMES))
    return relative | {"list": "list.csv", "folder": "photos"}


@pytest.fixture
def server(folder, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "good")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(remote, "_WAITS", (0.0,) * 4)
    for kept_in_memory in (places._small_part, places._block, table._metadata, table._values):
        kept_in_memory.cache_clear()  # of another test's server
    with storage() as running:
        running.put(folder.parent)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{running.host}")
        yield running


@pytest.fixture
def line(server, monkeypatch):
    """A line to the server that can be cut."""
    found = BadLine(server.host)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{found.host}")
    yield found
    found.close()


def same(place, folder):
    found, wanted = (open_inputs(each, names=NAMES).pictures for each in (place, folder))
    return all(found.checksum(row) == wanted.checksum(row) for row in (7, 0, 11, 3, 3))


@pytest.mark.parametrize("way", [*WAYS, "list", "folder"])
def test_s3_has_the_same_images(way, server, folder, kept):
    assert same(f"s3://bucket/{kept[way]}", folder)
    assert open_inputs(f"s3://bucket/{kept[way]}").names == NAMES
    asked = len(server.asked)
    assert same(f"s3://bucket/{kept[way]}", folder)
    again = [each for each in server.asked[asked:] if each[0] == "GET" and each[2]]
    assert [each for each in again if not each[1].endswith("list.csv")] == []  # what was read is kept


@pytest.mark.parametrize("way", ["tar", "zip", "parquet", "arrow", "list"])
def test_the_web_has_the_same_images(way, server, folder, kept):
    place = kept[way].replace("?.zip", "{a,b}.zip")
    assert same(f"http://{server.host}/bucket/{place}", folder)


def test_what_fsspec_knows_has_the_same_images(folder, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path))
    memory = fsspec.filesystem("memory")
    memory.put(str(folder.parent), "/there", recursive=True)
    try:
        for way in ("tar", "zip", "parquet", "folder"):
            assert same(f"memory://there/{kept[way]}", folder), way
    finally:
        memory.rm("/there", recursive=True)


def test_archives_are_asked_for_in_large_parts(server, folder, kept):
    assert same(f"s3://bucket/{kept['tar']}", folder)
    parts = [each for each in server.asked if each[0] == "GET" and each[1].endswith(".tar")]
    assert len(parts) == 3  # one for each shard


def test_workers_fetch_for_themselves(server, folder, kept, tmp_path, monkeypatch):
    found = open_inputs(f"s3://bucket/{kept['tar']}", names=NAMES).pictures
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "another"))
    batches = [
        next(ImageLoader(pictures, None, 32, Order(12, 12), workers=1).epoch(1)).inputs
        for pictures in (found, open_inputs(folder, names=NAMES).pictures)
    ]
    np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize("way", ["tar", "parquet", "folder"])
def test_cut_connections_are_tried_again(way, line, folder, kept):
    line.cuts = 3
    assert same(f"s3://bucket/{kept[way]}", folder)
    assert line.cut == 3


def test_cut_connections_to_the_web_are_tried_again(line, folder, kept):
    line.cuts = 3
    assert same(f"http://{line.host}/bucket/{kept['tar']}", folder)
    assert line.cut == 3


def test_a_slow_server_is_waited_for(server, folder, kept):
    server.pause = 0.02
    assert same(f"s3://bucket/{kept['tar']}", folder)


def test_errors_of_the_server_are_tried_again(server, folder, kept):
    server.failing = 2
    assert same(f"http://{server.host}/bucket/{kept['tar']}", folder)


def test_a_line_that_stays_cut_is_one_sentence(line, kept, tmp_path):
    place = f"http://{line.host}/bucket/shards/000.tar"
    line.cuts = 10**6
    with pytest.raises(InputError, match=rf"{place}: cannot be read, tried 5 times \(.+\)$") as found:
        open_inputs(place)
    assert "\n" not in str(found.value)
    line.close()
    with pytest.raises(InputError, match="cannot be read, tried 5 times"):
        open_inputs(place)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("address", ["s3://bucket", "http"])
def test_a_revoked_key_is_one_sentence(address, server, kept):
    base = address if address != "http" else f"http://{server.host}/bucket"
    found = open_inputs(f"{base}/shards/000.tar")
    server.key = "another"
    shutil.rmtree(image_cache().folder)
    places._block.cache_clear()  # what is open could still be read
    asked = len(server.asked)
    for call in (lambda: open_inputs(f"{base}/shards/000.tar"), lambda: found.pictures.open(0)):
        with pytest.raises(
            InputError, match=rf"^{base}/shards/000\.tar: access is denied; check your keys \("
        ):
            call()
    assert len(server.asked) - asked <= 4  # and nobody tries again


def test_what_is_not_there_is_one_sentence(server, kept):
    for place, message in [
        ("s3://bucket/none.tar", "s3://bucket/none.tar: no such file"),
        ("s3://none/a.tar", "s3://none/a.tar: no such file"),
        ("s3://bucket/shards/{000..004}.tar", "2 of 5 files are missing: s3://bucket/shards/003.tar"),
        ("s3://bucket/x*.tar", "no file fits this pattern"),
        ("s3://bucket/none", "s3://bucket/none: no such file"),
        (f"http://{server.host}/bucket/none.tar", "none.tar: no such file"),
        ("nobody://knows/this.tar", "nobody:// addresses cannot be read here"),
    ]:
        with pytest.raises(InputError) as found:
            open_inputs(place)
        assert message in str(found.value)
        assert "\n" not in str(found.value)


def test_a_file_that_changes_is_read_anew(server, folder, kept):
    place = f"http://{server.host}/bucket/shards/000.tar"
    before = open_inputs(place).names
    server.files["/bucket/shards/000.tar"] = server.files["/bucket/shards/001.tar"]
    assert open_inputs(place).names != before


def test_the_cache_stays_as_small_as_it_must(server, folder, kept, tmp_path, monkeypatch):
    """What does not fit is not kept: each image is one request for just its bytes."""
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE_GB", str(100_000 / 2**30))
    assert same(f"s3://bucket/{kept['tar']}", folder)
    single = [each for each in server.asked if each[0] == "GET" and each[2] and "shards" in each[1]]
    assert len(single) >= 5
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*"))
    assert size < 100_000
    assert same("s3://bucket/list.csv", folder)  # fetched one by one, so that older ones give way
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert 0 < size <= 100_000


def test_another_server_has_the_same_images(folder, kept, tmp_path, monkeypatch):
    """moto imitates Amazon's storage more closely than ours, but cannot be installed beside what we pin."""
    program = os.environ.get("TERTIUM_MOTO") or shutil.which("moto_server")
    if program is None:
        pytest.skip("no moto_server: pip install 'moto[server]' elsewhere, and set TERTIUM_MOTO to it")
    port = str(_free_port())
    running = subprocess.Popen([program, "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/")
        line = BadLine(f"127.0.0.1:{port}")
        for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{line.host}")
        monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path))
        s3 = pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
        )
        s3.create_dir("bucket")
        pafs.copy_files(str(folder.parent), "bucket", pafs.LocalFileSystem(), s3)
        line.cuts = 2
        for way, place in kept.items():
            assert same(f"s3://bucket/{place}", folder), way
        assert line.cut == 2
        line.close()
    finally:
        running.kill()
        running.wait()


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _wait_for(address):
    for _ in range(300):
        try:
            urllib.request.urlopen(address).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")


def test_nothing_else_is_asked_for(server, folder, kept):
    """Reading writes nothing and lists no other bucket."""
    assert same(f"s3://bucket/{kept['tar']}", folder)
    assert {method for method, *_ in server.asked} <= {"GET", "HEAD"}
