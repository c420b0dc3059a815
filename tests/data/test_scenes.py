"""Scenes: the same for the same seed, varied and long-tailed, and true to what is drawn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tertium.data import scenes
from tertium.data.scenes import CLASSES, Scenes, render
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.coco import read_boxes
from tertium.labels.readers import read_labels
from tertium.schemes import Hierarchy


@pytest.fixture(scope="module")
def many() -> Scenes:
    return render(2000)


def has(some: Scenes, name: str) -> np.ndarray:
    return some.labels.dense()[:, CLASSES.index(name)] > 0


# ---- the same for the same seed ----------------------------------------------------------------------------


def test_shape_and_names(many: Scenes) -> None:
    assert many.images.shape == (2000, 64, 64, 3)
    assert many.images.dtype == np.uint8
    assert many.labels.shape == (2000, len(CLASSES))
    assert many.labels.is_full
    assert many.labels.images[17].as_py() == "scene-000017.png"
    assert render(2, size=48).images.shape == (2, 48, 48, 3)


def test_fewer_scenes_are_the_first_of_more(many: Scenes) -> None:
    few = render(100)
    assert np.array_equal(few.images, many.images[:100])
    assert few.labels == many.labels[:100]


def test_another_seed_gives_other_scenes(many: Scenes) -> None:
    other = render(50, seed=1)
    assert other.labels != many.labels[:50]
    assert all(not np.array_equal(one, two) for one, two in zip(other.images, many.images, strict=False))


def test_all_scenes_differ(many: Scenes) -> None:
    assert len({image.tobytes() for image in many.images}) == 2000


def test_truth_does_not_depend_on_the_size() -> None:
    assert render(30, size=32).labels == render(30, size=64).labels


def test_another_process_draws_the_same() -> None:
    # Sets of names are ordered by a hash that differs from process to process: it must not matter.
    code = "from tertium.data.scenes import render; s = render(20)"
    code += "; print(s.images.sum(), s.labels.dense().tolist())"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    run = [sys.executable, "-c", code]
    printed = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
    here = render(20)
    assert printed.strip() == f"{here.images.sum()} {here.labels.dense().tolist()}"


@pytest.mark.parametrize(("count", "size"), [(0, 64), (-1, 64), (1, 8)])
def test_impossible_scenes(count: int, size: int) -> None:
    with pytest.raises(InputError, match="scenes need a count"):
        render(count, size=size)


# ---- what is in them ---------------------------------------------------------------------------------------


def test_long_tail(many: Scenes) -> None:
    share = many.labels.class_counts[0] / 2000
    assert 0.55 < share.max() < 0.65
    assert 0.005 < share.min() < 0.02
    assert (share < 0.1).sum() >= 8  # a tail and not one odd class
    assert (share > 0.3).sum() >= 5


def test_labels_per_image(many: Scenes) -> None:
    leaves = [number for number, name in enumerate(CLASSES) if not scenes.tree().children(name)]
    assert 20 <= len(leaves) <= 26
    present = (many.labels.dense()[:, leaves] > 0).sum(axis=1)
    assert 2.5 < present.mean() < 5
    assert (present > 0).all()


def test_what_goes_together(many: Scenes) -> None:
    assert has(many, "water")[has(many, "boat")].mean() > 0.9
    assert has(many, "night")[has(many, "moon")].all()
    assert has(many, "yellow")[has(many, "sun")].all()
    assert has(many, "green")[has(many, "tree")].mean() > 1.5 * has(many, "green").mean()
    assert not has(many, "texture")[has(many, "outdoor")].any()


def test_a_present_class_has_present_parents(many: Scenes) -> None:
    tree = scenes.tree()
    tree.check(CLASSES)
    for child, parent in tree.parents.items():
        assert has(many, parent)[has(many, child)].all()
        assert has(many, parent).sum() > has(many, child).sum()


def test_a_parent_is_present_only_with_a_child_or_by_itself(many: Scenes) -> None:
    for name in ("shape", "vehicle", "aircraft", "building", "texture"):
        below = np.any([has(many, child) for child in scenes.tree().children(name)], axis=0)
        assert np.array_equal(has(many, name), below)


def test_the_hierarchy_scheme_has_something_to_walk(many: Scenes) -> None:
    kept = Hierarchy(scenes.tree()).apply(many.labels, 0)
    deep = CLASSES.index("moon")
    assert 0 < kept.class_counts[0][deep] < many.labels.class_counts[0][deep]


# ---- and can be seen ---------------------------------------------------------------------------------------


def test_colours_of_the_pixels_agree_with_the_labels(many: Scenes) -> None:
    red, green, blue = (many.images[:1000, ..., channel].astype(np.float32) + 1 for channel in range(3))
    of = {
        "red": (red > 1.9 * green) & (red > 1.9 * blue) & (red > 60),
        "green": (green > 1.5 * red) & (green > 1.4 * blue) & (green > 50),
        "blue": (blue > 1.9 * red) & (blue > 1.6 * green) & (blue > 70),
        "yellow": (red > 2 * blue) & (green > 2 * blue) & (green > 90),
    }
    for name, pixels in of.items():
        share, present = pixels.mean(axis=(1, 2)), has(many, name)[:1000]
        assert (share[present] > 0.005).all(), name
        if name != "blue":  # the sky of the night is blue, too
            assert (share[~present] < 0.01).mean() > 0.95, name


def test_night_is_dark(many: Scenes) -> None:
    brightness, night = many.images.mean(axis=(1, 2, 3)), has(many, "night")
    assert brightness[night].max() < np.median(brightness[~night])
    assert (brightness[~night] > 88).mean() > 0.99
    assert (brightness[night] < 88).mean() > 0.99


def test_textures_repeat(many: Scenes) -> None:
    # Changes of brightness from one pixel to the next but one: textures have more than plain backdrops.
    grey = many.images.astype(np.float32).mean(axis=3)
    change = sum(np.abs(np.roll(grey, 2, axis) - grey).mean(axis=(1, 2)) for axis in (1, 2))
    plain = ~has(many, "texture") & ~has(many, "outdoor")
    assert np.median(change[has(many, "texture")]) > 1.5 * np.median(change[plain])


def test_nothing_present_is_mostly_covered() -> None:
    for number in range(200):
        boxes = (np.array(scenes._Scene(random.Random(number), 16).boxes) * 400).round().astype(int)
        for place, (left, top, right, bottom) in enumerate(boxes):
            canvas = np.zeros((500, 500), dtype=bool)
            for x0, y0, x1, y1 in boxes[place + 1 :].clip(0):
                canvas[y0:y1, x0:x1] = True
            assert canvas[max(top, 0) : bottom, max(left, 0) : right].mean() < 0.18  # 15 %, and rounding
            assert min(left, top) >= -2
            assert max(right, bottom) <= 402


# ---- where things are --------------------------------------------------------------------------------------


def test_boxes_are_of_present_things(many: Scenes) -> None:
    boxes, truth = many.boxes, many.labels.dense() > 0
    boxed = np.zeros_like(truth)
    boxed[boxes.rows, boxes.columns] = True
    nowhere = [CLASSES.index(name) for name in ("outdoor", "night", "water", "texture", "crowded")]
    nowhere += [CLASSES.index(name) for name in scenes.tree().children("texture")]
    assert not boxed[:, nowhere].any()
    assert np.array_equal(np.delete(boxed, nowhere, axis=1), np.delete(truth, nowhere, axis=1))
    assert (boxes.corners >= 0).all()
    assert (boxes.corners <= 64).all()
    assert (boxes.corners[:, 2:] - boxes.corners[:, :2] > 4).all()


class Watched(scenes._Scene):
    """Keeps the edges of what each object has changed in the picture."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.changed: list[list[int]] = []
        super().__init__(rng, size)

    def _draw(self, name: str, x: float, y: float, radius: float) -> None:
        before = np.asarray(self.image).copy()
        super()._draw(name, x, y, radius)
        differs = (np.asarray(self.image) != before).any(axis=2)
        rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
        self.changed.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def test_boxes_enclose_what_was_drawn() -> None:
    count = 0
    for number in range(100):
        scene = Watched(random.Random(number), 64)
        for (names, box), edges in zip(scene.drawn, scene.changed, strict=True):
            if "moon" not in names:  # the sky that bites into it is drawn, too
                np.testing.assert_allclose(np.array(box) * 128, edges, atol=1.5)
                count += 1
    assert count > 200


# ---- on disk -----------------------------------------------------------------------------------------------


def test_saved_scenes_read_back(tmp_path: Path) -> None:
    drawn = render(30)
    drawn.save(tmp_path / "new" / "scenes")
    folder = tmp_path / "new" / "scenes"
    assert sorted(path.name for path in folder.glob("*.png")) == drawn.labels.images.to_pylist()
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".png") == [
        "boxes.json",
        "labels.csv",
    ]
    assert np.array_equal(np.asarray(Image.open(folder / "scene-000007.png")), drawn.images[7])
    assert (folder / "labels.csv").read_text().startswith("image,present\nscene-000000.png,")
    read = read_labels(folder / "labels.csv", unlisted="absent", classes=CLASSES)
    assert isinstance(read, Labels)
    assert read == drawn.labels
    boxes = read_boxes(folder / "boxes.json")
    assert boxes.images.equals(drawn.boxes.images)
    assert boxes.classes == CLASSES
    for name in ("sizes", "rows", "columns", "unsure"):
        assert np.array_equal(getattr(boxes, name), getattr(drawn.boxes, name))
    np.testing.assert_allclose(boxes.corners, drawn.boxes.corners, atol=0.002)
