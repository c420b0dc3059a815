"""What commands share: their options, and how they print."""

from __future__ import annotations

import enum
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from tertium.labels import Labels
    from tertium.terminal import Bar, Lines

_WIDTH = 120  # of tables in a file or a pipe


class Unlisted(enum.StrEnum):
    """What a label means that the file does not mention."""

    unknown = "unknown"
    absent = "absent"


LabelsFile = Annotated[Path, typer.Option("--labels", help="Label file: CSV, TSV, Parquet or Arrow.")]
UnlistedChoice = Annotated[Unlisted, typer.Option(help="What a label means that the file does not list.")]
ClassesFile = Annotated[Path | None, typer.Option("--classes", help="Class names, one a line, in order.")]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder with the images.")]
FeaturesFile = Annotated[Path | None, typer.Option("--features", help="Ready features: .npy, floats [N, D].")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote.")]
SplitName = Annotated[
    str | None, typer.Option("--split", help="Only the images of this split of the labels.")
]


def console() -> Console:
    """Return the console for results; a file or a pipe gets wide tables."""
    found = Console()
    return found if found.is_terminal else Console(width=_WIDTH)


@contextmanager
def watching() -> Iterator[Bar | Lines]:
    """Show progress while the block runs: a bar in a terminal, lines elsewhere."""
    from tertium.terminal import watcher

    progress = watcher(Console(stderr=True))
    try:
        yield progress
    finally:
        progress.close()


def say(text: str) -> None:
    """Print a line in which names from a user's files are text, never markup."""
    console().print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def command_line() -> str:
    """Return the command that runs, as it would be typed."""
    return shlex.join(["tertium", *sys.argv[1:]])


def read(labels: Path, unlisted: Unlisted, classes: Path | None) -> Labels:
    """Read a label file with the options of a command."""
    from tertium.readers import read_classes, read_labels

    names = None if classes is None else read_classes(classes)
    return read_labels(labels, unlisted=unlisted.value, classes=names)


def images_of(labels: Path, split: str | None) -> list[str]:
    """Return the images that a label file lists, or those of one split."""
    listed = read(labels, Unlisted.unknown, None)
    names: list[str] = (listed if split is None else listed.part(split)).images.to_pylist()
    return names
