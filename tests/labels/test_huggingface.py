"""Data sets of Hugging Face: what their columns mean, and what is refused."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from tertium.errors import InputError
from tertium.labels.formats.huggingface import read

CLASS = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def table(columns, features=None):
    """Return a table with metadata as `datasets` writes it."""
    about = {"huggingface": json.dumps({"info": {"features": features or {}}})}
    return pa.table(columns).replace_schema_metadata(about)


def save(folder, *tables):
    """Write what ``save_to_disk`` does: streams of Arrow, and their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, each in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, each.schema) as writer:
            writer.write_table(each)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def lists(names, classes, feature=None):
    kind = {"feature": feature or CLASS, "_type": "List"}
    return table({"image": names, "labels": pa.array(classes, pa.list_(pa.int64()))}, {"labels": kind})


def sample(folder):
    """Write a data set for the checks that all formats share."""
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save(folder / "train", lists(["0012", "b"], [[0, 1], [1]]), lists(["c"], [[]]))
    save(folder / "test", lists(["d"], [[0]]))


def dense(found):
    return dict(zip(found.labels.images.to_pylist(), found.labels.dense().tolist(), strict=True))


def test_a_saved_folder_with_splits(tmp_path):
    sample(tmp_path)
    (tmp_path / "train" / "data-00009-of-00009.arrow").write_text("left from before")
    found = read(tmp_path, column="labels")
    assert found.labels.classes == ("cat", "dog")
    assert dense(found) == {"0012": [1, 1], "b": [0, 1], "c": [0, 0], "d": [1, 0]}
    assert found.labels.part("test").images.to_pylist() == ["d"]
    assert dense(read(tmp_path, column="labels", unlisted="absent")) == {
        "0012": [1, 1],
        "b": [-1, 1],
        "c": [0, 0],
        "d": [1, -1],
    }
    assert dense(read(tmp_path, column="labels", unlisted="absent", empty="absent"))["c"] == [-1, -1]
    assert read(tmp_path / "train", column="labels").labels.splits is None


def test_parquet_files_with_images(tmp_path):
    images = [{"bytes": b"x", "path": "a.jpg"}, {"bytes": b"y", "path": "b.jpg"}]
    for split, rows in (("train", images[:1]), ("validation", images[1:])):
        pa.parquet.write_table(
            table({"image": rows, "tags": [["cat", " big  dog"]] * len(rows)}),
            tmp_path / f"{split}-00000-of-00001.parquet",
        )
    found = read(tmp_path, column="tags")
    assert found.labels.split_names() == ["train", "validation"]
    assert dense(found) == {"a.jpg": [1, 1], "b.jpg": [1, 1]}
    one = read(tmp_path / "train-00000-of-00001.parquet", column="tags", classes=["fox", "cat", "big dog"])
    assert dense(one) == {"a.jpg": [0, 1, 1]}


def test_one_class_an_image_and_older_metadata(tmp_path):
    columns = {"image": [1, 2, 3], "label": pa.array([0, -1, None], pa.int64())}
    pa.parquet.write_table(table(columns, {"label": CLASS}), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet", column="label", unlisted="absent")
    assert dense(found) == {"1": [1, -1], "2": [0, 0], "3": [0, 0]}
    old = table({"image": ["a"], "l": [[1]]}, {"l": [CLASS]})
    pa.parquet.write_table(old, tmp_path / "t.parquet")
    assert dense(read(tmp_path / "t.parquet", column="l")) == {"a": [0, 1]}


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.float32(), 2), pa.list_(pa.bool_())])
def test_multi_hot_lists(tmp_path, kind):
    # Arrow 25 does not read a missing list of fixed size from Parquet; 26 does.
    last = [0, 0] if pa.types.is_fixed_size_list(kind) else None
    hot = pa.array([[1, 0], [0, 0], last], pa.list_(pa.int8())).cast(pa.list_(kind.value_type)).cast(kind)
    pa.parquet.write_table(table({"image": ["a", "b", "c"], "hot": hot}), tmp_path / "t.parquet")
    words = {"column": "hot", "classes": ["cat", "dog"], "numbers": "multi-hot"}
    assert dense(read(tmp_path / "t.parquet", **words)) == {"a": [1, 0], "b": [0, 0], "c": [0, 0]}
    with pytest.raises(InputError, match=r"plain numbers .* --classes, and say with --numbers"):
        read(tmp_path / "t.parquet", column="hot")
    with pytest.raises(InputError, match='lists in "hot" have 2 numbers, and there are 1 classes'):
        read(tmp_path / "t.parquet", column="hot", classes=["cat"], numbers="multi-hot")


