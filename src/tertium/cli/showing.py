"""Commands that show: a report, the demo, the scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import (
    IMAGES_HELP,
    LABELS_HELP,
    Unlisted,
    UnlistedChoice,
    command_line,
    console,
    reads_labels,
    say,
    watching,
    writes_files,
)
from tertium.errors import InputError


@reads_labels
@writes_files()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders to show side by side.")],
    out: Annotated[Path, typer.Option(help="The HTML file; CSV files go beside it.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Tertium report",
    labels: Annotated[Path | None, typer.Option(help=f"Labelled images to look at. {LABELS_HELP}")] = None,
    images: Annotated[
        str | None, typer.Option(metavar="PLACE", help=f"Those of --labels. {IMAGES_HELP}")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Ready features of the images of --labels: .npy, floats [N, D].")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Judge the runs on the images of this split.")
    ] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
) -> None:
    """Write one HTML page about runs: the data, how training went, how good they are.

    **Examples**

      tertium report runs/first runs/second --out report.html

      tertium report runs/first --labels labels.csv --images photos/

      tertium report runs/first --labels labels.csv --unlisted absent --features x.npy --split test

    With --labels and their images or features, the page also shows which labels are probably missing; with
    --split its figures are those of that split, else of `tertium evaluate` or of the validation images.
    """
    from tertium.reporting import report as write_page

    with watching() as progress:
        write_page(
            runs,
            out=out,
            title=title,
            labels=labels,
            images=images,
            features=features,
            split=split,
            unlisted=unlisted.value,
            command=command_line(),
            progress=progress,
        )
    say(f"Report: {out}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the scenes, the hidden labels and the training.")] = 0,
) -> None:
    """Render scenes with known truth, hide most labels, train several methods, compare.

    **Example**

      tertium demo --out runs/demo
    """
    from tertium.cli.demo import run_demo
    from tertium.cli.terminal import show_demo

    with watching() as progress:
        rows, page = run_demo(out, seed=seed, progress=progress)
    show_demo(console(), rows)
    say(f"Runs:   {out}\nReport: {page}")


def scenes(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the images and labels.csv go.")],
    count: Annotated[int, typer.Option(min=1, help="How many scenes.")] = 600,
    seed: Annotated[int, typer.Option(help="Another seed gives other scenes.")] = 0,
) -> None:
    """Write rendered scenes with full labels, to try the commands on.

    **Example**

      tertium scenes photos --count 600

    labels.csv lists what is present; whatever is unlisted is absent.
    """
    from tertium.cli.terminal import counted
    from tertium.data.scenes import render

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: already exists; choose another folder")
    render(count, seed=seed).save(out)
    say(f"{counted(count, 'scenes')} and labels.csv → {out}")
