"""Tertium trains multi-label image classifiers when most labels are unknown."""

import importlib
from typing import TYPE_CHECKING, Any

from tertium.threads import wait_quietly

if TYPE_CHECKING:
    from tertium.errors import InputError
    from tertium.labels import Labels
    from tertium.labels.describe import describe
    from tertium.labels.readers import read_labels, write_labels
    from tertium.methods import Method
    from tertium.prediction.trained import Trained
    from tertium.training.estimator import MultiLabelClassifier
    from tertium.training.train import class_frequencies, resume, train

wait_quietly()  # before anything imports torch

_HOMES = {
    "InputError": "tertium.errors",
    "Labels": "tertium.labels.labels",
    "Method": "tertium.methods",
    "MultiLabelClassifier": "tertium.training.estimator",
    "Trained": "tertium.prediction.trained",
    "class_frequencies": "tertium.training.train",
    "describe": "tertium.labels.describe",
    "read_labels": "tertium.labels.readers",
    "resume": "tertium.training.train",
    "train": "tertium.training.train",
    "write_labels": "tertium.labels.readers",
}
__all__ = [
    "InputError",
    "Labels",
    "Method",
    "MultiLabelClassifier",
    "Trained",
    "class_frequencies",
    "describe",
    "read_labels",
    "resume",
    "train",
    "write_labels",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import tertium` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tertium' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # also where a submodule has the same name, as `describe` has
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
