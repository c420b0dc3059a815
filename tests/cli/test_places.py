"""Every command gives the same files to the last byte, wherever the images are."""

import html
import re
import shlex
import shutil
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from tertium.cli import main
from tertium.training.checkpoints import Checkpoints
from tests.data.keeping import kept_as

COUNT = 24
NETWORK = ["backbone=test_resnet", "weights=random", "image_size=32", "seed=1"]
PLACES = ["list", "tar", "zip", "parquet of hugging face", "arrow", "memory://"]


def call(*words):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["tertium", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, words


def _shown(place):
    """How a page has a place in the command that made it."""
    return html.escape(shlex.quote(str(place))).replace("&#x27;", "&#39;")


class Work:
    """What commands write, in a folder of its own for each place."""

    def __init__(self, base):
        self.folder, self.labels, self.run = base / "photos", base / "labels.csv", base / "run"
        self.names = sorted(path.name for path in self.folder.glob("*.png"))

    def features(self, place, out):
        call("features", "--images", place, "--out", out / "x.npy", "--backbone", "test_resnet",
             "--weights", "random", "--image-size", 32, "--labels", self.labels)  # fmt: skip

    def train(self, place, out):
        call("train", "--labels", self.labels, "--images", place, "--out", out / "r", "epochs=2", *NETWORK)
        shutil.copy(out / "r" / "model.safetensors", out / "model.safetensors")
        for name in ("validation", "images"):
            with np.load(out / "r" / f"{name}.npz") as kept:
                for key in set(kept) - {"run"}:  # which knows where its images are
                    np.save(out / f"{name}-{key}.npy", kept[key])
        shutil.rmtree(out / "r")

    def train_all(self, place, out):
        call("train", "--labels", self.labels, "--images", place, "--out", out / "r", "protocol=finetune",
             "epochs=1", "--skip-damaged", "workers=1", *NETWORK)  # fmt: skip
        shutil.copy(out / "r" / "model.safetensors", out / "model.safetensors")
        shutil.rmtree(out / "r")

    def predict(self, place, out):
        call("predict", self.run, "--images", place, "--out", out / "all.csv", "--skip-damaged")
        call("predict", self.run, "--images", place, "--labels", self.labels, "--out", out / "some.csv")

    def evaluate(self, place, out):
        call("evaluate", self.run, "--images", place, "--labels", self.labels, "--out", out / "e.json")

    def complete(self, place, out):
        call("complete", self.run, "--images", place, "--labels", self.labels, "--out", out / "c.csv")

    def suggest(self, place, out):
        call("suggest", self.run, "--images", place, "--labels", self.labels, "--out", out / "q.csv",
             "--budget", 5)  # fmt: skip

    def explain(self, place, out):
        call("explain", self.run, *self.names[:2], "--images", place, "--out", out / "maps", "--top", 1)

    def report(self, place, out):
        call("report", self.run, "--images", place, "--labels", self.labels, "--out", out / "page.html")
        page = (out / "page.html").read_text()
        assert "data:image/jpeg" in page
        (out / "page.html").write_text(page.replace(_shown(place), "PLACE").replace(str(out), "OUT"))

    def review(self, place, out):
        def seen(app, _):
            client = TestClient(app, base_url="http://127.0.0.1:8765")
            (out / "image.jpg").write_bytes(client.get("/image/3").content)
            (out / "thumb.jpg").write_bytes(client.get("/thumb/5").content)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tertium.web.reviewing.app.serve", seen)
            call("review", self.run, "--images", place, "--labels", self.labels, "--budget", 5, "--port", 0,
                 "--answers", out / "answers.sqlite")  # fmt: skip
        for path in out.glob("answers.sqlite*"):
            path.unlink()


COMMANDS = ["features", "train", "train_all", "predict", "evaluate", "complete", "suggest", "explain",
            "report", "review"]  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    base = tmp_path_factory.mktemp("places")
    call("scenes", base / "photos", "--count", COUNT)
    lines = (base / "photos" / "labels.csv").read_text().splitlines()
    # In another order than the images, and without some of them.
    (base / "labels.csv").write_text("\n".join([lines[0], *reversed(lines[1:-3])]) + "\n")
    found = Work(base)
    call(
        "train", "--labels", found.labels, "--images", found.folder, "--out", found.run, "epochs=2", *NETWORK
    )
    return found


@pytest.fixture(scope="module")
def from_folder(work, tmp_path_factory):
    """What each command writes if the images are in a folder."""
    found = {}

    def of(command):
        if command not in found:
            found[command] = written(work, command, work.folder, tmp_path_factory.mktemp(command))
        return found[command]

    return of


@pytest.fixture(scope="module")
def places(work, tmp_path_factory):
    made = {}
    memory = fsspec.filesystem("memory")

    def of(way):
        if way not in made:
            to = tmp_path_factory.mktemp("kept")
            made[way] = kept_as("tar" if way == "memory://" else way, work.folder, work.names, to)
            if way == "memory://":
                memory.put(str(to), "/kept", recursive=True)
                made[way] = made[way].replace(str(to), "memory://kept")
        return made[way]

    yield of
    if memory.exists("/kept"):
        memory.rm("/kept", recursive=True)


def written(work, command, place, out):
    getattr(work, command)(place, out)
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("way", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_as_from_a_folder(command, way, work, places, from_folder, tmp_path):
    wanted = from_folder(command)
    assert wanted
    found = written(work, command, places(way), tmp_path)
    assert found.keys() == wanted.keys()
    for name, content in wanted.items():
        assert found[name] == content, name


def test_no_output_replaces_an_archive(work, tertium, tmp_path):
    place = kept_as("parquet of hugging face", work.folder, work.names, tmp_path)
    before = (tmp_path / "hf.parquet").read_bytes()
    for given in (place, f"{tmp_path}/*.parquet"):
        code, _, errors = tertium("predict", work.run, "--images", given, "--out", place, "--overwrite")
        assert (code, "is an input, and would be replaced" in errors) == (2, True)
    assert (tmp_path / "hf.parquet").read_bytes() == before


def test_a_run_on_shards_is_killed_and_goes_on(work, places, tertium, tmp_path, monkeypatch):
    """With a wide table: what is left comes to the same model as an uninterrupted run on the folder."""
    wide = tmp_path / "wide.csv"
    call("publish", "--labels", work.labels, "--to", "wide", "--out", wide)
    meaning = ["--positive", "1", "--negative", "0", "--unknown", ""]
    every = ["protocol=finetune", "epochs=2", "batch_size=8", "checkpoint_minutes=0", "workers=0", *NETWORK]
    call("train", "--labels", work.labels, "--images", work.folder, "--out", tmp_path / "whole", *every)
    shards = shutil.copytree(Path(places("tar")).parent, tmp_path / "shards")
    place, save = f"{shards}/{{000..004}}.tar", Checkpoints.save
    saved = []

    def once(self, *parts):
        save(self, *parts)
        saved.append(1)
        if len(saved) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", once)
        tertium("train", "--labels", wide, *meaning, "--images", place, "--out", tmp_path / "cut", *every)
    assert not (tmp_path / "cut" / "summary.json").exists()
    (shards / "002.tar").rename(shards / "away.tar")
    code, _, errors = tertium("train", "--resume", tmp_path / "cut")
    assert (code, "1 of 5 files are missing" in " ".join(errors.split())) == (2, True)
    (shards / "away.tar").rename(shards / "002.tar")
    _, said, _ = tertium("train", "--resume", tmp_path / "cut")
    assert "Next: tertium predict" in " ".join(said.split())
    assert _model(tmp_path / "cut") == _model(tmp_path / "whole")
    for name in ("cut", "whole"):
        where = place if name == "cut" else work.folder
        call("predict", tmp_path / name, "--images", where, "--out", tmp_path / f"{name}.csv")
    assert (tmp_path / "cut.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    for name, words in (("w", [wide, *meaning]), ("l", [work.labels])):
        given = ["--labels", *words, "--images", place]
        call("evaluate", tmp_path / "cut", *given, "--out", tmp_path / f"{name}.json")
        call("complete", tmp_path / "cut", *given, "--out", tmp_path / f"{name}.parquet")
    for ending in ("csv", "parquet"):
        assert (tmp_path / f"w.{ending}").read_bytes() == (tmp_path / f"l.{ending}").read_bytes()


def _model(run):
    return (run / "model.safetensors").read_bytes()


def test_other_images_under_the_same_names_are_not_gone_on_with(work, places, tertium, tmp_path, monkeypatch):
    shards = shutil.copytree(Path(places("tar")).parent, tmp_path / "shards")
    save = Checkpoints.save

    def once(self, *parts):
        save(self, *parts)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", once)
        tertium("train", "--labels", work.labels, "--images", f"{shards}/*.tar", "--out", tmp_path / "cut",
                "checkpoint_minutes=0", *NETWORK)  # fmt: skip
    first, second = work.names[:2]
    altered = tmp_path / "photos"
    shutil.copytree(work.folder, altered)
    shutil.copy(work.folder / second, altered / first)
    shutil.rmtree(shards)
    kept_as("tar", altered, work.names, tmp_path)
    code, _, errors = tertium("train", "--resume", tmp_path / "cut")
    assert (code, "are not those that the run began with" in " ".join(errors.split())) == (2, True)


def test_a_pattern_without_quotes_says_so(work, places, tertium, tmp_path):
    shards = sorted(Path(places("tar")).parent.glob("*.tar"))
    code, _, errors = tertium("train", "--labels", work.labels, "--images", *shards, "--out", tmp_path / "r")
    assert code == 2
    assert 'is a file, not a setting: put patterns such as "*.tar" in quotes' in " ".join(errors.split())


@pytest.mark.parametrize(
    "words",
    ["features --out {out}/x.npy", "train --out {out}/r", "predict {run} --out {out}/p.csv",
     "evaluate {run} --out {out}/e.json", "complete {run} --out {out}/c.csv",
     "suggest {run} --out {out}/q.csv", "report {run} --out {out}/page.html"],
)  # fmt: skip
def test_a_shard_that_is_cut_off_leaves_nothing_half_written(words, work, places, tertium, tmp_path):
    shards = shutil.copytree(Path(places("tar")).parent, tmp_path / "shards")
    last = shards / "004.tar"
    last.write_bytes(last.read_bytes()[:-20_000])
    out = tmp_path / "out"
    out.mkdir()
    given = words.format(out=out, run=work.run).split()
    code, _, errors = tertium(*given, "--labels", work.labels, "--images", f"{shards}/*.tar")
    assert code == 2
    assert "004.tar: the archive is cut off: its end is missing" in " ".join(errors.split())
    assert list(out.rglob("*")) == []


def _spoilt(how, work, shards):
    """Return the labels and the place of images of which something is wrong."""
    place = f"{shards}/{{000..004}}.tar"
    if how == "a shard is missing":
        (shards / "002.tar").unlink()
    elif how == "a name is in two shards":
        shutil.copy(shards / "001.tar", shards / "003.tar")
    elif how == "no shard holds a name":
        labels = shards / "labels.csv"
        labels.write_text(work.labels.read_text() + "nowhere.png,moon\n")
        return labels, place
    elif how == "a column has another type":
        table = pa.table({"image": list(range(len(work.names))), "name": work.names})
        pq.write_table(table, shards / "images.parquet")
        return work.labels, f"{shards}/images.parquet#image=image"
    return work.labels, place


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("a shard is missing", r"\{000\.\.004\}\.tar: 1 of 5 files are missing: .*002\.tar$"),
        (
            "a name is in two shards",
            r'image "[\w.-]+" is in .*001\.tar and in .*003\.tar; a name must belong to one image$',
        ),
        ("no shard holds a name", r"1 of 22 labelled images are missing: nowhere\.png$"),
        ("a column has another type", r'the column "image" has int64, not the bytes of images$'),
    ],
)
@pytest.mark.parametrize("command", ["train", "features"])
def test_spoilt_places_are_one_sentence(command, how, sentence, work, places, tertium, tmp_path):
    shards = shutil.copytree(Path(places("tar")).parent, tmp_path / "shards")
    labels, place = _spoilt(how, work, shards)
    code, _, errors = tertium(command, "--labels", labels, "--images", place, "--out", tmp_path / "r.npy")
    assert (code, list(tmp_path.iterdir())) == (2, [shards])
    assert re.search(sentence, " ".join(errors.split())), errors
