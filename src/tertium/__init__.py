"""Tertium trains multi-label image classifiers when most labels are unknown."""

import importlib
from typing import TYPE_CHECKING, Any

from tertium.threads import wait_quietly

if TYPE_CHECKING:
    from tertium.describe import describe
    from tertium.errors import InputError
    from tertium.estimator import MultiLabelClassifier
    from tertium.labels import Labels
    from tertium.methods import Method
    from tertium.predict import Trained
    from tertium.readers import read_labels, write_labels
    from tertium.training import class_frequencies, resume, train

wait_quietly()  # before anything imports torch

_HOMES = {
    "InputError": "tertium.errors",
    "Labels": "tertium.labels",
    "Method": "tertium.methods",
    "MultiLabelClassifier": "tertium.estimator",
    "Trained": "tertium.predict",
    "class_frequencies": "tertium.training",
    "describe": "tertium.describe",
    "read_labels": "tertium.readers",
    "resume": "tertium.training",
    "train": "tertium.training",
    "write_labels": "tertium.readers",
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
