"""The report: its numbers are those of the run folders, and it is safe to open."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.files import write_json
from tertium.metrics import evaluate
from tertium.report import _read, write_report
from tertium.runs import RunFolder

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
    folder.write_config(defaults | settings, data | ({"scheme": scheme} if scheme else {}))
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
    monkeypatch.setattr("tertium.report._charts", lambda runs: defaultdict(list))


def rows_of(page: Path) -> dict[str, dict[str, str]]:
    with open(page.with_suffix(".csv"), newline="", encoding="utf-8") as lines:
        return {row["run"]: row for row in csv.DictReader(lines)}


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
    assert cells[2:6] == [figures[0], "3 of 4", *figures[1:]]
    assert cells[6:] == ["51.2", "2", "98.8"]
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
    assert Reader(page).row("single") == ["single", "2,345", "78", "4", "1,111", "42", share, "–", "a"]


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
    assert Reader(page).row("a")[2:6] == ["–"] * 4
    assert "The run a was not evaluated on test data." in page.read_text(encoding="utf-8")
    row = rows_of(page)["a"]
    assert [row[key] for key in ("map_c", "map_o", "mF1", "scored", "test_classes")] == [""] * 5


def test_nothing_scored_is_a_dash(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    found = add_evaluation(run)
    nothing = {"ap": [None] * 4, "scored": 0, "map_c": None, "map_o": None, "mF1": None}
    write_json(run.path / "evaluation.json", found | nothing)
    page = write_report(tmp_path / "report.html", [run], title="Report")
    assert Reader(page).row("a")[2:6] == ["–", "0 of 4", "–", "–"]


@pytest.mark.usefixtures("only_words")
def test_unfinished_run_is_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "done"), make_run(tmp_path / "cut", finished=False)]
    page = write_report(tmp_path / "report.html", runs, title="Report")
    assert Reader(page).row("cut")[0] == "cut (not finished)"
    assert Reader(page).row("cut")[6:] == ["–"] * 3
    assert "The run cut has not finished: 3 epochs so far." in page.read_text(encoding="utf-8")
    assert (rows_of(page)["cut"]["finished"], rows_of(page)["cut"]["validation_score"]) == ("False", "")


def test_run_without_an_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    (run.path / "metrics.jsonl").unlink()
    text = write_report(tmp_path / "report.html", [run], title="Report").read_text(encoding="utf-8")
    assert "has not finished: 0 epochs so far" in text
    assert "Training loss" not in text


def test_no_validation_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run.path / "metrics.jsonl").unlink()
    run.append({"phase": "head", "epoch": 1, "loss": 0.5, "score": None})
    run.finish({"validation_score": None, "best_epoch": 1, "seconds": 1.0})
    page = write_report(tmp_path / "report.html", [run], title="Report")
    assert Reader(page).row("a")[6:] == ["–", "1", "1.0"]
    assert "Validation score" not in page.read_text(encoding="utf-8")


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
        run.append({"phase": "whole", "epoch": epoch, "loss": 0.1, "score": score})
    best = _read([run])[0].best
    assert best is not None
    assert run.records()[best]["score"] == 0.72


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
    assert "no known absent in the test labels: id=&#34;kite&#34;" in text


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
    write_json(run.path / "config.json", config)
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
