"""CIFAR-100 in both versions, and the pickle reader that runs nothing."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tertium.errors import InputError
from tertium.labels.formats.cifar import read
from tertium.labels.formats.inert_pickle import read_pickle

FINE = ["apple", "bear", "beaver", "bee", *(f"fine_{i}" for i in range(96))]
COARSE = ["fruit", "mammals", "insects", *(f"coarse_{i}" for i in range(17))]
ABOVE = [0, 1, 1, 2]  # the coarse class of each fine one


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size=(count, 3072), dtype=np.uint8)


def write_binary(folder, train=(0, 1, 2), test=(3, 1)):
    folder.mkdir(exist_ok=True)
    (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n\n")
    for split, fine in (("train", train), ("test", test)):
        records = [
            bytes([ABOVE[f], f]) + image.tobytes() for f, image in zip(fine, pixels(len(fine)), strict=True)
        ]
        (folder / f"{split}.bin").write_bytes(b"".join(records))
    return folder


def batch(fine, images):
    return {
        "filenames": [f"x_s_{i:06}.png" for i in range(len(fine))],
        "batch_label": "training batch 1 of 1",
        "fine_labels": list(fine),
        "coarse_labels": [ABOVE[f] for f in fine],
        "data": images,
    }


def write_pickled(folder, dump, train=(0, 1, 2), test=(3, 1)):
    folder.mkdir(exist_ok=True)
    (folder / "meta").write_bytes(dump({"fine_label_names": FINE, "coarse_label_names": COARSE}))
    (folder / "train").write_bytes(dump(batch(train, pixels(len(train)))))
    (folder / "test").write_bytes(dump(batch(test, pixels(len(test)))))
    return folder


def python2(value):
    """Pickle as Python 2's protocol 2 did: text is bytes, and an array is rebuilt by name."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value):
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if value is None:
        return b"N"
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
    if isinstance(value, str | bytes):
        raw = value.encode("latin-1") if isinstance(value, str) else value
        return (
            (b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)))
            + raw
            + b"q\x01"
        )
    if isinstance(value, list):
        return b"]q\x02(" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}q\x03(" + b"".join(_python2(part) for item in value.items() for part in item) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    kind = (
        b"cnumpy\ndtype\n"
        + _python2(("u1", 0, 1))
        + b"R"
        + _python2((3, "|", None, None, None, -1, -1, 0))
        + b"b"
    )
    state = _python2(1) + _python2(value.shape) + kind + _python2(False) + _python2(value.tobytes())
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _python2((0,)) + _python2("b") + b"tR"
    )
    return made + b"(" + state + b"tb"


DUMPS = {
    "python 2": python2,
    "protocol 3": lambda value: pickle.dumps(value, protocol=3),
    "protocol 4": lambda value: pickle.dumps(value, protocol=4),
}


def test_the_binary_version(tmp_path):
    found = read(write_binary(tmp_path))
    labels = found.labels
    assert labels.images.to_pylist() == [f"train/0000{i}.png" for i in range(3)] + [
        "test/00000.png",
        "test/00001.png",
    ]
    assert labels.classes == (*FINE, *COARSE)
    assert np.flatnonzero(labels.dense()[0] == 1).tolist() == [0, 100]
    assert labels.is_full
    assert (labels.image_counts[0] == 2).all()
    assert labels.split_names() == ["test", "train"]
    assert dict(found.tree.parents) == {
        "apple": "fruit",
        "bear": "mammals",
        "beaver": "mammals",
        "bee": "insects",
    }


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_the_python_version_says_the_same(tmp_path, dump):
    binary = read(write_binary(tmp_path / "binary"), images=tmp_path / "one")
    pickled = read(write_pickled(tmp_path / "python", dump), images=tmp_path / "two")
    assert pickled.labels == binary.labels
    assert pickled.tree == binary.tree
    for name in binary.labels.images.to_pylist():
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_test_pickles_are_pickles():
    value = batch((0, 1), pixels(2))
    found = pickle.loads(python2(value), encoding="latin-1")
    np.testing.assert_array_equal(found.pop("data"), value.pop("data"))
    assert found == value


def test_images_are_written_whole(tmp_path):
    read(write_binary(tmp_path / "data"), images=tmp_path / "pictures")
    with Image.open(tmp_path / "pictures" / "train" / "00001.png") as image:
        shown = np.asarray(image)
    red, green, blue = pixels(3)[1].reshape(3, 32, 32)
    np.testing.assert_array_equal(shown, np.dstack([red, green, blue]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "pictures"]
    with pytest.raises(InputError, match="is there already"):
        read(tmp_path / "data", images=tmp_path / "pictures")
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "data", images=tmp_path / "no" / "pictures")


def test_a_name_too_many_or_too_few(tmp_path):
    path = write_binary(tmp_path) / "coarse_label_names.txt"
    path.write_text(path.read_text().replace("mammals", "mam\nmals"))
    with pytest.raises(InputError, match="21 names in coarse_label_names; CIFAR-100 has 20"):
        read(tmp_path)


