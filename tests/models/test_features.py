import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tertium.data.decoding import PIXELS, READABLE
from tertium.data.feature_files import feature_names, load_features
from tertium.data.inputs import names_of, open_inputs
from tertium.data.pictures import ArrayPictures, SourcePictures, ahead
from tertium.data.views import resized
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.models import features
from tertium.models.encoders import pretrained
from tertium.models.features import Extractor, Store, cache_folder
from tertium.progress import Progress
from tertium.training.train import train

CPU = torch.device("cpu")
SIZE = 32
ENTRY = 36  # bytes of the index that a row has
PATIENCE = 300  # seconds that anything may take on a busy machine
fork = multiprocessing.get_context("fork")


class Notes(Progress):
    def __init__(self):
        self.notes, self.done, self.total = [], 0, 0

    def start(self, what, total, unit):
        self.total, self.done = total, 0

    def advance(self, count=1):
        self.done += count

    def note(self, text):
        self.notes.append(text)


@dataclass(frozen=True)
class Watched(SourcePictures):
    """Counts what is decoded, and may take its time, be interrupted or never end."""

    opened: list
    seconds: float = 0.0
    interrupt: int | None = None
    halt: int | None = None

    def open(self, row):
        if row == self.interrupt:
            raise KeyboardInterrupt
        if row == self.halt:
            time.sleep(2 * PATIENCE)
        self.opened.append(self.names[row])
        time.sleep(self.seconds)
        return super().open(row)


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(1)
    return pretrained("test_resnet", "random", SIZE).eval()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path, rng):
    """Twelve images of several kinds and sizes, in two folders."""
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for number in range(12):
        shape = (20 + number, 30, 3) if number % 3 else (40, 25)
        name = f"{'inner/' if number % 2 else ''}{number:02}.{'bmp' if number % 4 else 'png'}"
        Image.fromarray(rng.integers(0, 256, size=shape, dtype=np.uint8)).save(folder / name)
    return folder


def names(folder):
    return names_of(folder, None)


def watched(folder, **more):
    found = open_inputs(folder, names=names(folder)).pictures
    return Watched(found.source, found.names, found.numbers, [], **more)


def slow(backbone, folder):
    """One image after the other, by torch."""
    rows = []
    for name in names(folder):
        with Image.open(folder / name) as image:
            pixels = np.array(resized(image.convert("RGB"), backbone.view))
        with torch.inference_mode():
            rows.append(backbone(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0].numpy())
    return np.stack(rows)


def extractor(backbone, **more):
    return Extractor(backbone, device=CPU, **more)


def test_features_are_those_of_torch(backbone, photos, cache):
    heard = Notes()
    found = extractor(backbone, progress=heard)(watched(photos))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, slow(backbone, photos), rtol=1e-3, atol=1e-3)
    assert heard.done == heard.total == 12
    assert heard.notes == [f"features are kept in {cache} (0.0 MB)"]


@pytest.mark.parametrize("workers", [0, 3])
def test_what_is_kept_is_not_computed_again(backbone, photos, cache, workers):
    first, again = watched(photos), watched(photos)
    found = extractor(backbone, workers=workers)(first)
    assert sorted(first.opened) == names(photos)
    heard = Notes()
    np.testing.assert_array_equal(extractor(backbone, workers=workers, progress=heard)(again), found)
    assert again.opened == []
    assert heard.done == 12


def test_an_image_that_changed_is_computed_alone(backbone, photos, cache):
    found = extractor(backbone)(watched(photos))
    path = photos / "inner/05.bmp"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-400:] = bytes(400)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size  # nothing but the content tells
    (photos / "02.bmp").rename(photos / "inner/renamed.bmp")
    again = watched(photos)
    rows = extractor(backbone)(again)
    assert again.opened == ["inner/05.bmp"]
    np.testing.assert_allclose(rows, slow(backbone, photos), rtol=1e-3, atol=1e-3)
    assert not np.array_equal(np.unique(rows, axis=0), np.unique(found, axis=0))


