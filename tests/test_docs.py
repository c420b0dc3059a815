"""What the pages say is what happens: their Python runs, their commands work as printed."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import tertium
from bench.claims import CLAIMS as LISTED
from bench.claims import NOTHING, UNCHECKED, commands
from docs.generate import (
    API,
    BEGIN,
    CLAIMS,
    END,
    PAGE,
    RESULTS,
    SPEED,
    api_page,
    claims_page,
    methods_page,
    speed_page,
    with_figures,
)
from tertium import methods
from tertium.cli import main
from tertium.comparing import columns_from, rows_from
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.state import SampleState
from tests.ddp.two import CASES, COUNT, train_one

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

OPTIONAL = ["transformers"]  # in the extra "examples": with it, importing Lightning takes a second longer


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_commands(page, monkeypatch):
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, line
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = run_commands(page, monkeypatch)
    namespace: dict = {"__name__": "example"}
    # One program a page: a later block builds on an earlier one.
    monkeypatch.setitem(sys.modules, "example", type(sys)("example"))
    skipped = []
    for block in blocks(page, "python"):
        missing = [name for name in OPTIONAL if f"from {name} import" in block and find_spec(name) is None]
        skipped += missing
        if not missing:
            exec(compile(block, page.name, "exec"), namespace)
    if page.name == "README.md":
        assert len(lines) == 8
        assert (tmp_path / "predictions.csv").is_file()
        assert "mAP(C)" in capsys.readouterr().out
    if skipped:
        pytest.skip(f"the others ran, but some need {skipped[0]}: pip install -e '.[examples]'")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_table_of_methods_is_up_to_date():
    assert PAGE.read_text() == methods_page(), "run `make docs`"


def test_the_figures_of_the_speed_page_are_those_that_were_measured():
    assert SPEED.read_text(encoding="utf-8") == speed_page(), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_between_their_marks_are_those_that_were_measured(page):
    text = page.read_text(encoding="utf-8")
    assert text == with_figures(text, json.loads(RESULTS.read_text(encoding="utf-8"))), "run: make docs"


def test_figures_are_found_by_their_part_and_words():
    rows = [{"part": "a", "case": case, "value": 1234.5} for case in ("small", "large")]
    page = "x\n<!-- figures: a | large -->\nold\n<!-- end of figures -->\ny\n"
    assert "| large | 1,234 |\n<!-- end" in with_figures(page, {"rows": rows})
    assert "old" not in with_figures(page, {"rows": rows})
    assert "small" not in with_figures(page, {"rows": rows})
    with pytest.raises(SystemExit, match='no figures of "a" with "huge"'):
        with_figures(page.replace("large", "huge"), {"rows": rows})


def test_the_table_of_claims_is_up_to_date():
    assert CLAIMS.read_text(encoding="utf-8") == claims_page(), "run: make docs"


@pytest.mark.parametrize("number", LISTED)
def test_a_claim_that_was_checked_can_be_checked_again(number):
    """And its commands are such that they can be begun."""
    _, claim = LISTED[number]
    assert claim.commands or claim.verdict in (UNCHECKED, NOTHING)
    assert claim.ours
    for command in commands(claim, "data", "out"):
        program, *words = shlex.split(command)
        if program == "tertium":
            given = {key: words[words.index(key) + 1] for key in ("--methods", "--schemes") if key in words}
            rows_from(given["--methods"])
            columns_from(given["--schemes"])
        else:
            assert (program, words[0]) == ("python", "-m")
            assert find_spec(words[1]) is not None


def test_the_page_of_public_names_is_up_to_date():
    assert API.read_text() == api_page(), "run `make docs`"
    assert sorted(re.findall(r"^### `tertium\.(\w+)`$", API.read_text(), re.MULTILINE)) == tertium.__all__
    for name in tertium.__all__:
        assert getattr(tertium, name).__doc__, name


def test_only_the_table_is_written_anew(tmp_path, monkeypatch):
    page = tmp_path / "methods.md"
    monkeypatch.setattr("docs.generate.PAGE", page)
    page.write_text(f"above\n{BEGIN}| old |\n{END}below\n")
    written = methods_page()
    assert written.startswith(f"above\n{BEGIN}| name |")
    assert written.endswith(f" |\n{END}below\n")
    assert "| old |" not in written
    page.write_text(f"above\n{BEGIN}| old |\n")
    with pytest.raises(SystemExit, match="end of table"):
        methods_page()


def test_what_is_installed_without_torch_is_what_the_project_asks_for():
    """requirements-serve.txt is in step with pyproject.toml, and is all that an exported model loads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {*project["dependencies"], *extras["onnx"], *extras["web"]}
    text = (ROOT / "requirements-serve.txt").read_text()
    listed = [line for line in text.splitlines() if line and line[0] != "#"]
    assert set(listed) <= asked
    names = {re.split(r"[>=]", line)[0] for line in listed}
    loads = (
        "import tertium.cli, tertium.prediction.using, tertium.web.serving, onnxruntime, sys;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    every = {re.split(r"[>=\\[]", line)[0].replace("-", "_") for line in asked}
    packages = {"pillow": "PIL"}
    assert {name for name in every if packages.get(name, name) in loaded} <= names
    assert "torch" not in loaded
    assert (
        "pip install -r requirements-serve.txt && pip install --no-deps ." in (ROOT / "README.md").read_text()
    )


def sections():
    """The text under each heading of the page that names methods, by method, without line breaks in prose."""
    _, *parts = re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)
    headed = [part.partition("\n")[::2] for part in parts if part.startswith("`")]
    return {name: text for heading, text in headed for name in re.findall("`(.+?)`", heading)}


SECTIONS = sections()
OURS = {name: kind for name, kind in methods.available().items() if kind.__module__.startswith("tertium.")}


def test_every_method_has_a_section():
    assert SECTIONS.keys() == OURS.keys()


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_stands_in_its_section_with_its_default(name):
    told: dict[str, list[str]] = {}
    for keys, values in re.findall(r"^\| (`.+?) \| (.+?) \|", SECTIONS[name], re.MULTILINE):
        found, defaults = re.findall("`(.+?)`", keys), values.split(", ")
        # Several defaults of one parameter are those of the methods that share the section.
        each = [[value] for value in defaults] if len(found) > 1 else [defaults]
        told |= dict(zip(found, each, strict=True))
    parameters = methods.parameters_of(OURS[name])
    assert told.keys() == parameters.keys()
    for key, value in parameters.items():
        assert str(value) in told[key], key


@pytest.mark.parametrize("name", OURS)
def test_what_cannot_do_with_presences_only_says_so(name):
    positives = Labels.from_dense([[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]])
    section = SECTIONS[name]
    refusing = []
    for other in [other for other in OURS if SECTIONS.get(other) is section]:
        try:
            methods.make(other).check(positives)
        except InputError:
            refusing.append(other)
    told = re.search(r"[Nn]eeds\s(known\sabsences|full\slabels)", section)
    assert bool(told) == bool(refusing)


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_what_several_processes_do_otherwise_is_told(name, parameters):
    assert methods.make(name, parameters).alone in " ".join(SECTIONS[name].split())


def test_the_memory_of_methods_is_as_told():
    """Bytes for each image and class of the tables that a run leaves, and of the same tables if compact."""
    from lightning.fabric import Fabric

    memory = PAGE.read_text().partition("**Memory.**")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)((?: \w+=\w+)?)` \| ([\d.]+) \| (.+?) \|$", memory, re.MULTILINE)
    told = {(name, given.strip()): figures for name, given, *figures in rows}
    assert len(told) == 9
    for name, given in {(name, "") for name in OURS} | told.keys():
        parameters = dict([given.split("=")]) if given else {}
        _, state = train_one(name, parameters, Fabric(accelerator="cpu", devices=1))
        tables = [table for table in state.tables.values() if table.width == state.shape[1]]
        compact = SampleState(COUNT, 8, compact=True)
        for table in tables:
            dtype = table.form.name if table.kind == "number" else "float32"
            compact.table(table.name, kind=table.kind, dtype=dtype)
        sizes = [
            sum(table.nbytes for table in each) / (COUNT * width)
            for each, width in ((tables, state.shape[1]), (compact.tables.values(), 8))
        ]
        exact, small = told.get((name, given), ("0", "0"))
        assert sizes[0] == float(exact), name
        assert small == "refused" or sizes[1] == float(small), name


def test_the_makefile_has_what_the_readme_names():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("demo", "test", "test-all", "check", "bench", "docs"):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_design_names_every_module():
    """Packages whose modules are not listed one by one are named as a whole."""
    source = ROOT / "src" / "tertium"
    paths = (path.relative_to(source).with_suffix("") for path in source.rglob("*.py"))
    modules = {".".join(path.parts) for path in paths if not path.name.startswith("__")}
    packages = {".".join(path.parent.relative_to(source).parts) for path in source.rglob("__init__.py")}
    table = (ROOT / "docs" / "design.md").read_text().partition("## Packages")[2].partition("## Decisions")[0]
    rows = re.findall(r"^\| \**(`.+?`)\** \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert named <= modules | packages
    whole = {name for name in named & packages if not any(each.startswith(f"{name}.") for each in named)}
    assert {name for name in modules - named if name.rpartition(".")[0] not in whole} == set()


def test_the_tests_that_promises_name_are_there():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/.]+)`", page))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
