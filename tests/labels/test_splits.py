import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels.splits import divide, places

NAMES = [f"{number:06d}.jpg" for number in range(4000)]


def second(names, fraction=0.15, seed=0, same=None, **words):
    """The names of the second part."""
    first, rows = divide(names, fraction, seed, same, **words)
    assert sorted([*first, *rows]) == list(range(len(names)))  # no row is lost, none is there twice
    return {names[row] for row in rows}


def test_places_never_change():
    """These values are a promise: with others, validation images of old runs become training images."""
    found = places(["a.jpg", "photos/b.jpg", "0", "Ünïcode/é.png", ""], 0)
    np.testing.assert_array_equal(
        found,
        [0.7172617655410679, 0.9730173582723702, 0.9875073987884524, 0.5093676201981002, 0.02644594351519769],
    )
    assert places(["a.jpg"], 7)[0] == 0.8772317461141997
    assert places(["a.jpg"], 0, "rehearse")[0] == 0.9675875635936704


def test_a_place_is_what_the_docs_say():
    digest = hashlib.sha256(b"val/3/dir/x.jpg").digest()
    assert places(["dir/x.jpg"], 3)[0] == pytest.approx(int.from_bytes(digest[:8], "big") / 2**64, abs=2e-16)


def test_a_name_has_one_place_in_either_normal_form():
    assert places(["caf\u00e9.jpg"], 0) == places(["cafe\u0301.jpg"], 0)


def test_neither_order_nor_more_images_move_an_image():
    whole = second(NAMES)
    assert second(NAMES[::-1]) == whole
    assert second(NAMES[:1000]) == whole & set(NAMES[:1000])
    assert second(NAMES[1500:1700]) == whole & set(NAMES[1500:1700])


def test_the_share_is_about_what_was_asked_for_and_larger_ones_only_add():
    for seed in range(5):
        small, large = second(NAMES, 0.15, seed), second(NAMES, 0.3, seed)
        assert abs(len(small) - 600) < 4 * np.sqrt(4000 * 0.15 * 0.85)
        assert small < large


def test_seeds_and_purposes_divide_independently():
    """What is left by one division is divided by the next in the same shares."""
    part = second(NAMES, 0.25, 0, purpose="rehearse")
    rest = [name for name in NAMES if name not in part]
    assert abs(len(second(rest, 0.15, 0)) - 450) < 80
    both = len(second(NAMES, 0.15, 0) & second(NAMES, 0.15, 1))
    assert abs(both - 90) < 40


@given(st.lists(st.text(max_size=8), unique=True, min_size=2, max_size=12), st.floats(0.01, 0.99))
def test_a_handful_of_images_has_two_parts(names, fraction):
    assert 0 < len(second(names, fraction)) < len(names)


def test_one_image_cannot_be_divided():
    assert second(["a"], 0.99) == set()
    assert second([], 0.5) == set()
    assert second(["a", "b", "c"], 0.9, same=np.array([5, 5, 5])) == set()


def test_copies_have_the_part_of_their_first_name(rng):
    same = rng.integers(0, 1500, size=len(NAMES))
    names = list(rng.permutation(NAMES))
    firsts = {}
    for name, group in zip(names, same, strict=True):
        firsts[group] = min(name, firsts.get(group, name))
    whole = second(names)
    expected = {name for name, group in zip(names, same, strict=True) if firsts[group] in whole}
    assert second(names, same=same) == expected
    order = rng.permutation(len(names))
    assert second([names[row] for row in order], same=same[order]) == expected
    assert second(names, same=np.arange(len(names))) == whole  # without copies nothing changes


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_the_share_must_be_possible(fraction):
    with pytest.raises(InputError, match="between 0 and 1"):
        divide(["a"], fraction, 0)
