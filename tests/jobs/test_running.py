"""A job in shards: what is done is not done again, what fails is told, and another job is refused."""

import csv
import json
import os
import tarfile
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tertium.cli import jobs as options
from tertium.data.inputs import open_inputs
from tertium.errors import InputError
from tertium.jobs.folder import JobFolder
from tertium.jobs.output import Output, OutputError
from tertium.jobs.running import MOST_FAILURES, Request, Workers, run
from tertium.jobs.shards import IMAGES as IMAGES_OF_A_SHARD
from tertium.jobs.shards import FilePlan, RowPlan, plan_files
from tertium.labels import Labels
from tertium.progress import Progress
from tests.data.keeping import WAYS, kept_as
from tests.data.servers import storage
from tests.jobs.toy import draw, rows, sizes

IMAGES = 600  # three shards, the last of which is short


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("photos"), IMAGES)


@pytest.fixture
def few(tmp_path):
    return draw(tmp_path / "few", 600, "{:04d}.jpg")


class Told(Progress):
    def __init__(self):
        self.notes, self.shards = [], 0

    def note(self, text):
        self.notes.append(text)

    def advance(self, count=1):
        self.shards += count


def request(folder, **how):
    return Request(str(folder), images=256, **how)


def shards_of(notes):
    return [int(line.split()[1]) for line in notes.read_text().splitlines()]


def test_parts_markers_and_manifest(photos, tmp_path):
    told = Told()
    done = run(sizes(photos), request(tmp_path / "job"), told)
    assert done.is_complete
    assert (done.images, done.shards, told.shards) == (600, 3, 3)
    assert [row["image"] for row in rows(done)] == sorted(os.listdir(photos))
    assert all(row["bytes"] == (photos / row["image"]).stat().st_size for row in rows(done))
    assert pq.read_table(tmp_path / "job" / "parts").num_rows == 600  # as other tools read it
    files = sorted(str(path.relative_to(tmp_path / "job")) for path in (tmp_path / "job").rglob("*.*"))
    numbers = range(3)
    parts = [f"parts/000/{number:06d}.parquet" for number in numbers]
    assert files == [*(f"done/000/{number:06d}.json" for number in numbers), "job.json", *parts]
    assert json.loads((tmp_path / "job" / "job.json").read_text())["what"] == "sizes"


def test_what_is_done_is_not_done_again(photos, tmp_path):
    notes, out = tmp_path / "notes", tmp_path / "job"
    first = rows(run(sizes(photos, notes), request(out)))
    (out / "done" / "000" / "000001.json").unlink()  # as if it had been killed before
    (out / "parts" / "000" / "000002.parquet").write_bytes(b"cut")
    told = Told()
    assert rows(run(sizes(photos, notes), request(out), told)) == first
    assert shards_of(notes) == [0, 1, 2, 1, 2]
    assert told.notes == ["goes on after 1 of 3 shards that were done before"]
    marker = out / "done" / "000" / "000000.json"
    marker.write_text(marker.read_text().replace("256", "255"))
    assert rows(run(sizes(photos, notes), request(out))) == first
    assert shards_of(notes)[5:] == [0]
    assert rows(run(sizes(photos, notes), request(out))) == first
    assert shards_of(notes)[6:] == []


def test_a_part_that_was_changed_is_named(photos, tmp_path):
    done = run(sizes(photos), request(tmp_path / "job"))
    part = tmp_path / "job" / "parts" / "000" / "000001.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=r"000001\.parquet: was changed after it was written"):
        rows(done)


def test_another_job_is_refused_by_what_differs(few, tmp_path):
    def again(**about):
        return run(sizes(few, model="a", **about), request(tmp_path / "job"))

    again(top=5)
    with pytest.raises(InputError, match=r"job: was begun with another top \(5, now 3\); choose another"):
        again(top=3)
    with pytest.raises(InputError, match="was begun with another model;"):
        run(sizes(few, model="b", top=5), request(tmp_path / "job"))
    with pytest.raises(InputError, match=r"another number of images in a shard \(256, now 512\)"):
        run(sizes(few, model="a", top=5, images=512), Request(str(tmp_path / "job"), images=512))
    image = few / "0300.jpg"
    content = image.read_bytes()
    image.write_bytes(content + b"more")
    with pytest.raises(
        InputError, match=r"images have changed since their shard was done, 1 \(0256.jpg to 0511.jpg\)"
    ):
        again(top=5)
    image.unlink()
    for name in os.listdir(few)[:200]:
        (few / name).unlink()
    with pytest.raises(InputError, match=r"begun with another number of shards \(3, now 2\)"):
        again(top=5)
    done = run(sizes(few, model="b"), request(tmp_path / "job", overwrite=True))
    assert done.is_complete
    assert len(rows(done)) == len(os.listdir(few))


