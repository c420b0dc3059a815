import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.models import neighbours
from tertium.models.neighbours import class_medians, distances, nearest, normalise


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_nearest_agrees_with_scikit_learn(distance, kind, rng, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK", 300 * 64)  # 64 rows at a time, so that blocks must fit together
    features = rng.normal(size=(300, 12)).astype(kind)
    far, index = (
        NearestNeighbors(n_neighbors=8, algorithm="brute", metric=distance)
        .fit(features.astype(np.float64))
        .kneighbors()  # without an argument it leaves out the point itself
    )
    found, how_far = nearest(features, 8, distance=distance)
    assert np.array_equal(found, index)
    np.testing.assert_allclose(how_far, far, atol=1e-6)
    assert how_far.dtype == (np.float64 if kind == np.float64 else np.float32)


def test_nearest_leaves_out_the_image_itself_but_not_its_copy():
    index, far = nearest([[1.0, 2.0], [1.0, 2.0], [5.0, -1.0]], 1, distance="euclidean")
    assert index.tolist() == [[1], [0], [0]] or index.tolist() == [[1], [0], [1]]
    assert far[:2].tolist() == [[0.0], [0.0]]


def test_near_copies_far_from_the_origin_keep_their_order():
    """|a|² + |b|² − 2ab in float32 would call all of these distances 0 or noise."""
    features = np.array([[1000.0], [1000.5], [1001.5]], dtype=np.float32)
    _, far = nearest(features, 2, distance="euclidean")
    assert far.tolist() == [[0.5, 1.5], [0.5, 1.0], [1.0, 1.5]]


@pytest.mark.parametrize(("rows", "k", "left"), [(1, 10, 0), (2, 10, 1), (6, 10, 5), (6, 3, 3)])
def test_no_more_neighbours_than_there_are(rows, k, left, rng):
    index, far = nearest(rng.normal(size=(rows, 4)), k)
    assert index.shape == far.shape == (rows, left)
    assert all(len({row, *found}) == left + 1 for row, found in enumerate(index.tolist()))


def test_normalise(rng):
    features = rng.normal(size=(20, 5)).astype(np.float16)
    features[3] = 0
    unit = normalise(features)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.delete(np.linalg.norm(unit, axis=1), 3), 1, rtol=1e-6)
    assert not unit[3].any()
    again = normalise(np.delete(unit, 3, axis=0))
    assert normalise(again) is again
    features[5, 2] = np.nan
    with pytest.raises(InputError, match="not finite"):
        normalise(features)


def test_class_medians_are_those_of_loops(rng):
    features = rng.normal(size=(50, 7))
    dense = np.where(rng.random((50, 6)) < 0.3, 1, -1) * (rng.random((50, 6)) < 0.5)
    dense[:, 2] = -1  # known, but present nowhere
    dense[:, 4] = 0
    found = class_medians(features, Labels.from_dense(dense))
    for column in range(6):
        members = features[dense[:, column] == 1]
        expected = np.median(members, axis=0) if len(members) else np.full(7, np.nan)
        np.testing.assert_array_equal(found[column], expected)
    assert np.isnan(found[[2, 4]]).all()
    assert np.isfinite(found[[0, 1, 3, 5]]).all()


def test_distances_between_points():
    points = [[1.0, 0.0], [3.0, 4.0], [0.0, 0.0], [np.nan, np.nan]]
    cosine = distances(points)
    np.testing.assert_allclose(cosine[:3, :3], [[0, 0.4, 1], [0.4, 0, 1], [1, 1, 1]], atol=1e-12)
    straight = distances(points, distance="euclidean")
    np.testing.assert_allclose(straight[:3, :3], [[0, 20**0.5, 1], [20**0.5, 0, 5], [1, 5, 0]])
    for found in (cosine, straight):
        assert np.isnan(found[3]).all()
        assert np.isnan(found[:, 3]).all()
