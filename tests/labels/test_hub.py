"""Data sets by their name on a hub, which runs on this machine: pinned, kept, and what it does not have."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from PIL import Image

from tertium.errors import InputError
from tertium.hub import data_place, pinned
from tertium.labels.formats.huggingface import read
from tertium.labels.readers import LabelFile
from tertium.runs import RunFolder

CLASSES = ["cat", "dog"]
FEATURES = {"labels": {"feature": {"names": CLASSES, "_type": "ClassLabel"}, "_type": "List"}}
TRAIN = [f"data/train-{number:05}-of-00002.parquet" for number in range(2)]


def photo(number):
    pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return {"bytes": content.getvalue(), "path": f"{number}.png"}


def parquet(numbers, lists, **columns):
    """Return a file as `datasets` puts it on the hub."""
    about = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    content = {"image": [photo(number) for number in numbers]}
    content["labels"] = pa.array(lists, pa.list_(pa.int64()))
    sink = io.BytesIO()
    pq.write_table(pa.table(content | columns).replace_schema_metadata(about), sink)
    return sink.getvalue()


@pytest.fixture
def birds(hub):
    """A data set of three files; returns its commit."""
    files = {
        TRAIN[0]: parquet([0, 1], [[0], [0, 1]]),
        TRAIN[1]: parquet([2], [[1]]),
        "data/test-00000-of-00001.parquet": parquet([3], [[0]]),
        "README.md": b"# birds",
    }
    return hub.commit("me/birds", files)


def present(labels):
    return dict(zip(labels.images.to_pylist(), (labels.dense() > 0).tolist(), strict=True))


def test_a_name_is_a_data_set_at_one_commit(hub, birds, tertium, tmp_path):
    out = tmp_path / "labels.csv"
    code, said, _ = tertium("convert", "huggingface", "me/birds", "--column", "labels", "--out", out)
    assert code == 0
    assert f"commit {birds}; its images are at 'hf://datasets/me/birds@{birds}/*.parquet'" in said
    found = LabelFile(out).read().labels
    assert present(found) == {"0.png": [True, False], "1.png": [True, True], "2.png": [False, True],
                              "3.png": [True, False]}  # fmt: skip
    assert found.part("test").images.to_pylist() == ["3.png"]
    # Another commit later; the old one by its number, and the new one by the name.
    newer = hub.commit(
        "me/birds", {TRAIN[1].replace("1-of", "0-of").replace("2.p", "1.p"): parquet([7], [[0]])}
    )
    assert (
        read(f"me/birds@{birds}", column="labels").labels == read("me/birds@" + birds, column="labels").labels
    )
    assert len(read(f"me/birds@{birds}", column="labels").labels) == 4
    assert read("me/birds", column="labels").labels.images.to_pylist() == ["7.png"]
    assert pinned("hf://datasets/me/birds/data") == f"hf://datasets/me/birds@{newer}/data"
    assert pinned("s3://bucket/a.tar") == "s3://bucket/a.tar"


def test_an_address_chooses_files(hub, birds):
    for inside, names in (
        ("data/test*", ["3.png"]),
        (TRAIN[1], ["2.png"]),
        ("data", ["3.png", "0.png", "1.png", "2.png"]),
    ):
        found = read(f"hf://datasets/me/birds/{inside}", column="labels")
        assert found.labels.images.to_pylist() == names
    converted = hub.commit("me/other", {"default/train/0000.parquet": parquet([0], [[1]])})
    found = read("hf://datasets/me/other", column="labels")
    assert (found.labels.splits.to_pylist(), converted in found.notes[0]) == (["train"], True)


def test_without_a_connection_the_cache_serves(hub, birds, monkeypatch):
    wanted = read("me/birds", column="labels").labels
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    for name in ("me/birds", f"me/birds@{birds}"):
        assert read(name, column="labels").labels == wanted
    with pytest.raises(InputError, match=r"me/others: not in .*hub, and HF_HUB_OFFLINE forbids"):
        read("me/others", column="labels")
    assert len(hub.asked) == asked
    assert pinned("hf://datasets/me/birds/data") == "hf://datasets/me/birds/data"


def test_downloads_that_are_cut_or_damaged(hub, birds):
    hub.damage = True
    with pytest.raises(InputError, match="has come damaged"):
        read("me/birds", column="labels")
    hub.damage, hub.cut = False, 2
    assert len(read("me/birds", column="labels").labels) == 4
    assert hub.cut == 0


def test_what_the_hub_does_not_have_is_one_sentence(hub, birds, tmp_path):
    hub.commit("me/gated", {})
    hub.gated.add("me/gated")
    hub.commit("me/texts", {"train.csv": b"a,b"})
    hub.commit("me/half", {TRAIN[0]: parquet([0], [[0]])})
    for name, sentence in (
        ("me/brids", 'no such file or folder, and as a name: .*no data set "me/brids".*mean "me/birds"'),
        ("hf://datasets/me/brids", '^the hub has no data set "me/brids", or none .*did you mean "me/birds"'),
        ("you/birds", 'no data set "you/birds", or none that you may see; did you mean "me/birds"'),
        ("me/birds@v9", 'me/birds: has no revision "v9"'),
        ("me/gated", "me/gated: its owners want you to accept their terms first; then set HF_TOKEN"),
        ("me/texts", r"no .parquet files, but train.csv; .* at me/texts@refs/convert/parquet"),
        ("hf://datasets/me/birds/date", r"no .parquet files that fit date, but README.md"),
        ("me/half", "me/half: 1 of 2 files of data/train are missing"),
    ):
        with pytest.raises(InputError, match=sentence):
            read(name, column="labels")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "train-00001-of-00003.parquet").write_bytes(parquet([0], [[0]]))
    with pytest.raises(InputError, match="saved: 2 of 3 files of train are missing"):
        read(tmp_path / "saved", column="labels")


def test_names_that_are_paths():
    assert data_place("saved/birds/data") is None
    assert data_place("../birds") is None
    assert data_place("me/birds@refs/convert/parquet").revision == "refs/convert/parquet"
    assert data_place("hf:/datasets/me/birds/a.csv").inside == "a.csv"  # what a Path makes of an address


# ---- images and labels at addresses ------------------------------------------------------------------------


@pytest.fixture
def wide(hub):
    """A data set with a column for each class, in files that also have the images."""
    cells = [{"cat": [1, 0, 1, 0], "dog": [0, 1, -1, 1]}, {"cat": [1, 0, 0, 1], "dog": [1, 1, 0, 0]}]
    files = {
        name: parquet(range(4 * number, 4 * number + 4), [[]] * 4, **cells[number])
        for number, name in enumerate(TRAIN)
    }
    whole = pa.concat_tables([pq.read_table(io.BytesIO(content)) for content in files.values()])
    sink = io.BytesIO()
    pq.write_table(whole.drop_columns(["labels"]), sink)
    return hub.commit("me/wide", {**files, "labels.parquet": sink.getvalue()})


def test_training_from_the_hub_alone(hub, wide, tertium, tmp_path):
    address, files = "hf://datasets/me/wide", tmp_path / "photos"
    files.mkdir()
    for number in range(8):
        (files / f"{number}.png").write_bytes(photo(number)["bytes"])
    settings = ["backbone=test_resnet", "weights=random", "image_size=32", "epochs=1", "workers=0"]
    meaning = ["--positive", 1, "--negative", 0, "--unknown", -1]
    labels = ["--labels", f"{address}/labels.parquet", *meaning]
    code, _, errors = tertium(
        "train", *labels, "--images", f"{address}/data/*.parquet", "--out", tmp_path / "r", *settings
    )
    assert code == 0, errors
    data = RunFolder.open(tmp_path / "r").data()
    assert data.images == f"hf://datasets/me/wide@{wide}/data/*.parquet"
    assert data.labels.endswith(f"datasets/me/wide@{wide}/labels.parquet")
    hub.commit("me/wide", {})  # what the run was trained on stays what it was
    for name, place in (("hub", data.images), ("here", files)):
        words = ["--images", place, "--labels", data.labels, *meaning, "--out", tmp_path / f"{name}.csv"]
        code, _, errors = tertium("predict", tmp_path / "r", *words)
        assert code == 0, errors
    assert (tmp_path / "hub.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_addresses_of_the_hub_that_lead_nowhere(hub, wide, tertium, tmp_path):
    hub.commit("me/gated", {"a.parquet": b""})
    hub.gated.add("me/gated")
    out = ["--out", tmp_path / "x.npy"]
    for place, sentence in (
        ("hf://datasets/me/wide/data/none.parquet", "none.parquet: no such file"),
        ("hf://datasets/me/wide/data/no*.parquet", "no file fits this pattern"),
        ("hf://datasets/me/none/a.parquet", 'the hub has no data set "me/none"'),
        ("hf://datasets/me/gated/a.parquet", "accept their terms first; then set HF_TOKEN"),
    ):
        code, _, errors = tertium("features", "--images", place, *out)
        assert (code, sentence in " ".join(errors.split())) == (2, True), errors
    for file, sentence in (
        ("hf://datasets/me/wide", "name a file of the data set"),
        ("hf://datasets/me/wide/data", 'has no file "data"; did you mean'),
        ("hf://datasets/me/wide/label.parquet", 'did you mean "labels.parquet"?'),
    ):
        code, _, errors = tertium("describe", file)
        assert (code, sentence in " ".join(errors.split())) == (2, True), errors
    assert not (tmp_path / "x.npy").exists()
