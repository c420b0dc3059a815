import numpy as np
import pytest
import torch
from PIL import Image

from tertium.data.batches import FeatureLoader, ImageLoader, Order
from tertium.data.decoding import open_image
from tertium.data.feature_files import load_features
from tertium.data.inputs import open_inputs
from tertium.data.pictures import (
    ArrayPictures,
    check_pictures,
)
from tertium.data.views import augmented, resized
from tertium.errors import InputError
from tertium.labels import Labels


@pytest.fixture
def photos(tmp_path, rng):
    (tmp_path / "deep").mkdir()
    for name in ("b.jpg", "a.png", "deep/c.JPG"):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


@pytest.mark.parametrize("dense", [True, False])
def test_feature_batches_cover_every_row_once(rng, monkeypatch, dense):
    if not dense:
        monkeypatch.setattr("tertium.data.batches._DENSE_LABELS", 0)
    features = rng.normal(size=(23, 4)).astype(np.float16)
    labels = Labels.from_dense(rng.integers(-1, 2, size=(23, 3)))
    loader = FeatureLoader(features, labels, Order(len(labels), 5, seed=1))
    for epoch in (0, 1, 2):
        batches = list(loader.epoch(epoch))
        assert len(batches) == len(loader) == 5
        index = torch.cat([batch.index for batch in batches]).numpy()
        assert sorted(index) == list(range(23))
        assert (index == np.arange(23)).all() == (epoch == 0)
        for batch in batches:
            torch.testing.assert_close(batch.inputs, torch.from_numpy(features)[batch.index].float())
            np.testing.assert_array_equal(batch.labels, labels.dense(batch.index.numpy()))


def test_the_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return np.concatenate(Order(50, 8, seed).rows(epoch))

    np.testing.assert_array_equal(order(1, 2), order(1, 2))
    assert not np.array_equal(order(1, 2), order(1, 3))
    assert not np.array_equal(order(1, 2), order(2, 2))


