import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels.closure import ancestors, close
from tertium.labels.labels import ContradictionError, Labels
from tertium.labels.merging import Part, _with_new_names, join, merge
from tertium.labels.renaming import read_renaming
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

IMAGES, CLASSES = ["a", "b", "c", "d"], ["cat", "dog", "elk", "fox"]


def said(labels):
    matrix = labels.dense()
    return {
        (image, name): int(matrix[row, column])
        for row, image in enumerate(labels.images.to_pylist())
        for column, name in enumerate(labels.classes)
        if matrix[row, column]
    }


@st.composite
def part(draw):
    images = draw(st.lists(st.sampled_from(IMAGES), min_size=1, unique=True))
    classes = draw(st.lists(st.sampled_from(CLASSES), min_size=1, unique=True))
    values = draw(
        st.lists(
            st.sampled_from([-1, 0, 1]),
            min_size=len(images) * len(classes),
            max_size=len(images) * len(classes),
        )
    )
    matrix = np.array(values).reshape(len(images), len(classes))
    return Labels.from_dense(matrix, classes=classes, images=images)


@settings(max_examples=80, deadline=None)
@given(st.lists(part(), min_size=1, max_size=4), st.sampled_from(["absent", "present", "unknown", "error"]))
def test_merging_is_what_a_dictionary_would_do(parts, rule):
    heard: dict = {}
    for labels in parts:
        for cell, value in said(labels).items():
            heard.setdefault(cell, set()).add(value)
    clashes = {cell for cell, values in heard.items() if len(values) > 1}
    named = [Part(f"{number}.csv", labels) for number, labels in enumerate(parts)]
    if rule == "error" and clashes:
        with pytest.raises(InputError, match=r"listed both .* \(with it in \d\.csv, without it in \d\.csv\)"):
            join(named)
        return
    merged = join(named, contradictions=rule)
    value = {"absent": -1, "present": 1, "unknown": 0, "error": 0}[rule]
    expected = {cell: value if cell in clashes else min(values) for cell, values in heard.items()}
    assert said(merged.labels) == {cell: value for cell, value in expected.items() if value}
    assert merged.contradicted == len(clashes)
    assert merged.labels.images.to_pylist() == list(
        dict.fromkeys(image for labels in parts for image in labels.images.to_pylist())
    )
    assert set(merged.labels.classes) == {name for labels in parts for name in labels.classes}


def with_splits(labels, names):
    splits = pa.array(names).dictionary_encode()
    return Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)


def test_splits_are_kept_and_must_agree():
    one = with_splits(Labels.from_dense([[1], [1]], classes=["cat"], images=["a", "b"]), ["train", "test"])
    two = with_splits(Labels.from_dense([[1], [1]], classes=["dog"], images=["b", "c"]), ["test", "val"])
    plain = Labels.from_dense([[1]], classes=["dog"], images=["z"])
    merged = join([Part("1", one), Part("2", two), Part("3", plain)]).labels
    assert merged.splits.to_pylist() == ["train", "test", "val", None]
    wrong = with_splits(Labels.from_dense([[1]], classes=["dog"], images=["a"]), ["test"])
    with pytest.raises(InputError, match='wrong: image "a" is in split test, elsewhere in train'):
        join([Part("right", one), Part("wrong", wrong)])


def test_a_file_that_lists_everything_says_nothing_about_other_classes():
    cats = Labels.from_dense([[1], [0]], classes=["cat"], images=["a", "b"]).unlisted_absent()
    dogs = Labels.from_dense([[1]], classes=["dog"], images=["b"])
    merged = join([Part("cats", cats), Part("dogs", dogs)]).labels
    assert said(merged) == {("a", "cat"): 1, ("b", "cat"): -1, ("b", "dog"): 1}


