"""How a step runs forward and backward, and moves the weights."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from tertium.models.classifier import Classifier


class Engine:
    """Forward, backward and a move of the weights, as torch does them on one device."""

    def __init__(self, model: Classifier, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        logits: Tensor = self._model(inputs)
        return logits

    def backward(self, loss: Tensor) -> None:
        """Give every weight its gradient."""
        torch.autograd.backward(loss)

    def move(self) -> None:
        """Move the weights against their gradients, and forget these."""
        self._optimizer.step()
        self._optimizer.zero_grad()


class Wrapped(Engine):
    """The same in several processes, or in bfloat16."""

    def __init__(self, model: Classifier, optimizer: torch.optim.Optimizer, fabric: Fabric) -> None:
        super().__init__(model, optimizer)
        self._module: Any = fabric.setup(model, optimizer)[0]
        self._fabric = fabric

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        logits: Tensor = self._module(inputs)
        return logits

    def backward(self, loss: Tensor) -> None:
        """Give every weight its gradient, the mean over the processes."""
        self._fabric.backward(loss)


class Linear(Engine):
    """The same for a linear head on features, bit for bit, without what is not arithmetic.

    The two products of a small step take less than a millisecond, and what torch does around them takes
    half as long again: the graph from the logits back to the weights, and the bookkeeping of an optimizer.
    """

    def __init__(self, model: Classifier, optimizer: torch.optim.AdamW) -> None:
        super().__init__(model, optimizer)
        self._inputs, self._logits = torch.empty(0), torch.empty(0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [B, C], from which a graph begins."""
        head = self._model.head
        with torch.no_grad():
            self._inputs = inputs.sub(self._model.center).mul_(self._model.scale)
            self._logits = F.linear(self._inputs, head.weight, head.bias)
        return self._logits.requires_grad_()

    def backward(self, loss: Tensor) -> None:
        """Go back to the logits by the graph, and on to the weights by one product."""
        torch.autograd.backward(loss)
        head, slope = self._model.head, self._logits.grad
        assert slope is not None
        head.weight.grad, head.bias.grad = slope.t().mm(self._inputs), slope.sum(0)

    @torch.no_grad()
    def move(self) -> None:
        """Do what `torch.optim.AdamW.step` does, once that has made its moments."""
        if not self._optimizer.state:
            self._optimizer.step()
            return
        for group in self._optimizer.param_groups:
            weights = group["params"]
            moments = [self._optimizer.state[weight] for weight in weights]
            steps = [held["step"] for held in moments]
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                weights,
                [weight.grad for weight in weights],
                [held["exp_avg"] for held in moments],
                [held["exp_avg_sq"] for held in moments],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


def engine_for(fabric: Fabric, model: Classifier, optimizer: torch.optim.AdamW) -> Engine:
    """Return the quickest way to train a model with this many processes and this precision.

    On one device in full precision Fabric's wrappers change nothing, but cost a tenth of a small step.
    """
    if fabric.world_size > 1 or fabric.strategy.precision.precision != "32-true":
        return Wrapped(model, optimizer, fabric)
    bare = type(model) is Classifier and model.backbone is None  # not one with a forward of its own
    return Linear(model, optimizer) if bare else Engine(model, optimizer)
