"""Azure's and Google's storage, from servers that imitate them on this machine, where those are installed.

``azurite-blob`` comes from npm (azurite), ``gcp-storage-emulator`` from PyPI; docs/images.md says what was
tried.
"""

import shutil
import socket
import subprocess
import time

import numpy as np
import pyarrow.fs as pafs
import pytest
from PIL import Image

from tertium.data.inputs import open_inputs
from tertium.data.sources import remote
from tertium.errors import InputError
from tests.data.keeping import kept_as

NAMES = [f"{number:02}.jpg" for number in range(12)]
WAYS = ("tar", "zip", "parquet of hugging face", "arrow")
# The account that Azurite has for everybody.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base, rng = tmp_path_factory.mktemp("clouds"), np.random.default_rng(0)
    (base / "photos").mkdir()
    for name in NAMES:
        pixels = rng.integers(0, 256, size=(60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(base / "photos" / name, quality=95)
    return base / "photos"


@pytest.fixture(scope="module")
def kept(folder):
    places = {way: kept_as(way, folder, NAMES, folder.parent) for way in WAYS}
    return {way: place.removeprefix(f"{folder.parent}/") for way, place in places.items()} | {
        "folder": "photos"
    }


def started(program, *words):
    """Start a server on a free port; return it and its host once it listens, or skip."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = [word.format(port=port) for word in words]
    process = subprocess.Popen([program, *given], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, f"127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise AssertionError(f"{program} does not listen")


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("azurite"))
    process, host = started(
        "azurite-blob", "--blobPort", "{port}", "--location", place, "--skipApiVersionCheck"
    )
    yield host
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def google():
    process, host = started(
        "gcp-storage-emulator", "start", "--host=127.0.0.1", "--port={port}", "--in-memory",
        "--default-bucket=photos"
    )  # fmt: skip
    yield host
    process.kill()
    process.wait()


def put(system, base, at):
    """Copy all files of a folder into a bucket."""
    for path in sorted(base.rglob("*")):
        if path.is_file():
            with system.open_output_stream(f"{at}/{path.relative_to(base)}") as sink:
                sink.write(path.read_bytes())


def connected(monkeypatch, host, key=KEY):
    said = f"AccountName={ACCOUNT};AccountKey={key};BlobEndpoint=http://{host}/{ACCOUNT};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{said}")


@pytest.fixture(params=["az", "gs"])
def bucket(request, folder, kept, tmp_path, monkeypatch):
    """The address of a bucket that has all the files."""
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_WAITS", (0.0,) * 4)
    host = request.getfixturevalue({"az": "azure", "gs": "google"}[request.param])
    if request.param == "az":
        connected(monkeypatch, host)
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}")
    system = remote._system(f"{request.param}://")._system
    if request.param == "az" and system.get_file_info("photos").type == pafs.FileType.NotFound:
        system.create_dir("photos")
    put(system, folder.parent, "photos")
    return f"{request.param}://photos"


def test_the_same_images_as_in_a_folder(bucket, kept, folder):
    wanted = open_inputs(folder, names=NAMES).pictures
    for way, place in kept.items():
        found = open_inputs(f"{bucket}/{place}", names=NAMES).pictures
        for row in (7, 0, 11, 3):
            assert found.checksum(row) == wanted.checksum(row), way
    assert len(open_inputs(f"{bucket}/shards/*.tar").pictures) == len(NAMES)


def test_what_is_not_there(bucket):
    for place, sentence in (
        ("shards/009.tar", "009.tar: no such file"),
        ("shards/{000..009}.tar", "7 of 10 files are missing"),
        ("none/*.tar", "no file fits this pattern|no such file"),
    ):
        with pytest.raises(InputError, match=sentence):
            open_inputs(f"{bucket}/{place}")
    with pytest.raises(InputError, match="none"):
        open_inputs(f"{bucket.partition(':')[0]}://none/a.tar")


def test_a_wrong_key_of_azure(azure, monkeypatch):
    monkeypatch.setattr(remote, "_WAITS", (0.0,) * 4)
    connected(monkeypatch, azure, "b" * 86 + "==")
    with pytest.raises(InputError, match="access is denied; check your keys"):
        open_inputs("az://photos/shards/000.tar")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    with pytest.raises(InputError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        open_inputs("az://photos/shards/000.tar")
