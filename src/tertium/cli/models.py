"""Commands that train a model and use it."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tertium.cli.engines import Address, Engine, EngineChoice, check_engine
from tertium.cli.jobs import Large, Target, large_jobs, say_ended
from tertium.cli.processes import started, together, watching_first
from tertium.cli.shared import (
    LABELS_HELP,
    ClassesFile,
    FeaturesFile,
    ImagesPlace,
    LabelsFile,
    ModelArgument,
    SkipDamaged,
    SplitName,
    Unlisted,
    UnlistedChoice,
    command_line,
    console,
    output,
    reads_labels,
    say,
    say_damaged,
    say_predicted,
    watching,
    words_of,
    writes_files,
)
from tertium.errors import InputError, Stopped, some
from tertium.files import keep_inputs

if TYPE_CHECKING:
    from tertium.metrics.evaluation import Evaluation
    from tertium.prediction.using import Evaluated
    from tertium.runs import RunData
    from tertium.training.session import Outcome
    from tertium.training.tracking import Trackers

Devices = Annotated[
    int, typer.Option(min=1, help="Processes on this machine that share the images, one for each device.")
]


@reads_labels
def train(
    labels: Annotated[
        Path | None, typer.Option("--labels", help=f"Needed, unless --resume is given. {LABELS_HELP}")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Needed, unless --resume is given. Folder to write the run to.")
    ] = None,
    images: ImagesPlace = None,
    features: FeaturesFile = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            help="What people were asked about, as `tertium answers` wrote it: learned, but no sign of how "
            "labels were annotated."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `tertium methods` (default: auto).")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML, or config.json of an earlier run.")] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    classes: ClassesFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue a run that was stopped.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Processes on this machine, one for each device.")
    ] = None,
    engine: EngineChoice = Engine.local,
    address: Address = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="With --engine ray: processes that train.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="Full labels, to record what is memorised and corrected, or for select=clean."),
    ] = None,
    skip_damaged: SkipDamaged = False,
    log: Annotated[
        str | None, typer.Option(help="Tell trackers: tensorboard, mlflow, wandb, or several with commas.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Any setting or method parameter.")
    ] = None,
) -> None:
    """Train a classifier on images or on ready features.

    **Examples**

      tertium train --labels labels.csv --images photos/ --out runs/first

      tertium train --labels labels.csv --images photos/ --out runs/tuned protocol=linear_init whole.epochs=5

      tertium train --labels labels.csv --features x.npy --out runs/wan --method wan epochs=20 seed=1

      tertium train --labels labels.csv --images 'shards/{000..009}.tar' --out runs/shards

      tertium train --labels wide.csv --positive 1 --negative 0 --unknown -1 --images photos/ --out runs/wide

      tertium train --labels labels.csv --answers answers.csv --images photos/ --out runs/second

      tertium train --resume runs/first

      torchrun --nproc-per-node 4 -m tertium train --labels labels.csv --images photos/ --out runs/four

      tertium train --labels labels.csv --images photos/ --out runs/four --engine ray --workers 4

    The labels' split "train" is used if there is one, and "val" for validation; otherwise all images are
    used, with a share of them for validation that their names and the seed decide. Training stops early on
    the known labels of the validation part. What people were asked about (`tertium answers`) is given as
    --answers, not merged into the labels: it is learned, and does not hide how the others were annotated.

    Ctrl-C writes a checkpoint and stops; a checkpoint is also written every few minutes (docs/scale.md). The
    settings and their defaults are in docs/training.md.
    """
    from tertium.cli.terminal import show_summary
    from tertium.processes import rank
    from tertium.runs import RunFolder

    check_engine(engine, address=address, workers=workers)
    place = resume or out or Path()
    if config is not None and out is not None:
        keep_inputs(RunFolder(out).made_by_training(), [config])
    given: dict[str, Any] | None = None
    if resume is None:
        given = {
            "labels": _needed("--labels", labels),
            "out": _needed("--out", out),
            "images": images,
            "features": features,
            "answers": answers,
            "config": settings_of(config, settings, method=method, devices=devices, log=log),
            "unlisted": unlisted.value,
            "classes": classes,
            "overwrite": overwrite,
            "truth": truth,
            "skip_damaged": skip_damaged,
        }
    elif skip_damaged or any(
        each is not None
        for each in (labels, out, images, features, answers, method, config, classes, truth, log, settings)
    ):
        raise InputError("--resume goes on with what the run began with; only --devices may change")
    trackers: Trackers | None = None
    try:
        if engine is Engine.ray:
            _train_on_ray(place, given, devices, workers, address)
        else:
            trackers = _train_here(place, given, devices).trackers
    except Stopped as stop:
        if rank() == 0:
            kept = "; a checkpoint is written" if stop.kept else " before the first step"
            say(f"Stopped{kept}. Go on with: tertium train --resume {place}")
        raise typer.Exit(128 + stop.number) from None
    if rank() == 0:
        show_summary(console(), RunFolder(place).summary(), place)
        page = _write_page(place)
        if trackers is not None:
            trackers.attach(page)
        _say_next(place)


def _needed(option: str, given: Path | None) -> Path:
    if given is None:
        raise InputError(f"{option} is missing; see tertium train --help")
    return given


def _train_here(run: Path, given: dict[str, Any] | None, devices: int | None) -> Outcome:
    """Begin a run with what is ``given``, or go on with one."""
    from tertium.training.train import resume
    from tertium.training.train import train as begin

    with watching_first() as progress:
        if given is None:
            return resume(run, devices=devices, progress=progress)
        return begin(progress=progress, **_with_names(given))


def _train_on_ray(
    run: Path,
    given: dict[str, Any] | None,
    devices: int | None,
    workers: int | None,
    address: str | None,
) -> None:
    from tertium.runs import RunFolder
    from tertium.training.on_ray import train_on_ray

    if workers is None or devices is not None:
        raise InputError("with --engine ray say how many processes train: --workers N, and not --devices")
    named = None if given is None else _with_names(given)
    try:
        with watching() as progress:
            train_on_ray(run, named, workers=workers, address=address, progress=progress)
    except KeyboardInterrupt:
        begun = RunFolder(run).config_file.is_file()
        say(
            f"Stopped. Go on from the last checkpoint with: tertium train --resume {run}"
            if begun
            else "Stopped before the run began."
        )
        raise typer.Exit(128 + signal.SIGINT) from None


def _with_names(given: dict[str, Any]) -> dict[str, Any]:
    """Return what is given with the names of the classes, for the file that lists them."""
    from tertium.labels.readers import read_classes

    file = given["classes"]
    return {**given, "classes": None if file is None else read_classes(file)}


def _say_next(run: Path) -> None:
    """Say what to do with a run: commands that work as they are printed."""
    from tertium.labels.opening import open_labels
    from tertium.labels.readers import LabelFile
    from tertium.labels.splits import TEST
    from tertium.runs import RunFolder

    data = RunFolder.open(run).data()
    inputs = ["--images", data.images] if data.images else ["--features", data.features or ""]
    file = LabelFile.with_options(data.labels or "", **data.reading)
    listed = open_labels(file, unlisted=data.unlisted, classes=data.names)
    if listed.has_split(TEST) and _are_there(listed.part(TEST).images.to_pylist(), data):
        told = [] if data.unlisted == "unknown" else ["--unlisted", data.unlisted]
        words = ["--labels", data.labels or "", *words_of(data.reading), *told, *inputs, "--split", TEST]
        say(f"Next: {shlex.join(['tertium', 'evaluate', str(run), *words])}")
    say(f"Next: {shlex.join(['tertium', 'predict', str(run), *inputs, '--out', 'predictions.csv'])}")


def _are_there(names: list[str], data: RunData) -> bool:
    """Return whether images are where those of training were; features without names have no others."""
    from tertium.data.feature_files import feature_names
    from tertium.data.sources.opening import open_source

    there = open_source(data.images).names if data.images else feature_names(data.features or "")
    return set(names) <= set(there or ())


def _write_page(run: Path) -> Path:
    """Write the report of a run into its folder; return where it is."""
    from tertium.reporting import write_report
    from tertium.runs import RunFolder

    folder = RunFolder.open(run)
    page = write_report(folder.report_file, [folder], title=f"Run {run.name}", command=command_line())
    say(f"Report: {page}")
    return page


def settings_of(config: Path | None, words: list[str] | None, **options: Any) -> dict[str, Any]:
    """Return the settings of a file, overridden by key=value words, and those by options."""
    from tertium.config import parse_overrides, read_config

    values: dict[str, Any] = read_config(config) if config else {}
    values |= parse_overrides(words or [])
    return values | {name: value for name, value in options.items() if value is not None}


@reads_labels
@large_jobs(joins=False)
@writes_files("{stem}.csv")
def evaluate(
    run: ModelArgument,
    labels: LabelsFile,
    images: ImagesPlace = None,
    features: FeaturesFile = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    out: Annotated[
        Target | None,
        typer.Option(
            help="Where the figures go, .json, and .csv per class; FOLDER/ or an address: a large job.",
            metavar="PATH",
            parser=output,
        ),
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
    - ECE: calibration error, how far the probabilities are from the share of present labels
    - G1–G5: fifths of the classes, from the fewest to the most labels known in training

    They are written to RUN/evaluation.json and .csv unless --out says otherwise. In the folder of a large job
    there are also the scores of all known labels, in parts.
    """
    if started(devices, run, run if out is None else out.folder if isinstance(out, Large) else out.parent):
        return
    from tertium.prediction.using import evaluate as evaluate_model
    from tertium.processes import rank
    from tertium.runs import RunFolder

    if out is None and run.suffix == ".onnx":
        raise InputError("say where the figures of an exported model go: --out FIGURES.json")
    if isinstance(out, Large):
        from tertium.prediction.sharded import evaluate as evaluate_parts

        with watching_first() as progress:
            finished, figures = evaluate_parts(
                run,
                labels,
                images,
                request=out.request,
                features=features,
                split=split,
                unlisted=unlisted.value,
                progress=progress,
            )
        say_ended(finished, "")
        if figures is not None:
            _say_evaluated(run, figures)
        return
    with together(run), watching_first() as progress:
        done = evaluate_model(
            run,
            labels,
            images,
            features=features,
            split=split,
            unlisted=unlisted.value,
            out=out or RunFolder(run).evaluation_file,
            progress=progress,
        )
        if rank() > 0:
            return
    _say_evaluated(run, done)


