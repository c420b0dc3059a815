"""Comparing methods: the same hidden labels for all, nothing done twice, intervals that are right."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tertium.comparing import Cell, Work, check_methods, compare, half_interval, markdown, summarise
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.readers import write_labels


@pytest.fixture
def work(tmp_path, rng):
    features = rng.normal(size=(160, 5)).astype(np.float32)
    truth = np.where(features[:, :3] + 0.3 * rng.normal(size=(160, 3)) > 0, 1, -1)
    present = [";".join(np.array(list("abc"))[row > 0]) for row in truth]
    rows = "".join(f"{n},{names},{'train' if n < 120 else 'test'}\n" for n, names in enumerate(present))
    (tmp_path / "labels.csv").write_text("image,present,split\n" + rows)
    np.save(tmp_path / "x.npy", features)
    return Work(str(tmp_path / "labels.csv"), str(tmp_path / "x.npy"), "absent", {"epochs": 3})


def cell(method, scheme, seed, score):
    return {"method": method, "scheme": scheme, "seed": seed, "score": score}


def test_intervals_are_those_of_students_t(rng):
    for count in (2, 3, 5, 11):
        values = rng.normal(size=count)
        low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
        assert half_interval(values) == pytest.approx((high - low) / 2, rel=1e-3)
    assert half_interval(np.array([1.0])) is None


def test_the_best_and_those_level_with_it_are_marked():
    """Level is judged by pairs: b is always below a by a little, c crosses it, d cannot be trained."""
    scores = {"a": (0.50, 0.60, 0.70), "b": (0.48, 0.58, 0.68), "c": (0.49, 0.61, 0.68), "d": (None,) * 3}
    cells = [
        cell(name, "random:0.5", seed, value)
        for name, row in scores.items()
        for seed, value in enumerate(row)
    ]
    row = {name: entries["random:0.5"] for name, entries in summarise(cells).items()}
    assert {name for name, entry in row.items() if entry.best} == {"a", "c"}
    assert row["a"].mean == pytest.approx(0.6)
    assert row["d"].mean is None
    text = markdown(summarise(cells), ["random:0.5"])
    assert "| `a` | **60.0 ± 24.8** | 60.0 |" in text
    assert "| `d` | – | – |" in text
    assert text.index("`a`") < text.index("`c`") < text.index("`b`")


def test_finished_cells_are_not_trained_again(work, tmp_path, monkeypatch):
    arguments = {"schemes": ["random:0.5"], "names": ["ignore", "negative"], "seeds": 2, "jobs": 1}
    first = compare(work, tmp_path / "out", **arguments)
    assert len(first) == 2 + 4
    assert all(0 < found["score"] <= 1 for found in first)
    files = list((tmp_path / "out").rglob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[0].unlink()  # as if the comparison had been stopped before this cell
    again = compare(work, tmp_path / "out", **arguments)
    assert [found["score"] for found in again] == [found["score"] for found in first]
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    assert after.keys() == before.keys()
    assert [path for path in files if after[path] != before[path]] == [files[0]]


def test_a_cell_repeats_to_the_bit(work, tmp_path):
    arguments = {"schemes": ["random:0.5"], "names": ["auto"], "seeds": 1, "jobs": 1}
    one, two = (compare(work, tmp_path / name, **arguments) for name in ("one", "two"))
    assert [found["score"] for found in one] == [found["score"] for found in two]


def test_a_method_that_cannot_learn_has_a_reason(work, tmp_path):
    found = compare(work, tmp_path, schemes=["single_positive"], names=["ignore"], seeds=1, jobs=1)
    assert found[-1]["score"] is None
    assert "absent" in found[-1]["reason"]


def test_other_parameters_are_another_cell():
    assert Cell("epr", "random:0.5", 0).name != Cell("epr", "random:0.5", 0, {"k": 2.0}).name


def test_names():
    assert "bce" not in check_methods(["all"])
    assert check_methods(["an", "wan"]) == ["negative", "wan"]
    with pytest.raises(InputError, match='did you mean "negative"'):
        check_methods(["negativ"])


def test_the_commands(work, tmp_path, tertium):
    words = ("--labels", work.labels, "--unlisted", "absent", "--features", work.features)
    code, out, errors = tertium(
        *("compare", *words, "--methods", "negative,epr", "--schemes", "random:0.5", "--seeds", 2),
        *("--out", tmp_path / "results", "epochs=2", "epr.k=1.5"),
    )
    assert code == 0, errors
    assert "`epr`" in out
    assert (tmp_path / "results" / "table.svg").read_text().count("<svg") == 1
    assert len((tmp_path / "results" / "results.csv").read_text().splitlines()) == 1 + 2 + 4
    code, out, errors = tertium("compare", *words, "--schemes", "randm:0.5", "--out", tmp_path / "results")
    assert code == 2
    assert 'did you mean "random"' in errors


def test_prior(tmp_path, rng, tertium):
    features = rng.normal(size=(400, 5)).astype(np.float32)
    truth = np.where(features[:, :3] > np.array([0.0, 1.0, 1.5]), 1, -1)
    partial = Labels.from_dense(truth * (rng.random(truth.shape) < 0.5), classes=["=a", "b", "c"])
    write_labels(partial, tmp_path / "labels.csv")
    np.save(tmp_path / "x.npy", features)
    words = ("prior", "--labels", tmp_path / "labels.csv", "--features", tmp_path / "x.npy")
    code, _, errors = tertium(*words, "--out", tmp_path / "p.csv", "--plot", tmp_path / "p.svg")
    assert code == 0, errors
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == '"class","prior","low","high","observed","present_known","absent_known"'
    found = np.array([[float(value) for value in line.split(",")[1:5]] for line in lines[1:]])
    np.testing.assert_allclose(found[:, 0], (truth > 0).mean(axis=0), rtol=0.5)
    np.testing.assert_allclose(found[:, 3], partial.class_counts[0] / 400)
    assert "<svg" in (tmp_path / "p.svg").read_text()
    code, _, errors = tertium(*words, "--out", tmp_path / "q.csv", "--estimator", "ignore")
    assert code == 0, errors
    code, _, _ = tertium(*words, "--out", tmp_path / "q.txt")
    assert code == 2


def test_a_mistake_ends_the_comparison(work, tmp_path):
    """It is not taken for a method that cannot learn."""
    arguments = {"schemes": ["random:0.5"], "names": ["negative"], "seeds": 1, "jobs": 1}
    with pytest.raises(InputError, match='there is no setting "epoch"'):
        compare(replace(work, settings={"epoch": 3}), tmp_path, **arguments)
    with pytest.raises(InputError, match=r"none\.npy: no such file"):
        compare(replace(work, features=str(tmp_path / "none.npy")), tmp_path, **arguments)
