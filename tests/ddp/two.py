"""What one process and two are both given: started by torchrun, this trains every method in two of them.

Run as ``torchrun --nproc-per-node 2 -m tests.ddp.two FOLDER``.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tertium import methods
from tertium.config import HEAD, Settings
from tertium.data.batches import Batch, FeatureLoader, Order
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods.state import SampleState
from tertium.models.classifier import Classifier
from tertium.processes import rank, world
from tertium.training.choosing import Verdict
from tertium.training.fit import Offers, fit, make_fabric
from tertium.training.train import train
from tests.reference import CASES

COUNT, BATCH, SEED = 25, 8, 3  # an odd number: the processes' batches differ in size
PLAN = dataclasses.replace(HEAD, epochs=4).resolved(COUNT, BATCH, 1)


def problem():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(COUNT, 5)).astype(np.float32)
    truth = np.where(features[:, :4] + 0.3 * rng.normal(size=(COUNT, 4)) > 0, 1, -1)
    return features, truth, truth * (rng.random(truth.shape) < 0.6)


class Joined:
    """The batches of two processes, as one process would see them."""

    def __init__(self, features, labels):
        self.loaders = [FeatureLoader(features, labels, Order(COUNT, BATCH, SEED, r, 2)) for r in (0, 1)]

    def __len__(self):
        return len(self.loaders[0])

    def epoch(self, epoch, start=0):
        for one, other in zip(*(loader.epoch(epoch, start) for loader in self.loaders), strict=True):
            parts = [torch.cat([getattr(one, n), getattr(other, n)]) for n in ("inputs", "labels", "index")]
            yield Batch(*parts)


def train_one(name, parameters, fabric):
    """Return the weights, the loss of each epoch, and the method's state."""
    features, truth, partial = problem()
    method = methods.make(name, parameters)
    labels = Labels.from_dense(partial)
    try:
        method.check(labels)
    except InputError:
        labels = Labels.from_dense(truth)
    order = Order(COUNT, BATCH, SEED, rank(), world())
    loader = FeatureLoader(features, labels, order) if world() > 1 else Joined(features, labels)
    model = Classifier(labels.classes, 5)
    model.start_at(method.initial_rate(labels))
    state = SampleState(*labels.shape, rank=rank(), world=world())
    guesses = np.random.default_rng(8).random(labels.shape, dtype=np.float32)
    fitted = fit(
        model,
        method,
        loader,
        PLAN,
        labels=labels,
        fabric=fabric,
        validate=lambda *_: Verdict({"score": None}),
        seed=SEED,
        state=state,
        offers=Offers(lambda: features, lambda _: guesses, lambda *_: guesses),
    )
    losses = torch.tensor([record["loss"] for record in fitted.records])
    weights = {f"weight.{key}": value.clone() for key, value in fitted.model.state_dict().items()}
    return weights | {"losses": losses}, state


def train_from_random_weights() -> dict[str, torch.Tensor]:
    """Train a small network from nothing; its averaged weights start from a copy in each process."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, 32, 32, 3), dtype=np.uint8)
    labels = Labels.from_dense(np.where(rng.random((32, 2)) < 0.5, 1, -1))
    outcome = train(
        labels,
        images,
        method="negative",
        protocol="finetune",
        backbone="mobilenetv3_small_050",
        weights="random",
        image_size=32,
        workers=0,
        epochs=1,
        validation=0,
        device="cpu",
    )
    return {name: value.contiguous() for name, value in outcome.trained.model.state_dict().items()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric(Settings(device="cpu"))
    fabric.launch()
    for number, (name, parameters) in enumerate(CASES):
        found, state = train_one(name, parameters, fabric)
        place = folder / str(number)
        fabric.barrier()
        if rank() == 0:
            place.mkdir()
            save_file(found, place / "found.safetensors")
        fabric.barrier()
        state.save(place)
    save_file(train_from_random_weights(), folder / f"random{rank()}.safetensors")
    fabric.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
