"""Commands that train a model and use it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tertium.cli.shared import (
    ClassesFile,
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
from tertium.errors import some


def train(
    labels: LabelsFile,
    out: Annotated[Path, typer.Option(help="Folder to write the run to.")],
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    method: Annotated[str | None, typer.Option(help="See `tertium methods` (default: negative).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML, or config.json of an earlier run.")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    classes: ClassesFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any setting or method parameter.")
    ] = None,
) -> None:
    """Train a classifier on images or on ready features.

    **Examples**

      tertium train --labels labels.csv --images photos/ --out runs/first

      tertium train --labels labels.csv --images photos/ --out runs/tuned protocol=linear_init whole.epochs=5

      tertium train --labels labels.csv --features x.npy --out runs/wan --method wan epochs=20 seed=1

    The labels' split "train" is used if there is one, and "val" for validation; otherwise all images are, and
    a stratified share of them validates. Training stops early on the known labels of the validation part.
    The settings and their defaults are in docs/training.md.
    """
    from tertium.config import parse_overrides, read_config
    from tertium.terminal import show_summary
    from tertium.training import train as run_training

    values: dict[str, Any] = read_config(config) if config else {}
    values |= parse_overrides(settings or [])
    if method is not None:
        values["method"] = method
    with watching() as progress:
        outcome = run_training(
            read(labels, unlisted, classes),
            images,
            features=features,
            out=out,
            config=values,
            overwrite=overwrite,
            progress=progress,
            about={"labels": str(labels), "unlisted": unlisted.value},
        )
    show_summary(console(), outcome.summary, out)


def evaluate(
    run: RunArgument,
    labels: LabelsFile,
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go, .json; a .csv per class goes beside it.")
    ] = None,
) -> None:
    """Compare a trained model with known labels.

    **Example**

      tertium evaluate runs/first --labels labels.csv --images photos/ --split test

    Only known labels count; a class without a known present and a known absent image cannot be scored and
    is listed. The figures are written to RUN/evaluation.json and .csv unless --out says otherwise.
    """
    from tertium.predict import Trained
    from tertium.predictions import write_evaluation
    from tertium.terminal import show_evaluation

    trained = Trained.load(run)
    truth = read(labels, unlisted, None)
    truth = truth if split is None else truth.part(split)
    with watching() as progress:
        found = trained.evaluate(truth, images, features=features, progress=progress)
    show_evaluation(console(), found, f"{run} on {len(truth):,} images")
    strangers = sorted(set(truth.classes) - set(trained.classes))
    if strangers:
        say(f"Not known to the model, left out: {some(strangers, 8)}")
    place = out or run / "evaluation.json"
    write_evaluation(place, found)
    say(f"Figures: {place}, per class: {place.with_suffix('.csv')}")


def predict(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Where the probabilities go: .csv or .parquet.")],
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Predict for the images of this label file, which also names features."),
    ] = None,
    split: SplitName = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Write image,label,probability for the most probable N.")
    ] = None,
) -> None:
    """Write the probability of each class for each image.

    **Examples**

      tertium predict runs/first --images new/ --out predictions.csv

      tertium predict runs/first --features x.npy --out predictions.parquet --top 5
    """
    from tertium.predict import Trained, names_of
    from tertium.predictions import check_path, write_predictions

    check_path(out)
    trained = Trained.load(run)
    if labels is not None:
        listed = read(labels, Unlisted.unknown, None)
        names = (listed if split is None else listed.part(split)).images.to_pylist()
    else:
        names = names_of(images, features)
    inputs = trained.inputs(images, features, names)
    with watching() as progress:
        write_predictions(out, names, trained.classes, trained.stream(inputs, progress), top=top)
    say(f"{len(names):,} images × {len(trained.classes):,} classes → {out}")


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods: name, paper, one line, parameters with defaults.

    **Examples**

      tertium methods

      tertium methods negative
    """
    from tertium.methods import available, find, one_line, parameters_of
    from tertium.terminal import table

    kinds = list(available().values()) if name is None else [find(name)]
    if as_json:
        rows = [
            {
                "name": kind.name,
                "aliases": kind.aliases,
                "paper": kind.paper,
                "does": one_line(kind),
                "parameters": parameters_of(kind),
            }
            for kind in kinds
        ]
        console().print_json(json.dumps(rows, ensure_ascii=False))
    elif name is not None:
        say(f"{kinds[0].name} ({kinds[0].paper})\n{inspect.getdoc(kinds[0])}")
        for key, value in parameters_of(kinds[0]).items():
            say(f"  {key} = {value}")
    else:
        lines = [
            [
                ", ".join([kind.name, *kind.aliases]),
                kind.paper,
                one_line(kind),
                ", ".join(f"{key}={value}" for key, value in parameters_of(kind).items()),
            ]
            for kind in kinds
        ]
        console().print(table(["name, aliases", "paper", "what it does", "parameters"], lines))
