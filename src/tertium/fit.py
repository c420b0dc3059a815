"""The training loop."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from tertium.config import Phase, Plan, Settings
from tertium.data import Loader
from tertium.distributed import all_mean
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods import Method
from tertium.model import Average, Classifier
from tertium.progress import Progress
from tertium.state import SampleState

Record = dict[str, Any]
Validate = Callable[[Classifier], dict[str, float | None]]


@dataclass
class FitRun:
    """What a method may touch while it trains (`tertium.methods.Run`)."""

    labels: Labels
    state: SampleState
    epochs: int
    rng: torch.Generator
    features: Callable[[], npt.NDArray[Any]]
    predictions: Callable[[Method], npt.NDArray[np.float32]]
    all_mean: Callable[[Tensor], Tensor] = all_mean
    epoch: int = 0
    lr: float = 0.0


def _unavailable(*_: Any) -> Any:
    raise InputError("this method needs more than a bare fit: call tertium.train")


@dataclass(frozen=True)
class Fitted:
    """The best model of a fit, and what each epoch gave."""

    model: Classifier
    records: list[Record]
    best_epoch: int

    @property
    def score(self) -> float | None:
        """The validation score of the best epoch, if there is one."""
        return self.records[self.best_epoch - 1].get("score")


def make_fabric(settings: Settings) -> Fabric:
    """Return the engine: one device, in bfloat16 where the hardware has it."""
    precision: Any = settings.precision
    if precision == "auto":
        on_gpu = settings.device != "cpu" and torch.cuda.is_available()
        precision = "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"
    return Fabric(accelerator=settings.device, devices=1, precision=precision)


def fit(
    model: Classifier,
    method: Method,
    loader: Loader,
    phase: Plan,
    *,
    labels: Labels,
    fabric: Fabric,
    validate: Validate,
    seed: int = 0,
    state: SampleState | None = None,
    features: Callable[[], npt.NDArray[Any]] = _unavailable,
    predictions: Callable[[Method], npt.NDArray[np.float32]] = _unavailable,
    record: Callable[[Record], None] = lambda _: None,
    progress: Progress | None = None,
) -> Fitted:
    """Train ``model`` and return it as it was after its best epoch on the validation score.

    ``validate`` gives named figures, of which ``score`` decides; where it is None nothing is chosen and the
    last epoch counts. ``record`` gets each epoch's figures as they come. ``state`` outlives a phase;
    ``features`` and ``predictions`` are what a method may ask of its `Run`.
    """
    progress = progress or Progress()
    rng = torch.Generator(fabric.device).manual_seed(seed)
    state = state or SampleState(*labels.shape)
    run = FitRun(labels, state, phase.epochs, rng, features, predictions)
    model.to(fabric.device)
    optimizer = _optimizer(model, phase)
    groups = optimizer.param_groups
    average = Average(model, phase.ema) if phase.ema else None
    judged = average.model if average else model
    forward, backward, optimizer = _engine(fabric, model, optimizer)
    best, records = _Best(), []
    steps, step = phase.epochs * len(loader), 0
    method.prepare(run)
    progress.start(f"training {method.name}", steps, "batches")
    for run.epoch in range(1, phase.epochs + 1):
        started = time.perf_counter()
        totals: dict[str, Tensor | float] = {}
        method.before_epoch(run)
        model.train()
        for cpu_batch in loader.epoch(run.epoch):
            batch = cpu_batch.to(fabric.device)
            run.lr = _set_rate(groups, rate_factor(phase, (step + 0.5) / steps))
            logits = forward(batch.inputs)
            terms = method.terms(logits, batch, run)
            backward(reduce(add, terms.values()))
            if phase.clip:
                clip_grad_norm_(model.parameters(), phase.clip)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                if average:
                    average.update()
                method.after_step(logits, batch, run)
                for name, value in terms.items():
                    totals[name] = totals.get(name, 0.0) + value.detach()
            step += 1
            progress.advance()
        figures = _epoch_record(run.epoch, totals, len(loader), time.perf_counter() - started)
        figures |= validate(judged)
        record(figures)
        records.append(figures)
        best.offer(run.epoch, figures.get("score"), judged)
        if run.epoch - best.epoch >= phase.patience:
            progress.note(f"stopped after epoch {run.epoch}: no better score since epoch {best.epoch}")
            break
    judged.load_state_dict(best.state)
    return Fitted(judged.eval(), records, best.epoch)


class _Best:
    """The weights of the best epoch so far; of the last one where there is no score."""

    def __init__(self) -> None:
        self.epoch, self.score = 0, -math.inf
        self.state: dict[str, Any] = {}

    def offer(self, epoch: int, score: float | None, model: Classifier) -> None:
        if score is None or score > self.score:
            self.epoch, self.score = epoch, -math.inf if score is None else score
            self.state = copy.deepcopy(model.state_dict())


def _optimizer(model: Classifier, phase: Phase) -> torch.optim.Optimizer:
    groups = model.groups(phase.lr, phase.backbone_lr, phase.weight_decay)
    for group in groups:
        group["peak"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def _engine(fabric: Fabric, model: Classifier, optimizer: Any) -> tuple[Any, Any, Any]:
    """Return how to run forward, backward and the optimizer.

    On one device in full precision Fabric's wrappers change nothing, but cost a tenth of a small step.
    """
    if fabric.world_size == 1 and fabric.strategy.precision.precision == "32-true":
        return model, Tensor.backward, optimizer
    module, wrapped = fabric.setup(model, optimizer)
    return module, fabric.backward, wrapped


def _set_rate(groups: list[dict[str, Any]], factor: float) -> float:
    """Set the rates of all groups; return that of the head, which comes first."""
    for group in groups:
        group["lr"] = group["peak"] * factor
    return float(groups[0]["lr"])


def rate_factor(phase: Phase, done: float) -> float:
    """Return the learning rate at a share of the steps, relative to its peak.

    It rises linearly over ``warmup``; then it stays (constant), or falls along a cosine to 0. One-cycle
    starts and ends lower: at 1/25 of the peak, and at nothing.

    >>> from tertium.config import HEAD
    >>> [round(rate_factor(HEAD, done), 2) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    floor = 0.04 if phase.schedule == "one_cycle" else 0.0
    if done < phase.warmup:
        return floor + (1 - floor) * done / phase.warmup
    if phase.schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (done - phase.warmup) / (1 - phase.warmup))) / 2


def _epoch_record(epoch: int, totals: dict[str, Any], batches: int, seconds: float) -> Record:
    terms = {name: float(value) / batches for name, value in totals.items()}
    for name, value in terms.items():
        if not math.isfinite(value):
            raise InputError(f'the loss "{name}" became {value} in epoch {epoch}; try a smaller lr')
    return {"epoch": epoch, "loss": sum(terms.values()), "terms": terms, "seconds": round(seconds, 3)}
