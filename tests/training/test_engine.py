"""A linear head is trained without autograd's and the optimizer's bookkeeping, and comes out the same."""

import copy

import pytest
import torch
from lightning.fabric import Fabric

from tertium.models.classifier import Classifier
from tertium.training.engine import Engine, Linear, engine_for

CLASSES = [str(number) for number in range(7)]


def optimizer_of(model):
    return torch.optim.AdamW(model.groups(0.01, 0.0, 1.0), fused=True)


def trained(kind, model, steps=5):
    """Take some steps, of which the last batch is smaller, and return the weights and the moments."""
    optimizer = optimizer_of(model)
    engine = kind(model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        rows = 3 if step == steps - 1 else 16
        inputs = torch.randn(rows, 40, generator=generator)
        target = torch.rand(rows, len(CLASSES), generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        logits = engine.forward(inputs)
        engine.backward(torch.nn.functional.binary_cross_entropy_with_logits(logits, target))
        engine.move()
    return model.state_dict(), optimizer.state_dict()["state"]


def test_a_linear_head_comes_out_bit_for_bit_as_torch_trains_it():
    model = Classifier(CLASSES, 40)
    model.center.normal_()
    model.scale.uniform_(0.5, 2)
    twin = copy.deepcopy(model)
    weights, moments = trained(Linear, model)
    expected, theirs = trained(Engine, twin)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert moments.keys() == theirs.keys()
    for number, held in theirs.items():
        assert all(torch.equal(moments[number][name], value) for name, value in held.items())
    assert not torch.equal(weights["head.weight"], torch.zeros(len(CLASSES), 40))


def test_the_batch_stays_as_it_is():
    model = Classifier(CLASSES, 40)
    model.center.fill_(1)
    inputs = torch.ones(4, 40)
    Linear(model, optimizer_of(model)).forward(inputs)
    assert torch.equal(inputs, torch.ones(4, 40))


@pytest.mark.parametrize(("precision", "kind"), [("32-true", "Linear"), ("bf16-mixed", "Wrapped")])
def test_the_engine_suits_the_precision(precision, kind):
    model = Classifier(CLASSES, 40)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    assert type(engine_for(fabric, model, optimizer_of(model))).__name__ == kind
