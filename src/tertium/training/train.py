"""From labels and images to a trained model: what a caller gives, and a session made of it.

Torch takes seconds to load, so it is imported only once labels, inputs and settings have been found good.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tertium.annotation.answered import Answered, about, learned_by
from tertium.annotation.frequencies import Frequencies, estimate, propensities
from tertium.config import Settings, settings_from
from tertium.data.inputs import Features, Images
from tertium.data.pictures import damaged
from tertium.data.sources.opening import is_place, open_source
from tertium.errors import InputError, LostProcess, some
from tertium.hub import pinned
from tertium.labels import Labels
from tertium.labels.describe import setting_of_training
from tertium.labels.opening import Source, open_labels, place_of
from tertium.labels.readers import LabelFile, Unlisted
from tertium.processes import rank, world
from tertium.progress import Progress
from tertium.runs import RunFolder
from tertium.training.declared import declared
from tertium.training.parts import (
    describe,
    divide_parts,
    fingerprints,
    near_copies,
    note_copies,
    note_untaught,
    note_unused,
    taught_by,
    with_answers,
)
from tertium.training.recipes import expanded
from tertium.training.tracking import check_installed

if TYPE_CHECKING:
    from torch import nn

    from tertium.methods import Method
    from tertium.training.session import Outcome, Part, Session, Watch


def train(
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    answers: Source | None = None,
    out: str | Path | None = None,
    method: str | Method = Settings.method,
    config: Mapping[str, Any] | None = None,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    skip_damaged: bool = False,
    scheme: str | None = None,
    truth: Labels | str | Path | None = None,
    overwrite: bool = False,
    watch: Watch | None = None,
    expected_map: bool = True,
    progress: Progress | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a classifier on images or ready features whose labels may be mostly unknown.

    ``labels`` is a file or `Labels`; ``images`` a folder or another place (docs/images.md), pixels
    [N, H, W, 3] or [N, 3, H, W], or a list or dataset of images in the order of the labels; ``features`` a
    ``.npy`` file or an array [N, D]. ``method`` is a name or a `Method`; every other setting and every
    parameter of the method can be given by name (``epochs=5``, ``positive_weight=5``). With ``out`` a run
    folder is written. ``answers`` are labels that people were asked about, as `tertium answers` writes them:
    they are learned as labels, but say nothing about how the others were annotated (docs/auto.md).

    A label file is read with ``unlisted`` and ``classes`` (see `tertium.read_labels`). ``skip_damaged``
    leaves out images that cannot be read. ``scheme`` says how labels were hidden, for reports. If the hidden
    labels are known, give them as ``truth``: the record then also shows what is memorised and how many of a
    method's corrections are right; training does not see them, but for ``select="clean"``, with which they
    choose the epoch. ``watch`` gets the model after each epoch; what it returns is stored as ``watched`` in
    the epoch's record and has no other effect. Without ``expected_map`` the mAP over all labels is not
    estimated, which takes about as long as an epoch.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(200, 8))
    >>> truth = np.where(features[:, :3] > 0, 1, -1)
    >>> outcome = train(Labels.from_dense(truth), features=features, epochs=5, lr=0.01)
    >>> outcome.trained.predict_proba(features=features).shape
    (200, 3)
    """
    net, values = _given_network({**(config or {}), **overrides})
    settings = _checked(method, values)
    labels = _pinned(labels)
    if isinstance(images, str):
        images = pinned(images)
    check_installed(settings.trackers())
    if settings.log and out is None:
        raise InputError("log needs a run folder: give out too")
    if out is not None:
        _check_name(method)
        RunFolder.check_free(Path(out), overwrite=overwrite)
        _keep_inside(
            Path(out), [place_of(labels), place_of(answers), images, features, truth, settings.weights]
        )
    full = _truth(truth)
    everything = open_labels(labels, unlisted=unlisted, classes=classes, progress=progress)
    said = _answers(answers, everything, progress)
    place = _place(images)
    if is_place(images):
        images = open_source(images)
        note_unused(images, everything, progress)
    left_out = _damaged(images, everything, progress) if skip_damaged else []
    training, validation = divide_parts(everything.without(left_out), images, features, settings, progress)
    training, validation, learned = with_answers(training, validation, said, progress)
    note_copies(training, validation, progress)
    note_untaught(training, validation, progress)
    chosen, settings = _resolve(method, values)
    _check_method(chosen, training)
    settings = settings.resolved(len(training.labels), float(training.labels.class_counts[0].mean()))
    record = {"truth": full, "watch": watch, "expected_map": expected_map, "net": net}
    if out is not None:
        record["taught"] = taught_by(training, progress)
        record["near"] = near_copies(record["taught"], training, validation, progress)
    with _session(settings, chosen, training, validation, progress, **record) as session:
        if out is not None:
            data = dataclasses.replace(
                describe(training, validation, session.truth),
                labels=place_of(labels),
                reading=labels.options() if isinstance(labels, LabelFile) else {},
                unlisted=unlisted,
                names=None if classes is None else list(classes),
                left_out=left_out,
                images=place,
                features=_place(features),
                truth=_place(truth),
                scheme=scheme,
                setting=setting_of_training(_unasked(everything, said))._asdict(),
                answers=None if learned is None else learned.fingerprint(),
            )
            session.create_folder(Path(out), data, learned, overwrite=overwrite)
        return session.run()


