"""Chaos for a short while; `make test-all` has more of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def chaos(*words):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.chaos", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_for_a_short_while():
    code, said = chaos("--seed", 0, "--seconds", 12)
    assert code == 0, said
    assert "BROKEN" not in said
    assert "0/0 " in said


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_for_a_long_while(seed):
    code, said = chaos("--seed", seed, "--seconds", 120)
    assert code == 0, said


@pytest.mark.slow  # as what it watches
def test_a_broken_promise_is_found(tmp_path):
    """A command that leaves its temporary file behind is not let through."""
    broken = """
import sys, tertium.files, tests.chaos.__main__ as chaos
tertium.files.secrets.token_hex = lambda _: "01234567"
tertium.files.Path.unlink = lambda *_, **__: None
tertium.files.Path.replace = lambda self, path: __import__("shutil").copy(self, path)
sys.exit(chaos.main())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = [sys.executable, "-c", broken, "--seed", "1", "--first", "10", "--actions", "1"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN: left temporary files" in done.stdout
