"""What a method is: its hyper-parameters, its loss terms, and what it may access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from tertium.annotation.frequencies import Frequencies
from tertium.annotation.record import Annotation
from tertium.data.batches import Batch
from tertium.labels import Labels
from tertium.methods.state import SampleState

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from tertium.annotation.together import Together
    from tertium.models.classifier import Classifier


class Run(Protocol):
    """All that a method may touch while it trains."""

    epoch: int  # from 1
    epochs: int
    lr: float  # of the head, at this step
    whole: bool  # whether the backbone is trained too
    labels: Labels  # of the training images, in the order of ``Batch.index``; answers of people too
    state: SampleState  # tables with a row for each training image, and named tensors
    scratch: dict[str, Tensor]  # what `terms` leaves for `after_step`; empty at each step, never saved
    rng: Generator
    frequencies: Frequencies | None  # how labels were annotated, if the caller knows

    @property
    def unasked(self) -> Labels:
        """The labels without what people were asked about: how labels were annotated shows in these."""
        ...

    def features(self) -> npt.NDArray[Any]:
        """Return frozen features [N, D] of the training images."""
        ...

    def predictions(self, method: Method) -> npt.NDArray[np.float32]:
        """Return the probabilities [N, C] that a temporary model, trained with another method, gives."""
        ...

    def held_out(self, method: Method, epochs: int) -> npt.NDArray[np.float32]:
        """Return probabilities [N, C], each from a temporary model that has not trained on that image.

        The models learn from `unasked` labels alone.
        """
        ...

    def note(self, text: str) -> None:
        """Say something that the user should know."""
        ...

    def all_mean(self, value: Tensor) -> Tensor:
        """Return the mean over all processes; gradients flow through it."""
        ...


def observed_rate(labels: Labels) -> npt.NDArray[np.float64]:
    """Return the share of images in which each class is known to be present."""
    present, _ = labels.class_counts
    rate: npt.NDArray[np.float64] = (present + 0.5) / (len(labels) + 1)
    return rate


@dataclass(frozen=True)
class Method:
    """How to learn from labels, some of which are unknown.

    The fields of a subclass are its hyper-parameters: the command line, ``tertium methods`` and the saved
    config come from them. The first line of its docstring is what ``tertium methods`` shows.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Give aliases to the class that lists them alone: a method made of another is not that other."""
        super().__init_subclass__()
        cls.aliases = vars(cls).get("aliases", ())

    @property
    def alone(self) -> str:
        """Why one process and several learn differently from the same batches; empty if they do not."""
        return ""

    @property
    def remembers(self) -> bool:
        """Whether `after_step` has anything to write back."""
        return type(self).after_step is not Method.after_step

    @property
    def models_annotation(self) -> bool:
        """Whether `annotation` has anything to say."""
        return type(self).annotation is not Method.annotation

    def check(self, labels: Labels) -> None:
        """Raise `InputError` if nothing can be learnt from these training labels.

        A method that models annotation gets them without what people were asked about (`Run.unasked`).
        """

    def initial_rate(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Return per class the share of positives at which training starts: the head's bias is its logit.

        It should be the loss's own answer for a model that ignores the image, since a bias that starts far
        from it does not get there at the usual learning rates. Here it is found from `terms`
        (`tertium.methods.starts.rest`). A method that prepares something, or whose labels do not enter one
        by one, should say itself where it starts; without that it is at the observed rate.
        """
        from tertium.methods.starts import rest

        return rest(self, labels) if type(self).prepare is Method.prepare else observed_rate(labels)

    def prepare(self, run: Run) -> None:
        """Do what is needed once, before the first epoch."""

    def starting_rate(self, run: Run) -> npt.NDArray[np.float64]:
        """Return the rates at which a new head starts, once the run is prepared: `initial_rate`."""
        return self.initial_rate(run.labels)

    def before_epoch(self, run: Run) -> None:
        """Do what is needed before each epoch."""

    def terms(self, logits: Tensor, batch: Batch, run: Run) -> dict[str, Tensor]:
        """Return named scalars [] whose sum is minimised, from float32 logits [B, C]."""
        raise NotImplementedError(f"{type(self).__name__} must define terms")

    def corrected(self, logits: Tensor, batch: Batch, run: Run) -> Tensor | None:
        """Return the mask [B, C] of unknown labels that this step treats otherwise than the method began.

        They are rejected, flipped or given a pseudo-label; what is known is never among them. None if the
        method alters nothing here. Asked before `after_step`, without gradient, and only by analyses: it
        must leave the run as it is.
        """
        return None

    def after_step(self, logits: Tensor, batch: Batch, run: Run) -> None:
        """Write back what the step taught; runs without gradient."""

    def annotation(self, run: Run) -> Annotation | None:
        """Return how the training labels were annotated, if this method models it.

        A run keeps it as ``annotation.json`` and chooses its thresholds by it.
        """
        return None

    def together(self, run: Run) -> Together | None:
        """Return how labels go together beyond what the image shows, if this method has found that out.

        A run keeps it as ``together.json`` and ``together.safetensors``; `tertium complete` uses it.
        """
        return None

    def judge(
        self, scores: npt.NDArray[np.float32], labels: Labels, run: Run
    ) -> npt.NDArray[np.float64] | None:
        """Return how well probabilities [N, C] of held-out images explain the labels of each [N].

        More is better; the mean, as far as its error lets it, decides which epoch is kept. None leaves that
        to the mean AP on known labels.
        """
        return None

    def finish(self, model: Classifier, run: Run) -> Iterator[str]:
        """Change the model of the best epoch, and yield whenever it is worth judging.

        What is yielded is said if the change is kept, unless it is empty. The first change is undone if it is
        judged clearly worse than the best epoch; any further one unless it is clearly better than what was
        kept before it.
        """
        return iter(())


Parameters = dict[str, Any]
