import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

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
    with pytest.raises(InputError, match="X has 300 rows, but y has 299"):
        quick().fit(X, Y[:299])
    with pytest.raises(InputError, match="y holds 7"):
        quick().fit(X[:1], [[7]])
    with pytest.raises(InputError, match="y must hold numbers"):
        quick().fit(X[:1], [["yes"]])
    with pytest.raises(InputError, match="unknown can be 0 or None"):
        quick(unknown=-1).fit(X, Y)


# ---- scikit-learn's own checks -----------------------------------------------------------------------------

ONE_COLUMN = "its y has the values 1 and 2, and a label is 0 or 1: what 2 means is not guessed"
# All that does not apply, and why. Whatever is here must fail.
EXCEPTIONS = {
    "check_estimators_dtypes": ONE_COLUMN,
    "check_classifier_data_not_an_array": ONE_COLUMN,
    "check_fit2d_1feature": ONE_COLUMN,
    "check_classifiers_classes": "its y names one class for each row; here each class has a column",
    "check_classifiers_train": "of y with one column it wants predictions [N], and they are [N, 1]",
    "check_classifier_multioutput": "it calls what is above 0.5 present; here classes have thresholds",
    "check_classifier_not_supporting_multiclass": "it wants a sentence on binary targets, not on columns",
}


def test_scikit_learns_own_checks_pass_as_far_as_they_apply():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)  # of array APIs, and of decision_function
        warnings.simplefilter("ignore", UserWarning)
        checked = check_estimator(
            MultiLabelClassifier(method="ignore", epochs=1),
            expected_failed_checks=EXCEPTIONS,
            on_fail=None,
            on_skip=None,
        )
    failed = {each["check_name"]: str(each["exception"]) for each in checked if each["status"] == "failed"}
    assert not failed
    needed = {each["check_name"] for each in checked if each["status"] == "xfail"}
    assert needed == EXCEPTIONS.keys(), "an exception that is no longer needed"
    assert sum(each["status"] == "passed" for each in checked) > 45


# ---- as people use it --------------------------------------------------------------------------------------


def test_what_was_understood_is_stored_and_shown(data):
    X, Y, full = data
    model = quick(epochs=1)
    assert "fitted" not in repr(model)
    assert repr(model.fit(X, Y)).endswith("), fitted: 1 is present, -1 is absent, 0 is unknown")
    assert model.summary_["understood"] == model.understood_
    plain = quick(epochs=1, unknown=None).fit(X, full > 0)
    assert repr(plain).endswith("), fitted: all labels are known: 1 is present, 0 is absent")


@pytest.mark.parametrize("kind", ["0 and 1", "NaN", "-1, 0 and 1"])
def test_cross_validation_takes_full_and_partial_labels(data, kind):
    X, Y, full = data
    given = {"0 and 1": (full > 0).astype(int), "NaN": np.where(Y == 0, np.nan, Y > 0), "-1, 0 and 1": Y}[
        kind
    ]
    model = quick(epochs=3, unknown=0 if kind == "-1, 0 and 1" else None)
    scores = cross_val_score(make_pipeline(StandardScaler(), model), X, given, cv=KFold(2))
    assert np.isfinite(scores).all()


def test_columns_of_a_frame_keep_their_names(data):
    X, _, full = data
    X = X[:, :3]
    model = quick(epochs=1, unknown=None).fit(Frame(X), Frame(full > 0))
    assert model.feature_names_in_.tolist() == ["x", "y", "z"]
    assert model.classes_.tolist() == ["x", "y", "z"]
    wanted = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(Frame(X)), wanted)
    other = Frame(X)
    other.columns = ["x", "z", "y"]
    with pytest.raises(InputError, match=r"feature names should match those .* but differ: their order"):
        model.predict(other)
    assert not hasattr(model.fit(X, full > 0), "feature_names_in_")


def test_frames_of_pandas(data):
    pandas = pytest.importorskip("pandas")
    X, Y, _ = data
    frame = pandas.DataFrame(X, columns=[f"f{place}" for place in range(6)])
    labels = pandas.DataFrame(Y, columns=["cat", "dog", "fox"]).replace(0, np.nan)
    labels["dog"] = labels["dog"].astype(object).where(labels["dog"].notna(), None)
    model = quick(epochs=1, unknown=None).fit(frame, labels)
    assert model.classes_.tolist() == ["cat", "dog", "fox"]
    assert model.understood_ == "1 is present, -1 is absent, NaN is unknown"
    assert model.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_array_equal(model.predict_proba(frame), model.predict_proba(X))
    search = GridSearchCV(quick(epochs=1), {"lr": [1e-5, 0.05]}, cv=KFold(2)).fit(frame, Y)
    assert search.best_estimator_.n_features_in_ == 6


def test_scikit_learn_knows_that_it_is_not_fitted(data):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        quick().predict(data[0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros(3), "y must be \\[rows, classes\\], a column for each class, not of shape \\(3,\\)"),
        ([[0.5], [1], [0]], "y holds 0.5, as a continuous target would; a label is 1, 0, -1 or NaN"),
        (None, "fit requires y to be passed, but the target y is None"),
        ([["cat"], ["dog"], ["cat"]], "y must hold numbers, not <U3"),
    ],
)
def test_targets_of_other_kinds_are_one_sentence(given, sentence):
    with pytest.raises(InputError, match=sentence):
        quick().fit(np.zeros((3, 2)), given)
