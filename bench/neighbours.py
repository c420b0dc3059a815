"""Nearest neighbours beside the matrix product that they need; the relations of a batch of 9,600 classes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch

from bench.measure import Row, paired_ratio, row, show
from tertium.models.neighbours import nearest, normalise

COUNT, WIDTH, CLASSES = 12_000, 2048, 9600
_RELATIONS = """
import resource, numpy as np
from tertium.labels import Labels
from tertium.methods.kundu2020 import Relations, SoftExposure
rng = np.random.default_rng(0)
values = rng.choice(np.array([-1, 0, 1]), p=[0.001, 0.998, 0.001], size=(512, CLASSES)).astype(np.int8)
labels, features = Labels.from_dense(values), rng.normal(size=(512, 64))
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**10  # now, not the peak
relations = Relations(SoftExposure(), features, labels)
for rows in relations.blocks(range(256)):
    relations.slopes(rows)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


def rows(smoke: bool = False) -> list[Row]:
    count, classes, repeats = (100, 600, 1) if smoke else (COUNT, CLASSES, 5)
    features = normalise(np.random.default_rng(0).normal(size=(count, WIDTH)).astype(np.float32))
    points = torch.from_numpy(features)
    size = max(1, (1 << 23) // count)
    similar = torch.empty(size, count)

    def product() -> None:
        for start in range(0, count, size):
            block = points[start : start + size]
            torch.mm(block, points.T, out=similar[: len(block)])

    ratio = paired_ratio(product, lambda: nearest(features, 10), repeats)
    program = _RELATIONS.replace("CLASSES", str(classes))
    memory = float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    return [
        row("neighbours", f"10 nearest of {count:,}×{WIDTH}: times the matrix product", ratio, "≤", 1.1),
        row(
            "neighbours",
            f"relations of 256 images × {classes:,} classes, set-up included: GB more",
            memory,
            "≤",
            1.0,
        ),
    ]


if __name__ == "__main__":
    show(rows())
