"""Commands that complete labels, and that say which to ask a person about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tertium.cli.jobs import Large, Target, large_jobs, say_ended
from tertium.cli.processes import watching_first
from tertium.cli.shared import (
    FeaturesFile,
    ImagesPlace,
    LabelsFile,
    RunArgument,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    output,
    reads_labels,
    say,
    watching,
    writes_files,
)
from tertium.errors import InputError

AnswersFile = Annotated[
    Path | None,
    typer.Option(help="What people answered, as `tertium answers` wrote it; calibrates the probabilities."),
]


@reads_labels
@large_jobs(joins=True)
@writes_files("{stem}-thresholds.csv")
def complete(
    run: RunArgument,
    labels: LabelsFile,
    out: Annotated[
        Target,
        typer.Option(
            help="Where the probabilities go: .parquet or .csv; FOLDER/ or an address: a large job.",
            metavar="PATH",
            parser=output,
        ),
    ],
    images: ImagesPlace = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    answers: AnswersFile = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Above 0, below 1: find for each class the threshold expected to reach this."),
    ] = None,
    filled: Annotated[
        Path | None, typer.Option(help="With --precision: the label file with those above added as present.")
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Judge each label by its image only, not by its other labels.")
    ] = False,
    tree: Annotated[
        Path | None, typer.Option(help="A label tree, .csv or .json: no class is less likely than one below.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw which labels go together, if known ones tell: an .svg file.")
    ] = None,
) -> None:
    """Say how probable each unknown label is, given the image, its known labels and how they were annotated.

    **Examples**

      tertium complete runs/first --labels labels.csv --images photos/ --out completed.parquet

      tertium complete runs/first --labels labels.csv --images photos/ --out completed.parquet
      --precision 0.9 --filled more.parquet

    Known labels stay as they are: 1 or 0. For the others a run of the method `auto` also takes into account
    that nobody annotated them, and what the image's known labels say about the others, if that makes the
    labels of validation images clearly more likely. The probabilities are calibrated on those images, as far
    as known labels allow, and by --answers. Thresholds go to a CSV file beside --out.
    """
    from tertium.labelling.completion import complete as complete_labels

    if plot is not None and plot.suffix != ".svg":
        raise InputError(f"{plot}: the drawing is written as .svg")
    given: dict[str, Any] = {
        "features": features,
        "split": split,
        "unlisted": unlisted.value,
        "answers": answers,
        "precision": precision,
        "filled": filled,
        "alone": alone,
        "tree": tree,
    }
    if isinstance(out, Large):
        from tertium.labelling.sharded import complete as complete_parts

        given |= {"request": out.request, "joined": out.joined}
        with watching_first() as progress:
            finished, all_of_them = complete_parts(run, labels, images, **given, progress=progress)
        if not say_ended(finished, "") or all_of_them is None:
            return
        done, place = all_of_them, out.joined or finished.folder.output.place
    else:
        with watching() as progress:
            done, place = complete_labels(run, labels, images, out=out, **given, progress=progress), out
    between = f"between {done.low:,.0f} and {done.high:,.0f}"
    count = f"about {done.expected:,.0f} of them present, {between} with 90 % confidence"
    if not done.settled:
        count = f"{between} of them present; {done.expected:,.0f} if nobody chose what to note"
    say(f"{done.unknown:,} unknown labels, {count} → {place}")
    for note in done.notes:
        say(f"Note: {note}.")
    if done.table is not None:
        say(f"Thresholds for {precision:.0%} expected precision, {done.added:,} labels above: {done.table}")
    if filled is not None:
        say(f"Labels with those added: {filled}")
    if plot is not None and done.together is not None:
        from tertium.reporting.relations import draw_relations

        draw_relations(plot, done.together)
        say(f"Which labels go together: {plot}")
    elif plot is not None:
        say("Nothing is drawn: known labels do not speak for the others here.")


@reads_labels
@writes_files()
def suggest(
    run: RunArgument,
    labels: LabelsFile,
    images: ImagesPlace = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    answers: AnswersFile = None,
    budget: Annotated[int, typer.Option(min=1, help="How many questions.")] = 500,
    per_image: Annotated[int, typer.Option(min=1, help="At most so many about one image.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the questions go, .csv.")] = Path("questions.csv"),
) -> None:
    """Say which unknown labels to ask a person about next.

    **Example**

      tertium suggest runs/first --labels labels.csv --images photos/ --budget 500 --out questions.csv

    A question is worth more if its answer cannot be predicted, if little is known about the class, and if the
    frequency of the class is uncertain; each further question about a class is worth less. With --per-image
    the questions about one image are asked together. `tertium rehearse` tries this order on labels that are
    known.
    """
    from tertium.cli.terminal import counted
    from tertium.labelling.suggesting import suggest as suggest_questions

    with watching() as progress:
        questions = suggest_questions(
            run,
            labels,
            images,
            features=features,
            split=split,
            unlisted=unlisted.value,
            answers=answers,
            budget=budget,
            per_image=per_image,
            out=out,
            progress=progress,
        )
    asked = counted(len(questions.images), "questions")
    images_asked = counted(len(set(questions.images)), "images")
    say(f"{asked} about {images_asked} and {counted(len(set(questions.labels)), 'classes')} → {out}")
    for note in questions.notes:
        say(f"Note: {note}.")


@reads_labels
@writes_files("{stem}.svg", "{stem}-forecasts.csv")
def rehearse(
    labels: LabelsFile,
    features: Annotated[Path, typer.Option(help="Ready features: .npy, floats [N, D].")],
    out: Annotated[Path, typer.Option(help="Where the figures go, .csv; a drawing goes beside it.")],
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    scheme: Annotated[str, typer.Option(help="How labels are hidden first.")] = "single_positive",
    budget: Annotated[int, typer.Option(min=1, help="How many questions each round.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="How often to ask and train.")] = 4,
    per_image: Annotated[int, typer.Option(min=1, help="At most so many about one image.")] = 1,
    sample: Annotated[int | None, typer.Option(min=8, help="Only so many images, drawn at random.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat it with so many seeds.")] = 1,
) -> None:
    """Simulate what answers are worth, on known labels: hide them, ask, train, and ask again.

    **Example**

      tertium rehearse --labels full.csv --unlisted absent --features x.npy --out asked.csv

    The order of `tertium suggest` is compared with uncertainty sampling and with chance, on images that are
    not asked about. A file beside the figures has what was foretold of the next answers, and what came.
    """
    from tertium.cli.terminal import percent, table
    from tertium.labelling.simulating import RULES, averaged, forecasts_file
    from tertium.labelling.simulating import rehearse as rehearse_asking
    from tertium.reporting.asking import draw_points

    with watching() as progress:
        points = rehearse_asking(
            labels,
            features,
            scheme=scheme,
            split=split,
            unlisted=unlisted.value,
            budget=budget,
            rounds=rounds,
            seeds=seeds,
            sample=sample,
            per_image=per_image,
            out=out,
            progress=progress,
        )
    figure = out.with_suffix(".svg")
    draw_points(figure, points)
    columns = [averaged(points, rule) for rule in RULES]
    rows = [
        [f"{steps[0][0]:,}", *(f"{percent(score)} ({share:.0%} present)" for _, share, score in steps)]
        for steps in zip(*columns, strict=True)
    ]
    console().print(table(["answers", *(f"mAP, {rule}" for rule in RULES)], rows))
    held = [each.held for point in points for each in point.foretold]
    if held:
        present, surprising = (sum(each) / len(held) for each in zip(*held, strict=True))
        say(
            f"Forecasts: {len(held):,} were made of the next answers; the 90 % interval held the number of "
            f"present labels in {present:.0%}, of surprising answers in {surprising:.0%} "
            f"→ {forecasts_file(out)}"
        )
    say(f"Figures: {out}, drawn: {figure}")
