"""From labels and images to a trained model: the protocols, step by step."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric import Fabric

from tertium import methods
from tertium.config import Plan, Settings, settings_from
from tertium.data import check_pictures, load_features
from tertium.errors import InputError
from tertium.features import extract
from tertium.fit import Fitted, Record, Validate, fit, make_fabric
from tertium.labels import Labels
from tertium.methods import Method
from tertium.metrics import average_precision, best_thresholds
from tertium.model import Classifier, pretrained
from tertium.predict import Features, Images, Inputs, Trained, scores
from tertium.progress import Progress
from tertium.readers import read_labels
from tertium.runs import RunFolder
from tertium.splits import divide
from tertium.state import SampleState

TRAIN, VALIDATION = "train", "val"


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
    overwrite: bool = False,
    progress: Progress | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a classifier on images or ready features, of whose labels most may be unknown.

    ``labels`` is a file or `Labels`; ``images`` a folder or pixels [N, H, W, 3]; ``features`` a ``.npy`` file
    or an array [N, D]. ``method`` is a name or a `Method`; every other setting and every parameter of the
    method can be given by name (``epochs=5``, ``positive_weight=5``). With ``out`` a run folder is written,
    whose config also keeps what ``about`` says of the data.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(200, 8))
    >>> truth = np.where(features[:, :3] > 0, 1, -1)
    >>> outcome = train(Labels.from_dense(truth), features=features, epochs=5, lr=0.01)
    >>> outcome.trained.predict_proba(features=features).shape
    (200, 3)
    """
    progress = progress or Progress()
    chosen, settings = _resolve(method, {**(config or {}), **overrides})
    if out is not None:
        RunFolder.check_free(Path(out), overwrite=overwrite)
    everything = labels if isinstance(labels, Labels) else read_labels(labels)
    if (images is None) == (features is None):
        raise InputError("give either images or features")
    training, validation = _divide(everything, images, features, settings)
    chosen.check(training.labels)
    settings = settings.resolved(len(training.labels))
    # A method's own random numbers come from its generator; this covers layers such as dropout.
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        session = _Session(settings, chosen, training, validation, progress)
        session.prepare()
        if out is not None:
            session.folder = RunFolder.create(out, overwrite=overwrite)
            places = _places(labels=labels, images=images, features=features)
            data = {**places, **(about or {}), **_describe(training, validation)}
            session.folder.write_config(settings.to_dict(), data)
        return session.run()


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
    """Return how many rows an array of inputs has; a folder has names instead."""
    if isinstance(features, str | Path):
        return len(load_features(features))
    array = features if features is not None else images
    return None if isinstance(array, str | Path | None) else len(array)


def _places(**given: Any) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if isinstance(value, str | Path)}


def _describe(training: Part, validation: Part) -> dict[str, Any]:
    present, absent = training.labels.class_counts
    return {
        "training_images": len(training.labels),
        "validation_images": len(validation.labels),
        "validation": validation.labels.images.to_pylist(),
        "classes": {
            name: {"present": int(plus), "absent": int(minus)}
            for name, plus, minus in zip(training.labels.classes, present, absent, strict=True)
        },
    }


