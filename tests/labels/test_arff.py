"""ARFF files of MULAN and MEKA."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.arff import read

DENSE = """% a comment
@RELATION music

@attribute pitch numeric
@Attribute 'Stellar\\'s Jay' {0,1}
@attribute "key of" {C, 'D minor', E}
@attribute sad {0, 1}

@DATA
% another
1.5,1,C,0

-2e1, 0 ,'D minor',?
0,1,E,1
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="sad"></label>
<label name="Stellar's Jay"></label>
</labels>
"""
SPARSE = """@relation x
@attribute a numeric
@attribute b {0,1}
@attribute c {1,0}
@attribute d {red,green}
@data
{0 2.5, 1 1}
{}
{1 ?,2 0,3 green}
"""


def write(tmp_path, text=DENSE, xml=XML):
    path = tmp_path / "data.arff"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    labels = tmp_path / "data.xml"
    labels.write_bytes(xml if isinstance(xml, bytes) else xml.encode())
    return path, labels


def listed(*names):
    return "<labels>" + "".join(f'<label name="{name}"/>' for name in names) + "</labels>"


def test_dense_rows_with_quotes_and_a_missing_label(tmp_path):
    path, xml = write(tmp_path)
    found = read(path, xml=xml)
    assert found.labels.classes == ("Stellar's Jay", "sad")  # in the order of the attributes
    assert found.labels.images.to_pylist() == ["0", "1", "2"]
    np.testing.assert_array_equal(found.labels.dense(), [[1, -1], [-1, 0], [1, 1]])
    assert found.tree is None


def test_features_are_numbers_and_one_column_for_each_nominal_value(tmp_path):
    path, xml = write(tmp_path)
    read(path, xml=xml, features=tmp_path / "features.npy")
    expected = [[1.5, 1, 0, 0], [-20, 0, 1, 0], [0, 0, 0, 1]]
    found = np.load(tmp_path / "features.npy")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.arff", "data.xml", "features.npy"]


def test_sparse_rows_leave_out_the_first_value(tmp_path):
    path, xml = write(tmp_path, SPARSE, listed("b", "c"))
    found = read(path, xml=xml, features=tmp_path / "features.npy")
    # c is {1,0}: a row that does not list it says 1.
    np.testing.assert_array_equal(found.labels.dense(), [[1, 1], [-1, 1], [0, -1]])
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), [[2.5, 1, 0], [0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        ("'Music: -C 2 -split-percentage 50'", ["a", "b"]),
        ("'Music: -C -1'", ["d"]),
        ("'x: -C -2'", ["c", "d"]),
        ("-C 3", ["a", "b", "c"]),
    ],
)
def test_meka_says_in_the_header_which_are_labels(tmp_path, relation, expected):
    text = (
        f"@relation {relation}\n" + "".join(f"@attribute {n} {{0,1}}\n" for n in "abcd") + "@data\n1,0,1,0\n"
    )
    labels = read(write(tmp_path, text)[0]).labels
    assert list(labels.classes) == expected
    assert labels.dense().tolist() == [[{"a": 1, "b": -1, "c": 1, "d": -1}[name] for name in expected]]


def test_labels_inside_labels_are_a_tree(tmp_path):
    nested = '<labels><label name="b"><label name="c"/></label></labels>'
    path, xml = write(tmp_path, SPARSE, nested)
    found = read(path, xml=xml)
    assert dict(found.tree.parents) == {"c": "b"}
    assert found.labels.classes == ("b", "c")


def test_numeric_labels_gzip_byte_order_mark_and_line_ends(tmp_path):
    path, xml = write(tmp_path)
    expected = read(path, xml=xml).labels
    text = DENSE.replace("sad {0, 1}", "sad NUMERIC").replace(",0\n", ",0.0\n").replace("E,1", "E,1.0")
    for changed in (text, "\ufeff" + DENSE.replace("\n", "\r\n"), gzip.compress(DENSE.encode())):
        path, xml = write(tmp_path, changed, gzip.compress(XML.encode()))
        assert read(path, xml=xml).labels == expected


def test_text_is_no_feature(tmp_path):
    text = SPARSE.replace("d {red,green}", "d string").replace("3 green", "3 'a, b'")
    path, xml = write(tmp_path, text, listed("b", "c"))
    found = read(path, xml=xml, features=tmp_path / "features.npy")
    assert found.notes == ("text and dates are no features: d left out",)
    assert np.load(tmp_path / "features.npy").tolist() == [[2.5], [0], [0]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@DATA", "", r'line 11: the header has @relation, @attribute, @data, not "1.5'),
        ("numeric", "", r'line 4: needs @attribute, a name and a type, not "@attribute pitch"'),
        ("numeric", "numerik", r'line 4: "pitch" has the unknown type "numerik"; did you mean "numeric"'),
        ("numeric", "relational", r"unknown type"),
        ("'D minor', E}", "'D minor, E}", r'line 6: "key of": a quote is not closed'),
        ("sad {0, 1}", "sad {no, yes}", r'the label "sad" is {no,yes}; a label is {0,1}'),
        ("sad {0, 1}", "sad string", r'the label "sad" is text'),
        ("sad {0, 1}", "pitch {0, 1}", r"attributes that are there twice: pitch"),
        ("0,1,E,1", "0,1,E,2", r'line 14: the label "sad" is "2", not 0, 1 or \?'),
        ("0,1,E,1", "0,1,E", r"line 14: 3 values for 4 attributes"),
        ("0,1,E,1", "0;1;E;1", r"line 14: 1 values for 4 attributes"),
        ("0,1,E,1", "{0 1", r"line 14: a sparse row that does not end with }"),
        ("0,1,E,1", "{1}", r'line 14: needs a number and a value, not "1"'),
        ("0,1,E,1", "{9 1}", r"line 14: attribute 9 is not one of 0 to 3"),
        ("0,1,E,1", "{1 1,01 0}", r"line 14: attribute 1 is listed twice"),
        ("0,1,E,1", "{1 1}, {5}", r"line 14"),
        ("0,1,E,1", "{0 1( 1 1}", r'line 14: needs a comma inside "0 1\( 1 1"'),
        ("@DATA", "@DATA 1,1,C,0", r"line 9: the header has"),
        ("sad {0, 1}", "sad {0}", r'the label "sad" is {0}'),
        ("0,1,E,1", "0,1,'E,1", r"line 14: a quote is not closed"),
    ],
)
def test_bad_lines_are_named(tmp_path, old, new, message):
    assert old in DENSE
    path, xml = write(tmp_path, DENSE.replace(old, new))
    with pytest.raises(InputError, match=message) as raised:
        read(path, xml=xml)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("?", 'the feature "pitch" is "\\?", not a number'),
        ("1_0", '"1_0"'),
        ("inf", "is inf"),
        ("1e99", "inf"),
    ],
)
def test_features_need_numbers(tmp_path, cell, message):
    path, xml = write(tmp_path, DENSE.replace("1.5,", f"{cell},"))
    assert read(path, xml=xml).labels.shape == (3, 2)  # only the labels were asked for
    with pytest.raises(InputError, match=rf"line 11: .*{message}"):
        read(path, xml=xml, features=tmp_path / "features.npy")
    assert not (tmp_path / "features.npy").exists()


def test_where_features_go(tmp_path):
    path, xml = write(tmp_path)
    with pytest.raises(InputError, match=r"features are written as .npy"):
        read(path, xml=xml, features=tmp_path / "features.csv")
    with pytest.raises(InputError, match='"key of" is "F", not one of C, D minor, E'):
        read(write(tmp_path, DENSE.replace("0,1,E", "0,1,F"))[0], xml=xml, features=tmp_path / "features.npy")


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("", "the file is empty"),
        (XML[:-5], "not valid XML"),
        (listed(), "there are no labels in it"),
        (listed("sad", "sad"), 'the label "sad" is there twice'),
        (listed("sadd", "happy"), r'does not have: sadd, happy; did you mean "sad"'),
        ("<html/>", "the outermost element is <html>, not <labels>"),
        ("<labels><name/></labels>", "needs <label name=…>"),
        ("<labels><label/></labels>", "needs <label name=…>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + listed("&b;"), "document type or entities"),
        ('<?xml version="1.0" encoding="nonsense"?>' + listed("sad"), "not valid XML"),
    ],
)
def test_bad_lists_of_labels(tmp_path, xml, message):
    path, labels = write(tmp_path, DENSE, xml)
    with pytest.raises(InputError, match=message) as raised:
        read(path, xml=labels)
    assert str(labels) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DENSE, "@relation has no -C, so name the list of labels with --xml"),
        (DENSE.replace("music", "'m: -C 5'"), "@relation says -C 5 and there are 4 attributes"),
        (DENSE.replace("music", "'m: -C 0'"), "says -C 0"),
        (DENSE[: DENSE.index("1.5")].replace("music", "-C -1"), "no rows below @data"),
        (DENSE[:29], "there is no @data"),
        ("", "the file is empty"),
    ],
)
def test_bad_headers(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, text)[0])


def quoted(name):
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


names = st.lists(
    st.text(st.characters(min_codepoint=32, codec="utf-8"), min_size=1), min_size=1, max_size=5, unique=True
).filter(lambda found: not {"x", "y"} & set(found))  # the attributes that are no classes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), names)
def test_written_labels_read_back(tmp_path_factory, seed, sparse, with_features, classes):
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, size=(rng.integers(1, 6), len(classes)))
    numbers = rng.normal(size=(len(values), 2)).astype(np.float32)
    lines = [f"@relation 't: -C -{len(classes)}'", "@attribute x real", "@attribute y numeric"]
    lines += [f"@attribute {quoted(name)} {{0,1}}" for name in classes] + ["@data"]
    for row, extra in zip(values.tolist(), numbers.tolist(), strict=True):
        cells = [*(repr(number) for number in extra), *({1: "1", -1: "0", 0: "?"}[value] for value in row)]
        parts = [f"{place} {cell}" for place, cell in enumerate(cells) if cell != "0"]
        lines.append("{" + ", ".join(parts) + "}" if sparse else ",".join(cells))
    folder = tmp_path_factory.mktemp("arff")
    path, _ = write(folder, "\n".join(lines))
    out = folder / "features.npy"
    found = read(path, features=out if with_features else None).labels
    assert found == Labels.from_dense(values, classes=classes)
    if with_features:
        np.testing.assert_array_equal(np.load(out), numbers)


@pytest.mark.parametrize(
    ("name", "shape", "present"),
    [("scene", (2407, 6), 2585), ("flags", (194, 7), 658), ("plant978", (978, 12), 1055)],
)
def test_published_sets(coco, tmp_path, name, shape, present):
    folder = coco.parent / "tabular"
    out = tmp_path / "features.npy"
    found = read(folder / f"{name}.arff.gz", xml=folder / f"{name}.xml.gz", features=out)
    assert found.labels.shape == shape
    assert found.labels.is_full
    assert found.labels.class_counts[0].sum() == present
    assert len(np.load(out)) == shape[0]


@pytest.mark.parametrize("name", ["scene", "yeast"])
def test_another_reader_finds_the_same(coco, tmp_path, name):
    loadarff = pytest.importorskip("scipy.io.arff").loadarff
    folder = coco.parent / "tabular"
    found = read(
        folder / f"{name}.arff.gz", xml=folder / f"{name}.xml.gz", features=tmp_path / "x.npy"
    ).labels
    with gzip.open(folder / f"{name}.arff.gz", "rt") as text:
        table, about = loadarff(text)
    others = [column for column in about.names() if column not in found.classes]
    features = np.stack([table[column] for column in others], axis=1).astype(np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), features)
    labels = np.stack([table[column] == b"1" for column in found.classes], axis=1)
    np.testing.assert_array_equal(found.dense(), np.where(labels, 1, -1))
