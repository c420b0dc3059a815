"""The label tree: walking it, and what is said about a file that is not one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels.names import tidy
from tertium.labels.tree import LabelTree

PARENTS = {"car": "vehicle", "boat": "vehicle", "sloop": "boat", "oak": "plant"}


@pytest.fixture
def tree() -> LabelTree:
    return LabelTree(PARENTS)


def write(folder: Path, text: str, name: str = "tree.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_walks(tree: LabelTree) -> None:
    assert tree.roots == ("plant", "vehicle")
    assert tree.names == ("boat", "car", "oak", "plant", "sloop", "vehicle")
    assert tree.parent("sloop") == "boat"
    assert tree.parent("vehicle") is None
    assert tree.children("vehicle") == ("boat", "car")
    assert tree.ancestors("sloop") == ("boat", "vehicle")
    assert tree.descendants("vehicle") == ("boat", "car", "sloop")
    assert tree.descendants("sloop") == ()


def test_a_class_outside_the_tree_is_its_own_root(tree: LabelTree) -> None:
    assert tree.parent("moon") is None
    assert tree.children("moon") == tree.ancestors("moon") == tree.descendants("moon") == ()
    tree.check([*tree.names, "moon"])


def test_cannot_be_changed() -> None:
    mine = dict(PARENTS)
    tree = LabelTree(mine)
    mine["car"] = "plant"
    assert tree.parent("car") == "vehicle"
    with pytest.raises(TypeError):
        tree.parents["car"] = "plant"  # type: ignore[index]


def test_equal_whatever_the_order(tree: LabelTree) -> None:
    backwards = LabelTree(dict(reversed(PARENTS.items())))
    assert tree == backwards
    assert hash(tree) == hash(backwards)
    assert tree.children("vehicle") == backwards.children("vehicle")
    assert tree != LabelTree({"car": "vehicle"})
    assert pickle.loads(pickle.dumps(tree)) == tree


def test_reads_csv_and_json_alike(tree: LabelTree, tmp_path: Path) -> None:
    lines = "".join(f"{parent}, {child}\n" for child, parent in PARENTS.items())
    turned = "".join(f"{child},{parent}\n" for child, parent in PARENTS.items())
    assert LabelTree.from_csv(write(tmp_path, "parent,child\n" + lines)) == tree
    assert LabelTree.from_csv(write(tmp_path, "\ufeffchild,parent\r\n" + turned + "\n")) == tree
    assert LabelTree.from_json(write(tmp_path, json.dumps(PARENTS), "tree.json")) == tree


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(tidy).filter(bool)


@settings(deadline=None, max_examples=40)
@given(st.lists(NAMES, min_size=2, unique=True))
def test_written_trees_read_back(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("tree")
    tree = LabelTree({name: names[place // 2] for place, name in enumerate(names) if place})
    tree.to_csv(folder / "tree.csv")
    tree.to_json(folder / "tree.json")
    assert LabelTree.from_csv(folder / "tree.csv") == LabelTree.from_json(folder / "tree.json") == tree


def test_a_name_that_nobody_sees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the label tree: needs a parent and a child, not 'a' and '\\u200b'"
    ):
        LabelTree({"\u200b": "a"})
    with pytest.raises(InputError, match="line 2: needs a parent and a child"):
        LabelTree.from_csv(write(tmp_path, "parent,child\na,\u200b\n"))


def test_the_same_pair_twice_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path, "parent,child\na,b\na,b\n")
    assert LabelTree.from_csv(path) == LabelTree({"b": "a"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parent,child\na,b\nc,b\n", 'line 3: "b" has two parents, "a" and "c"'),
        ("parent,child\na,b\nb,c\n\nc,a\n", "line 5: the tree goes round in a circle: a → c → b → a"),
        ("parent,child\na,b\nc,c\n", "line 3: the tree goes round in a circle: c → c"),
        ("parent,chidl\na,b\n", 'line 1: unknown column "chidl"; did you mean "child"?'),
        ("parent\na\n", "line 1: the columns must be parent,child"),
        ("", "line 1: the columns must be parent,child"),
        ("parent,child\na,b\nc\n", "line 3: needs a parent and a child, not 'c'"),
        ("parent,child\na,\n", "line 2: needs a parent and a child, not 'a,'"),
    ],
)
def test_bad_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        LabelTree.from_csv(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"b": "a", "b": "c"}', '"b" has two parents, "a" and "c"'),
        ('{"b": "a", "a": "b"}', "the tree goes round in a circle: a → b → a"),
        ('{"b": 3}', 'the parent of "b" must be a name'),
        ('{"b": {"a": {}}}', 'the parent of "b" must be a name'),
        ('[["b", "a"]]', "must hold one object"),
        ('{"b": "a"', "not valid JSON"),
    ],
)
def test_bad_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "tree.json")
    with pytest.raises(InputError) as caught:
        LabelTree.from_json(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        LabelTree.from_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        LabelTree.from_json(tmp_path)
    (tmp_path / "latin.csv").write_bytes("parent,child\nété,b\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.csv: not UTF-8"):
        LabelTree.from_csv(tmp_path / "latin.csv")


def test_circle_without_a_file() -> None:
    with pytest.raises(InputError, match="circle: a → b → a"):
        LabelTree({"b": "a", "a": "b"})


def test_check_names_the_nearest_class(tree: LabelTree) -> None:
    classes = ["bote", "car", "oak", "plant", "sloop", "vehicle"]
    with pytest.raises(InputError) as caught:
        tree.check(classes)
    assert str(caught.value) == 'the label tree names "boat", which is not a class; did you mean "bote"?'
    with pytest.raises(InputError, match=r"\(2 such names\)"):
        tree.check(classes[:-1])


@given(st.lists(st.integers(min_value=0), min_size=1, max_size=12))
def test_ancestors_and_descendants_agree(picks: list[int]) -> None:
    # Name n hangs below an earlier name, or is a root: every such list is a forest.
    parents = {str(n): str(pick % n) for n, pick in enumerate(picks) if n and pick % (n + 1)}
    tree = LabelTree(parents)
    for name in tree.names:
        assert set(tree.descendants(name)) == {other for other in tree.names if name in tree.ancestors(other)}
        assert len(set(tree.descendants(name))) == len(tree.descendants(name))
        assert [tree.parent(child) for child in tree.children(name)] == [name] * len(tree.children(name))
        assert (name in tree.roots) == (not tree.ancestors(name))
