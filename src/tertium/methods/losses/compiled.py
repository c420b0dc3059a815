"""Passes over all entries of a large batch, compiled by torch if that is worth the seconds it takes."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Entries from which compiling is earned back by a run of some thousand steps. It takes 11 s of one core
# once, and saves a step of `negative` 3 ms at 2²⁰ entries, 7 ms at 2.5 million, 39 ms at 5 million.
_COMPILE_FROM = 2**21
_KINDS = 128  # of compiled passes in a process, such as those of a search over hyper-parameters
# artanh(s)/s in powers of s², the highest first: least squares over s² ≤ 1/9, off by 5e-9 at most.
_ARTANH = (0.140138198, 0.139990866, 0.200108954, 0.333332052, 1.0)


@dataclass
class _Compiler:
    """What this process has learnt about its compiler."""

    tried: bool = False
    broken: bool = False


_compiler = _Compiler()


def one_pass(function: Callable[..., Any], logits: Tensor, *others: Tensor) -> Any:
    """Return function(logits, *others), compiled into one loop where that pays: for many float32 entries.

    The function must be of tensors whose number of rows may change from call to call; all else in it (a
    `functools.partial`, fields of the object it is a method of) may not, or it is compiled anew. Where
    compiling fails it is not tried again, and without a word all goes on as it is written.
    """
    if worth_compiling(logits):
        try:
            return _attempt(function, logits, *others)
        except Exception:
            _compiler.broken = True
    return function(logits, *others)


def softplus_and_sigmoid(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(1 + eᶻ) and its slope, in new tensors."""
    if not torch.compiler.is_compiling():
        return F.softplus(logits), logits.sigmoid()
    # Both from one exponential; this series is several times as fast as a vectorised log1p, and as exact:
    # log(1 + e) = 2·artanh(s) with s = e/(2 + e) ≤ 1/3.
    e = torch.exp(-logits.abs())
    s = e / (e + 2)
    square = s * s
    a, b, c, d, one = _ARTANH
    series = (((a * square + b) * square + c) * square + d) * square + one
    inverse = 1 / (1 + e)
    return 2 * s * series + logits.relu(), torch.where(logits >= 0, inverse, e * inverse)


def worth_compiling(logits: Tensor) -> bool:
    """Return whether `one_pass` compiles: for many float32 entries, unless that failed or is forbidden."""
    return (
        logits.numel() >= _COMPILE_FROM
        and not _compiler.broken
        and logits.dtype == torch.float32
        and logits.device.type in ("cpu", "cuda")
        and os.environ.get("TERTIUM_COMPILE") != "0"
        and not torch.compiler.is_compiling()  # inside a model that is compiled as a whole
    )


def _attempt(function: Callable[..., Any], logits: Tensor, *others: Tensor) -> Any:
    import torch._dynamo  # takes seconds: not before it is needed

    if logits.dim() == 2:
        # Rows may change in number; a fixed number of classes lets sum and slope share a loop.
        torch._dynamo.mark_static(logits, 1)
        for other in others:
            torch._dynamo.mark_static(other)
    first, _compiler.tried = not _compiler.tried, True
    with torch._dynamo.config.patch(recompile_limit=_KINDS), _quiet() if first else nullcontext():
        return _compiled()(function, logits, *others)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(_call, dynamic=True, fullgraph=True)


def _call(function: Callable[..., Any], *tensors: Tensor) -> Any:
    return function(*tensors)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves what a compiler has to say: nobody asked for it."""
    loud = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(loud)
