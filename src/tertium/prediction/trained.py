"""A trained model: probabilities for new images or features, and how good they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tertium.data.batches import Loader, Order, loader
from tertium.data.inputs import BATCH, Features, Images, Inputs, open_fitting
from tertium.data.pictures import pixel_batches
from tertium.data.views import View
from tertium.errors import InputError
from tertium.models.classifier import Classifier, load_model, save_model
from tertium.models.features import Extractor, weights_of
from tertium.prediction.predictor import Predictor
from tertium.runs import RunFolder
from tertium.threads import suited_to

_IMAGES = 16  # that go through a network at once on the CPU: quicker than more, with a quarter of the memory

_UNIT = "\0unit "  # no class has such a name


def stream(model: Classifier, loader: Loader) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the probabilities [B, C] of one batch after the other, in the order of the rows."""
    return _probabilities(model, (batch.inputs for batch in loader.epoch(0)))


def _probabilities(model: Classifier, batches: Iterable[Tensor]) -> Iterator[npt.NDArray[np.float32]]:
    model.eval()
    device = model.head.weight.device
    few = model.backbone is not None and device.type == "cpu"
    product = BATCH * model.width * len(model.classes)
    for inputs in batches:
        with torch.inference_mode(), nullcontext() if few else suited_to(product):
            parts = torch.split(inputs.to(device), _IMAGES if few else BATCH)
            yield torch.cat([model(part) for part in parts]).sigmoid().cpu().numpy()


def scores(model: Classifier, loader: Loader) -> npt.NDArray[np.float32]:
    """Return the probabilities [N, C] of all rows."""
    blocks = list(stream(model, loader))
    return np.concatenate(blocks) if blocks else np.empty((0, len(model.classes)), dtype=np.float32)


@dataclass(frozen=True)
class Trained(Predictor):
    """A trained model, with everything needed to use it.

    If its backbone was not trained, its features of an image are those that training saw: they come from the
    cache, and go there if they are new (docs/features.md).
    """

    model: Classifier
    thresholds: npt.NDArray[np.float64]  # [C] above which a class is called present
    workers: int = 0
    frozen: str | None = None  # checksum of the backbone, if it was not trained
    cached: bool = True  # whether features of a backbone that was not trained are kept for the next time

    @property
    def view(self) -> View:
        """How it sees an image; of features it sees none."""
        return View(0) if self.model.backbone is None else self.model.backbone.view

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self.model.classes

    @classmethod
    def load(
        cls, folder: str | Path, workers: int = 0, device: str = "cpu", backbone: nn.Module | None = None
    ) -> Trained:
        """Read the model of a run folder onto a device. Nothing in the folder is executed.

        ``backbone`` is the network again, if training was given one that no name stands for.
        """
        folder = Path(folder)
        described = RunFolder(folder).model_file
        if not described.is_file():
            raise InputError(f"{folder}: no trained model in it (there is no {described.name})")
        model, about = load_model(folder, backbone)
        return cls(model.to(device), np.array(about["thresholds"]), workers, about.get("frozen"))

    def save(self, folder: str | Path) -> None:
        """Write the model as safetensors and JSON."""
        save_model(self.model, Path(folder), self.thresholds, self.frozen)

    def with_units(self, weight: npt.NDArray[np.float32]) -> Trained:
        """Return a model that says more of the same features: further units [U, D], after the classes."""
        names = [f"{_UNIT}{number}" for number in range(len(weight))]
        model = Classifier((*self.classes, *names), self.model.width, self.model.backbone)
        state = self.model.state_dict()
        more = torch.from_numpy(weight).to(state["head.weight"])
        state["head.weight"] = torch.cat([state["head.weight"], more])
        state["head.bias"] = torch.cat([state["head.bias"], more.new_zeros(len(more))])
        model.load_state_dict(state)
        cuts = np.concatenate([self.thresholds, np.ones(len(weight))])
        return replace(self, model=model.to(more.device).eval(), thresholds=cuts)

    def inputs(self, images: Images | None, features: Features | None, names: Sequence[str] | None) -> Inputs:
        """Find inputs and check that they fit the model; without names, take all that there are."""
        pictures = self.model.backbone is not None
        return open_fitting(images, features, names, width=self.model.width, pictures=pictures)

    def blocks(self, inputs: Inputs) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the probabilities [B, C] of a few inputs, batch by batch."""
        if inputs.pictures is None or self._frozen is None:
            yield from self._streamed(self.model, inputs)
            return
        extractor, head = self._frozen
        done = 0
        for rows in extractor.blocks(inputs.pictures):
            names = inputs.names[done : done + len(rows)]
            yield from self._streamed(head, Inputs(names, None, rows))
            done += len(rows)

    def _streamed(self, model: Classifier, inputs: Inputs) -> Iterator[npt.NDArray[np.float32]]:
        if inputs.pictures is not None and not self.workers:
            batches = pixel_batches(inputs.pictures, self.view, BATCH, BATCH)  # while the model runs
            planes = (torch.from_numpy(np.ascontiguousarray(each.transpose(0, 3, 1, 2))) for each in batches)
            return _probabilities(model, planes)
        order = Order(len(inputs), BATCH)
        return stream(model, loader(inputs, None, self.view, order, workers=self.workers))

    @cached_property
    def _frozen(self) -> tuple[Extractor, Classifier] | None:
        """What gives features and the head on them, if the backbone is exactly the one training froze."""
        backbone = self.model.backbone
        if backbone is None or self.frozen is None or weights_of(backbone) != self.frozen:
            return None
        device = self.model.head.weight.device
        return Extractor(backbone, device=device, cached=self.cached), self.model.on_features()
