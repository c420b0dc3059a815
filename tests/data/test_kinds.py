"""Every kind of place gives the same images under the same names, and says in one sentence what is wrong."""

import io
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tertium.data.coverage import coverage, unused_files
from tertium.data.inputs import open_inputs
from tertium.data.pictures import damaged
from tertium.data.sources.opening import open_source
from tertium.data.sources.places import braces
from tertium.errors import InputError
from tertium.progress import Progress
from tests.data.keeping import WAYS, kept_as

NAMES = [f"{number:02}.jpg" for number in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("kinds") / "photos", np.random.default_rng(0)
    folder.mkdir()
    for name in NAMES:
        Image.fromarray(rng.integers(0, 256, size=(20, 30, 3), dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture(params=WAYS)
def place(request, folder, tmp_path):
    return kept_as(request.param, folder, NAMES, tmp_path)


def image(shade=0):
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(content, "JPEG")
    return content.getvalue()


def tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def refused(place, names=None):
    with pytest.raises(InputError) as found:
        open_inputs(str(place), names=names)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_the_same_images_as_in_a_folder(folder, place):
    every, plain = open_inputs(place), open_inputs(folder)
    assert every.names == NAMES
    order = ["07.jpg", "00.jpg", "11.jpg"]
    found, wanted = (open_inputs(each, names=order).pictures for each in (place, folder))
    again = pickle.loads(pickle.dumps(found))  # as a worker process gets it
    for row in range(3):
        assert found.checksum(row) == again.checksum(row) == wanted.checksum(row)
        np.testing.assert_array_equal(np.asarray(found.open(row)), np.asarray(wanted.open(row)))
        assert found.open(row, within=15).size == (15, 10)
    assert every.fingerprint() == plain.fingerprint()
    assert found.stored().tolist() == [1, 0, 2]


def test_what_has_no_partner(place):
    found = coverage(place, [*NAMES[1:], "gone.jpg", "00.JPG"])
    assert (found.files, found.unnamed) == (12, ["00.jpg"])
    assert found.missing == ["gone.jpg", "00.JPG"]
    assert found.respelt == {"00.JPG": "00.jpg"}
    assert found.unread == ({".json": 12} if place.endswith(".tar") else {})
    assert unused_files(place, NAMES) is None
    assert "1 of 2 labelled images are missing: gone.jpg" in refused(place, ["00.jpg", "gone.jpg"])


def test_an_index_is_made_once_and_again_when_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "cache"))
    path = tar(tmp_path / "a.tar", {"a.jpg": image(1)})
    assert open_inputs(path).names == ["a.jpg"]
    with monkeypatch.context() as patched:
        patched.setattr(tarfile, "open", None)  # it is known what is in it
        assert open_inputs(path).names == ["a.jpg"]
    tar(path, {"b.jpg": image(1)})
    assert open_inputs(path).names == ["b.jpg"]


def test_archives_need_no_cache(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path / "file"))
    found = open_inputs(tar(tmp_path / "a.tar", {"a.jpg": image(1)}))
    assert found.pictures.open(0).size == (8, 8)


@pytest.mark.parametrize("way", ["list", "tar", "zip", "parquet of hugging face", "arrow"])
def test_damaged_images_are_named_and_can_be_skipped(way, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "photos")
    (tmp_path / "photos" / "03.jpg").write_bytes((folder / "03.jpg").read_bytes()[:900])
    (tmp_path / "photos" / "05.jpg").write_bytes(b"no image")
    place = kept_as(way, tmp_path / "photos", NAMES, tmp_path / "kept")
    faults = damaged(place, NAMES, Progress())
    assert list(faults) == ["03.jpg", "05.jpg"]
    assert "03.jpg: the image is damaged" in faults["03.jpg"]
    assert "05.jpg: not an image that can be read" in faults["05.jpg"]


# ---- patterns ----------------------------------------------------------------------------------------------


def test_patterns_stand_for_files_in_order(tmp_path):
    for number in (8, 9, 10):
        tar(tmp_path / f"{number}.tar", {f"{number}.jpg": image()})
    for pattern in ("{8..10}.tar", "{8,9,10}.tar"):
        assert open_inputs(f"{tmp_path}/{pattern}").names == ["8.jpg", "9.jpg", "10.jpg"]
    assert open_inputs(f"{tmp_path}/*.tar").names == ["10.jpg", "8.jpg", "9.jpg"]  # as a shell sorts
    assert open_inputs([tmp_path / "9.tar", tmp_path / "8.tar"]).names == ["9.jpg", "8.jpg"]
    assert braces("{08..10}{a,b}") == ["08a", "08b", "09a", "09b", "10a", "10b"]
    assert braces("{plain}") == ["{plain}"]


