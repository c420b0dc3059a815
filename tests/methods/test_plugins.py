"""Methods of other packages: folders on the path that look like installed distributions."""

import gc
import json
import sys

import numpy as np
import pytest

from tertium import Labels, methods, train
from tertium.errors import InputError

CODE = """
from dataclasses import dataclass
from typing import ClassVar

from tertium import Method


@dataclass(frozen=True)
class Timid(Method):
    \"\"\"Hardly moves at all.\"\"\"

    share: float = 0.5
    name: ClassVar[str] = "{name}"
    paper: ClassVar[str] = "a package"
    aliases: ClassVar[tuple[str, ...]] = {aliases}

    def terms(self, logits, batch, run):
        return {{"square": self.share * logits.square().mean()}}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with a method on the path, as an installer would; afterwards nothing of it is left."""
    monkeypatch.syspath_prepend(tmp_path)
    methods._plugins.cache_clear()

    def install(module, code, value=None, point="timid"):
        (tmp_path / f"{module}.py").write_text(code)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(
            f"[tertium.methods]\n{point} = {value or f'{module}:Timid'}\n"
        )

    yield install
    methods._plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("added")]:
        del sys.modules[name]
    gc.collect()  # a class goes with its cycles, and so does the method


def test_a_method_of_another_package_is_listed_and_trained(install, tertium, tmp_path):
    install("added", CODE.format(name="timid", aliases=("shy",)))
    code, out, err = tertium("methods", "--json")
    assert (code, err) == (0, "")
    assert {"name": "timid", "paper": "a package"}.items() <= next(
        row for row in json.loads(out) if row["name"] == "timid"
    ).items()
    code, out, _ = tertium("methods")
    assert "timid, shy" in out
    features = np.random.default_rng(0).normal(size=(40, 4))
    np.save(tmp_path / "x.npy", features)
    lines = ["image,label,value", *(f"{row},cat,{'present' if row % 2 else 'absent'}" for row in range(40))]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    files = ["--labels", tmp_path / "labels.csv", "--features", tmp_path / "x.npy", "--out", tmp_path / "run"]
    code, _, err = tertium("train", *files, "--method", "shy", "share=0.1", "epochs=1")
    assert code == 0, err
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (saved["method"], saved["parameters"]) == ("timid", {"share": 0.1})


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("import not_there_at_all", None, "No module named 'not_there_at_all'"),
        ("def (", None, "invalid syntax"),
        ("Timid = 3", None, "added_broken:Timid is not a subclass of tertium.Method with a name"),
        ("Timid = 3", "added_broken:Brave", "has no attribute 'Brave'"),
        ("raise RuntimeError('first\\nsecond')", None, "cannot be used: first"),
        ("raise KeyError", None, "cannot be used: KeyError"),
        (CODE.format(name="negative", aliases=()), None, 'the name "negative" is taken'),
        (CODE.format(name="new", aliases=("fe",)), None, 'the name "fe" is taken'),
    ],
)
def test_one_that_is_broken_is_named_and_breaks_no_other(code, value, reason, install, tertium, tmp_path):
    install("added", CODE.format(name="good", aliases=()), point="good")
    install("added_broken", code, value)
    status, out, err = tertium("methods")
    assert status == 0
    assert "good" in out
    assert err.startswith('the method "timid" of the package "added_broken" cannot be used: ')
    assert reason in err
    assert len(err.splitlines()) == 1
    assert methods.find("fe") is methods.find("negative")
    assert methods.find("negative").__module__ == "tertium.methods.baselines"
    with pytest.raises(InputError, match='of the package "added_broken"'):
        methods.find("timid")
    with pytest.raises(InputError, match='there is no method "tim"'):
        methods.find("tim")


def test_a_method_without_a_paper_is_listed_too(install, tertium):
    install(
        "added", CODE.format(name="timid", aliases=()).replace('    paper: ClassVar[str] = "a package"\n', "")
    )
    code, out, _ = tertium("methods", "timid")
    assert code == 0
    assert "Hardly moves at all." in out


def test_two_packages_cannot_share_a_name(install):
    for module in ("added_one", "added_two"):
        install(module, CODE.format(name="timid", aliases=()), point=module)
    (sentence,) = methods.broken().values()
    assert 'the name "timid" is taken' in sentence


def test_without_others_nothing_is_broken(rng):
    assert methods.broken() == {}
    labels = Labels.from_dense(np.where(rng.random((20, 2)) < 0.5, 1, -1))
    with pytest.raises(InputError, match='there is no method "timid"'):
        train(labels, features=rng.normal(size=(20, 3)), method="timid")
