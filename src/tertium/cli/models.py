"""Commands that train a model and use it."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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
    command_line,
    console,
    read,
    say,
    watching,
)
from tertium.errors import InputError, some

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tertium.labels import Labels
    from tertium.metrics import Evaluation
    from tertium.predict import Inputs, Trained
    from tertium.progress import Progress
    from tertium.training import Outcome

Found = TypeVar("Found")
Devices = Annotated[
    int, typer.Option(min=1, help="Processes on this machine that share the images, one for each device.")
]
_SAID, _OTHERS_ENDED = 2, 3  # exit codes: of a process that has said why it ends, and of one left alone
_POLL, _GRACE = 0.1, 5.0  # seconds between looks at the processes; that they have to end


def train(
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Label file: CSV, TSV, Parquet or Arrow.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the run to.")] = None,
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
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any setting or method parameter.")
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
    from tertium.distributed import rank
    from tertium.keeping import Stopped
    from tertium.terminal import show_summary

    place = resume or out or Path()
    try:
        if resume is not None:
            if any(
                given is not None
                for given in (labels, out, images, features, method, config, classes, truth, settings)
            ):
                raise InputError("--resume goes on with what the run began with; only --devices may change")
            outcome = _go_on(resume, devices)
        else:
            if labels is None or out is None:
                missing = "--labels" if labels is None else "--out"
                raise InputError(f"{missing} is missing; see tertium train --help")
            values = settings_of(config, settings, method=method, devices=devices)
            outcome = _begin(labels, out, images, features, values, unlisted, classes, overwrite, truth)
    except Stopped as stop:
        if rank() == 0:
            say(f"Stopped; a checkpoint is written. Go on with: tertium train --resume {place}")
        raise typer.Exit(128 + stop.number) from None
    if rank() == 0:
        show_summary(console(), outcome.summary, place)
        _write_page(place)


def _write_page(run: Path) -> None:
    """Write the report of a run into its folder."""
    from tertium.report import write_report
    from tertium.runs import RunFolder

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
) -> Outcome:
    from tertium.readers import read_classes
    from tertium.training import train as run_training

    about: dict[str, Any] = {"labels": str(labels), "unlisted": unlisted.value}
    if classes is not None:
        about["names"] = read_classes(classes)
    with watching() as progress:
        return run_training(
            read(labels, unlisted, classes),
            images,
            features=features,
            out=out,
            config=values,
            overwrite=overwrite,
            progress=progress,
            about=about,
            truth=truth,
        )


def _go_on(run: Path, devices: int | None) -> Outcome:
    from tertium.training import resume

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
    is listed. G1–G5 are fifths of the classes, from the fewest to the most labels known in training. ECE is
    the expected calibration error of the probabilities. The figures are written to RUN/evaluation.json and
    .csv unless --out says otherwise.
    """
    if _started(devices):
        return
    from tertium.distributed import rank
    from tertium.predict import meet, shared_folder, shares
    from tertium.predictions import write_evaluation

    place = out or run / "evaluation.json"

    def prepare() -> tuple[Trained, Labels, Inputs]:
        if not place.parent.is_dir() and out is not None:
            raise InputError(f"{place}: the folder {place.parent} does not exist")
        trained = _load(run)
        truth = read(labels, unlisted, None)
        truth = truth if split is None else truth.part(split)
        return trained, truth, trained.labelled(truth, images, features)

    with _together(), _watching_first() as progress:
        trained, truth, inputs = _agreed(prepare)
        with shared_folder(place.parent) as folder:
            known = trained.known_scores(truth, inputs, folder, shares(len(truth)), rank(), progress)
            meet()
            if rank() > 0:
                return
            found = known.evaluate(trained.thresholds, _annotations(run, trained.classes))
        write_evaluation(place, found)
    _show_evaluation(found, f"{run} on {len(truth):,} images")
    strangers = sorted(set(truth.classes) - set(trained.classes))
    if strangers:
        say(f"Not known to the model, left out: {some(strangers, 8)}")
    say(f"Figures: {place}, per class: {place.with_suffix('.csv')}")


