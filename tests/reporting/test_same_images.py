"""Figures of different images never stand in one chart or table, and two runs are compared on the same."""

import csv

import numpy as np
import pytest

from tertium import better, report, train
from tertium.labels import Labels
from tertium.reporting.figures import _panels, charts
from tertium.reporting.runs import read_runs
from tertium.runs import RunFolder

PLAN = {"method": "ignore", "epochs": 2, "lr": 0.01}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that validate the same images, the second with more labels; one of another seed."""
    folder = tmp_path_factory.mktemp("same")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 6)).astype(np.float32)
    full = np.where(features[:, :3] > 0.2, 1, -1)
    names = [f"{number}.jpg" for number in range(400)]
    few = Labels.from_dense(full * (rng.random(full.shape) < 0.3), classes=["a", "b", "c"], images=names)
    many = Labels.from_dense(full, classes=["a", "b", "c"], images=names)
    for name, labels, seed in (("first", few, 0), ("second", many, 0), ("other", few, 1)):
        train(labels, features=features, out=folder / name, seed=seed, **PLAN)
    return folder


def shown(folder, *names):
    return read_runs([RunFolder.open(folder / name) for name in names], [None] * len(names))


def test_a_run_says_which_images_validated(runs):
    found = {name: RunFolder.open(runs / name).summary()["validation_set"] for name in ("first", "second")}
    assert found["first"] == found["second"]
    assert found["first"] != RunFolder.open(runs / "other").summary()["validation_set"]


def test_runs_of_other_validation_images_have_panels_of_their_own(runs):
    together, apart = shown(runs, "first", "second"), shown(runs, "first", "other", "second")
    assert [len(group) for _, group in _panels(together, lambda run: run.validated)] == [2]
    groups = [[run.name for run in group] for _, group in _panels(apart, lambda run: run.validated)]
    assert groups == [["first", "second"], ["other"]]
    one, two = charts(together), charts(apart)
    for kind in ("validation", "precisions", "recall", "calibration"):
        assert (len(one[kind]), len(two[kind])) == (1, 2), kind
    assert len(two["losses"]) == 1  # a loss is of training images


def test_the_page_says_why(runs, tmp_path):
    page = report([runs / "first", runs / "other"], out=tmp_path / "report.html").read_text()
    text = " ".join(page.split())
    assert "The runs do not all validate the same images: first / other." in text
    assert "other validation images than above" in text
    assert "is in the file, since it was found on other images" in text
    assert "AP in&nbsp;%: other" not in page.replace("<wbr>", "")
    page = report([runs / "first", runs / "second"], out=tmp_path / "report.html", title="x").read_text()
    assert "do not all validate" not in page
    assert "AP in&nbsp;%: second" in page.replace("<wbr>", "")


def test_two_runs_have_a_panel_that_compares_them(runs, tmp_path):
    page = tmp_path / "report.html"
    report([runs / "first", runs / "second"], out=page)
    found = better(runs / "first", runs / "second").paired
    text = page.read_text()
    assert "Did it get better?" in text
    assert f"on the same {found.images} images." in text
    with open(tmp_path / "report-better.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["class"] for row in rows] == [each.name for each in found.classes]
    assert float(rows[0]["difference"]) == pytest.approx(found.classes[0].ap.gain)
    assert {row["run"] for row in rows} == {"second"}
    report([runs / "first"], out=page)
    assert "Did it get better?" not in page.read_text()
    assert not (tmp_path / "report-better.csv").exists()
