"""Commands that train a model and use it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tertium.cli.processes import agreed, load, started, together, watching_first
from tertium.cli.shared import (
    LABELS_HELP,
    ClassesFile,
    FeaturesFile,
    ImagesFolder,
    LabelsFile,
    RunArgument,
    SkipDamaged,
    SplitName,
    Unlisted,
    UnlistedChoice,
    command_line,
    console,
    damaged_of,
    images_of,
    read,
    say,
    say_predicted,
    undamaged,
    watching,
)
from tertium.errors import InputError, some

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tertium.data.inputs import Inputs
    from tertium.labels import Labels
    from tertium.metrics.evaluation import Evaluation
    from tertium.prediction.trained import Trained
    from tertium.progress import Progress
    from tertium.training.session import Outcome

_TEST = "test"  # the split that no run trains on
Devices = Annotated[
    int, typer.Option(min=1, help="Processes on this machine that share the images, one for each device.")
]


def train(
    labels: Annotated[
        Path | None, typer.Option("--labels", help=f"Needed, unless --resume is given. {LABELS_HELP}")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Needed, unless --resume is given. Folder to write the run to.")
    ] = None,
    images: ImagesFolder = None,
    features: FeaturesFile = None,
    method: Annotated[str | None, typer.Option(help="See `tertium methods` (default: auto).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML, or config.json of an earlier run.")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    classes: ClassesFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Processes on this machine, one for each device.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Full labels, only to record what is memorised and corrected.")
    ] = None,
    skip_damaged: SkipDamaged = False,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Any setting or method parameter.")
    ] = None,
) -> None:
    """Train a classifier on images or on ready features.

    **Examples**

      tertium train --labels labels.csv --images photos/ --out runs/first

      tertium train --labels labels.csv --images photos/ --out runs/tuned protocol=linear_init whole.epochs=5

      tertium train --labels labels.csv --features x.npy --out runs/wan --method wan epochs=20 seed=1

      tertium train --resume runs/first

      torchrun --nproc-per-node 4 -m tertium train --labels labels.csv --images photos/ --out runs/four

    The labels' split "train" is used if there is one, and "val" for validation; otherwise all images are, and
    a stratified share of them validates. Training stops early on the known labels of the validation part.
    Ctrl-C writes a checkpoint and stops; a checkpoint is also written every few minutes (docs/scale.md).
    The settings and their defaults are in docs/training.md.
    """
    from tertium.cli.terminal import show_summary
    from tertium.distributed import rank
    from tertium.training.stopping import Stopped

    place = resume or out or Path()
    try:
        if resume is not None:
            beside = labels, out, images, features, method, config, classes, truth, settings
            outcome, listed = _go_on(resume, devices, (*beside, skip_damaged or None)), None
        else:
            if labels is None or out is None:
                missing = "--labels" if labels is None else "--out"
                raise InputError(f"{missing} is missing; see tertium train --help")
            values = settings_of(config, settings, method=method, devices=devices)
            outcome, listed = _begin(
                labels, out, images, features, values, unlisted, classes, overwrite, truth, skip_damaged
            )
    except Stopped as stop:
        if rank() == 0:
            say(f"Stopped; a checkpoint is written. Go on with: tertium train --resume {place}")
        raise typer.Exit(128 + stop.number) from None
    if rank() == 0:
        show_summary(console(), outcome.summary, place)
        _write_page(place)
        _say_next(place, listed)


def _say_next(run: Path, listed: Labels | None) -> None:
    """Say what to do with a run: commands that work as they are printed."""
    from tertium.training.runs import RunFolder

    data = RunFolder.open(run).config()["data"]
    kind = "images" if "images" in data else "features"
    inputs = [f"--{kind}", data[kind]]
    listed = read(Path(data["labels"]), Unlisted.unknown, None) if listed is None else listed
    if _TEST in listed.split_names() and _are_there(listed.part(_TEST).images.to_pylist(), data):
        unlisted = data.get("unlisted", "unknown")
        told = [] if unlisted == "unknown" else ["--unlisted", unlisted]
        words = ["--labels", data["labels"], *told, *inputs, "--split", _TEST]
        say(f"Next: {shlex.join(['tertium', 'evaluate', str(run), *words])}")
    say(f"Next: {shlex.join(['tertium', 'predict', str(run), *inputs, '--out', 'predictions.csv'])}")


def _are_there(names: list[str], data: Mapping[str, Any]) -> bool:
    """Return whether images are where those of training were; features without names have no others."""
    from tertium.data.feature_files import feature_names
    from tertium.data.pictures import list_images

    there = list_images(Path(data["images"])) if "images" in data else feature_names(data["features"])
    return set(names) <= set(there or ())


def _write_page(run: Path) -> None:
    """Write the report of a run into its folder."""
    from tertium.reporting import write_report
    from tertium.training.runs import RunFolder

    page = write_report(
        run / "report.html", [RunFolder.open(run)], title=f"Run {run.name}", command=command_line()
    )
    say(f"Report: {page}")


def settings_of(config: Path | None, words: list[str] | None, **options: Any) -> dict[str, Any]:
    """Return the settings of a file, overridden by key=value words, and those by options."""
    from tertium.config import parse_overrides, read_config

    values: dict[str, Any] = read_config(config) if config else {}
    values |= parse_overrides(words or [])
    return values | {name: value for name, value in options.items() if value is not None}


def _begin(
    labels: Path,
    out: Path,
    images: Path | None,
    features: Path | None,
    values: dict[str, Any],
    unlisted: Unlisted,
    classes: Path | None,
    overwrite: bool,
    truth: Path | None,
    skip_damaged: bool,
) -> tuple[Outcome, Labels]:
    from tertium.labels.readers import read_classes
    from tertium.training.train import train as run_training

    about: dict[str, Any] = {"labels": str(labels), "unlisted": unlisted.value}
    if classes is not None:
        about["names"] = read_classes(classes)
    with watching() as progress:
        listed = read(labels, unlisted, classes)
        if skip_damaged:
            about["left_out"] = damaged_of(images, listed.images.to_pylist(), progress)
            listed = listed.without(about["left_out"])
        outcome = run_training(
            listed,
            images,
            features=features,
            out=out,
            config=values,
            overwrite=overwrite,
            progress=progress,
            about=about,
            truth=truth,
        )
    return outcome, listed


def _go_on(run: Path, devices: int | None, beside: Sequence[object]) -> Outcome:
    """Resume a run; of the other options that a run begins with, none may be given ``beside``."""
    from tertium.training.train import resume

    if any(given is not None for given in beside):
        raise InputError("--resume goes on with what the run began with; only --devices may change")
    with watching() as progress:
        return resume(run, devices=devices, progress=progress)


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
    devices: Devices = 1,
) -> None:
    """Compare a trained model with known labels.

    **Examples**

      tertium evaluate runs/first --labels labels.csv --images photos/ --split test

      torchrun --nproc-per-node 4 -m tertium evaluate runs/first --labels labels.csv --images photos/

    Only known labels count; a class without a known present and a known absent image cannot be scored and
    is listed. The figures are over the others, from mF1 on at the run's thresholds:

    - mAP(C): mean average precision of the classes
    - mAP(O): the same, weighted by present labels
    - mF1: mean F1 of the classes
    - CP: precision, mean of the classes
    - CR: recall, mean of the classes
    - CF1: harmonic mean of CP and CR
    - OP: precision over all labels together
    - OR: recall over all labels together
    - OF1: harmonic mean of OP and OR
    - ECE: calibration error, how far the probabilities are from what happens
    - G1–G5: fifths of the classes, from the fewest to the most labels known in training

    They are written to RUN/evaluation.json and .csv unless --out says otherwise.
    """
    if started(devices):
        return
    from tertium.cli.terminal import counted
    from tertium.distributed import barrier, rank
    from tertium.metrics.evaluation import evaluate_known
    from tertium.prediction.files import write_evaluation
    from tertium.prediction.trained import shared_folder, shares

    place = out or run / "evaluation.json"

    def prepare() -> tuple[Trained, Labels, Inputs]:
        if not place.parent.is_dir() and out is not None:
            raise InputError(f"{place}: the folder {place.parent} does not exist")
        trained = load(run)
        truth = read(labels, unlisted, None)
        truth = truth if split is None else truth.part(split)
        return trained, truth, trained.labelled(truth, images, features)

    with together(), watching_first() as progress:
        trained, truth, inputs = agreed(prepare)
        with shared_folder(place.parent) as folder:
            known = trained.known_scores(truth, inputs, folder, shares(len(truth)), rank(), progress)
            barrier()
            if rank() > 0:
                return
            found = evaluate_known(known, trained.thresholds, _annotations(run, trained.classes))
        on = f"the {counted(len(truth), 'images')} of {labels}"
        write_evaluation(place, found, on if split is None else f"{on}, split {split}")
    _show_evaluation(found, f"{run} on {counted(len(truth), 'images')}")
    strangers = sorted(set(truth.classes) - set(trained.classes))
    if strangers:
        say(f"Not known to the model, left out: {some(strangers, 8)}")
    say(f"Figures: {place}, per class: {place.with_suffix('.csv')}")


def _annotations(run: Path, classes: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return how many labels of each class training knew, if the run says so for every class."""
    import numpy as np

    from tertium.training.runs import RunFolder

    known = (run / "config.json").is_file()
    counts = RunFolder.open(run).config()["data"].get("classes", {}) if known else {}
    if not all(name in counts for name in classes):
        return None
    return np.array([counts[name]["present"] + counts[name]["absent"] for name in classes])


