"""Predictions in windows and shares, written whole; evaluations that never hold all scores."""

import subprocess
import sys

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from tertium import processes
from tertium.data import inputs as door
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.metrics import evaluation as metrics
from tertium.models.classifier import Classifier
from tertium.prediction import files as predictions
from tertium.prediction.trained import Trained
from tertium.processes import shares


def trained_on(width, classes):
    model = Classifier(classes, width)
    torch.nn.init.normal_(model.head.weight)
    return Trained(model.eval(), np.full(len(classes), 0.4))


@pytest.fixture
def features(tmp_path, rng):
    path = tmp_path / "features.npy"
    np.save(path, rng.normal(size=(1111, 6)).astype(np.float32))
    return path


# ---- windows and shares ----------------------------------------------------------------------------------


def test_windows_change_no_bit(features, monkeypatch):
    trained = trained_on(6, ["cat", "dog", "fox"])
    array = np.load(features)
    whole = trained.predict_proba(features=array)
    monkeypatch.setattr(door, "_WINDOW", 2 * 256 * 6 * 4)
    mapped = np.load(features, mmap_mode="c")
    turned = np.asfortranarray(array)
    for given in (features, array, mapped, turned):
        np.testing.assert_array_equal(trained.predict_proba(features=given), whole)
    part = open_inputs(features=mapped[300:900])
    found = np.concatenate(list(trained.stream(part)))
    np.testing.assert_array_equal(found, trained.predict_proba(features=array[300:900]))
    sizes = [len(window) for window in open_inputs(features=mapped).windows(range(256, 1111))]
    assert sizes == [512, 343]


def test_a_window_of_a_map_is_another_map(features):
    """So that what was read before is unmapped."""
    mapped = np.load(features, mmap_mode="c")
    window = open_inputs(features=mapped).window(range(256, 512))
    np.testing.assert_array_equal(window.features, mapped[256:512])
    assert not np.may_share_memory(window.features, mapped)


