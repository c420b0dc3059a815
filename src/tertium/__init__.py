"""Tertium trains multi-label image classifiers when most labels are unknown.

The public names are those of `__all__`, and the modules `tertium.metrics`, `tertium.schemes` and
`tertium.methods`; docs/api.md explains them. Everything else may change.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tertium.threads import wait_quietly

if TYPE_CHECKING:
    from tertium import methods, metrics, schemes
    from tertium.annotation.frequencies import Frequencies
    from tertium.errors import InputError
    from tertium.labelling.completion import complete
    from tertium.labelling.simulating import rehearse
    from tertium.labelling.suggesting import suggest
    from tertium.labels import Labels
    from tertium.labels.describe import describe
    from tertium.labels.merging import merge
    from tertium.labels.publishing import publish
    from tertium.labels.readers import read_labels, write_labels
    from tertium.losses import Loss
    from tertium.methods import Method
    from tertium.prediction.better import better
    from tertium.prediction.exporting import export
    from tertium.prediction.trained import Trained
    from tertium.prediction.using import evaluate, load, predict
    from tertium.progress import Progress
    from tertium.reporting.comparison import compare
    from tertium.reporting.page import report
    from tertium.reporting.prior import prior
    from tertium.schemes import simulate
    from tertium.training.estimator import MultiLabelClassifier
    from tertium.training.session import Outcome
    from tertium.training.train import resume, train

wait_quietly()  # before anything imports torch

# Where each public name lives.
_HOMES = {
    "Frequencies": "tertium.annotation.frequencies",
    "InputError": "tertium.errors",
    "Labels": "tertium.labels",
    "Loss": "tertium.losses",
    "Method": "tertium.methods",
    "MultiLabelClassifier": "tertium.training.estimator",
    "Outcome": "tertium.training.session",
    "Progress": "tertium.progress",
    "Trained": "tertium.prediction.trained",
    "better": "tertium.prediction.better",
    "compare": "tertium.reporting.comparison",
    "complete": "tertium.labelling.completion",
    "describe": "tertium.labels.describe",
    "evaluate": "tertium.prediction.using",
    "export": "tertium.prediction.exporting",
    "load": "tertium.prediction.using",
    "merge": "tertium.labels.merging",
    "predict": "tertium.prediction.using",
    "prior": "tertium.reporting.prior",
    "publish": "tertium.labels.publishing",
    "read_labels": "tertium.labels.readers",
    "rehearse": "tertium.labelling.simulating",
    "report": "tertium.reporting.page",
    "resume": "tertium.training.train",
    "simulate": "tertium.schemes",
    "suggest": "tertium.labelling.suggesting",
    "train": "tertium.training.train",
    "write_labels": "tertium.labels.readers",
}
_MODULES = ("methods", "metrics", "schemes")
__all__ = [
    "Frequencies",
    "InputError",
    "Labels",
    "Loss",
    "Method",
    "MultiLabelClassifier",
    "Outcome",
    "Progress",
    "Trained",
    "better",
    "compare",
    "complete",
    "describe",
    "evaluate",
    "export",
    "load",
    "merge",
    "methods",
    "metrics",
    "predict",
    "prior",
    "publish",
    "read_labels",
    "rehearse",
    "report",
    "resume",
    "schemes",
    "simulate",
    "suggest",
    "train",
    "write_labels",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import tertium` stays quick."""
    if name in _MODULES:
        return importlib.import_module(f"tertium.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tertium' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
