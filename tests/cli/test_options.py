"""Options by the names that people use, and messages that name only options that are there."""

import ast
import re
from pathlib import Path

import pytest
import typer

import tertium
from tertium.cli import app

SOURCES = Path(tertium.__file__).parent
GROUP = typer.main.get_command(app)


def commands(group=GROUP, before=()):
    """Return the options of each command, by its words."""
    found = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*before, name))
        else:
            found[" ".join((*before, name))] = {word for param in command.params for word in param.opts}
    return found


COMMANDS = commands()
READING = [name for name, options in COMMANDS.items() if "--separator" in options and name != "merge"]
# Formats that may say a label twice; in the others a cell stands once, or only what is present is listed.
CONVERTING = [
    f"convert {name}" for name in ("openimages", "wide", "lvis", "voc", "cub", "nuswide", "chexpert")
]
# Which commands may say the messages of a module. A message may name only options that all of them have.
SPEAKERS = {
    "annotation": ["train", "prior", "complete"],
    "comparing": ["compare"],
    "data": [],
    "labels/formats/arff.py": ["convert arff"],
    "labels/formats/cole.py": ["convert cole"],
    "labels/formats/coco.py": ["convert coco"],
    "labels/formats/lvis.py": ["convert lvis"],
    "labels/formats/labelstudio.py": ["convert label-studio"],
    "labels/formats/fiftyone.py": ["convert fiftyone"],
    "labels/formats/huggingface.py": ["convert huggingface"],
    "labels/formats/listing.py": [
        f"convert {name}" for name in ("label-studio", "huggingface", "cvat", "fiftyone")
    ],
    "labels/formats/openimages.py": ["convert openimages"],
    "labels/formats/voc.py": ["convert voc"],
    "labels/formats/wide.py": ["convert wide"],
    "labels/formats/chexpert.py": ["convert chexpert"],
    "labels/merging.py": ["merge"],
    "labels/probabilities.py": ["publish"],
    "labels/publishing.py": ["publish"],
    "labels/readers.py": READING,
    "labels/reading.py": CONVERTING,
    "files.py": ["explain", "pointing", "features", "predict"],
    "jobs": ["features", "predict", "evaluate", "complete"],
    "labelling": ["complete", "suggest"],
    "methods/baselines.py": ["train"],
    "models": ["train", "features"],
    "prediction/explaining.py": ["explain"],
    "prediction/exported.py": [],
    "prediction/exporting.py": ["export"],
    "prediction/using.py": ["predict", "evaluate"],
    "reporting": ["report"],
    "runs.py": ["train"],
    "training": ["train"],
    "web/reviewing": ["review"],
    "web/sockets.py": ["serve", "review"],
    "web/serving.py": ["serve"],
}
# Of another program than tertium.
FOREIGN = {
    ("data/decoding.py", "--upgrade"),
    ("jobs/cluster.py", "--head"),
    ("jobs/cluster.py", "--object-store-memory"),
    ("web/serving.py", "--json"),
    ("web/serving.py", "--data-binary"),
}


def messages():
    """Yield the module and each text in it that is no documentation and names an option."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        documentation = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        place = path.relative_to(SOURCES).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
                options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)
                if options:
                    yield place, node.value, options


def speakers(place):
    """Return the commands of the longest entry that fits."""
    fitting = [entry for entry in SPEAKERS if place == entry or place.startswith(f"{entry}/")]
    assert fitting, f"{place}: say in SPEAKERS which commands its messages come from"
    return SPEAKERS[max(fitting, key=len)]


def test_messages_name_options_that_are_there():
    seen = 0
    for place, text, options in messages():
        for option in options:
            if (place, option) in FOREIGN:
                continue
            seen += 1
            named = re.search(r"tertium (convert [\w-]+|\w+)\b", text)
            if named and named[1] in COMMANDS:
                assert option in COMMANDS[named[1]] | {"--help"}, (place, text)
                continue
            if place.startswith("cli/"):
                everywhere = set().union(*COMMANDS.values()) | {"--help", "--version"}
                assert option in everywhere, (place, text)
                continue
            for command in speakers(place):
                assert option in COMMANDS[command], (place, command, text)
    assert seen > 60


def test_commands_that_help_and_documentation_name_exist():
    words = [f"tertium {name} --help" for name in COMMANDS]
    for command in GROUP.commands.values():
        for line in re.findall(r"^ *tertium (.+)$", command.help or "", re.MULTILINE):
            assert any(f"tertium {line}".startswith(word.removesuffix(" --help")) for word in words), line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "suggest run --labels l.csv --count 5",
            "tertium suggest has no option --count; did you mean --budget?",
        ),
        ("compare --labels l.csv --count 5", "tertium compare has no option --count; did you mean --sample?"),
        ("predict run --number 5", "tertium predict has no option --number; did you mean --top?"),
        ("predict run --output p.csv", "tertium predict has no option --output; did you mean --out?"),
        ("predict run --force", "tertium predict has no option --force; did you mean --overwrite?"),
        ("train --photos p", "tertium train has no option --photos; did you mean --images?"),
        (
            "train --epochs 3",
            "tertium train has no option --epochs; settings have no dashes: epochs=VALUE",
        ),
        (
            "train --image-size 64",
            "tertium train has no option --image-size; settings have no dashes: image_size=VALUE",
        ),
        (
            "train --weights w.pth",
            "tertium train has no option --weights; settings have no dashes: weights=VALUE",
        ),
        (
            "predict run --threshold 1",
            "tertium predict has no option --threshold; see tertium predict --help",
        ),
        ("predict run --out p.csv .", 'tertium predict has no place for "."; did you mean --images .?'),
        (
            "predict run --out p.csv nowhere",
            'tertium predict has no place for "nowhere"; see tertium predict --help',
        ),
    ],
)
def test_options_by_other_names(tertium, words, sentence):
    code, _, errors = tertium(*words.split())
    assert (code, errors) == (2, f"Error: {sentence}\n")
