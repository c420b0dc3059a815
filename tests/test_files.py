import json

import numpy as np
import pytest

from tertium import files
from tertium.errors import InputError
from tertium.files import (
    _sweep_folders,
    filling,
    is_left_of,
    keep_inputs,
    locked,
    make_folder,
    passing_folder,
    read_json,
    read_sealed,
    replacing,
    write_json,
    write_sealed,
)


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


def test_a_link_is_written_through_not_replaced(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
    for text in ("first", "second"):  # where nothing is at its end, and where something is
        with replacing(tmp_path / "link.txt") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "link.txt").is_symlink()
        assert (tmp_path / "target.txt").read_text() == text
    (tmp_path / "far.txt").symlink_to(tmp_path / "none" / "target.txt")
    with (
        pytest.raises(InputError, match=r"the folder .*none does not exist"),
        replacing(tmp_path / "far.txt"),
    ):
        pass
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="a link that leads to itself"), replacing(tmp_path / "a"):
        pass


def test_folders_are_made_or_not_in_one_sentence(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "some" / "where")
    make_folder(tmp_path / "link" / "below")
    assert (tmp_path / "some" / "where" / "below").is_dir()
    make_folder(tmp_path / "link")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, complaint in (
        ("file", "is there already, and is not a folder"),
        ("loop", "is there already, and is not a folder"),
        ("file/below", "the folder cannot be made"),
        ("x" * 300, "the folder cannot be made"),
    ):
        with pytest.raises(InputError, match=complaint):
            make_folder(tmp_path / name)


def test_commands_write_through_links(tmp_path, tertium):
    (tmp_path / "scenes").symlink_to(tmp_path / "there")
    assert tertium("scenes", tmp_path / "scenes", "--count", 2)[0] == 0
    assert (tmp_path / "there" / "labels.csv").is_file()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, _, said = tertium("scenes", tmp_path / "loop", "--count", 2)
    assert (code, "is not a folder" in " ".join(said.split())) == (2, True)


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    left, other, mine = (
        tmp_path / name for name in (".a-01234567.csv", ".b-01234567.csv", ".a-my-notes.csv")
    )
    for path in (left, other, mine):
        path.write_text("half")
    with replacing(tmp_path / "a.csv") as writing:
        assert is_left_of(writing, tmp_path / "a.csv")
        with replacing(tmp_path / "a.csv") as second:  # another process may be writing the same
            assert writing.exists()
            second.write_text("second")
        writing.write_text("first")
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name, other.name, "a.csv"]
    assert (tmp_path / "a.csv").read_text() == "first"


def test_folders_that_a_killed_process_left_are_removed_by_the_next_one(tmp_path):
    dead, alive = tmp_path / ".tertium-01234567", tmp_path / ".tertium-76543210"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "a.png").write_text("half")
    with locked(alive), filling(tmp_path) as folder:
        (folder / "b.png").write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "b.png"]


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="would be written twice"):
        keep_inputs([tmp_path / "a.csv", None, tmp_path / "link" / "a.csv"], [])


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another process may look for leftovers between making a folder and locking it."""
    lock, swept = files.lock, []

    def late(handle, *, wait=False):
        if wait and not swept:
            swept.append(handle)
            _sweep_folders(tmp_path)
        lock(handle, wait=wait)

    monkeypatch.setattr(files, "lock", late)
    with passing_folder(tmp_path) as folder:
        assert swept
        (folder / "work").write_text("kept")
        _sweep_folders(tmp_path)  # now it is held
        assert (folder / "work").read_text() == "kept"
    assert list(tmp_path.iterdir()) == []
