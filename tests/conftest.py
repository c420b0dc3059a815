from pathlib import Path

import numpy as np
import pytest
import torch

torch.set_num_threads(1)  # the tests are small and run side by side

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def coco() -> Path:
    if not (SHARED / "coco").is_dir():
        pytest.skip("no ../shared/data")
    return SHARED / "coco"