def test_labels_belong_to_a_shard(photos):
    labels = Labels.from_dense(np.ones((600, 2), dtype=np.int8), images=sorted(os.listdir(photos)))
    other = Labels.from_dense(
        np.where(np.arange(600)[:, None] == 300, -1, labels.dense()), images=labels.images
    )
    inputs = open_inputs(str(photos))
    plans = [RowPlan(inputs, each, 256) for each in (labels, other)]
    assert [plans[0].identity(number) == plans[1].identity(number) for number in range(3)] == [
        True,
        False,
        True,
    ]
    assert plans[0].shard(2).labels.images.to_pylist() == labels.images.to_pylist()[512:]


def test_features_belong_to_a_shard():
    features = np.ones((600, 3), dtype=np.float32)
    changed = np.where(np.arange(600)[:, None] < 256, features, 2)
    plans = [RowPlan(open_inputs(features=each), images=256) for each in (features, changed)]
    same = [plans[0].identity(number) == plans[1].identity(number) for number in range(3)]
    assert same == [True, False, False]


def test_failures_are_listed_and_tried_again(photos, tmp_path):
    mixed = draw(tmp_path / "mixed", 512)
    (mixed / "0511.png").rename(mixed / "0511-damaged.png")
    notes, out = tmp_path / "notes", tmp_path / "job"
    with pytest.raises(
        InputError, match=r"^1 of 2 shards failed, listed in .*failures.csv; the first, shard 1"
    ):
        run(sizes(mixed, notes), request(out))
    with open(out / "failures.csv", newline="", encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    assert [(row["shard"], row["image"]) for row in listed] == [("1", "")]
    assert "has a damaged image" in listed[0]["why"]
    with pytest.raises(InputError, match="has a damaged image"):
        run(sizes(mixed, notes), request(out))
    (mixed / "0511-damaged.png").rename(mixed / "0511.png")  # mended: what is not done may change
    assert len(rows(run(sizes(mixed, notes), request(out)))) == 512
    assert not (out / "failures.csv").exists()
    assert shards_of(notes) == [0, 1, 1, 1]


def test_too_many_failures_end_a_job(tmp_path):
    bad = draw(tmp_path / "bad", 1024, "odd-{:04d}.png")
    notes = tmp_path / "notes"
    with pytest.raises(
        InputError, match=r"^2 of 4 shards failed.*KeyError: 'odd' \(.*toy.py, line .*ends when"
    ):
        run(sizes(bad, notes), request(tmp_path / "job", most_failures=1))
    assert shards_of(notes) == [0, 1]


def test_several_processes_share_a_job(photos, tmp_path):
    notes, out = tmp_path / "notes", tmp_path / "job"
    first = run(sizes(photos, notes), request(out, share=1, shares=2))
    assert not first.is_complete
    assert shards_of(notes) == [1]
    last = run(sizes(photos, notes), request(out, share=0, shares=2))
    assert last.is_complete
    assert len(rows(last)) == 600
    assert shards_of(notes) == [1, 0, 2]


def test_a_folder_with_other_things_in_it_is_left_alone(photos, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"has other files in it \(mine.txt\); choose a new folder"):
        run(sizes(photos), request(tmp_path))
    with pytest.raises(InputError, match="has other files in it"):
        run(sizes(photos), request(tmp_path, overwrite=True))
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_place_that_cannot_be_written_to_ends_the_job(photos, tmp_path, monkeypatch):
    def full(self, name, content):
        if name.startswith("parts"):
            raise OutputError(f"{name}: cannot be written, the disk is full; nothing is left of it")
        write(self, name, content)

    write = Output.write
    monkeypatch.setattr(Output, "write", full)
    notes = tmp_path / "notes"
    with pytest.raises(InputError, match="the disk is full"):
        run(sizes(photos, notes), request(tmp_path / "job"))
    assert shards_of(notes) == [0]
    monkeypatch.setattr(Output, "write", write)
    assert run(sizes(photos, notes), request(tmp_path / "job")).is_complete


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_place(way, photos, tmp_path):
    names = sorted(os.listdir(photos))[:280]
    wanted = [{"image": name, "bytes": (photos / name).stat().st_size} for name in names]
    place = kept_as(way, photos, names, tmp_path / "kept")
    by_files = plan_files(place, 256)
    assert (by_files is None) == (way in ("list", "table of paths"))
    assert rows(run(sizes(place), request(tmp_path / "job"))) == wanted
    inputs = open_inputs(place, names=names[::-1])
    job = replace(sizes(place), plan=RowPlan(inputs, images=256))
    assert rows(run(job, request(tmp_path / "by-name"))) == wanted[::-1]


def test_a_large_file_makes_several_shards(photos, tmp_path):
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(photos, arcname=".")
    plan = plan_files(tmp_path / "all.tar", 1)
    assert isinstance(plan, FilePlan)
    assert len(plan) > 3
    found = [plan.shard(number).open().names for number in range(len(plan))]
    assert [name for names in found for name in names] == open_inputs(tmp_path / "all.tar").names
    assert {len(names) for names in found} <= {0, 256, 600 - 512}  # whole batches
    assert plan.shard(1).title == f"{tmp_path}/all.tar, 2 of {len(plan)}"
    assert not plan.shard(0).inside.files  # not all files go to each worker


def test_a_job_at_an_address(photos, tmp_path):
    import fsspec

    notes, place = tmp_path / "notes", f"memory://jobs/{tmp_path.name}"
    first = rows(run(sizes(photos, notes), request(f"{place}/")))
    assert len(first) == 600
    fsspec.filesystem("memory").rm(f"/jobs/{tmp_path.name}/done/000/000001.json")
    again = run(sizes(photos, notes), request(place))
    assert rows(again) == first
    assert shards_of(notes) == [0, 1, 2, 1]
    assert rows(run(sizes(photos, notes, model="b"), request(place, overwrite=True))) == first


def test_a_job_in_object_storage(photos, tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    with storage() as server:
        server.files["/bucket/other"] = b""
        for name, value in (("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.host}")
        first = rows(run(sizes(photos, notes), request("s3://bucket/jobs/one/")))
        assert len(first) == 600
        del server.files["/bucket/jobs/one/done/000/000001.json"]
        assert rows(run(sizes(photos, notes), request("s3://bucket/jobs/one"))) == first
        assert shards_of(notes) == [0, 1, 2, 1]
        assert not server.uploads  # all were completed
        run(sizes(photos, notes, model="b"), request("s3://bucket/jobs/one", overwrite=True))
        assert shards_of(notes) == [0, 1, 2, 1, 0, 1, 2]


def test_archives_in_object_storage_are_fetched_once(photos, tmp_path, monkeypatch):
    names = sorted(os.listdir(photos))[:40]
    kept_as("tar", photos, names, tmp_path / "kept")
    with storage() as server:
        server.put(tmp_path / "kept")
        for name, value in (("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.host}")
        size = max(len(content) for content in server.files.values())
        # Room for each of them, but not for all.
        monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("TERTIUM_IMAGE_CACHE_GB", str(5 * size / 2**30))
        job = sizes("s3://bucket/shards/{000..007}.tar", images=1)
        planned = len(server.asked)
        assert len(job.plan) == 8  # however small a shard may be
        assert not [each for each in server.asked if each[0] == "GET" and each[2]]  # nothing is read yet
        assert [row["image"] for row in rows(run(job, request(tmp_path / "job")))] == names
        read = [path for command, path, _ in server.asked[planned:] if command == "GET"]
    assert sorted(read) == [f"/bucket/shards/{number:03d}.tar" for number in range(8)]


def test_workers_that_are_asked_for_in_vain(tmp_path):
    with pytest.raises(InputError, match="are about a cluster: add --engine ray"):
        Workers(actors=2)
    with pytest.raises(InputError, match="say how many workers there are"):
        Workers("ray", gpus=1)
    assert JobFolder(Output.at(tmp_path)).done(3) == {}
    assert (options._IMAGES, options._FAILURES) == (IMAGES_OF_A_SHARD, MOST_FAILURES)
