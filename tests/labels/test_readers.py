import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels, tables
from tertium.labels.readers import LabelFile, read_classes, read_labels, write_labels
from tertium.progress import Progress


def write(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_long_form(tmp_path):
    path = write(
        tmp_path, "image,label,value\na,cat,1\na,dog,-1\nb,dog,present\nb,cat,absent\nc,,\nb,dog,+1\n"
    )
    labels = read_labels(path)
    assert labels.images.to_pylist() == ["a", "b", "c"]
    assert labels.classes == ("cat", "dog")
    np.testing.assert_array_equal(labels.dense(), [[1, -1], [-1, 1], [0, 0]])


def test_compact_form(tmp_path):
    path = write(tmp_path, "image,present,absent,split\na, cat ; dog ,fox,train\nb,,cat,test\nc,,,test\n")
    labels = read_labels(path)
    assert labels.classes == ("cat", "dog", "fox")
    np.testing.assert_array_equal(labels.dense(), [[1, 1, -1], [-1, 0, 0], [0, 0, 0]])
    assert labels.split_names() == ["test", "train"]
    assert labels.part("test").images.to_pylist() == ["b", "c"]


def test_unlisted_is_what_the_user_says(tmp_path):
    path = write(tmp_path, "image,present\na,cat\nb,dog\n")
    np.testing.assert_array_equal(read_labels(path).dense(), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(read_labels(path, unlisted="absent").dense(), [[1, -1], [-1, 1]])


def test_names_that_look_like_missing_values_stay_names(tmp_path):
    path = write(tmp_path, "image,label,value\n001,null,1\n001,nan,1\nNA,1,1\n")
    labels = read_labels(path)
    assert labels.images.to_pylist() == ["001", "NA"]
    assert labels.classes == ("1", "nan", "null")


def test_other_columns_quotes_and_byte_order_mark(tmp_path):
    path = write(tmp_path, '\ufeffimage,photographer,present\n"a, b.jpg","x ""y""",cat\n')
    assert read_labels(path).images.to_pylist() == ["a, b.jpg"]


@pytest.mark.parametrize("missing", ["nan", ["nan"], ("nan",)])
def test_one_word_for_nothing(tmp_path, missing):
    path = write(tmp_path, "image,present\n1,n\n2,a\n3,nan\n4,nan\n")
    labels = read_labels(path, missing=missing)
    assert labels.classes == ("a", "n")
    assert LabelFile.with_options(path, missing=missing).options()["missing"] == ["nan"]
    assert LabelFile.with_options(path, missing="").missing == ()  # as --missing ''


def test_one_text_is_no_list_of_classes(tmp_path):
    path = write(tmp_path, "image,present\n1,a\n2,b\n")
    with pytest.raises(InputError, match=r'not the text "abc"; read_classes reads a file of names'):
        read_labels(path, classes="abc")


def test_a_rule_that_is_none(tmp_path):
    path = write(tmp_path, "image,present,absent\na,cat,cat\n")
    with pytest.raises(InputError, match='contradictions cannot be "abscent"; did you mean "absent"'):
        read_labels(path, contradictions="abscent")


class Heard(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(("name", "lost"), [("x.csv", True), ("x.tsv", True), ("x.parquet", False)])
def test_classes_that_a_text_file_cannot_have_are_named(tmp_path, name, lost):
    labels = Labels.from_dense([[1, 0, -1, 0]], classes=["cat", "dog", "elk", "fox"])
    heard, path = Heard(), tmp_path / name
    write_labels(labels, path, progress=heard)
    assert (read_labels(path).classes != labels.classes) == lost
    sentence = (
        f"Note: classes without a known label are not in {path}: dog, fox; .parquet and .arrow keep them."
    )
    assert heard.notes == ([sentence] if lost else [])
    heard.notes.clear()
    write_labels(labels.unlisted_absent(), tmp_path / f"full-{name}", progress=heard)
    assert heard.notes == []


def test_simulate_says_which_classes_are_lost(tmp_path, tertium):
    path, out = write(tmp_path, "image,present,absent\na,cat,dog\nb,cat,\n"), tmp_path / "s.csv"
    code, said, _ = tertium("simulate", path, "--scheme", "positives:1", "--out", out)
    assert code == 0
    assert "classes without a known label are not in" in said
    code, said, _ = tertium("simulate", path, "--scheme", "full", "--out", out, "--overwrite")
    assert "without a known label" not in said


def test_tsv_gzip_and_parquet(tmp_path):
    expected = read_labels(write(tmp_path, "image,present\na,cat\n"))
    assert read_labels(write(tmp_path, "image\tpresent\na\tcat\n", "labels.tsv")) == expected
    assert read_labels(write(tmp_path, gzip.compress(b"image,present\na,cat\n"), "labels.csv.gz")) == expected
    pa.parquet.write_table(pa.table({"image": ["a"], "present": ["cat"]}), tmp_path / "labels.parquet")
    assert read_labels(tmp_path / "labels.parquet") == expected


def test_classes_fix_the_order(tmp_path):
    path = write(tmp_path, "image,present\na,cat\n")
    names = read_classes(write(tmp_path, "dog\ncat\n\n", "classes.txt"))
    assert read_labels(path, classes=names).classes == ("dog", "cat")
    with pytest.raises(InputError, match=r'line 2: there is no class "cat"; did you mean "cats"'):
        read_labels(path, classes=["cats"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_written_labels_read_back(tmp_path_factory, seed, with_split):
    rng = np.random.default_rng(seed)
    classes = ["Zebra", "a b", 'quo"te', "ünï", "comma,"]
    matrix = rng.integers(-1, 2, size=(rng.integers(1, 6), 5))
    matrix[0] = [1, -1, 1, 1, -1]  # a class that is never mentioned is not in a CSV file
    labels = Labels.from_dense(matrix, classes=sorted(classes))
    if with_split:
        splits = pa.array(["x" if row % 2 else "y" for row in range(len(matrix))]).dictionary_encode()
        labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)
    folder = tmp_path_factory.mktemp("labels")
    for suffix in (".csv", ".tsv", ".parquet", ".arrow"):
        path = folder / f"labels{suffix}"
        write_labels(labels, path)
        assert read_labels(path) == labels
    assert len(list(folder.iterdir())) == 4  # nothing temporary is left


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("image,present\n", "no rows below the header"),
        ("image,present\na,\n", "names no label"),
        ("image,lable,value\na,cat,1\n", 'unknown column "lable"; did you mean "label"'),
        ("image,presnet,split\na,cat,train\n", 'unknown column "presnet"; did you mean "present"'),
        ("imge,present\na,cat\n", 'unknown column "imge"; did you mean "image"'),
        ("image,value\na,1\n", 'no column "label" among image, value'),
        ("image,present,abesnt\na,cat,dog\n", 'unknown column "abesnt"; did you mean "absent"'),
        ("picture,present\na,cat\n", 'no column "image"'),
        ("image,label,value\na,cat,1\n\nb,cat,0\n", 'line 4: the value is "0"'),
        ("image,label,value\na,cat,\n", 'line 2: the value is ""'),
        ("image,label,value\na,,1\n", "line 2: there is a value but no label"),
        ("image,label,value\n,cat,1\n", "line 2: the image is empty"),
        (
            "image,label,value\na,cat,1\nb,cat,1\na,cat,-1\n",
            r'"a" is listed both .* "cat" \(line 2 and line 4\)',
        ),
        ("image,present,absent\na,cat,dog;cat\n", r"line 2 and line 2"),
        ("image,present,split\na,cat,train\na,dog,test\n", r'line 2: image "a" is in another split'),
        (b"image,present\na,cat\nb,caf\xe9\n", r"line 3 is not UTF-8 \(byte 0xe9\)"),
        ("image,present\na,cat,dog\n", "Expected 2 columns, got 3"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)


def test_bad_paths(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_labels(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_labels(tmp_path)
    with pytest.raises(InputError, match=r"read from \.csv"):
        read_labels(write(tmp_path, "x", "labels.xlsx"))
    with pytest.raises(InputError, match="not a Parquet file"):
        read_labels(write(tmp_path, "x", "labels.parquet"))
    with pytest.raises(InputError, match='did you mean "absent"'):
        read_labels(write(tmp_path, "image,present\na,b\n"), unlisted="abscent")
    labels = Labels.from_dense([[1]], classes=["a;b"])
    with pytest.raises(InputError, match=r"need \.parquet or \.arrow: a;b"):
        write_labels(labels, tmp_path / "out.csv")
    with pytest.raises(InputError, match="does not exist"):
        write_labels(Labels.from_dense([[1]]), tmp_path / "no" / "out.csv")
    with pytest.raises(InputError, match="written as"):
        write_labels(labels, tmp_path / "out.txt")
    assert not list(tmp_path.glob("out*"))


def test_contradictions_by_rule(tmp_path):
    path = write(tmp_path, "image,label,value\na,cat,1\nb,cat,1\na,cat,-1\nb,dog,-1\n")
    for rule, value in (("absent", -1), ("present", 1), ("unknown", 0)):
        expected = [[value, 0], [1, -1]]
        np.testing.assert_array_equal(read_labels(path, contradictions=rule).dense(), expected)


@pytest.mark.parametrize("block", [1, 7, 16, 40])
def test_any_block_size_reads_the_same(tmp_path, monkeypatch, block):
    text = (
        'image,label,value,split\na,cat,1,x\n\na,dog,-1,x\n"b\nb","do""g",1,y\nc,,,x\nb,cat,1,y\na,cat,1,x\n'
    )
    for name in ("labels.csv", "labels.csv.gz"):
        path = write(tmp_path, gzip.compress(text.encode()) if name.endswith("gz") else text, name)
        expected = read_labels(path)
        assert expected.images.to_pylist() == ["a", "b\nb", "c", "b"]
        assert expected.classes == ("cat", 'do"g', "dog")
        monkeypatch.setattr(tables, "BLOCK", block)
        assert read_labels(path) == expected
        monkeypatch.undo()
    bad = write(tmp_path, text + "a,dog,1,x\n", "bad.csv")
    monkeypatch.setattr(tables, "BLOCK", block)
    with pytest.raises(InputError, match=r'without "dog" \(line 4 and line 10\)'):
        read_labels(bad)


def test_json_lines(tmp_path):
    lines = [
        {"image": "001", "present": ["a;b", "cat"], "absent": ["dog"], "split": "train"},
        {"image": "002", "present": [], "split": "test"},
        {"image": "003", "label": "cat", "value": -1, "split": "test"},
        {"image": "003", "label": "dog", "value": "present", "split": "test", "photographer": 7},
    ]
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(line) for line in lines)
    labels = read_labels(write(tmp_path, text, "labels.jsonl"))
    assert labels.images.to_pylist() == ["001", "002", "003"]
    assert labels.classes == ("a;b", "cat", "dog")
    np.testing.assert_array_equal(labels.dense(), [[1, 1, -1], [0, 0, 0], [0, -1, 1]])
    assert labels.splits.to_pylist() == ["train", "test", "test"]
    assert read_labels(write(tmp_path, gzip.compress(text.encode()), "labels.jsonl.gz")) == labels
    assert read_labels(write(tmp_path, '{"image": "a", "present": ["x"]}\n', "plain.jsonl")).splits is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ('{"image": "a", "present": ["x"]}\n{"image": "b"', "line 2: not valid JSON"),
        ('{"image": "a", "present": "x"}', "line 1: present and absent must be lists"),
        ('{"image": "a", "present": [1]}', "line 1: a label must be a name in quotes, not 1"),
        ('{"image": 12, "present": ["x"]}', "line 1: image and split must be text"),
        ('{"image": "", "present": ["x"]}', "line 1: the image is empty"),
        ('{"image": "a", "label": "x", "value": 0}', 'line 1: the value is "0"'),
        ('{"image": "a", "label": "x", "value": true}', 'line 1: the value is "True"'),
        ('{"image": "a", "presnet": ["x"]}', 'line 1: unknown column "presnet"; did you mean "present"'),
        ('{"image": "a", "present": ["x"], "present": []}', "line 1: a key stands twice"),
        ("[1]", "line 1: there is no column"),
        ('\n{"image": "a", "present": ["x"], "absent": ["x"]}', r"\(line 2 and line 2\)"),
        (b'{"image": "\xe9", "present": []}', "line 1 is not UTF-8"),
    ],
)
def test_bad_json_lines(tmp_path, text, message):
    path = write(tmp_path, text, "labels.jsonl")
    with pytest.raises(InputError, match=message) as raised:
        read_labels(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        r'{"image": "\ud800", "present": ["a"]}',
        r'{"image": "x", "present": ["a", "\udfff"]}',
        r'{"image": "x", "present": ["a"], "split": "\ud83d"}',
        r'{"image": "x", "label": "\ud800", "value": "present"}',
        r'{"image": "x", "present": ["a"], "note": {"\ud800": [1]}}',
    ],
)
def test_half_a_surrogate_pair_is_no_name(tmp_path, line):
    path = write(tmp_path, f'{{"image": "a", "present": ["a"]}}\n{line}\n', "labels.jsonl")
    with pytest.raises(InputError, match=r"labels\.jsonl: line 2 holds half of a surrogate pair"):
        read_labels(path)
    whole = write(tmp_path, r'{"image": "\ud83d\ude00", "present": ["a"]}', "whole.jsonl")
    assert read_labels(whole).images.to_pylist() == ["\N{GRINNING FACE}"]


@pytest.mark.parametrize(
    "name", ["long.csv", "compact.tsv", "lines.jsonl", "labels.csv.gz", "own.parquet", "own.arrow"]
)
def test_damaged_files_give_an_error_or_labels(tmp_path, name):
    rng = np.random.default_rng(0)
    labels = Labels.from_dense(rng.integers(-1, 2, size=(20, 4)), classes=["cat", "dog", "elk", "fox"])
    texts = {
        "long.csv": "image,label,value\na,cat,1\na,dog,-1\nb,cat,absent\n",
        "compact.tsv": "image\tpresent\tabsent\tsplit\na\tcat;dog\tfox\ttrain\nb\t\tcat\ttest\n",
        "lines.jsonl": '{"image": "a", "present": ["cat"]}\n{"image": "b", "label": "x", "value": 1}\n',
        "labels.csv.gz": "image,present\na,cat\nb,dog\n",
    }
    path = tmp_path / name
    if name in texts:
        content = texts[name].encode()
        content = gzip.compress(content) if name.endswith(".gz") else content
    else:
        write_labels(labels, path)
        content = path.read_bytes()
    refused = 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(0, len(data))) if data else 0
            kind = rng.integers(0, 4)
            if kind == 0 and data:
                data[place] ^= 1 << int(rng.integers(0, 8))
            elif kind == 1:
                del data[place : place + 3]
            elif kind == 2:
                data[place:place] = bytes([int(rng.choice(list(b'",;\n\r\0\xff{}1')))])
            else:
                del data[place:]
        path.write_bytes(data)
        try:
            found = read_labels(path)
        except InputError:
            refused += 1
            continue
        assert isinstance(found, Labels)
        assert np.abs(found.dense()).max(initial=0) <= 1
    assert refused


def test_coco_as_it_is(coco):
    labels = read_labels(coco / "labels.csv", unlisted="absent")
    assert labels.shape == (30_000, 80)
    assert labels.is_full
    assert len(labels.part("train")) == 20_000
    published = read_labels(coco / "published_singlelabel.csv")
    assert (published.image_counts[0] == 1).all()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("header.csv.gz", b"a" * 30_000_000, "line 1 is longer than 4 MB, so it is no header"),
        ("columns.csv.gz", b",".join(b"c%d" % n for n in range(300_000)), 'no column "image" among c0, c1'),
        ("twice.csv.gz", b",".join([b"x"] * 1_000_000), 'the column "x" is named twice'),
        ("blank.csv.gz", b"\n" * 30_000_000, "the file is empty"),
        ("row.csv.gz", b"image,present\n" + b"a" * 30_000_000, "a row is longer than 8 MB"),
        ("quoted.csv.gz", b'image,present\n"' + b"a" * 30_000_000, "longer than 8 MB|not fit|field larger"),
        ("line.jsonl.gz", b"[" * 30_000_000, "line 1 is longer than 8 MB"),
    ],
)
def test_a_small_file_cannot_unpack_to_much(tmp_path, name, content, complaint):
    """Packed, these are 9 to 700 kB. Nothing here depends on the clock: unbounded, they take minutes."""
    path = write(tmp_path, gzip.compress(content, 1), name)
    with pytest.raises(InputError, match=complaint) as raised:
        read_labels(path)
    assert len(str(raised.value)) < 500


