"""What the pages say is what happens: their Python runs, their commands work as printed."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from docs.generate import PAGE, methods_page
from tertium.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)
    if page.name == "README.md":
        assert len(lines) == 8
        assert (tmp_path / "predictions.csv").is_file()
        assert "mAP(C)" in capsys.readouterr().out


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_page_of_methods_is_up_to_date():
    assert PAGE.read_text() == methods_page(), "run `make docs`"


def test_the_makefile_has_what_the_readme_names():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("demo", "test", "test-all", "check", "bench", "docs"):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