def test_another_network_or_size_is_not_mistaken_for_it(backbone, photos, cache):
    extractor(backbone)(watched(photos))
    other = pretrained("test_resnet", "random", SIZE).eval()
    larger = pretrained("test_resnet", "random", 48).eval()
    larger.load_state_dict(backbone.state_dict())
    for net in (other, larger):
        again = watched(photos)
        found = extractor(net)(again)
        assert len(again.opened) == 12
        np.testing.assert_allclose(found, slow(net, photos), rtol=1e-3, atol=1e-3)
    cropped = pretrained("test_resnet", "random", SIZE, fit="crop").eval()
    cropped.load_state_dict(backbone.state_dict())
    assert extractor(cropped).about != extractor(backbone).about
    scaled = pretrained("test_resnet", "random", SIZE).eval()
    scaled.load_state_dict(backbone.state_dict())
    assert extractor(scaled).about == extractor(backbone).about
    scaled.mean += 1  # is not saved with the weights
    assert extractor(scaled).about != extractor(backbone).about
    assert len(list(cache.iterdir())) == 3


def test_features_of_pixels_that_are_decoded_otherwise_now_are_not_used(backbone, photos, cache, monkeypatch):
    extractor(backbone)(watched(photos))
    again = watched(photos)
    extractor(backbone)(again)
    assert again.opened == []
    monkeypatch.setattr(features, "PIXELS", PIXELS + 1)
    extractor(backbone)(again)
    assert sorted(again.opened) == names(photos)


def test_the_features_of_an_image_do_not_depend_on_the_others(backbone, photos, cache, monkeypatch):
    whole = extractor(backbone)(watched(photos))
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    for row in range(0, 12, 4):
        np.testing.assert_array_equal(
            extractor(backbone)(watched(photos).select(np.array([row])))[0], whole[row]
        )


def test_pixels_in_memory_are_kept_too(backbone, rng, cache):
    images = rng.integers(0, 256, size=(4, 20, 24, 3), dtype=np.uint8)
    found = extractor(backbone)(ArrayPictures(images))
    turned = images.reshape(4, 24, 20, 3)  # the same bytes in another shape
    assert not np.array_equal(extractor(backbone)(ArrayPictures(turned)), found)
    np.testing.assert_array_equal(extractor(backbone)(ArrayPictures(images[::-1])), found[::-1])


# ---- interruptions ---------------------------------------------------------------------------------------


