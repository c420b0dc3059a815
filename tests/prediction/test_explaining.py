"""Activation maps agree with the logits, files with the maps, the pointing game with what it says."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import nn

from tertium.data.decoding import open_image
from tertium.data.pictures import ArrayPictures
from tertium.data.scenes import CLASSES, render
from tertium.data.views import View, resized
from tertium.errors import InputError
from tertium.labels.formats.coco import Boxes
from tertium.models.backbones import Backbone
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
from tertium.models.features import extract
from tertium.prediction.explaining import (
    activation_maps,
    explain,
    explain_files,
    normalised,
    overlaid,
    peaks,
    raw_maps,
)
from tertium.prediction.pointing import pointing_game
from tertium.prediction.trained import Trained
from tertium.training.train import train

NAMES = ("ant", "bee", "cat", "dog")


def classifier(backbone, boost=1.0):
    torch.manual_seed(1)
    model = Classifier(NAMES, backbone.width, backbone, boost).eval()
    nn.init.normal_(model.head.weight, std=0.3)
    nn.init.normal_(model.head.bias)
    model.center.normal_()
    model.scale.uniform_(0.5, 2)
    return model


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return pretrained("test_efficientnet", "random", 96).eval()


@pytest.fixture(scope="module")
def trained(small):
    return Trained(classifier(small), np.full(4, 0.5))


def photo(rng, width=90, height=60):
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


# ---- maps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boost", [1.0, 5.0])
def test_the_mean_of_a_map_and_the_bias_are_the_logit(small, boost):
    model = classifier(small, boost)
    images = torch.randint(0, 256, (3, 3, 96, 160), dtype=torch.uint8)
    columns = [2, 0, 3]
    with torch.inference_mode():
        maps = raw_maps(model, images, columns)
        logits = model(images)[:, columns]
    assert maps.shape == (3, 3, 3, 5)
    assert logits.std() > 0.1
    assert (maps > 0).any()
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + model.head.bias[columns], logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("boost", [1.0, 5.0])
def test_a_place_is_scored_like_an_image_of_its_features(small, boost):
    """One place at a time through the head, as if its features were the pooled ones."""
    model = classifier(small, boost)
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    head = Classifier(NAMES, small.width).eval()
    head.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "backbone" not in name}
    )
    with torch.inference_mode():
        found, features = raw_maps(model, images, range(4)), small.maps(images)
        for image, y, x in np.ndindex(2, 2, 3):
            scores = head(features[image, :, y, x][None])[0]
            scores = torch.where(scores > 0, boost * scores, scores)
            torch.testing.assert_close(found[image, :, y, x], scores - head.head.bias, atol=1e-4, rtol=1e-4)


def test_activation_maps_are_cut_off_and_scaled_one_by_one(trained, rng):
    image = photo(rng)
    maps = activation_maps(trained, image, [3, 1])
    assert maps.shape == (2, 3, 3)
    assert maps.dtype == np.float32
    pixels = torch.from_numpy(np.asarray(resized(image, trained.view)).transpose(2, 0, 1).copy())[None]
    with torch.inference_mode():
        raw = raw_maps(trained.model, pixels, [3, 1])[0].numpy()
    for map_, plain in zip(maps, raw, strict=True):
        np.testing.assert_allclose(map_, [[max(v, 0) / plain.max() for v in row] for row in plain], atol=1e-5)


def test_a_class_that_nothing_speaks_for_has_an_empty_map():
    maps = normalised(np.array([[[-3.0, -1.0]], [[2.0, 4.0]]], dtype=np.float32))
    np.testing.assert_array_equal(maps, [[[0, 0]], [[0.5, 1]]])


def test_the_peak_is_the_middle_of_the_highest_place(rng):
    maps = rng.normal(size=(3, 2, 4, 5)).astype(np.float32)
    found = peaks(torch.from_numpy(maps)).numpy()
    for image, column in np.ndindex(3, 2):
        y, x = max(np.ndindex(4, 5), key=lambda place: maps[image, column, place[0], place[1]])
        np.testing.assert_allclose(found[image, column], [(x + 0.5) / 5, (y + 0.5) / 4], rtol=1e-6)


def test_models_without_places_are_refused(rng):
    on_features = Trained(Classifier(NAMES, 8), np.full(4, 0.5))
    with pytest.raises(InputError, match="trained on ready features"):
        activation_maps(on_features, photo(rng), [0])
    for name in ("test_vit", "test_convnext"):  # tokens; a pooling inside the head, with a norm behind it
        backbone = Backbone(name).eval()
        with pytest.raises(InputError, match=f'"{name}" does not average a map'):
            raw_maps(classifier(backbone), torch.zeros(1, 3, 160, 160, dtype=torch.uint8), [0])


# ---- some images -------------------------------------------------------------------------------------------


def test_explanations_have_the_probabilities_of_predictions(trained, rng):
    images = [photo(rng) for _ in range(3)]
    expected = trained.predict_proba(np.stack([np.asarray(image) for image in images]))
    for row, found in enumerate(explain(trained, images, top=3)):
        np.testing.assert_array_equal(found.columns, np.argsort(-expected[row])[:3])
        np.testing.assert_allclose(found.probabilities, np.sort(expected[row])[::-1][:3], atol=1e-5)
        np.testing.assert_allclose(
            found.maps, activation_maps(trained, images[row], found.columns.tolist()), atol=1e-4
        )
    for row, found in enumerate(explain(trained, images, classes=["dog", "ant"])):
        np.testing.assert_allclose(found.probabilities, expected[row][[3, 0]], atol=1e-5)
    with pytest.raises(InputError, match='knows no class "dgo"; did you mean "dog"'):
        explain(trained, images, classes=["dgo"])


def test_an_overlay_is_grey_where_it_is_cold(rng):
    image = photo(rng, 60, 40)
    before = np.asarray(image).copy()
    cold = np.asarray(overlaid(image, np.zeros((2, 3), dtype=np.float32)))
    np.testing.assert_array_equal(cold, np.asarray(image.convert("L"))[..., None].repeat(3, axis=2))
    heat = np.zeros((2, 3), dtype=np.float32)
    heat[0, 2] = 1
    some = np.asarray(overlaid(image, heat)).astype(int)
    warm = np.abs(some - cold).mean(axis=2)
    assert warm[:15, 45:].mean() > 10 * warm[25:, :15].mean()  # top right, not bottom left
    np.testing.assert_array_equal(np.asarray(image), before)


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trained.save(folder)
    return folder


def test_explain_writes_pictures_and_numbers(tertium, run, trained, tmp_path, rng):
    for name, size in (("a/one.png", (90, 60)), ("b/one.png", (30, 120))):
        (tmp_path / name).parent.mkdir()
        photo(rng, *size).save(tmp_path / name)
    out = tmp_path / "new" / "maps"
    code, printed, errors = tertium(
        "explain", run, tmp_path / "a/one.png", tmp_path / "b/one.png", "--top", 2, "--out", out
    )
    assert code == 0
    assert errors == "explaining: 2 images\n"
    assert f"Pictures of 2 images and explained.csv → {out}" in printed
    assert sorted(path.name for path in out.iterdir()) == ["explained.csv", "one-2.png", "one.png"]
    wide, high = Image.open(out / "one.png").size, Image.open(out / "one-2.png").size
    assert wide[0] == high[0]  # three panels
    assert high[1] - wide[1] == 240 - 160  # as high as the panel
    with open(out / "explained.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["image"] for row in rows] == [
        str(tmp_path / name) for name in ("a/one.png",) * 2 + ("b/one.png",) * 2
    ]
    images = [open_image(tmp_path / name) for name in ("a/one.png", "b/one.png")]
    for image, own, found in zip(images, (rows[:2], rows[2:]), explain(trained, images, top=2), strict=True):
        assert [row["label"] for row in own] == [NAMES[column] for column in found.columns]
        np.testing.assert_allclose([float(row["probability"]) for row in own], found.probabilities, atol=1e-6)
        places = np.array([[float(row["x"]), float(row["y"])] for row in own])
        np.testing.assert_allclose(places, found.peaks * image.size, atol=0.051)
        assert all(row["label"] in printed for row in own)


def test_named_classes_are_explained_in_their_order(tertium, run, tmp_path, rng):
    photo(rng).save(tmp_path / "x.jpg")
    assert (
        tertium("explain", run, tmp_path / "x.jpg", "--classes", "dog, ant", "--out", tmp_path / "m")[0] == 0
    )
    with open(tmp_path / "m" / "explained.csv", newline="") as lines:
        assert [row["label"] for row in csv.DictReader(lines)] == ["dog", "ant"]


def test_one_image_is_one_image(tertium, run, tmp_path, rng):
    photo(rng).save(tmp_path / "x.png")
    code, printed, errors = tertium("explain", run, tmp_path / "x.png", "--out", tmp_path / "m")
    assert (code, errors) == (0, "explaining: 1 image\n")
    assert "Pictures of 1 image and explained.csv" in printed


def test_an_image_that_cannot_be_read_leaves_nothing(tertium, run, tmp_path, rng, monkeypatch):
    monkeypatch.setattr("tertium.prediction.explaining._BATCH", 1)  # what comes before it is drawn already
    photo(rng).save(tmp_path / "x.png")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    there = tmp_path / "there"
    there.mkdir()
    (there / "x.png").write_bytes(b"of an earlier time")
    for out in (tmp_path / "new" / "maps", there):
        broken = tmp_path / "broken.jpg"
        assert tertium("explain", run, tmp_path / "x.png", broken, "--out", out, "--overwrite")[0] == 2
        assert tertium("pointing", run, broken, "--images", tmp_path, "--out", out, "--overwrite")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jpg", "there", "x.png"]
    assert [(path.name, path.read_bytes()) for path in there.iterdir()] == [("x.png", b"of an earlier time")]
    code, *_ = tertium("explain", run, tmp_path / "x.png", "--out", there, "--overwrite")
    assert code == 0
    assert sorted(path.name for path in there.iterdir()) == ["explained.csv", "x.png"]
    assert Image.open(there / "x.png").size[0] > 90
    (there / "explained.csv").unlink()
    (there / "explained.csv").mkdir()
    code, _, errors = tertium("explain", run, tmp_path / "x.png", "--out", there, "--overwrite")
    assert code == 2
    assert "cannot be written to" in " ".join(errors.split())


def test_what_cannot_be_explained_is_one_sentence(tertium, run, tmp_path, rng):
    photo(rng).save(tmp_path / "x.png")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    out = tmp_path / "maps"
    for words, message in [
        ([], "IMAGE is missing"),
        ([tmp_path / "none.jpg"], "none.jpg: no such image"),
        ([tmp_path], "is a folder"),
        ([tmp_path / "x.png", tmp_path / "broken.jpg"], "broken.jpg: not an image"),
        ([tmp_path / "x.png", "--classes", "bea"], 'knows no class "bea"; did you mean "bee"?'),
        ([tmp_path / "x.png", "--classes", "bee", "--top", 2], "exclude each other"),
        ([tmp_path / "x.png", "--classes", " , "], "--classes names no class"),
    ]:
        code, _, errors = tertium("explain", run, *words, "--out", out)
        assert code == 2, words
        assert message in " ".join(errors.split()), words
        assert not out.exists()
    code, _, errors = tertium("explain", run, tmp_path / "x.png", "--out", tmp_path)
    assert code == 2
    assert "would replace the image" in errors
    for command, *words in (
        ["explain", run, tmp_path / "x.png"],
        ["pointing", run, tmp_path / "b.json", "--images", tmp_path],
    ):
        code, _, errors = tertium(command, *words, "--out", tmp_path / "broken.jpg" / "maps")
        assert code == 2
        assert "no folder can be made here" in " ".join(errors.split())


def test_letters_of_other_alphabets_and_long_names_are_drawn(small, tmp_path, rng):
    names = ("Σκύλος", "w" * 300)
    model = Classifier(names, small.width, small).eval()
    photo(rng).save(tmp_path / "x.png")
    trained = Trained(model, np.full(2, 0.5))
    rows = explain_files(trained, [tmp_path / "x.png"], tmp_path / "out")
    assert {row.label for row in rows} == set(names)
    picture = np.asarray(Image.open(tmp_path / "out" / "x.png").convert("L"))
    assert (picture[:, -12:] == 255).all()  # nothing runs into the margin


# ---- the pointing game -------------------------------------------------------------------------------------


class Colours(nn.Module):
    """A stand-in for a backbone: the mean red, green and blue of each 8 × 8 pixels."""

    name, width, view = "colours", 3, View(64)

    def maps(self, images):
        return nn.functional.avg_pool2d(images.float(), 8)

    def forward(self, images):
        return self.maps(images).mean(dim=(2, 3))


@pytest.fixture
def by_colour():
    model = Classifier(("red", "green", "blue"), 3, Colours()).eval()
    nn.init.eye_(model.head.weight)
    return Trained(model, np.full(3, 0.5))


def boxes_of(sizes, objects, classes, images=None):
    """Objects are (image, class, x0, y0, x1, y1, unsure)."""
    table = np.array(objects, dtype=np.float64).reshape(-1, 7)
    return Boxes(
        images=pa.array(images or [f"{number}.png" for number in range(len(sizes))], pa.string()),
        sizes=np.array(sizes),
        classes=tuple(classes),
        rows=table[:, 0].astype(np.int64),
        columns=table[:, 1].astype(np.int64),
        corners=table[:, 2:6],
        unsure=table[:, 6] > 0,
    )


def test_a_point_is_found_in_the_image_that_the_boxes_speak_of(by_colour, tmp_path):
    """A wide image, squashed to a square by the model, and kept at half the size of the annotated one."""
    pixels = np.zeros((50, 200, 3), dtype=np.uint8)
    pixels[0:12, 150:175, 0] = 255  # red, at 300 to 350, 0 to 24 of the annotated 400 × 100
    pixels[38:50, 0:25, 2] = 255  # blue, at 0 to 50, 76 to 100
    Image.fromarray(pixels).save(tmp_path / "0.png")
    near = [(0, 0, 300, 0, 350, 24, 0), (0, 2, 0, 76, 50, 100, 0)]
    found = pointing_game(by_colour, boxes_of([(400, 100)], near, by_colour.classes), tmp_path, tolerance=0)
    assert found.classes == ("red", "blue")
    np.testing.assert_array_equal(found.counts, [1, 1])
    np.testing.assert_array_equal(found.hits, [1, 1])
    np.testing.assert_array_equal(found.centre, [0, 0])
    # The highest place of red has its middle at 52, 4 of 64 × 64, which is 325, 6.25 of 400 × 100.
    # A box 10 to the right and 12 below is hit by whoever allows the hypotenuse.
    beside = boxes_of([(400, 100)], [(0, 0, 335, 18.25, 400, 100, 0)], by_colour.classes)
    distance = np.hypot(10, 12)
    for tolerance, hits in ((distance - 0.1, 0), (distance + 0.1, 1)):
        assert pointing_game(by_colour, beside, tmp_path, tolerance=tolerance).hits.tolist() == [hits]


def test_unsure_boxes_may_be_hit_but_do_not_count_alone(by_colour):
    pixels = np.zeros((2, 64, 64, 3), dtype=np.uint8)
    pixels[:, 8:16, 8:16] = 255
    objects = [
        (0, 0, 40, 40, 60, 60, 0),  # missed, but the unsure one is hit
        (0, 0, 0, 0, 20, 20, 1),
        (0, 1, 0, 0, 20, 20, 1),  # alone
        (1, 2, 40, 40, 60, 60, 0),  # missed
    ]
    found = pointing_game(
        by_colour, boxes_of([(64, 64)] * 2, objects, by_colour.classes), pixels, tolerance=0
    )
    assert found.classes == ("red", "blue")
    np.testing.assert_array_equal(found.hits, [1, 0])
    assert found.images == 2


def slow_game(trained, boxes, folder, tolerance):
    """Return counts and hits by class: one image, one class, one box after the other."""
    counts, hits = dict.fromkeys(trained.classes, 0), dict.fromkeys(trained.classes, 0)
    for row, name in enumerate(boxes.images.to_pylist()):
        if not (folder / name).is_file():
            continue
        image = np.asarray(resized(Image.open(folder / name).convert("RGB"), trained.view))
        with torch.inference_mode():
            features = trained.model.backbone.maps(torch.from_numpy(image.transpose(2, 0, 1).copy())[None])[0]
        for column, label in enumerate(trained.classes):
            own = [
                (corners, unsure)
                for at, number, corners, unsure in zip(
                    boxes.rows, boxes.columns, boxes.corners, boxes.unsure, strict=True
                )
                if at == row and boxes.classes[number] == label
            ]
            if all(unsure for _, unsure in own):
                continue
            weight = trained.model.head.weight[column].detach()
            best, point = -np.inf, (0.0, 0.0)
            high, wide = features.shape[1:]
            for y, x in np.ndindex(high, wide):
                standard = (features[:, y, x] - trained.model.center) * trained.model.scale
                score = float(weight @ standard)
                if score > best:
                    width, height = boxes.sizes[row]
                    best, point = score, ((x + 0.5) * width / wide, (y + 0.5) * height / high)
            counts[label] += 1
            for (x0, y0, x1, y1), _ in own:
                across = x0 - point[0] if point[0] < x0 else point[0] - x1 if point[0] > x1 else 0
                down = y0 - point[1] if point[1] < y0 else point[1] - y1 if point[1] > y1 else 0
                if (across**2 + down**2) ** 0.5 <= tolerance:
                    hits[label] += 1
                    break
    played = [label for label in trained.classes if counts[label]]
    return played, [counts[label] for label in played], [hits[label] for label in played]


@pytest.mark.parametrize("tolerance", [0.0, 15.0])
def test_the_game_agrees_with_one_that_is_played_slowly(trained, tmp_path, rng, tolerance):
    count = 70  # more than a batch
    sizes = rng.integers(40, 200, size=(count, 2))
    for number in range(0, count - 2):  # the last two are not there
        photo(rng, *(sizes[number] // 2)).save(tmp_path / f"{number}.png")
    rows = np.sort(rng.integers(0, count, size=220))
    rows = rows[rng.permutation(len(rows))]  # boxes need not stand in the order of the images
    starts = rng.random((len(rows), 2)) * 0.8
    ends = starts + rng.random((len(rows), 2)) * (1 - starts) * 0.5
    corners = np.concatenate([starts * sizes[rows], ends * sizes[rows]], axis=1)
    classes = ("dog", "unicorn", "cat", "bee", "ant")  # another order, and one that the model does not know
    columns = rng.integers(0, 5, size=len(rows))
    objects = np.column_stack([rows, columns, corners, rng.random(len(rows)) < 0.2])
    boxes = boxes_of(sizes, objects, classes)
    found = pointing_game(trained, boxes, tmp_path, tolerance=tolerance)
    played, counts, hits = slow_game(trained, boxes, tmp_path, tolerance)
    assert list(found.classes) == played
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.hits, hits)
    assert 0 < sum(hits) < sum(counts)
    assert found.mean == pytest.approx(np.mean([hit / of for hit, of in zip(hits, counts, strict=True)]))
    assert found.notes == (
        f"2 of 70 images are not in {tmp_path}",
        "classes that the model does not know were left out: unicorn",
    )


def test_games_that_cannot_be_played(trained, tmp_path, rng):
    photo(rng).save(tmp_path / "0.png")
    box = [(0, 0, 0, 0, 5, 5, 0)]
    with pytest.raises(InputError, match=r"none of the classes with boxes \(dgo\); did you mean \"dog\""):
        pointing_game(trained, boxes_of([(9, 9)], box, ["dgo"]), tmp_path)
    with pytest.raises(InputError, match=r"none of the images that have boxes is there \(other\.jpg\)"):
        pointing_game(trained, boxes_of([(9, 9)], box, NAMES, ["other.jpg"]), tmp_path)
    with pytest.raises(InputError, match="no box is of a class that the model knows"):
        pointing_game(trained, boxes_of([(9, 9)], [(0, 0, 0, 0, 5, 5, 1)], NAMES), tmp_path)
    with pytest.raises(InputError, match=r'no size of the image "0\.png"'):
        pointing_game(trained, boxes_of([(0, 0)], box, NAMES), tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        pointing_game(trained, boxes_of([(9, 9)], box, NAMES), tmp_path / "none")
    with pytest.raises(InputError, match="trained on ready features"):
        pointing_game(
            Trained(Classifier(NAMES, 8), np.full(4, 0.5)), boxes_of([(9, 9)], box, NAMES), tmp_path
        )


def test_the_command_plays_on_coco_and_voc(tertium, small, tmp_path):
    drawn = render(12)
    drawn.save(tmp_path / "photos")
    model = Classifier(CLASSES, small.width, small).eval()
    nn.init.normal_(model.head.weight)
    trained = Trained(model, np.full(len(CLASSES), 0.5))
    trained.save(run := tmp_path / "photos")  # a folder that exists
    expected = pointing_game(trained, drawn.boxes, drawn.images, tolerance=3)
    words = ("--images", tmp_path / "photos", "--tolerance", 3)
    code, printed, _ = tertium("pointing", run, tmp_path / "photos/boxes.json", *words)
    assert code == 0
    figures = json.loads((run / "explained/pointing.json").read_text())
    assert figures["accuracy"] == pytest.approx(expected.mean)
    assert figures["accuracy_of_all"] == pytest.approx(expected.hits.sum() / expected.counts.sum())
    assert figures["accuracy_of_centre"] == pytest.approx(expected.centre_mean)
    assert f"Pointing accuracy: {100 * expected.mean:.1f}" in printed
    with open(run / "explained/pointing.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["class"] for row in rows] == list(expected.classes)
    assert [int(row["hits"]) for row in rows] == expected.hits.tolist()
    assert [int(row["images"]) for row in rows] == expected.counts.tolist()

    year = tmp_path / "VOC2007"
    (year / "Annotations").mkdir(parents=True)
    (year / "Annotations" / "scene-000000.xml").write_text(
        "<annotation><size><width>64</width><height>64</height></size><object><name>circle</name><difficult>0"
        "</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>64</xmax><ymax>64</ymax></bndbox></object></annotation>"
    )
    (year / "JPEGImages").mkdir()
    Image.fromarray(drawn.images[0]).save(year / "JPEGImages" / "scene-000000.jpg")
    code, printed, _ = tertium("pointing", run, year, "--images", year / "JPEGImages", "--tolerance", 0)
    assert code == 0
    assert "Pointing accuracy: 100.0 (mean of 1 class in 1 image;" in " ".join(printed.split())


class Palette(nn.Module):
    """A stand-in for a backbone: which of 64 colours there are in each 8 × 8 pixels."""

    name, width, view = "palette", 64, View(64)

    def maps(self, images):
        red, green, blue = (images.long() // 64).unbind(dim=1)
        colours = nn.functional.one_hot(16 * red + 4 * green + blue, 64).movedim(-1, 1)
        return nn.functional.avg_pool2d(colours.float(), 8)

    def forward(self, images):
        return self.maps(images).mean(dim=(2, 3))


def played(backbone, training, test, side, size):
    """Train a head on some scenes; return it, and what it and others hit in further ones."""
    drawn = render(training + test, size=side)
    features = extract(backbone, ArrayPictures(drawn.images[:training]), device=torch.device("cpu"))
    head = train(drawn.labels[:training], features=features, method="negative").trained.model
    own = drawn.boxes.rows >= training
    objects = [drawn.boxes.rows - training, drawn.boxes.columns, drawn.boxes.corners, own * 0]
    boxes = boxes_of(drawn.boxes.sizes[training:], np.column_stack(objects)[own], CLASSES)

    def play(head):
        trained = Trained(head.on_images(backbone).eval(), np.full(len(CLASSES), 0.5))
        return pointing_game(trained, boxes, drawn.images[training:], tolerance=0)

    found = play(head)
    with torch.no_grad():  # the same model with its classes exchanged
        head.head.weight.copy_(head.head.weight.roll(7, dims=0))
    return found, play(head)


def test_a_trained_model_looks_at_colours():
    found, exchanged = played(Palette(), training=400, test=100, side=64, size=64)
    colours = [found.classes.index(name) for name in ("red", "green", "blue", "yellow")]
    hits, counts = found.hits[colours], found.counts[colours]
    assert hits.sum() > 0.9 * counts.sum()
    assert (hits > 2 * found.centre[colours]).all()
    assert hits.sum() > 4 * exchanged.hits[colours].sum()


@pytest.mark.slow
def test_a_trained_model_looks_at_the_objects():
    found, exchanged = played(pretrained().eval(), training=300, test=100, side=112, size=224)
    assert found.mean > 1.7 * found.centre_mean
    assert found.hits.sum() > 1.5 * exchanged.hits.sum()
