"""What a person sees is what the model sees, whoever asks for an image and whatever kind of file it is."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tertium.data.batches import ImageLoader, Order
from tertium.data.decoding import open_image
from tertium.data.inputs import open_inputs
from tertium.data.pictures import pixel_batches
from tertium.data.views import View, resized
from tertium.models.features import _planes
from tertium.prediction.explaining import _Seen
from tertium.web.reviewing.views import Views
from tertium.web.serving import decode

SIZE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    image = Image.radial_gradient("L").resize((64, 48))
    colour = Image.merge("RGB", [image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), image.rotate(180)])
    colour.paste("red", (0, 0, 16, 16))  # a corner that tells how it lies
    noted = Image.Exif()
    for orientation in range(1, 9):
        noted[0x0112] = orientation
        colour.save(folder / f"turned-{orientation}.jpg", exif=noted)
    clear = colour.copy()
    clear.putalpha(image)
    clear.save(folder / "clear.png")
    colour.convert("CMYK").save(folder / "inks.jpg")
    colour.quantize(16).save(folder / "palette.gif", transparency=3)
    values = np.asarray(image)
    Image.fromarray(values.astype(np.uint16) * 257).save(folder / "deep.png")
    Image.fromarray(values.astype(np.int32) * 1000).save(folder / "whole.tif")
    Image.fromarray(values.astype(np.float32) / 255).save(folder / "float.tif")
    return folder


def test_everybody_gets_the_same_pixels(folder):
    names = sorted(path.name for path in folder.iterdir())
    pictures = open_inputs(folder, names=names).pictures
    trained = SimpleNamespace(view=View(SIZE), model=SimpleNamespace(backbone=object()))
    training = next(ImageLoader(pictures, None, SIZE, Order(len(names), len(names))).epoch(0)).inputs
    exported = np.concatenate(list(pixel_batches(pictures, View(SIZE), 16, 48)))
    views = Views(pictures, None)
    for row, name in enumerate(names):
        image = open_image(folder / name)
        wanted = np.asarray(resized(image, SIZE))
        others = {
            "training": training[row].numpy().transpose(1, 2, 0),
            "features": _planes(pictures, row, SIZE).transpose(1, 2, 0),
            "an exported model": exported[row],
            "explain": _Seen.of(trained, pictures, row).squashed,
            "serve": decode((folder / name).read_bytes(), SIZE, name),
        }
        for who, found in others.items():
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name}: {who}")
        assert np.asarray(image).std() > 20, name  # not all white, as a wrong scale would be
        shown = Image.open(io.BytesIO(views.image(row)))
        assert shown.size == image.size, name
        off = np.asarray(shown).astype(int) - np.asarray(image)
        assert np.abs(off).mean() < 4, name  # encoded once more
