"""`tertium prior`: how frequent each class really is."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tertium.cli.shared import (
    ClassesFile,
    FeaturesFile,
    ImagesPlace,
    LabelsFile,
    Unlisted,
    UnlistedChoice,
    console,
    reads_labels,
    say,
    watching,
    writes_files,
)

if TYPE_CHECKING:
    from tertium.annotation.frequencies import Frequencies
    from tertium.labels import Labels

_ALL, _SHOWN = 20, 12  # classes up to which the table has all; of more, so many of the most frequent


class Estimator(enum.StrEnum):
    """Where the frequencies come from."""

    scores = "scores"
    ignore = "ignore"


@reads_labels
@writes_files()
def prior(
    labels: LabelsFile,
    out: Annotated[Path, typer.Option(help="Where the frequencies go: .csv or .parquet.")],
    images: ImagesPlace = None,
    features: FeaturesFile = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="What people were asked about (`tertium answers`): left out of the labels."),
    ] = None,
    estimator: Annotated[
        Estimator,
        typer.Option(
            help="scores: from the scores of held-out models; ignore: Ben-Baruch's mean prediction."
        ),
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
    is present was annotated (docs/auto.md). Answers that were merged into the labels do not show that, so
    they are left out if --answers names them. The columns low and high are a 95 % interval.
    """
    from tertium.labels.readers import read_classes
    from tertium.reporting.prior import prior as estimate

    with watching() as progress:
        done = estimate(
            labels,
            images,
            features=features,
            answers=answers,
            out=out,
            plot=plot,
            estimator=estimator.value,
            labels_per_image=labels_per_image,
            unlisted=unlisted.value,
            classes=None if classes is None else read_classes(classes),
            progress=progress,
        )
    _show(done.labels, done.frequencies, done.columns())
    say(f"All {len(done.labels.classes):,} classes: {out}")
    if plot is not None:
        say(f"Figure: {plot}")


def _show(labels: Labels, found: Frequencies, columns: dict[str, list[Any]]) -> None:
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
    few, many = found.per_image or (found.low.sum(), found.high.sum())
    told = f"If all classes err alike, between {few:.2f} and {many:.2f}"
    if found.per_image is not None:
        told = f"Between {few:.2f} and {many:.2f}, by a 95 % interval"
    if few > 0:
        told += f": {min(seen / few, 1):.0%} or {min(seen / many, 1):.0%} of what is present would be known"
    return f"{told}."
