"""Open Images as published: labels, boxes, descriptions, the hierarchy; and damaged files."""

import gzip
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.openimages import generate
from tertium.errors import InputError
from tertium.labels import Labels, tables
from tertium.labels.formats.openimages import read
from tertium.labels.readers import read_labels

HEADER = "ImageID,Source,LabelName,Confidence\n"
BOXES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,"
    "IsInside\n"
)
A, B = "000026e7ee790996", "000062a39995e348"
HUMAN = f"{A},verification,/m/cat,1\n{A},crowdsource-verification,/m/dog,0\n{B},verification,/m/cat,0\n"


def write(folder, text, name="labels.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def said(labels):
    """Return {(image, class): ±1}, read entry by entry."""
    rows, columns, values = labels.coo()
    ids = labels.images.to_pylist()
    return {
        (ids[row], labels.classes[column]): int(value)
        for row, column, value in zip(rows, columns, values, strict=True)
    }


def test_confidence_one_is_present_and_zero_absent(tmp_path):
    labels = read([write(tmp_path, HEADER + HUMAN)]).labels
    assert labels.images.to_pylist() == [f"{A}.jpg", f"{B}.jpg"]
    assert said(labels) == {
        (f"{A}.jpg", "/m/cat"): 1,
        (f"{A}.jpg", "/m/dog"): -1,
        (f"{B}.jpg", "/m/cat"): -1,
    }
    assert labels.splits is None


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + HUMAN,
        (HEADER + HUMAN).replace("\n", "\r\n"),
        (HEADER + HUMAN).replace(",1\n", ",1.0\n").replace(",0\n", ",0.000\n"),
        (HEADER + HUMAN).removesuffix("\n"),
        "\n" + HEADER + "\n" + HUMAN + "\n\n",
        (HEADER + HUMAN).replace(A, f'"{A}"'),
        (HEADER + HUMAN).replace("/m/cat", " /m/cat "),
        "LabelName,ImageID,Confidence,Extra,Source\n"
        + "".join(f"{c},{a},{d},x,{b}\n" for a, b, c, d in (line.split(",") for line in HUMAN.splitlines())),
    ],
    ids=["bom", "crlf", "decimals", "no last line end", "blank lines", "quotes", "spaces", "other order"],
)
def test_other_ways_to_write_the_same(tmp_path, text):
    expected = read([write(tmp_path, HEADER + HUMAN)]).labels
    assert read([write(tmp_path, text, "other.csv")]).labels == expected
    assert read([write(tmp_path, gzip.compress(text.encode()), "other.csv.gz")]).labels == expected


def test_ids_that_are_not_hexadecimal_stay_text(tmp_path):
    rows = "".join(f"{name},verification,/m/cat,1\n" for name in ("0012", "12", A.upper(), A, "ünï"))
    labels = read([write(tmp_path, HEADER + rows)], suffix="").labels
    assert labels.images.to_pylist() == ["0012", "12", A.upper(), A, "ünï"]


def test_machines_are_refused_or_dropped(tmp_path):
    rows = HUMAN + f"{B},machine,/m/dog,0.7\n{B},machine,/m/fox,1.0\n{B},verification,/m/elk,0.5\n"
    path = write(tmp_path, HEADER + rows)
    with pytest.raises(InputError, match=r'line 5: the Source is "machine": no person.*--machine drop'):
        read([path])
    reading = read([path], machine="drop")
    human = said(read([write(tmp_path, HEADER + HUMAN)]).labels)
    assert said(reading.labels) == human
    assert "3 rows of machines were dropped" in reading.notes
    path = write(tmp_path, HEADER + f"{A},verification,/m/cat,0.5\n")
    with pytest.raises(InputError, match=r'line 2: the Confidence is "0.5"'):
        read([path])


def box(image, name, group=0, depiction=0):
    return f"{image},xclick,/m/{name},1,0.1,0.2,0.1,0.2,0,1,{group},{depiction},0\n"