def test_a_missing_shard_is_named(tmp_path):
    tar(tmp_path / "000.tar", {"a.jpg": image()})
    message = refused(f"{tmp_path}/{{000..002}}.tar")
    assert "2 of 3 files are missing" in message
    assert "001.tar" in message
    assert refused(tmp_path / "none.tar").endswith("none.tar: no such file")
    assert "no file fits this pattern" in refused(f"{tmp_path}/x*.tar")
    assert "counts upwards" in refused(f"{tmp_path}/{{9..0}}.tar")


def test_a_folder_of_shards_says_how_to_give_them(tmp_path):
    tar(tmp_path / "000.tar", {"a.jpg": image()})
    assert f"give '{tmp_path}/*.tar'" in refused(tmp_path)


def test_paths_in_memory_are_named_as_they_are_written(folder):
    paths = [folder / "01.jpg", folder / "00.jpg"]
    assert open_inputs(paths).names == [str(path) for path in paths]
    with pytest.raises(InputError, match="the list of images is empty"):
        open_inputs([])


# ---- archives ----------------------------------------------------------------------------------------------


def test_names_are_paths_inside(tmp_path):
    path = tar(tmp_path / "a.tar", {"./deep/a.jpg": image(), "b.jpg": image(), "notes.txt": b"x"})
    found = open_source(path)
    assert (found.names, found.unread) == (["deep/a.jpg", "b.jpg"], ["notes.txt"])
    assert open_inputs(path, names=["./b.jpg"]).names == ["./b.jpg"]
    assert "not named by a path inside" in refused(path, ["../b.jpg"])
    assert "notes.txt: not an image by its name" in refused(path, ["notes.txt"])
    tar(path, {"b\udcff.jpg": image()})
    assert r"the name 'b\udcff.jpg' is not UTF-8" in refused(path)


def test_a_name_in_two_shards_is_refused(tmp_path):
    for number in (0, 1):
        tar(tmp_path / f"{number}.tar", {f"own{number}.jpg": image(), "both.jpg": image(number)})
    message = refused(f"{tmp_path}/*.tar")
    assert message.startswith('the image "both.jpg" is in ')
    assert "0.tar and in" in message
    assert "1.tar; a name must belong to one image" in message


