"""The command line; nothing else prints."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from tertium.cli import completing, label_files, models, showing
from tertium.cli.annotation_tools import publish
from tertium.cli.better import better
from tertium.cli.compare import compare
from tertium.cli.convert import convert
from tertium.cli.encoders import encoders
from tertium.cli.explaining import explain, pointing
from tertium.cli.exporting import export
from tertium.cli.features import features
from tertium.cli.methods import methods
from tertium.cli.prior import prior
from tertium.cli.processes import end_kindly
from tertium.cli.reviewing import answers, review
from tertium.cli.screen import Screen
from tertium.cli.serving import serve
from tertium.cli.shared import say
from tertium.cli.usage import Command, Commands
from tertium.errors import InputError, SaidElsewhere, Stopped
from tertium.files import is_full

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"tertium {version('tertium')}")
        raise typer.Exit


@app.callback()
def tertium(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train multi-label image classifiers when most labels are unknown.

    A label is **present**, **absent**, or **not known yet**.

    **Start here**

      tertium demo — try it on built-in scenes

      tertium describe labels.csv — what is in a label file

      tertium train --labels labels.csv --images photos/ --out runs/first

      tertium predict runs/first --images new/ --out predictions.csv

    Each command has an example: tertium COMMAND --help. A wrong input gets one sentence and exit code 2.
    """


def main() -> None:
    """Run the command line; what a user did wrong is one sentence and exit code 2."""
    before = signal.signal(signal.SIGTERM, end_kindly)  # so that what is half-written is removed
    try:
        app(prog_name="tertium")
    except SaidElsewhere:
        sys.exit(2)
    except KeyboardInterrupt:  # before typer could hear it
        sys.exit(128 + signal.SIGINT)
    except Stopped as stop:  # in a command that trains by the way
        sys.exit(128 + stop.number)
    except OSError as error:
        if not is_full(error):
            raise
        _fail(f"{error.filename or 'a file'}: cannot be written, the disk is full")
    except InputError as error:
        if _repeats():
            sys.exit(2)
        _fail(str(error))
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(sentence: str) -> NoReturn:
    """Say what is wrong, and end."""
    console = Screen(stderr=True)
    console.print("[bold red]Error:[/] ", end="")
    console.print(sentence, highlight=False, markup=False, emoji=False, soft_wrap=True)
    sys.exit(2)


def _repeats() -> bool:
    """Return whether process 0 says the same: what is wrong before processes join is wrong in all of them."""
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        return False
    from tertium.processes import world

    return world() == 1


_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Labels": (
        label_files.describe,
        label_files.simulate,
        label_files.merge,
        publish,
        prior,
        completing.complete,
        completing.suggest,
        completing.rehearse,
        review,
        answers,
    ),
    "Models": (
        encoders,
        features,
        models.train,
        models.evaluate,
        better,
        models.predict,
        methods,
        compare,
        explain,
        pointing,
        export,
        serve,
    ),
    "Pages and examples": (showing.report, showing.demo, showing.scenes),
}
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(convert, name="convert", rich_help_panel="Labels")
for each in (*app.registered_commands, *convert.registered_commands):
    each.cls = Command
