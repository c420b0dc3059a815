"""The command line; the only module that prints."""

from __future__ import annotations

import enum
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tertium.errors import InputError, some

if TYPE_CHECKING:
    from tertium.labels import Labels
    from tertium.terminal import Bar, Lines

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_WIDTH = 120  # of tables in a file or a pipe


class Unlisted(enum.StrEnum):
    """What a label means that the file does not mention."""

    unknown = "unknown"
    absent = "absent"


LabelsFile = Annotated[Path, typer.Option("--labels", help="Label file: CSV, TSV, Parquet or Arrow.")]
UnlistedChoice = Annotated[Unlisted, typer.Option(help="What a label means that the file does not list.")]
ClassesFile = Annotated[Path | None, typer.Option("--classes", help="Class names, one a line, in order.")]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder with the images.")]
FeaturesFile = Annotated[Path | None, typer.Option("--features", help="Ready features: .npy, floats [N, D].")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote.")]
SplitName = Annotated[
    str | None, typer.Option("--split", help="Only the images of this split of the labels.")
]


@app.callback()
def tertium() -> None:
    """Train multi-label image classifiers when most labels are unknown.

    A label is **present**, **absent**, or **not known yet**.

    **Start here**

      tertium demo — try it on built-in scenes

      tertium describe labels.csv — what is in a label file

      tertium train --labels labels.csv --images photos/ --out runs/first

      tertium predict runs/first --images new/ --out predictions.csv

    Each command has an example: tertium COMMAND --help. A wrong input gets one sentence and exit code 2.
    """


def main() -> None:
    """Run the command line; what a user did wrong is one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        console = Console(stderr=True)
        console.print("[bold red]Error:[/] ", end="")
        console.print(str(error), highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


@app.command()
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
    with _watching() as progress:
        outcome = run_training(
            _read(labels, unlisted, classes),
            images,
            features=features,
            out=out,
            config=values,
            overwrite=overwrite,
            progress=progress,
            about={"labels": str(labels), "unlisted": unlisted.value},
        )
    show_summary(_console(), outcome.summary, out)


@app.command()
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
    truth = _read(labels, unlisted, None)
    truth = truth if split is None else truth.part(split)
    with _watching() as progress:
        found = trained.evaluate(truth, images, features=features, progress=progress)
    show_evaluation(_console(), found, f"{run} on {len(truth):,} images")
    strangers = sorted(set(truth.classes) - set(trained.classes))
    if strangers:
        _say(f"Not known to the model, left out: {some(strangers, 8)}")
    place = out or run / "evaluation.json"
    write_evaluation(place, found)
    _say(f"Figures: {place}, per class: {place.with_suffix('.csv')}")


@app.command()
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
        listed = _read(labels, Unlisted.unknown, None)
        names = (listed if split is None else listed.part(split)).images.to_pylist()
    else:
        names = names_of(images, features)
    inputs = trained.inputs(images, features, names)
    with _watching() as progress:
        write_predictions(out, names, trained.classes, trained.stream(inputs, progress), top=top)
    _say(f"{len(names):,} images × {len(trained.classes):,} classes → {out}")


@app.command()
def describe(
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="Label file.")],
    unlisted: UnlistedChoice = Unlisted.unknown,
    split: SplitName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a label file holds, and which annotation setting it resembles.

    **Example**

      tertium describe labels.csv
    """
    from tertium.describe import describe as describe_labels
    from tertium.terminal import show_description

    found = _read(labels, unlisted, None)
    about = describe_labels(found if split is None else found.part(split))
    if as_json:
        _console().print_json(json.dumps(about.to_dict(), ensure_ascii=False))
    else:
        show_description(_console(), about)


@app.command()
def simulate(
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="Label file, best with full labels.")],
    scheme: Annotated[str, typer.Option(help="For example random:0.1; see the list above.")],
    out: Annotated[Path, typer.Option(help="Where the partial labels go: .csv, .tsv, .parquet or .arrow.")],
    seed: Annotated[int, typer.Option(help="The same seed hides the same labels.")] = 0,
    unlisted: UnlistedChoice = Unlisted.unknown,
    only: Annotated[
        str | None, typer.Option(help="Hide labels in this split only and keep the others.")
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="Label tree for hierarchy: .csv (parent,child) or .json.")
    ] = None,
) -> None:
    """Hide labels as an annotation process would, to try methods where the truth is known.

    **Schemes**: full · random:KEEP · positives:KEEP · single_positive · per_image:POSITIVES,NEGATIVES ·
    per_class:N · balanced:KEEP,NEGATIVES · hierarchy (with --tree) · federated:KEEP,NEGATIVES

    **Examples**

      tertium simulate labels.csv --unlisted absent --scheme random:0.1 --only train --out partial.csv

      tertium simulate labels.csv --unlisted absent --scheme per_image:1,all --out partial.parquet
    """
    from tertium.readers import write_labels
    from tertium.schemes import parse
    from tertium.tree import LabelTree

    forest = None
    if tree is not None:
        forest = LabelTree.from_json(tree) if tree.suffix == ".json" else LabelTree.from_csv(tree)
    chosen = parse(scheme, forest)
    full = _read(labels, unlisted, None)
    if only is None:
        partial = chosen.apply(full, seed)
    else:
        rows = full.rows_in(only)
        partial = full.with_rows(rows, chosen.apply(full[rows], seed))
    write_labels(partial, out)
    share = partial.known / max(full.known, 1)
    _say(f"{chosen}: kept {partial.known:,} of {full.known:,} known labels ({share:.1%}) → {out}")


@app.command()
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
        _console().print_json(json.dumps(rows, ensure_ascii=False))
    elif name is not None:
        _say(f"{kinds[0].name} ({kinds[0].paper})\n{inspect.getdoc(kinds[0])}")
        for key, value in parameters_of(kinds[0]).items():
            _say(f"  {key} = {value}")
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
        _console().print(table(["name, aliases", "paper", "what it does", "parameters"], lines))


@app.command()
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
    _say(f"Report: {out}")


@app.command()
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

    with _watching() as progress:
        rows, page = run_demo(out, seed=seed, progress=progress)
    show_demo(_console(), rows)
    _say(f"Runs:   {out}\nReport: {page}")


@app.command()
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
    _say(f"{count:,} scenes and labels.csv → {out}")


# ---- what commands share ---------------------------------------------------------------------------------


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


@contextmanager
def _watching() -> Iterator[Bar | Lines]:
    from tertium.terminal import watcher

    progress = watcher(Console(stderr=True))
    try:
        yield progress
    finally:
        progress.close()


def _say(text: str) -> None:
    """Print a line in which names from a user's files are text, never markup."""
    _console().print(text, highlight=False, markup=False, soft_wrap=True)


def _read(labels: Path, unlisted: Unlisted, classes: Path | None) -> Labels:
    from tertium.readers import read_classes, read_labels

    names = None if classes is None else read_classes(classes)
    return read_labels(labels, unlisted=unlisted.value, classes=names)
