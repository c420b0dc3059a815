"""Wide tables: recognised by every reader, converted with values whose meaning was said."""

import gzip
import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.cli.shared import words_of
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.wide import PRESETS, Layout, chosen_layout, from_frame, read
from tertium.labels.readers import LabelFile, read_labels, write_labels

TEXT = "image,cat,dog,bird,split\na,1,0,,train\nb,0,1.0,1,val\n./c,0,0,0,test\n"
EXPECTED = [[1, -1, 0], [-1, 1, 1], [-1, -1, -1]]
LAYOUT = Layout(("1",), ("0",), ("",))


def write(tmp_path, text=TEXT, name="wide.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_values_mean_what_was_said(tmp_path):
    labels = read(write(tmp_path), LAYOUT).labels
    assert labels.classes == ("cat", "dog", "bird")
    assert labels.images.to_pylist() == ["a", "b", "c"]
    assert labels.splits.to_pylist() == ["train", "val", "test"]
    np.testing.assert_array_equal(labels.dense(), EXPECTED)
    other = read(write(tmp_path), Layout(("1",), (), ("0", ""))).labels
    np.testing.assert_array_equal(other.dense(), np.maximum(EXPECTED, 0))


@pytest.mark.parametrize("words", [("True", "False"), ("true", "false"), ("TRUE", "FALSE")])
def test_truth_values_as_programs_write_them(tmp_path, words):
    text = "image,note,cat,dog\na,x,{},{}\nb,y,{},\n".format(*words, words[0])
    path = write(tmp_path, text)
    options = {"positive": True, "negative": False, "unknown": None, "ignore": "note"}
    assert read_labels(path, **options).dense().tolist() == [[1, -1], [1, 0]]
    file = LabelFile.with_options(path, **options)
    assert LabelFile.with_options(path, **file.options()) == file


@pytest.mark.parametrize("name", ["wide.tsv", "wide.csv.gz", "wide.jsonl", "wide.parquet"])
def test_every_kind_of_file(tmp_path, name):
    expected = read(write(tmp_path), LAYOUT).labels
    table = pa.table(
        {
            "image": ["a", "b", "./c"],
            "cat": [1, 0, 0],
            "dog": [0.0, 1.0, 0.0],
            "bird": pa.array([None, 1, 0]),
            "split": ["train", "val", "test"],
        }
    )
    if name.endswith("parquet"):
        pa.parquet.write_table(table, tmp_path / name)
    else:
        lines = "\n".join(str(row).replace("None", "null").replace("'", '"') for row in table.to_pylist())
        texts = {"tsv": TEXT.replace(",", "\t"), "gz": gzip.compress(TEXT.encode()), "jsonl": lines}
        write(tmp_path, texts[name.rpartition(".")[2]], name)
    assert read(tmp_path / name, LAYOUT).labels == expected
    assert from_frame(table, LAYOUT).labels == expected


def test_frames_are_read_through_arrow():
    class Frame:
        """What pandas and polars give to Arrow."""

        def __init__(self, table):
            self._table = table

        def __arrow_c_stream__(self, requested_schema=None):
            return self._table.__arrow_c_stream__(requested_schema)

    table = pa.table({"file": ["a", "b"], "cat": [True, False], "dog": [float("nan"), 1.0]})
    layout = Layout(("true", "1"), ("false",), ("",), image="file")
    np.testing.assert_array_equal(from_frame(Frame(table), layout).labels.dense(), [[1, 0], [-1, 1]])
    lists = pa.table({"image": ["a"], "cat": [[1]]})
    with pytest.raises(InputError, match='the column "cat" holds list'):
        from_frame(lists, LAYOUT)


def test_a_value_that_was_not_named_is_listed(tmp_path):
    text = "image,Age,cat,dog\na,68,1,0\nb,70,2,0\nc,68,,?\n"
    with pytest.raises(InputError) as raised:
        read(write(tmp_path, text), Layout(("1",), ("0",)))
    told = str(raised.value)
    assert '(cells in brackets): "68" (2), "70" (1), "2" (1), "" (1), "?" (1) in Age, cat, dog;' in told
    assert "--unknown, or leave columns that are no classes out with --ignore" in told
    layout = Layout(("1", "2"), ("0",), ("", "?"))
    found = read(write(tmp_path, text), layout, ignore=["Age"]).labels
    np.testing.assert_array_equal(found.dense(), [[1, -1], [1, -1], [0, 0]])
    assert (
        read(write(tmp_path, text), layout, classes=["dog"], suffix=".jpg").labels.images[0].as_py()
        == "a.jpg"
    )


@pytest.mark.parametrize(
    ("text", "how", "message"),
    [
        (TEXT.replace("image", "file"), {}, r'no column "image" among file.*with --image-column'),
        (TEXT, {"ignore": ["brid"]}, 'no column "brid"; did you mean "bird"'),
        (TEXT, {"classes": ["brid"]}, 'no column "brid"'),
        ("image,split\na,train\n", {}, "no column of a class"),
        ("image,cat\n", {}, "no rows below the header"),
        ("image,cat\na,1\n,1\n", {}, "line 3: the column image is empty"),
        ("image,cat\na,1\na,0\n", {}, 'both with and without "cat"; say which holds with --contradictions'),
        ("image,cat,split\na,1,train\na,1,test\n", {}, 'line 2: image "a" is in another split'),
        (",image,cat\n0,a,1\n", {}, "a column has no name; if it is no class, say --ignore ''"),
        ("image,cat, cat\na,1,1\n", {}, "a class is named twice: cat"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, how, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as raised:
        read(path, LAYOUT, **how)
    assert str(path) in str(raised.value)


def test_bad_files_and_layouts(tmp_path):
    for name, message in (
        ("x.xlsx", "read from .csv"),
        ("x.parquet", "not a Parquet"),
        ("x.jsonl", "not JSON lines"),
    ):
        with pytest.raises(InputError, match=message):
            read(write(tmp_path, "{]", name), LAYOUT)
        with pytest.raises(InputError, match=r"no such file|read from"):
            read(tmp_path / f"no-{name}", LAYOUT)
    with pytest.raises(InputError, match='"1" cannot be both positive and unknown'):
        Layout(("1",), (), ("1",))
    with pytest.raises(InputError, match="name a --preset"):
        chosen_layout(negative=["0"])
    with pytest.raises(InputError, match='did you mean "signed"'):
        chosen_layout("singed")
    assert chosen_layout("signed") == PRESETS["signed"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_written_tables_read_back(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, size=rng.integers(1, 7, size=2))
    texts = {1: ["yes", "Y"], -1: ["no"], 0: ["", "?"]}
    lines = [",".join(["image", *(f"class {number}" for number in range(values.shape[1]))])]
    lines += [
        ",".join([f"{n}.jpg", *(rng.choice(texts[v]) for v in row)]) for n, row in enumerate(values.tolist())
    ]
    path = write(tmp_path_factory.mktemp("wide"), "\n".join(lines) + "\n")
    found = read(path, Layout(("yes", "Y"), ("no",), ("", "?"))).labels
    names = [f"class {number}" for number in range(values.shape[1])]
    assert found == Labels.from_dense(values, classes=names, images=[f"{n}.jpg" for n in range(len(values))])


# ---- as a label file ---------------------------------------------------------------------------------------


def test_a_label_file_may_be_a_wide_table(tmp_path):
    path = write(tmp_path, TEXT.replace("image", "file"), "file.csv")
    file = LabelFile.with_options(path, positive=1, negative=["0"], unknown=None, image_column="file")
    expected = read(write(tmp_path), LAYOUT).labels
    found = file.read()
    assert found.labels == expected
    assert found.seen == 'cells "0" 5 times, "1" 2 times, "1.0" 1 times, "" 1 times'
    kept = json.loads(json.dumps(file.options()))
    assert LabelFile.with_options(path, **kept) == file
    assert words_of(kept) == shlex.split("--positive 1 --negative 0 --unknown '' --image-column file")
    assert read_labels(path, positive=1, negative=0, unknown="", image_column="file") == expected
    assert LabelFile.with_options(write(tmp_path), preset="binary", unknown="").read().labels == expected


def test_names_of_columns_can_be_chosen_and_changed(tmp_path):
    path = write(tmp_path, "image,Cat,cat,dog,age\na,1,,0,7\nb,,0,1,8\nB.jpg,,,1,9\n")
    how = {"positive": 1, "negative": 0, "unknown": ""}
    found = LabelFile.with_options(path, **how, rename={"Cat": "cat"}).read(classes=["dog", "cat"])
    assert found.labels.classes == ("dog", "cat")
    np.testing.assert_array_equal(found.labels.dense(), [[-1, 1], [1, -1], [1, 0]])
    assert found.notes == ("images whose names differ only in case or ending count as different ones: "
                           "b and B.jpg",)  # fmt: skip
    notes = LabelFile.with_options(path, **how, ignore=["age"]).read().notes
    assert any(note.startswith("classes with nearly the same name: Cat / cat") for note in notes)
    with pytest.raises(InputError, match='no column of the class "dgo"; did you mean "dog"'):
        read_labels(path, **how, classes=["dgo"])


@pytest.mark.parametrize(
    ("text", "how", "reading", "message"),
    [
        (TEXT, {"ignore": ["cat"]}, {}, "say which values mean what"),
        (TEXT, {"preset": "binray"}, {}, 'no preset "binray"; did you mean "binary"'),
        (TEXT, {"preset": "binary"}, {}, r'nothing says what these values mean .*"" \(1\) in bird'),
        (TEXT, {"positive": 1}, {"unlisted": "absent"}, "nothing is unlisted: name .* with --negative"),
        ("image,cat\na,1\na,0\n", {"preset": "binary"}, {}, "with tertium convert wide --contradictions"),
        ("image,present\na,cat\n", {"positive": 1}, {}, "it lists the labels of each image, so --positive"),
        ("image,label,value\na,cat,1\n", {"positive": 1}, {}, "it lists the labels"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, text, how, reading, message):
    with pytest.raises(InputError, match=message):
        LabelFile.with_options(write(tmp_path, text), **how).read(**reading)


def test_files_that_tertium_wrote_are_no_wide_tables(tmp_path, tertium):
    labels = read(write(tmp_path), LAYOUT).labels
    for name in ("l.arrow", "l.parquet"):
        write_labels(labels, tmp_path / name)
        with pytest.raises(InputError, match="it lists the labels of each image"):
            read_labels(tmp_path / name, positive=1)
        # Beside a wide table they need no meaning of cells.
        words = ["merge", tmp_path / "wide.csv", tmp_path / name, "--preset", "binary", "--unknown", ""]
        assert tertium(*words, "--out", tmp_path / "m.parquet", "--overwrite")[0] == 0
        assert read_labels(tmp_path / "m.parquet") == labels
    with pytest.raises(InputError, match="--separator and --missing do not go with --positive"):
        LabelFile.with_options(tmp_path / "wide.csv", separator=",", positive=1)
    code, _, errors = tertium("train", "--resume", tmp_path, "--positive", 1)
    assert (code, "--positive says how to read a label file" in " ".join(errors.split())) == (2, True)


# ---- recognising -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, EXPECTED),
        (TEXT.replace("image", "filename"), EXPECTED),
        ("table,plant,filename\n1,0,x.jpg\n0,1,y.jpg\n", [[1, -1], [-1, 1]]),  # "table" is near to "label"
        (",file,Age,cat,dog\n0,x.jpg,31,True,False\n1,y.jpg,29,False,\n", [[1, -1], [-1, 0]]),
        ("image,cat\nx.jpg,1\ny.jpg,0\n", [[1], [-1]]),
    ],
)
def test_the_options_that_are_named_work_as_printed(tmp_path, tertium, text, expected):
    path = write(tmp_path, text, "my table.csv")
    with pytest.raises(InputError, match="it looks like a wide table, one column for each class") as raised:
        read_labels(path)
    example = str(raised.value).partition("for example: ")[2].partition(" (or make")[0]
    for command in (["merge", path, path], ["convert", "wide", path]):
        out = tmp_path / f"{command[0]}.csv"
        assert tertium(*command, *shlex.split(example), "--out", out)[0] == 0
        found = read_labels(out)
        names = [name for name in text.partition("\n")[0].split(",") if name in found.classes]
        np.testing.assert_array_equal(found.with_classes(names).dense(), expected)


def test_other_files_with_wide_tables_are_recognised(tmp_path):
    pa.parquet.write_table(pa.table({"image": ["a"], "cat": [1], "dog": [0]}), tmp_path / "wide.parquet")
    with pytest.raises(InputError, match="looks like a wide table"):
        read_labels(tmp_path / "wide.parquet")
    with pytest.raises(InputError, match="looks like a wide table"):
        read_labels(write(tmp_path, '{"image": "a", "cat": 1, "dog": 0}\n', "wide.jsonl"))
    with pytest.raises(InputError) as raised:
        read_labels(write(tmp_path, "image,cat,dog\na,1,-1\nb,0,0\n"))
    told = str(raised.value)
    assert "such as --positive 1 --negative -1 --unknown 0 if -1 is absent and 0 unknown, or" in told
    assert "or --positive 1 --negative 0 --unknown -1 if -1 is unknown (" in told


@pytest.mark.parametrize("text", ["picture,present\na,cat\n", "imge,lable\na,cat\n", "image,colour\na,red\n"])
def test_other_tables_are_not(tmp_path, text):
    with pytest.raises(InputError) as raised:
        read_labels(write(tmp_path, text))
    assert "wide table" not in str(raised.value)
