"""CSV files in CheXpert's way."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.chexpert import read

HEAD = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Pleural Effusion\n"
TEXT = (
    HEAD
    + "v1.0/train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,1.0,,0.0\n"
    + "v1.0/train/patient00002/study1/view1_frontal.jpg,Male,87,Frontal,AP,,-1.0,1.0\n"
    + "0012,Male,83,Lateral,,,0.0,-1.0\n"
)


def write(tmp_path, text=TEXT, name="train.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_blank_and_uncertain_are_unknown(tmp_path):
    labels = read(write(tmp_path)).labels
    assert labels.classes == ("No Finding", "Edema", "Pleural Effusion")
    assert labels.images.to_pylist()[::2] == ["v1.0/train/patient00001/study1/view1_frontal.jpg", "0012"]
    np.testing.assert_array_equal(labels.dense(), [[1, 0, -1], [0, 0, 1], [0, -1, 0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"uncertain": "present"}, [[1, 0, -1], [0, 1, 1], [0, -1, 1]]),
        ({"uncertain": "absent"}, [[1, 0, -1], [0, -1, 1], [0, -1, -1]]),
        ({"blank": "absent"}, [[1, -1, -1], [-1, 0, 1], [-1, -1, 0]]),
        ({"blank": "absent", "uncertain": "present"}, [[1, -1, -1], [-1, 1, 1], [-1, -1, 1]]),
    ],
)
def test_options_say_otherwise(tmp_path, options, expected):
    np.testing.assert_array_equal(read(write(tmp_path), **options).labels.dense(), expected)


def test_classes_can_be_named(tmp_path):
    path = write(tmp_path, TEXT.replace("Age", "Report").replace("68", "free text"))
    with pytest.raises(InputError, match=r'"free text" \(1\).* in Report; a finding is 1.0.*--classes'):
        read(path)
    labels = read(path, classes=["Pleural Effusion", "Edema"]).labels
    np.testing.assert_array_equal(labels.dense(), [[-1, 0], [1, 0], [0, -1]])
    with pytest.raises(InputError, match='no column "Oedema"; did you mean "Edema"'):
        read(path, classes=["Oedema"])


def test_integers_byte_order_mark_line_ends_and_gzip(tmp_path):
    expected = read(write(tmp_path)).labels
    for text in (
        TEXT.replace("1.0,", "1,").replace(",0.0", ",0").replace("v1,", "v1.0,"),
        "\ufeff" + TEXT.replace("\n", "\r\n"),
        gzip.compress(TEXT.encode()),
        TEXT.replace(",-1.0", ", -1.0 "),
    ):
        assert read(write(tmp_path, text)).labels == expected


def test_rows_given_twice(tmp_path):
    again = TEXT + "0012,Male,83,Lateral,,,0.0,-1.0\n"
    assert read(write(tmp_path, again)).notes == ("1 labels were given more than once; each counts once",)
    path = write(tmp_path, TEXT + "0012,Male,83,Lateral,,,1.0,-1.0\n")
    with pytest.raises(
        InputError, match=r'image "0012" is listed both with and without "Edema".*--contradictions'
    ):
        read(path)
    assert read(path, contradictions="unknown").labels.dense()[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (HEAD, "no rows below the header"),
        (TEXT.replace("Path", "Image"), 'no column "Path" among Image, Sex'),
        (TEXT.replace(",", ";"), "columns are separated by semicolons"),
        (TEXT.replace("Edema", "Sex"), 'the column "Sex" is named twice'),
        (TEXT.replace("0012,", ","), "line 4: the column Path is empty"),
        (TEXT.replace(",-1.0,", ",2.0,"), r'"2.0" \(1\) in Edema; a finding is 1.0'),
        (TEXT.replace(",-1.0,", ",-1.0,,"), "Expected 8 columns, got 9"),
        (TEXT[:-20], "Expected 8 columns"),
        (TEXT.encode().replace(b"0012", b"\xff12"), r"line 4 is not UTF-8 \(byte 0xff\)"),
        ("Path,Sex\na,Male\n", "no column of a class"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_unknown_options(tmp_path):
    with pytest.raises(InputError, match='blank cells cannot be "present"'):
        read(write(tmp_path), blank="present")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_written_labels_read_back(tmp_path_factory, seed, compressed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, size=rng.integers(1, 7, size=2))
    names = [f"Finding, {i}" for i in range(values.shape[1])]
    texts = {1: "1.0", -1: "0.0", 0: rng.choice(["", "-1.0"])}
    lines = [",".join(["Path", "Age", *(f'"{name}"' for name in names)])]
    lines += [
        ",".join([f"{i:04}.jpg", "60", *(texts[v] for v in row)]) for i, row in enumerate(values.tolist())
    ]
    data = "\n".join(lines).encode()
    path = write(tmp_path_factory.mktemp("csv"), gzip.compress(data) if compressed else data)
    assert read(path).labels == Labels.from_dense(
        values, classes=names, images=[f"{i:04}.jpg" for i in range(len(values))]
    )
