"""Masked average precision beside a scikit-learn loop over classes: how much faster, how much memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from bench.measure import Row, medians, peak, row, show
from tertium.labels import Labels
from tertium.metrics.evaluation import average_precision


def rows(smoke: bool = False) -> list[Row]:
    """Measure; every ratio comes from interleaved repeats in this process."""
    full, sparse, repeats = (400, 8), (6250, 6), (1, 1)
    if not smoke:
        full, sparse, repeats = (40_000, 80), (125_000, 600), (9, 5)
    scores, labels = problem(*full, known=1.0)
    truths = {"int8": labels, "Labels": Labels.from_dense(labels)}
    found = compare(f"{full[0]:,}×{full[1]}", scores, labels, truths, target=6, repeats=repeats[0])
    scores, labels = problem(*sparse, known=0.03)
    truths = {"Labels": Labels.from_dense(labels)}
    return found + compare(
        f"{sparse[0]:,}×{sparse[1]}, 3 % known", scores, labels, truths, target=10, repeats=repeats[1]
    )


def problem(images: int, classes: int, known: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = rng.random((images, classes), dtype=np.float32)
    labels = np.where(rng.random(scores.shape, dtype=np.float32) < 0.04, 1, -1).astype(np.int8)
    labels[rng.random(scores.shape, dtype=np.float32) >= known] = 0
    return scores, labels


def compare(
    size: str, scores: np.ndarray, labels: np.ndarray, truths: dict[str, Any], target: float, repeats: int
) -> list[Row]:
    ours = [partial(average_precision, scores, truth) for truth in truths.values()]
    theirs = partial(loop, scores, labels)
    slow, *quick = medians([theirs, *ours], repeats)
    expected = theirs()
    found = []
    for kind, call, seconds in zip(truths, ours, quick, strict=True):
        case = f"{size}, {kind}"
        gap = float(np.abs(call() - expected).max())
        found += [
            row("masked mAP", f"{case}: times faster than scikit-learn", slow / seconds, "≥", target),
            row("masked mAP", f"{case}: extra memory / scores", peak(call) / scores.nbytes, "≤", 0.15),
            row("masked mAP", f"{case}: largest difference", gap, "≤", 1e-12),
        ]
    return found


def loop(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Call scikit-learn for each class on its known entries."""
    found = []
    for column in range(scores.shape[1]):
        known = labels[:, column] != 0
        found.append(average_precision_score(labels[known, column] > 0, scores[known, column]))
    return np.array(found)


if __name__ == "__main__":
    show(rows())
