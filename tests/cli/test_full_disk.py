"""A disk without room, or that cannot be written to: one sentence, exit code 2, and nothing half-written."""

import contextlib
import shutil
import subprocess

import pytest

from tests.chaos.world import COMMANDS, LEFT_OUT, SERVERS, make
from tests.cli.commands import commands


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs") / "world"
    make(folder)
    return folder


def mounted(place, *options):
    mount = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", place]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A file system of a few pages, on which nothing more has room."""
    place = tmp_path_factory.mktemp("disk")
    mounted(place, "size=16k")
    with contextlib.suppress(OSError), open(place / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(512))
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="module")
def unwritable(tmp_path_factory):
    """A file system on which nothing can be written, not even by root."""
    place = tmp_path_factory.mktemp("disk")
    mounted(place, "size=16k", "ro")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


WRITING = pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(command.words.split()[:2])
)


@WRITING
def test_a_full_disk(world, full, tertium, command):
    code, _, errors = tertium(*command.words.format(world=world, out=full).split())
    shown = " ".join(errors.split())
    assert code == 2, shown
    assert "Error: " in shown
    assert "full" in shown or "No space left" in shown
    for folder in ("run", "all", "job"):  # that of a run or of a comparison may be there, with nothing in it
        shutil.rmtree(full / folder, ignore_errors=True)
    assert [path.name for path in full.iterdir()] == ["ballast"]


@WRITING
def test_an_unwritable_folder(world, unwritable, tertium, command):
    code, _, errors = tertium(*command.words.format(world=world, out=unwritable).split())
    shown = " ".join(errors.split())
    assert code == 2, shown
    assert "Error: " in shown
    assert "Read-only file system" in shown


def test_no_command_is_forgotten():
    """Nor by `python -m tests.chaos`, which tries the same commands."""
    tried = {command.name for command in COMMANDS} | {words.split()[0] for words in SERVERS}
    every = {name for name, _ in commands()}
    formats = {name for name in every if name.startswith("convert ")}  # all are written by the same code
    assert every - formats == {name for name in tried if " " not in name} | set(LEFT_OUT)
    assert tried & formats
