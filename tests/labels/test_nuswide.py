"""NUS-WIDE's files of zeros and ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.nuswide import read

FILES = {
    "ConceptsList/Concepts81.txt": "airport\nanimal\n",
    "ImageList/Imagelist.txt": "actor\\0012_2.jpg\nactor\\0003_5.jpg\nzoo\\0001_1.jpg\n",
    "ImageList/TrainImagelist.txt": "actor\\0012_2.jpg\nzoo\\0001_1.jpg\n",
    "ImageList/TestImagelist.txt": "actor\\0003_5.jpg\n",
    "Groundtruth/AllLabels/Labels_airport.txt": "1\n0\n0\n",
    "Groundtruth/AllLabels/Labels_animal.txt": "0\n0\n1\n",
    "Groundtruth/TrainTestLabels/Labels_airport_Train.txt": "1\n0\n",
    "Groundtruth/TrainTestLabels/Labels_airport_Test.txt": "0\n",
    "Groundtruth/TrainTestLabels/Labels_animal_Train.txt": "0 \n1 \n",
    "Groundtruth/TrainTestLabels/Labels_animal_Test.txt": "0 ",
}


def write(folder, **changes):
    """Write the files; a change is named by the file's name without its ending, None leaves it out."""
    for name, text in FILES.items():
        path = folder / name
        changed = changes.pop(path.stem, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        if changed is not None:
            path.write_text(changed)
    assert not changes
    return folder


def test_all_labels_with_splits_from_the_lists(tmp_path):
    found = read(write(tmp_path))
    assert found.labels.images.to_pylist() == ["actor/0012_2.jpg", "actor/0003_5.jpg", "zoo/0001_1.jpg"]
    assert found.labels.classes == ("airport", "animal")
    np.testing.assert_array_equal(found.labels.dense(), [[1, -1], [-1, -1], [-1, 1]])
    assert found.labels.splits.to_pylist() == ["train", "test", "train"]
    assert found.notes == ()


def test_the_two_parts_say_the_same(tmp_path):
    whole, parts = read(write(tmp_path)).labels, read(tmp_path, part="split").labels
    assert parts.images.to_pylist() == ["actor/0012_2.jpg", "zoo/0001_1.jpg", "actor/0003_5.jpg"]
    np.testing.assert_array_equal(parts.dense(parts.rows_of(whole.images)), whole.dense())
    assert parts.splits.to_pylist() == ["train", "train", "test"]


def test_folders_may_be_flat_and_splits_absent(tmp_path):
    write(tmp_path, TrainImagelist=None)
    for folder in ("ConceptsList", "Groundtruth"):
        for path in (tmp_path / folder).iterdir():
            path.rename(tmp_path / path.name)
    found = read(tmp_path)
    assert found.labels.splits is None
    assert "no splits" in found.notes[0]


def test_images_given_twice_and_contradictions(tmp_path):
    twice = dict.fromkeys(("TrainImagelist", "TestImagelist"))
    write(tmp_path, Imagelist="a\\1.jpg\na\\1.jpg\nb\\2.jpg\n", **twice)
    with pytest.raises(InputError, match=r'image "a/1.jpg" is listed both with and without "airport"'):
        read(tmp_path)
    found = read(tmp_path, contradictions="present")
    np.testing.assert_array_equal(found.labels.dense(), [[1, -1], [-1, 1]])
    assert "1 labels were given more than once; each counts once" in found.notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Labels_animal": "0\n0\n"}, r"Labels_animal.txt: has 2 lines for 3 images"),
        ({"Labels_animal": "0\n\n1\n"}, r"Labels_animal.txt: line 2: needs 0 or 1, not ''"),
        ({"Labels_animal": "0\n2\n1\n"}, r"Labels_animal.txt: line 2: needs 0 or 1, not '2'"),
        ({"Labels_animal": "0 1 0\n"}, r"Labels_animal.txt: line 1: needs 0 or 1, not '0 1 0'"),
        ({"Labels_animal": "0,1,0\n"}, r"line 1: needs 0 or 1, not '0,1,0'"),
        ({"Labels_animal": ""}, r"Labels_animal.txt: the file is empty"),
        ({"Labels_animal": None}, r"1 files of concepts are missing: Labels_animal.txt"),
        ({"Concepts81": "airport\nairport\n"}, r'line 2: "airport" already stands in line 1'),
        ({"Imagelist": "a\n\nb\n"}, r"Imagelist.txt: line 2: the name is empty"),
        ({"Imagelist": None}, r"Imagelist.txt: no such file"),
        ({"TestImagelist": "zoo\\0001_1.jpg\n"}, r"both the train and the test list: zoo/0001_1.jpg"),
        ({"TestImagelist": "new.jpg\n"}, r"that Imagelist.txt does not name: new.jpg"),
    ],
)
def test_bad_files_are_named(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, **changes))


def test_files_of_no_concept_are_noted(tmp_path):
    found = read(write(tmp_path, Concepts81="animal\n"))
    assert found.labels.classes == ("animal",)
    assert "1 files are of no concept in Concepts81.txt: Labels_airport.txt" in found.notes


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["\n", "\r\n", " \n"]))
def test_written_labels_read_back(tmp_path_factory, seed, end):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, size=rng.integers(1, 7, size=2))
    folder = tmp_path_factory.mktemp("nus")
    (folder / "AllLabels").mkdir()
    names, images = [f"c{i}" for i in range(values.shape[1])], [f"f\\{i:04}.jpg" for i in range(len(values))]
    (folder / "Concepts81.txt").write_bytes(end.join(names).encode())
    (folder / "Imagelist.txt").write_bytes(end.join(images).encode())
    for name, column in zip(names, values.T, strict=True):
        text = "".join(f"{value}{end}" for value in column)
        (folder / "AllLabels" / f"Labels_{name}.txt").write_bytes(text.encode())
    expected = Labels.from_dense(2 * values - 1, classes=names, images=[i.replace("\\", "/") for i in images])
    assert read(folder).labels == expected