class _Session:
    """One training run: what its steps share."""

    def __init__(
        self, settings: Settings, method: Method, training: Part, validation: Part, progress: Progress
    ) -> None:
        self.settings, self.method, self.progress = settings, method, progress
        self.training, self.validation = training, validation
        self.fabric: Fabric = make_fabric(settings)
        self.folder: RunFolder | None = None
        self.state = SampleState(*training.labels.shape)
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
        if "head" not in self.settings.phases():
            for part in (self.training, self.validation):
                assert part.inputs.pictures is not None
                self.progress.start("checking images", len(part.inputs), "images")
                check_pictures(part.inputs.pictures, self.progress.advance)
            classes, boost = self.training.labels.classes, self.settings.boost
            self.model = Classifier(classes, self.backbone.width, self.backbone, boost)
        else:
            self.model = self._head_on_features()
        self.model.start_at(self.method.initial_rate(self.training.labels))

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

    def _predictions(self, method: Method) -> npt.NDArray[np.float32]:
        """Train a temporary linear head with another method; return what it says of the training images."""
        method.check(self.training.labels)
        model = self._head_on_features()
        model.start_at(method.initial_rate(self.training.labels))
        fitted = self._fit(model, method, "head", *self.head_parts)
        return scores(fitted.model, self._loader(self.head_parts[0], 256))

    def _featured(self, part: Part) -> Part:
        """Return the part with features, extracted where it has images."""
        if part.inputs.pictures is None:
            return part
        found = extract(
            self.backbone,
            part.inputs.pictures,
            self.settings.image_size,
            device=self.fabric.device,
            workers=self.workers,
            progress=self.progress,
        )
        return Part(part.labels, Inputs(None, found))

    def run(self) -> Outcome:
        """Go through the phases of the protocol and keep the best model."""
        if "head" not in self.settings.phases():
            return self._finish(
                "whole", self._phase("whole", self.training, self.validation), self.validation
            )
        head = self._phase("head", *self.head_parts)
        if "whole" not in self.settings.phases():
            return self._finish("head", head, self.head_parts[1])
        # A copy is trained: the frozen backbone is still what belongs to the head.
        self.model = head.model.on_images(copy.deepcopy(self.backbone), self.settings.boost)
        whole = self._phase("whole", self.training, self.validation)
        if head.score is not None and whole.score is not None and head.score > whole.score:
            self._say("the head alone scored higher than after training everything: it is kept")
            return self._finish("head", head, self.head_parts[1])
        return self._finish("whole", whole, self.validation)

    def _phase(self, phase: str, training: Part, validation: Part) -> Fitted:
        fitted = self._fit(
            self.model,
            self.method,
            phase,
            training,
            validation,
            state=self.state,
            features=self._features,
            predictions=self._predictions,
            record=lambda figures: self._record({"phase": phase} | figures),
        )
        self._say(f"best epoch of the {phase} phase: {fitted.best_epoch}")
        return fitted

    def _fit(
        self, model: Classifier, method: Method, phase: str, training: Part, validation: Part, **offers: Any
    ) -> Fitted:
        plan: Plan = getattr(self.settings, phase)
        return fit(
            model,
            method,
            self._loader(training, plan.batch_size),
            plan,
            labels=training.labels,
            fabric=self.fabric,
            validate=self._validate(validation),
            seed=self.settings.seed,
            progress=self.progress,
            **offers,
        )

    def _loader(self, part: Part, batch_size: int) -> Any:
        size, seed = self.settings.image_size, self.settings.seed
        return part.inputs.loader(part.labels, size, batch_size, workers=self.workers, seed=seed)

    def _validate(self, part: Part) -> Validate:
        """Return how to judge a model without clean labels.

        The score is the mean AP over known labels. In a class that is known absent nowhere, known positives
        are ranked against all images where it is not known to be present (docs/training.md has what each
        way of choosing gave).
        """
        if not len(part.labels):
            return lambda _: {"score": None}
        loader = self._loader(part, 256)
        judged, blind = _assume_where_blind(part.labels)

        def validate(model: Classifier) -> dict[str, float | None]:
            ap = average_precision(scores(model, loader), judged)
            known = ap[~blind]
            return {
                "score": _mean(ap),
                "known_map": _mean(known),
                "known_scored": int(np.isfinite(known).sum()),
            }

        return validate

    def _finish(self, phase: str, fitted: Fitted, validation: Part) -> Outcome:
        model = fitted.model
        thresholds = np.full(len(model.classes), 0.5)
        if len(validation.labels):
            probabilities = scores(model, self._loader(validation, 256))
            thresholds = best_thresholds(probabilities, _assume_where_blind(validation.labels)[0])
        if self.on_images and model.backbone is None:
            model = model.on_images(self.backbone).to(self.fabric.device).eval()
        trained = Trained(model, thresholds, self.settings.image_size, self.workers)
        best = fitted.records[fitted.best_epoch - 1]
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
            "validation_score": best["score"],
            "validation_known_map": best.get("known_map"),
            "validation_known_scored": best.get("known_scored"),
            "seconds": round(time.perf_counter() - self.started, 2),
        }
        if self.folder is not None:
            trained.save(self.folder.path)
            self.folder.finish(summary)
        return Outcome(trained, self.records, summary)

    def _record(self, figures: Record) -> None:
        self.records.append(figures)
        if self.folder is not None:
            self.folder.append(figures)
        self._say(epoch_line(figures))

    def _say(self, text: str) -> None:
        self.progress.note(text)
        if self.folder is not None:
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
