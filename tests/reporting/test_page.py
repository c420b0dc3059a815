"""The report: its numbers are those of the run folders, and it is safe to open."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats
from sklearn.metrics import average_precision_score

from tertium.annotation.record import Annotation
from tertium.cli.demo import run_demo
from tertium.comparing import Comparison, Entry
from tertium.comparing.table import about
from tertium.data.scenes import render
from tertium.errors import InputError
from tertium.files import write_json, write_sealed
from tertium.labelling.prepared import Prepared
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.metrics.evaluation import average_precision, calibration_error, evaluate
from tertium.metrics.scored import Scored
from tertium.models.encoders import pretrained
from tertium.prediction.trained import Trained
from tertium.reporting import Given, write_comparison, write_report
from tertium.reporting.comparison import _fill, _range
from tertium.reporting.figures import _frequencies, _intervals, _scores, _styles, _titles
from tertium.reporting.prior import draw_prior
from tertium.reporting.quality import interval
from tertium.reporting.runs import SHOWN, read_runs, some
from tertium.reporting.svg import COLOURS, drawing
from tertium.runs import RunData, RunFolder
from tertium.training.memorisation import KINDS
from tertium.training.train import train

SCRIPT, AND = "<script>alert(1)</script>", "salt & pepper"
CLASSES = (SCRIPT, AND, "$x_1$", 'id="kite"')


def make_run(
    path: Path, *, scheme: str | None = "single", finished: bool = True, **settings: Any
) -> RunFolder:
    """A run of three epochs, of which the second is the best."""
    folder = RunFolder.create(path)
    counts = {name: {"present": 10**at, "absent": 7 * at} for at, name in enumerate(CLASSES)}
    data = {"labels": None, "training_images": 2345, "validation_images": 78, "classes": counts}
    defaults = {"method": "negative", "parameters": {"positive_weight": 1.0}, "protocol": "linear", "seed": 0}
    folder.write_config(defaults | settings, RunData.from_dict(data | {"scheme": scheme}))
    for epoch, score in enumerate((0.3, 0.5, 0.4), start=1):
        folder.append({"phase": "head", "epoch": epoch, "loss": 1 / epoch, "score": score})
    if finished:
        folder.finish({"validation_score": 0.512345678, "best_epoch": 2, "seconds": 98.76})
    return folder


def add_evaluation(folder: RunFolder, seed: int = 0) -> dict[str, Any]:
    """Scores of random numbers; the last class has no known-absent image."""
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(80).reshape(20, 4) % 3, -1, 1).astype(np.int8)
    labels[:, 3] = np.abs(labels[:, 3])
    found = evaluate(rng.random((20, 4)), labels).to_dict() | {"classes": list(CLASSES)}
    found["unscored"] = [item | {"name": CLASSES[item["column"]]} for item in found["unscored"]]
    write_json(folder.path / "evaluation.json", found)
    return found


@pytest.fixture
def only_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time."""
    monkeypatch.setattr("tertium.reporting.page.charts", lambda runs: defaultdict(list))


def rows_of(page: Path) -> dict[str, dict[str, str]]:
    return {row["run"]: row for row in table_of(page)}