def test_zeros_are_absent_if_the_user_says_so(tmp_path):
    hot = pa.array([[1, 0], [0, 0]], pa.list_(pa.int8()))
    pa.parquet.write_table(table({"image": ["a", "b"], "hot": hot}), tmp_path / "t.parquet")
    words = {"column": "hot", "classes": ["cat", "dog"], "numbers": "multi-hot", "unlisted": "absent"}
    assert dense(read(tmp_path / "t.parquet", **words)) == {"a": [1, -1], "b": [-1, -1]}


BAD = {
    "a class that is not there": ({"image": ["a"], "labels": [[7]]}, "has 7; there are 2 classes"),
    "an image twice": ({"image": ["a", "a"], "labels": [[0], [1]]}, "an image is there twice: a"),
    "no name": ({"image": ["a", None], "labels": [[0], [1]]}, r"1 images have no path .* --image"),
    "an empty place": ({"image": ["a"], "labels": [[0, None]]}, 'a list in the column "labels" has an empty'),
    "no column": ({"image": ["a"], "label": [[0]]}, r'no column "labels" \(--column\); did you mean "label"'),
    "no images": ({"img": ["a"], "labels": [[0]]}, r'no column "image" \(--image\)'),
    "another type": ({"image": ["a"], "labels": [{"x": 1}]}, r'column "labels" has struct.*not lists'),
    "images of another type": ({"image": [b"a"], "labels": [[0]]}, 'column "image" has binary, not names'),
    "parts of classes": ({"image": ["a"], "labels": [[0.5]]}, "numbers that are not whole"),
    "no rows": ({"image": pa.array([], pa.string()), "labels": pa.array([], pa.list_(pa.int64()))}, "no ima"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_sentence(tmp_path, name):
    columns, sentence = BAD[name]
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(table(columns, {"labels": {"feature": CLASS, "_type": "Sequence"}}), path)
    with pytest.raises(InputError, match=sentence) as error:
        read(path, column="labels")
    assert str(error.value).startswith(str(path))


def test_folders_and_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="neither written by save_to_disk"):
        read(tmp_path, column="labels")
    with pytest.raises(InputError, match="no such file or folder"):
        read(tmp_path / "no", column="labels")
    (tmp_path / "t.csv").write_text("x")
    with pytest.raises(InputError, match=r"read from folders, .parquet and .arrow"):
        read(tmp_path / "t.csv", column="labels")
    save(tmp_path / "saved", lists(["a"], [[0]]), lists(["b"], [[0]], CLASS | {"names": ["cat"]}))
    with pytest.raises(InputError, match="its classes are not those of the files before"):
        read(tmp_path / "saved", column="labels")
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "../../x.arrow"}]}')
    with pytest.raises(InputError, match=r"saved/x.arrow: no such file"):  # nothing outside the folder
        read(tmp_path / "saved", column="labels")


def test_what_the_library_itself_writes(tmp_path):
    datasets = pytest.importorskip("datasets", reason="skipped: no datasets")
    features = datasets.Features(
        {
            "image": datasets.Value("string"),
            "labels": datasets.Sequence(datasets.ClassLabel(names=["cat", "dog"])),
            "tags": datasets.Sequence(datasets.Value("string")),
            "hot": datasets.Sequence(datasets.Value("int8"), length=2),
        }
    )
    rows = {"image": ["a", "b"], "labels": [[0, 1], []], "tags": [["x"], ["y"]], "hot": [[0, 1], [1, 0]]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(
        {"train": whole, "test": whole.select([1]).map(lambda row: {"image": "c"})}
    ).save_to_disk(str(tmp_path / "saved"))
    found = read(tmp_path / "saved", column="labels")
    assert dense(found) == {"a": [1, 1], "b": [0, 0], "c": [0, 0]}
    assert found.labels.part("test").images.to_pylist() == ["c"]
    whole.to_parquet(str(tmp_path / "t.parquet"))
    assert dense(read(tmp_path / "t.parquet", column="labels")) == {"a": [1, 1], "b": [0, 0]}
    assert dense(read(tmp_path / "t.parquet", column="tags")) == {"a": [1, 0], "b": [0, 1]}
    hot = {"column": "hot", "numbers": "multi-hot", "classes": ["cat", "dog"], "unlisted": "absent"}
    assert dense(read(tmp_path / "t.parquet", **hot)) == {"a": [-1, 1], "b": [1, -1]}
