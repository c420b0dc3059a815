"""Feature files that other programs wrote, or that are damaged: mapped, or refused in one sentence."""

import io
import json
import os

import numpy as np
import pytest

from tertium.data.feature_files import feature_names, fingerprint, load_features
from tertium.errors import InputError

SHAPE = (6, 4)


def saved(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def with_header(text):
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(96)


def described(shape, kind="<f4"):
    return with_header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}")


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_mapped(tmp_path, rng, kind):
    array = rng.normal(size=SHAPE).astype(kind)
    (tmp_path / "x.npy").write_bytes(saved(array))
    found = load_features(tmp_path / "x.npy")
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (saved(np.ones(SHAPE, ">f4")), "in this machine's byte order, not .6, 4. of >f4"),
        (saved(np.ones(SHAPE, np.longdouble)), "not .6, 4. of float128"),
        (saved(np.ones(SHAPE, np.int32)), "of float16, float32, float64"),
        (saved(np.ones(6)), r"not \[6\] of float64"),
        (saved(np.ones((6, 0))), r"not \[6, 0\] of float64"),
        (saved(np.ones(SHAPE, object)), "not a .npy array of numbers"),
        (described((-6, 4)), "not a .npy array of numbers"),
        (described((-6, -4)), "not a .npy array of numbers"),
        (described((10**30, 4)), "not a .npy array of numbers"),
        (described((60, 4)), "not a .npy array of numbers"),
        (described((6, 4), "<q9"), "not a .npy array of numbers"),
        (with_header("{'descr': '<f4'"), "not a .npy array of numbers"),
        (with_header("((("), "not a .npy array of numbers"),
        (with_header("[" * 20_000), r"not a \.npy array of numbers \(Header info length[^\n]*\)$"),
        (b"", "not a .npy array of numbers"),
        (b"\x80\x04N.", "not a .npy array of numbers"),
    ],
)
def test_other_arrays_are_refused_in_one_sentence(tmp_path, content, complaint):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"x\.npy: .*{complaint}"):
        load_features(path)


def test_an_archive_is_told_from_an_array(tmp_path):
    content = io.BytesIO()
    np.savez(content, features=np.ones(SHAPE))
    (tmp_path / "x.npy").write_bytes(content.getvalue())
    with pytest.raises(InputError, match=r"an \.npz archive; save its array by itself with numpy\.save"):
        load_features(tmp_path / "x.npy")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    for name, complaint in (("pipe.npy", "not a file"), ("none.npy", "no such file"), (".", "not a file")):
        with pytest.raises(InputError, match=complaint):
            load_features(tmp_path / name)


def test_damaged_files_raise_nothing_else(tmp_path, rng):
    path, whole = tmp_path / "x.npy", saved(rng.normal(size=SHAPE).astype(np.float32))
    refused = []
    for attempt in range(1500):
        changed = bytearray(whole)
        for _ in range(1 + attempt % 3):
            changed[rng.integers(128)] = rng.integers(256)
        path.write_bytes(changed[: None if attempt % 2 else rng.integers(len(whole))])
        try:
            load_features(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 1000
    assert all(said.startswith(f"{path}: ") and "\n" not in said for said in refused)


def test_names_that_are_no_names_are_refused(tmp_path):
    path, array = tmp_path / "x.npy", np.ones((2, 3))
    np.save(path, array)
    for names in ([1, 2], ["a"], "ab", None, [["a"], ["b"]]):
        about = {"tertium_features": 1, "array": fingerprint(array), "images": names}
        (tmp_path / "x.npy.json").write_text(json.dumps(about))
        with pytest.raises(InputError, match=r"x\.npy\.json: names the rows of another array"):
            feature_names(path)