def test_boxes_make_their_class_present(tmp_path):
    text = BOXES + box(A, "cat", group=1) + box(A, "cat") + box(A, "dog", group=1)
    path = write(tmp_path, text + box(B, "elk", depiction=1) + box(B, "fox", group=-1))
    everything = {("A", "cat"): 1, ("A", "dog"): 1, ("B", "elk"): 1, ("B", "fox"): 1}
    short = {A: "A", B: "B"}

    def found(**options):
        reading = read([path], suffix="", **options)
        return {(short[image], name[3:]): value for (image, name), value in said(reading.labels).items()}

    assert found() == everything
    assert found(groups=False) == {("A", "cat"): 1, ("B", "elk"): 1}
    assert found(depictions=False) == {key: 1 for key in everything if key != ("B", "elk")}
    assert read([path], groups=False).labels.shape == (2, 4)  # such an image and class stay, as unknown


def test_labels_and_boxes_together_and_their_contradictions(tmp_path):
    human = write(tmp_path, HEADER + HUMAN)
    boxes = write(tmp_path, BOXES + box(A, "cat") + box(B, "cat"), "boxes.csv")
    with pytest.raises(InputError, match=rf'"{B}.jpg" is listed both with and without "/m/cat".*--contradi'):
        read([human, boxes])
    reading = read([human, boxes], contradictions="present")
    assert said(reading.labels)[f"{B}.jpg", "/m/cat"] == 1
    assert any("1 labels were given more than once" in note for note in reading.notes)
    assert any("1 labels were given as both" in note for note in reading.notes)


def test_splits_by_option_or_file_name(tmp_path):
    train = write(tmp_path, HEADER + HUMAN, "oidv6-train-annotations-human-imagelabels.csv")
    other = write(tmp_path, HEADER + "x,verification,/m/cat,1\n", "validation-annotations.csv")
    plain = write(tmp_path, HEADER + "y,verification,/m/cat,1\n", "trains.csv")
    labels = read([train, other]).labels
    assert labels.split_names() == ["train", "val"]
    assert labels.part("val").images.to_pylist() == ["x.jpg"]
    assert read([train, plain], splits=["a", "b"]).labels.part("b").images.to_pylist() == ["y.jpg"]
    with pytest.raises(InputError, match=r"trains\.csv: its name says no split"):
        read([train, plain])
    with pytest.raises(InputError, match="3 splits were given for 2 files"):
        read([train, plain], splits=["a", "b", "c"])
    with pytest.raises(InputError, match=rf'"{A}.jpg" is in two splits, a and b'):
        read([train, train], splits=["a", "b"])


@pytest.mark.parametrize("header", ["", "id,name\n", "LabelName,DisplayName\n"])
def test_class_descriptions(tmp_path, header):
    names = write(tmp_path, header + '/m/cat,Cat\n/m/dog,"Dog, big"\n/m/fox,Cat\n', "classes.csv")
    path = write(tmp_path, HEADER + HUMAN)
    assert read([path], descriptions=names).labels.classes == ("Cat", "Dog, big")
    more = write(tmp_path, HEADER + HUMAN + f"{A},verification,/m/fox,1\n")
    assert read([more], descriptions=names).labels.classes == ("Cat (/m/cat)", "Dog, big", "Cat (/m/fox)")
    unknown = HEADER + "".join(f"{A},verification,/m/{number:02d},1\n" for number in range(12))
    with pytest.raises(InputError, match=r"12 classes have no description: /m/00, .*/m/09 and 2 more"):
        read([write(tmp_path, unknown)], descriptions=names)


