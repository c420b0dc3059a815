"""A comparison on a Ray cluster: the same table, and no cell twice."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,  # starts a Ray cluster, whose workers import torch
    pytest.mark.skipif(find_spec("ray") is None, reason="no ray"),
]
RAY = ["--engine", "ray", "--actors", "2"]


def compare(folder, out, *words):
    command = [
        "compare",
        "--labels",
        "labels.csv",
        "--unlisted",
        "absent",
        "--features",
        "x.npy",
        "--out",
        out,
    ]
    options = ["--methods", "negative,ll_r,role", "--schemes", "random:0.3", "--seeds", "2", "epochs=3"]
    return subprocess.run(
        [sys.executable, "-m", "tertium", *command, *options, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture
def data(tmp_path, rng):
    features = rng.normal(size=(160, 5)).astype(np.float32)
    there = features[:, :3] + 0.3 * rng.normal(size=(160, 3)) > 0
    present = [";".join(np.array(list("abc"))[row]) for row in there]
    rows = "".join(f"{n},{names},{'train' if n < 120 else 'test'}\n" for n, names in enumerate(present))
    (tmp_path / "labels.csv").write_text("image,present,split\n" + rows)
    np.save(tmp_path / "x.npy", features)
    return tmp_path


def test_the_table_is_that_of_processes(data):
    local = compare(data, "local", "--jobs", "2")
    ray = compare(data, "ray", *RAY)
    assert (ray.returncode, ray.stderr[-2000:] if ray.returncode else "") == (0, "")
    assert (data / "ray" / "table.md").read_bytes() == (data / "local" / "table.md").read_bytes()
    assert (data / "ray" / "results-classes.csv").read_bytes() == (
        data / "local" / "results-classes.csv"
    ).read_bytes()
    assert ray.stdout.replace("ray/", "local/") == local.stdout
    # Cells that processes of this machine have trained are not trained again, and the other way round.
    cells = sorted((data / "ray").rglob("cells/*/*.json"))
    assert len(cells) == 8
    before = {path: path.stat().st_mtime_ns for path in cells}
    cells[0].unlink()
    assert compare(data, "ray", *RAY).returncode == 0
    changed = [path for path in cells if path.stat().st_mtime_ns != before[path]]
    assert changed == [cells[0]]
    assert compare(data, "ray", "--jobs", "1").returncode == 0
    assert [path for path in cells if path.stat().st_mtime_ns != before[path]] == changed


def test_options_that_do_not_go_together(data):
    for words, told in (
        (["--actors", "2"], "--actors is of --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "with Ray say --actors"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "127.0.0.1:1: no Ray cluster answers there"),
    ):
        ended = compare(data, "out", *words)
        assert ended.returncode == 2
        assert told in ended.stderr
        assert "Traceback" not in ended.stderr
