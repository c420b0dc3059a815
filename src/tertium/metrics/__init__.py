"""Metrics over known labels only; a class that cannot be scored is listed, never counted as 0."""

from tertium.metrics.evaluation import (
    Evaluation,
    average_precision,
    best_thresholds,
    calibration_error,
    evaluate,
    expected_thresholds,
    grouped_map,
    groups,
    precision_recall_at_k,
    spearman,
)

__all__ = [
    "Evaluation",
    "average_precision",
    "best_thresholds",
    "calibration_error",
    "evaluate",
    "expected_thresholds",
    "grouped_map",
    "groups",
    "precision_recall_at_k",
    "spearman",
]
