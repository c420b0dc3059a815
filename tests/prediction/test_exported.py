"""An exported model in use: without torch, in the order of the inputs, a bounded number of them at a time."""

import hashlib
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from PIL import Image

from tertium.data import inputs as door
from tertium.data.inputs import Inputs
from tertium.errors import InputError
from tertium.models.onnx_session import seal
from tertium.prediction.exported import Exported
from tertium.progress import Progress

CLASSES = ["red", "green", "blue"]
SAID = {
    "tertium_format": "2",
    "classes": '["red", "green", "blue"]',
    "thresholds": "[0.5, 0.5, 0.5]",
    "weights": "0123456789abcdef",
    "run": "first",
}


def write_model(path, nodes, kind, shape, **changed):
    """Write a small graph with the metadata of an export."""
    values = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [*nodes, onnx.helper.make_node("Sigmoid", ["logits"], ["probabilities"])],
        "small",
        [values("images" if len(shape) > 2 else "features", kind, shape)],
        [values("probabilities", onnx.TensorProto.FLOAT, ["batch", 3])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    said = SAID | {"image_size": str(shape[1] if len(shape) > 2 else 0), "width": "3"} | changed
    onnx.helper.set_model_props(model, {key: value for key, value in said.items() if value is not None})
    onnx.save(model, path)
    seal(path)
    return path


def mean_colour(path, size=8, **changed):
    """A model of images whose logits are their mean colour, 0 … 255, less 128."""
    nodes = [
        onnx.helper.make_node("Cast", ["images"], ["numbers"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Constant", [], ["axes"], value_ints=[1, 2]),
        onnx.helper.make_node("ReduceMean", ["numbers", "axes"], ["means"], keepdims=0),
        onnx.helper.make_node("Constant", [], ["half"], value_float=128.0),
        onnx.helper.make_node("Sub", ["means", "half"], ["logits"]),
    ]
    return write_model(path, nodes, onnx.TensorProto.UINT8, ["batch", size, size, 3], **changed)


def as_they_are(path, **changed):
    """A model of features whose logits they are."""
    nodes = [onnx.helper.make_node("Identity", ["features"], ["logits"])]
    return write_model(path, nodes, onnx.TensorProto.FLOAT, ["batch", 3], **changed)


def sigmoid(value):
    return 1 / (1 + np.exp(-np.asarray(value, dtype=np.float64)))


class Watch(Progress):
    def __init__(self):
        self.said = []

    def start(self, what, total, unit):
        self.said.append((what, total, unit))

    def advance(self, count=1):
        self.said.append(count)


# ---- what is run -----------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path, rng):
    """150 photos, of which each has a colour of its own."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(150):
        Image.new("RGB", (9, 7), (number, 255 - number, 128)).save(folder / f"{number:03d}.png")
    return folder


def test_images_in_order(tmp_path, photos):
    model = Exported.load(mean_colour(tmp_path / "m.onnx"))
    inputs = model.inputs(photos, None, None)
    watch = Watch()
    blocks = list(model.stream(inputs, watch))
    number = np.arange(150)
    wanted = sigmoid(np.stack([number, 255 - number, np.full(150, 128)], axis=1) - 128)
    np.testing.assert_allclose(np.concatenate(blocks), wanted, atol=1e-6)
    assert inputs.names == [f"{row:03d}.png" for row in range(150)]
    assert watch.said == [("predicting", 150, "images"), *[16] * 9, 6]


def test_no_more_is_decoded_than_a_few_batches_ahead(tmp_path):
    opened = []

    class Pictures:
        def __len__(self):
            return 1000

        def open(self, row):
            opened.append(row)
            return Image.new("RGB", (8, 8))

        def select(self, rows):
            return self

    model = Exported.load(mean_colour(tmp_path / "m.onnx"))
    before = threading.active_count()
    blocks = model.stream(Inputs([str(row) for row in range(1000)], Pictures(), None))
    for number in range(4):
        next(blocks)
        assert len(opened) <= 16 * number + 64
    blocks.close()
    assert threading.active_count() == before
    assert len(opened) < 150


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_in_windows(tmp_path, rng, monkeypatch, dtype):
    monkeypatch.setattr(door, "_WINDOW", 2 * 256 * 3 * 8)
    features = rng.normal(size=(1300, 3)).astype(dtype)
    for order in ("C", "F"):
        np.save(tmp_path / "x.npy", np.asarray(features, order=order))
        model = Exported.load(as_they_are(tmp_path / "m.onnx"))
        inputs = model.inputs(None, tmp_path / "x.npy", None)
        found = np.concatenate(list(model.stream(inputs)))
        np.testing.assert_allclose(found, sigmoid(features), atol=1e-6)


def test_nothing_to_predict(tmp_path):
    np.save(tmp_path / "x.npy", np.empty((0, 3), dtype=np.float32))
    model = Exported.load(as_they_are(tmp_path / "m.onnx"))
    inputs = model.inputs(None, tmp_path / "x.npy", None)
    assert inputs.names == []
    assert list(model.stream(inputs)) == []


def test_a_damaged_image_is_named_and_what_was_predicted_is_kept(tmp_path, photos, tertium):
    (photos / "077.png").write_bytes((photos / "077.png").read_bytes()[:45])
    out = tmp_path / "out" / "p.csv"
    out.parent.mkdir()
    code, _, err = tertium("predict", mean_colour(tmp_path / "m.onnx"), "--images", photos, "--out", out)
    assert code == 2
    assert "077.png: the image is damaged" in " ".join(err.split())
    assert [path.name for path in out.parent.iterdir()] == ["p.csv.partial"]  # to go on, without that image


WITHOUT = """
import sys
from tertium.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(sorted({"torch", "timm", "lightning"} & set(sys.modules)))
"""


def test_predicting_needs_no_torch(tmp_path, photos):
    labels = tmp_path / "labels.csv"
    labels.write_text("image,split,present\n001.png,a,red\n002.png,b,red\n")
    words = ["--images", photos, "--labels", labels, "--split", "b", "--out", tmp_path / "p.parquet"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "predict", mean_colour(tmp_path / "m.onnx"), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"1 image × 3 classes → {tmp_path / 'p.parquet'}", "[]"]
    assert (tmp_path / "p.parquet").stat().st_size


# ---- what cannot be used ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"tertium_format": None}, "not one that `tertium export --to onnx` wrote"),
        ({"tertium_format": "1"}, "of format 1, which this version of Tertium cannot read"),
        ({"classes": '["red"'}, "damaged"),
        ({"classes": '["red", "green"]'}, "damaged"),
        ({"thresholds": "[0.5, 0.5]"}, "damaged"),
        ({"thresholds": '["high", 0.5, 0.5]'}, "damaged"),
        ({"width": "4"}, "damaged"),
        ({"image_size": "8"}, "damaged"),
        ({"image_size": None}, "damaged"),
    ],
)
def test_a_file_that_says_wrong_things_of_itself(tmp_path, changed, complaint):
    with pytest.raises(InputError, match=f"m.onnx: .*{complaint}"):
        Exported.load(as_they_are(tmp_path / "m.onnx", **changed))


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        Exported.load(tmp_path / "m.onnx")
    whole = as_they_are(tmp_path / "m.onnx").read_bytes()
    for damaged in (b"", b"GIF89a", whole[: len(whole) // 2]):
        (tmp_path / "m.onnx").write_bytes(damaged)
        with pytest.raises(InputError, match=r"m\.onnx: "):
            Exported.load(tmp_path / "m.onnx")


def test_a_file_in_which_any_byte_changed_is_refused(tmp_path):
    path = as_they_are(tmp_path / "m.onnx")
    whole = path.read_bytes()
    assert Exported.load(path).running.get_modelmeta().custom_metadata_map["tertium_sha256"] == (
        hashlib.sha256(whole[:-84]).hexdigest()
    )
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"m\.onnx: "):
            Exported.load(path)
    path.write_bytes(whole)
    onnx.save(onnx.load(path), path)  # another tool may have changed anything; here, only the order
    assert Exported.load(path)
    model = onnx.load(path)
    model.graph.name = "other"
    onnx.save(model, path)
    with pytest.raises(InputError, match="was changed after it was written, or is damaged; export it again"):
        Exported.load(path)
    path.write_bytes(whole[:-84])
    with pytest.raises(InputError, match="has no checksum, so it was changed or is damaged"):
        Exported.load(path)


def test_inputs_that_do_not_fit(tmp_path, photos):
    model = Exported.load(mean_colour(tmp_path / "m.onnx"))
    np.save(tmp_path / "x.npy", np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(InputError, match="trained on images; give images"):
        model.inputs(None, tmp_path / "x.npy", None)
    with pytest.raises(InputError, match="give either images or features"):
        model.inputs(photos, tmp_path / "x.npy", ["a"])
    with pytest.raises(InputError, match="no such folder"):
        model.inputs(tmp_path / "none", None, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images in it"):
        model.inputs(tmp_path / "empty", None, None)
    with pytest.raises(InputError, match=r"1 of 2 labelled images are missing: 999\.png"):
        model.inputs(photos, None, ["001.png", "999.png"])
