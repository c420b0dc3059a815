"""A scikit-learn-like estimator for ready feature arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, did_you_mean
from tertium.labels import Labels
from tertium.prediction.trained import Trained
from tertium.training.train import train


class MultiLabelClassifier:
    """Fit a linear classifier on features whose labels may be mostly unknown.

    It follows scikit-learn's conventions (``fit``, ``predict_proba``, ``get_params``, attributes that end in
    an underscore), so that ``clone``, ``Pipeline`` and searches work with it. ``Y`` [N, C] is an array, a
    data frame, a SciPy sparse matrix, or `Labels`:

    - 0 and 1, or False and True: all labels are known, as everywhere in scikit-learn;
    - −1 and 1: likewise, with −1 for absent;
    - NaN among either: that label is unknown;
    - −1, 0 and 1 with ``unknown=0``: 0 (or, in a sparse matrix, nothing) is unknown. Without ``unknown`` such
      an array is refused, because 0 could mean either.

    What was understood is in ``understood_`` after fitting.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 6))
    >>> Y = np.where(X[:, :2] > 0, 1, -1) * (rng.random((300, 2)) < 0.5)
    >>> model = MultiLabelClassifier(method="ignore", unknown=0, epochs=20, lr=0.01).fit(X, Y)
    >>> model.predict_proba(X).shape
    (300, 2)
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        parameters: Mapping[str, Any] | None = None,
        unknown: Literal[0] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 3e-4,
        weight_decay: float = 1.0,
        validation: float = 0.15,
        seed: int = 0,
    ) -> None:
        self.method = method
        self.parameters = parameters
        self.unknown = unknown
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation = validation
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name."""
        return {name: getattr(self, name) for name in _settings(type(self))}

    def set_params(self, **params: Any) -> MultiLabelClassifier:
        """Change settings."""
        for name, value in params.items():
            if name not in _settings(type(self)):
                raise InputError(f'there is no setting "{name}"; {did_you_mean(name, _settings(type(self)))}')
            setattr(self, name, value)
        return self

    def fit(self, X: npt.ArrayLike, Y: Any) -> MultiLabelClassifier:
        """Train on features [N, D] and labels [N, C]."""
        features = _features(X)
        labels, self.understood_ = read_targets(Y, self.unknown)
        settings = {
            name: getattr(self, name) for name in _settings(type(self)) if name not in ("method", "unknown")
        }
        settings["parameters"] = dict(self.parameters or {})
        outcome = train(labels, features=features, method=self.method, **settings)
        self.trained_ = outcome.trained
        self.summary_ = outcome.summary
        self.classes_ = np.array(labels.classes, dtype=object)
        self.n_features_in_ = features.shape[1]
        return self

    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the probability [N, C] that each class is present."""
        return self._trained().predict_proba(features=_features(X))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Return 1 where a class is called present by its validation threshold, else 0."""
        called: npt.NDArray[np.bool_] = self.predict_proba(X) >= self._trained().thresholds
        return called.astype(np.int8)

    def score(self, X: npt.ArrayLike, Y: Any) -> float:
        """Return the mAP over known labels."""
        labels, _ = read_targets(Y, self.unknown)
        return self._trained().evaluate(labels, features=_features(X)).map_c

    def _trained(self) -> Trained:
        if not hasattr(self, "trained_"):
            raise InputError("the classifier is not fitted yet: call fit(X, Y) first")
        return self.trained_

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, which alone calls this, what kind of estimator it is."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True, multi_output=True, single_output=False),
            classifier_tags=ClassifierTags(multi_class=False, multi_label=True),
            input_tags=InputTags(),
        )

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def read_targets(Y: Any, unknown: Literal[0] | None = None) -> tuple[Labels, str]:
    """Return `Labels` from targets as scikit-learn's users have them, and how they were understood.

    >>> read_targets([[1, 0], [0, 1]])[1]
    'all labels are known: 1 is present, 0 is absent'
    >>> read_targets([[1, 0], [-1, 1]], unknown=0)[1]
    '1 is present, -1 is absent, 0 is unknown'
    """
    if unknown not in (None, 0):
        raise InputError(f"unknown can be 0 or None, not {unknown!r}")
    if isinstance(Y, Labels):
        return Y, "labels as they are"
    sparse = hasattr(Y, "tocoo")
    values = np.asarray(Y.tocoo().data if sparse else Y)
    if values.dtype.kind not in "biuf":
        raise InputError(f"Y must hold numbers, not {values.dtype}")
    found = {float(value) for value in np.unique(values[~np.isnan(values)])} | ({0.0} if sparse else set())
    strange = sorted(found - {-1.0, 0.0, 1.0})
    if strange:
        raise InputError(f"Y holds {strange[0]:g}; a label is 1, 0, -1 or NaN")
    if unknown == 0:
        labels = Labels.from_scipy(Y) if sparse else Labels.from_dense(values)
        return _named(labels, Y), "1 is present, -1 is absent, 0 is unknown"
    if {-1.0, 0.0} <= found:
        raise InputError("Y holds -1 and 0: if 0 means that a label is unknown, say so with unknown=0")
    dense = Y.toarray() if sparse else values
    gaps = np.isnan(dense)
    labels = Labels.from_dense(np.where(gaps, 0, np.where(dense > 0, 1, -1)))
    absent = -1 if -1.0 in found else 0
    known = "all labels are known: " if not gaps.any() else ""
    rest = ", NaN is unknown" if gaps.any() else ""
    return _named(labels, Y), f"{known}1 is present, {absent} is absent{rest}"


def _named(labels: Labels, Y: Any) -> Labels:
    """Return the labels with the names of a data frame's columns, if it is one."""
    names = getattr(Y, "columns", None)
    if names is None:
        return labels
    return Labels(labels.offsets, labels.entries, tuple(map(str, names)), labels.images, labels.splits)


def _settings(kind: type[MultiLabelClassifier]) -> Sequence[str]:
    return list(inspect.signature(kind).parameters)


def _features(X: npt.ArrayLike) -> npt.NDArray[Any]:
    features = np.asarray(X)
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise InputError(f"features must be numbers [rows, columns], not {features.dtype} {features.shape}")
    return features if features.dtype.kind == "f" else features.astype(np.float32)
