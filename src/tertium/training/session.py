"""One training run, phase by phase: what its protocol runs through, and what is kept of it."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightning.fabric import Fabric
from torch import nn

from tertium import methods
from tertium.annotation.answered import Answered
from tertium.annotation.calibration import thresholds
from tertium.annotation.honest import Expected, expected_map
from tertium.annotation.record import Annotation
from tertium.annotation.together import Together
from tertium.config import Plan, Settings
from tertium.data.batches import Loader, Order, loader
from tertium.data.identity import Hashes, save_contents
from tertium.data.inputs import Inputs
from tertium.data.likeness import Taught
from tertium.data.pictures import check_pictures
from tertium.data.views import View
from tertium.distributed import gather_rows, own_rows
from tertium.errors import InputError
from tertium.files import make_folder
from tertium.labels import Labels
from tertium.labels.splits import set_of
from tertium.methods import Method
from tertium.methods.state import SampleState
from tertium.metrics.evaluation import average_precision, best_thresholds
from tertium.metrics.paired import contributions
from tertium.metrics.scored import Scored
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor, weights_of
from tertium.prediction.trained import Trained, scores
from tertium.processes import barrier, rank, world
from tertium.progress import Progress
from tertium.runs import RunData, RunFolder
from tertium.training.checkpoints import Checkpoint, Checkpoints
from tertium.training.choosing import Judge, Record, Verdict
from tertium.training.fit import Fitted, Keeper, Offers, Validate, fit
from tertium.training.memorisation import Memorisation, aligned
from tertium.training.stopping import CheckpointKeeper, Stops
from tertium.training.tracking import Trackers

Watch = Callable[[Classifier], dict[str, Any]]  # of a model after an epoch
CLEAN = "NOTE: the epoch is chosen on TRUE labels of the validation images, which no user has (select=clean)"
_FOLDS = 3  # of temporary heads that score images they have not seen
_ROWS = 4096  # of features that are checked at a time


@dataclass(frozen=True)
class Outcome:
    """The result of training: the model ready for use, the figures of each epoch, a summary."""

    trained: Trained
    records: list[Record]
    summary: dict[str, Any]
    trackers: Trackers = field(default_factory=Trackers)  # that were told, if any


@dataclass(frozen=True)
class Part:
    """Labels and the inputs that belong to them, in the same order."""

    labels: Labels
    inputs: Inputs
    contents: Hashes  # by which copies of an input are found
    before: Labels | None = None  # the labels before anybody was asked, if answers are among them

    @property
    def unasked(self) -> Labels:
        """The labels without answers: how labels were annotated shows in these."""
        return self.labels if self.before is None else self.before

    def select(self, rows: npt.NDArray[np.int64]) -> Part:
        """Return these rows only."""
        before = None if self.before is None else self.before[rows]
        return Part(self.labels[rows], self.inputs.select(rows), self.contents[rows], before)

    def with_answers(self, answers: Labels | None) -> Part:
        """Return the part with people's answers among its labels."""
        if answers is None:
            return self
        found = Answered.among(self.labels, answers)
        return dataclasses.replace(
            self, labels=found.put_into(self.labels), before=found.taken_out_of(self.labels)
        )