def _show_evaluation(found: Evaluation, title: str) -> None:
    from tertium.cli.terminal import percent, show_evaluation, table

    show_evaluation(console(), found, title)
    rows = [
        [
            group.name,
            f"{group.fewest:,} – {group.most:,}" if group.fewest < group.most else f"{group.most:,}",
            f"{group.scored} of {group.classes}",
            percent(group.map_c),
        ]
        for group in found.groups
    ]
    if rows:
        heading = ["group", "known labels of a class", "classes scored", "mAP(C)"]
        console().print(table(heading, rows))
    say(f"Calibration error (ECE): {percent(found.ece)}")


def predict(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote, or an exported .onnx file."),
    ],
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
    skip_damaged: SkipDamaged = False,
    devices: Devices = 1,
) -> None:
    """Write the probability of each class for each image.

    **Examples**

      tertium predict runs/first --images new/ --out predictions.csv

      tertium predict runs/first --features x.npy --out predictions.parquet --top 5

      tertium predict model.onnx --images new/ --out predictions.csv

      torchrun --nproc-per-node 4 -m tertium predict runs/first --images new/ --out predictions.csv
    """
    if run.suffix == ".onnx":
        from tertium.cli.exporting import predict_exported

        return predict_exported(run, out, images, features, labels, split, top, devices, skip_damaged)
    if started(devices):
        return
    from tertium.distributed import rank
    from tertium.prediction.files import write_predictions
    from tertium.prediction.trained import shared_folder, shares

    with together(), watching_first() as progress:
        trained, names, inputs = agreed(
            lambda: _to_predict(run, out, images, features, labels, split, top, skip_damaged, progress)
        )
        own = shares(len(names))[rank()]
        with shared_folder(out.parent) as folder:
            blocks = trained.stream(inputs, progress, own)
            write_predictions(
                out, names[own.start : own.stop], trained.classes, blocks, top=top, folder=folder
            )
        if rank() > 0:
            return
    say_predicted(len(names), len(trained.classes), top, out)


def _to_predict(
    run: Path,
    out: Path,
    images: Path | None,
    features: Path | None,
    labels: Path | None,
    split: str | None,
    top: int | None,
    skip_damaged: bool,
    progress: Progress | None,
) -> tuple[Trained, list[str], Inputs]:
    """Return the model, and the names and inputs of the images, after checking that all can be written."""
    from tertium.data.inputs import names_of
    from tertium.prediction.files import check_columns, check_path

    check_path(out)
    trained = load(run)
    check_columns(trained.classes, top)
    names = names_of(images, features) if labels is None else images_of(labels, split)
    if skip_damaged:
        names = undamaged(images, names, progress)
    return trained, names, trained.inputs(images, features, names)