def test_windows_of_pictures(monkeypatch, rng):
    pixels = rng.integers(0, 256, size=(10, 4, 4, 3), dtype=np.uint8)
    monkeypatch.setattr(door, "_PICTURES", 4)
    found = list(open_inputs(pixels, None, list("abcdefghij")).windows(range(1, 10)))
    assert [len(part) for part in found] == [4, 4, 1]
    np.testing.assert_array_equal(np.asarray(found[1].pictures.open(0)), pixels[5])


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1111, 10_000])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_are_whole_batches_in_order(monkeypatch, count, world):
    monkeypatch.setattr(processes, "world", lambda: world)
    found = shares(count, 256)
    assert len(found) == world
    assert [row for share in found for row in share] == list(range(count))
    assert all(share.start % 256 == 0 for share in found if share)
    batches = [-(-len(share) // 256) for share in found]
    assert max(batches) - min(batches) <= 1


# ---- parts put together ----------------------------------------------------------------------------------


def write_in_processes(monkeypatch, path, world, scores, names, **options):
    """Let one process after the other write its part; the last is process 0, which puts them together."""
    folder = path.parent / "parts"
    folder.mkdir()
    monkeypatch.setattr(predictions, "world", lambda: world)
    monkeypatch.setattr(processes, "world", lambda: world)
    monkeypatch.setattr(predictions, "barrier", lambda: None)
    for number in reversed(range(world)):
        monkeypatch.setattr(predictions, "rank", lambda number=number: number)
        own = shares(len(names), 256)[number]
        blocks = (scores[start : min(start + 256, own.stop)] for start in range(own.start, own.stop, 256))
        predictions.write_predictions(
            path, names[own.start : own.stop], ["cat", "dog", "fox"], blocks, folder=folder, **options
        )
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("top", [None, 2])
def test_parts_of_processes_give_the_file_of_one(monkeypatch, tmp_path, rng, suffix, top):
    scores = rng.random((1111, 3), dtype=np.float32)
    names = [f'an "image", {row}.jpg' for row in range(1111)]
    monkeypatch.setattr(predictions, "_GROUP", 1000)
    one, three = tmp_path / f"one{suffix}", tmp_path / f"three{suffix}"
    predictions.write_predictions(one, names, ["cat", "dog", "fox"], [scores[:700], scores[700:]], top=top)
    write_in_processes(monkeypatch, three, 3, scores, names, top=top)
    assert one.read_bytes() == three.read_bytes()
    read = pyarrow.csv.read_csv if suffix == ".csv" else pyarrow.parquet.read_table
    table = read(three)
    if top is None:
        assert table["image"].to_pylist() == names
        np.testing.assert_array_equal(table["fox"].to_numpy().astype(np.float32), scores[:, 2])
    else:
        assert len(table) == 2 * 1111
    if suffix == ".parquet":
        groups = pyarrow.parquet.ParquetFile(three).metadata
        sizes = {groups.row_group(number).num_rows for number in range(groups.num_row_groups - 1)}
        assert sizes == {1000 // len(table.schema)}


def test_no_images_give_a_heading(tmp_path):
    for suffix in (".csv", ".parquet"):
        predictions.write_predictions(tmp_path / f"p{suffix}", [], ["cat"], [])
    assert (tmp_path / "p.csv").read_text() == '"image","cat"\n'
    assert pyarrow.parquet.read_table(tmp_path / "p.parquet").column_names == ["image", "cat"]


def test_nothing_is_left_when_predicting_fails(tmp_path):
    def blocks():
        yield np.ones((1, 1), dtype=np.float32)
        raise InputError("x.jpg: the image is damaged")

    for suffix in (".csv", ".parquet"):
        with pytest.raises(InputError, match="damaged"):
            predictions.write_predictions(tmp_path / f"p{suffix}", ["a", "b"], ["cat"], blocks())
    assert not list(tmp_path.iterdir())


# ---- evaluating ------------------------------------------------------------------------------------------


def test_evaluate_is_that_of_all_scores(features, rng):
    """Classes are matched by name, in any order; what the model does not know is left out."""
    trained = trained_on(6, ["cat", "dog", "fox", "owl"])
    truth = rng.choice(np.array([-1, 0, 1], dtype=np.int8), size=(1111, 4))
    theirs = Labels.from_dense(truth, classes=["yak", "fox", "cat", "owl"])
    ours = np.stack([truth[:, 2], 0 * truth[:, 0], truth[:, 1], truth[:, 3]], axis=1)
    found = trained.evaluate(theirs, features=features, annotations=np.array([3, 1, 2, 2]))
    scores = trained.predict_proba(features=features)
    expected = metrics.evaluate(scores, ours, trained.thresholds, np.array([3, 1, 2, 2]))
    assert found.classes == trained.classes
    assert found.ap.tolist()[2:] == expected.ap.tolist()[2:]
    same = {name: value for name, value in expected.to_dict().items() if name not in ("classes", "unscored")}
    assert {name: found.to_dict()[name] for name in same} == same
    assert [group.most for group in found.groups] == [1, 2, 2, 3]
    with pytest.raises(InputError, match="knows none of these classes"):
        trained.evaluate(Labels.from_dense(truth, classes=list("abcd")), features=features)


GROWTH = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from tertium.labels import Labels
from tertium.prediction.files import write_predictions
from tests.prediction.test_trained import trained_on

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

def known(images, classes):
    rng = np.random.default_rng(0)
    entries = np.sort(rng.integers(1, classes + 1, size=(images, 4)), axis=1).astype(np.int16)
    entries[:, 1:] += np.cumsum(np.diff(entries, axis=1) == 0, axis=1, dtype=np.int16)
    entries = entries * rng.choice(np.array([-1, 1], np.int16), size=entries.shape)
    names = [str(number) for number in range(classes + 4)]
    ids = pa.array(np.arange(images).astype(str))
    return Labels(np.arange(images + 1, dtype=np.int32) * 4, entries.reshape(-1), tuple(names), ids)

folder, images = Path(sys.argv[1]), 12_000
trained = trained_on(1024, [str(number) for number in range(504)])
peaks = []
for count in (images, 4 * images):
    labels = known(count, 500)
    inputs = trained.inputs(None, folder / f"{count}.npy", labels.images.to_pylist())
    names = labels.images.to_pylist()
    write_predictions(folder / "p.csv", names, trained.classes, trained.stream(inputs), top=3)
    trained.evaluate(labels, features=folder / f"{count}.npy")
    peaks.append(peak())
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_images(tmp_path):
    """36,000 more images: 73 MB of scores, 74 MB of features, but a few of ids and labels."""
    for count in (12_000, 48_000):  # written here: pages that a process has written count as its memory
        features = np.lib.format.open_memmap(tmp_path / f"{count}.npy", "w+", np.float16, (count, 1024))
        features[:] = np.linspace(0, 1, count, dtype=np.float16)[:, None]
        del features
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, tmp_path], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 36  # megabytes; what Python and Arrow do not give back varies by ten
