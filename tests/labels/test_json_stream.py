import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels.formats import json_stream
from tertium.labels.formats.json_stream import read_tables
from tertium.progress import Progress

RECORDS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WANTED = {"images": RECORDS, "annotations": RECORDS}


def write(tmp_path, data, name="file.json"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def rows(tables):
    return {key: table.to_pylist() for key, table in tables.items()}


def expected(document, keys=WANTED):
    """Return what the tables must hold by json.loads, or None if the document has not the wanted form."""
    if not isinstance(document, dict) or not set(keys) <= set(document):
        return None
    found = {}
    for key in keys:
        if not isinstance(document[key], list):
            return None
        found[key] = []
        for record in document[key]:
            if not isinstance(record, dict):
                return None
            number, name = record.get("id"), record.get("name")
            if not (number is None or type(number) is int) or not (name is None or type(name) is str):
                return None
            found[key].append({"id": number, "name": name})
    return found


def judged(data):
    """Return the document by json.loads, or None if it is not valid."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except ValueError:
        return None


TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}[],:\n\u2028'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RECORD = st.builds(
    lambda wanted, others, front: {**others, **wanted} if front else {**wanted, **others},
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.none() | st.integers(-(2**63), 2**63 - 1),
            "name": st.none() | TEXT,
            "more": st.dictionaries(st.sampled_from(["id", "name", "}"]), VALUES, max_size=2),
        },
    ),
    st.dictionaries(TEXT.filter(lambda key: key not in ("id", "name")), VALUES, max_size=2),
    st.booleans(),
)
DOCUMENT = st.tuples(
    st.lists(RECORD, max_size=5),
    st.lists(RECORD, max_size=5),
    st.dictionaries(TEXT.filter(lambda key: key not in WANTED), VALUES, max_size=2),
    st.permutations(range(4)),
).map(
    lambda parts: dict(
        [
            (("images", parts[0]), ("annotations", parts[1]), *parts[2].items())[place]
            for place in parts[3]
            if place < 2 + len(parts[2])
        ]
    )
)


@settings(max_examples=100, deadline=None)
@given(
    DOCUMENT,
    st.sampled_from([None, 0, 3, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", "\t: ")]),
    st.booleans(),
    st.integers(1, 40) | st.just(json_stream.BLOCK),
)
def test_any_json_reads_as_json_loads_reads_it(
    tmp_path_factory, document, indent, separators, ascii_only, block
):
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only)
    path = write(tmp_path_factory.mktemp("json"), text)
    assert rows(read_tables(path, WANTED, block=block)) == expected(json.loads(text))


SAMPLE = """{
  "info": {"about": "a \\"quoted\\" brace {", "n": [1, -2.5e3, null, true]},
  "images": [{"id": 1, "name": "a\\\\"},
    {"name": "\\u00e9\\ud83d\\ude00 é", "id": 2, "x": {"id": 9, "y": [[1], []]}}],
  "annotations": [ {"id": -7, "name": null, "s": "]}"},
     {"id": 8} , {} ]
}
""".encode()


def damaged(rng, data):
    place = int(rng.integers(0, len(data)))
    kind = rng.integers(0, 5)
    fresh = bytes([int(rng.choice(np.frombuffer(b'"\\{}[],: \n0a\x00\xff\xc3-.e', np.uint8)))])
    if kind == 0:
        return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(0, 8)))]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + data[place + 1 :]
    if kind == 2:
        return data[:place]
    if kind == 3:
        return data[:place] + fresh + data[place:]
    return data[:place] + fresh + data[place + 1 :]


@pytest.mark.parametrize("block", [7, json_stream.BLOCK])
def test_damage_is_an_error_or_reads_as_json_loads_reads_it(tmp_path, block):
    rng = np.random.default_rng(0)
    # With small blocks only what is wanted, since a long member that is not wanted is only skipped.
    sample = SAMPLE if block > len(SAMPLE) else b"{" + SAMPLE[SAMPLE.index(b'"images"') :]
    refused = 0
    for _ in range(400):
        data = damaged(rng, sample)
        if rng.random() < 0.3:
            data = damaged(rng, data)
        document = judged(data)
        try:
            found = rows(read_tables(write(tmp_path, data), WANTED, block=block))
        except InputError:
            refused += 1
            continue
        assert document is not None, data
        assert found == expected(document), data
    assert 130 < refused < 380  # neither everything nor nothing


@pytest.mark.parametrize("block", [5, json_stream.BLOCK])
def test_every_truncation_is_an_error(tmp_path, block):
    whole = SAMPLE.rstrip()
    for size in range(len(whole)):
        with pytest.raises(InputError, match=r"file\.json"):
            read_tables(write(tmp_path, whole[:size]), WANTED, block=block)
    assert rows(read_tables(write(tmp_path, whole), WANTED, block=block)) == expected(json.loads(whole))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("  ", "byte 2: the file ends where an object"),
        ("[]", "byte 0: an object that begins with"),
        ("{}", 'there is no "images" in it'),
        ('{"image": [], "annotations": []}', 'no "images" in it; did you mean "image"'),
        ('{"images": [], "images": []}', 'byte 24: "images" is there twice'),
        ('{"images": {}, "annotations": []}', "byte 11: the array \"images\" is expected, not '{'"),
        ('{"images": [1], "annotations": []}', "byte 12: \"images\" must hold objects only; '1'"),
        ('{"images": [[]], "annotations": []}', "byte 12: \"images\" must hold objects only; '['"),
        ('{"images": [{},], "annotations": []}', "byte 15: there must be one comma"),
        ('{"images": [,{}], "annotations": []}', "byte 13: there must be one comma"),
        ('{"images": [{} {}], "annotations": []}', "byte 15: there must be one comma"),
        ('{"images": [{},,{}], "annotations": []}', "byte 16: there must be one comma"),
        ('{"images": [{}}, "annotations": []}', 'byte 14: "]" is expected at the end of "images"'),
        ('{"images": [{"id": 1}, {"id": 2x}]}', 'byte 23: record 2 of "images": missing a comma or'),
        ('{"images": [{"id": 1}, {"id": "2"}]}', 'record 2 of "images": "id" must be of the kind number'),
        ('{"images": [{"id": 1.5}]}', 'record 1 of "images": 1.5 cannot be read as int64'),
        ('{"images": [{"id": 1, "id": 2}]}', 'byte 12: record 1 of "images": "id" is there twice'),
        ('{"images": [{"name": "a\nb"}]}', "byte 23: there is a line break inside a string"),
        ('{"x": {"y": "a\nb"}}', "byte 6: there is a line break inside a string of this value"),
        ('{"x": [1, 2,], "images": []}', "byte 6: this value is not valid JSON"),
        ('{"x": tru}', "byte 6: a value is not valid JSON"),
        ('{"x": }', "byte 6: a value is expected, not '}'"),
        ("{x: 1}", "byte 1: a key in double quotes is expected, not 'x'"),
        ('{"x": 1 "y": 2}', 'byte 8: "," or "}" after "x" is expected'),
        ('{"images": [], "annotations": []} {}', "byte 34: there is more after the end"),
        ('{"images": [], "annotations": [{"id": 1}', 'inside "annotations", after 1 records'),
        (b'{"images": [{"name": "\xff"}]}', "byte 22: not UTF-8"),
        (b'{"x": "\xc3', "byte 7: not UTF-8"),
        (b"\x1f\x8b\x08\x00garbage", "the gzip file is damaged"),
        (gzip.compress(b'{"images": [' + b'{"id": 1},' * 99, mtime=0)[:-9], "the gzip file is damaged"),
        ('{"images": []}'.encode("utf-16"), "byte 0: not UTF-8"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    path = write(tmp_path, text)
    # In small blocks a long member that is not wanted is only skipped.
    for block in (1 << 20,) if b"x" in path.read_bytes()[:3] else (3, 1 << 20):
        with pytest.raises(InputError) as raised:
            read_tables(path, WANTED, block=block)
        assert message in str(raised.value)


def test_required_keys_are_named(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    text = json.dumps({"images": [{"id": 1}, {"id": None}]})
    for block in (4, 1 << 20):
        with pytest.raises(InputError, match=r'byte 23: record 2 of "images" has no "id"'):
            read_tables(write(tmp_path, text), {"images": schema}, block=block)


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_tables(tmp_path / "none.json", WANTED)
    with pytest.raises(InputError, match="cannot be read"):
        read_tables(tmp_path, WANTED)


def test_gzip_byte_order_mark_and_line_ends(tmp_path):
    found = rows(read_tables(write(tmp_path, SAMPLE), WANTED))
    for data in (gzip.compress(SAMPLE, mtime=0), b"\xef\xbb\xbf" + SAMPLE, SAMPLE.replace(b"\n", b"\r\n")):
        for block in (1, 1 << 20):
            assert rows(read_tables(write(tmp_path, data), WANTED, block=block)) == found


def test_backslashes_at_every_border(tmp_path):
    names = ["\\" * count + tail for count in range(6) for tail in ("", '"', '"}', "n")]
    text = json.dumps({"x": names, "images": [{"id": 1, "name": name} for name in names], "annotations": []})
    for block in range(4, 50, 3):
        found = read_tables(write(tmp_path, text), WANTED, block=block)
        assert found["images"]["name"].to_pylist() == names


def test_deep_nesting(tmp_path):
    deep = "[" * 5000 + "]" * 5000
    text = f'{{"x": {deep}, "images": [{{"z": {deep}, "id": 4}}], "annotations": []}}'
    assert read_tables(write(tmp_path, text), WANTED)["images"]["id"].to_pylist() == [4]


def test_a_record_that_does_not_end_is_an_error_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "LONGEST", 1000)
    for text in (
        '{"images": [{"id": 1}, {"name": "' + "x" * 5000,
        '{"images": [{"id": 1}, {"a": [' + "1," * 5000,
    ):
        with pytest.raises(InputError, match=r'byte \d+: record 2 of "images" does not end within'):
            read_tables(write(tmp_path, text), WANTED, block=64)
    with pytest.raises(InputError, match="does not end within"):
        read_tables(write(tmp_path, '{"x": ["' + "x" * 5000), WANTED, block=64)


def test_progress_comes_to_the_whole_file(tmp_path):
    class Heard(Progress):
        total = done = 0

        def start(self, what, total, unit):
            self.total = total

        def advance(self, count=1):
            self.done += count

    records = [{"id": number, "name": "x" * 100} for number in range(20_000)]
    path = write(tmp_path, json.dumps({"images": records, "annotations": []}))
    heard = Heard()
    assert len(read_tables(path, WANTED, heard, block=100_000)["images"]) == 20_000
    assert heard.done == heard.total > 1