def _annotations(run: Path, classes: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return how many labels of each class training knew, if the run says so for every class."""
    import numpy as np

    from tertium.runs import RunFolder

    known = (run / "config.json").is_file()
    counts = RunFolder.open(run).config()["data"].get("classes", {}) if known else {}
    if not all(name in counts for name in classes):
        return None
    return np.array([counts[name]["present"] + counts[name]["absent"] for name in classes])


def _show_evaluation(found: Evaluation, title: str) -> None:
    from tertium.terminal import percent, show_evaluation, table

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

        return predict_exported(run, out, images, features, labels, split, top, devices)
    if _started(devices):
        return
    from tertium.distributed import rank
    from tertium.predict import names_of, shared_folder, shares
    from tertium.predictions import check_columns, check_path, write_predictions

    def prepare() -> tuple[Trained, list[str], Inputs]:
        check_path(out)
        trained = _load(run)
        check_columns(trained.classes, top)
        if labels is not None:
            listed = read(labels, Unlisted.unknown, None)
            names = (listed if split is None else listed.part(split)).images.to_pylist()
        else:
            names = names_of(images, features)
        return trained, names, trained.inputs(images, features, names)

    with _together(), _watching_first() as progress:
        trained, names, inputs = _agreed(prepare)
        own = shares(len(names))[rank()]
        with shared_folder(out.parent) as folder:
            blocks = trained.stream(inputs, progress, own)
            write_predictions(
                out, names[own.start : own.stop], trained.classes, blocks, top=top, folder=folder
            )
        if rank() > 0:
            return
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


# ---- several processes, for evaluate and predict ---------------------------------------------------------


def _started(devices: int) -> bool:
    """Run this command in several processes, if that is asked for; torchrun has done so already."""
    if devices == 1 or "RANK" in os.environ:
        return False
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // devices)
    shared = {"OMP_NUM_THREADS": str(threads)} | os.environ
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(devices)}
    command = [sys.executable, "-m", "tertium", *sys.argv[1:]]
    children = [
        subprocess.Popen(command, env=shared | {"RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(devices)
    ]
    try:
        _wait_for(children)
    finally:
        _end(children)
    return True


def _wait_for(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all have succeeded, or one has failed."""
    while any(child.poll() is None for child in children):
        if any(child.returncode for child in children):
            break
        time.sleep(_POLL)
    codes = {number: child.returncode for number, child in enumerate(children) if child.returncode}
    if not codes:
        return
    # One that only lost the others is not the cause, if the cause is known by now.
    number, code = min(codes.items(), key=lambda item: item[1] == _OTHERS_ENDED)
    if code == _SAID:
        raise typer.Exit(code)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise InputError(f"process {number} of {len(children)} ended with {how}; the others were stopped")


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that still run: kindly, so that they remove their files, and after some seconds for good."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + _GRACE
    for child in children:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def _together() -> Iterator[None]:
    """Join the processes that were started together; alone, nothing happens."""
    from torch import distributed

    from tertium.predict import OthersEndedError

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    # As an exception, so that files half-written are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # They only wait for each other, on GPUs too; the one that has most to do may take long.
    distributed.init_process_group("gloo", timeout=timedelta(days=7))
    try:
        yield
    except OthersEndedError:
        raise typer.Exit(_OTHERS_ENDED) from None
    distributed.destroy_process_group()  # not after an error: a process that had joined says its own


def _agreed(prepare: Callable[[], Found]) -> Found:
    """Prepare in every process before any goes on; of those that fail alike only the first says so."""
    from tertium.distributed import any_of, from_first, rank

    found, error = None, None
    try:
        found = prepare()
    except InputError as caught:
        error = caught
    said = from_first(error is not None)
    if error is not None and (rank() == 0 or not said):
        any_of(True)
        raise error
    if any_of(error is not None) or found is None:
        raise typer.Exit(_SAID)
    return found


@contextmanager
def _watching_first() -> Iterator[Progress | None]:
    """Show the progress of process 0 alone; its share is as large as any."""
    if os.environ.get("RANK", "0") == "0":
        with watching() as progress:
            yield progress
    else:
        yield None


def _load(run: Path) -> Trained:
    """Return the model on this process's GPU, where there are any."""
    import torch

    from tertium.predict import Trained

    local = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.is_available()
    device = f"cuda:{local % torch.cuda.device_count()}" if has_gpu else "cpu"
    return Trained.load(run, device=device)
