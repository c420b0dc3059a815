"""Comparing methods: the same hidden labels for all, nothing done twice, intervals that are right."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from tertium import methods
from tertium.comparing import (
    Cell,
    Column,
    Work,
    columns_from,
    compare,
    half_interval,
    markdown,
    on_this_machine,
    rows_from,
    summarise,
    write_results,
)
from tertium.comparing.cells import Data
from tertium.comparing.rows import resolved
from tertium.comparing.search import COMMON, SPACES, Choice, trial_settings
from tertium.data.feature_files import write_feature_names
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import LabelFile, read_labels, write_labels
from tertium.progress import Progress
from tertium.schemes import parse
from tertium.training import fit as fitting
from tertium.training.train import train

QUICK = {"epochs": 3, "batch_size": 32}


@pytest.fixture
def work(tmp_path, rng):
    features = rng.normal(size=(160, 5)).astype(np.float32)
    truth = np.where(features[:, :3] + 0.3 * rng.normal(size=(160, 3)) > 0, 1, -1)
    present = [";".join(np.array(list("abc"))[row > 0]) for row in truth]
    rows = "".join(f"{n},{names},{'train' if n < 120 else 'test'}\n" for n, names in enumerate(present))
    (tmp_path / "labels.csv").write_text("image,present,split\n" + rows)
    np.save(tmp_path / "x.npy", features)
    return Work(str(tmp_path / "labels.csv"), str(tmp_path / "x.npy"), "absent")


def run(work, out, methods="negative", schemes="random:0.5", **options):
    given = {"settings": QUICK, "seeds": 1, "jobs": 1} | options
    columns = columns_from(schemes, given.pop("files", []))
    given.setdefault("pool", on_this_machine(given.pop("jobs")))
    return compare(work, out, rows=rows_from(methods), columns=columns, **given)


def scores(found):
    return [cell["score"] for cell in found.cells]


def cell(method, scheme, seed, score):
    return {"method": method, "scheme": scheme, "seed": seed, "score": score}


class Notes(Progress):
    def __init__(self):
        self.texts, self.started, self.done = [], [], 0

    def start(self, what, total, unit):
        self.started.append((what, total))

    def advance(self, count=1):
        self.done += count

    def note(self, text):
        self.texts.append(text)


# ---- rows and columns --------------------------------------------------------------------------------------


def test_rows():
    names = [row.name for row in rows_from("all")]
    assert "bce" not in names
    assert {"auto", "negative", "wan"} <= set(names)
    assert [row.method for row in rows_from("an,wan")] == ["negative", "wan"]
    rows = rows_from("ll_r, ll_r:delta=0.1 ,selective:top=none,eta=0.05,likelihood=false,wan:lr=1e-3,ll_r")
    assert [row.name for row in rows] == [
        "ll_r",
        "ll_r:delta=0.1",
        "selective:top=none,eta=0.05,likelihood=false",
        "wan:lr=0.001",
    ]
    assert rows[2].given == {"top": None, "eta": 0.05, "likelihood": False}
    grid = rows_from("em:apl=true,alpha=0.1/0.2,beta=0.2/0.9")
    assert [(row.given["alpha"], row.given["beta"]) for row in grid] == [
        (0.1, 0.2),
        (0.1, 0.9),
        (0.2, 0.2),
        (0.2, 0.9),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("negativ", 'did you mean "negative"'),
        ("ll_r:dleta=0.1", 'the method "ll_r" has no parameter "dleta"; did you mean "delta"'),
        ("ll_r:delta=much", '"much" is not a value for delta'),
        ("ll_r:delta=101", "delta"),
        ("ll_r,delta=0.1", r"follow a colon, as in ll_r:key=value"),
        ("ll_r:delta", '"delta" is not of the form key=value'),
        ("negative:seed=3", 'has no parameter "seed"'),
        ("negative:recipe=cole", 'there is no recipe "cole"; did you mean "cole2021"'),
        ("negative:recipe=some/where.toml", "some/where.toml: no such file"),
        ("negative:select=test", '"test" is not a value for select'),
    ],
)
def test_a_row_that_is_wrong_is_named(text, message):
    with pytest.raises(InputError, match=message):
        rows_from(text)


def test_columns():
    text = "per_image:1,1,per_image:1,all,balanced:0.1,negatives=2,single_positive,random:keep=.5"
    assert [column.name for column in columns_from(text)] == [
        *("per_image:1,1", "per_image:1,all", "balanced:0.1,negatives=2", "single_positive"),
        "random:keep=.5",
    ]
    assert columns_from("", ["a/masks.csv"]) == [Column("masks.csv", "a/masks.csv")]
    with pytest.raises(InputError, match='did you mean "random"'):
        columns_from("randm:0.5")
    with pytest.raises(InputError, match=r'two columns would be called "m\.csv"'):
        columns_from("", ["a/m.csv", "b/m.csv"])
    with pytest.raises(InputError, match="at least one scheme"):
        columns_from("")


def test_what_is_trained_decides_the_cell_not_how_it_was_said():
    def name(**given):
        return Cell("ll_r", "random:0.5", 0, resolved("ll_r", given, 0)).name

    assert name() == name(delta="0.4") == name(**{"head.lr": 3e-4})
    assert len({name(), name(delta=0.3), name(lr=0.001), name(epochs=3)}) == 4


# ---- training ----------------------------------------------------------------------------------------------


def test_a_cell_is_what_train_gives(work, tmp_path):
    """The same hidden labels, the same validation part, and AP as scikit-learn has it."""
    found = run(work, tmp_path / "out", "ll_r:delta=5", seeds=2).cells[-1]
    labels = read_labels(work.labels, unlisted="absent")
    features = np.load(work.features)
    partial = parse("random:0.5").apply(labels.part("train"), 1)
    bare = Labels(partial.offsets, partial.entries, partial.classes, partial.images)
    outcome = train(bare, features=features[:120], method="ll_r", delta=5, seed=1, **QUICK)
    assert found["validation"] == outcome.summary["validation_score"]
    proba = outcome.trained.predict_proba(features=features[120:])
    truth = labels.part("test").dense()
    expected = [average_precision_score(truth[:, c] > 0, proba[:, c]) for c in range(3)]
    np.testing.assert_allclose(found["ap"], expected, rtol=1e-6)
    assert found["score"] == pytest.approx(np.mean(expected))
    assert found["present"] == (partial.dense() > 0).sum(axis=0).tolist()
    assert found["absent"] == (partial.dense() < 0).sum(axis=0).tolist()
    assert found["truly_present"] == (labels.part("train").dense() > 0).sum(axis=0).tolist()


def test_finished_cells_are_not_trained_again(work, tmp_path):
    first = run(work, tmp_path / "out", "ignore,negative", seeds=2)
    assert len(first.cells) == 2 + 4
    assert all(0 < score <= 1 for score in scores(first))
    files = list((tmp_path / "out").rglob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[0].unlink()  # as if the comparison had been stopped before this cell
    again = run(work, tmp_path / "out", "ignore,negative", seeds=2)
    assert scores(again) == scores(first)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    assert after.keys() == before.keys()
    assert [path for path in files if after[path] != before[path]] == [files[0]]


def test_a_changed_cell_is_trained_again(work, tmp_path, rng):
    first = run(work, tmp_path / "out")
    path = next((tmp_path / "out").rglob("negative-*.json"))
    content = path.read_bytes()
    better = re.sub(rb'"score": 0\.\d+', b'"score": 0.999', content)
    unsealed = content.replace(b'"sha256"', b'"sha257"')
    assert content not in (better, unsealed)
    for changed in (better, unsealed, content[: len(content) // 2], b""):
        path.write_bytes(changed)
        again = run(work, tmp_path / "out", progress=(heard := Notes()))
        assert scores(again) == scores(first)
        assert heard.started == [("comparing", 1)]
        assert re.search(r"negative-\w+\.json: .*; the cell is trained again", heard.texts[0])
    content = path.read_bytes()
    for _ in range(50):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        assert scores(run(work, tmp_path / "out")) == scores(first)


def test_data_are_read_once_and_labels_hidden_once(work, tmp_path, monkeypatch):
    read, drawn = [], []
    init, draw = Data.__init__, Data._draw
    monkeypatch.setattr(Data, "__init__", lambda self, *given: (read.append(1), init(self, *given))[1])
    monkeypatch.setattr(Data, "_draw", lambda self, *given: (drawn.append(1), draw(self, *given))[1])
    run(work, tmp_path, "negative,wan,ignore", "random:0.5,balanced:0.5", seeds=2, settings={"epochs": 1})
    assert len(read) == 1
    assert len(drawn) == 2 * 3  # seeds × (two schemes and full labels)


@pytest.mark.slow  # two processes import torch
def test_processes_give_what_one_gives(work, tmp_path):
    one, two = (
        run(work, tmp_path / name, "negative,wan", settings={"epochs": 1}, jobs=jobs)
        for name, jobs in (("one", 1), ("two", 2))
    )
    assert scores(one) == scores(two)


def test_a_mistake_ends_the_comparison(work, tmp_path):
    """It is not taken for a method that cannot learn."""
    with pytest.raises(InputError, match='there is no setting "epoch"'):
        run(work, tmp_path, settings={"epoch": 3})
    with pytest.raises(InputError, match=r"none\.npy: no such file"):
        run(replace(work, features=str(tmp_path / "none.npy")), tmp_path)
    with pytest.raises(InputError, match='did you mean "epr"'):
        run(work, tmp_path, settings={"erp.k": 2})
    with pytest.raises(InputError, match="say --unlisted absent"):
        run(replace(work, unlisted="unknown"), tmp_path)
    with pytest.raises(InputError, match=r"500 images are asked for, but the training split .* has 120"):
        run(replace(work, images=500), tmp_path)


def test_a_method_that_cannot_learn_has_a_reason(work, tmp_path):
    found = run(work, tmp_path, "ignore", "single_positive")
    assert found.cells[-1]["score"] is None
    assert "absent" in found.cells[-1]["reason"]
    write_results(tmp_path, found, ["single_positive"])
    assert f"- `ignore` (single_positive): {found.cells[-1]['reason']}" in (tmp_path / "table.md").read_text()


def test_settings_of_one_method(work, tmp_path):
    found = run(work, tmp_path, "epr,epr:k=2", settings={**QUICK, "epr.k": 1.5}).cells
    assert [one["settings"]["parameters"].get("k") for one in found] == [None, 1.5, 2.0]
    assert {one["settings"]["head"]["epochs"] for one in found} == {3}


def test_fewer_images_are_the_same_for_all(work):
    settings = resolved("negative", {}, 1)
    few, more = (Data(replace(work, images=n)).drawn(Cell("negative", "full", 1, settings)) for n in (30, 60))
    assert len(few.labels) == len(few.features) == 30
    assert set(few.labels.images.to_pylist()) < set(more.labels.images.to_pylist())
    rows = Data(work).training.rows_of(few.labels.images)
    np.testing.assert_array_equal(few.features, np.load(work.features)[rows])
    other = Data(replace(work, images=30)).drawn(Cell("negative", "full", 2, settings))
    assert other.labels.images.to_pylist() != few.labels.images.to_pylist()


def test_a_feature_file_with_names_is_matched_by_them(work, tmp_path, rng):
    features, order = np.load(work.features), rng.permutation(160)
    np.save(tmp_path / "named.npy", features[order])
    write_feature_names(tmp_path / "named.npy", features[order], [str(row) for row in order], {})
    named = Data(replace(work, features=str(tmp_path / "named.npy")))
    np.testing.assert_array_equal(named._features, features[:120])
    np.testing.assert_array_equal(named._test_features, features[120:])


# ---- files of partial labels -------------------------------------------------------------------------------


def test_partial_labels_from_a_file(work, tmp_path):
    """Images and classes are matched by name; what the file lacks is unknown; test images do not count."""
    path = tmp_path / "masks.csv"
    path.write_text("image,present,absent\n7,c,a\n3,b,\n150,a,\n")
    (partial,) = [Data(work).partial(str(path))]
    expected = np.zeros((120, 3))
    expected[7], expected[3] = (-1, 0, 1), (0, 1, 0)
    np.testing.assert_array_equal(partial.dense(), expected)
    notes = Notes()
    found = run(work, tmp_path / "out", schemes="", files=[path], seeds=2, progress=notes)
    assert [one["scheme"] for one in found.cells] == ["full", "masks.csv"] * 2
    assert notes.texts == [f"{path}: knows nothing of 118 of the 120 training images"]
    names = {file.name for file in (tmp_path / "out").rglob("negative-*.json")}
    path.write_text("image,present,absent\n7,c,a\n3,b,\n150,a,\n5,b,\n")
    run(work, tmp_path / "out", schemes="", files=[path], seeds=2)
    assert len({file.name for file in (tmp_path / "out").rglob("negative-*.json")} - names) == 2


def test_a_partial_file_that_does_not_fit(work, tmp_path):
    path = tmp_path / "masks.csv"
    path.write_text("image,present\n7,cc\n")
    with pytest.raises(InputError, match=r'masks\.csv: there is no class "cc" in .*labels\.csv'):
        run(work, tmp_path / "out", files=[path])
    path.write_text("image,present\nx.jpg,c\n")
    with pytest.raises(InputError, match=r"masks\.csv: has none of the training images"):
        run(work, tmp_path / "out", files=[path])


# ---- epochs and clean labels -------------------------------------------------------------------------------


def test_watching_changes_nothing_and_says_what_each_epoch_gave(work, tmp_path):
    plain = run(work, tmp_path / "plain", seeds=2)
    watched = run(work, tmp_path / "plain", seeds=2, every_epoch=True)  # what is done lacks the epochs
    assert scores(watched) == scores(plain)
    for found in watched.cells:
        assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2, 3]
        kept = found["epochs"][found["best_epoch"] - 1]
        assert kept["test"] == pytest.approx(found["score"])
        assert kept["validation"] == found["validation"] == max(e["validation"] for e in found["epochs"])
    ceiling = watched.cells[0]
    for epoch in ceiling["epochs"]:  # with full labels the known ones are the clean ones
        assert epoch["clean"] == pytest.approx(epoch["validation"])
    again = run(work, tmp_path / "plain", seeds=2)
    assert not any("epochs" in found for found in again.cells)


def test_chosen_on_clean_labels(work, tmp_path):
    found = run(work, tmp_path, schemes="random:0.2", seeds=2, search=3, clean=True)
    assert len(found.clean) == len(found.cells) == 4
    chosen, other = [one for one in found.clean if one["method"] == "negative"]
    best = max(
        (epoch["clean"], -trial["trial"], -epoch["epoch"], epoch["test"])
        for trial in found.trials
        if trial["method"] == "negative"
        for epoch in trial["epochs"]
    )
    assert (chosen["validation"], -chosen["trial"], -chosen["best_epoch"], chosen["score"]) == best
    assert (other["seed"], other["trial"]) == (1, chosen["trial"])
    text = write_results(tmp_path, found, ["random:0.2"])
    assert "clean" not in text
    assert "## Chosen on clean labels" in (tmp_path / "table.md").read_text()


# ---- the search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name, kind in methods.available().items() if kind.__module__.startswith("tertium.")]
)
def test_every_method_has_a_space_of_values_that_it_accepts(name):
    assert set(SPACES.get(name, {})) <= set(methods.parameters_of(methods.find(name)))
    assert bool(SPACES.get(name)) == bool(methods.parameters_of(methods.find(name)))
    drawn = [trial_settings(name, trial) for trial in range(1, 60)]
    assert drawn[0] == {}
    for values in drawn:
        assert (
            resolved(name, values, 0)["parameters"].keys() == methods.parameters_of(methods.find(name)).keys()
        )
        own = {key: value for key, value in values.items() if key not in COMMON}
        methods.make(name, own)
    for key in drawn[1]:
        assert len({str(values[key]) for values in drawn[1:]}) > 1, key


def test_a_search_has_one_budget_and_chooses_on_known_validation_labels(work, tmp_path, monkeypatch):
    notes = Notes()
    options = {"methods": "negative,wan", "search": 3, "seeds": 2, "settings": {"epochs": 2}}
    found = run(work, tmp_path, **options, progress=notes)
    assert notes.started == [("searching", 9), ("comparing", 3)]
    assert notes.texts == [
        "3 trials for each row of each column are 9 cells; then come at most 3 for the other seeds"
    ]
    for name in ("bce", "negative", "wan"):
        trials = [trial for trial in found.trials if trial["method"] == name]
        assert [trial["trial"] for trial in trials] == [1, 2, 3]
        best = max(trials, key=lambda trial: trial["validation"])
        assert [trial["trial"] for trial in trials if trial["chosen"]] == [best["trial"]]
        used = [one for one in found.cells if one["method"] == name]
        assert [one["trial"] for one in used] == [best["trial"]] * 2
        assert used[0]["score"] == best["score"]
        assert used[1]["settings"] == best["settings"] | {"seed": 1}
    assert trials[0]["settings"]["head"]["lr"] == 3e-4  # the first is as it would be without a search
    assert trials[1]["settings"]["head"]["lr"] == trial_settings("wan", 2)["lr"]
    assert run(work, tmp_path, **options, progress=(again := Notes())).cells == found.cells
    assert again.started == [("searching", 0), ("comparing", 0)]


def test_what_is_given_is_not_sought(work, tmp_path):
    settings = {"epochs": 1, "lr": 0.01}
    found = run(work, tmp_path, "negative:positive_weight=3", search=2, settings=settings)
    trial = found.trials[-1]
    assert trial["settings"]["head"]["lr"] == 0.01
    assert trial["settings"]["parameters"] == {"positive_weight": 3.0}
    assert trial["tried"].startswith("weight_decay=")


def test_an_unlucky_trial_is_a_trial(work, tmp_path, monkeypatch):
    """As one whose loss is not finite; the same with given settings is a mistake."""
    monkeypatch.setitem(COMMON, "lr", Choice((99.0,)))
    factor = fitting.rate_factor
    # Beyond what settings allow, as an unlucky draw of several of them may be.
    monkeypatch.setattr(
        fitting, "rate_factor", lambda phase, done: factor(phase, done) * (1e37 if phase.lr == 99 else 1)
    )
    found = run(work, tmp_path / "a", search=2)
    assert found.trials[-1]["score"] is None
    assert "not finite" in found.trials[-1]["reason"]
    assert found.cells[-1]["trial"] == 1
    with pytest.raises(InputError, match="not finite"):
        run(work, tmp_path / "b", "negative:lr=99")


def test_a_search_needs_validation_labels(work, tmp_path):
    with pytest.raises(InputError, match="validation must be above 0"):
        run(work, tmp_path, search=2, settings={"validation": 0})


def test_a_recipe_is_a_row(work, tmp_path):
    methods = "negative,negative:recipe=cole2021,negative:select=last/clean,init=torch"
    found = run(work, tmp_path, methods, schemes="random:0.3")
    names = [
        "negative",
        "negative:recipe=cole2021",
        *(f"negative:select={how},init=torch" for how in ("last", "clean")),
    ]
    assert [one["method"] for one in found.cells] == ["bce", *names]
    recipe = found.cells[2]["settings"]
    assert (recipe["init"], recipe["select"], recipe["head"]["weight_decay"]) == ("torch", "clean", 0)
    assert recipe["head"]["epochs"] == 3  # what all cells are given overrides a recipe
    write_results(tmp_path, found, ["random:0.3"])
    text = (tmp_path / "table.md").read_text()
    rows = "`negative:recipe=cole2021`, `negative:select=clean,init=torch`"
    assert f"on **true labels** of the validation part, which no user has: {rows}." in text


def test_a_search_tries_what_the_authors_of_a_recipe_tried(work, tmp_path):
    settings = {"epochs": 1}
    found = run(work, tmp_path, "negative:recipe=cole2021,lr=0.001", search=4, settings=settings)
    trials = [trial for trial in found.trials if trial["method"] != "bce"]
    assert [trial["settings"]["head"]["batch_size"] for trial in trials] == [16, 8, 16, 8]
    assert {trial["settings"]["head"]["lr"] for trial in trials} == {0.001}
    best = max(trials, key=lambda trial: trial["validation"])
    assert best["chosen"]
    assert best["validation"] is not None


# ---- tables ------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_students_t(rng):
    for count in (2, 3, 5, 11):
        values = rng.normal(size=count)
        low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
        assert half_interval(values) == pytest.approx((high - low) / 2, rel=1e-3)
    assert half_interval(np.array([1.0])) is None


def test_the_best_and_those_level_with_it_are_marked():
    """Level is judged by pairs: b is always below a by a little, c crosses it, d cannot be trained."""
    table = {"a": (0.50, 0.60, 0.70), "b": (0.48, 0.58, 0.68), "c": (0.49, 0.61, 0.68), "d": (None,) * 3}
    cells = [
        cell(name, "random:0.5", seed, value) for name, row in table.items() for seed, value in enumerate(row)
    ]
    row = {name: entries["random:0.5"] for name, entries in summarise(cells).items()}
    assert {name for name, entry in row.items() if entry.best} == {"a", "c"}
    assert row["a"].mean == pytest.approx(0.6)
    assert row["d"].mean is None
    text = markdown(summarise(cells), ["random:0.5"])
    assert "| `a` | **60.0 ± 24.8** | 60.0 |" in text
    assert "| `d` | – | – |" in text
    assert text.index("`a`") < text.index("`c`") < text.index("`b`")


def test_the_command(work, tmp_path, tertium):
    out = tmp_path / "results"
    words = ("compare", "--labels", work.labels, "--unlisted", "absent", "--features", work.features)
    code, text, errors = tertium(
        *(*words, "--methods", "negative,epr:strength=0.5/2", "--schemes", "random:0.5"),
        *("--seeds", 2, "--search", 2, "--every-epoch", "--clean-validation", "--jobs", 1, "--sample", 100),
        *("--out", out, "epochs=2", "batch_size=32", "epr.k=1.5"),
    )
    assert code == 0, errors
    assert "`epr:strength=0.5`" in text
    assert (out / "table.svg").read_text().count("<svg") == 1
    tables = {path.name: list(csv.DictReader(path.open())) for path in out.glob("*.csv")}
    assert {name: len(rows) for name, rows in tables.items()} == {
        "results.csv": 2 * 4,
        "results-clean.csv": 2 * 4,
        "results-classes.csv": 2 * 4 * 3,
        "results-epochs.csv": 2 * 4 * 2,
        "search.csv": 2 * 4,
    }
    by_class = tables["results-classes.csv"][-1]
    assert by_class["class"] == "c"
    assert int(by_class["present"]) < int(by_class["truly_present"])
    assert "test" not in tables["search.csv"][0]
    assert "score" not in tables["search.csv"][0]
    for heading in ("Chosen on clean labels", "The last epoch", "Classes by known labels: random:0.5"):
        assert f"## {heading}" in (out / "table.md").read_text()
    code, _, errors = tertium(*words, "--schemes", "randm:0.5", "--out", out)
    assert code == 2
    assert 'did you mean "random"' in errors


def test_full_labels_may_be_a_column(work, tmp_path, tertium):
    """The ceiling has figures in that column alone."""
    words = ("compare", "--labels", work.labels, "--unlisted", "absent", "--features", work.features)
    code, _, errors = tertium(
        *(*words, "--methods", "negative", "--schemes", "full,random:0.5", "--seeds", 1, "--jobs", 1),
        *("--out", tmp_path / "results", "epochs=1"),
    )
    assert code == 0, errors
    assert "| `bce` | " in (tmp_path / "results" / "table.md").read_text()


def test_groups_are_fifths_of_the_classes_by_known_labels(tmp_path, rng):
    """Recomputed class by class from the file of classes."""
    features = rng.normal(size=(200, 10)).astype(np.float32)
    rare = np.linspace(-1, 1.5, 10)
    present = [";".join(np.array(list("abcdefghij"))[row]) for row in features > rare]
    rows = "".join(f"{n},{names},{'train' if n < 120 else 'test'}\n" for n, names in enumerate(present))
    (tmp_path / "labels.csv").write_text("image,present,split\n" + rows)
    np.save(tmp_path / "x.npy", features)
    work = Work(str(tmp_path / "labels.csv"), str(tmp_path / "x.npy"), "absent")
    found = run(work, tmp_path, schemes="positives:0.5")
    write_results(tmp_path, found, ["positives:0.5"])
    by_class = [
        row for row in csv.DictReader((tmp_path / "results-classes.csv").open()) if row["method"] != "bce"
    ]
    order = sorted(range(10), key=lambda c: int(by_class[c]["present"]) + int(by_class[c]["absent"]))
    means = [50 * sum(float(by_class[c]["ap"]) for c in order[k : k + 2]) for k in range(0, 10, 2)]
    shown = " | ".join(f"{mean:.1f}" for mean in means)
    assert f"| `negative` | {shown} |" in (tmp_path / "table.md").read_text()


def test_published_masks(coco, tmp_path):
    """One positive of each image, as published, is what training sees."""
    work = Work(
        str(coco / "labels.csv"),
        str(coco / "train_features.npy"),
        "absent",
        str(coco / "test_features.npy"),
        images=500,
    )
    path = coco / "published_singlelabel.csv"
    found = run(work, tmp_path, schemes="", files=[path], settings={"epochs": 1}).cells[-1]
    assert found["scheme"] == "published_singlelabel.csv"
    assert sum(found["absent"]) == 0
    assert 0 < sum(found["present"]) <= 500
    assert np.all(np.array(found["present"]) <= np.array(found["truly_present"]))


def test_other_names_are_other_data(work, tmp_path):
    """The files that say which row is which image, and what a class is called, count as much as the rest."""
    array, plain = np.load(work.features), work.fingerprint()
    names = [str(number) for number in range(len(array))]
    write_feature_names(work.features, array, names, {})
    named = work.fingerprint()
    write_feature_names(work.features, array, names[::-1], {})
    assert len({plain, named, work.fingerprint()}) == 3
    new_names = tmp_path / "names.csv"
    new_names.write_text("from,to\na,x\n")
    renamed = replace(work, labels=LabelFile.with_options(work.labels, rename=new_names))
    before = renamed.fingerprint()
    new_names.write_text("from,to\na,y\n")
    assert renamed.fingerprint() != before


def test_a_cell_file_is_plain_json(work, tmp_path):
    run(work, tmp_path)
    for path in tmp_path.rglob("cells/*/*.json"):
        assert json.loads(path.read_text())["settings"]["head"]["epochs"] == 3


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
