"""Single runs that benches keep: what is written is read again, and the tables say what the lines say."""

import argparse

import numpy as np
import pytest
from PIL import Image

from bench import whole
from bench.cells import Evidence
from bench.tuned import BY, DATA, Tuned


@pytest.fixture
def evidence(tmp_path):
    return Evidence(tmp_path / "lines.csv")


def line(validation, score, clean=None):
    clean = score if clean is None else clean
    return {"validation": validation, "clean_validation": validation, "score": score, "clean_score": clean}


def test_lines_are_read_again(evidence):
    evidence.add(("coco", "per_image:1,all", "epr:k=2,init=torch", 0, 1), {"score": 0.25, "seconds": 30})
    again = Evidence(evidence.path)
    found = again.get("coco", "per_image:1,all", "epr:k=2,init=torch", 0, 1)
    assert (found["score"], found["validation"]) == (0.25, None)
    assert again.get("coco", "per_image:1,all", "epr:k=2,init=torch", 1, 1) is None
    assert again.cost() == "1 runs, 0 minutes of processor time"


def test_a_series_has_a_number_for_each_epoch(tmp_path):
    evidence = Evidence(tmp_path / "lines.csv", ("row",), ("score",), ("tests",))
    evidence.add(("a",), {"score": 0.5, "tests": [0.25, 0.5, 0.125]})
    evidence.add(("b",), {"score": 0.5, "tests": [0.25]})
    evidence.add(("c",), {})
    again = Evidence(evidence.path, ("row",), ("score",), ("tests",))
    assert [again.get(name)["tests"] for name in "abc"] == [[0.25, 0.5, 0.125], [0.25], []]


# ---- rivals, tuned -----------------------------------------------------------------------------------------


@pytest.fixture
def tuned(evidence):
    """`auto` at 50 and 52; `wan` at 40, with a trial that known labels choose and is ahead of `auto`."""
    for seed, score in ((1, 0.50), (2, 0.52)):
        evidence.add((DATA, "full", "auto", seed, 1), line(0, score))
    for trial, validation in ((1, 0.3), (2, 0.6), (3, None)):
        evidence.add((DATA, "full", "wan", 0, trial), line(validation, 0.9))
    for seed, score in ((1, 0.55), (2, 0.57)):
        evidence.add((DATA, "full", "wan", seed, 1), line(0, 0.4))
        evidence.add((DATA, "full", "wan", seed, 2), line(0, score, clean=0.51))
    return Tuned(evidence, trials=3, seeds=2)


def test_the_trial_is_chosen_on_the_first_seed_and_told_of_the_others(tuned):
    assert [tuned.chosen("full", "wan", by) for by in BY] == [2, 2]
    assert tuned.table(["full"], ["wan"]).splitlines()[2:] == [
        "| `auto` | 51.0 ± 12.7 | 51.0 |",
        "| `wan` | 40.0 / **56.0** / 51.0 | 40.0 / 56.0 / 51.0 |",
    ]


def test_nothing_is_chosen_before_all_trials_are_there(tuned):
    half = Tuned(tuned.evidence, trials=4, seeds=2)
    assert half.chosen("full", "wan", "known") is None
    assert half.cell("full", "wan") == "40.0 / – / –"


# ---- whole networks ----------------------------------------------------------------------------------------


@pytest.fixture
def photographs(tmp_path):
    """A tiny data set in the form of UC Merced's."""
    folder = tmp_path / "ucmerced"
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = ["image,split,scene,labels"]
    for number in range(40):
        name, red = f"{number}.png", number % 2
        pixels = rng.integers(0, 80, size=(32, 32, 3), dtype=np.uint8)
        pixels[..., 0] += np.uint8(150 * red)
        Image.fromarray(pixels).save(folder / "images" / name)
        shown = ["2", *(["0"] if red else ["1"])] if number % 3 else ["0" if red else "1"]
        lines.append(f"{name},{'test' if number >= 28 else 'train'},x,{' '.join(shown)}")
    (folder / "classes.txt").write_text("red\ndark\nother\n")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_whole_networks_are_trained_once(photographs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(whole, "SIZE", 32)
    monkeypatch.setitem(whole.WAYS, "finetune", {"protocol": "finetune", "whole.epochs": 2})
    options = argparse.Namespace(
        shared=photographs,
        seeds=1,
        ways=["linear", "finetune"],
        data=["ucmerced"],
        schemes=["single_positive"],
        methods=["ll_r"],
        minutes=9,
        settings=(),
    )
    evidence = Evidence(tmp_path / "whole.csv", whole.KEYS, whole.NUMBERS, whole.SERIES)
    whole.run(evidence, options)
    again = Evidence(evidence.path, whole.KEYS, whole.NUMBERS, whole.SERIES)
    trained = again.get("ucmerced", "single_positive", "ll_r", "finetune", 0)
    assert (len(trained["tests"]), len(trained["false_negative"]), trained["whole"]) == (2, 2, 1)
    assert 0 < trained["score"] <= 1
    assert again.get("ucmerced", "single_positive", "ll_r", "linear", 0)["tests"] == []
    monkeypatch.setattr(whole, "measured", lambda *_: pytest.fail("trained again"))
    whole.run(again, options)
    kept = evidence.path.read_bytes()
    monkeypatch.setattr(whole, "measured", lambda *given: {"score": float(given[-1]["whole.lr"])})
    options.settings = ["whole.lr=0.5"]
    whole.run(again, options)  # settings that are tried leave no trace
    assert evidence.path.read_bytes() == kept
    assert capsys.readouterr().err.count(" 0.5 ") == 2
    assert "`ll_r`" in whole.Tables(again).ways("ucmerced", "single_positive")


def test_gains_are_those_of_the_same_seed(tmp_path):
    evidence = Evidence(tmp_path / "whole.csv", whole.KEYS, whole.NUMBERS, whole.SERIES)
    evidence.add(("coco", "single_positive", "ll_ct", "finetune", 1), {"score": 0.25, "tests": [0.25]})
    for seed, own, other in ((0, 0.5, 0.25), (1, 0.75, 0.5)):
        for name, score in (("ll_r", own), ("negative", other)):
            key = ("coco", "single_positive", name, "finetune", seed)
            evidence.add(key, {"score": score, "tests": [0.1, score - 0.125]})
    tables = whole.Tables(evidence)
    assert tables.gain("coco", "single_positive", "ll_r", "finetune", last=True) == [25.0, 25.0]
    assert tables.gain("coco", "single_positive", "ll_ct", "finetune", last=False) == [-25.0]  # of seed 1
    told = tables.gains("coco").splitlines()  # without the ways that were not run
    assert told[0] == "| coco, single_positive | finetune | finetune, last epoch |"
    assert "| `negative` | 37.5 ± 12.5 | 25.0 ± 12.5 |" in told
    assert "| `ll_r`, ahead by | +25.0 ± 0.0 | +25.0 ± 0.0 |" in told