def resume(
    run: str | Path,
    labels: Labels | None = None,
    images: Images | None = None,
    *,
    features: Features | None = None,
    devices: int | None = None,
    backbone: nn.Module | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Continue a run that was stopped, from its last checkpoint, as if it had not been stopped.

    What was given to `train` as a path is found again; what was given as an array or as a module must be
    given once more. Answers are kept in the run folder.
    The labels and inputs must be those of the run. On one process the result is bit for bit the same;
    ``devices`` continues with another number of processes, whose batches differ (docs/scale.md).
    """
    folder = RunFolder.open(run)
    if folder.summary():
        raise InputError(f"{run}: the run has ended; there is nothing to resume")
    config, data = folder.config(), folder.data()
    chosen, settings = _resolve(config["settings"]["method"], config["settings"])
    others = folder.other_versions()
    if others and progress is not None:
        progress.note(f"the run began with {others}: its numbers may differ from here on")
    if devices is not None:
        settings = dataclasses.replace(settings, devices=devices)
    if labels is None:
        if data.labels is None:
            raise InputError(f"{run}: its labels were not read from a file; call tertium.resume with them")
        file = LabelFile.with_options(data.labels, **data.reading)
        labels = open_labels(file, unlisted=data.unlisted, classes=data.names)
        labels = labels.without(data.left_out)
    if images is None and features is None:
        images, features = data.images, data.features
    training, validation = divide_parts(labels, images, features, settings, progress, data.validation)
    said = learned_by(run)
    training, validation = training.with_answers(said), validation.with_answers(said)
    for key, now in fingerprints(training, validation).items():
        if getattr(data, key) != now:
            raise InputError(f"{run}: the {key.replace('_', ' ')} are not those that the run began with")
    taught = taught_by(training, progress)
    near = near_copies(taught, training, validation, progress)
    record = {"truth": _truth(data.truth), "net": backbone, "taught": taught, "near": near}
    with _session(settings, chosen, training, validation, progress, **record) as session:
        session.take_up(folder)
        return session.run()


def class_frequencies(
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    answers: Source | None = None,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    estimator: Literal["scores", "ignore"] = "scores",
    labels_per_image: float | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> tuple[Labels, Frequencies]:
    """Estimate how frequent each class is among the training images; return their labels too.

    "scores" explains the labels by scores of models that have not seen the images
    (`tertium.annotation.frequencies`). "ignore" is the estimate of Ben-Baruch 2021: the mean prediction of a
    model trained on known labels alone, which has no interval. ``answers``, as `train` takes them, are left
    out of the labels.
    """
    from tertium.methods.auto import EPOCHS, WEIGHT, Auto
    from tertium.methods.baselines import Ignore, Negative

    method = Auto() if estimator == "scores" else Ignore()
    chosen, settings = _resolve(method, {"validation": 0.0, **overrides})
    everything = open_labels(labels, unlisted=unlisted, classes=classes, progress=progress)
    said = _answers(answers, everything, progress)
    everything = _unasked(everything, said)
    training, validation = divide_parts(everything, images, features, settings, progress)
    chosen.check(training.labels)
    settings = settings.resolved(len(training.labels))
    with _session(settings, chosen, training, validation, progress) as session:
        if estimator == "scores":
            scores = session.held_out(Negative(positive_weight=WEIGHT), EPOCHS)
            return training.labels, estimate(scores, training.labels, labels_per_image=labels_per_image)
        rate = session.predictions(Ignore()).mean(axis=0, dtype=np.float64)
        present, absent = propensities(training.labels, rate)
        return training.labels, Frequencies(rate, rate, rate, present, absent, 0.0)


def _pinned(labels: Source) -> Source:
    """Return labels that are read from one revision of a file, now and when the run goes on."""
    if isinstance(labels, str | Path):
        labels = LabelFile(Path(labels))
    return labels.pinned() if isinstance(labels, LabelFile) else labels


def _keep_inside(out: Path, inputs: Sequence[object]) -> None:
    """Raise `InputError` if an input is in the folder whose run is replaced."""
    place = os.path.realpath(out)
    for each in inputs:
        if not isinstance(each, str | Path) or not Path(each).exists():
            continue
        if Path(os.path.realpath(each)).is_relative_to(place):
            raise InputError(f"{each}: is an input, and would be replaced; choose another --out")


def _answers(answers: Source | None, labels: Labels, progress: Progress | None) -> Labels | None:
    """Return what people answered about these labels, and say what else there is in the file."""
    if answers is None:
        return None
    said = open_labels(answers, progress=progress)
    found = about(said, labels.images, labels.classes)
    if not found.known:
        raise InputError(
            f"{place_of(answers) or 'answers'}: none of {said.known:,} answers is about an image and a class "
            f"of the labels, such as {some(labels.images[:1].to_pylist())} and {some(labels.classes[:1])}"
        )
    notes = Answered.among(labels, found).notes(labels)
    if said.known > found.known:
        others = said.known - found.known
        notes.append(
            f"{others:,} of {said.known:,} answers are about other images or classes, and are left out"
        )
    for note in notes:
        (progress or Progress()).note(f"Note: {note}.")
    return found


def _unasked(labels: Labels, answers: Labels | None) -> Labels:
    """Return the labels that nobody was asked about."""
    return Answered.among(labels, answers).taken_out_of(labels)


def _check_method(method: Method, training: Part) -> None:
    """Raise `InputError` if the method cannot learn from these labels."""
    if not method.models_annotation:
        method.check(training.labels)
        return
    if training.labels.known and not training.unasked.known:
        raise InputError(
            f'every known label is among the answers, and "{method.name}" learns from the others how labels '
            "were annotated: give as answers only what people were asked about"
        )
    method.check(training.unasked)


def _check_name(method: str | Method) -> None:
    """Raise `InputError` if a run, in which only the name is written, could not find the method again."""
    if not isinstance(method, str):
        from tertium.methods import check_name

        check_name(method)


def _truth(given: Labels | str | Path | None) -> Labels | None:
    """Return the truth; what a file of it does not list is absent."""
    return None if given is None else open_labels(given, unlisted="absent")


def _damaged(images: Images | None, labels: Labels, progress: Progress | None) -> list[str]:
    """Return the images that cannot be read, and say which."""
    if not is_place(images):
        raise InputError("only image files can be damaged and skipped: give images, and not as an array")
    progress = progress or Progress()
    found = damaged(images, labels.images.to_pylist(), progress)
    if found:
        faults = some(list(found.values()))
        progress.note(f"left out: {len(found):,} of {len(labels):,} images that cannot be read: {faults}")
    return list(found)


@contextmanager
def _session(
    settings: Settings,
    method: Method,
    training: Part,
    validation: Part,
    progress: Progress | None,
    **record: Any,
) -> Iterator[Session]:
    """Start the processes, prepare what they share, and tell a lost process from other errors."""
    import torch

    from tertium.distributed import lost
    from tertium.training.fit import make_fabric
    from tertium.training.session import Session

    fabric = make_fabric(settings)
    fabric.launch()
    if rank() > 0:
        progress = None  # one of them talks
    # A method's own random numbers come from its generator; this covers layers such as dropout.
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)  # random weights are the same in all processes
        session = Session(settings, method, training, validation, progress or Progress(), fabric, **record)
        try:
            session.prepare()
            torch.manual_seed(settings.seed + rank())
            yield session
        except RuntimeError as error:
            if world() > 1 and lost(error):
                raise LostProcess(
                    f"process {rank()} ends, for another has ended or has not answered; "
                    "when that is mended, go on with --resume"
                ) from None
            raise
        finally:
            session.close()


def _given_network(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Take a module out of the settings, which are to be written down, and put its name there."""
    given = values.get("backbone")
    if given is None or isinstance(given, str):
        return None, dict(values)
    return given, {**values, "backbone": f"module:{type(given).__name__}"}


def _checked(method: str | Method, values: Mapping[str, Any]) -> Settings:
    """Return the settings; torch is not loaded for it if the method is one of Tertium's own."""
    name = values.get("method", method)
    values = expanded(values, name if isinstance(name, str) else name.name)
    loaded = "tertium.methods" in sys.modules  # then it may also know classes of the caller's own
    own = declared(name, values) if isinstance(name, str) and not loaded else None
    if own is None or {*own.parameters} & {*values}:  # what a parameter may be, only the method's class knows
        return _resolve(method, values)[1]
    return settings_from({**values, "method": own.name}, own.parameters)


def _resolve(method: str | Method, values: Mapping[str, Any]) -> tuple[Method, Settings]:
    from tertium import methods
    from tertium.methods import Method

    if isinstance(method, Method):
        values = expanded(values, method.name)
        return method, settings_from(
            {**values, "method": method.name, "parameters": methods.parameters_of(method)}
        )
    kind = methods.find(values.get("method", method))
    values = expanded(values, kind.name)
    settings = settings_from({**values, "method": kind.name}, methods.parameters_of(kind))
    chosen = methods.make(kind.name, settings.parameters)
    full = {**settings.to_dict(), "parameters": methods.parameters_of(chosen)}
    return chosen, settings_from(full)


def _place(given: Any) -> str | None:
    """Return the path of what was given as a file or a folder."""
    return str(given) if isinstance(given, str | Path) else None
