"""Labels and files that have no partner are found."""

import pytest

from tertium.data.coverage import coverage, unused_files
from tertium.errors import InputError


@pytest.fixture
def folder(tmp_path):
    for name in (
        "a.jpg",
        "B.JPG",
        "sub/c.png",
        "d.jpg",
        "notes.txt",
        "x.cr2",
        "y.cr2",
        "README",
        ".DS_Store",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def test_what_has_no_partner(folder):
    found = coverage(folder, ["a.jpg", "b.jpg", "sub/c.png", "gone.jpg", "x.jpg"])
    assert found.files == 4
    assert found.unnamed == ["B.JPG", "d.jpg"]
    assert found.missing == ["b.jpg", "gone.jpg", "x.jpg"]
    assert found.respelt == {"b.jpg": "B.JPG", "x.jpg": "x.cr2"}
    assert found.unread == {".cr2": 2, "no ending": 1, ".txt": 1}


def test_one_sentence_for_training(folder):
    told = unused_files(folder, ["a.jpg", "B.JPG"])
    assert told == (
        f"2 of the 4 image files in {folder} are not named by the labels and are not used: d.jpg, sub/c.png"
    )
    assert unused_files(folder, ["a.jpg", "B.JPG", "sub/c.png", "d.jpg"]) is None
    with pytest.raises(InputError, match="no such folder"):
        coverage(folder / "none", [])
