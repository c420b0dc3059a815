"""A scikit-learn-like estimator for ready feature arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, did_you_mean
from tertium.labels import Labels
from tertium.labels.readers import UNLISTED, Unlisted
from tertium.prediction.trained import Trained
from tertium.training.train import train


class MultiLabelClassifier:
    """Fit a linear classifier on features whose labels may be mostly unknown.

    It follows scikit-learn's conventions (``fit``, ``predict_proba``, ``get_params``, attributes that end in
    an underscore), so that ``clone``, ``Pipeline`` and searches work with it. ``Y`` holds +1 for present,
    −1 for absent, 0 (or, in a SciPy sparse matrix, nothing) for unknown; with ``unlisted="absent"`` zeros
    mean absent. ``Y`` may also be `Labels`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 6))
    >>> Y = np.where(X[:, :2] > 0, 1, -1) * (rng.random((300, 2)) < 0.5)
    >>> model = MultiLabelClassifier(method="ignore", epochs=20, lr=0.01).fit(X, Y)
    >>> model.predict_proba(X).shape
    (300, 2)
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        parameters: Mapping[str, Any] | None = None,
        unlisted: Unlisted = "unknown",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 3e-4,
        weight_decay: float = 1.0,
        validation: float = 0.15,
        seed: int = 0,
    ) -> None:
        self.method = method
        self.parameters = parameters
        self.unlisted = unlisted
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
        labels = as_labels(Y)
        if self.unlisted not in UNLISTED:
            raise InputError(
                f'unlisted labels cannot be "{self.unlisted}"; {did_you_mean(self.unlisted, UNLISTED)}'
            )
        if self.unlisted == "absent":
            labels = labels.unlisted_absent()
        settings = {
            name: getattr(self, name) for name in _settings(type(self)) if name not in ("method", "unlisted")
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
        labels = as_labels(Y)
        if self.unlisted == "absent":
            labels = labels.unlisted_absent()
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


def as_labels(Y: Any) -> Labels:
    """Return `Labels` from an array, a SciPy sparse matrix, or `Labels`."""
    if isinstance(Y, Labels):
        return Y
    return Labels.from_scipy(Y) if hasattr(Y, "tocoo") else Labels.from_dense(Y)


def _settings(kind: type[MultiLabelClassifier]) -> Sequence[str]:
    return list(inspect.signature(kind).parameters)


def _features(X: npt.ArrayLike) -> npt.NDArray[Any]:
    features = np.asarray(X)
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise InputError(f"features must be numbers [rows, columns], not {features.dtype} {features.shape}")
    return features if features.dtype.kind == "f" else features.astype(np.float32)
