"""Images in memory, in every form that programs have them: the same pixels, or one sentence."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tertium.data.in_memory import pictures_of
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.training.train import train

PIXELS = np.random.default_rng(0).integers(0, 256, size=(4, 6, 8, 3), dtype=np.uint8)


class Items(Dataset):
    """A dataset of any items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def pillow(mode="RGB"):
    return [Image.fromarray(each).convert(mode) for each in PIXELS]


FORMS = {
    "pixels": PIXELS,
    "pixels, channels first": PIXELS.transpose(0, 3, 1, 2),
    "wide whole numbers": PIXELS.astype(np.int64),
    "floats to 1": PIXELS / 255,
    "floats to 255": PIXELS.astype(np.float32),
    "halves, channels first": (PIXELS / 255).transpose(0, 3, 1, 2).astype(np.float16),
    "tensor": torch.from_numpy(PIXELS),
    "tensor, channels first": torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
    "tensor of floats with a gradient": torch.from_numpy(PIXELS / 255).requires_grad_(),
    "list of images": pillow(),
    "list of arrays": list(PIXELS),
    "opaque alpha": np.concatenate([PIXELS, np.full((4, 6, 8, 1), 255, np.uint8)], axis=-1),
    "dataset of arrays": Items(PIXELS),
    "dataset of images and targets": Items([(image, 1) for image in pillow()]),
    "dataset of named things": Items([{"image": image, "label": 1} for image in pillow()]),
    "tensors of torch": TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_pixels(form):
    pictures = pictures_of(FORMS[form])
    off = 1 if form.startswith("halves") else 0
    for row, wanted in enumerate(PIXELS):
        got = np.asarray(pictures.open(row)).astype(int)
        assert np.abs(got - wanted).max() <= off
    assert pictures.select(np.array([2])).open(0, within=3).size == (3, 2)
    assert pictures.checksum(1) == pictures.select(np.array([1])).checksum(0) != pictures.checksum(2)


def test_grey_and_clear_images_are_as_a_viewer_shows_them():
    grey = PIXELS[..., 0]
    for given in (grey, grey[..., None], grey[:, None], pillow("L")):
        found = np.asarray(pictures_of(given).open(2))
        assert found.shape == (6, 8, 3)
    np.testing.assert_array_equal(np.asarray(pictures_of(grey).open(2)), np.stack([grey[2]] * 3, axis=-1))
    clear = np.zeros((1, 6, 8, 4), dtype=np.uint8)
    assert np.asarray(pictures_of(clear).open(0)).min() == 255  # over white


def test_what_is_white_is_said_by_all_images_of_an_array():
    dark = PIXELS / 255
    dark[0] *= 0.001
    assert np.asarray(pictures_of(dark).open(0)).max() == 0
    high = PIXELS.astype(float)
    high[0] = 1.0  # of 255
    assert np.asarray(pictures_of(high).open(0)).max() == 1


def test_what_is_white_is_said_by_the_first_image_of_a_dataset():
    high = list(PIXELS.astype(np.float32))
    high[1] = np.full((6, 8, 3), 1.0, np.float32)  # of 255
    high[2] = np.full((6, 8, 3), 5.0, np.float32)
    assert [np.asarray(pictures_of(high).open(row)).max() for row in (1, 2)] == [1, 5]
    assert np.asarray(pictures_of(high).select(np.array([2])).open(0)).max() == 5
    low = [each / 255 for each in PIXELS]
    low[1] = np.full((6, 8, 3), 1.004)  # resized, a little beyond white
    assert np.asarray(pictures_of(low).open(1)).min() == 255
    low[2] = PIXELS[2].astype(float)
    with pytest.raises(InputError, match=r"image 2 .* has values up to 25\d, the first one none beyond 1"):
        pictures_of(low).open(2)
    low[0] = np.zeros((6, 8, 3))  # tells nothing
    assert np.array_equal(np.asarray(pictures_of(low).open(2)), PIXELS[2])


REFUSED = {
    "the images: floats up to 3 are too large for 0 to 1 and too small for 0 to 255": PIXELS * 0.0 + 3,
    "a DataLoader gives batches, perhaps in another order; give its dataset": DataLoader(Items(PIXELS)),
    "the items of a dataset are images, not paths; give the paths alone": [("a.jpg", 0)] * 4,
    "images cannot be a dict; give a folder, pixels": dict(enumerate(PIXELS)),
    "images cannot be a generator": (each for each in PIXELS),
    "the images: values from -3 to .* are not pixels; .* before they are standardised": PIXELS / 10.0 - 3,
    "values from nan to nan are not pixels": np.full((4, 6, 8, 3), np.nan),
    r"images have the shape \[4, 144\]": PIXELS.reshape(4, -1),
    r"image 0 of the dataset, counted from 0 has the shape \[6, 8, 5\]": [np.zeros((6, 8, 5))] * 4,
    r"image 0 of the dataset, counted from 0: values from -1": Items([(-np.ones((6, 8, 3)), 1)] * 4),
    "the images are of the type": np.full((4, 6, 8, 3), "x"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_no_image_is_one_sentence(sentence):
    with pytest.raises(InputError, match=sentence):
        open_inputs(REFUSED[sentence], names=list("abcd")).pictures.open(0)


def test_training_takes_a_dataset_as_it_takes_pixels(rng):
    pixels = rng.integers(0, 256, size=(12, 32, 32, 3), dtype=np.uint8)
    labels = Labels.from_dense(np.where(rng.random((12, 2)) < 0.5, 1, -1))
    settings = {"image_size": 32, "epochs": 1, "method": "ignore"}
    wanted = train(labels, pixels, **settings).trained.predict_proba(pixels)
    dataset = Items([(Image.fromarray(each), 0) for each in pixels])
    trained = train(labels, dataset, **settings).trained
    np.testing.assert_array_equal(trained.predict_proba(dataset), wanted)
    with pytest.raises(InputError, match="a DataLoader gives batches"):
        train(labels, DataLoader(dataset), **settings)
    with pytest.raises(InputError, match=r"labels cannot be a ndarray; give a label file or tertium\.Labels"):
        train(np.ones((12, 2)), pixels, **settings)
