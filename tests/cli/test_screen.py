"""Names from a user's files are shown on the screen, and never change it."""

import io
import re

import pytest

from tertium.cli.screen import Screen, visible
from tertium.cli.terminal import Bar, table

HOSTILE = ["\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "del\x7f", "\u202egnp.exe", "\udc80", "nul\x00"]
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("shown", [lambda name: name, lambda name: table(["class"], [[name]], title="a")])
def test_control_characters_are_shown_as_escapes(name, shown):
    file = io.StringIO()
    Screen(file=file, width=80).print(shown(name), highlight=False)
    assert not RAW.search(file.getvalue().replace("\n", ""))
    assert "\\" in file.getvalue()


def test_colours_of_our_own_are_not_affected():
    file = io.StringIO()
    screen = Screen(file=file, force_terminal=True, color_system="standard", width=80)
    screen.print("[bold red]Error:[/] ", end="")
    screen.print("\x1b[2Jname", highlight=False, markup=False)
    assert file.getvalue() == "\x1b[1;31mError:\x1b[0m \\x1b[2Jname\n"


def test_a_bar_takes_no_name_for_markup():
    file = io.StringIO()
    bar = Bar(Screen(file=file, force_terminal=True, width=80))
    bar.start("Reading [/bold]\x1b]0;x\x07.csv", 2, "MB")
    bar.advance()
    bar.close()
    assert "Reading [/bold]" in file.getvalue()
    assert "\x1b]" not in file.getvalue()


def test_harmless_text_stays_as_it_is():
    for text in ("naïve café", "a\tb\nc", "日本語 😀", "−×–", "عربي"):
        assert visible(text) == text


def test_the_commands_print_no_raw_escapes(tertium, tmp_path):
    """In results, in tables and in errors."""
    (tmp_path / "labels.csv").write_text(
        'image,present\n\x1b[31ma.jpg,"\x1b[2Jcat"\n\x1b[31mb.jpg,dog\n', encoding="utf-8"
    )
    bad = tmp_path / "bad.csv"
    bad.write_text("image,label,value\na.jpg,cat,\x1b[31mmaybe\n", encoding="utf-8")
    out = tmp_path / "\x1b[31mout.csv"
    for words in (
        ("describe", tmp_path / "labels.csv"),
        ("describe", bad),
        ("simulate", tmp_path / "labels.csv", "--scheme", "single_positive", "--out", out),
        ("describe", tmp_path / "\x1b[31mnone.csv"),
    ):
        _, said, errors = tertium(*words)
        assert not RAW.search((said + errors).replace("\n", "")), words
        assert "\\x1b" in said + errors
