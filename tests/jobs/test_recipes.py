"""The recipes of docs/cluster.md: as far as they can be tried without a cluster."""

import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tertium.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("script", blocks("bash"))
def test_scripts_are_shell(script):
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_options_are_those_of_the_commands():
    from typer.main import get_command

    lines = [line for kind in ("console", "bash") for block in blocks(kind) for line in _joined(block)]
    told = [(name, words) for line in lines for name, words in _commands(line)]
    assert {name for name, _ in told} >= {"train", "compare"}
    for name, words in told:
        known = {option for each in get_command(app).commands[name].params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= known, name


def _joined(block):
    return block.replace("\\\n", " ").splitlines()


def _commands(line):
    """Yield the commands of Tertium in a line, with their words."""
    words = shlex.split(line, comments=True)
    for place, word in enumerate(words[:-1]):
        if word == "tertium":
            yield words[place + 1], words[place + 2 :]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="no ray")
def test_the_cluster_is_one_that_ray_takes():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    (text,) = blocks("yaml")
    validate_config(prepare_config(yaml.safe_load(text)))
    with pytest.raises(Exception, match="unknown"):
        validate_config({**prepare_config(yaml.safe_load(text)), "unknown": 1})
