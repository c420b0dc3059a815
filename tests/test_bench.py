"""Every part of `make bench` still runs; what it measures at these tiny sizes means nothing."""

import json
import math
from types import SimpleNamespace

import pytest

from bench import compare, results
from bench.__main__ import PARTS, main
from bench.measure import row

SLOW = ("load", "asking", "jobs", "cluster")  # they start several trainings, or a Ray cluster


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PARTS]
)
def test_a_part_runs(name):
    rows = PARTS[name].rows(smoke=True)
    assert rows
    assert all(math.isfinite(each["value"]) for each in rows)
    cases = [(each["part"], each["case"]) for each in rows]
    assert len(set(cases)) == len(cases)  # by which two results are compared


def test_results_say_machine_versions_and_rows(tmp_path, monkeypatch, capsys):
    out = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["bench", "labels", "--smoke", "--out", str(out)])
    main()
    written = json.loads(out.read_text())
    assert set(written) == {"date", "machine", "versions", "rows"}
    assert set(written["machine"]) == {"cpu", "cores", "memory_gb"}
    assert set(written["versions"]) == {"python", "torch", "numpy", "onnxruntime"}
    assert {frozenset(each) for each in written["rows"]} == {
        frozenset(("part", "case", "value", "target", "met"))
    }
    judged = [each["met"] for each in written["rows"] if each["met"] is not None]
    assert f"{sum(judged)} of {len(judged)} targets met" in capsys.readouterr().out


def test_tiny_sizes_do_not_overwrite_what_was_measured(monkeypatch, capsys):
    monkeypatch.setattr("bench.__main__.PARTS", {"labels": PARTS["labels"]})
    monkeypatch.setattr("bench.__main__.write", lambda *_: pytest.fail("written"))
    monkeypatch.setattr("sys.argv", ["bench", "--smoke"])
    main()


def test_single_parts_replace_their_own_rows(tmp_path, monkeypatch):
    out = tmp_path / "results.json"
    results.write(out, [row("a", "kept", 1.0, "", None), row("b", "measured again", 2.0, "", None)])
    part = SimpleNamespace(
        rows=lambda smoke: [row("b", "measured again", 3.0, "", None), row("b", "new", 4.0, "", None)]
    )
    monkeypatch.setattr("bench.__main__.PARTS", {"b": part})
    monkeypatch.setattr("sys.argv", ["bench", "b", "--update", "--out", str(out)])
    main()
    found = [(each["case"], each["value"]) for each in results.read(out)["rows"]]
    assert found == [("kept", 1.0), ("measured again", 3.0), ("new", 4.0)]


def test_an_unknown_part_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "metric"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert 'there is no part "metric"' in capsys.readouterr().err


def test_two_results_side_by_side(tmp_path, monkeypatch, capsys):
    rows = {
        "old": [row("loss", "a", 2.0, "≤", 3), row("loss", "gone", 1.0, "", None)],
        "new": [row("loss", "a", 4.0, "≤", 3), row("loss", "came", 7.0, "", None)],
    }
    for name, each in rows.items():
        results.write(tmp_path / f"{name}.json", each)
    monkeypatch.setattr("sys.argv", ["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    compare.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["loss", "a", "2", "4", "2.00", "≤", "3", "LOST"] in lines
    assert ["loss", "gone", "1", "–", "–"] in lines
    assert ["loss", "came", "–", "7", "–"] in lines


def test_a_part_that_is_measured_again_replaces_all_its_rows():
    old = [row("a", "gone", 1, "", None), row("b", "kept", 2, "", None), row("a", "again", 3, "", None)]
    found = results.updated(old, [row("a", "again", 4, "", None), row("c", "new", 5, "", None)])
    assert [(each["case"], each["value"]) for each in found] == [("again", 4), ("kept", 2), ("new", 5)]