def table_of(page: Path, kind: str = "") -> list[dict[str, str]]:
    with open(page.with_name(f"{page.stem}{kind}.csv"), newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class Reader(HTMLParser):
    """The cells of each table row, and the tags, ids and references of the page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.cell = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")
        ]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag: str) -> None:
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row and row[0].split(" (")[0] == name)


@pytest.mark.usefixtures("only_words")
def test_numbers_are_those_of_the_run_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", parameters={"positive_weight": 5.0})
    found = add_evaluation(run)
    page = write_report(tmp_path / "report.html", [run], title="Report")
    figures = [f"{100 * found[key]:.1f}" for key in ("map_c", "map_o", "mF1")]
    cells = Reader(page).row("a")
    assert cells[:2] == ["a", "negative (positive_weight=5.0)"]
    assert cells[3:8] == [figures[0], "3 of 4", *figures[1:], f"{100 * found['ece']:.1f}"]
    assert cells[8:] == ["–", "51.2", "–", "2", "98.8"]
    row = rows_of(page)["a"]
    assert [float(row[key]) for key in ("map_c", "map_o", "mF1")] == [
        found[key] for key in ("map_c", "map_o", "mF1")
    ]
    assert float(row["validation_score"]) == 0.512345678
    assert float(row["seconds"]) == 98.76
    assert (row["scheme"], row["method"], row["scored"], row["test_classes"]) == (
        "single",
        "negative",
        "3",
        "4",
    )
    assert json.loads(row["settings"]) == {"positive_weight": 5.0}
    assert (row["best_epoch"], row["epochs"], row["finished"]) == ("2", "3", "True")


@pytest.mark.usefixtures("only_words")
def test_data_are_described(tmp_path: Path) -> None:
    page = write_report(tmp_path / "report.html", [make_run(tmp_path / "a")], title="Report")
    present, absent = 1111, 42
    share = f"{100 * (present + absent) / (2345 * 4):.3g}"
    found = Reader(page).row("single")
    assert found == ["single", "2,345", "78", "4", "1,111", "42", share, "0.474", "–", "–", "–"]


def test_names_are_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a & <b>", scheme="<i>scheme</i>")
    found = add_evaluation(run)
    found["unscored"] = [{"column": at, "name": name, "reason": "<u>"} for at, name in enumerate(CLASSES)]
    write_json(run.path / "evaluation.json", found)
    page = write_report(tmp_path / "report.html", [run], title="<s>title</s>", command="<q>command</q>")
    reader, text = Reader(page), page.read_text(encoding="utf-8")
    assert not {"script", "i", "u", "s", "q", "b"} & set(reader.tags)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "salt &amp; pepper" in text
    assert "salt & pepper" not in text
    # The figures name the classes too, and leave alone what looks like their own markup.
    svg = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    for shown in ("salt &amp; pepper", "&lt;script&gt;", ">$x_1$<", '>id="kite"<'):
        assert shown in svg


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / scheme, scheme=scheme) for scheme in ("full", "single")]
    for run in runs:
        add_evaluation(run)
    page = write_report(tmp_path / "report.html", runs, title="Report")
    text, reader = page.read_text(encoding="utf-8"), Reader(page)
    assert not re.findall(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert all(reference.startswith(("#", "data:")) for reference in reader.references)
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert len(set(reader.ids)) == len(reader.ids)
    assert {reference[1:] for reference in reader.references if reference.startswith("#")} <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(reader.ids)


def test_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    add_evaluation(run)
    first = write_report(tmp_path / "report.html", [run], title="Report").read_bytes()
    assert write_report(tmp_path / "report.html", [run], title="Report").read_bytes() == first


@pytest.mark.usefixtures("only_words")
def test_missing_evaluation_is_a_dash(tmp_path: Path) -> None:
    page = write_report(tmp_path / "report.html", [make_run(tmp_path / "a")], title="Report")
    assert Reader(page).row("a")[2:6] == ["–", "–", "51.2", "–"]  # there are no columns for a test
    assert "The run a was not evaluated on test data." in page.read_text(encoding="utf-8")
    row = rows_of(page)["a"]
    assert [row[key] for key in ("map_c", "map_o", "mF1", "scored", "test_classes")] == [""] * 5


@pytest.mark.usefixtures("only_words")
def test_nothing_scored_is_a_dash(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    found = add_evaluation(run)
    nothing = {"ap": [None] * 4, "scored": 0, "map_c": None, "map_o": None, "mF1": None}
    write_json(run.path / "evaluation.json", found | nothing)
    page = write_report(tmp_path / "report.html", [run], title="Report")
    assert Reader(page).row("a")[3:7] == ["–", "0 of 4", "–", "–"]


@pytest.mark.usefixtures("only_words")
def test_unfinished_run_is_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "done"), make_run(tmp_path / "cut", finished=False)]
    page = write_report(tmp_path / "report.html", runs, title="Report")
    assert Reader(page).row("cut")[0] == "cut (not finished)"
    assert Reader(page).row("cut")[2:] == ["–"] * 6
    assert "The run cut has not finished: 3 epochs so far." in page.read_text(encoding="utf-8")
    assert (rows_of(page)["cut"]["finished"], rows_of(page)["cut"]["validation_score"]) == ("False", "")


def test_run_without_an_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    (run.path / "metrics.jsonl").unlink()
    text = write_report(tmp_path / "report.html", [run], title="Report").read_text(encoding="utf-8")
    assert "has not finished: 0 epochs so far" in text
    assert "Training loss" not in text


@pytest.mark.usefixtures("only_words")
def test_the_expected_map_comes_first_as_a_range_where_labels_do_not_tell_more(tmp_path: Path) -> None:
    figures = {"value": 0.6123, "low": 0.55, "high": 0.67, "classes": 4}
    for settled in (True, False):
        run = make_run(tmp_path / f"{settled}", scheme=None, finished=False)
        said = {"validation_score": 0.5, "best_epoch": 2, "seconds": 1.0, "validation_known_map": 0.9}
        run.finish(said | {"expected_map": figures | {"settled": settled}})
    page = write_report(tmp_path / "report.html", [RunFolder(tmp_path / name) for name in ("True", "False")])
    text = page.read_text(encoding="utf-8")
    assert text.index("expected mAP, in %") < text.index("known-label mAP")
    cells = re.findall(r"<td>\s*(.*?)\s*</td>", text, re.DOTALL)
    assert '<strong>61.2</strong> <span class="faint">(55–67)</span>' in cells
    assert "<strong>55–67</strong>" in cells
    assert [float(rows_of(page)[name]["expected_map"]) for name in ("True", "False")] == [0.6123, 0.6123]


def test_no_validation_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run.path / "metrics.jsonl").unlink()
    run.append({"phase": "head", "epoch": 1, "loss": 0.5, "score": None})
    run.finish({"validation_score": None, "best_epoch": 1, "seconds": 1.0})
    page = write_report(tmp_path / "report.html", [run], title="Report")
    assert Reader(page).row("a")[2:] == ["–", "–", "–", "–", "1", "1.0"]
    assert "no validation labels" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("only_words")
def test_full_labels_come_first(tmp_path: Path) -> None:
    schemes = ("single", None, "full", "single")
    runs = [make_run(tmp_path / f"{at}", scheme=scheme) for at, scheme in enumerate(schemes)]
    page = write_report(tmp_path / "report.html", runs, title="Report")
    assert list(rows_of(page)) == ["2", "0", "3", "1"]
    headings = [row[0] for row in Reader(page).rows if row[0].startswith("scheme:")]
    assert headings == ["scheme: full (the ceiling)", "scheme: single", "scheme: —"]


def test_ceiling_only_with_full_labels(tmp_path: Path) -> None:
    full, single = make_run(tmp_path / "full", scheme="full"), make_run(tmp_path / "single")
    for run in (full, single):
        add_evaluation(run)
    assert "ceiling: full labels" in write_report(tmp_path / "a.html", [single, full], title="").read_text()
    assert "ceiling: full labels" not in write_report(tmp_path / "b.html", [single], title="").read_text()


def test_bar_is_the_mean_over_seeds_but_not_over_settings(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", seed=seed, head={"lr": 0.1}) for seed in range(2)]
    means = [add_evaluation(run, seed)["map_c"] for seed, run in enumerate(runs)]
    text = write_report(tmp_path / "a.html", runs, title="").read_text(encoding="utf-8")
    assert f">{50 * sum(means):.1f}</text>" in text
    other = make_run(tmp_path / "other", seed=2, head={"lr": 0.2})
    page = write_report(tmp_path / "b.html", [*runs, other], title="")
    assert [Reader(page).row(name)[1] for name in ("s0", "other")] == [
        "negative (head.lr=0.1)",
        "negative (head.lr=0.2)",
    ]


@pytest.mark.usefixtures("only_words")
def test_settings_of_some_runs_only_tell_them_apart(tmp_path: Path) -> None:
    linear = make_run(tmp_path / "linear", head={"lr": 0.1})
    tuned = [make_run(tmp_path / f"{lr}", protocol="finetune", whole={"lr": lr}) for lr in (0.1, 0.2)]
    reader = Reader(write_report(tmp_path / "report.html", [linear, *tuned], title=""))
    assert reader.row("linear")[1] == "negative (protocol=linear)"
    assert reader.row("0.2")[1] == "negative (protocol=finetune, whole.lr=0.2)"


def test_best_epoch_counts_from_the_last_phase(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    for epoch, score in enumerate((0.61, 0.72), start=1):
        run.append({"phase": "whole", "epoch": epoch, "loss": 0.1, "score": score, "judged": -score})
    best = read_runs([run], [None])[0].best
    assert best is not None
    assert run.records()[best]["score"] == 0.72
    page = write_report(tmp_path / "report.html", [run])
    assert floats(table_of(page, "-epochs"), "judged")[-2:] == [-0.61, -0.72]
    assert "own judgement" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("only_words")
def test_different_test_labels_are_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in "ab"]
    found = [add_evaluation(run) for run in runs]
    said = "not all evaluated on the same labels"
    assert said not in write_report(tmp_path / "report.html", runs, title="").read_text(encoding="utf-8")
    write_json(runs[1].path / "evaluation.json", found[1] | {"positives": [1, 2, 3, 4]})
    assert said in write_report(tmp_path / "report.html", runs, title="").read_text(encoding="utf-8")


@pytest.mark.usefixtures("only_words")
def test_what_was_not_scored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    add_evaluation(run)
    text = write_report(tmp_path / "report.html", [run], title="").read_text(encoding="utf-8")
    assert "no known absent: id=&#34;kite&#34;" in text


@pytest.mark.usefixtures("only_words")
def test_own_method_and_same_names(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name / "run", method="mine", parameters={"alpha": 1}) for name in "ab"]
    page = write_report(tmp_path / "report.html", runs, title="")
    assert list(rows_of(page)) == [str(run.path) for run in runs]
    assert Reader(page).row(str(runs[0].path))[1] == "mine (alpha=1)"


def test_many_classes_name_only_some(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    config = run.config()
    config["data"]["classes"] = {f"class {at}": {"present": 999 - at, "absent": at} for at in range(100)}
    write_sealed(run.path / "config.json", config)
    text = write_report(tmp_path / "report.html", [run], title="").read_text(encoding="utf-8")
    assert 10 <= len(set(re.findall(r">(class \d+)<", text))) <= 40


@pytest.mark.usefixtures("only_words")
def test_bad_input(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    with pytest.raises(InputError, match="no runs"):
        write_report(tmp_path / "report.html", [], title="")
    with pytest.raises(InputError, match="web page"):
        write_report(tmp_path / "report.csv", [run], title="")
    with pytest.raises(InputError, match="does not exist"):
        write_report(tmp_path / "nowhere" / "report.html", [run], title="")
    write_json(run.path / "evaluation.json", {"map_c": 0.5})
    with pytest.raises(InputError, match=r'evaluation\.json: there is no "classes"'):
        write_report(tmp_path / "report.html", [run], title="")
    assert not list(tmp_path.glob("*.html")) + list(tmp_path.glob("*.csv"))


@pytest.mark.usefixtures("only_words")
def test_a_label_file_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    run, labels = make_run(tmp_path / "a"), tmp_path / "labels.csv"
    labels.write_text("image,present\n1,cat\n")
    with pytest.raises(InputError, match=r"labels\.csv: is not of a report"):
        write_report(tmp_path / "labels.html", [run])
    assert labels.read_text() == "image,present\n1,cat\n"
    for _ in range(2):  # its own files it writes anew, and removes those that are no longer of use
        page = write_report(tmp_path / "report.html", [run])
        assert not (tmp_path / "report-missing.csv").exists()
        (tmp_path / "report-missing.csv").write_text("run,image\n")
    assert list(rows_of(page)) == ["a"]


# ---- what is shown of many runs --------------------------------------------------------------------------

MANY = ("auto", "negative", "wan", "role", "ll_r", "hill", "ignore", "epr", "selective", "an_ls")


@pytest.fixture
def many(tmp_path: Path) -> list[RunFolder]:
    """Ten methods under the first of three schemes, two under the others."""
    plan = {"full": ("bce",), "single_positive": MANY, "random:0.1": MANY[:2], "per_class:50": MANY[:2]}
    runs = []
    for scheme, names in plan.items():
        for name in names:
            path = tmp_path / f"{scheme.replace(':', '-')}-{name}"
            runs.append(make_run(path, scheme=scheme, method=name, parameters={}))
            add_evaluation(runs[-1], seed=len(runs))
    return runs


def test_the_same_runs_are_shown_everywhere_and_every_scheme(many: list[RunFolder]) -> None:
    runs = read_runs(many, [None] * len(many))
    shown = some(runs)
    assert len(shown) == SHOWN
    assert {run.scheme for run in shown} == {run.scheme for run in runs}
    assert [run.name for run in runs if run in shown] == [run.name for run in shown]
    titles = _titles(runs)
    assert len(set(titles.values())) == len(runs)
    with drawing():
        found = [figure.axes[0].get_title("left") for figure in _intervals(runs)]
    assert found == [titles[run] for run in shown]
    assert titles[shown[1]] == "single_positive: auto"


def test_pages_name_the_runs_that_they_show(many: list[RunFolder], tmp_path: Path) -> None:
    text = write_report(tmp_path / "report.html", many).read_text(encoding="utf-8")
    said = " ".join(text.split())
    assert (
        "no room for all 15 runs, here and below, the same 6 are shown, every scheme in turn: full-bce"
        in said
    )
    assert "A panel for each of 6 of the 15 runs." in said
    settings = next(row for row in Reader(tmp_path / "report.html").rows if row[0] == "setting")
    assert settings[1:] == [run.name for run in some(read_runs(many, [None] * len(many)))]


def test_every_method_has_its_own_colour_and_auto_stands_out(many: list[RunFolder]) -> None:
    runs = read_runs(many, [None] * len(many))
    styles = _styles(runs)
    assert set(styles) == {"bce", *MANY}
    assert len({style["color"] for style in styles.values()}) == len(styles)
    assert all(
        style["linewidth"] < styles["auto"]["linewidth"] for name, style in styles.items() if name != "auto"
    )
    panels = list(_scores(runs))
    assert len({figure.axes[0].get_xlim() for figure in panels}) == 1
    colours = [{bar.get_facecolor() for bar in figure.axes[0].patches} for figure in panels]
    assert [len(each) for each in colours] == [1, 10, 2, 2]


def test_frequencies_have_one_kind_of_axis(tmp_path: Path) -> None:
    wide, narrow = make_run(tmp_path / "wide", scheme="a"), make_run(tmp_path / "narrow", scheme="b")
    config = narrow.config()
    config["data"]["classes"] = {name: {"present": 40, "absent": 40} for name in CLASSES}
    write_sealed(narrow.path / "config.json", config)
    axes = [figure.axes[0] for figure in _frequencies(read_runs([wide, narrow], [None, None]))]
    assert [each.get_yscale() for each in axes] == ["log", "log"]
    assert {each.get_ylabel() for each in axes} == {"images in % (logarithmic)"}
    assert axes[0].get_ylim() == axes[1].get_ylim()
    (alone,) = _frequencies(read_runs([narrow], [None]))
    assert (alone.axes[0].get_yscale(), alone.axes[0].get_ylabel()) == ("linear", "images in %")


@pytest.mark.usefixtures("only_words")
def test_the_images_of_the_figures_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    found = add_evaluation(run)
    said = "the 20 or more labelled images of evaluation.json, which does not name their label file"
    assert said in write_report(tmp_path / "report.html", [run]).read_text(encoding="utf-8")
    write_json(run.path / "evaluation.json", found | {"on": "labels.csv, split test"})
    page = write_report(tmp_path / "report.html", [run])
    assert "The figures are those on labels.csv, split test." in page.read_text(encoding="utf-8")
    assert rows_of(page)["a"]["tested_on"] == "labels.csv, split test"


# ---- runs that were really trained -----------------------------------------------------------------------

IMAGES, FOLD = 300, [SCRIPT, "cat", "dog", "rare"]


class Trial:
    """Labels of which a third is known, their truth, and a run that altered some."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.features = rng.normal(size=(IMAGES, 6)).astype(np.float32)
        noise = 0.7 * rng.normal(size=(IMAGES, 4))
        self.truth = np.where(self.features[:, :4] + noise > [0.0, 0.3, 0.6, 1.4], 1, -1).astype(np.int8)
        names = [f"{number:03}" for number in range(IMAGES)]
        known = self.truth * (rng.random(self.truth.shape) < 0.35)
        splits = pa.array(["train"] * 200 + ["test"] * (IMAGES - 200)).dictionary_encode()
        self.labels, self.full = (
            replace(Labels.from_dense(each, classes=FOLD, images=names), splits=splits)
            for each in (known, self.truth)
        )
        self.run = RunFolder(folder / "run")
        self.outcome = train(
            self.labels,
            features=self.features,
            out=self.run.path,
            method="ll_r",
            truth=self.full,
            epochs=3,
            validation=0.4,
            start=1,
        )
        held_out = self.run.config()["data"]["validation"]
        self.held_out = self.labels.rows_of(held_out)
        self.used = np.setdiff1d(np.arange(200), self.held_out)

    def scores(self, rows: Any) -> Any:
        return self.outcome.trained.predict_proba(features=self.features[rows])


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture(scope="module")
def full_page(trial: Trial, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All there is to show of a run on features."""
    given = Given(trial.labels, "labels.csv", features=trial.features)
    return write_report(tmp_path_factory.mktemp("page") / "report.html", [trial.run], given=given)


def floats(rows: list[dict[str, str]], key: str) -> list[float]:
    return [float(row[key]) if row[key] else np.nan for row in rows]


def test_figures_of_classes(trial: Trial, full_page: Path) -> None:
    rows = table_of(full_page, "-classes")
    known, truth = trial.labels.dense(trial.used), trial.truth[trial.used]
    assert [row["class"] for row in rows] == FOLD
    assert floats(rows, "present") == (known > 0).sum(axis=0).tolist()
    assert floats(rows, "absent") == (known < 0).sum(axis=0).tolist()
    np.testing.assert_allclose(floats(rows, "known"), (known != 0).mean(axis=0))
    np.testing.assert_allclose(floats(rows, "observed"), (known > 0).mean(axis=0))
    np.testing.assert_allclose(floats(rows, "true"), (truth > 0).mean(axis=0))
    scores, labels = trial.scores(trial.held_out), trial.labels.dense(trial.held_out)
    for at, row in enumerate(rows):
        seen = labels[:, at] != 0
        expected = average_precision_score(labels[seen, at] > 0, scores[seen, at])
        assert float(row["ap"]) == pytest.approx(expected, rel=1e-5)
        low, high = map(float, interval(expected, (labels[:, at] > 0).sum()))
        assert (float(row["ap_low"]), float(row["ap_high"])) == pytest.approx((low, high), rel=1e-4)
        assert int(row["judged_absent"]) == (labels[:, at] < 0).sum()
    np.testing.assert_allclose(floats(rows, "threshold"), trial.outcome.trained.thresholds)


def test_figures_of_epochs(trial: Trial, full_page: Path) -> None:
    rows, records = table_of(full_page, "-epochs"), trial.outcome.records
    assert floats(rows, "loss") == [record["loss"] for record in records]
    assert floats(rows, "validation_score") == [record["score"] for record in records]
    assert {row["judged"] for row in rows} == {""}  # the score has decided
    kinds = [[record["memory"]["loss"][kind] for record in records] for kind in KINDS]
    assert [floats(rows, f"loss_{kind}") for kind in KINDS] == kinds
    assert floats(rows, "corrections_altered") == [record["memory"]["altered"] for record in records]
    kept = [int(row["epoch"]) for row in rows if row["kept"] == "True"]
    assert kept == [trial.outcome.summary["best_epoch"]]
    terms = [sum(float(row[key]) for key in row if key.startswith("term_")) for row in rows]
    np.testing.assert_allclose(terms, floats(rows, "loss"))


def test_areas_under_the_curves_are_average_precisions(trial: Trial, full_page: Path) -> None:
    scores, labels = trial.scores(trial.held_out), trial.labels.dense(trial.held_out)
    curves = defaultdict(list)
    for row in table_of(full_page, "-curves"):
        curves[row["class"]].append((float(row["recall"]), float(row["precision"])))
    assert set(curves) == {"", *FOLD}
    for name, points in curves.items():
        chosen = labels != 0 if not name else (labels != 0) & (np.array(FOLD) == name)
        recall, precision = np.array(points).T
        area = (np.diff(recall, prepend=0) * precision).sum()
        assert area == pytest.approx(average_precision_score(labels[chosen] > 0, scores[chosen]), rel=1e-5)


def test_calibration(trial: Trial, full_page: Path) -> None:
    rows = table_of(full_page, "-calibration")
    labels = trial.labels.dense(trial.held_out)
    count, mean, share = (np.array(floats(rows, key)) for key in ("labels", "probability", "present"))
    assert count.sum() == np.count_nonzero(labels)
    error = (count * np.abs(mean - share)).sum() / count.sum()
    assert error == pytest.approx(calibration_error(trial.scores(trial.held_out), labels), rel=1e-5)
    assert float(rows_of(full_page)["run"]["validation_ece"]) == pytest.approx(error, rel=1e-5)
    low, high = floats(rows, "present_low"), floats(rows, "present_high")
    for at, (part, whole) in enumerate(
        zip((share * count).round().astype(int), count.astype(int), strict=True)
    ):
        expected = stats.binomtest(part, whole).proportion_ci(method="wilson")
        assert (low[at], high[at]) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_missing_labels_are_the_most_probable_unknown_ones(trial: Trial, full_page: Path) -> None:
    ready = Prepared.of_run(trial.run.path, trial.labels, features=trial.features)
    chances = ready.chances.unknown(trial.scores(np.arange(IMAGES)))
    chances[trial.labels.dense() != 0] = -1
    rows = table_of(full_page, "-missing")
    for at, name in enumerate(FOLD):
        mine = [(row["image"], float(row["probability"])) for row in rows if row["label"] == name]
        best = np.argsort(-chances[:, at], kind="stable")[:10]
        assert [image for image, _ in mine] == [f"{row:03}" for row in best]
        np.testing.assert_allclose([chance for _, chance in mine], chances[best, at], atol=1e-5)
    assert floats(rows, "probability") == sorted(floats(rows, "probability"), reverse=True)
    shown = [row for row in Reader(full_page).rows if len(row) == 3 and row[1] in FOLD]
    assert [row[0] for row in shown[:2]] == [row["image"] for row in rows[:2]]


def test_the_page_is_whole_and_safe(full_page: Path) -> None:
    text, reader = full_page.read_text(encoding="utf-8"), Reader(full_page)
    assert "script" not in reader.tags
    assert "&lt;script&gt;" in text
    assert not re.findall(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert all(reference.startswith(("#", "data:")) for reference in reader.references)
    assert {reference[1:] for reference in reader.references if reference.startswith("#")} <= set(reader.ids)
    for said in (
        "What is memorised",
        "Corrected labels",
        "Calibration",
        "Precision and recall",
        "probably missing",
    ):
        assert said in text
    for kind in ("", "-classes", "-epochs", "-groups", "-curves", "-calibration", "-missing"):
        assert f"report{kind}.csv" in text


@pytest.mark.usefixtures("only_words")
def test_a_split_is_judged_as_evaluate_judges_it(trial: Trial, tmp_path: Path) -> None:
    given = Given(trial.full, "full.csv", features=trial.features[200:], split="test")
    page = write_report(tmp_path / "report.html", [trial.run], given=given)
    found = trial.outcome.trained.evaluate(trial.full[200:], features=trial.features[200:])
    row = rows_of(page)["run"]
    assert row["tested_on"] == "full.csv, split test"
    assert [float(row[key]) for key in ("map_c", "map_o", "mF1", "ece")] == pytest.approx(
        [found.map_c, found.map_o, found.mF1, found.ece]
    )
    assert floats(table_of(page, "-classes"), "ap") == pytest.approx(found.ap.tolist())
    assert "Every label of full.csv, split test is known." in page.read_text(encoding="utf-8")
    own = Given(trial.full, "full.csv", features=trial.features[:200], split="train")
    page = write_report(tmp_path / "report.html", [trial.run], given=own)
    assert f"of which {len(trial.held_out)} images chose the epoch" in rows_of(page)["run"]["tested_on"]


def quick_run(path: Path, labels: Any, **settings: Any) -> tuple[RunFolder, Any]:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(len(labels), 5)).astype(np.float32)
    outcome = train(Labels.from_dense(labels), features=features, out=path, epochs=1, **settings)
    return RunFolder(path), outcome.trained.predict_proba(features=features)


def test_a_run_that_knows_no_absent_label(tmp_path: Path) -> None:
    labels = (np.random.default_rng(2).random((80, 3)) < 0.3).astype(np.int8)
    run, scores = quick_run(tmp_path / "run", labels)
    page = write_report(tmp_path / "report.html", [run])
    held_out = np.array(run.config()["data"]["validation"], dtype=int)
    rows, text = table_of(page, "-classes"), page.read_text(encoding="utf-8")
    expected = [average_precision_score(labels[held_out, at], scores[held_out, at]) for at in range(3)]
    np.testing.assert_allclose(floats(rows, "ap_against_the_rest"), expected, rtol=1e-5)
    assert [row["ap"] for row in rows] == [""] * 3
    assert {row["not_scored"] for row in rows} == {"no known absent"}
    assert rows_of(page)["run"]["validation_ece"] == ""
    assert "positives only" in text
    assert "Calibration" not in text
    assert not (tmp_path / "report-curves.csv").exists()


@pytest.mark.usefixtures("only_words")
@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes_without_validation(tmp_path: Path, classes: int) -> None:
    labels = np.random.default_rng(2).choice([-1, 1], (40, classes)).astype(np.int8)
    run, _ = quick_run(tmp_path / "run", labels, validation=0)
    assert not (run.path / "validation.npz").exists()
    page = write_report(tmp_path / "report.html", [run])
    assert [row["judged_on"] for row in table_of(page, "-classes")] == [""] * classes
    assert "kept no scores of validation images" in page.read_text(encoding="utf-8")


def test_one_class(tmp_path: Path) -> None:
    labels = np.random.default_rng(2).choice([-1, 1], (60, 1)).astype(np.int8)
    run, _ = quick_run(tmp_path / "run", labels)
    page = write_report(tmp_path / "report.html", [run])
    assert len(table_of(page, "-classes")) == 1
    assert not (tmp_path / "report-groups.csv").exists()  # there is nothing to divide


def run_with_classes(path: Path, count: int) -> tuple[RunFolder, np.ndarray]:
    """A run with so many classes, and the frequencies that it has estimated."""
    rng, run = np.random.default_rng(2), make_run(path, scheme=None)
    labels = Labels.from_dense(rng.choice([-1, 0, 1], (80, count), p=[0.2, 0.7, 0.1]).astype(np.int8))
    config, counts = run.config(), zip(*labels.class_counts, strict=True)
    pairs = zip(labels.classes, counts, strict=True)
    config["data"]["classes"] = {name: {"present": int(a), "absent": int(b)} for name, (a, b) in pairs}
    write_sealed(run.path / "config.json", config)
    Scored.collect([rng.random((80, count))], labels, np.full(count, 0.5)).save(run.path)
    found = rng.random((5, count))
    Annotation(labels.classes, *found).save(run.path / "annotation.json")
    return run, found


def test_figures_show_some_of_very_many_classes(tmp_path: Path) -> None:
    """They are no larger than those of a thousand classes, and say so; the table beside them has all."""
    few, many = (run_with_classes(tmp_path / f"{count}", count)[0] for count in (1000, 5000))
    pages = [write_report(tmp_path / f"{run.path.name}.html", [run]) for run in (few, many)]
    assert pages[1].stat().st_size < 1.2 * pages[0].stat().st_size
    text = pages[1].read_text(encoding="utf-8")
    assert "class, most often known present first (1,000 of 5,000)" in text
    assert "class, highest AP first (1,000 of" in text
    assert "(1,000 of" not in pages[0].read_text(encoding="utf-8")
    assert len(table_of(pages[1], "-classes")) == 5000


def test_a_thousand_classes(tmp_path: Path) -> None:
    run, found = run_with_classes(tmp_path / "run", 1000)
    page = write_report(tmp_path / "report.html", [run])
    assert page.stat().st_size < 2e6
    rows = table_of(page, "-classes")
    assert len(rows) == 1000
    shown = [row[0] for row in Reader(page).rows if len(row) == 8 and row[0].isdigit()]
    scored = [row for row in rows if row["ap"]]
    best = sorted(scored, key=lambda row: -float(row["ap"]))[:15]
    assert len(shown) == 30
    assert {row["ap"] for row in rows if row["class"] in shown[:15]} == {row["ap"] for row in best}
    assert "970 classes between these are in report-classes.csv" in page.read_text(encoding="utf-8")
    np.testing.assert_allclose(floats(rows, "estimated_low"), found[1])


def test_intervals_cover(rng: np.random.Generator) -> None:
    """Scores of two normal distributions: how often is the AP of very many images inside?"""
    for images, share, shift in ((50, 0.5, 1.5), (400, 0.1, 1.5), (400, 0.5, 0.5)):
        present = rng.random(200_000) < share
        truth = average_precision_score(present, rng.normal(size=200_000) + shift * present)
        labels = np.where(rng.random((images, 200)) < share, 1, -1).astype(np.int8)
        scores = rng.normal(size=labels.shape) + shift * (labels > 0)
        low, high = interval(average_precision(scores, labels), (labels > 0).sum(axis=0))
        assert ((low <= truth) & (truth <= high)).mean() >= 0.9


def test_pictures_and_maps(tmp_path: Path) -> None:
    scenes = render(24, seed=0)
    truth = scenes.labels.dense()
    hidden = truth * (np.arange(truth.size).reshape(truth.shape) % 3 == 0)
    labels = Labels.from_dense(hidden, classes=scenes.labels.classes, images=scenes.labels.images.to_pylist())
    backbone = pretrained("test_resnet", "random", 32).eval()
    features = np.random.default_rng(0).normal(size=(24, backbone.width))
    outcome = train(labels, features=features, out=tmp_path / "run", epochs=1)
    Trained(outcome.trained.model.on_images(backbone), outcome.trained.thresholds).save(tmp_path / "run")
    given = Given(labels, "labels.csv", images=scenes.images)
    page = write_report(tmp_path / "report.html", [RunFolder(tmp_path / "run")], given=given)
    pictures = [reference for reference in Reader(page).references if reference.startswith("data:")]
    assert len(pictures) == 24 + 4 * 4  # missing labels; images with three maps each
    for picture in pictures:
        with Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))) as image:
            assert image.format == "JPEG"
            assert max(image.size) <= 192


# ---- comparisons, commands -------------------------------------------------------------------------------


def test_a_comparison(tmp_path: Path) -> None:
    entries = {
        "bce": {"full": Entry(0.61, 0.002, True)},
        SCRIPT: {"a": Entry(0.5, 0.01, True), "b": Entry(0.4, None, False)},
        "ignore": {"a": Entry(0.55, 0.02, True), "b": Entry(None, None, False, "needs <absent> labels")},
    }
    of = {"training_images": 1234, "test_images": 567, "classes": 8, "seeds": 2}
    write_json(tmp_path / "about.json", of)
    page = write_comparison(tmp_path, entries, ["a", "b"], {"epochs": 3}, "tertium compare")
    text, reader = page.read_text(encoding="utf-8"), Reader(page)
    assert [" ".join(cell.split()) for cell in reader.row("full labels")] == ["full labels"] + [
        "61.0 ± 0.2"
    ] * 2 + [""]
    assert [" ".join(cell.split()) for cell in reader.row(SCRIPT)] == [SCRIPT, "50.0 ± 1.0", "40.0", "45.0"]
    assert [" ".join(cell.split()) for cell in reader.row("ignore")][1:] == ["55.0 ± 2.0", "–", "–"]
    assert "script" not in reader.tags
    assert not re.findall(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert len(re.findall("<svg", text)) == 2  # a panel for each scheme, below each other on a phone
    assert len(set(reader.ids)) == len(reader.ids)
    assert "needs &lt;absent&gt; labels" in text
    assert "currentColor" in text
    assert "&#34;epochs&#34;: 3" in text
    said = " ".join(text.split())
    assert "Trained on 1,234 images (validation among them) and tested on 567 others, 8 classes;" in said
    assert "mean of 2 seeds" in said
    assert "bold means little" in said
    write_json(tmp_path / "about.json", of | {"seeds": 3})
    write_comparison(tmp_path, entries, ["a", "b"], {})
    assert "bold means little" not in page.read_text(encoding="utf-8")


def test_the_panels_of_a_comparison_have_one_axis_and_margins() -> None:
    table = {
        "auto": {"a": Entry(0.5, 0.01, True), "b": Entry(0.2, None, False)},
        "wan": {"a": Entry(0.4, 0.01, False), "b": Entry(0.3, 0.05, True)},
    }
    low, high = _range(table, ["a", "b"])
    assert low < 20
    assert high > 51
    figure = Figure()
    axes = figure.subplots()
    _fill(axes, table, "a")
    bottom, top = axes.get_ylim()
    assert bottom < -0.5
    assert top > 1.5
    assert [label.get_text() for label in axes.get_yticklabels()] == ["wan", "auto"]  # the best on top


def test_a_comparison_says_how_much_it_is_of() -> None:
    cells = [{"method": "auto", "scheme": "a", "seed": seed, "score": 0.5} for seed in (0, 1, 1)]
    found = Comparison(("x", "y"), cells, [], [], (100, 50))
    assert about(found) == {"training_images": 100, "test_images": 50, "classes": 2, "seeds": 2}


def test_frequencies_on_their_own_name_the_classes(tmp_path: Path) -> None:
    for count in (17, 40, 41):
        rate = np.linspace(0.9, 0.1, count)
        names = [f"class {at}" for at in range(count)]
        draw_prior(
            tmp_path / "prior.svg",
            {
                "class": names,
                "prior": rate.tolist(),
                "low": (0.8 * rate).tolist(),
                "high": (1.1 * rate).tolist(),
                "observed": (0.5 * rate).tolist(),
            },
        )
        text = (tmp_path / "prior.svg").read_text(encoding="utf-8")
        found = re.findall(r">(class \d+)<", text)
        assert found == names if count <= 40 else found == names[::3]
        assert all(colour in text for colour in COLOURS[:2])  # known and estimated, as in the report


def test_the_demo_knows_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tertium.cli.demo._PLAN", (("random:0.3", ("negative",)),))
    monkeypatch.setattr("tertium.cli.demo._IMAGE_SIZE", 32)
    _, page = run_demo(tmp_path / "demo", training=60, test=40)
    truth = render(100, seed=0).labels[:60].dense() > 0
    rows = table_of(page, "-classes")
    used = int(rows[0]["images"])
    assert used < 60  # some chose the epoch
    bound = 60 - used
    counts = np.array(floats(rows, "true")) * used
    assert (np.abs(truth.sum(axis=0) - counts) <= bound + 1e-6).all()
    assert "The figures are those on 40 other scenes, with full labels." in page.read_text(encoding="utf-8")
    assert "in truth" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("only_words")
def test_the_commands(trial: Trial, tmp_path: Path, tertium: Any) -> None:
    write_labels(trial.labels, tmp_path / "labels.csv")
    np.save(tmp_path / "x.npy", trial.features)
    data = ("--labels", tmp_path / "labels.csv", "--features", tmp_path / "x.npy")
    code, out, errors = tertium("train", *data, "--out", tmp_path / "own", "epochs=1")
    assert code == 0, errors
    assert "report.html" in out
    assert list(rows_of(tmp_path / "own" / "report.html")) == ["own"]
    words = ("report", trial.run.path, tmp_path / "own", "--out", tmp_path / "both.html", "--overwrite")
    code, _, errors = tertium(*words, *data)
    assert code == 0, errors
    assert list(rows_of(tmp_path / "both.html")) == ["run", "own"]
    assert f"--out {tmp_path / 'both.html'}" in (tmp_path / "both.html").read_text(encoding="utf-8")
    code, _, errors = tertium(*words, "--split", "test")
    assert code == 2
    assert "belong to a label file" in errors
    code, _, errors = tertium(*words, *data, "--split", "tset")
    assert code == 2
    assert 'did you mean "test"' in errors
