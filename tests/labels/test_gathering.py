"""Rows gathered in memory and in files: the same labels, whatever the rows, and the same errors."""

import numpy as np
import pyarrow as pa
import pytest

from tertium.errors import InputError
from tertium.labels import gathering
from tertium.labels.gathering import Gathering, SplitError
from tertium.labels.labels import ContradictionError, Labels
from tertium.labels.tables import runs

CLASSES = ["ant", "bee", "cat", "dog"]
COLUMNS = np.array([2, 0, -1, 3, 1])  # of five labels, one of which is left out


@pytest.fixture(params=["in memory", "in files"])
def size(request, monkeypatch):
    """Whether rows are written to files, in several windows."""
    if request.param == "in files":
        monkeypatch.setattr(gathering, "HELD", 200)
        monkeypatch.setattr(gathering, "WINDOW", 3)
        monkeypatch.setattr(gathering, "_SAMPLED", 2)
    return request.param


def rows(seed, count=200):
    """Return ids, labels, signs and splits of rows, some ids as numbers of 16 digits, some as text."""
    rng = np.random.default_rng(seed)
    number = np.sort(rng.integers(0, 40, count)) if seed % 2 else rng.integers(0, 40, count)
    ids = [f"{int(n) * 977:016x}" if n % 3 or not seed % 3 else f"./é/{n}.jpg" for n in number]
    label = rng.integers(0, 5, count)
    sign = np.where((number + label) % 3, 1, -1)  # always the same for a cell
    return ids, label, sign, number % 2


def gathered(blocks, with_splits=False, **how):
    found = Gathering()
    for ids, label, sign, split in blocks:
        entries = (label * 2 + (sign > 0)).astype(np.int32)
        found.add(runs(pa.array(ids)), entries, split=split.astype(np.int32) if with_splits else None)
    names = ["train", "test"] if with_splits else []
    return found.settled(COLUMNS, classes=CLASSES, splits=names, **how)


def in_blocks(columns, step=23):
    return [[column[at : at + step] for column in columns] for at in range(0, len(columns[0]), step)]


@pytest.mark.parametrize("seed", range(6))
def test_the_same_as_all_at_once(size, seed):
    ids, label, sign, split = rows(seed)
    images = list(dict.fromkeys(name.removeprefix("./") for name in ids))
    own = np.array([images.index(name.removeprefix("./")) for name in ids])
    kept = COLUMNS[label] >= 0
    wanted, duplicates, _ = Labels.merged(
        own[kept], COLUMNS[label[kept]], sign[kept], classes=CLASSES, images=images
    )
    found = gathered(in_blocks((ids, label, sign, split)), with_splits=True)
    assert found.labels.images.to_pylist() == images
    np.testing.assert_array_equal(found.labels.dense(), wanted.dense())
    assert (found.duplicates, found.clashes) == (duplicates, 0)
    assert found.labels.splits.to_pylist() == [
        ["train", "test"][int(split[list(own).index(number)])] for number in range(len(images))
    ]
    assert found.labels.entries.dtype == wanted.entries.dtype


def test_rows_with_several_labels_or_none(size):
    found = Gathering()
    for _ in range(5):
        entries = np.array([3, 0, 1], dtype=np.int32)  # not in the order of the rows
        found.add(runs(pa.array(["b", "a", "c"])), entries, row=np.array([2, 0, 2]))
    labels, duplicates, _ = found.settled(np.arange(2), classes=["cat", "dog"])
    assert labels.images.to_pylist() == ["b", "a", "c"]
    assert labels.dense().tolist() == [[-1, 0], [0, 0], [1, 1]]
    assert duplicates == 12


@pytest.mark.parametrize("rule", ["error", "absent", "present", "unknown"])
def test_contradictions(size, rule):
    ids = [f"{number % 20}.jpg" for number in range(60)]
    sign = np.where(np.arange(60) < 40, 1, -1)
    sign[40:55] = 1  # the last five images are contradicted
    blocks = in_blocks((ids, np.zeros(60, dtype=np.int64), sign, sign))
    if rule == "error":
        with pytest.raises(
            ContradictionError, match=r'image "15\.jpg" .*and so are 4 others: "cat" in "16\.jpg"'
        ):
            gathered(blocks)
        return
    found = gathered(blocks, contradictions=rule)
    value = {"absent": -1, "present": 1, "unknown": 0}[rule]
    assert found.clashes == 5
    assert found.labels.dense()[:, 2].tolist() == [1] * 15 + [value] * 5


def test_an_image_in_two_splits_is_named_by_its_row(size):
    ids = [f"{number}.jpg" for number in range(60)]
    ids[50] = "7.jpg"
    split = np.zeros(60, dtype=np.int32)
    split[50] = 1
    zeros = np.zeros(60, dtype=np.int64)
    with pytest.raises(SplitError, match=r'"7\.jpg" is in another split elsewhere') as raised:
        gathered(in_blocks((ids, zeros, zeros + 1, split)), with_splits=True)
    assert raised.value.row == 7
    split[50] = -1  # says nothing
    found = gathered(in_blocks((ids, zeros, zeros + 1, split)), with_splits=True)
    assert found.labels.splits.to_pylist() == ["train"] * 59


def test_ids_that_are_too_many_for_one_file(monkeypatch):
    monkeypatch.setattr(gathering, "HELD", 200)
    monkeypatch.setattr(gathering, "LETTERS", 100)
    with pytest.raises(InputError, match="letters together, and one label file can have 100; divide"):
        gathered(in_blocks(rows(2)))


def test_files_are_gone_when_labels_are(size, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    labels = gathered(in_blocks(rows(1))).labels
    assert list(tmp_path.iterdir()) == []  # they have no names
    assert isinstance(labels.entries, np.memmap) == (size == "in files")
    labels.save(tmp_path / "labels.arrow")
    assert Labels.load(tmp_path / "labels.arrow") == labels
