"""Schemes: they only forget, keep exactly what they say, and depend on names and seed alone."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium import schemes
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.tree import LabelTree
from tertium.schemes import (
    Balanced,
    Budget,
    Federated,
    Hierarchy,
    PerClass,
    PerImage,
    Positives,
    Random,
    Salient,
    Scheme,
    Session,
)

Matrix = npt.NDArray[np.int8]
SEEDS = st.integers(min_value=-3, max_value=2**70)
SHARES = st.floats(min_value=0.01, max_value=1)
COUNTS = st.one_of(st.just("all"), st.integers(1, 5))


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    values = st.lists(st.sampled_from([-1, -1, 0, 1, 1]), min_size=rows * columns, max_size=rows * columns)
    return np.array(draw(values), dtype=np.int8).reshape(rows, columns)


def named(matrix: Matrix) -> Labels:
    rows, columns = matrix.shape
    classes, images = [f"class {c}" for c in range(columns)], [f"{r}.jpg" for r in range(rows)]
    return Labels.from_dense(matrix, classes=classes, images=images)


@st.composite
def trees(draw: st.DrawFn, labels: Labels) -> LabelTree:
    """A random forest over the classes, some of them outside it."""
    parents = {}
    for number in range(1, len(labels.classes)):
        above = draw(st.integers(-1, number - 1))
        if above >= 0:
            parents[labels.classes[number]] = labels.classes[above]
    return LabelTree(parents)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Labels, Scheme, int]:
    labels = named(draw(matrices()))
    factor = st.floats(0, 4)
    scheme = draw(
        st.one_of(
            st.just(schemes.Full()),
            st.just(schemes.SinglePositive()),
            st.builds(Random, SHARES),
            st.builds(Positives, SHARES),
            st.builds(PerImage, COUNTS, COUNTS),
            st.builds(PerClass, st.integers(1, 6)),
            st.builds(Balanced, SHARES, factor),
            st.builds(Federated, SHARES, factor),
            st.builds(Hierarchy, trees(labels)),
            st.builds(Salient, SHARES, factor),
            st.builds(Budget, st.integers(1, 6)),
            st.builds(Session, SHARES),
        )
    )
    return labels, scheme, draw(SEEDS)


def counts(matrix: Matrix, axis: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.sum(matrix > 0, axis=axis), np.sum(matrix < 0, axis=axis)


# ---- every scheme ------------------------------------------------------------------------------------------


@given(cases())
def test_never_invents_or_changes_a_label(case: tuple[Labels, Scheme, int]) -> None:
    labels, scheme, seed = case
    before, after = labels.dense(), scheme.apply(labels, seed).dense()
    assert ((after == 0) | (after == before)).all()
    assert labels.dense().tolist() == before.tolist()


@given(cases())
def test_same_seed_same_result(case: tuple[Labels, Scheme, int]) -> None:
    labels, scheme, seed = case
    assert scheme.apply(labels, seed) == scheme.apply(labels, seed)


@given(cases(), st.randoms(use_true_random=False))
def test_order_of_images_and_classes_does_not_matter(
    case: tuple[Labels, Scheme, int], order: random.Random
) -> None:
    labels, scheme, seed = case
    rows, columns = list(range(len(labels))), list(range(len(labels.classes)))
    order.shuffle(rows)
    order.shuffle(columns)
    moved = labels[np.array(rows)].with_classes([labels.classes[c] for c in columns])
    expected = scheme.apply(labels, seed).dense()[rows][:, columns]
    assert scheme.apply(moved, seed).dense().tolist() == expected.tolist()


@given(cases())
def test_the_text_of_a_scheme_gives_it_back(case: tuple[Labels, Scheme, int]) -> None:
    _, scheme, _ = case
    assert schemes.parse(str(scheme), getattr(scheme, "tree", None)) == scheme


@pytest.mark.parametrize(
    "spec",
    [
        "random:0.3",
        "ppl:0.3",
        "spl",
        "per_image:2,2",
        "fpc:5",
        "balanced:0.3",
        "federated",
        "hierarchy",
        "salient:0.3",
        "budget:2",
        "session:0.3",
    ],
)
def test_another_seed_keeps_other_labels(spec: str) -> None:
    labels = named(random_matrix(200, 6))
    scheme = schemes.parse(spec, LabelTree({"class 1": "class 0", "class 2": "class 1"}))
    one, other = scheme.apply(labels, 0), scheme.apply(labels, 1)
    assert one != other
    assert 0 < one.known < labels.known


def test_splits_and_names_stay() -> None:
    plain = named(random_matrix(4, 3))
    labels = dataclasses.replace(plain, splits=pa.array(["train", "test"] * 2).dictionary_encode())
    kept = Random(0.5).apply(labels, 0)
    assert (kept.classes, kept.images, kept.split_names()) == (plain.classes, plain.images, ["test", "train"])


def test_priorities_are_those_of_the_scalar_formula() -> None:
    labels = named(np.array([[1, 0, -1], [0, 1, 1]], dtype=np.int8))
    rows, columns, _ = labels.coo()
    expected = [scalar_hash(5, "keep", f"{r}.jpg", f"class {c}") for r, c in zip(rows, columns, strict=True)]
    assert schemes._priorities(labels, 5).tolist() == expected


def test_every_image_and_class_has_the_same_chance() -> None:
    labels = named(np.ones((1000, 50), dtype=np.int8))
    kept = Random(0.2).apply(labels, 3).dense()
    # 200 expected of 1000 in a class, standard deviation 12.6; 10 of 50 in an image, standard deviation 2.8.
    assert abs(kept.sum(axis=0) - 200).max() < 5 * 12.6
    assert abs(kept.sum(axis=0) - 200).mean() > 4  # and not evened out either
    assert 2.4 < kept.sum(axis=1).std() < 3.2


# ---- how many each one keeps -------------------------------------------------------------------------------


@given(matrices(), SHARES, SEEDS)
def test_random_keeps_the_share_exactly(matrix: Matrix, keep: float, seed: int) -> None:
    assert Random(keep).apply(named(matrix), seed).known == round(keep * np.count_nonzero(matrix))


@given(matrices(), SHARES, SEEDS)
def test_positives_keeps_the_share_exactly(matrix: Matrix, keep: float, seed: int) -> None:
    kept = Positives(keep).apply(named(matrix), seed).dense()
    assert counts(kept) == (round(keep * (matrix > 0).sum()), 0)


@given(matrices(), SEEDS)
def test_single_positive_keeps_one_where_there_is_one(matrix: Matrix, seed: int) -> None:
    present, absent = counts(schemes.SinglePositive().apply(named(matrix), seed).dense(), axis=1)
    assert present.tolist() == (matrix > 0).any(axis=1).astype(int).tolist()
    assert not absent.any()


@given(matrices(), COUNTS, COUNTS, SEEDS)
def test_per_image_counts(matrix: Matrix, positives: int | str, negatives: int | str, seed: int) -> None:
    kept = PerImage(positives, negatives).apply(named(matrix), seed).dense()  # type: ignore[arg-type]
    wanted = [99 if count == "all" else int(count) for count in (positives, negatives)]
    for have, keep, limit in zip(counts(matrix, axis=1), counts(kept, axis=1), wanted, strict=True):
        assert keep.tolist() == np.minimum(have, limit).tolist()


@given(matrices(), st.integers(1, 6), SEEDS)
def test_per_class_counts(matrix: Matrix, n: int, seed: int) -> None:
    kept = counts(PerClass(n).apply(named(matrix), seed).dense(), axis=0)
    for have, keep in zip(counts(matrix, axis=0), kept, strict=True):
        assert keep.tolist() == np.minimum(have, n).tolist()


@given(matrices(), SHARES, st.floats(0, 4), SEEDS)
def test_balanced_counts(matrix: Matrix, keep: float, negatives: float, seed: int) -> None:
    present, absent = counts(Balanced(keep, negatives).apply(named(matrix), seed).dense())
    assert present == round(keep * (matrix > 0).sum())
    assert absent == min(round(negatives * present), (matrix < 0).sum())


@given(matrices(), SHARES, st.floats(0, 4), SEEDS)
def test_federated_counts(matrix: Matrix, keep: float, negatives: float, seed: int) -> None:
    kept = Federated(keep, negatives).apply(named(matrix), seed).dense()
    for have, left in zip(matrix.T, kept.T, strict=True):
        present = (have > 0).sum()
        expected = max(round(keep * present), 1) if present else 0
        assert (left > 0).sum() == expected
        assert (left < 0).sum() == min(round(negatives * expected), (have < 0).sum())


@given(
    matrices(),
    st.sampled_from([Random, Positives, Balanced, Federated, Salient, Session]),
    st.tuples(SHARES, SHARES).map(sorted),
    SEEDS,
)
def test_a_larger_share_contains_the_smaller(
    matrix: Matrix, kind: type[Random], shares: list[float], seed: int
) -> None:
    small, large = (kind(keep).apply(named(matrix), seed).dense() for keep in shares)
    assert ((small == 0) | (small == large)).all()


@given(matrices(), st.sampled_from(["per_class:{}", "per_image:{0},{0}", "budget:{}"]), SEEDS)
def test_a_larger_count_contains_the_smaller(matrix: Matrix, spec: str, seed: int) -> None:
    small, large = (schemes.parse(spec.format(n)).apply(named(matrix), seed).dense() for n in (1, 3))
    assert ((small == 0) | (small == large)).all()


def test_schemes_share_their_positives() -> None:
    labels = named(random_matrix(50, 8))
    specs = ["single_positive", "per_image:1,1", "per_image:1,all"]
    kept = [schemes.parse(spec).apply(labels, 7).dense() > 0 for spec in specs]
    assert (kept[0] == kept[1]).all()
    assert (kept[0] == kept[2]).all()


# ---- annotators who choose ---------------------------------------------------------------------------------


@given(matrices(), SHARES, st.floats(0, 4), SEEDS)
def test_salient_counts(matrix: Matrix, keep: float, negatives: float, seed: int) -> None:
    present, absent = counts(Salient(keep, negatives).apply(named(matrix), seed).dense())
    assert present == round(keep * (matrix > 0).sum())
    assert absent == min(round(negatives * present), (matrix < 0).sum())


@given(matrices(), st.integers(1, 6), SEEDS)
def test_budget_notes_present_labels_first(matrix: Matrix, k: int, seed: int) -> None:
    have, kept = counts(matrix, axis=1), counts(Budget(k).apply(named(matrix), seed).dense(), axis=1)
    assert kept[0].tolist() == np.minimum(have[0], k).tolist()
    assert kept[1].tolist() == np.minimum(have[1], k - kept[0]).tolist()


@given(matrices(), SHARES, SEEDS)
def test_session_looks_at_whole_images(matrix: Matrix, share: float, seed: int) -> None:
    kept = Session(share).apply(named(matrix), seed).dense()
    looked_at = (kept == matrix).all(axis=1)
    assert (looked_at | (kept == 0).all(axis=1)).all()
    assert looked_at.sum() >= round(share * len(matrix)) >= looked_at[(matrix != 0).any(axis=1)].sum()


@pytest.mark.parametrize("kind", [Salient(0.3), Budget(2)])
def test_what_shows_plainly_is_noted(kind: Salient | Budget) -> None:
    labels = named(random_matrix(400, 6))
    plainness = np.random.default_rng(1).normal(size=labels.shape)
    kept = dataclasses.replace(kind, plainness=plainness).apply(labels, 0).dense()
    full = labels.dense()
    noted, missed = (plainness[(full > 0) & known].mean() for known in (kept > 0, kept == 0))
    assert noted > missed + 0.5
    absent, passed = (plainness[(full < 0) & known] for known in (kept < 0, kept == 0))
    assert absent.size == 0 or abs(absent.mean() - passed.mean()) < 0.2  # those are drawn at random


def test_without_plainness_some_images_and_classes_are_plainer() -> None:
    """Labels are noted more unevenly than each by chance alone."""
    labels = named(np.ones((400, 40), dtype=np.int8))
    chosen, chance = (parse.apply(labels, 0).dense() > 0 for parse in (Salient(0.3), Random(0.3)))
    for axis in (0, 1):
        assert chosen.mean(axis=axis).std() > 2 * chance.mean(axis=axis).std()


def test_plainness_that_does_not_fit_is_refused() -> None:
    labels = named(random_matrix(4, 3))
    with pytest.raises(InputError, match=r"plainness must be \(4, 3\), as the labels are, not \(3, 4\)"):
        Salient(0.5, plainness=np.zeros((3, 4))).apply(labels, 0)
    with pytest.raises(InputError, match="plainness must be finite"):
        Budget(1, plainness=np.full((4, 3), np.nan)).apply(labels, 0)


# ---- hierarchy ---------------------------------------------------------------------------------------------


@given(st.data(), matrices(), SEEDS)
def test_hierarchy_agrees_with_a_walk_image_by_image(data: st.DataObject, matrix: Matrix, seed: int) -> None:
    labels = named(matrix)
    tree = data.draw(trees(labels))
    kept = Hierarchy(tree).apply(labels, seed).dense()
    for image, before, after in zip(labels.images.to_pylist(), matrix, kept, strict=True):
        truth = dict(zip(labels.classes, before.tolist(), strict=True))
        found = walk(tree, truth, image, seed)
        assert dict(zip(labels.classes, after.tolist(), strict=True)) == {n: found.get(n, 0) for n in truth}


def walk(tree: LabelTree, truth: dict[str, int], image: str, seed: int) -> dict[str, int]:
    """What the docstring of `Hierarchy` says, with one explicit path after the other."""
    roots = [name for name in truth if tree.parent(name) is None]
    known = {name: -1 for name in roots if truth[name] == -1}
    for path in [path for root in roots for path in paths(tree, truth, [root])]:
        stop = scalar_hash(seed, "hierarchy", image, path[-1]) // 2**32 * len(path) // 2**32
        verified = path[: stop + 1]
        known |= dict.fromkeys(verified, 1)
        for ancestor in verified[:-1]:
            known |= {name: -1 for name in tree.children(ancestor) if truth[name] == -1}
    return known


def paths(tree: LabelTree, truth: dict[str, int], path: list[str]) -> Iterator[list[str]]:
    if truth[path[-1]] == 1:
        below = [name for name in tree.children(path[-1]) if truth[name] == 1]
        if not below:
            yield path
        for name in below:
            yield from paths(tree, truth, [*path, name])


def test_hierarchy_by_hand() -> None:
    # a > b > c and a > d; e alone. Both b and d are present, c, too; so there are the paths a b c and a d.
    tree = LabelTree({"b": "a", "c": "b", "x": "b", "d": "a", "y": "a"})
    truth = {"a": 1, "b": 1, "c": 1, "d": 1, "e": -1, "x": -1, "y": -1}
    allowed = {
        # stops of (a b c, a d): what is left known, beside e which is always looked at
        "a-": {"a": 1},
        "a-b": {"a": 1, "b": 1, "y": -1},
        "a-b-c": {"a": 1, "b": 1, "c": 1, "x": -1, "y": -1},
        "a-d": {"a": 1, "d": 1, "y": -1},
        "a-b, d": {"a": 1, "b": 1, "d": 1, "y": -1},
        "a-b-c, d": {"a": 1, "b": 1, "c": 1, "d": 1, "x": -1, "y": -1},
    }
    images = [f"{n}.jpg" for n in range(600)]
    labels = Labels.from_dense([list(truth.values())] * 600, classes=list(truth), images=images)
    kept = Hierarchy(tree).apply(labels, 0).dense()
    seen = [frozenset((n, v) for n, v in zip(truth, row.tolist(), strict=True) if v) for row in kept]
    expected = {frozenset([*case.items(), ("e", -1)]) for case in allowed.values()}
    assert set(seen) == expected
    assert all(60 < seen.count(case) < 140 for case in expected)  # 1/3 × 1/2 each: 100 of 600


def test_hierarchy_does_not_reach_below_what_is_not_present() -> None:
    tree = LabelTree({"b": "a", "c": "b"})
    labels = Labels.from_dense([[-1, 1, 1], [0, 1, 1]], classes=["a", "b", "c"])
    assert Hierarchy(tree).apply(labels, 0).dense().tolist() == [[-1, 0, 0], [0, 0, 0]]


def test_hierarchy_names_a_class_that_the_labels_lack() -> None:
    with pytest.raises(InputError, match='names "clas 1", which is not a class; did you mean "class 1"'):
        Hierarchy(LabelTree({"clas 1": "class 0"})).apply(named(random_matrix(2, 2)), 0)


# ---- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("full", "full"),
        ("random:0.1", "random:0.1"),
        ("pal:0.1", "random:0.1"),
        ("rpa: keep = 0.1", "random:0.1"),
        ("rps:1", "random:1"),
        ("ppl:1.0", "positives:1"),
        ("spl", "single_positive"),
        ("per_image:1,all", "per_image:1,all"),
        ("per_image:negatives=all,positives=1", "per_image:1,all"),
        ("fpc:10", "per_class:10"),
        ("balanced:0.1", "balanced:0.1,1.25"),
        ("balanced:0.1,negatives=1.5", "balanced:0.1,1.5"),
        ("balanced:keep=0.1,negatives=1.25", "balanced:0.1,1.25"),
        ("federated", "federated:0.5,1"),
        ("federated:0.2", "federated:0.2,1"),
        ("hierarchy", "hierarchy"),
        ("salient:0.3", "salient:0.3,1"),
        ("salient:0.3,0", "salient:0.3,0"),
        ("budget:2", "budget:2"),
        ("session:0.25", "session:0.25"),
    ],
)
def test_parse(spec: str, canonical: str) -> None:
    assert str(schemes.parse(spec, LabelTree({}))) == canonical


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("randm:0.1", 'there is no scheme "randm"; did you mean "random"?'),
        ("random:kep=0.1", 'scheme "random" has no parameter "kep"; did you mean "keep"?'),
        ("random", 'scheme "random" needs a value for keep'),
        ("per_image", 'scheme "per_image" needs a value for positives and negatives'),
        ("per_image:1", 'scheme "per_image" needs a value for negatives'),
        ("random:0.1,0.2", 'scheme "random" takes only keep'),
        ("balanced:0.1,keep=0.2", 'scheme "balanced" takes a second value for keep'),
        ("full:0.1", 'scheme "full" takes no values, but got "0.1"'),
        ("hierarchy:0.1", 'scheme "hierarchy" takes no values, but got "0.1"'),
        ("hierarchy", 'scheme "hierarchy" walks a label tree, and none is given'),
        ("random:0", "random: keep must be a number above 0 and at most 1, not 0"),
        ("random:1.1", "random: keep must be a number above 0 and at most 1, not 1.1"),
        ("random:nan", "random: keep must be a number above 0 and at most 1, not nan"),
        ("random:all", "random: keep must be a number above 0 and at most 1, not all"),
        ("balanced:0.1,-1", "balanced: negatives must be a number from 0 up, not -1"),
        ("balanced:0.1,inf", "balanced: negatives must be a number from 0 up, not inf"),
        ("fpc:0", "per_class: n must be a whole number from 1 up, not 0"),
        ("fpc:1.5", "per_class: n must be a whole number from 1 up, not 1.5"),
        ("per_image:-1,all", 'per_image: positives must be a whole number from 0 up or "all", not -1'),
        ("per_image:1,al", 'per_image: negatives must be a whole number from 0 up or "all", not al'),
        ("session:0", "session: share must be a number above 0 and at most 1, not 0"),
        ("budget:0", "budget: k must be a whole number from 1 up, not 0"),
        ("per_image:0,0", "per_image: 0 positives and 0 negatives would keep nothing"),
    ],
)
def test_bad_text_is_named(spec: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        schemes.parse(spec)
    assert str(caught.value) == message


def test_available_lists_every_scheme_once() -> None:
    listed = schemes.available()
    assert set(listed) == set(Scheme.__subclasses__())
    words = [word for scheme in listed for word in (scheme.name, *scheme.aliases)]
    assert len(words) == len(set(words))
    assert all((scheme.__doc__ or "").splitlines()[0].startswith("Keeps ") for scheme in listed)


def test_bad_values_from_python_are_caught_too() -> None:
    with pytest.raises(InputError, match="keep must be"):
        Random(2)
    with pytest.raises(InputError, match="n must be"):
        PerClass(0)


# ---- written again, the slow way ---------------------------------------------------------------------------


def random_matrix(rows: int, columns: int) -> Matrix:
    return np.random.default_rng(0).choice([-1, 1], size=(rows, columns)).astype(np.int8)


def scalar_hash(seed: int, purpose: str, image: str, name: str) -> int:
    return mix(digest(image) ^ mix(digest(name) ^ digest(f"{purpose} {seed}")))


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)
