"""What every reader of a published format does with damaged, missing and differently saved files."""

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tertium.cli import main
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats import (
    arff,
    chexpert,
    cifar,
    coco,
    cole,
    cub,
    cvat,
    fiftyone,
    huggingface,
    labelstudio,
    lvis,
    nuswide,
    openimages,
    voc,
)
from tertium.labels.readers import read_labels
from tertium.labels.reading import Reading
from tests.labels import (
    test_arff,
    test_chexpert,
    test_cifar,
    test_cole_arrays,
    test_cub,
    test_cvat,
    test_fiftyone,
    test_huggingface,
    test_labelstudio,
    test_nuswide,
)

CASES = 300  # damaged copies of each sample


@dataclass(frozen=True)
class Sample:
    """A small valid data set of a format."""

    write: Callable[[Path], object]  # files into a folder
    read: Callable[[Path], Reading]  # from that folder
    keeps: str  # an id or a class that looks like a number and must stay text
    binary: bool = False  # no byte-order mark or line ends
    gzipped: tuple[str, ...] = ()  # files that may be gzipped under the same name
    optional: tuple[str, ...] = ()  # files without which something can be read


def write_json(folder, value):
    (folder / "instances.json").write_text(json.dumps(value, indent=1))


def write_voc(folder):
    for name, text in {"train": "0012\n0003\n", "val": "0004\n"}.items():
        path = folder / "ImageSets" / "Main" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "Annotations").mkdir()
    for stem, names in {"0012": ["cat", "dog"], "0003": ["dog"], "0004": ["cat"]}.items():
        objects = "".join(
            f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin>"
            "<xmax>5</xmax><ymax>6</ymax></bndbox></object>"
            for name in names
        )
        text = (
            f"<annotation>\n<filename>{stem}.jpg</filename>\n<size><width>9</width><height>9</height>"
            f"<depth>3</depth></size>\n{objects}\n</annotation>\n"
        )
        (folder / "Annotations" / f"{stem}.xml").write_text(text)


CATEGORIES = [
    {"id": 1, "name": "cat", "supercategory": "animal"},
    {"id": 7, "name": "0012", "supercategory": "x"},
]
OBJECTS = [
    {"id": 1, "image_id": 5, "category_id": 1, "iscrowd": 0, "area": 2.0, "bbox": [0, 0, 1, 2]},
    {"id": 2, "image_id": 6, "category_id": 7, "iscrowd": 0, "area": 2.0, "bbox": [0, 0, 1, 2]},
]
COCO = {
    "images": [{"id": n, "file_name": f"{n:04}.jpg", "width": 9, "height": 9} for n in (5, 6, 7)],
    "annotations": OBJECTS,
    "categories": CATEGORIES,
}
LVIS = COCO | {
    "images": [
        image
        | {
            "coco_url": f"http://host/val2017/{image['file_name']}",
            "neg_category_ids": [],
            "not_exhaustive_category_ids": [],
        }
        for image in COCO["images"]
    ]
}

OPEN_IMAGES = """ImageID,Source,LabelName,Confidence
0012,verification,/m/0bt9lr,1
0012,verification,/m/01yrx,0
000a,crowdsource-verification,/m/01yrx,1
"""

