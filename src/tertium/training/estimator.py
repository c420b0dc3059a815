"""A scikit-learn-like estimator for ready feature arrays."""

from __future__ import annotations

import inspect
import sys
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
    an underscore), so that ``clone``, ``Pipeline`` and searches work with it. ``X`` [N, D] is an array or a
    data frame, whose columns must then have the same names again. ``y`` [N, C] is an array, a data frame, a
    SciPy sparse matrix, or `Labels`:

    - 0 and 1, or False and True: all labels are known, as everywhere in scikit-learn;
    - −1 and 1: likewise, with −1 for absent;
    - NaN among either: that label is unknown;
    - −1, 0 and 1 with ``unknown=0``: 0 (or, in a sparse matrix, nothing) is unknown. Without ``unknown`` such
      an array is refused, because 0 could mean either.

    What was understood is in ``understood_`` after fitting, and the fitted classifier shows it.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 6))
    >>> Y = np.where(X[:, :2] > 0, 1, -1) * (rng.random((300, 2)) < 0.5)
    >>> model = MultiLabelClassifier(method="ignore", unknown=0, epochs=20, lr=0.01).fit(X, Y)
    >>> model.predict_proba(X).shape
    (300, 2)
    >>> model.understood_
    '1 is present, -1 is absent, 0 is unknown'
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

    def fit(self, X: Any, y: Any) -> MultiLabelClassifier:
        """Train on features [N, D] and labels [N, C]."""
        features, names = _features(X)
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        labels, understood = read_targets(y, self.unknown)
        if len(features) != len(labels):
            raise InputError(f"X has {len(features):,} rows, but y has {len(labels):,}")
        if len(features) < 2:
            raise InputError("one sample is not enough to train on (n_samples=1)")
        settings = {
            name: getattr(self, name) for name in _settings(type(self)) if name not in ("method", "unknown")
        }
        settings["parameters"] = dict(self.parameters or {})
        outcome = train(labels, features=features, method=self.method, **settings)
        self.understood_ = understood
        self.trained_ = outcome.trained
        self.summary_ = {**outcome.summary, "understood": understood}
        self.classes_ = np.array(labels.classes, dtype=object)
        self.n_features_in_ = features.shape[1]
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_  # of an earlier fit
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the probability [N, C] that each class is present."""
        return self._trained().predict_proba(features=self._checked(X))

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return 1 where a class is called present by its validation threshold, else 0."""
        called: npt.NDArray[np.bool_] = self.predict_proba(X) >= self._trained().thresholds
        return called.astype(np.int64)

    def score(self, X: Any, y: Any) -> float:
        """Return the mAP over known labels."""
        labels, _ = read_targets(y, self.unknown)
        return self._trained().evaluate(labels, features=self._checked(X)).map_c

    def _checked(self, X: Any) -> npt.NDArray[Any]:
        """Return features that fit those of training."""
        self._trained()
        features, names = _features(X)
        known = getattr(self, "feature_names_in_", None)
        if known is not None and names is not None and list(names) != list(known):
            strange = next((name for name in names if name not in set(known)), "their order")
            raise InputError(
                f"The feature names should match those that were passed during fit, but differ: {strange}"
            )
        if features.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {features.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return features

    def _trained(self) -> Trained:
        if not hasattr(self, "trained_"):
            raise _not_fitted("the classifier is not fitted yet: call fit(X, y) first")
        return self.trained_

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn, which alone calls this, whether it is fitted."""
        return hasattr(self, "trained_")

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
        understood = f", fitted: {self.understood_}" if hasattr(self, "understood_") else ""
        return f"{type(self).__name__}({', '.join(changed)}){understood}"


def read_targets(y: Any, unknown: Literal[0] | None = None) -> tuple[Labels, str]:
    """Return `Labels` from targets as scikit-learn's users have them, and how they were understood.

    >>> read_targets([[1, 0], [0, 1]])[1]
    'all labels are known: 1 is present, 0 is absent'
    >>> read_targets([[1, 0], [-1, 1]], unknown=0)[1]
    '1 is present, -1 is absent, 0 is unknown'
    """
    if unknown not in (None, 0):
        raise InputError(f"unknown can be 0 or None, not {unknown!r}")
    if isinstance(y, Labels):
        return y, "labels as they are"
    sparse = hasattr(y, "tocoo")
    values = np.asarray(y.tocoo().data if sparse else y)
    if values.dtype.kind == "O":
        values = _numbers(values, "y")  # such as a column of a data frame with None
    if values.dtype.kind not in "biuf":
        raise InputError(f"y must hold numbers, not {values.dtype}")
    found = {float(value) for value in np.unique(values[~np.isnan(values)])} | ({0.0} if sparse else set())
    strange = sorted(found - {-1.0, 0.0, 1.0})
    if strange:
        kind = "" if strange[0].is_integer() else ", as a continuous target would"
        raise InputError(f"y holds {strange[0]:g}{kind}; a label is 1, 0, -1 or NaN")
    if not sparse and values.ndim != 2:
        raise InputError(f"y must be [rows, classes], a column for each class, not of shape {values.shape}")
    if unknown == 0:
        said = values.astype(np.int8) if values.dtype == bool else values  # what False means was said
        labels = Labels.from_scipy(y) if sparse else Labels.from_dense(said)
        return _named(labels, y), "1 is present, -1 is absent, 0 is unknown"
    if {-1.0, 0.0} <= found:
        raise InputError("y holds -1 and 0: if 0 means that a label is unknown, say so with unknown=0")
    dense = y.toarray() if sparse else values
    gaps = np.isnan(dense)
    labels = Labels.from_dense(np.where(gaps, 0, np.where(dense > 0, 1, -1)))
    absent = -1 if -1.0 in found else 0
    known = "all labels are known: " if not gaps.any() else ""
    rest = ", NaN is unknown" if gaps.any() else ""
    return _named(labels, y), f"{known}1 is present, {absent} is absent{rest}"


def _named(labels: Labels, y: Any) -> Labels:
    """Return the labels with the names of a data frame's columns, if it is one."""
    names = getattr(y, "columns", None)
    if names is None:
        return labels
    return Labels(labels.offsets, labels.entries, tuple(map(str, names)), labels.images, labels.splits)


def _settings(kind: type[MultiLabelClassifier]) -> Sequence[str]:
    return list(inspect.signature(kind).parameters)


def _features(X: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return features, and the names of their columns if a data frame has them.

    The sentences hold the words that scikit-learn looks for.
    """
    if hasattr(X, "tocoo"):
        raise InputError("X is sparse, and features must be dense: give X.toarray()")
    features = np.asarray(X)
    if features.dtype.kind == "c":
        raise InputError("Complex data not supported: features are real numbers")
    if features.dtype.kind == "O":
        features = _numbers(features, "X")
    if features.ndim == 1 and features.dtype.kind in "fiu":
        raise InputError(
            f"features must be [rows, columns], not of shape {features.shape}. Reshape your data: "
            "X.reshape(1, -1) if it is one row"
        )
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise InputError(f"features must be numbers [rows, columns], not {features.dtype} {features.shape}")
    for axis, what in enumerate(("sample", "feature")):
        if not features.shape[axis]:
            raise InputError(f"X has 0 {what}(s) (shape={features.shape}) while a minimum of 1 is required.")
    features = features if features.dtype.kind == "f" else features.astype(np.float32)
    strange = ~np.isfinite(features).all(axis=1)
    if strange.any():
        raise InputError(f"X holds NaN or inf, first in row {int(strange.argmax()):,}, counted from 0")
    names = getattr(X, "columns", None)
    if names is None or not all(isinstance(name, str) for name in names):
        return features, None
    return features, np.array(list(names), dtype=object)


def _numbers(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.float64]:
    """Return objects as numbers; None is NaN. What is no number at all is a TypeError, as everywhere."""
    try:
        return values.astype(np.float64)
    except ValueError as error:
        raise InputError(f"{name} must hold numbers ({error})") from None


def _not_fitted(sentence: str) -> InputError:
    """Return an `InputError` that scikit-learn, if it is loaded, knows as its own for this case."""
    loaded = sys.modules.get("sklearn.exceptions")
    if loaded is None:
        return InputError(sentence)
    kind: type[InputError] = type("NotFitted", (InputError, loaded.NotFittedError), {})
    return kind(sentence)