@pytest.mark.parametrize(("count", "size", "world"), [(50, 8, 2), (51, 8, 2), (100, 10, 3), (23, 8, 4)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_processes_share_the_rows_out(count, size, world, epoch):
    """Each keeps to its rows, none runs out of batches, and weighted means give the mean over all."""
    orders = [Order(count, size, 1, rank, world) for rank in range(world)]
    batches = [order.rows(epoch) for order in orders]
    assert {len(own) for own in batches} == {len(orders[0])}
    for rank, own in enumerate(batches):
        assert sorted(np.concatenate(own)) == list(range(rank, count, world))
    for step in range(len(orders[0])):
        rows = [own[step] for own in batches]
        assert min(len(part) for part in rows) > 0
        weighted = [order.share(step) * part.mean() for order, part in zip(orders, rows, strict=True)]
        assert np.mean(weighted) == pytest.approx(np.concatenate(rows).mean())


def test_too_many_processes_for_the_images():
    with pytest.raises(InputError, match="3 images in batches of 2 are too few for 2 processes"):
        Order(3, 2, world=2)


def test_an_epoch_can_start_in_the_middle(rng):
    pixels = rng.integers(0, 256, size=(9, 20, 20, 3), dtype=np.uint8)
    labels = Labels.from_dense(rng.integers(-1, 2, size=(9, 3)))
    order = Order(9, 2, seed=5)
    for loader in (
        FeatureLoader(rng.normal(size=(9, 4)), labels, order),
        ImageLoader(ArrayPictures(pixels), labels, 32, order),
    ):
        whole, rest = (list(loader.epoch(1, start)) for start in (0, 3))
        assert len(rest) == 2
        for one, other in zip(whole[3:], rest, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.index, other.index)


def test_image_batches_do_not_depend_on_the_number_of_workers(rng):
    pixels = rng.integers(0, 256, size=(9, 20, 20, 3), dtype=np.uint8)
    labels = Labels.from_dense(rng.integers(-1, 2, size=(9, 3)))
    for epoch in (0, 1):
        alone, helped = (
            list(
                ImageLoader(
                    ArrayPictures(pixels), labels, 32, Order(len(labels), 4, seed=5), workers=workers
                ).epoch(epoch)
            )
            for workers in (0, 2)
        )
        assert len(alone) == 3
        for one, other in zip(alone, helped, strict=True):
            assert one.inputs.dtype == torch.uint8
            assert one.inputs.shape[1:] == (3, 32, 32)
            for part in ("inputs", "labels", "index"):
                assert torch.equal(getattr(one, part), getattr(other, part))


def test_epochs_are_augmented_differently(rng):
    pixels = rng.integers(0, 256, size=(2, 20, 20, 3), dtype=np.uint8)
    labels = Labels.from_dense([[1], [1]])
    loader = ImageLoader(ArrayPictures(pixels), labels, 32, Order(len(labels), 2))
    first, second = (next(iter(loader.epoch(epoch))) for epoch in (1, 2))
    order = torch.argsort(first.index), torch.argsort(second.index)
    assert not torch.equal(first.inputs[order[0]], second.inputs[order[1]])
    plain = next(iter(loader.epoch(0)))
    expected = np.asarray(resized(Image.fromarray(pixels[1]), 32)).transpose(2, 0, 1)
    np.testing.assert_array_equal(plain.inputs[1], expected)


@pytest.mark.parametrize(("room", "opened"), [(2**20, 3), (2 * 4 * 40 * 50, 6), (0, 12)])
def test_images_stay_decoded_as_far_as_there_is_room(photos, monkeypatch, room, opened):
    """Three images in four epochs; the pixels are the same as if nothing were kept."""
    monkeypatch.setattr("tertium.data.batches._KEPT", room)
    pictures = open_inputs(photos, None, ["a.png", "b.jpg", "deep/c.JPG"]).pictures
    seen = []
    plain, kept = (ImageLoader(pictures, None, 32, Order(3, 3), keep=keep) for keep in (False, True))
    expected = [next(iter(plain.epoch(epoch))).inputs for epoch in range(4)]
    whole = type(pictures).open
    monkeypatch.setattr(type(pictures), "open", lambda self, row: seen.append(row) or whole(self, row))
    found = [next(iter(kept.epoch(epoch))).inputs for epoch in range(4)]
    assert len(seen) == opened
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_augmentation_stays_inside_the_image():
    """A picture that is white with a black border outside it never shows black."""
    white = Image.fromarray(np.full((30, 60, 3), 255, dtype=np.uint8))
    for key in range(50):
        assert np.asarray(augmented(white, 32, (key,))).min() == 255


def test_folders(photos):
    assert open_inputs(photos).names == ["a.png", "b.jpg", "deep/c.JPG"]
    pictures = open_inputs(photos, names=["deep/c.JPG", "a.png"]).pictures
    assert pictures.open(0).size == (50, 40)
    assert pictures.select(np.array([1])).names == ["a.png"]
    ticks = []
    check_pictures(pictures, lambda: ticks.append(1))
    assert len(ticks) == 2


def test_missing_and_damaged_images_are_named(photos):
    with pytest.raises(InputError, match=r"1 of 2 labelled images are missing: d\.jpg"):
        open_inputs(photos, names=["a.png", "d.jpg"])
    with pytest.raises(InputError, match="no such folder"):
        open_inputs(photos / "none", names=[])
    whole = (photos / "b.jpg").read_bytes()
    (photos / "b.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"b\.jpg: the image is damaged"):
        check_pictures(open_inputs(photos, names=["a.png", "b.jpg"]).pictures, lambda: None)
    (photos / "a.png").write_text("not an image")
    with pytest.raises(InputError, match=r"a\.png: not an image"):
        open_image(photos / "a.png")
    with pytest.raises(InputError, match="no such image"):
        open_image(photos / "none.png")


def test_grey_and_transparent_images_become_rgb(tmp_path):
    for mode in ("L", "RGBA", "P", "LA", "1", "I;16"):
        path = tmp_path / f"{mode.replace(';', '')}.png"
        Image.new(mode, (8, 8)).save(path)
        assert open_image(path).mode == "RGB"


def test_features_are_checked(tmp_path, rng):
    path = tmp_path / "x.npy"
    np.save(path, rng.normal(size=(5, 3)))
    assert load_features(path, 5).shape == (5, 3)
    with pytest.raises(InputError, match="5 rows of features for 6 labelled images"):
        load_features(path, 6)
    for content, message in (
        (np.arange(5), "features must be .images, width. of"),
        (np.array([{"a": 1}], dtype=object), "not a .npy array of numbers"),
    ):
        np.save(path, content, allow_pickle=True)
        with pytest.raises(InputError, match=message):
            load_features(path)
    path.write_text("text")
    with pytest.raises(InputError, match=r"not a \.npy array"):
        load_features(path)
    with pytest.raises(InputError, match="no such file"):
        load_features(tmp_path / "none.npy")