def test_a_list_restricts_the_classes(tmp_path):
    listed = write(tmp_path, "/m/zebra\r\n/m/cat\r\n", "classes.txt")
    reading = read([write(tmp_path, HEADER + HUMAN)], classes=listed)
    assert reading.labels.classes == ("/m/zebra", "/m/cat")
    assert reading.labels.class_counts[0].tolist() == [0, 1]
    assert "1 labels of classes outside the list were left out" in reading.notes
    with pytest.raises(InputError, match=r"none of its classes is in the list"):
        read([write(tmp_path, HEADER + HUMAN)], classes=write(tmp_path, "/m/q\n", "classes.txt"))


HIERARCHY = {
    "LabelName": "/m/0bl9f",
    "Subcategory": [
        {"LabelName": "/m/pet", "Subcategory": [{"LabelName": "/m/cat", "Part": [{"LabelName": "/m/tail"}]}]},
        {"LabelName": "/m/wild", "Subcategory": [{"LabelName": "/m/cat"}, {"LabelName": "/m/fox"}]},
    ],
}


def test_present_goes_up_and_absent_down_through_several_parents(tmp_path):
    tree = write(tmp_path, json.dumps(HIERARCHY), "hierarchy.json")
    rows = f"{A},verification,/m/cat,1\n{B},verification,/m/wild,0\nc,verification,/m/tail,1\n"
    path = write(tmp_path, HEADER + rows)
    names = write(
        tmp_path, "".join(f"/m/{n},{n}\n" for n in ("pet", "cat", "wild", "fox", "tail")), "names.csv"
    )
    options = {"hierarchy": tree, "propagate": True, "descriptions": names, "suffix": ""}
    reading = read([path], **options)
    assert said(reading.labels) == {
        **{(A, name): 1 for name in ("cat", "pet", "wild")},
        **{(B, name): -1 for name in ("wild", "cat", "fox")},
        ("c", "tail"): 1,
    }
    assert reading.tree is None
    assert any("1 classes have several parents (cat)" in note for note in reading.notes)
    whole = said(read([path], parts=True, **options).labels)
    assert {name for image, name in whole if image == "c"} == {"tail", "cat", "pet", "wild"}
    assert whole[B, "tail"] == -1
    with pytest.raises(InputError, match="give the hierarchy"):
        read([path], propagate=True)
    wrong = write(tmp_path, HEADER + f"{A},verification,/m/cat,1\n{A},verification,/m/pet,0\n")
    with pytest.raises(InputError, match=r"by the hierarchy, image .* listed both"):
        read([wrong], **options)


def test_a_hierarchy_that_is_a_tree_comes_along(tmp_path):
    tree = write(
        tmp_path, '{"LabelName": "/m/pet", "Subcategory": [{"LabelName": "/m/cat"}]}', "hierarchy.json"
    )
    reading = read([write(tmp_path, HEADER + HUMAN)], hierarchy=tree)
    assert reading.tree is not None
    assert dict(reading.tree.parents) == {"/m/cat": "/m/pet"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"LabelName": "a", "Subcategory": [{"LabelName": "b", "Subcategory": [{"LabelName": "a"}]}]}',
            "in a circle: ",
        ),
        ('{"LabelName": "a", "Subcategory": [{"LabelName": "a"}]}', "circle: a → a"),
        ('{"LabelName": "a", "Subcategroy": []}', 'has the key "Subcategroy"; did you mean "Subcategory"'),
        ('{"LabelName": "a", "Part": {}}', 'the Part of "a" must be a list'),
        ('{"Subcategory": []}', 'needs a "LabelName"'),
        ("[]", 'needs a "LabelName"'),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("", "the file is empty"),
    ],
)
def test_bad_hierarchies(tmp_path, text, message):
    tree = write(tmp_path, text, "hierarchy.json")
    with pytest.raises(InputError, match=message) as raised:
        read([write(tmp_path, HEADER + HUMAN)], hierarchy=tree, parts=True)
    assert str(tree) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (HEADER, "no rows below the header"),
        (HEADER.replace(",", ";") + HUMAN, "its columns are separated by semicolons"),
        ("ImageID,LabelName,Confidence\n", 'no column "Source"'),
        (HEADER + f"{A},verification,/m/cat\n", "line 2: Expected 4 columns, got 3"),
        (HEADER + HUMAN + f"{A},verification\n", "line 5: Expected 4 columns, got 2"),
        (HEADER + HUMAN + f"{A},verification,,1\n", "line 5: the LabelName is empty"),
        (HEADER + HUMAN + "\n,verification,/m/x,1\n", "line 6: the ImageID is empty"),
        (HEADER + f"{A},verification,/m/cat,-1\n", 'line 2: the Confidence is "-1", not from 0 to 1'),
        (HEADER + f"{A},verification,/m/cat,1.5\n", 'line 2: the Confidence is "1.5"'),
        (HEADER + f"{A},verification,/m/cat,nan\n", 'line 2: the Confidence is "nan"'),
        (HEADER + f"{A},verification,/m/cat,\n", 'line 2: the Confidence is ""'),
        ((HEADER + f"{A},verification,/m/é,1\n").encode("latin-1"), r"line 2 is not UTF-8 \(byte 0xe9\)"),
        (
            HEADER + HUMAN + f"{A},verification,/m/cat,0\n",
            'with and without "/m/cat".*--contradictions absent',
        ),
        ("ImageID,ImageID,Source,LabelName,Confidence\n", '"ImageID" is named twice'),
        (BOXES + box(A, "cat").replace(",1,0.1", ",0,0.1"), 'line 2: a box has the Confidence "0"'),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as raised:
        read([path])
    assert str(path) in str(raised.value)