FORMATS = {
    "cub": Sample(
        lambda folder: test_cub.write(
            folder, images=test_cub.IMAGES.replace("001.Albatross/a_0012.jpg", "0012")
        ),
        lambda folder: cub.read(folder, species=True),
        "0012",
        gzipped=("attributes/image_attribute_labels.txt", "images.txt"),
        optional=("train_test_split.txt",),
    ),
    "nuswide": Sample(
        lambda folder: test_nuswide.write(folder, Concepts81="airport\nanimal\n"),
        nuswide.read,
        "actor/0012_2.jpg",
        gzipped=("Groundtruth/AllLabels/Labels_animal.txt",),
        optional=("ImageList/TrainImagelist.txt", "ImageList/TestImagelist.txt", "_Train.txt", "_Test.txt"),
    ),
    "nuswide in parts": Sample(
        test_nuswide.write,
        lambda folder: nuswide.read(folder, part="split"),
        "actor/0012_2.jpg",
        optional=("Imagelist.txt", "Labels_airport.txt", "Labels_animal.txt"),
    ),
    "cifar100 binary": Sample(
        test_cifar.write_binary,
        cifar.read,
        "train/00000.png",
        binary=True,
        optional=("train.bin", "test.bin"),
    ),
    "cifar100 python": Sample(
        lambda folder: test_cifar.write_pickled(folder, test_cifar.python2),
        cifar.read,
        "train/00000.png",
        binary=True,
        optional=("train", "test"),
    ),
    "chexpert": Sample(
        test_chexpert.write,
        lambda folder: chexpert.read(folder / "train.csv"),
        "0012",
        gzipped=("train.csv",),
    ),
    "cole": Sample(
        test_cole_arrays.write,
        cole.read,
        "0012.jpg",
        binary=True,
        optional=("train_images.npy", "val_images.npy", "train_labels.npy", "val_labels_obs.npy"),
    ),
    "arff dense": Sample(
        lambda folder: test_arff.write(
            folder, test_arff.DENSE.replace("sad", "0012"), test_arff.XML.replace("sad", "0012")
        ),
        lambda folder: arff.read(folder / "data.arff", xml=folder / "data.xml"),
        "0012",
        gzipped=("data.arff", "data.xml"),
    ),
    "arff sparse": Sample(
        lambda folder: (
            test_arff.write(folder, test_arff.SPARSE.replace("relation x", "relation '0012: -C -3'")),
            (folder / "data.arff").write_text(
                (folder / "data.arff")
                .read_text()
                .replace("{red,green}", "{0,1}")
                .replace("green", "1")
                .replace(" b ", " 0012 ")
            ),
            (folder / "data.xml").unlink(),
        ),
        lambda folder: arff.read(folder / "data.arff"),
        "0012",
        gzipped=("data.arff",),
    ),
    "coco": Sample(
        lambda folder: write_json(folder, COCO), lambda folder: coco.read(folder / "instances.json"), "0012"
    ),
    "lvis": Sample(
        lambda folder: write_json(folder, LVIS), lambda folder: lvis.read(folder / "instances.json"), "0012"
    ),
    "openimages": Sample(
        lambda folder: (folder / "train-labels.csv").write_text(OPEN_IMAGES),
        lambda folder: openimages.read([folder / "train-labels.csv"]),
        "0012.jpg",
    ),
    "cvat": Sample(
        test_cvat.sample,
        lambda folder: cvat.read(folder / "annotations.xml", unlisted="absent"),
        "0012.jpg",
        gzipped=("annotations.xml",),
    ),
    "fiftyone": Sample(
        test_fiftyone.sample,
        lambda folder: fiftyone.read(folder, unlisted="absent"),
        "0012.jpg",
        gzipped=("samples.json",),
    ),
    "fiftyone targets": Sample(
        test_fiftyone.sample_of_targets,
        lambda folder: fiftyone.read(folder, unlisted="absent"),
        "0012",
        gzipped=("labels.json",),
    ),
    "huggingface": Sample(
        test_huggingface.sample,
        lambda folder: huggingface.read(folder, column="labels", unlisted="absent"),
        "0012",
        binary=True,
        optional=("dataset_dict.json",),
    ),
    "label-studio": Sample(
        test_labelstudio.sample,
        lambda folder: labelstudio.read(folder / "project.json", unlisted="absent", votes="majority"),
        "0012.jpg",
        gzipped=("project.json",),
    ),
    "voc": Sample(write_voc, voc.read, "0012.jpg", optional=("train.txt", "val.txt", ".xml")),
}


@pytest.fixture(params=FORMATS)
def sample(request):
    return FORMATS[request.param]


