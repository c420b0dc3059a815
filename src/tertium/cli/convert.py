"""`tertium convert`: published annotation files to label files, one command for each format."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import say

if TYPE_CHECKING:
    from tertium.formats.reading import Reading

convert = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Turn published annotation files into a label file: tertium convert FORMAT … --out labels.parquet.",
)


class Contradictions(enum.StrEnum):
    """What becomes of a label that is given as both present and absent."""

    error = "error"
    absent = "absent"
    present = "present"
    unknown = "unknown"


Out = Annotated[Path, typer.Option(help="Where the labels go: .parquet, .arrow, .csv or .tsv.")]
Rule = Annotated[Contradictions, typer.Option(help="For labels given as both present and absent.")]


def keep(reading: Reading, out: Path) -> None:
    """Write the labels, and their tree beside them; say what was found."""
    from tertium.readers import write_labels

    write_labels(reading.labels, out)
    say(f"{reading.labels!r} → {out}")
    if reading.tree is not None:
        place = out.with_suffix(".tree.csv")
        reading.tree.to_csv(place)
        say(f"Label tree → {place}")
    for note in reading.notes:
        say(f"Note: {note}.")


# ---- tables: Open Images -----------------------------------------------------------------------------------


# ---- JSON and XML: COCO, LVIS, Pascal VOC ------------------------------------------------------------------


# ---- small data sets: CUB, NUS-WIDE, CIFAR-100, CheXpert, Cole's arrays, ARFF ------------------------------