def test_one_part_alone(tmp_path):
    (write_binary(tmp_path) / "test.bin").unlink()
    found = read(tmp_path)
    assert found.labels.split_names() == ["train"]
    assert found.notes == ("there is no test part",)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "bytes are not whole records of 3,074"),
        (lambda data: b"", "the file is empty"),
        (lambda data: b"\x14" + data[1:], "train.bin: image 0: the coarse label 20 has no name"),
        (lambda data: data[:1] + b"\x64" + data[2:], "train.bin: image 0: the fine label 100 has no name"),
        (lambda data: b"\x02" + data[1:] + data, 'fine classes with two coarse classes: "apple"'),
    ],
)
def test_damaged_records_are_named(tmp_path, damage, message):
    path = write_binary(tmp_path) / "train.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(InputError, match=r"neither train.bin or test.bin nor train or test"):
        read(tmp_path)
    write_binary(tmp_path)
    (tmp_path / "coarse_label_names.txt").unlink()
    with pytest.raises(InputError, match=r"coarse_label_names.txt: no such file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": pixels(3)[:, :100]}, '"data" is not an array of 3,072 pixel bytes'),
        ({"data": "text"}, '"data" is not an array'),
        ({"fine_labels": [0, 1]}, '2 "fine_labels" for 3 images'),
        ({"fine_labels": [0, 1, "2"]}, '"fine_labels" is not a list of numbers'),
        ({"coarse_labels": None}, '"coarse_labels" is not a list'),
    ],
)
def test_pickles_of_something_else(tmp_path, change, message):
    folder = write_pickled(tmp_path, python2)
    (folder / "train").write_bytes(python2(batch((0, 1, 2), pixels(3)) | change))
    with pytest.raises(InputError, match=message):
        read(folder)


# ---- pickles that do something -----------------------------------------------------------------------------


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


class Evaluate:
    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return eval, (self.text,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("key", ["data", "fine_labels", "more"])
def test_nothing_is_run(tmp_path, protocol, key):
    mark = tmp_path / "mark"
    for evil in (Touch(mark), Evaluate(f"__import__('pathlib').Path({str(mark)!r}).touch()")):
        value = batch((0, 1, 2), [[0, 1]]) | {key: evil}
        data = pickle.dumps(value, protocol=protocol)
        (tmp_path / "train").write_bytes(data)
        with pytest.raises(InputError, match="nothing in it was run"):
            read_pickle(tmp_path / "train")
        assert not mark.exists()
        pickle.loads(data)  # the same bytes do harm where they are unpickled
        assert mark.exists()
        mark.unlink()


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n.",
        b"cos\nsystem\n(U\x04truetR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nU\x04trueo.",
        b"U\x02osU\x06system\x93(U\x04truetR.",
        b"cbuiltins\neval\n(U\x011tR.",
        ARRAY + b"(cbuiltins\nbytearray\n(K\x09tU\x01btR.",
        ARRAY + b"(U\x02u1(K\x00tU\x01btR.",
        b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR.",
        b"cnumpy\nndarray\n((K\x03ttR.",
        b"cnumpy\nndarray\n)\x81.",
        b"cnumpy\nndarray\n}U\x01ab.",
        b"cnumpy\nload\n(U\x01atR.",
        b"}(U\x01aU\x01bu}b.",
        b"U\x01aQ.",
        b"Pname\n.",
        b"\x82\x01.",
        b"cnumpy.core.multiarray\nscalar\n.",
    ],
)
def test_opcodes_that_are_no_data_are_refused(tmp_path, body):
    (tmp_path / "train").write_bytes(b"\x80\x02" + body)
    with pytest.raises(InputError, match="nothing in it was run"):
        read_pickle(tmp_path / "train")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02]].",
        b"\x80\x02u.",
        b"\x80\x02h\x05.",
        b"\x80\x02U\xffabc.",
        b"\x80\x02](K\x01u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}(]K\x01u.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x02" + b"\x85" * 10 + b".",
        b"not a pickle",
        b"\x80\x02}(" + b"N" + b"\x85" * 100_000 + b"K\x01u.",  # a key that is very deep
        python2(np.zeros((2, 3), np.uint8)).replace(b"K\x02K\x03", b"K\x02K\x04"),
    ],
)
def test_damaged_pickles(tmp_path, data):
    (tmp_path / "train").write_bytes(data)
    with pytest.raises(InputError, match="not a pickle, or a damaged one"):
        read_pickle(tmp_path / "train")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=9),
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.tuples(inside)
        | st.tuples(inside, inside)
        | st.dictionaries(st.text(max_size=5), inside, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=60, deadline=None)
@given(plain, st.sampled_from([2, 3, 4]))
def test_plain_data_reads_back(tmp_path_factory, value, protocol):
    path = tmp_path_factory.mktemp("pickle") / "data"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    assert read_pickle(path) == value


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.sampled_from(sorted(DUMPS)))
def test_written_labels_read_back(tmp_path_factory, fine, dump):
    folder = tmp_path_factory.mktemp("cifar")
    binary = read(write_binary(folder / "binary", train=fine)).labels
    assert binary.dense()[: len(fine), :100].argmax(axis=1).tolist() == fine
    assert binary.dense()[: len(fine), 100:].argmax(axis=1).tolist() == [ABOVE[f] for f in fine]
    assert read(write_pickled(folder / "python", DUMPS[dump], train=fine)).labels == binary
