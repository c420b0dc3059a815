"""Images found below a folder, by the names that labels give them."""

import os

import numpy as np
import pytest
from PIL import Image

from tertium.data.inputs import open_inputs
from tertium.data.pictures import (
    ArrayPictures,
    check_pictures,
    damaged,
)
from tertium.errors import InputError
from tertium.progress import Progress


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.jpg"):
        Image.new("RGB", (30, 20), "teal").save(tmp_path / "photos" / name)
    Image.new("RGB", (30, 20)).save(tmp_path / "outside.png")
    return tmp_path / "photos"


def test_every_kind_of_image_is_listed(tmp_path):
    names = [f"x{suffix}" for suffix in (".AVIF", ".HEIC", ".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg",
                                         ".jpg", ".png", ".tif", ".tiff", ".webp")]  # fmt: skip
    for name in [*names, "x.txt", "x.jp2", "heic"]:
        (tmp_path / name).touch()
    assert open_inputs(tmp_path).names == names


def test_names_may_be_written_otherwise(folder):
    found = open_inputs(folder, names=["./a.png", "sub//b.jpg"]).pictures
    assert found.names == ["./a.png", "sub//b.jpg"]  # ids stay as they are
    assert [found.open(row).size for row in (0, 1)] == [(30, 20)] * 2
    with pytest.raises(InputError, match=r'"a\.png" and "\./a\.png" are the same image; label it once'):
        open_inputs(folder, names=["a.png", "sub/b.jpg", "./a.png"])


@pytest.mark.parametrize(
    "name", ["../outside.png", "sub/../../outside.png", "sub/../a.png", "/etc/passwd.png"]
)
def test_no_name_leads_out_of_the_folder(folder, name):
    with pytest.raises(InputError, match="is not named by a path inside this folder"):
        open_inputs(folder, names=["a.png", name])
    with pytest.raises(InputError, match="is not named by a path inside this folder"):
        damaged(folder, ["a.png", name], Progress())


def test_a_file_that_is_there_but_no_image_is_not_called_missing(folder):
    with pytest.raises(InputError, match=r"1 of 2 labelled images are missing: c\.png"):
        open_inputs(folder, names=["a.png", "c.png"])
    (folder / "c.jp2").touch()
    with pytest.raises(InputError, match=r"c\.jp2: not an image by its name; names end with \.jpg, "):
        open_inputs(folder, names=["a.png", "c.jp2"])


def test_a_pipe_among_the_images_is_named(folder):
    os.mkfifo(folder / "pipe.jpg")
    found = open_inputs(folder, names=["a.png", "pipe.jpg", "sub/b.jpg"]).pictures
    wanted = r"pipe\.jpg: a pipe, socket or device, not an image file"
    for call in (
        lambda: check_pictures(found, lambda: None),
        lambda: found.checksum(1),
        lambda: found.open(1),
    ):
        with pytest.raises(InputError, match=wanted):
            call()
    assert list(damaged(folder, list(found.names), Progress())) == ["pipe.jpg"]


def test_a_file_that_is_gone_is_named(folder):
    found = open_inputs(folder, names=["a.png"]).pictures
    (folder / "a.png").unlink()
    for call in (lambda: found.checksum(0), lambda: found.open(0)):
        with pytest.raises(InputError, match=r"a\.png: no such image"):
            call()


def test_pictures_are_made_small_for_people(folder):
    pixels = np.full((1, 20, 30, 3), 7, dtype=np.uint8)
    for pictures in (open_inputs(folder, names=["a.png"]).pictures, ArrayPictures(pixels)):
        assert pictures.open(0, within=15).size == (15, 10)
        assert pictures.open(0, within=99).size == pictures.open(0).size == (30, 20)
