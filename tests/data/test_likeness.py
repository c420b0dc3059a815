"""Near copies of images are found and said; different photographs are not."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tertium as package
from tertium.data.inputs import open_inputs
from tertium.data.likeness import MOST, looks, near
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.labels.splits import divide
from tertium.runs import RunFolder

COCO = Path(__file__).parents[2] / ".." / "shared" / "data" / "coco" / "images"


def drawn(rng, count, size=96):
    """Pictures with large and small shapes, none like another."""
    for _ in range(count):
        layers = [rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for side in (3, 6, 12, 24)]
        whole = [np.asarray(Image.fromarray(each).resize((size, size)), dtype=np.float32) for each in layers]
        yield Image.fromarray(
            (0.4 * whole[0] + 0.3 * whole[1] + 0.2 * whole[2] + 0.1 * whole[3]).astype(np.uint8)
        )


def encoded(image):
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=40)
    return Image.open(sink).convert("RGB")


def cropped(image, share):
    width, height = image.size
    cut = (width * share / 2, height * share / 2)
    return image.crop((round(cut[0]), round(cut[1]), round(width - cut[0]), round(height - cut[1])))


ALTERED = {
    "encoded": encoded,
    "resized": lambda image: image.resize((image.width // 2, image.height // 2)),
    "brighter": lambda image: image.point(lambda value: min(255, int(1.1 * value) + 5)),
    "cropped": lambda image: cropped(image, 0.05),
}


def looked(images):
    pixels = [np.asarray(image.resize((128, 128))) for image in images]
    return looks(open_inputs(np.stack(pixels)).pictures)[1]


@pytest.mark.parametrize("kind", ALTERED)
def test_altered_copies_are_found(rng, kind):
    images = list(drawn(rng, 40))
    pairs = near(looked([ALTERED[kind](image) for image in images]), looked(images))
    assert [(pair.row, pair.other) for pair in pairs] == [(row, row) for row in range(40)]


def test_different_pictures_are_not(rng):
    images = looked(drawn(rng, 200))
    assert near(images[:100], images[100:]) == []


def test_plain_and_unreadable_images_are_like_no_other(tmp_path):
    Image.new("RGB", (64, 64), "white").save(tmp_path / "a.png")
    Image.new("RGB", (64, 64), "white").save(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    found = looks(open_inputs(tmp_path).pictures)[1]
    assert near(found, found) == []


def test_of_very_many_images_evenly_spread_ones_are_looked_at(monkeypatch):
    monkeypatch.setattr("tertium.data.likeness.MOST", 10)
    rows, found = looks(open_inputs(np.zeros((95, 4, 4, 3), dtype=np.uint8)).pictures)
    assert len(rows) == len(found) == 10
    assert (rows[0], rows[-1]) == (0, 94)
    assert MOST**2 <= 10**8  # pairs: minutes, not hours


@pytest.mark.skipif(not COCO.is_dir(), reason="skipped: no ../shared/data")
def test_photographs():
    names = sorted(path.name for path in COCO.iterdir())[::30]
    images = [Image.open(COCO / name).convert("RGB") for name in names]
    found = looked(images)
    assert near(found[::2], found[1::2]) == []
    for kind, least in (("encoded", 0.98), ("resized", 0.98), ("cropped", 0.9)):
        pairs = near(looked([ALTERED[kind](image) for image in images[:60]]), found)
        assert all(pair.row == pair.other for pair in pairs)
        assert len(pairs) >= least * 60, kind


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Sixty pictures; the first ten of those that validate are resized copies of training images."""
    folder = tmp_path_factory.mktemp("near")
    (folder / "photos").mkdir()
    (folder / "tests").mkdir()
    names = [f"{number:02d}.png" for number in range(60)]
    images = list(drawn(np.random.default_rng(0), 75))
    taught, held_out = divide(names, 0.3, 0)
    for one, other in zip(held_out[:10], taught, strict=False):
        images[one] = images[other].resize((80, 80))
    for name, image in zip(names, images, strict=False):
        image.save(folder / "photos" / name)
    for number in range(15):  # five of these are cropped training images
        image = cropped(images[taught[number]], 0.05) if number < 5 else images[60 + number]
        image.save(folder / "tests" / f"t{number:02d}.png")
    rng = np.random.default_rng(1)
    for file, listed in (
        ("labels.csv", names),
        ("tests.csv", [f"t{number:02d}.png" for number in range(15)]),
    ):
        values = np.where(rng.random((len(listed), 2)) < 0.5, 1, -1)
        write_labels(Labels.from_dense(values, classes=["a", "b"], images=listed), folder / file)
    return folder


def test_train_and_evaluate_say_how_many(photos, tmp_path, tertium):
    words = ("--labels", photos / "labels.csv", "--images", photos / "photos", "--out", tmp_path / "run")
    code, _, errors = tertium(
        "train", *words, "--method", "bce", "epochs=1", "image_size=32", "validation=0.3"
    )
    assert code == 0
    said = " ".join(errors.split())
    assert "10 of " in said
    assert "validation images look nearly the same as training images" in said
    summary = RunFolder.open(tmp_path / "run").summary()
    assert len(summary["near_copies"]) == 10
    assert summary["near_copies"][0].keys() == {"validation", "training", "likeness"}
    words = ("--labels", photos / "tests.csv", "--images", photos / "tests")
    code, out, _ = tertium("evaluate", tmp_path / "run", *words)
    assert code == 0
    assert "5 images look nearly the same as training images (mAP(C) without them " in " ".join(out.split())
    done = package.evaluate(tmp_path / "run", photos / "tests.csv", photos / "tests")
    assert [image for image, _, _ in done.near] == [f"t{number:02d}.png" for number in range(5)]
    from tertium.labels.readers import read_labels

    rest = read_labels(photos / "tests.csv")[np.arange(5, 15)]
    alone = package.evaluate(tmp_path / "run", rest, photos / "tests")
    assert alone.near == ()
    np.testing.assert_allclose(done.apart.ap, alone.evaluation.ap)