def kept(cache):
    return sum(path.stat().st_size // ENTRY for path in cache.rglob("*.index"))


def test_a_killed_process_leaves_what_it_has_done(backbone, photos, cache, monkeypatch, tmp_path):
    monkeypatch.setattr(features, "_FLUSH", 0.0)
    work = extractor(backbone, workers=0)
    dying = fork.Process(target=work, args=(watched(photos, halt=11),), daemon=True)
    dying.start()
    until = time.monotonic() + PATIENCE
    while kept(cache) < 3:
        assert dying.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(dying.pid, signal.SIGKILL)
    dying.join()
    done = kept(cache)
    assert 3 <= done < 12
    again = watched(photos)
    found = extractor(backbone)(again)
    assert len(again.opened) == 12 - done
    monkeypatch.setenv("TERTIUM_CACHE", str(tmp_path / "uninterrupted"))
    np.testing.assert_array_equal(found, extractor(backbone)(watched(photos)))


def test_an_interruption_loses_nothing_that_is_done(backbone, photos, cache):
    with pytest.raises(KeyboardInterrupt):
        extractor(backbone, workers=0)(watched(photos, interrupt=11))
    assert 5 <= kept(cache) < 12  # some were on their way


def test_torn_files_are_read_as_far_as_they_are_whole(backbone, photos, cache):
    found = extractor(backbone)(watched(photos))
    (rows,), (index,) = cache.rglob("*.rows"), cache.rglob("*.index")
    width = 2 * found.shape[1]
    os.truncate(index, ENTRY * 9 + 5)
    os.truncate(rows, width * 7 + 1)
    again = watched(photos)
    np.testing.assert_array_equal(extractor(backbone)(again), found)
    assert len(again.opened) == 5
    rows.unlink()
    index.with_suffix(".rows").write_bytes(b"")
    np.testing.assert_array_equal(extractor(backbone)(watched(photos)), found)


def test_a_changed_byte_is_noticed_and_its_row_computed_again(backbone, photos, cache, rng):
    found = extractor(backbone)(watched(photos))
    (rows,) = cache.rglob("*.rows")
    content, width = rows.read_bytes(), 2 * found.shape[1]
    zeroed = content[: 3 * width] + bytes(2 * width) + content[5 * width :]
    swapped = content[width : 2 * width] + content[:width] + content[2 * width :]
    flips = [(bytearray(content), 1) for _ in range(4)]
    for changed, _ in flips:
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
    for changed, damaged in ((zeroed, 2), (swapped, 2), *flips):
        for later in sorted(cache.rglob("*.rows")):  # what was computed again is forgotten
            if later != rows:
                later.unlink()
        rows.write_bytes(changed)
        again, heard = watched(photos), Notes()
        np.testing.assert_array_equal(extractor(backbone, progress=heard)(again), found)
        assert len(again.opened) == damaged
        text = f"features of {damaged} images were damaged in the cache and computed again"
        assert heard.notes[0] == text
        np.testing.assert_array_equal(extractor(backbone)(watched(photos)), found)


def test_a_damaged_row_gives_way_to_the_one_that_was_computed_again(backbone, photos, cache):
    found = extractor(backbone)(watched(photos))
    (rows,) = cache.rglob("*.rows")
    rows.write_bytes(bytes(rows.stat().st_size))
    extractor(backbone)(watched(photos))
    again, heard = watched(photos), Notes()
    np.testing.assert_array_equal(extractor(backbone, progress=heard)(again), found)
    assert again.opened == []
    assert len(heard.notes) == 1  # nothing is damaged any more


def test_a_folder_in_the_place_of_an_index_is_passed_over(backbone, photos, cache):
    found = extractor(backbone)(watched(photos))
    (index,) = cache.rglob("*.index")
    index.unlink()
    index.mkdir()
    np.testing.assert_array_equal(extractor(backbone)(watched(photos)), found)


def test_what_is_not_ours_stays_in_the_folder_of_unfinished_features(backbone, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    mine = tmp_path / "x.npy.partial" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    extractor(backbone).save(watched(photos), tmp_path / "x.npy")
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]


def test_two_processes_may_write_at_once(backbone, photos, cache, monkeypatch):
    monkeypatch.setattr(features, "_FLUSH", 0.0)
    queue = fork.Queue()

    def work():
        queue.put(extractor(backbone, workers=0)(watched(photos, seconds=0.02)))

    both = [fork.Process(target=work) for _ in range(2)]
    for process in both:
        process.start()
    first, second = queue.get(timeout=PATIENCE), queue.get(timeout=PATIENCE)
    for process in both:
        process.join()
    np.testing.assert_array_equal(first, second)
    again = watched(photos)
    np.testing.assert_array_equal(extractor(backbone)(again), first)
    assert again.opened == []


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path, rng, tertium, monkeypatch):
    """As a user has it: another process, the whole command, the cache off."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(300):
        Image.fromarray(rng.integers(0, 256, size=(64, 64, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    command = ["features", "--images", str(folder), "--image-size", "64", "--workers", "0", "--out"]
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    out = tmp_path / "x.npy"
    dying = subprocess.Popen([sys.executable, "-m", "tertium", *command, str(out)], stderr=subprocess.DEVNULL)
    while not kept(tmp_path):
        assert dying.poll() is None
        time.sleep(0.01)
    dying.kill()
    dying.wait()
    assert 0 < kept(tmp_path) < 300
    assert not out.exists()
    assert tertium(*command, out)[0] == 0
    assert tertium(*command, tmp_path / "y.npy")[0] == 0
    assert out.read_bytes() == (tmp_path / "y.npy").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


# ---- where they are kept ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12), max_size=4))
def test_a_store_is_a_dictionary(tmp_path_factory, writers):
    """Several writers, some of whom end without closing; the same key has the same row everywhere."""
    folder = tmp_path_factory.mktemp("store")
    keys = [bytes([0, number, 0]) + bytes(29) for number in range(31)]  # zeros at the end are no text's end
    told = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "_FLUSH", 1e9)
        for additions in writers:
            store, pending = Store(folder, 3), set()
            for number, flush in additions:
                store.add(keys[number], np.array([number, -number, 0.5]))
                pending.add(number)
                if flush:
                    store.close()
                    told |= pending
    store = Store(folder, 3)
    assert [key in store for key in keys] == [number in told for number in range(31)]
    wanted = sorted(told, reverse=True)
    found = store.take(np.array([keys[number] for number in wanted], dtype="S32"))
    assert found.tolist() == [[number, -number, 0.5] for number in wanted]


def test_without_a_cache_nothing_is_left(backbone, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    heard = Notes()
    found = extractor(backbone, progress=heard)(watched(photos))
    np.testing.assert_allclose(found, slow(backbone, photos), rtol=1e-3, atol=1e-3)
    assert heard.notes == []
    out = tmp_path / "x.npy"
    with pytest.raises(KeyboardInterrupt):
        extractor(backbone, workers=0).save(watched(photos, interrupt=11), out)
    assert not out.exists()
    done = kept(tmp_path / "x.npy.partial")
    again = watched(photos)
    extractor(backbone).save(again, out)
    assert len(again.opened) == 12 - done < 8
    np.testing.assert_array_equal(load_features(out), found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "x.npy", "x.npy.json"]


def test_a_cache_that_cannot_be_written_is_done_without(backbone, photos, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TERTIUM_CACHE", str(tmp_path / "file" / "below"))
    heard = Notes()
    found = extractor(backbone, progress=heard)(watched(photos))
    np.testing.assert_allclose(found, slow(backbone, photos), rtol=1e-3, atol=1e-3)
    (said,) = heard.notes
    assert "features cannot be kept there (Not a directory)" in said


def test_a_full_disk_is_one_sentence(backbone, photos, cache, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(features, "_append", full)
    with pytest.raises(InputError, match=r"No space left on device.*TERTIUM_CACHE"):
        extractor(backbone)(watched(photos))


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TERTIUM_CACHE")
    assert cache_folder() == tmp_path / ".cache" / "tertium" / "features"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "tertium" / "features"
    monkeypatch.setenv("TERTIUM_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    assert cache_folder() is None


# ---- torch instead ---------------------------------------------------------------------------------------


def test_torch_steps_in(backbone, photos, cache, monkeypatch):
    wanted = extractor(backbone)(watched(photos))
    monkeypatch.setenv("TERTIUM_CACHE", "off")
    heard = Notes()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        patch.setattr(features, "_BATCH", 5)
        found = extractor(backbone, progress=heard)(watched(photos))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    assert heard.notes == ["features come from torch; ONNX Runtime is faster: pip install 'tertium[onnx]'"]

    def refuse(*_, **__):
        raise InputError("the Backbone cannot be converted")

    monkeypatch.setattr(features, "convert", refuse)
    heard = Notes()
    np.testing.assert_allclose(
        extractor(backbone, progress=heard)(watched(photos)), wanted, rtol=1e-3, atol=1e-3
    )
    assert heard.notes == [
        "features come from torch, not from ONNX Runtime: the Backbone cannot be converted"
    ]


# ---- files -----------------------------------------------------------------------------------------------


def damage(photos):
    (photos / "04.bmp").unlink(missing_ok=True)
    (photos / "04.png").write_bytes((photos / "04.png").read_bytes()[:300])
    (photos / "no.jpg").write_text("no image")


def test_damaged_images_have_no_row(backbone, photos, cache, tmp_path):
    whole = dict(zip(names(photos), extractor(backbone)(watched(photos)), strict=True))
    damage(photos)
    out = tmp_path / "x.npy"
    broken = extractor(backbone).save(watched(photos), out)
    assert broken == [
        f"{photos}/04.png: the image is damaged (image file is truncated)",
        f"{photos}/no.jpg: not an image that can be read ({READABLE})",
    ]
    assert (tmp_path / "x.npy.broken.txt").read_text().splitlines() == broken
    left = [name for name in names(photos) if name not in ("04.png", "no.jpg")]
    assert feature_names(out) == left
    np.testing.assert_array_equal(load_features(out), np.stack([whole[name] for name in left]))
    with pytest.raises(InputError, match=r"04\.png: the image is damaged"):
        extractor(backbone)(watched(photos))
    for name in ("04.png", "no.jpg"):
        (photos / name).unlink()
    assert extractor(backbone).save(watched(photos), out) == []
    assert not (tmp_path / "x.npy.broken.txt").exists()


def test_what_cannot_be_saved_is_said(backbone, photos, cache, tmp_path):
    with pytest.raises(InputError, match=r"x\.csv: features go to a file that ends with \.npy"):
        extractor(backbone).save(watched(photos), tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"the folder .*none does not exist"):
        extractor(backbone).save(watched(photos), tmp_path / "none" / "x.npy")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_text("no image")
    with pytest.raises(InputError, match="none of the images can be read"):
        extractor(backbone).save(watched(tmp_path / "bad"), tmp_path / "x.npy")
    assert not (tmp_path / "x.npy").exists()


def test_rows_are_found_by_name(backbone, photos, cache, tmp_path):
    out = tmp_path / "x.npy"
    extractor(backbone).save(watched(photos), out)
    array, every = np.load(out), names(photos)
    assert isinstance(load_features(out, every), np.memmap)
    assert names_of(None, out) == every
    order = [7, 2, 9]
    chosen = open_inputs(None, out, [every[row] for row in order])
    np.testing.assert_array_equal(chosen.features, array[order])
    with pytest.raises(InputError, match=r"x\.npy: 1 of 2 images have no features in it: lost\.jpg"):
        load_features(out, [every[0], "lost.jpg"])


def test_names_of_another_array_are_refused(backbone, photos, cache, tmp_path):
    out, beside = tmp_path / "x.npy", tmp_path / "x.npy.json"
    extractor(backbone).save(watched(photos), out)
    array, every = np.load(out), names(photos)
    np.save(out, array[::-1])
    with pytest.raises(InputError, match=r"x\.npy\.json: names the rows of another array"):
        load_features(out, every)
    about = json.loads(beside.read_text())
    del about["tertium_features"]
    beside.write_text(json.dumps(about))  # a file of the user's own
    np.testing.assert_array_equal(load_features(out, every), array[::-1])
    with pytest.raises(InputError, match="12 rows of features for 2 labelled images"):
        load_features(out, every[:2])


def test_the_command_feeds_training(tertium, photos, cache, tmp_path, rng, monkeypatch):
    """Labels in another order, of fewer images, of several splits: training sees the rows of their names."""
    every = names(photos)
    settings = ["--backbone", "test_resnet", "--weights", "random", "--image-size", 32]
    order = rng.permutation(12)[:10]
    splits = pa.array(["val", "train", "test", *["train"] * 6, "val"]).dictionary_encode()
    labels = Labels.from_dense(rng.choice([-1, 1], size=(10, 2)), images=[every[row] for row in order])
    labels = replace(labels, splits=splits)
    write_labels(labels, tmp_path / "labels.csv")
    out = tmp_path / "x.npy"
    code, said, _ = tertium("features", "--images", photos, "--out", out, *settings)
    assert code == 0
    assert "Features of 12 images" in said
    command = ("features", "--images", photos, "--labels", tmp_path / "labels.csv")
    assert tertium(*command, "--out", tmp_path / "y.npy", *settings)[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.load(out)[order])
    quick = {"epochs": 1, "backbone": "test_resnet", "weights": "random", "image_size": 32}
    from_images = train(labels, photos, **quick).trained.model
    monkeypatch.setattr(SourcePictures, "open", None)  # all are kept
    again = train(labels, photos, **quick).trained.model
    from_features = train(labels, features=out, epochs=1).trained.model
    for key, value in from_features.state_dict().items():
        torch.testing.assert_close(from_images.state_dict()[key], value, rtol=0, atol=0)
        torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=0)


def test_the_command_tells_what_is_broken(tertium, photos, cache, tmp_path):
    damage(photos)
    settings = ["--backbone", "test_resnet", "--weights", "random", "--image-size", 32]
    code, said, _ = tertium("features", "--images", photos, "--out", tmp_path / "x.npy", *settings)
    assert code == 0
    assert "Left out: 2 of 13, listed in" in said
    assert "04.png: the image is damaged" in said
    code, _, said = tertium("features", "--images", photos, "--out", tmp_path / "x.npz", *settings)
    assert (code, "ends with .npy" in said) == (2, True)
    code, _, said = tertium("features", "--images", photos, "--out", tmp_path / "x.npy", "--image-size", 3)
    assert (code, "image_size must be at least 32" in said) == (2, True)


# ---- threads ---------------------------------------------------------------------------------------------


def test_threads_are_a_few_items_ahead_and_no_more():
    taken, most, done = [], 0, 0
    running, lock = [0, 0], threading.Lock()

    def items():
        for item in range(200):
            taken.append(item)
            yield item

    def call(item):
        with lock:
            running[0] += 1
            running[1] = max(running)
        time.sleep(0.0005 * (item % 3))
        with lock:
            running[0] -= 1
        return item * item

    for item, result in ahead(call, items(), 3):
        assert (item, result) == (done, done * done)
        done += 1
        most = max(most, len(taken) - done)
    assert done == 200
    assert most <= 12
    assert 2 <= running[1] <= 3


def test_an_error_ends_the_threads():
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda item: 1 / (5 - item), range(1000), 2))
    assert set(threading.enumerate()) <= before
