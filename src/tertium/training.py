"""From labels and images to a trained model: the protocols, step by step."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric import Fabric

from tertium import methods
from tertium.annotation import Annotation
from tertium.checkpoints import Checkpoint, Checkpoints
from tertium.config import Plan, Settings, settings_from
from tertium.data import Loader, Order
from tertium.describe import setting_of
from tertium.distributed import barrier, gather_rows, own_rows, rank, world
from tertium.errors import InputError
from tertium.features import Extractor
from tertium.fit import Fitted, Judge, Keeper, Offers, Record, Validate, Verdict, fit, make_fabric
from tertium.frequencies import Frequencies, estimate, propensities
from tertium.inputs import check_pictures, feature_names, load_features
from tertium.keeping import CheckpointKeeper, Stops
from tertium.labels import Labels
from tertium.memory import Memorisation, true_counts
from tertium.methods import Method
from tertium.methods.auto import EPOCHS, WEIGHT, Auto
from tertium.methods.baselines import Ignore, Negative
from tertium.metrics import average_precision, best_thresholds
from tertium.model import Classifier, pretrained
from tertium.predict import Features, Images, Inputs, Trained, scores
from tertium.progress import Progress
from tertium.readers import read_labels
from tertium.runs import RunFolder
from tertium.splits import divide
from tertium.state import SampleState
from tertium.validation import Scored

TRAIN, VALIDATION = "train", "val"
Watch = Callable[[Classifier], dict[str, Any]]  # of a model after an epoch
_FOLDS = 3  # of temporary heads that score images they have not seen
_LOST = ("onnection", "gloo", "NCCL", "timed out", "Timeout", "barrier")  # in errors of a broken group


@dataclass(frozen=True)
class Outcome:
    """What training gave: the model ready for use, the figures of each epoch, a summary."""

    trained: Trained
    records: list[Record]
    summary: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Labels and the inputs that belong to them, in the same order."""

    labels: Labels
    inputs: Inputs

    def select(self, rows: npt.NDArray[np.int64]) -> Part:
        """Return these rows only."""
        return Part(self.labels[rows], self.inputs.select(rows))