def test_a_cut_off_tar_names_the_image(tmp_path):
    """The last image that began counts as damaged; those behind it are missing."""
    names = ["a.jpg", "b.jpg", "c.jpg"]
    path = tar(tmp_path / "a.tar", {name: image(number) for number, name in enumerate(names)})
    content = path.read_bytes()
    step = 512 + -(-len(image()) // 512) * 512
    path.write_bytes(content[: step + 512 + 100])
    assert open_inputs(path).names == ["a.jpg", "b.jpg"]
    found = open_inputs(path).pictures
    found.checksum(0)
    for call in (found.checksum, found.open):
        with pytest.raises(InputError, match=r"a\.tar: b\.jpg: the archive is cut off: 100 of [\d,]+ bytes"):
            call(1)
    assert list(damaged(path, names, Progress())) == ["b.jpg"]
    assert "1 of 3 labelled images are missing: c.jpg" in refused(path, names)
    for cut in (step + 100, 100, step, 3 * step):  # in a header, before one, before the end
        path.write_bytes(content[:cut])
        assert refused(path, names).endswith("a.tar: the archive is cut off: its end is missing")


def test_what_is_no_archive_is_one_sentence(tmp_path):
    for ending in ("tar", "zip", "parquet", "arrow"):
        (tmp_path / f"a.{ending}").write_bytes(b"something else" * 100)
        assert refused(tmp_path / f"a.{ending}").startswith(f"{tmp_path}/a.{ending}: ")
    (tmp_path / "a.tar.gz").write_bytes(b"")
    assert "unpack it to a plain .tar" in refused(tmp_path / "a.tar.gz")
    (tmp_path / "empty.tar").write_bytes(b"\0" * 10240)
    assert "there are no images in it" in refused(tmp_path / "empty.tar")


def test_a_damaged_zip_names_the_image(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", image())
        archive.writestr("b.jpg", image(9), zipfile.ZIP_LZMA)
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    found = open_inputs(path).pictures
    with pytest.raises(InputError, match=r"a\.zip: a\.jpg: .* another checksum"):
        found.checksum(0)
    with pytest.raises(InputError, match=r"a\.zip: b\.jpg: the image is packed by method 14, which is not"):
        found.open(1)


# ---- tables ------------------------------------------------------------------------------------------------


def test_columns_are_chosen_or_asked_for(tmp_path):
    path = tmp_path / "a.parquet"
    both = {"photo": [image()], "mask": [image(9)], "id": [7], "file_name": ["a"]}
    pq.write_table(pa.table(both), path)
    assert "has several columns of bytes (photo, mask)" in refused(path)
    assert "several columns that may be names (file_name, id)" in refused(f"{path}#image=photo")
    assert open_inputs(f"{path}#image=mask,name=id").names == ["7"]
    assert 'has no column "idd"; did you mean "id"?' in refused(f"{path}#image=mask,name=idd")
    assert '"nme" is no column to be told; did you mean "name"?' in refused(f"{path}#nme=id")
    assert "what follows # is such as name=COLUMN" in refused(f"{path}#name")


def test_a_column_of_another_type_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [[1, 2]], "name": ["a"]}), path)
    assert "no column has the bytes of images or their paths, but it has image: list" in refused(path)
    assert 'the column "image" has list<element: int64>, not the bytes' in refused(f"{path}#image=image")
    pq.write_table(pa.table({"image": [image()], "name": [0.5]}), path)
    assert 'the column "name" has double, which is no name of an image' in refused(path)
    pq.write_table(pa.table({"image": [image()]}), path)
    assert "has no column of names; say which" in refused(path)
    pq.write_table(
        pa.table({"image": [{"bytes": image(), "path": None}, {"bytes": image(), "path": "a"}]}), path
    )
    assert '1 of 2 rows have no name in "image.path"' in refused(path)
    other = tmp_path / "b.parquet"
    pq.write_table(pa.table({"image": [{"bytes": image(), "path": "b"}]}), path)
    pq.write_table(pa.table({"image": ["b.jpg"]}), other)
    assert 'b.parquet: the column "image" has string, not the bytes' in refused(f"{tmp_path}/*.parquet")


def test_rows_without_bytes_and_names_that_come_twice(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [image(), None], "name": ["a", "b"]}), path)
    with pytest.raises(InputError, match=r"a\.parquet: b: the table has no bytes of this image"):
        open_inputs(path).pictures.open(1)
    (tmp_path / "b.jpg").write_bytes(image(200))
    rows = [{"bytes": image(), "path": "a.jpg"}, {"bytes": None, "path": "b.jpg"}]
    pq.write_table(pa.table({"image": [*rows, {"bytes": None, "path": "c.jpg"}]}), path)
    found = open_inputs(path).pictures  # the others are beside the table
    assert found.open(1).getpixel((0, 0))[0] > 150
    with pytest.raises(InputError, match=r"c\.jpg: no such image"):
        found.open(2)
    pq.write_table(pa.table({"image": [image(), image()], "name": ["a", "a"]}), path)
    assert f'the image "a" is twice in {path}' in refused(path)


def test_lists_say_what_they_lack(tmp_path):
    (tmp_path / "a.txt").write_text("b.jpg\n\nsub/c.jpg\n")
    found = open_source(tmp_path / "a.txt")
    assert found.names == ["b.jpg", "sub/c.jpg"]
    assert found.where(1) == f"{tmp_path}/sub/c.jpg"  # beside the list
    with pytest.raises(InputError, match=r"b\.jpg: no such image"):
        open_inputs(tmp_path / "a.txt").pictures.open(0)
    (tmp_path / "a.csv").write_text("file,label\nb.jpg,cat\n")
    assert "has no column path or image, but file, label; say which" in refused(tmp_path / "a.csv")
    assert open_inputs(f"{tmp_path}/a.csv#path=file,name=file").names == ["b.jpg"]
    (tmp_path / "a.csv").write_text("image\nb.jpg\nb.jpg\n")
    assert 'the image "b.jpg" is twice in' in refused(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("image,path\nb.jpg\n")
    assert "row 2 has 1 cells, not 2" in refused(tmp_path / "a.csv")
