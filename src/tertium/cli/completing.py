"""Commands that complete labels, and that say which to ask a person about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import (
    FeaturesFile,
    ImagesFolder,
    LabelsFile,
    RunArgument,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    read,
    say,
    watching,
)
from tertium.errors import InputError


def complete(
    run: RunArgument,
    labels: LabelsFile,
    out: Annotated[Path, typer.Option(help="Where the probabilities go: .parquet or .csv.")],
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    precision: Annotated[
        float | None,
        typer.Option(help="Above 0, below 1: find for each class the threshold expected to reach this."),
    ] = None,
    filled: Annotated[
        Path | None, typer.Option(help="With --precision: the label file with those above added as present.")
    ] = None,
) -> None:
    """Say how probable each unknown label is, given the image and how labels came to be annotated.

    **Examples**

      tertium complete runs/first --labels labels.csv --images photos/ --out completed.parquet

      tertium complete runs/first --labels labels.csv --images photos/ --out completed.parquet
      --precision 0.9 --filled more.parquet

    Known labels stay as they are: 1 or 0. For the others a run of the method `auto` also counts that nobody
    annotated them. The probabilities are calibrated on the run's validation images, as far as known labels
    allow. Thresholds go to a CSV file beside --out.
    """
    from tertium.labelling.completion import complete as complete_labels

    found = read(labels, unlisted, None)
    with watching() as progress:
        done = complete_labels(
            run,
            found if split is None else found.part(split),
            images,
            features=features,
            out=out,
            precision=precision,
            filled=filled,
            progress=progress,
        )
    say(f"{done.unknown:,} unknown labels, about {done.expected:,.0f} of them present → {out}")
    for note in done.notes:
        say(f"Note: {note}.")
    if done.table is not None:
        say(f"Thresholds for {precision:.0%} expected precision, {done.added:,} labels above: {done.table}")
    if filled is not None:
        say(f"Labels with those added: {filled}")


def suggest(
    labels: LabelsFile,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote.")
    ] = None,
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    budget: Annotated[
        int, typer.Option(min=1, help="How many questions; in a simulation, each round.")
    ] = 500,
    per_image: Annotated[int, typer.Option(min=1, help="At most so many about one image.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the questions go, .csv.")] = Path("questions.csv"),
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Labels are full: try what questions are worth.")
    ] = False,
    scheme: Annotated[str, typer.Option(help="Simulation: what hides labels.")] = "single_positive",
    rounds: Annotated[int, typer.Option(min=1, help="Simulation: how often to ask and train.")] = 4,
    sample: Annotated[
        int | None, typer.Option(min=8, help="Simulation: only so many images, drawn at random.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Simulation: repeat it with so many seeds.")] = 1,
) -> None:
    """Say which unknown labels to ask a person about next.

    **Examples**

      tertium suggest runs/first --labels labels.csv --images photos/ --budget 500 --out questions.csv

      tertium suggest --simulate --labels full.csv --unlisted absent --features x.npy --out asked.csv

    A question is worth more if its answer cannot be foreseen, if little is known of the class, and if the
    class's frequency is unsure; each further question about a class is worth less. With --per-image the
    questions about one image stand together. A simulation hides labels that are known, and compares this
    order with uncertainty sampling and with chance on images that are not asked about; a figure goes beside
    its CSV file.
    """
    if out.suffix != ".csv":
        raise InputError(f"{out}: questions are written as .csv")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist")
    if run is None and not simulate:
        raise InputError("name the run whose model asks, or add --simulate; see tertium suggest --help")
    if run is not None and simulate:
        raise InputError(f"a simulation trains models of its own: leave {run} out")
    if simulate:
        _simulate(labels, features, split, unlisted, scheme, budget, rounds, sample, per_image, seeds, out)
        return
    assert run is not None
    _suggest(run, labels, images, features, split, unlisted, budget, per_image, out)


def _suggest(
    run: Path,
    labels: Path,
    images: Path | None,
    features: Path | None,
    split: str | None,
    unlisted: Unlisted,
    budget: int,
    per_image: int,
    out: Path,
) -> None:
    from tertium.cli.terminal import counted
    from tertium.labelling.suggesting import suggest as suggest_questions

    found = read(labels, unlisted, None)
    with watching() as progress:
        questions, notes = suggest_questions(
            run,
            found if split is None else found.part(split),
            images,
            features=features,
            budget=budget,
            per_image=per_image,
            progress=progress,
        )
    questions.write(out)
    asked = counted(len(questions.images), "questions")
    images_asked = counted(len(set(questions.images)), "images")
    say(f"{asked} about {images_asked} and {counted(len(set(questions.labels)), 'classes')} → {out}")
    for note in notes:
        say(f"Note: {note}.")


def _simulate(
    labels: Path,
    features: Path | None,
    split: str | None,
    unlisted: Unlisted,
    scheme: str,
    budget: int,
    rounds: int,
    sample: int | None,
    per_image: int,
    seeds: int,
    out: Path,
) -> None:
    from tertium.cli.terminal import percent, table
    from tertium.labelling.simulating import RULES, averaged, simulate, write_points
    from tertium.reporting.asking import draw_points
    from tertium.schemes import parse

    if features is None:
        raise InputError("a simulation trains many heads: give --features")
    chosen = parse(scheme)
    full = read(labels, unlisted, None)
    full = full if split is None else full.part(split)
    points = []
    with watching() as progress:
        for seed in range(seeds):
            points += simulate(
                full,
                features,
                scheme=chosen,
                budget=budget,
                rounds=rounds,
                seed=seed,
                sample=sample,
                per_image=per_image,
                progress=progress,
            )
    figure = out.with_suffix(".svg")
    write_points(out, points)
    draw_points(figure, points)
    columns = [averaged(points, rule) for rule in RULES]
    rows = [
        [f"{steps[0][0]:,}", *(f"{percent(score)} ({share:.0%} present)" for _, share, score in steps)]
        for steps in zip(*columns, strict=True)
    ]
    console().print(table(["answers", *(f"mAP, {rule}" for rule in RULES)], rows))
    say(f"Figures: {out}, drawn: {figure}")