def train(
    labels: Labels | str | Path,
    images: Images | None = None,
    *,
    features: Features | None = None,
    out: str | Path | None = None,
    method: str | Method = Settings.method,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    truth: Labels | str | Path | None = None,
    overwrite: bool = False,
    watch: Watch | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a classifier on images or ready features, of whose labels most may be unknown.

    ``labels`` is a file or `Labels`; ``images`` a folder or pixels [N, H, W, 3]; ``features`` a ``.npy`` file
    or an array [N, D]. ``method`` is a name or a `Method`; every other setting and every parameter of the
    method can be given by name (``epochs=5``, ``positive_weight=5``). With ``out`` a run folder is written,
    whose config also keeps what ``about`` says of the data. Where the hidden labels are known, ``truth`` lets
    the record show what is memorised and how right a method's corrections are; training does not see it.
    ``watch`` gets the model after each epoch; what it returns is ``watched`` in the epoch's record, no more.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(200, 8))
    >>> truth = np.where(features[:, :3] > 0, 1, -1)
    >>> outcome = train(Labels.from_dense(truth), features=features, epochs=5, lr=0.01)
    >>> outcome.trained.predict_proba(features=features).shape
    (200, 3)
    """
    chosen, settings = _resolve(method, {**(config or {}), **overrides})
    if out is not None:
        RunFolder.check_free(Path(out), overwrite=overwrite)
    everything = labels if isinstance(labels, Labels) else read_labels(labels)
    training, validation = _divide(everything, images, features, settings)
    chosen.check(training.labels)
    settings = settings.resolved(len(training.labels))
    with _session(settings, chosen, training, validation, progress) as session:
        session.truth, session.watch = _truth(truth), watch
        if out is not None:
            places = _places(labels=labels, images=images, features=features, truth=truth)
            data = {**places, **(about or {}), **_describe(training, validation, session.truth)}
            session.create_folder(Path(out), data, overwrite=overwrite)
        return session.run()


def resume(
    run: str | Path,
    labels: Labels | None = None,
    images: Images | None = None,
    *,
    features: Features | None = None,
    devices: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Go on with a run that was stopped, from its last checkpoint, as if it had not been stopped.

    What was given to `train` as a path is found again; what was given as an array must be given once more.
    The labels and inputs must be those of the run. On one process the result is the same to the last bit;
    ``devices`` goes on with another number of processes, whose batches are others (docs/scale.md).
    """
    folder = RunFolder.open(run)
    if folder.summary():
        raise InputError(f"{run}: the run has ended; there is nothing to resume")
    config = folder.config()
    data = config["data"]
    chosen, settings = _resolve(config["settings"]["method"], config["settings"])
    if devices is not None:
        settings = dataclasses.replace(settings, devices=devices)
    if labels is None:
        labels = read_labels(
            _given(data, "labels", run), unlisted=data.get("unlisted", "unknown"), classes=data.get("names")
        )
    if images is None and features is None:
        images, features = data.get("images"), data.get("features")
    training, validation = _divide(labels, images, features, settings)
    for key, now in _fingerprints(training, validation).items():
        if data[key] != now:
            raise InputError(f"{run}: the {key.replace('_', ' ')} are not those that the run began with")
    with _session(settings, chosen, training, validation, progress) as session:
        session.folder, session.truth = folder, _truth(data.get("truth"))
        session.take_up()
        return session.run()


def class_frequencies(
    labels: Labels | str | Path,
    images: Images | None = None,
    *,
    features: Features | None = None,
    estimator: Literal["scores", "ignore"] = "scores",
    labels_per_image: float | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> tuple[Labels, Frequencies]:
    """Estimate how frequent each class is among the training images; return their labels too.

    "scores" explains the labels by scores of models that have not seen the images (`tertium.frequencies`).
    "ignore" is the estimate of Ben-Baruch 2021: the mean prediction of a model trained on known labels alone,
    which has no interval.
    """
    method = Auto() if estimator == "scores" else Ignore()
    chosen, settings = _resolve(method, {"validation": 0.0, **overrides})
    everything = labels if isinstance(labels, Labels) else read_labels(labels)
    training, validation = _divide(everything, images, features, settings)
    chosen.check(training.labels)
    settings = settings.resolved(len(training.labels))
    with _session(settings, chosen, training, validation, progress) as session:
        if estimator == "scores":
            scores = session.held_out(Negative(positive_weight=WEIGHT), EPOCHS)
            return training.labels, estimate(scores, training.labels, labels_per_image=labels_per_image)
        rate = session.predictions(Ignore()).mean(axis=0, dtype=np.float64)
        present, absent = propensities(training.labels, rate)
        return training.labels, Frequencies(rate, rate, rate, present, absent, 0.0)


def _truth(given: Labels | str | Path | None) -> Labels | None:
    """Return the truth; what a file of it does not list is absent."""
    return read_labels(given, unlisted="absent") if isinstance(given, str | Path) else given


def _given(data: Mapping[str, Any], key: str, run: str | Path) -> str:
    if key not in data:
        raise InputError(f"{run}: its {key} were not read from a file; call tertium.resume with them")
    return str(data[key])


@contextmanager
def _session(
    settings: Settings, method: Method, training: Part, validation: Part, progress: Progress | None
) -> Iterator[_Session]:
    """Start the processes, prepare what they share, and tell a lost process from other errors."""
    fabric = make_fabric(settings)
    fabric.launch()
    if rank() > 0:
        progress = None  # one of them talks
    # A method's own random numbers come from its generator; this covers layers such as dropout.
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)  # random weights are the same in all processes
        session = _Session(settings, method, training, validation, progress or Progress(), fabric)
        try:
            session.prepare()
            torch.manual_seed(settings.seed + rank())
            yield session
        except RuntimeError as error:
            if world() > 1 and any(sign in str(error) for sign in _LOST):
                raise InputError(
                    f"process {rank()} ends, for another has ended or has not answered; "
                    "when that is mended, go on with --resume"
                ) from None
            raise


def _resolve(method: str | Method, values: Mapping[str, Any]) -> tuple[Method, Settings]:
    values = dict(values)
    if isinstance(method, Method):
        return method, settings_from(
            {**values, "method": method.name, "parameters": methods.parameters_of(method)}
        )
    kind = methods.find(values.pop("method", method))
    settings = settings_from({**values, "method": kind.name}, methods.parameters_of(kind))
    chosen = methods.make(kind.name, settings.parameters)
    full = {**settings.to_dict(), "parameters": methods.parameters_of(chosen)}
    return chosen, settings_from(full)


def _divide(
    labels: Labels, images: Images | None, features: Features | None, settings: Settings
) -> tuple[Part, Part]:
    """Return the training and the validation part: the file's own splits, or a stratified draw."""
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    if labels.split_names():
        rows = labels.rows_in(TRAIN)
        held_out = labels.rows_in(VALIDATION) if VALIDATION in labels.split_names() else rows[:0]
        used = np.sort(np.concatenate([rows, held_out]))
    else:
        rows = used = np.arange(len(labels))
        held_out = rows[:0]
    if not rows.size:
        raise InputError("there are no images to train on")
    # An array of inputs has a row for every image of the file, or for every image of the parts used.
    if _rows(images, features) == len(labels):
        used = np.arange(len(labels))
    part = labels[used]
    source = Part(part, Inputs.named(images, features, part.images.to_pylist()))
    rows, held_out = np.searchsorted(used, rows), np.searchsorted(used, held_out)
    if not held_out.size and settings.validation and len(rows) > 1:
        first, second = divide(source.labels[rows], settings.validation, settings.seed)
        rows, held_out = rows[first], rows[second]
    return source.select(rows), source.select(held_out)


def _rows(images: Images | None, features: Features | None) -> int | None:
    """Return how many rows an array of inputs has; a folder has names instead, and so may a file."""
    if isinstance(features, str | Path):
        return None if feature_names(features) is not None else len(load_features(features))
    array = features if features is not None else images
    return None if isinstance(array, str | Path | None) else len(array)


def _places(**given: Any) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if isinstance(value, str | Path)}