def test_lines_that_end_as_on_old_macs(tmp_path):
    text = "image,present\r" + "".join(f"{n}.jpg,a;b\r" for n in range(5))
    assert read_labels(write(tmp_path, text.encode(), "old.csv")).shape == (5, 2)
    assert read_labels(write(tmp_path, b"\r\n\n" + text.encode(), "blank.csv")).shape == (5, 2)


def test_names_that_spreadsheets_take_for_formulas_read_back_as_they_are(tmp_path):
    classes = ["+a", "-b", "=1+1", "@c", "−d"]
    labels = Labels.from_dense(np.eye(5), classes=classes, images=["=HYPERLINK(1)", "-1", "+2", "@x", "y"])
    for name in ("labels.csv", "labels.tsv"):
        write_labels(labels, tmp_path / name)
        assert read_labels(tmp_path / name) == labels


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("image,label,value\na,cat,1\na,dog,absent\nb,cat,1\nc,,\n", 'value "1" 2 times, "absent" 1 times'),
        (
            "image,present,absent\na,cat;dog,fox\n",
            '2 names under present, 1 under absent, separated by ";"',
        ),
    ],
)
def test_the_values_of_a_file_are_told(tmp_path, text, seen):
    (tmp_path / "labels.csv").write_text(text)
    assert LabelFile(tmp_path / "labels.csv").read().seen == seen


def test_files_of_annotation_tools_are_converted_first(tmp_path):
    for name, hint in (("p.json", "label-studio, coco, lvis or fiftyone"), ("a.xml", "cvat")):
        (tmp_path / name).write_text("[]")
        with pytest.raises(InputError, match=f"{name}: labels are read from .*tertium convert {hint}$"):
            read_labels(tmp_path / name)
    pa.parquet.write_table(pa.table({"image": ["a"], "labels": [["cat"]]}), tmp_path / "t.parquet")
    with pytest.raises(
        InputError, match=r't.parquet: the column "labels" holds list.*convert huggingface reads'
    ):
        read_labels(tmp_path / "t.parquet")
    own = pa.table({"image": ["a"], "present": ["cat"], "boxes": [[1]]})  # a column of the user's own
    pa.parquet.write_table(own, tmp_path / "t.parquet")
    assert read_labels(tmp_path / "t.parquet").known == 1