class Session:
    """One training run: what its steps share."""

    def __init__(
        self,
        settings: Settings,
        method: Method,
        training: Part,
        validation: Part,
        progress: Progress,
        fabric: Fabric,
        *,
        truth: Labels | None = None,
        watch: Watch | None = None,
        expected_map: bool = True,
        net: nn.Module | None = None,
        taught: Taught | None = None,
        near: Sequence[tuple[str, str, float]] = (),
    ) -> None:
        """What is named is for the record only and does not reach the training, but for ``net``.

        That is the backbone, if no name stands for it.
        """
        self.net = net
        self.settings, self.method, self.progress, self.fabric = settings, method, progress, fabric
        self.training, self.validation = training, validation
        self.folder: RunFolder | None = None
        self.start: Checkpoint | None = None  # where to go on
        self.done: dict[str, Fitted] = {}  # phases that are over
        self.truth, self.watch, self.expected_map = truth, watch, expected_map
        self.taught, self.near = taught, near
        self.trackers = Trackers()
        self.held = ExitStack()  # the lock on the folder
        self.memorised: dict[str, Any] = {}  # what was, by phase
        self.annotation: Annotation | None = None  # of the training labels, if the method models it
        self.together: Together | None = None  # how those go together, likewise
        self.stops = Stops()
        self.head_parts: tuple[Part, ...] = ()
        self.started = time.perf_counter()
        self.records: list[Record] = []
        self.on_images = training.inputs.pictures is not None
        if not self.on_images and settings.protocol != "linear":
            raise InputError(f'the protocol "{settings.protocol}" needs images, not features')
        self.clean = self._clean_labels()
        spare = max((os.cpu_count() or 1) - 1, 0)
        self.workers = spare if settings.workers is None else settings.workers

    def _clean_labels(self) -> npt.NDArray[np.int8] | None:
        """Return the true labels of the validation images, if they are to choose the epoch."""
        if self.settings.select != "clean":
            return None
        if self.truth is None:
            raise InputError("select=clean chooses the epoch on true labels: give them as truth (--truth)")
        if not len(self.validation.labels):
            raise InputError("select=clean needs validation images: validation must be above 0")
        return aligned(self.validation.labels, self.truth).dense()

    def prepare(self) -> None:
        """Do what may show that the inputs are at fault, before anything is written."""
        if self.on_images:
            self._load_backbone()
        useless = self.settings.weights == "random" or not self.settings.standardise
        if useless and "head" not in self.settings.phases():
            self._check_images()  # features of random weights say nothing
            self.model = self._new_head(self.backbone.width)
            return
        self.model = self._head_on_features()
        if "head" not in self.settings.phases():
            self.head_parts = ()  # a method that wants the features gets them anew, from the cache

    def _load_backbone(self) -> None:
        """Get the network; what its name stands for now is what a resumed run takes too."""
        chosen = self.settings
        self.backbone = pretrained(
            self.net or chosen.backbone, chosen.weights, chosen.image_size, chosen.fit, chosen.revision
        )
        view, source = self.backbone.view, self.backbone.recipe.source
        self.settings = dataclasses.replace(
            chosen, image_size=view.size, revision=source.get("revision", chosen.revision)
        )

    def _check_images(self) -> None:
        for part in (self.training, self.validation):
            assert part.inputs.pictures is not None
            mine = part.inputs.pictures.select(own_rows(len(part.inputs)))
            self.progress.start("checking images", len(mine), "images")
            check_pictures(mine, self.progress.advance)

    def create_folder(
        self, out: Path, data: RunData, answers: Labels | None = None, *, overwrite: bool
    ) -> None:
        """Begin a run folder, which all processes must see; ``answers`` are among the labels."""
        if rank() == 0:
            make_folder(out)
            self.held.enter_context(RunFolder(out).locked())
            folder = RunFolder.create(out, overwrite=overwrite)
            if answers is not None:  # first: with its config a run can be resumed
                answers.save(folder.learned_file)
            folder.write_config(self.settings.to_dict(), data)
        barrier()
        self.folder = RunFolder(out)

    def take_up(self, folder: RunFolder) -> None:
        """Find the checkpoint of a run to go on from, and set its record back to that."""
        if rank() == 0:
            self.held.enter_context(folder.locked())
        self.folder = folder
        self.start = self._checkpoints().latest(self._say)
        if self.start is None:
            self._say("there is no checkpoint: the run begins again")
        elif self.start.figures.get("run") != folder.id():
            raise InputError(f"{self.start.folder}: is a checkpoint of another run; remove it")
        self.records = self.start.figures["records"] if self.start else []
        if rank() == 0:
            self.folder.rewrite(self.records)

    def close(self) -> None:
        """Let go of the folder; a run that failed before its first epoch gives way to the one it replaces."""
        if self.folder is not None and rank() == 0 and not self.records and not self.stops.number:
            self.folder.restore()
        self.held.close()
        self.done.clear()  # which leads back to the session: features would stay until a collection

    def _checkpoints(self) -> Checkpoints:
        assert self.folder is not None
        return Checkpoints(self.folder.checkpoints)

    @cached_property
    def state(self) -> SampleState:
        """The method's tables, below the run folder where they are large."""
        folder = None if self.folder is None else self.folder.tables
        state = SampleState(*self.training.labels.shape, rank=rank(), world=world(), folder=folder)
        if self.start is not None:
            state.load(self.start.folder)
        return state

    def _head_on_features(self) -> Classifier:
        features = self._features()
        return self._new_head(features.shape[1], features)

    def _new_head(self, width: int, features: npt.NDArray[Any] | None = None) -> Classifier:
        """Return a head that sees features as these are standardised."""
        model = Classifier(self.training.labels.classes, width)
        if self.settings.init == "torch":
            model.start_at_random()
        if features is not None and self.settings.standardise:
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
        fitted = self._fit(model, method, "head", training, validation, new=self._at_rest)
        return self._scores(fitted.model, self.head_parts[0])

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        """Train temporary heads, each on two thirds of the images; return what they say of the rest.

        Their scores tell how labels were annotated, so they do not learn from answers either: most of these
        are about rare classes and present, and the estimate would move with them (docs/auto.md).
        """
        self._features()
        self._say(f"{_FOLDS} temporary heads, each to score the images that it does not train on")
        part = dataclasses.replace(self.head_parts[0], labels=self.head_parts[0].unasked)
        fold = np.random.default_rng(self.settings.seed).permutation(len(part.labels)) % _FOLDS
        found = np.empty(part.labels.shape, dtype=np.float32)
        for number in range(_FOLDS):
            seen, unseen = (
                part.select(np.flatnonzero(fold != number)),
                part.select(np.flatnonzero(fold == number)),
            )
            assert seen.inputs.features is not None
            model = self._new_head(seen.inputs.features.shape[1], seen.inputs.features)
            nobody = seen.select(np.arange(0))
            fitted = self._fit(model, method, "head", seen, nobody, epochs=epochs, new=self._at_rest)
            found[fold == number] = self._scores(fitted.model, unseen)
        return found

    @property
    def _at_rest(self) -> bool:
        """Whether a new head starts where its method says."""
        return self.settings.init == "rest"

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(
            self.backbone,
            device=self.fabric.device,
            workers=self.workers,
            progress=self.progress,
        )

    def _featured(self, part: Part) -> Part:
        """Return the part with features, extracted where it has images."""
        if part.inputs.pictures is None:
            _check_finite(part)
            return part
        mine = self._extractor(part.inputs.pictures.select(own_rows(len(part.inputs))))
        features = gather_rows(mine, len(part.inputs))
        return dataclasses.replace(part, inputs=part.inputs.with_features(features))

    def run(self) -> Outcome:
        """Go through the phases of the protocol and keep the best model."""
        if self.folder is not None and rank() == 0 and self.settings.trackers():
            # Not `self._say`: the outcome keeps trackers, and must not keep the session and its features.
            say = partial(_tell, self.progress, self.folder)
            self.trackers = Trackers(self.settings.trackers(), self.folder.tracking, say)
            self.trackers.begin(self.settings.to_dict())
        if self.clean is not None:
            self._say(CLEAN)
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
        before = self._validate(self.head_parts[1], by_image=True)(head.model, whole.judge)
        gain = whole.kept.gain(before)
        # Few known labels judge both: as among epochs, what was trained longer is kept unless clearly worse.
        if gain is not None and gain.mean < -gain.error:
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
        heeded = nullcontext() if self.folder is None else self.stops.heeded(self._say, fresh=not self.done)
        with heeded:
            fitted = self._fit(
                self.model,
                self.method,
                phase,
                training,
                validation,
                state=self.state,
                offers=Offers(self._features, self.predictions, self.held_out),
                new=self._at_rest and not self.done,
                record=lambda figures: self._record({"phase": phase} | figures),
                memory=memory,
                keeper=self._keeper(phase),
                watch=self.watch,
            )
        if memory is not None:
            self.memorised[phase] = memory.summary()
        self._say(f"best epoch of the {phase} phase: {fitted.best_epoch}")
        self.done[phase], self.annotation, self.together = fitted, fitted.annotation, fitted.together
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
            about={"run": self.folder.id(), "phase": phase, "done": done, "records": self.records},
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
        validate = self._validate(validation, by_image=phase == "whole")

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
                training,
                Order(len(training.labels), plan.batch_size, self.settings.seed, rank(), world()),
                keep=True,
            ),
            plan,
            labels=training.labels,
            before=training.before,
            fabric=self.fabric,
            validate=judged,
            seed=self.settings.seed,
            progress=self.progress,
            **offers,
        )

    def _loader(self, part: Part, order: Order, *, keep: bool = False) -> Loader:
        view = self.backbone.view if self.on_images else View(0)
        return loader(part.inputs, part.labels, view, order, workers=self.workers, keep=keep)

    def _scored(self, part: Part, *, keep: bool = False) -> Loader:
        """Return the batches of this process in row order, to be scored; kept if that is often."""
        mine = part if world() == 1 else part.select(own_rows(len(part.labels)))
        return self._loader(mine, Order(len(mine.labels), 256), keep=keep)

    def _scores(self, model: Classifier, part: Part) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C], each process having computed those of its rows."""
        return gather_rows(scores(model, self._scored(part)), len(part.labels))

    def _validate(self, part: Part, *, by_image: bool = False) -> Validate:
        """Return how to judge a model without clean labels, unless the settings say otherwise.

        A method may have its own way. Else the score decides: the mean AP over known labels, with
        ``by_image`` as what each image contributes to it. In a class that is known absent nowhere, known
        positives are ranked against all images where it is not known to be present (docs/training.md has what
        each way of choosing gave). With ``select=clean`` the mean AP over true labels decides, with
        ``select=last`` nothing.
        """
        if not len(part.labels):
            return lambda *_: Verdict({"score": None})
        judged, blind = _assume_where_blind(part.labels)
        batches = self._scored(part, keep=True)

        def validate(model: Classifier, judge: Judge) -> Verdict:
            found = gather_rows(scores(model, batches), len(part.labels))
            ap = average_precision(found, judged)
            known = ap[~blind]
            figures = {
                "score": _mean(ap),
                "known_map": _mean(known),
                "known_scored": int(np.isfinite(known).sum()),
            }
            if self.settings.select == "last":
                return Verdict(figures | {"decides": None})
            if self.clean is not None:
                return Verdict(figures | {"decides": _mean(average_precision(found, self.clean))})
            each = judge(found, part.labels)
            if each is None and by_image:
                return Verdict(figures, contributions(found, judged))
            return Verdict(figures if each is None else {"judged": float(each.mean())} | figures, each)

        return validate

    def _finish(self, phase: str, fitted: Fitted, validation: Part) -> Outcome:
        model = fitted.model
        cuts, expected = np.full(len(model.classes), 0.5), None
        if len(validation.labels):
            probabilities = self._scores(model, validation)
            cuts = self._thresholds(probabilities, validation.labels)
            if self.expected_map:
                taught = self.training.labels.class_counts[0] > 0
                # Answers are close calls: which labels are known would no longer be by annotation alone.
                expected = expected_map(probabilities, validation.unasked, self.annotation, taught)
            if self.folder is not None and rank() == 0:
                Scored.collect([probabilities], validation.labels, cuts).save(self.folder.path)
        frozen = None
        if self.on_images and model.backbone is None:
            frozen = weights_of(self.backbone)
            model = model.on_images(self.backbone).to(self.fabric.device).eval()
        trained = Trained(model, cuts, self.workers, frozen)
        summary = self._summary(phase, fitted, expected)
        if self.folder is not None:
            if rank() == 0:
                self._keep(self.folder, phase, trained, summary)
            self._checkpoints().clear()
        return Outcome(trained, self.records, summary, self.trackers)

    def _summary(self, phase: str, fitted: Fitted, expected: Expected | None) -> dict[str, Any]:
        """Return what summary.json says."""
        kept = fitted.kept.figures
        return {
            "method": self.method.name,
            "parameters": methods.parameters_of(self.method),
            "protocol": self.settings.protocol,
            "classes": len(fitted.model.classes),
            "training_images": len(self.training.labels),
            "validation_images": len(self.validation.labels),
            "validation_set": set_of(self.validation.labels.images.to_pylist()),  # which images these are
            "near_copies": [
                {"validation": image, "training": like, "likeness": round(likeness, 4)}
                for image, like, likeness in self.near
            ],
            "phase": phase,
            "epochs": len(fitted.records),
            "best_epoch": fitted.best_epoch,
            "expected_map": None if expected is None else dataclasses.asdict(expected),
            "select": self.settings.select,
            "validation_clean_map": kept.get("decides"),
            "validation_score": kept["score"],
            "validation_known_map": kept.get("known_map"),
            "validation_known_scored": kept.get("known_scored"),
            "seconds": round(time.perf_counter() - self.started, 2),
            "memorised": self.memorised,
        }

    def _keep(self, folder: RunFolder, phase: str, trained: Trained, summary: dict[str, Any]) -> None:
        """Write what was learned, the summary last: with it the run has ended."""
        trained.save(folder.path)
        save_contents(folder.seen_file, self.training.contents, self.validation.contents, self.taught)
        if self.annotation is not None:
            self.annotation.save(folder.annotation_file)
        if self.together is not None and phase == "head":  # it is about the frozen features
            self.together.save(folder)
        folder.finish(summary)
        self.trackers.end(summary)

    def _thresholds(self, probabilities: npt.NDArray[np.float32], labels: Labels) -> npt.NDArray[np.float64]:
        """Choose by all labels if the method knows how they were annotated, else by known ones.

        Answers are known labels here, as in the loss.
        """
        if self.annotation is not None:
            return thresholds(probabilities, labels, self.annotation.present, self.annotation.absent)
        return best_thresholds(probabilities, _assume_where_blind(labels)[0])

    def _record(self, figures: Record) -> None:
        self.records.append(figures)
        if self.folder is not None and rank() == 0:
            self.folder.append(figures)
            self.folder.settle()  # it has begun well
            self.trackers.epoch(str(figures.get("phase", "head")), figures)
        self._say(epoch_line(figures))

    def _say(self, text: str) -> None:
        _tell(self.progress, self.folder, text)


def _tell(progress: Progress, folder: RunFolder | None, text: str) -> None:
    """Say something to whoever watches, and to the log of the run."""
    progress.note(text)
    if folder is not None and rank() == 0:
        folder.log(text)


def epoch_line(figures: Record) -> str:
    """Return an epoch's figures as a person reads them."""
    line = f"epoch {figures['epoch']}: loss {figures['loss']:.4f}"
    if figures["score"] is not None:
        line += f", validation {100 * figures['score']:.1f}"
    if figures.get("decides") is not None:
        line += f", TRUE labels {100 * figures['decides']:.1f}"
    if "judged" in figures:  # what chooses the epoch, if the method has it
        line += f", judged {figures['judged']:.4f}"
    if figures.get("known_map") not in (None, figures["score"]):  # the same where no class is blind
        line += f", known-label mAP {100 * figures['known_map']:.1f} ({figures['known_scored']} classes)"
    return f"{line}, {figures['seconds']:.1f} s"


def _check_finite(part: Part) -> None:
    """Refuse features that are not numbers, by the image they are of."""
    features = part.inputs.features
    assert features is not None
    for start in range(0, len(features), _ROWS):
        good = np.isfinite(features[start : start + _ROWS]).all(axis=1)
        if not good.all():
            image = part.labels.images[start + int(good.argmin())].as_py()
            raise InputError(f'the features of image "{image}" hold a value that is not a finite number')


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _assume_where_blind(labels: Labels) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return dense labels in which unknown counts as absent for classes known absent nowhere, and which."""
    matrix = labels.dense()
    blind = labels.class_counts[1] == 0
    matrix[:, blind] = np.where(matrix[:, blind] == 0, -1, matrix[:, blind])
    return matrix, blind
