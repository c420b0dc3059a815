"""CVAT: tags of whole images, read and written."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

import tertium as package
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.formats.cvat import read

XML = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>3</id><name>first</name><labels>
    <label><name>cat</name><color>#fff</color><type>tag</type><attributes><attribute><name>tail</name>
      <values>yes</values></attribute></attributes></label>
    <label><name>dog &amp; co</name><type>any</type><attributes></attributes></label>
    <label><name>wheel</name><type>rectangle</type></label>
  </labels></task><dumped>2024</dumped></meta>
  <image id="0" name="0012.jpg" subset="train" width="9" height="9">
    <tag label="cat" source="manual"><attribute name="tail">yes</attribute></tag>
    <tag label="dog &amp; co" source="auto"></tag>
    <box label="wheel" xtl="1" ytl="1" xbr="2" ybr="2"></box>
  </image>
  <image id="1" name="x/b.jpg" subset="test" width="9" height="9"><tag label="cat"/></image>
  <image id="2" name="c.jpg" subset="test" width="9" height="9"></image>
</annotations>
"""


def sample(folder):
    """Write a file for the checks that all formats share."""
    (folder / "annotations.xml").write_text(XML)


def dense(found):
    return dict(zip(found.labels.images.to_pylist(), found.labels.dense().tolist(), strict=True))


def test_tags(tmp_path):
    sample(tmp_path)
    path = tmp_path / "annotations.xml"
    found = read(path)
    assert found.labels.classes == ("cat", "dog & co")
    assert dense(found) == {"0012.jpg": [1, 1], "x/b.jpg": [1, 0], "c.jpg": [0, 0]}
    assert found.notes[0] == "1 boxes and other shapes are left out; only tags are read"
    assert found.labels.part("test").images.to_pylist() == ["x/b.jpg", "c.jpg"]
    assert dense(read(path, unlisted="absent"))["x/b.jpg"] == [1, -1]
    assert dense(read(path, unlisted="absent"))["c.jpg"] == [0, 0]
    assert dense(read(path, unlisted="absent", empty="absent"))["c.jpg"] == [-1, -1]


BAD = {
    "a tag of another label": (
        ('label="cat" source', 'label="cot" source'),
        'called "cot".*did you mean "cat"',
    ),
    "no name": (('name="c.jpg"', ""), "image 3: <image> has no name"),
    "no label": (('<tag label="cat"/>', "<tag/>"), "image 2: <tag> has no label"),
    "an image twice": (("c.jpg", "x/b.jpg"), "an image is there twice: x/b.jpg"),
    "a cut file": (("</annotations>", ""), "not valid XML"),
    "entities": (
        ("<annotations>", '<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;">]><annotations>'),
        "document type",
    ),
    "a video": (("<image id", '<track id="1"></track><image id'), "tracks of a video"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_sentence(tmp_path, name):
    (old, new), sentence = BAD[name]
    assert old in XML
    (tmp_path / "a.xml").write_text(XML.replace(old, new, 1))
    with pytest.raises(InputError, match=sentence) as error:
        read(tmp_path / "a.xml")
    assert str(error.value).startswith(str(tmp_path / "a.xml"))


def test_other_xml_and_no_images(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text("<annotation/>")
    with pytest.raises(InputError, match="the XML is <annotation>; it must be <annotations>"):
        read(path)
    path.write_text("<annotations><version>1.1</version></annotations>")
    with pytest.raises(InputError, match="there are no images in it"):
        read(path)


@pytest.fixture
def full():
    values = np.where(np.random.default_rng(0).random((40, 3)) < 0.4, 1, -1)
    return Labels.from_entries(
        *np.nonzero(np.ones((40, 3))),
        values.reshape(-1),
        classes=["<a>", 'b "c"', "ä"],
        images=[f"f & g/{n}'.jpg" for n in range(40)],
        splits=pa.array(["train", "test"] * 20).dictionary_encode(),
    )


def test_labels_go_out_and_come_back(full, tmp_path):
    out = tmp_path / "tags.xml"
    done = package.publish(full, to="cvat", out=out)
    assert "known to be absent, which cvat cannot say" in done.notes[0]
    assert read(out, unlisted="absent", empty="absent").labels == full
    images = ElementTree.parse(out).getroot().findall("image")
    assert [image.get("id") for image in images] == [str(n) for n in range(40)]


def test_probabilities_are_automatic_tags(tmp_path):
    (tmp_path / "p.csv").write_text("image,cat,dog\na.jpg,0.9,0.25\n")
    done = package.publish(probabilities=tmp_path / "p.csv", to="cvat", out=tmp_path / "o.xml", threshold=0.5)
    assert done.notes == ("cvat has no place for the probabilities; only the classes are listed",)
    (tag,) = ElementTree.parse(tmp_path / "o.xml").getroot().iter("tag")
    assert tag.attrib == {"label": "cat", "source": "auto"}


def test_a_name_that_xml_cannot_hold(tmp_path):
    labels = Labels.from_dense([[1]], classes=["cat\x01"], images=["a"])
    with pytest.raises(InputError, match="a character that XML cannot hold"):
        package.publish(labels, to="cvat", out=tmp_path / "o.xml")
    assert not list(tmp_path.iterdir())


def test_datumaro_reads_what_is_written(full, tmp_path):
    """CVAT itself is a server; Datumaro, which came from it, reads its files."""
    datumaro = pytest.importorskip("datumaro", reason="skipped: no datumaro")
    package.publish(replace(full, splits=None), to="cvat", out=tmp_path / "tags.xml")
    (tmp_path / "images" / "f & g").mkdir(parents=True)  # which it looks for
    for name in full.images.to_pylist():
        (tmp_path / "images" / name).touch()
    found = datumaro.Dataset.import_from(str(tmp_path / "tags.xml"), "cvat")
    names = [label.name for label in found.categories()[datumaro.AnnotationType.label]]
    back = {item.id: {names[tag.label] for tag in item.annotations} for item in found}
    for image, row in zip(full.images.to_pylist(), full.dense(), strict=True):
        expected = {name for name, value in zip(full.classes, row, strict=True) if value > 0}
        assert back[image.removesuffix(".jpg")] == expected