def test_bad_paths(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read([tmp_path / "none.csv"])
    with pytest.raises(InputError, match="is a folder"):
        read([tmp_path])
    with pytest.raises(InputError, match="at least one file"):
        read([])
    whole = gzip.compress((HEADER + HUMAN * 1000).encode())
    with pytest.raises(InputError, match=r"cut\.csv\.gz: the file ends too early"):
        read([write(tmp_path, whole[:-20], "cut.csv.gz")])
    with pytest.raises(InputError, match="not a gzip file"):
        read([write(tmp_path, HEADER + HUMAN, "plain.csv.gz")])


def test_bad_descriptions_and_lists(tmp_path):
    path = write(tmp_path, HEADER + HUMAN)
    for text, message in (
        ("/m/cat\n", "line 1: needs a MID and a name"),
        ("/m/cat,Cat\n/m/cat,Dog\n", 'line 2: "/m/cat" has two names, "Cat" and "Dog"'),
        ("id,name\n", "no class descriptions"),
    ):
        with pytest.raises(InputError, match=message):
            read([path], descriptions=write(tmp_path, text, "names.csv"))
    with pytest.raises(InputError, match="is not a MID"):
        read([path], classes=write(tmp_path, "/m/cat,Cat\n", "list.txt"))


# ---- block by block ----------------------------------------------------------------------------------------

CELLS = st.dictionaries(
    st.tuples(st.sampled_from([A, B, "x", "ünï", "0012"]), st.sampled_from(["/m/a", "/m/b", "/g/c"])),
    st.sampled_from([1, -1]),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(CELLS, st.integers(1, 90), st.randoms())
def test_written_rows_read_back_whatever_the_blocks(tmp_path_factory, cells, block, random):
    """An independent writer: the labels are the dictionary that the lines were made from."""
    lines = [f"{image},verification,{mid},{int(value > 0)}\n" for (image, mid), value in cells.items()]
    random.shuffle(lines)
    path = write(tmp_path_factory.mktemp("oi"), HEADER + "".join(lines))
    whole = tables.BLOCK
    tables.BLOCK = block
    try:
        labels = read([path], suffix="").labels
    finally:
        tables.BLOCK = whole
    assert said(labels) == cells
    assert labels.images.to_pylist() == list(dict.fromkeys(line.split(",")[0] for line in lines))


def test_many_ids_are_numbered_in_order_of_appearance(rng, monkeypatch):
    numbers = rng.integers(0, 3000, size=20_000)
    ids = [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in numbers.tolist()]
    blocks = [tables.runs(pa.array(ids[start : start + 700])) for start in range(0, len(ids), 700)]
    rows, images = tables.number_ids(blocks, ".jpg")
    assert images.to_pylist() == [f"{name}.jpg" for name in dict.fromkeys(ids)]
    assert [images[int(row)].as_py() for row in rows[:500]] == [f"{name}.jpg" for name in ids[:500]]
    place = {name: number for number, name in enumerate(dict.fromkeys(ids))}
    np.testing.assert_array_equal(rows, [place[name] for name in ids])


@pytest.mark.parametrize("shuffled", [False, True])
def test_generated_files_read_as_the_generator_means(tmp_path, shuffled, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK", 50_000)
    path = tmp_path / "labels.csv"
    generate(path, 20_000, 3_000, shuffled=shuffled)
    labels = read([path]).labels
    assert len(labels) == 3_000
    assert labels.known == 20_000
    expected = {}
    for line in path.read_text().splitlines()[1:]:
        image, _, mid, confidence = line.split(",")
        expected[f"{image}.jpg", mid] = 1 if confidence == "1" else -1
    assert said(labels) == expected
    long = tmp_path / "long.csv"
    _, *lines = path.read_text().splitlines()
    rows = (line.split(",") for line in lines)
    long.write_text("image,label,value\n" + "".join(f"{a}.jpg,{c},{2 * int(d) - 1}\n" for a, _, c, d in rows))
    assert read_labels(long) == labels


def test_python_objects_stay_few(tmp_path):
    """The text of the file is never held: what Python and NumPy allocate is a few numbers a row."""
    path = tmp_path / "labels.csv"
    generate(path, 400_000, 60_000)
    read([path])
    tracemalloc.start()
    read([path])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * tables.BLOCK + 40 * 400_000


# ---- damage ------------------------------------------------------------------------------------------------


def damage(rng, content):
    """Return the bytes with one or a few flipped, deleted or inserted, or with the end cut off."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, max(len(data), 1)))
        kind = rng.integers(0, 4)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            del data[place : place + int(rng.integers(1, 5))]
        elif kind == 2:
            data[place:place] = rng.choice(list(b'",\n\r\0\xff1;{}[]')).tobytes()[:1]
        else:
            data = data[:place]
    return bytes(data)


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz", "boxes.csv", "names.csv", "tree.json"])
def test_damaged_files_give_an_error_or_labels(tmp_path, name):
    rng = np.random.default_rng(0)
    good = {
        "labels.csv": HEADER + HUMAN,
        "labels.csv.gz": HEADER + HUMAN,
        "boxes.csv": BOXES + box(A, "cat") + box(B, "dog", group=1),
        "names.csv": "/m/cat,Cat\n/m/dog,Dog\n/m/pet,Pet\n",
        "tree.json": '{"LabelName": "/m/pet", "Subcategory": [{"LabelName": "/m/cat"}], "Part": []}',
    }
    content = good[name].encode()
    if name.endswith(".gz"):
        content = gzip.compress(content)
    for label, text in good.items():
        write(tmp_path, text, label)
    kept = 0
    for _ in range(150):
        path = write(tmp_path, damage(rng, content), name)
        options = {"groups": False} if name == "boxes.csv" else {}
        if name == "names.csv":
            options["descriptions"] = path
        if name == "tree.json":
            options.update(hierarchy=path, propagate=True)
        source = path if "labels" in name or "boxes" in name else tmp_path / "labels.csv"
        try:
            reading = read([source], **options)
        except InputError:
            continue
        assert isinstance(reading.labels, Labels)
        if name.endswith(".gz"):  # its checksum tells
            assert said(reading.labels) == said(read([tmp_path / "labels.csv"]).labels)
        kept += 1
    assert kept < 150
