"""Where a second thread gains: a step of a linear head by the size of its product, one thread against all."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bench.measure import Row, paired_ratio, row, show
from tertium.threads import WORTH_SHARING

SIZES = ((128, 512, 20), (128, 1280, 80), (128, 1280, 400), (256, 1280, 400), (128, 2048, 1000))


def rows(smoke: bool = False) -> list[Row]:
    """Show how many times as long all threads take; the bound of `tertium.threads` lies where this is < 1."""
    found = []
    every = torch.get_num_threads()
    for size in SIZES[:2] if smoke else SIZES:
        product = size[0] * size[1] * size[2]
        steps = 2 if smoke else max(3, min(200, 2 * 10**9 // product))
        one, all_of_them = partial(run, size, 1, steps), partial(run, size, every, steps)
        ratio = paired_ratio(one, all_of_them, 1 if smoke else 5)
        kind = "shared" if product >= WORTH_SHARING else "one thread"
        case = f"{size[0]} × {size[1]} × {size[2]}, {product / 1e6:.0f}M ({kind}): {every} threads times one"
        found.append(row("threads", case, ratio, "", None))
    torch.set_num_threads(every)
    return found


def run(size: tuple[int, int, int], threads: int, steps: int) -> None:
    torch.set_num_threads(threads)
    batch, width, classes = size
    inputs, targets = torch.randn(batch, width), (torch.rand(batch, classes) < 0.1).float()
    head = torch.nn.Linear(width, classes)
    optimizer = torch.optim.AdamW(head.parameters(), fused=True)
    for _ in range(steps):
        binary_cross_entropy_with_logits(head(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    show(rows())
