"""Commands that show: a report, the demo, the scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import console, say, watching
from tertium.errors import InputError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders to lay side by side.")],
    out: Annotated[Path, typer.Option(help="The HTML file; a .csv goes beside it.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Tertium report",
) -> None:
    """Write one HTML page about runs: table, curves, classes.

    **Example**

      tertium report runs/first runs/second --out report.html
    """
    from tertium.report import write_report
    from tertium.runs import RunFolder

    command = "tertium report " + " ".join(str(run) for run in runs)
    write_report(out, [RunFolder.open(run) for run in runs], title=title, command=command)
    say(f"Report: {out}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the scenes, the hidden labels and the training.")] = 0,
) -> None:
    """Render scenes with known truth, hide most labels, train several methods, compare.

    **Example**

      tertium demo --out runs/demo
    """
    from tertium.demo import run_demo
    from tertium.terminal import show_demo

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
    from tertium.scenes import render

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: already exists; choose another folder")
    render(count, seed=seed).save(out)
    say(f"{count:,} scenes and labels.csv → {out}")
