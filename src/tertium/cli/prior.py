"""`tertium prior`: how frequent each class really is."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import (
    ClassesFile,
    FeaturesFile,
    ImagesFolder,
    LabelsFile,
    Unlisted,
    UnlistedChoice,
    console,
    read,
    say,
    watching,
)

if TYPE_CHECKING:
    from tertium.annotation.frequencies import Frequencies
    from tertium.labels import Labels

_ALL, _SHOWN = 20, 12  # classes up to which the table has all; of more, so many of the most frequent


class Estimator(enum.StrEnum):
    """Where the frequencies come from."""

    scores = "scores"
    ignore = "ignore"


def prior(
    labels: LabelsFile,
    out: Annotated[Path, typer.Option(help="Where the frequencies go: .csv or .parquet.")],
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    estimator: Annotated[
        Estimator,
        typer.Option(help="scores: explain which labels are known; ignore: Ben-Baruch's mean prediction."),
    ] = Estimator.scores,
    labels_per_image: Annotated[
        float | None, typer.Option(help="Present labels to expect in an image, if you know it.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them: an .svg file.")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    classes: ClassesFile = None,
) -> None:
    """Estimate how frequent each class really is, beside how often it is known to be present.

    **Example**

      tertium prior --labels labels.csv --images photos/ --out prior.csv --plot prior.svg

    Models that have not seen an image score it; which labels are known at which scores tells how much of what
    is present was annotated (docs/auto.md). The columns low and high are a 95 % interval.
    """
    from tertium.prediction.files import check_path, write_columns
    from tertium.training.train import class_frequencies

    check_path(out)
    with watching() as progress:
        used, found = class_frequencies(
            read(labels, unlisted, classes),
            images,
            features=features,
            estimator=estimator.value,
            labels_per_image=labels_per_image,
            progress=progress,
        )
    columns = _columns(used, found)
    write_columns(out, columns)
    _show(used, found, columns)
    say(f"All {len(used.classes):,} classes: {out}")
    if plot is not None:
        _draw(plot, columns)
        say(f"Figure: {plot}")


def _show(labels: Labels, found: Frequencies, columns: dict[str, list[str] | list[float]]) -> None:
    """Print the classes or the most frequent ones, how many labels an image has, and how sure that is."""
    from tertium.cli.terminal import table

    every = sorted(range(len(labels.classes)), key=lambda place: -found.rate[place])
    order = every if len(every) <= _ALL else every[:_SHOWN]
    title = "classes by frequency" if order == every else f"the {_SHOWN} most frequent classes"
    rows = [
        [
            labels.classes[place],
            *(f"{100 * columns[name][place]:.2f}" for name in ("observed", "prior", "low", "high")),
        ]
        for place in order
    ]
    console().print(table(["class", "observed %", "prior %", "low", "high"], rows, title=title))
    say(
        f"Labels per image: {found.labels_per_image:.2f} expected, "
        f"{labels.class_counts[0].sum() / len(labels):.2f} known to be present."
    )
    say(_doubt(labels, found))


def _doubt(labels: Labels, found: Frequencies) -> str:
    """Say between which numbers of labels the truth may lie, and what either would mean."""
    seen = labels.class_counts[0].sum() / len(labels)
    few, many = found.low.sum(), found.high.sum()
    told = f"If all classes err alike, between {few:.2f} and {many:.2f}"
    if few > 0:
        told += f": {min(seen / few, 1):.0%} or {min(seen / many, 1):.0%} of what is present would be known"
    return f"{told}."


def _columns(labels: Labels, found: Frequencies) -> dict[str, list[str] | list[float]]:
    observed = labels.class_counts[0] / len(labels)
    return {
        "class": list(labels.classes),
        "prior": found.rate.tolist(),
        "low": found.low.tolist(),
        "high": found.high.tolist(),
        "observed": observed.tolist(),
        "present_known": found.present.tolist(),
        "absent_known": found.absent.tolist(),
    }


def _draw(path: Path, columns: dict[str, list[str] | list[float]]) -> None:
    """Draw what is observed and what is estimated, from the most to the least frequent class."""
    import numpy as np

    from tertium.files import replacing
    from tertium.reporting.svg import Shares, drawing

    rate = np.array(columns["prior"])
    order = np.argsort(-rate, kind="stable")
    low, high, observed = (np.array(columns[name])[order] for name in ("low", "high", "observed"))
    shares = Shares(observed, (rate[order], low, high))
    names = [str(columns["class"][place]) for place in order]
    with drawing(), replacing(path) as temporary:
        about = "How frequent each class is", names, "class, by estimated frequency"
        shares.drawn(*about, shares.values).savefig(temporary, format="svg")
