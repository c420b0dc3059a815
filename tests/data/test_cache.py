"""A folder of bounded size that threads and processes share: nothing is made twice, nothing is half made."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tertium.data.sources import cache as cache_module
from tertium.data.sources.cache import Cache, image_cache
from tertium.errors import InputError


def size(cache):
    return sum(path.stat().st_size for path in cache.folder.rglob("*") if path.is_file())


def content(cache, key, make):
    with cache.opened(key, make) as file:
        return file.read()


def test_what_was_used_least_recently_goes_first(tmp_path):
    cache = Cache(tmp_path, 1000)
    for number in range(9):
        content(cache, str(number), lambda: b"x" * 100)
        os.utime(cache.file(str(number), None), ns=(number, number))
    content(cache, "0", None)  # used again, so that it stays
    content(cache, "more", lambda: b"x" * 200)
    assert size(cache) <= 900
    assert content(cache, "0", None) == b"x" * 100
    made = []
    content(cache, "1", lambda: made.append(1) or b"")
    assert made


def test_a_process_that_knows_nothing_counts_what_others_left(tmp_path):
    content(Cache(tmp_path, 1000), "old", lambda: b"x" * 900)
    content(Cache(tmp_path, 1000), "new", lambda: b"x" * 900)
    assert size(Cache(tmp_path, 1000)) == 900


def test_threads_make_a_file_once(tmp_path):
    cache, made = Cache(tmp_path, 1000), []

    def make():
        made.append(1)
        time.sleep(0.05)
        return b"content"

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: content(cache, "key", make), range(8))) == {b"content"}
    assert made == [1]


def test_what_fails_leaves_nothing(tmp_path):
    cache = Cache(tmp_path, 1000)

    def fail():
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        content(cache, "key", fail)
    assert size(cache) == 0
    assert content(cache, "key", lambda: b"now") == b"now"


def test_a_file_that_goes_away_is_made_again(tmp_path, monkeypatch):
    """Another process may need the room between finding a file and opening it."""
    cache, plain = Cache(tmp_path, 1000), cache_module._used

    def gone(path):
        found = plain(path)
        path.unlink(missing_ok=True)
        monkeypatch.setattr(cache_module, "_used", plain)
        return found

    content(cache, "key", lambda: b"first")
    monkeypatch.setattr(cache_module, "_used", gone)
    assert content(cache, "key", lambda: b"second") == b"second"


def test_the_place_and_the_limit_are_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE", str(tmp_path))
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE_GB", "0.5")
    assert (image_cache().folder, image_cache().limit) == (tmp_path, 2**29)
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv("TERTIUM_IMAGE_CACHE_GB", wrong)
        with pytest.raises(InputError, match=f'is a number of gigabytes, not "{wrong}"'):
            image_cache()
    monkeypatch.delenv("TERTIUM_IMAGE_CACHE")
    monkeypatch.setenv("TERTIUM_IMAGE_CACHE_GB", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert image_cache().folder == tmp_path / "tertium" / "images"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError, match=r"images cannot be kept there .*; set TERTIUM_IMAGE_CACHE to another"
    ):
        content(Cache(tmp_path / "file", 1000), "key", lambda: b"")