def _say_evaluated(run: Path, done: Evaluated) -> None:
    from tertium.cli.terminal import counted, percent

    _show_evaluation(done.evaluation, f"{run} on {counted(done.images, 'images')}")
    if done.seen:
        rest = "; none is new to it, so the figures say little about new images"
        if done.unseen is not None:
            rest = f"; mAP(C) without them: {percent(done.unseen.map_c)}"
        say(f"Note: the run was trained or validated on {done.seen:,} of these images{rest}.")
    if done.near:
        rest = "" if done.apart is None else f" (mAP(C) without them {percent(done.apart.map_c)})"
        shown = some([f"{image} and {like}" for image, like, _ in done.near])
        alike = f"{counted(len(done.near), 'images')} look nearly the same as training images"
        say(f"Note: {alike}{rest}: {shown}.")
    if done.unknown_classes:
        say(f"Not known to the model, left out: {some(done.unknown_classes, 8)}")
    assert done.out is not None
    say(f"Figures: {done.out}, per class: {os.path.splitext(done.out)[0]}.csv")


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


@reads_labels
@large_jobs(joins=True)
@writes_files()
def predict(
    run: ModelArgument,
    out: Annotated[
        Target,
        typer.Option(
            help="Where the probabilities go: .csv or .parquet; FOLDER/ or an address: a large job.",
            metavar="PATH",
            parser=output,
        ),
    ],
    images: ImagesPlace = None,
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

      tertium predict runs/first --images 's3://bucket/{000..999}.tar' --out s3://bucket/predictions/ --engine
      ray --address auto

    The last one is a large job: a folder of Parquet parts, one for each shard of the images. If it is ended,
    the same command does only what is missing (docs/scale.md).
    """
    if started(devices, run, out.folder if isinstance(out, Large) else out.parent):
        return
    from tertium.prediction.using import predict as predict_images
    from tertium.processes import rank

    if isinstance(out, Large):
        from tertium.prediction.sharded import predict as predict_parts

        with watching_first() as progress:
            finished = predict_parts(
                run,
                images,
                request=out.request,
                features=features,
                labels=labels,
                split=split,
                top=top,
                skip_damaged=skip_damaged,
                joined=out.joined,
                progress=progress,
            )
        if say_ended(finished, "") and out.joined is not None:
            say(f"All of them: {out.joined}")
        return
    with together(run), watching_first() as progress:
        done = predict_images(
            run,
            images,
            features=features,
            labels=labels,
            split=split,
            out=out,
            top=top,
            skip_damaged=skip_damaged,
            progress=progress,
        )
        if rank() > 0:
            return
    say_damaged(done.damaged, len(done.images))
    say_predicted(len(done.images), len(done.classes), top, out)
