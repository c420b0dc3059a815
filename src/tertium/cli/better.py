"""The command that says whether one model is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import (
    LABELS_HELP,
    ImagesPlace,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    reads_labels,
    say,
    watching,
    writes_files,
)
from tertium.errors import some

if TYPE_CHECKING:
    from tertium.metrics.paired import Difference, Paired

_SHOWN = 10  # classes


@reads_labels
@writes_files("{stem}.csv")
def better(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A run folder, or an exported .onnx file.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The one that may be better.")],
    labels: Annotated[Path | None, typer.Option(help=f"Labels to compare on. {LABELS_HELP}")] = None,
    images: ImagesPlace = None,
    features: Annotated[
        Path | None, typer.Option("--features", help="Ready features of the images: .npy, floats [N, D].")
    ] = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go, .json; a .csv per class goes beside it.")
    ] = None,
) -> None:
    """Say whether a model is better than another, judged on the same images.

    **Examples**

      tertium better runs/first runs/second

      tertium better runs/first runs/second --labels test.csv --images photos/ --out better.json

      tertium better old.onnx new.onnx --labels test.csv --images photos/

    With --labels, both models predict; images that either run was trained on are left out. Without, two runs
    are compared on the validation images that both have, by the scores that they kept; since epochs and
    thresholds were chosen on these, test images are better. The interval tells what another draw of images
    might give: 90 of 100 such intervals hold the true difference.
    """
    from tertium.cli.terminal import counted
    from tertium.prediction.better import better as compare

    with watching() as progress:
        found = compare(
            old,
            new,
            labels,
            images,
            features=features,
            split=split,
            unlisted=unlisted.value,
            out=out,
            progress=progress,
        )
    _show(found.paired)
    if found.left_out:
        why = "that either was trained on" if labels is not None else "that only one of them validates"
        say(f"Left out: {counted(found.left_out, 'images')} {why}.")
    if found.left_out_classes:
        say(f"Left out: {some(found.left_out_classes, 8)}: not known to both, or without labels.")
    say(found.words())
    if out is not None:
        say(f"Figures: {out}, per class: {out.with_suffix('.csv')}")


def _show(found: Paired) -> None:
    from tertium.cli.terminal import table
    from tertium.metrics.paired import LEVEL

    heading = ["", "old", "new", "difference", f"{100 * LEVEL:.0f} % interval"]
    rows = [["mAP(C)", *_cells(found.map_c)], ["mF1", *_cells(found.mF1)]]
    console().print(table(heading, rows))
    if not found.classes:
        return
    shown = found.classes[:_SHOWN]
    told = sum(each.ap.told for each in found.classes)
    console().print(table(["class, AP", *heading[1:]], [[each.name, *_cells(each.ap)] for each in shown]))
    count = len(found.classes)
    what = f"The largest changes of {count:,} classes" if count > _SHOWN else "The scored classes"
    say(
        f"{what}. The interval leaves out zero in {told:,}; by chance alone it would in about "
        f"{(1 - LEVEL) * count:,.0f}."
    )


def _cells(figure: Difference) -> list[str]:
    old, new, low, high = (f"{100 * value:.1f}" for value in figure)
    return [old, new, f"{100 * figure.gain:+.1f}", f"{low} to {high}"]
