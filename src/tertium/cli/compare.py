"""`tertium compare`: every method under every scheme."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import LabelsFile, Unlisted, UnlistedChoice, say, watching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tertium.comparing import Entry

_SCHEMES = "single_positive,random:0.1,random:0.3,positives:0.3,per_class:100,balanced:0.1"


def compare(
    labels: LabelsFile,
    features: Annotated[Path, typer.Option(help="Features of all images, or of the training images: .npy.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    test_features: Annotated[
        Path | None, typer.Option(help="Features of the test images, if --features has only the others.")
    ] = None,
    schemes: Annotated[str, typer.Option(help="How labels are hidden, separated by commas.")] = _SCHEMES,
    methods: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other labels hidden.")] = 5,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at once (default: one a core).")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of all cells; METHOD.PARAMETER=VALUE of some."
        ),
    ] = None,
) -> None:
    """Train every method under every scheme, on the same hidden labels, and tabulate test mAP.

    **Example**

      tertium compare --labels labels.csv --unlisted absent --features x.npy --methods auto,ignore,negative
      --schemes random:0.1,single_positive --seeds 3 --out results/

    The labels need the splits train and test, and should be full. Nothing is chosen on test labels: epochs
    are chosen on the known labels of a validation part. Finished cells are skipped, so a comparison that was
    stopped goes on. Writes results.csv, table.md and table.svg.
    """
    from tertium.cli.models import settings_of
    from tertium.comparing import Work, check_methods, markdown, summarise
    from tertium.comparing import compare as run_comparison
    from tertium.files import replacing
    from tertium.predictions import write_columns

    names, chosen = check_methods(methods.split(",")), schemes.split(",")
    given = settings_of(None, settings)
    work = Work(
        str(labels),
        str(features),
        unlisted.value,
        given,
        None if test_features is None else str(test_features),
    )
    out.mkdir(parents=True, exist_ok=True)
    with watching() as progress:
        cells = run_comparison(
            work, out, schemes=chosen, names=names, seeds=seeds, jobs=jobs, progress=progress
        )
    keys = ("method", "scheme", "seed", "score", "validation", "best_epoch", "seconds", "reason")
    write_columns(out / "results.csv", {key: [cell.get(key) for cell in cells] for key in keys})
    table = summarise(cells)
    text = markdown(table, chosen)
    with replacing(out / "table.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    _draw(out / "table.svg", table, chosen)
    say(text)
    say(
        f"Test mAP, mean over {seeds} seeds ± half its 95 % interval; bold: not told apart from the best."
        if seeds > 1
        else "Test mAP of one seed; bold: the highest. More seeds give intervals."
    )
    say(f"Results: {out / 'results.csv'}, table: {out / 'table.md'}, figure: {out / 'table.svg'}")


def _draw(path: Path, table: Mapping[str, Mapping[str, Entry]], schemes: Sequence[str]) -> None:
    """Draw one panel for each scheme: methods from the best down, with intervals, beside the ceiling."""
    from matplotlib.figure import Figure

    from tertium.files import replacing
    from tertium.svg import COLOURS, drawing

    with drawing(), replacing(path) as temporary:
        most = max(sum(scheme in row for row in table.values()) for scheme in schemes)
        columns = min(3, len(schemes))
        rows = -(-len(schemes) // columns)
        figure = Figure(figsize=(4.2 * columns, rows * (0.9 + 0.2 * most)))
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(schemes) :]:
            axes.set_axis_off()
        for axes, scheme in zip(panels, schemes, strict=False):
            entries = {name: row[scheme] for name, row in table.items() if scheme in row}
            known = {name: entry for name, entry in entries.items() if entry.mean is not None}
            order = sorted(known, key=lambda name: known[name].mean or 0)
            means = [100 * (known[name].mean or 0) for name in order]
            halves = [100 * (known[name].half or 0) for name in order]
            colours = [COLOURS[0] if known[name].best else COLOURS[6] for name in order]
            axes.hlines(
                range(len(order)),
                [m - h for m, h in zip(means, halves, strict=True)],
                [m + h for m, h in zip(means, halves, strict=True)],
                colors=colours,
                linewidth=2,
            )
            axes.scatter(means, range(len(order)), c=colours, s=14)
            axes.set_yticks(range(len(order)), order)
            ceiling = table.get("bce", {}).get("full")
            if ceiling is not None and ceiling.mean is not None:
                axes.axvline(100 * ceiling.mean, color=COLOURS[1], linewidth=1, linestyle="--")
            axes.set(title=scheme, xlabel="test mAP, %")
        figure.savefig(temporary, format="svg")