def _describe(training: Part, validation: Part, truth: Labels | None) -> dict[str, Any]:
    counts = dict(zip(("present", "absent"), training.labels.class_counts, strict=True))
    if truth is not None:
        counts["true"] = true_counts(training.labels, truth)
    return {
        "setting": setting_of(training.labels)._asdict(),
        "training_images": len(training.labels),
        "validation_images": len(validation.labels),
        "validation": validation.labels.images.to_pylist(),
        **_fingerprints(training, validation),
        "classes": {
            name: {kind: int(column[number]) for kind, column in counts.items()}
            for number, name in enumerate(training.labels.classes)
        },
    }


def _fingerprints(training: Part, validation: Part) -> dict[str, str]:
    """Tell apart the data of two runs."""
    return {
        f"{name}_{kind}": value
        for name, part in (("training", training), ("validation", validation))
        for kind, value in (("labels", part.labels.fingerprint()), ("inputs", part.inputs.fingerprint()))
    }


class _Session:
    """One training run: what its steps share."""

    def __init__(
        self,
        settings: Settings,
        method: Method,
        training: Part,
        validation: Part,
        progress: Progress,
        fabric: Fabric,
    ) -> None:
        self.settings, self.method, self.progress, self.fabric = settings, method, progress, fabric
        self.training, self.validation = training, validation
        self.folder: RunFolder | None = None
        self.start: Checkpoint | None = None  # where to go on
        self.done: dict[str, Fitted] = {}  # phases that are over
        self.truth: Labels | None = None  # for the record only
        self.watch: Watch | None = None  # likewise
        self.memorised: dict[str, Any] = {}  # what was, by phase
        self.stops = Stops()
        self.head_parts: tuple[Part, ...] = ()
        self.started = time.perf_counter()
        self.records: list[Record] = []
        self.on_images = training.inputs.pictures is not None
        if not self.on_images and settings.protocol != "linear":
            raise InputError(f'the protocol "{settings.protocol}" needs images, not features')
        spare = max((os.cpu_count() or 1) - 1, 0)
        self.workers = spare if settings.workers is None else settings.workers

    def prepare(self) -> None:
        """Do what may show that the inputs are at fault, before anything is written."""
        if self.on_images:
            self.backbone = pretrained(self.settings.backbone, self.settings.weights)
        if self.settings.weights == "random" and "head" not in self.settings.phases():
            self._check_images()  # features of random weights say nothing
            self.model = Classifier(self.training.labels.classes, self.backbone.width)
            return
        self.model = self._head_on_features()
        if "head" not in self.settings.phases():
            self.head_parts = ()  # a method that wants the features gets them anew, from the cache

    def _check_images(self) -> None:
        for part in (self.training, self.validation):
            assert part.inputs.pictures is not None
            mine = part.inputs.pictures.select(own_rows(len(part.inputs)))
            self.progress.start("checking images", len(mine), "images")
            check_pictures(mine, self.progress.advance)

    def create_folder(self, out: Path, data: dict[str, Any], *, overwrite: bool) -> None:
        """Begin a run folder, which all processes must see."""
        if rank() == 0:
            RunFolder.create(out, overwrite=overwrite).write_config(self.settings.to_dict(), data)
        barrier()
        self.folder = RunFolder(out)

    def take_up(self) -> None:
        """Find the checkpoint to go on from, and set the record back to it."""
        assert self.folder is not None
        self.start = self._checkpoints().latest(self._say)
        if self.start is None:
            self._say("there is no checkpoint: the run begins again")
        self.records = self.start.figures["records"] if self.start else []
        if rank() == 0:
            self.folder.rewrite(self.records)

    def _checkpoints(self) -> Checkpoints:
        assert self.folder is not None
        return Checkpoints(self.folder.path / "checkpoints")

    @cached_property
    def state(self) -> SampleState:
        """The method's tables, below the run folder where they are large."""
        folder = None if self.folder is None else self.folder.path / "tables"
        state = SampleState(*self.training.labels.shape, rank=rank(), world=world(), folder=folder)
        if self.start is not None:
            state.load(self.start.folder)
        return state

    def _head_on_features(self) -> Classifier:
        features = self._features()
        model = Classifier(self.training.labels.classes, features.shape[1])
        model.standardise(features)
        return model

    def _features(self) -> npt.NDArray[Any]:
        """Return frozen features of the training images, for methods that ask for them."""
        if not self.head_parts:
            self.head_parts = tuple(self._featured(part) for part in (self.training, self.validation))
        found = self.head_parts[0].inputs.features
        assert found is not None
        return found

    def predictions(self, method: Method) -> npt.NDArray[np.float32]:
        """Train a temporary linear head with another method; return what it says of the training images."""
        method.check(self.training.labels)
        model = self._head_on_features()
        training, validation = self.head_parts
        fitted = self._fit(model, method, "head", training, validation, new=True)
        return self._scores(fitted.model, self.head_parts[0])

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        """Train temporary heads, each on two thirds of the images; return what they say of the rest."""
        self._features()
        part = self.head_parts[0]
        fold = np.random.default_rng(self.settings.seed).permutation(len(part.labels)) % _FOLDS
        found = np.empty(part.labels.shape, dtype=np.float32)
        for number in range(_FOLDS):
            seen, unseen = (
                part.select(np.flatnonzero(fold != number)),
                part.select(np.flatnonzero(fold == number)),
            )
            assert seen.inputs.features is not None
            model = Classifier(part.labels.classes, seen.inputs.features.shape[1])
            model.standardise(seen.inputs.features)
            fitted = self._fit(
                model, method, "head", seen, seen.select(np.arange(0)), epochs=epochs, new=True
            )
            found[fold == number] = self._scores(fitted.model, unseen)
        return found

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(
            self.backbone,
            self.settings.image_size,
            device=self.fabric.device,
            workers=self.workers,
            progress=self.progress,
        )

    def _featured(self, part: Part) -> Part:
        """Return the part with features, extracted where it has images."""
        if part.inputs.pictures is None:
            return part
        mine = self._extractor(part.inputs.pictures.select(own_rows(len(part.inputs))))
        return Part(part.labels, Inputs(None, gather_rows(mine, len(part.inputs))))

    def run(self) -> Outcome:
        """Go through the phases of the protocol and keep the best model."""
        head = self._phase("head", *self.head_parts) if "head" in self.settings.phases() else None
        if head is not None and "whole" not in self.settings.phases():
            return self._finish("head", head, self.head_parts[1])
        # A copy is trained: the frozen backbone is still what belongs to the head.
        start = self.model if head is None else head.model
        self.model = start.on_images(copy.deepcopy(self.backbone), self.settings.boost)
        whole = self._phase("whole", self.training, self.validation)
        if head is None:
            return self._finish("whole", whole, self.validation)
        assert whole.judge is not None
        before = self._validate(self.head_parts[1])(head.model, whole.judge)
        gain = whole.kept.gain(before)
        if gain is not None and gain.mean < 0:
            self._say("the head alone did better than after training everything: it is kept")
            return self._finish("head", head, self.head_parts[1])
        return self._finish("whole", whole, self.validation)

    def _phase(self, phase: str, training: Part, validation: Part) -> Fitted:
        """Train in one phase; one that was over when a checkpoint was taken is only read from it."""
        if self.start is not None and phase in self.start.figures["done"]:
            self.done[phase] = self._past(phase, self.start)
            return self.done[phase]
        memory = None if self.truth is None else Memorisation(training.labels, self.truth)
        # Without a folder there is no checkpoint to wait for.
        with nullcontext() if self.folder is None else self.stops.heeded(self._say):
            fitted = self._fit(
                self.model,
                self.method,
                phase,
                training,
                validation,
                state=self.state,
                offers=Offers(self._features, self.predictions, self.held_out),
                new=not self.done,
                record=lambda figures: self._record({"phase": phase} | figures),
                memory=memory,
                keeper=self._keeper(phase),
                watch=self.watch,
            )
        if memory is not None:
            self.memorised[phase] = memory.summary()
        self._say(f"best epoch of the {phase} phase: {fitted.best_epoch}")
        self.done[phase] = fitted
        return fitted

    def _past(self, phase: str, start: Checkpoint) -> Fitted:
        """Return a phase that was over: its model is kept under its name in the checkpoint."""
        saved = {key: value for key, value in start.shared().items() if key.startswith(f"{phase}.")}
        self.model.load_state_dict({key.removeprefix(f"{phase}."): value for key, value in saved.items()})
        about = start.figures["done"][phase]
        if about["memorised"]:
            self.memorised[phase] = about["memorised"]
        model = self.model.to(self.fabric.device).eval()
        return Fitted(model, about["records"], about["best_epoch"], Verdict(about["kept"]))

    def _keeper(self, phase: str) -> Keeper:
        if self.folder is None:
            return Keeper()
        done = {
            name: {
                "records": fitted.records,
                "best_epoch": fitted.best_epoch,
                "kept": fitted.kept.figures,
                "memorised": self.memorised.get(name),
            }
            for name, fitted in self.done.items()
        }
        return CheckpointKeeper(
            self._checkpoints(),
            self.stops,
            minutes=self.settings.checkpoint_minutes,
            about={"phase": phase, "done": done, "records": self.records},
            extra={
                f"{name}.{key}": value
                for name, fitted in self.done.items()
                for key, value in fitted.model.state_dict().items()
            },
            start=self.start if self.start and self.start.figures["phase"] == phase else None,
        )

    def _fit(
        self,
        model: Classifier,
        method: Method,
        phase: str,
        training: Part,
        validation: Part,
        epochs: int | None = None,
        watch: Watch | None = None,
        **offers: Any,
    ) -> Fitted:
        validate = self._validate(validation)

        def judged(model: Classifier, judge: Judge) -> Verdict:
            verdict = validate(model, judge)
            if watch is not None:
                verdict.figures["watched"] = watch(model)
            return verdict

        plan: Plan = getattr(self.settings, phase)
        if epochs is not None:
            plan = dataclasses.replace(plan, epochs=epochs)
        return fit(
            model,
            method,
            self._loader(
                training, Order(len(training.labels), plan.batch_size, self.settings.seed, rank(), world())
            ),
            plan,
            labels=training.labels,
            fabric=self.fabric,
            validate=judged,
            seed=self.settings.seed,
            progress=self.progress,
            **offers,
        )

    def _loader(self, part: Part, order: Order) -> Loader:
        return part.inputs.loader(part.labels, self.settings.image_size, order, workers=self.workers)

    def _scores(self, model: Classifier, part: Part) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C], each process having computed those of its rows."""
        mine = part if world() == 1 else part.select(own_rows(len(part.labels)))
        return gather_rows(scores(model, self._loader(mine, Order(len(mine.labels), 256))), len(part.labels))

    def _validate(self, part: Part) -> Validate:
        """Return how to judge a model without clean labels.

        A method may have its own way. Else the score decides: the mean AP over known labels. In a class that
        is known absent nowhere, known positives are ranked against all images where it is not known to be
        present (docs/training.md has what each way of choosing gave).
        """
        if not len(part.labels):
            return lambda *_: Verdict({"score": None})
        judged, blind = _assume_where_blind(part.labels)

        def validate(model: Classifier, judge: Judge) -> Verdict:
            scores = self._scores(model, part)
            ap = average_precision(scores, judged)
            known = ap[~blind]
            each = judge(scores, part.labels)
            figures = {
                "score": _mean(ap),
                "known_map": _mean(known),
                "known_scored": int(np.isfinite(known).sum()),
            }
            return Verdict(figures if each is None else {"judged": float(each.mean())} | figures, each)

        return validate

    def _finish(self, phase: str, fitted: Fitted, validation: Part) -> Outcome:
        model, kept = fitted.model, fitted.kept.figures
        thresholds = np.full(len(model.classes), 0.5)
        if len(validation.labels):
            probabilities = self._scores(model, validation)
            thresholds = best_thresholds(probabilities, _assume_where_blind(validation.labels)[0])
            if self.folder is not None and rank() == 0:
                Scored.collect([probabilities], validation.labels, thresholds).save(self.folder.path)
        if self.on_images and model.backbone is None:
            model = model.on_images(self.backbone).to(self.fabric.device).eval()
        trained = Trained(model, thresholds, self.settings.image_size, self.workers)
        summary = {
            "method": self.method.name,
            "parameters": methods.parameters_of(self.method),
            "protocol": self.settings.protocol,
            "classes": len(model.classes),
            "training_images": len(self.training.labels),
            "validation_images": len(self.validation.labels),
            "phase": phase,
            "epochs": len(fitted.records),
            "best_epoch": fitted.best_epoch,
            "validation_score": kept["score"],
            "validation_known_map": kept.get("known_map"),
            "validation_known_scored": kept.get("known_scored"),
            "seconds": round(time.perf_counter() - self.started, 2),
            "memorised": self.memorised,
        }
        if self.folder is not None:
            if rank() == 0:
                trained.save(self.folder.path)
                self._keep_annotation()
                self.folder.finish(summary)
            self._checkpoints().clear()
        return Outcome(trained, self.records, summary)

    def _keep_annotation(self) -> None:
        """Write how labels came to be annotated, where the method has found out."""
        tensors = self.state.tensors
        if self.folder is None or "frequency" not in tensors:
            return
        figures = (*tensors["frequency"].numpy(), *tensors["propensity"].numpy())
        Annotation(self.training.labels.classes, *figures).save(self.folder.path / "annotation.json")

    def _record(self, figures: Record) -> None:
        self.records.append(figures)
        if self.folder is not None and rank() == 0:
            self.folder.append(figures)
        self._say(epoch_line(figures))

    def _say(self, text: str) -> None:
        self.progress.note(text)
        if self.folder is not None and rank() == 0:
            self.folder.log(text)


def epoch_line(figures: Record) -> str:
    """Return an epoch's figures as a person reads them."""
    line = f"epoch {figures['epoch']}: loss {figures['loss']:.4f}"
    if figures["score"] is not None:
        line += f", validation {100 * figures['score']:.1f}"
    if figures.get("known_map") not in (None, figures["score"]):  # the same where no class is blind
        line += f", known-label mAP {100 * figures['known_map']:.1f} ({figures['known_scored']} classes)"
    return f"{line}, {figures['seconds']:.1f} s"


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _assume_where_blind(labels: Labels) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return dense labels in which unknown counts as absent for classes known absent nowhere, and which."""
    matrix = labels.dense()
    blind = labels.class_counts[1] == 0
    matrix[:, blind] = np.where(matrix[:, blind] == 0, -1, matrix[:, blind])
    return matrix, blind