def test_renaming(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text("file,from,to\n,kitten,cat\ntwo.csv,hound,dog\ntwo.csv,pup,dog\n")
    one = Labels.from_dense([[1, 1]], classes=["kitten", "hound"], images=["a"])
    matrix = [[1, -1], [-1, -1], [-1, 0], [0, 1]]
    two = Labels.from_dense(matrix, classes=["hound", "pup"], images=["p", "q", "r", "s"])
    parts = _with_new_names([Part("x/one.csv", one), Part("x/two.csv", two)], read_renaming(path))
    assert parts[0].labels.classes == ("cat", "hound")
    assert parts[1].labels.classes == ("dog",)
    # Any present makes the union present; it is absent only if both are.
    np.testing.assert_array_equal(parts[1].labels.dense(), [[1], [-1], [0], [1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the columns must be"),
        ("from,too\na,b\n", 'line 1: unknown column "too"; did you mean "to"'),
        ("from,to\na\n", "line 2: needs 2 columns"),
        ("from,to\nkitten,\n", "line 2: needs an old and a new name"),
        ("from,to\nkitten,a\nkitten,b\n", 'line 3: "kitten" has two new names, "a" and "b"'),
        ("from,to\nkittne,cat\n", 'there is no class "kittne"; did you mean "kitten"'),
        ("file,from,to\non.csv,kitten,cat\n", 'there is no file "on.csv"; did you mean "one.csv"'),
    ],
)
def test_bad_renaming(tmp_path, text, message):
    path = tmp_path / "names.csv"
    path.write_text(text)
    part = Part("one.csv", Labels.from_dense([[1]], classes=["kitten"]))
    with pytest.raises(InputError, match=message) as raised:
        _with_new_names([part], read_renaming(path))
    assert str(path) in str(raised.value)


# ---- what a hierarchy implies ------------------------------------------------------------------------------


@st.composite
def hierarchies(draw):
    """Return the names above each name; a name's parents are earlier names, so there is no circle."""
    return {
        name: draw(st.lists(st.sampled_from(CLASSES[:number]), max_size=2))
        for number, name in enumerate(CLASSES)
        if number
    }


@settings(max_examples=80, deadline=None)
@given(part(), hierarchies(), st.sampled_from(["absent", "present", "unknown", "error"]))
def test_closing_is_what_repeated_steps_give(labels, parents, rule):
    """The oracle applies the two rules edge by edge until nothing changes, over all names."""
    heard = {(cell, value) for cell, value in said(labels).items()}
    while True:
        more = set(heard)
        for (image, name), value in heard:
            if value > 0:
                more |= {((image, parent), 1) for parent in parents.get(name, ())}
            else:
                more |= {((image, child), -1) for child, above in parents.items() if name in above}
        if more == heard:
            break
        heard = more
    heard = {(cell, value) for cell, value in heard if cell[1] in labels.classes}
    clashes = {cell for cell, value in heard if (cell, -value) in heard}
    if rule == "error" and clashes:
        with pytest.raises(ContradictionError):
            close(labels, parents)
        return
    value = {"absent": -1, "present": 1, "unknown": 0, "error": 0}[rule]
    expected = {cell: value if cell in clashes else own for cell, own in heard}
    closed, count = close(labels, parents, contradictions=rule)
    assert said(closed) == {cell: own for cell, own in expected.items() if own}
    assert count == len(clashes)


def test_closing_by_a_tree():
    tree = LabelTree({"sloop": "boat", "boat": "vehicle"})
    labels = Labels.from_dense([[1, 0, 0], [0, 0, -1]], classes=["sloop", "car", "vehicle"])
    closed, clashes = close(labels, tree)  # "boat" is not a class: it is walked through
    np.testing.assert_array_equal(closed.dense(), [[1, 0, 1], [-1, 0, -1]])
    assert clashes == 0


class Heard(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_tree_that_closes_nothing_is_refused():
    boats = Labels.from_dense([[0]], classes=["boat"], images=["a"])
    sloops = Labels.from_dense([[1]], classes=["sloop"], images=["a"])
    with pytest.raises(InputError) as caught:
        merge([boats, sloops], close=LabelTree({"dog": "animal", "sloop": "boatt"}))  # the nearest is named
    assert str(caught.value) == 'the label tree names "boatt", which is not a class; did you mean "boat"?'


def test_names_in_a_tree_that_are_nearly_classes_are_noted():
    classes = ["boat", "sloop", "dog", "pet"]
    labels = Labels.from_dense([[0, 1, 1, 0]], classes=classes)
    other, heard = Labels.from_dense([[1]], classes=["sloop"]), Heard()
    tree = LabelTree({"sloop": "boatt", "dgo": "pet", "dog": "animal", "animal": "pet"})
    merged = merge([labels, other], close=tree, progress=heard)
    assert merged.labels.dense().tolist() == [[0, 1, 1, 1]]  # "animal" is passed through
    assert heard.notes == [
        'Note: the label tree names what is not a class: "boatt", where "boat" is one, "dgo", where "dog" is '
        "one."
    ]
    merge([labels, other], close=LabelTree({"dog": "animal", "animal": "pet"}), progress=heard)
    assert len(heard.notes) == 1


def test_spellings_of_an_image_that_contradict_each_other_are_named():
    with_it = Labels.from_dense([[1]], classes=["cat"], images=["./a"])
    without = Labels.from_dense([[-1]], classes=["cat"], images=["a"])
    with pytest.raises(InputError, match=r"\(with it in labels 1, without it in labels 2\)"):
        merge([with_it, without])
    both = Labels.from_dense([[1], [-1]], classes=["cat"], images=["./a", "a"])
    dogs = Labels.from_dense([[1]], classes=["dog"], images=["a"])
    with pytest.raises(InputError, match=r"\(with it in labels 1, without it in labels 1\)"):
        merge([both, dogs])


def test_a_rule_that_is_none():
    parts = [Labels.from_dense([[value]], classes=["cat"], images=["a"]) for value in (1, -1)]
    with pytest.raises(InputError, match='contradictions cannot be "abscent"; did you mean "absent"'):
        merge(parts, contradictions="abscent")


def test_circles_and_depth():
    with pytest.raises(InputError, match="circle: a → b → a"):
        ancestors({"a": ["b"], "b": ["a"]})
    deep = {str(number): [str(number + 1)] for number in range(5000)}
    assert len(ancestors(deep)["0"]) == 5000


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    from tertium.cli import main
    from tertium.labels.readers import read_labels

    def run(*words):
        monkeypatch.setattr("sys.argv", ["tertium", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    cats, dogs, tree, out = (tmp_path / name for name in ("cats.csv", "dogs.csv", "tree.csv", "both.parquet"))
    cats.write_text("image,present\na,cat\nb,\n")
    dogs.write_text("image,present\nb,dog\nc,\n")
    tree.write_text("parent,child\npet,cat\n")
    options = ["--unlisted", "absent", "--unlisted", "unknown", "--out", out]
    assert run("merge", cats, dogs, *options)[0] == 0
    assert said(read_labels(out)) == {("a", "cat"): 1, ("b", "cat"): -1, ("b", "dog"): 1}
    pets = tmp_path / "pets.csv"
    pets.write_text("image,present,absent\nc,,pet\n")
    assert run("merge", cats, pets, "--close", tree, "--out", out, "--overwrite")[0] == 0
    assert said(read_labels(out)) == {("a", "cat"): 1, ("a", "pet"): 1, ("c", "pet"): -1, ("c", "cat"): -1}
    code, printed = run("merge", cats, "--out", out, "--overwrite")
    assert code == 2
    assert "at least two" in printed.err
    code, printed = run("merge", cats, dogs, "--unlisted", "absent", *options, "--overwrite")
    assert "3 times for 2 files" in printed.err
