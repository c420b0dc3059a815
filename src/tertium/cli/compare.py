"""`tertium compare`: every method under every scheme."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tertium.cli.shared import LabelsFile, Unlisted, UnlistedChoice, command_line, say, watching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tertium.comparing import Comparison

_SCHEMES = "single_positive,random:0.1,random:0.3,positives:0.3,per_class:100,balanced:0.1"


def compare(
    labels: LabelsFile,
    features: Annotated[Path, typer.Option(help="Features of all images, or of the training images: .npy.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    test_features: Annotated[
        Path | None, typer.Option(help="Features of the test images, if --features has only the others.")
    ] = None,
    schemes: Annotated[str, typer.Option(help="How labels are hidden, separated by commas.")] = _SCHEMES,
    partial: Annotated[
        list[Path] | None,
        typer.Option(help="Partial labels of the training images: one more column. Can be repeated."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Names separated by commas, or all; ll_r:delta=0.1/0.2 is a row for each.")
    ] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other labels hidden.")] = 5,
    images: Annotated[
        int | None, typer.Option(min=2, help="How many images to train on; a number, not a folder.")
    ] = None,
    search: Annotated[
        int, typer.Option(min=1, help="Settings that each row tries, the given ones included.")
    ] = 1,
    clean_validation: Annotated[
        bool, typer.Option("--clean-validation", help="Choose on full validation labels too: a second table.")
    ] = False,
    every_epoch: Annotated[
        bool, typer.Option("--every-epoch", help="Also keep the test mAP after each epoch.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at once (default: one a core).")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of all cells; METHOD.PARAMETER=VALUE of some."),
    ] = None,
) -> None:
    """Train every method under every scheme, on the same hidden labels, and tabulate test mAP.

    **Examples**

      tertium compare --labels labels.csv --unlisted absent --features x.npy --methods auto,ignore,negative
      --schemes random:0.1,single_positive --seeds 3 --out results/

      tertium compare --labels labels.csv --unlisted absent --features x.npy --out results/
      --methods negative,ll_r:delta=0.1/0.2/0.4,selective:k=3,top=0.1 --search 10

    The labels need the splits train and test, and should be full. Nothing is chosen on test labels: epochs,
    and with --search hyper-parameters, are chosen on the known labels of a validation part. Finished cells
    are skipped, so a comparison that was stopped goes on. Writes table.md, table.svg, results.csv,
    report.html and more.
    """
    from tertium.cli.models import settings_of
    from tertium.comparing import Work, columns_from, rows_from
    from tertium.comparing import compare as run_comparison

    rows, columns = rows_from(methods), columns_from(schemes, partial or [])
    given = settings_of(None, settings)
    tests = None if test_features is None else str(test_features)
    work = Work(str(labels), str(features), unlisted.value, tests, images)
    out.mkdir(parents=True, exist_ok=True)
    with watching() as progress:
        found = run_comparison(
            work,
            out,
            rows=rows,
            columns=columns,
            settings=given,
            seeds=seeds,
            search=search,
            clean=clean_validation,
            every_epoch=every_epoch,
            jobs=jobs,
            progress=progress,
        )
    _write(out, found, [column.name for column in columns], given, seeds)


def _write(
    out: Path, found: Comparison, schemes: Sequence[str], settings: Mapping[str, Any], seeds: int
) -> None:
    """Write the tables, the figure and the page; show the main table and say where they are."""
    from tertium.comparing import summarise, write_results
    from tertium.reporting import write_comparison

    text = write_results(out, found, schemes)
    entries = summarise(found.cells)
    say(text)
    say(
        f"Test mAP, mean over {seeds} seeds ± half its 95 % interval; bold: not significantly different from the best."
        if seeds > 1
        else "Test mAP of one seed; bold: the highest. More seeds give intervals."
    )
    say(f"Results: {out / 'results.csv'}, tables: {out / 'table.md'}, figure: {out / 'table.svg'}")
    say(f"Report: {write_comparison(out, entries, schemes, settings, command_line())}")
