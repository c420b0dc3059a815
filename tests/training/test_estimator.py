import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tertium import InputError, Labels, MultiLabelClassifier


@pytest.fixture
def data(rng):
    X = rng.normal(size=(300, 6)) * 10
    full = np.where(X[:, :3] > 5, 1, -1)
    return X, full * (rng.random(full.shape) < 0.6), full


class Frame:
    """What matters of a data frame here: an array, and names of its columns."""

    def __init__(self, values):
        self.values, self.columns = values, ["x", "y", "z"]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


def quick(**settings):
    return MultiLabelClassifier(**{"method": "ignore", "epochs": 30, "lr": 0.005, "unknown": 0} | settings)


def test_array_sparse_and_labels_give_the_same(data):
    X, Y, _ = data
    dense, sparse, labels = (
        quick().fit(X, given).predict_proba(X) for given in (Y, csr_array(Y), Labels.from_dense(Y))
    )
    np.testing.assert_array_equal(dense, sparse)
    np.testing.assert_array_equal(dense, labels)


def test_learns_and_scores(data):
    X, Y, full = data
    model = quick().fit(X, Y)
    assert model.score(X, full) > 0.9
    called = model.predict(X)
    assert set(np.unique(called)) <= {0, 1}
    assert (called == (full > 0)).mean() > 0.9
    assert model.n_features_in_ == 6
    assert list(model.classes_) == ["0", "1", "2"]


def test_works_in_clone_pipeline_and_search(data):
    X, Y, _ = data
    model = quick(parameters={"alpha": -2.0}, method="weighted_ignore")
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "trained_")
    pipeline = make_pipeline(StandardScaler(), quick()).fit(X, Y)
    assert pipeline.predict_proba(X).shape == (300, 3)
    search = GridSearchCV(quick(epochs=3), {"lr": [1e-5, 0.05]}, cv=KFold(2)).fit(X, Y)
    assert search.best_params_ == {"lr": 0.05}


@pytest.mark.parametrize(
    "kind", ["0 and 1", "bool", "-1 and 1", "float", "sparse 0 and 1", "frame", "labels"], ids=str
)
def test_full_labels_as_everybody_has_them(data, kind):
    """0 was once read as unknown: 0.61 as the mean probability where 0.38 is true, and no score."""
    X, _, full = data
    plain = (full > 0).astype(int)
    given = {
        "0 and 1": plain,
        "bool": full > 0,
        "-1 and 1": full,
        "float": plain.astype(float),
        "sparse 0 and 1": csr_array(plain),
        "frame": Frame(plain),
        "labels": Labels.from_dense(full),
    }[kind]
    model = quick(unknown=None, method="bce").fit(X, given)
    wanted = quick(unknown=None, method="bce").fit(X, full).predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(X), wanted)
    assert model.predict_proba(X).mean() == pytest.approx((full > 0).mean(), abs=0.1)
    assert np.isfinite(model.score(X, given))
    assert "known" in model.understood_ or kind == "labels"


@pytest.mark.parametrize("absent", [0, -1])
def test_nan_is_unknown(data, absent):
    X, Y, _ = data
    holes = np.where(Y == 0, np.nan, np.where(Y > 0, 1.0, absent))
    model = quick(unknown=None).fit(X, holes)
    np.testing.assert_array_equal(model.predict_proba(X), quick().fit(X, Y).predict_proba(X))
    assert model.understood_ == f"1 is present, {absent} is absent, NaN is unknown"


def test_what_could_mean_two_things_is_refused(data):
    X, Y, _ = data
    for given in (Y, csr_array(Y)):
        with pytest.raises(InputError, match="say so with unknown=0"):
            quick(unknown=None).fit(X, given)


def test_settings_by_name(data):
    model = quick()
    assert model.set_params(epochs=3).epochs == 3
    assert repr(MultiLabelClassifier(epochs=3)) == "MultiLabelClassifier(epochs=3)"
    with pytest.raises(InputError, match='did you mean "epochs"'):
        model.set_params(epoch=3)


def test_bad_input_is_named(data):
    X, Y, _ = data
    with pytest.raises(InputError, match="not fitted yet"):
        quick().predict_proba(X)
    with pytest.raises(InputError, match="features must be numbers"):
        quick().fit([["a"]], [[1]])
    with pytest.raises(InputError, match="300 rows of inputs for 299"):
        quick().fit(X, Y[:299])
    with pytest.raises(InputError, match="Y holds 7"):
        quick().fit(X[:1], [[7]])
    with pytest.raises(InputError, match="Y must hold numbers"):
        quick().fit(X[:1], [["yes"]])
    with pytest.raises(InputError, match="unknown can be 0 or None"):
        quick(unknown=-1).fit(X, Y)