@pytest.fixture
def folder(sample, tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    sample.write(place)
    return place


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_optional(sample, path):
    return path.as_posix().endswith(sample.optional) if sample.optional else False


def check(labels):
    """Labels that can be used: kept and read back, with signs only."""
    labels.images.validate(full=True)
    assert set(np.unique(labels.dense())) <= {-1, 0, 1}
    assert Labels.from_arrow(labels.to_arrow()) == labels


def agree(some, whole):
    """Whether labels that both know are the same in both."""
    images = [name for name in some.images.to_pylist() if name in set(whole.images.to_pylist())]
    classes = [name for name in some.classes if name in whole.classes]
    if not images or not classes:
        return True
    one, two = (
        labels.dense(labels.rows_of(images))[:, [labels.column(name) for name in classes]]
        for labels in (some, whole)
    )
    return bool((one * two >= 0).all())


def read_or_refuse(sample, folder):
    """Return labels, or None where an `InputError` of one sentence refuses them; anything else fails."""
    try:
        found = sample.read(folder)
    except InputError:
        return None
    check(found.labels)
    return found.labels


def test_the_sample_is_read_and_numbers_stay_text(sample, folder):
    labels = sample.read(folder).labels
    check(labels)
    assert labels.known
    assert sample.keeps in labels.images.to_pylist() + list(labels.classes)
    assert sample.read(folder).labels == labels


def test_byte_order_mark_and_line_ends(sample, folder):
    if sample.binary:
        pytest.skip("not a text format")
    expected = sample.read(folder).labels
    for path in files(folder):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert sample.read(folder).labels == expected


def test_gzipped_files(sample, folder):
    if not sample.gzipped:
        pytest.skip("not published gzipped")
    expected = sample.read(folder).labels
    for name in sample.gzipped:
        (folder / name).write_bytes(gzip.compress((folder / name).read_bytes()))
    assert sample.read(folder).labels == expected
    for name in sample.gzipped:
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    with pytest.raises(InputError, match=r"damaged|truncated"):
        sample.read(folder)


def test_empty_files(sample, folder):
    for path in files(folder):
        data = path.read_bytes()
        for nothing in (b"", b"\n"):
            path.write_bytes(nothing)
            labels = read_or_refuse(sample, folder)
            assert labels is None or is_optional(sample, path), path
        path.write_bytes(data)


def test_missing_files_and_folders_in_their_place(sample, folder):
    expected = sample.read(folder).labels
    for path in files(folder):
        data = path.read_bytes()
        path.unlink()
        labels = read_or_refuse(sample, folder)
        assert labels is None or (is_optional(sample, path) and agree(labels, expected)), path
        path.mkdir()
        labels = read_or_refuse(sample, folder)
        assert labels is None or is_optional(sample, path), path
        path.rmdir()
        path.write_bytes(data)
    shutil.rmtree(folder)
    assert read_or_refuse(sample, folder) is None
    folder.write_text("a file in place of the folder")
    assert read_or_refuse(sample, folder) is None


def test_cut_files_give_no_wrong_label(sample, folder):
    expected = sample.read(folder).labels
    for path in files(folder):
        data = path.read_bytes()
        cuts = range(len(data)) if len(data) < 400 else np.linspace(1, len(data) - 1, 60).astype(int)
        for cut in cuts:
            path.write_bytes(data[:cut])
            labels = read_or_refuse(sample, folder)
            assert labels is None or agree(labels, expected), (path, cut)
        path.write_bytes(data)


def damage(data, rng):
    """Flip, delete, insert or repeat some bytes."""
    at = int(rng.integers(len(data)))
    size = int(rng.integers(1, 9))
    kind = rng.integers(5)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + size :]
    if kind == 2:
        return data[:at] + rng.bytes(size) + data[at:]
    if kind == 3:
        return data[:at] + data[at : at + size] * 2 + data[at + size :]
    special = [
        b"\n",
        b"\x00",
        b'"',
        b"'",
        b",",
        b" ",
        b"{",
        b"}",
        b"-",
        b"\xff",
        b"\r",
        b"9" * 30,
        b"nan",
        b"1e999",
        b"<!--",
    ]
    return data[:at] + special[int(rng.integers(len(special)))] + data[at:]


def test_damaged_files_give_labels_or_one_sentence(sample, folder):
    rng = np.random.default_rng(0)
    places = files(folder)
    for _ in range(CASES):
        path = places[int(rng.integers(len(places)))]
        data = path.read_bytes()
        path.write_bytes(damage(data, rng))
        read_or_refuse(sample, folder)
        path.write_bytes(data)


COMMANDS = {
    "cub": ("cub", ["cub", "{}", "--species"]),
    "nuswide": ("nuswide", ["nuswide", "{}"]),
    "nuswide in parts": ("nuswide", ["nuswide", "{}", "--part", "split"]),
    "cifar100 binary": ("cifar100", ["cifar100", "{}"]),
    "cifar100 python": ("cifar100", ["cifar100", "{}"]),
    "chexpert": ("chexpert", ["chexpert", "{}/train.csv"]),
    "cole": ("cole", ["cole", "{}"]),
    "arff dense": ("arff", ["arff", "{}/data.arff", "--xml", "{}/data.xml"]),
    "arff sparse": ("arff", ["arff", "{}/data.arff"]),
    "cvat": ("cvat", ["cvat", "{}/annotations.xml", "--unlisted", "absent"]),
    "fiftyone": ("fiftyone", ["fiftyone", "{}", "--unlisted", "absent"]),
    "huggingface": ("huggingface", ["huggingface", "{}", "--column", "labels", "--unlisted", "absent"]),
    "label-studio": (
        "label-studio",
        ["label-studio", "{}/project.json", "--unlisted", "absent", "--contradictions", "majority"],
    ),
}


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tertium", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name, tmp_path, monkeypatch, capsys):
    sample, (command, arguments) = FORMATS[name], COMMANDS[name]
    folder, out = tmp_path / "data", tmp_path / "labels.parquet"
    folder.mkdir()
    sample.write(folder)
    filled = [argument.format(folder) for argument in arguments]
    assert not run(monkeypatch, "convert", *filled, "--out", out)
    expected = sample.read(folder)
    assert read_labels(out) == expected.labels
    assert (tmp_path / "labels.tree.csv").exists() == (expected.tree is not None)
    assert not run(monkeypatch, "describe", out)
    assert not run(monkeypatch, "convert", command, "--help")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Example", "present", "absent", "unknown"))
    shutil.rmtree(folder)
    out.unlink()
    assert run(monkeypatch, "convert", *filled, "--out", out) == 2
    assert "Error: " in capsys.readouterr().err
    assert not out.exists()


def test_commands_import_nothing_heavy():
    code = "import sys, tertium.cli; sys.exit(bool({'numpy', 'pyarrow', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
