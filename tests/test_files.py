import json

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.files import read_json, read_sealed, write_json, write_sealed


def test_a_sealed_file_that_changed_is_refused(tmp_path):
    """Every change of one byte is refused or changes nothing: the white space of JSON means nothing."""
    path, value = tmp_path / "a.json", {"score": 0.25, "names": ["a", "é"], "seed": 1}
    write_sealed(path, value)
    assert read_sealed(path) == value
    content, accepted = path.read_bytes(), 0
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                assert read_sealed(path) == value
                accepted += 1
            except InputError:
                pass
    assert accepted < len(content) / 10


def test_a_file_without_a_seal_is_refused(tmp_path):
    write_json(tmp_path / "a.json", {"score": 0.25})
    for text in (None, "[]", '"sha256"', "3"):
        if text is not None:
            (tmp_path / "a.json").write_text(text)
        with pytest.raises(InputError, match=r"a\.json: has no checksum"):
            read_sealed(tmp_path / "a.json")


def test_what_is_no_json_is_one_sentence(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"{", b"\xff", b"[" * 100_000, b"9" * 5000):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.json: not valid JSON"):
            read_json(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "none.json")
    write_json(path, {"a": [1, "é"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [1, "é"]} == read_json(path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, np.nan)
