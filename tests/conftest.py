import os
import signal
import sys
from pathlib import Path

os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # no test asks a hub but the one that it has made; before any import

import numpy as np
import pytest
import torch
from hypothesis import settings

from tertium.cli import main

torch.set_num_threads(1)  # the tests are small and run side by side
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background

# However long an example takes on a busy machine. A person's run looks for new ones, CI's tries the same.
settings.register_profile("tests", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tests")

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef) -> None:
    """What several tests share is the same whichever of them comes first, and whatever came before it."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def _cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _not_at_home(_cache, monkeypatch) -> None:
    """Keep features and images out of the home; all tests may share them, for they go by their content."""
    monkeypatch.setenv("TERTIUM_CACHE", str(_cache))
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(_cache.with_name("images")))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def coco() -> Path:
    if not (SHARED / "coco").is_dir():
        pytest.skip("no ../shared/data")
    return SHARED / "coco"


@pytest.fixture
def tertium(monkeypatch, capsys):
    """Run a command in this process; return its exit code, output and errors."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tertium", *(str(word) for word in words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine, with a cache of its own."""
    from huggingface_hub import constants

    from tests.models.a_hub import Hub

    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("tertium.hub.time.sleep", lambda seconds: None)
    yield hub
    hub.shutdown()
    hub.server_close()
