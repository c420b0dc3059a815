"""Every command gives the same files to the last byte, wherever the images are."""

import html
import shlex
import shutil
import sys

import fsspec
import pytest
from starlette.testclient import TestClient

from tertium.cli import main
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
        for name in ("model.safetensors", "validation.npz", "images.npz"):
            shutil.copy(out / "r" / name, out / name)
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
