"""`tertium compare`: every method under every scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.engines import Actors, Address, Engine, EngineChoice, check_engine
from tertium.cli.shared import LabelsFile, Unlisted, UnlistedChoice, command_line, reads_labels, say, watching
from tertium.config import SCHEMES
from tertium.errors import InputError


@reads_labels
def compare(
    labels: LabelsFile,
    features: Annotated[Path, typer.Option(help="Features of all images, or of the training images: .npy.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    test_features: Annotated[
        Path | None, typer.Option(help="Features of the test images, if --features has only the others.")
    ] = None,
    schemes: Annotated[str, typer.Option(help="How labels are hidden, separated by commas.")] = SCHEMES,
    partial: Annotated[
        list[Path] | None,
        typer.Option(help="Partial labels of the training images: one more column. Can be repeated."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Names separated by commas, or all; ll_r:delta=0.1/0.2 is a row for each.")
    ] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other labels hidden.")] = 5,
    sample: Annotated[
        int | None, typer.Option(min=2, help="Train on so many images, drawn at random.")
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
    engine: EngineChoice = Engine.local,
    address: Address = None,
    actors: Actors = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings of all cells; METHOD.PARAMETER=VALUE for one method."
        ),
    ] = None,
) -> None:
    """Train every method under every scheme, on the same hidden labels, and tabulate test mAP.

    **Examples**

      tertium compare --labels labels.csv --unlisted absent --features x.npy --methods auto,ignore,negative
      --schemes random:0.1,single_positive --seeds 3 --out results/

      tertium compare --labels labels.csv --unlisted absent --features x.npy --out results/
      --methods negative,ll_r:delta=0.1/0.2/0.4,selective:k=3,top=0.1 --search 10

      tertium compare --labels labels.csv --unlisted absent --features x.npy --out results/
      --engine ray --address auto

    The labels need the splits train and test, and should be full. Nothing is chosen on test labels: epochs,
    and with --search hyper-parameters, are chosen on the known labels of a validation part. Finished cells
    are skipped, so a comparison that was stopped continues. Writes table.md, table.svg, results.csv,
    report.html and more.
    """
    from tertium.cli.models import settings_of
    from tertium.reporting import compare as compare_methods

    check_engine(engine, address=address, actors=actors)
    if engine is Engine.ray and jobs is not None:
        raise InputError("--jobs is of --engine local; with Ray say --actors")
    with watching() as progress:
        done = compare_methods(
            labels,
            features,
            out=out,
            test_features=test_features,
            schemes=schemes,
            partial=partial or [],
            methods=methods,
            seeds=seeds,
            sample=sample,
            search=search,
            clean_validation=clean_validation,
            every_epoch=every_epoch,
            jobs=jobs,
            engine=engine.value,
            address=address,
            actors=actors,
            unlisted=unlisted.value,
            settings=settings_of(None, settings),
            command=command_line(),
            progress=progress,
        )
    say(done.table)
    say(
        f"Test mAP, mean over {seeds} seeds ± half its 95 % interval; "
        "bold: not significantly below the best in a paired test."
        if seeds > 1
        else "Test mAP of one seed; bold: the highest. More seeds give intervals."
    )
    say(f"Results: {out / 'results.csv'}, tables: {out / 'table.md'}, figure: {out / 'table.svg'}")
    say(f"Report: {done.report}")
