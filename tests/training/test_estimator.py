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


def quick(**settings):
    return MultiLabelClassifier(**{"method": "ignore", "epochs": 30, "lr": 0.005} | settings)


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


def test_unlisted_absent(data):
    X, _, full = data
    zeros_mean_absent = quick(unlisted="absent", method="bce").fit(X, full > 0)
    said = quick(method="bce").fit(X, full)
    np.testing.assert_array_equal(zeros_mean_absent.predict_proba(X), said.predict_proba(X))


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
    with pytest.raises(InputError, match="not 7"):
        quick().fit(X[:1], [[7]])
    with pytest.raises(InputError, match='did you mean "absent"'):
        quick(unlisted="abscent").fit(X, Y)
