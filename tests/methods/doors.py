"""Two ways to a method, for the battery: as `tertium.train` drives it, and through `tertium.Loss`."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tertium.data.batches import Batch
from tertium.labels import Labels
from tertium.losses import Loss
from tertium.methods.state import SampleState


def labels_of(rng, rows, columns, known=0.4):
    values = np.where(rng.random((rows, columns)) < 0.3, 1, -1)
    return torch.from_numpy((values * (rng.random((rows, columns)) < known)).astype(np.int8))


def named(labels, names=None):
    images, classes = names or (
        [f"i{n}" for n in range(len(labels))],
        [f"c{n}" for n in range(labels.shape[1])],
    )
    return Labels.from_dense(labels.numpy(), images=images, classes=classes)


def offered(labels, features=None, predictions=None):
    """What a method may ask for: the same whoever asks."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(len(labels), 6)) if features is None else features
    return features, rng.random(labels.shape, dtype=np.float32) if predictions is None else predictions


def make_run(labels, *, seed=0, epoch=2, features=None, predictions=None, names=None):
    """A small run whose training images are those of one batch."""
    features, predictions = offered(labels, features, predictions)
    known = named(labels, names)
    return SimpleNamespace(
        epoch=epoch,
        epochs=10,
        lr=0.1,
        whole=False,
        labels=known,
        unasked=known,
        state=SampleState(*known.shape),
        scratch={},
        frequencies=None,
        rng=torch.Generator().manual_seed(seed),
        features=lambda: features,
        predictions=lambda method: predictions,
        held_out=lambda method, epochs: predictions,
        note=lambda text: None,
        all_mean=lambda value: value,
    )


def started(method, run):
    method.prepare(run)
    method.before_epoch(run)
    return run


def batch_of(logits, labels):
    return Batch(torch.empty(len(logits), 0), labels, torch.arange(len(logits)))


def step(method, logits, labels, run):
    """Return the loss of one step on a run that has started, and its batch."""
    batch = batch_of(logits, labels)
    terms = method.terms(logits, batch, run)
    assert all(value.shape == () for value in terms.values())
    return sum(terms.values()), batch


class ByTrain:
    """A method as `tertium.training.fit` calls it."""

    def __init__(self, method, labels, *, lr=0.1, **about):
        self.method, self.labels = method, labels
        self.run = started(method, make_run(labels, **about))
        self.run.lr = lr

    def loss(self, logits):
        return step(self.method, logits, self.labels, self.run)[0]

    def write_back(self, logits):
        with torch.no_grad():
            self.method.after_step(logits, batch_of(logits, self.labels), self.run)
        self.run.scratch.clear()

    def go_to(self, epoch):
        self.run.epoch = epoch
        self.method.before_epoch(self.run)

    def tables(self):
        return set(self.run.state.tables)

    def save(self, folder):
        self.run.state.save(folder)
        save_file({"rng": self.run.rng.get_state()}, folder / "rng.safetensors")

    def load(self, folder):
        self.run.state.load(folder)
        self.run.rng.set_state(load_file(folder / "rng.safetensors")["rng"])
        self.method.prepare(self.run)  # which a run does after loading


class ByLoss:
    """The same through `tertium.Loss`."""

    def __init__(
        self, method, labels, *, lr=0.1, seed=0, epoch=2, features=None, predictions=None, names=None
    ):
        features, predictions = offered(labels, features, predictions)
        # A batch of one kind is a training set here, which a method may refuse: that is tested apart.
        with mock.patch.object(type(method), "check"):
            self.module = Loss(
                method,
                labels=named(labels, names),
                epochs=10,
                seed=seed,
                features=features,
                predictions=lambda: predictions,
            )
        self.labels, self.lr, self.epoch = labels, lr, 0
        self.go_to(epoch)

    def loss(self, logits):
        value = self.module(logits, self.labels, torch.arange(len(logits)))
        assert all(term.shape == () and not term.requires_grad for term in self.module.terms.values())
        assert value.shape == ()
        return value

    def write_back(self, logits):
        self.module.step(lr=self.lr)

    def go_to(self, epoch):
        while self.epoch < epoch:
            self.module.epoch()
            self.epoch += 1

    def tables(self):
        return {key for key in self.module.state_dict() if key.startswith("table.")}

    def save(self, folder):
        save_file(self.module.state_dict(), folder / "loss.safetensors")

    def load(self, folder):
        self.module.load_state_dict(load_file(folder / "loss.safetensors"))


DOORS = [ByTrain, ByLoss]
