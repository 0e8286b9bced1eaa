"""The cache returns what was stored, or nothing."""

import os
import threading

import pytest

from sfsample.symbolize.disk_cache import DiskCache


@pytest.fixture
def cache(tmp_path):
    return DiskCache(str(tmp_path / "new" / "sfsample"))


def entry(tmp_path, name="a"):
    return tmp_path / "new" / "sfsample" / name


def test_a_payload_is_found_by_a_new_cache_object(cache, tmp_path):
    cache.put("a", b"payload")
    assert bytes(cache.get("a")) == b"payload"
    assert bytes(DiskCache(str(tmp_path / "new" / "sfsample")).get("a")) == b"payload"
    assert cache.get("b") is None


def test_no_other_user_may_read_the_cache(cache, tmp_path):
    cache.put("a", b"payload")
    assert os.stat(entry(tmp_path).parent).st_mode & 0o777 == 0o700
    assert os.stat(entry(tmp_path)).st_mode & 0o777 == 0o600
    assert os.listdir(entry(tmp_path).parent) == ["a"]


def test_an_empty_file_is_ignored(cache, tmp_path):
    cache.put("a", b"payload")
    entry(tmp_path).write_bytes(b"")
    assert cache.get("a") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_ignored(cache, tmp_path):
    cache.put("a", b"payload")
    os.chown(entry(tmp_path), 65534, 65534)
    assert cache.get("a") is None
    os.chown(entry(tmp_path), 0, 0)
    assert cache.get("a") is not None
    os.chown(entry(tmp_path).parent, 65534, 65534)
    assert DiskCache(str(entry(tmp_path).parent)).get("a") is None


def test_a_directory_that_other_users_may_enter_is_not_used(cache, tmp_path):
    cache.put("a", b"payload")
    entry(tmp_path).parent.chmod(0o755)
    other = DiskCache(str(entry(tmp_path).parent))
    assert other.get("a") is None
    other.put("b", b"x")
    assert os.listdir(entry(tmp_path).parent) == ["a"]


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_other_users_may_replace_is_not_used(cache, tmp_path, mode):
    """The right to write to a directory is the right to rename what is in it."""
    cache.put("a", b"payload")
    (tmp_path / "new").chmod(mode)
    assert DiskCache(str(entry(tmp_path).parent)).get("a") is None
    (tmp_path / "new").chmod(mode | 0o1000)  # sticky, as /tmp is
    assert DiskCache(str(entry(tmp_path).parent)).get("a") is not None


def test_a_directory_behind_a_link_that_others_may_replace_is_not_used(cache, tmp_path):
    cache.put("a", b"payload")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "new")
    assert DiskCache(str(tmp_path / "open" / "link" / "sfsample")).get("a") is not None
    (tmp_path / "open").chmod(0o777)
    assert DiskCache(str(tmp_path / "open" / "link" / "sfsample")).get("a") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_below_that_of_another_user_is_not_used(cache, tmp_path):
    cache.put("a", b"payload")
    os.chown(tmp_path / "new", 65534, 65534)
    assert DiskCache(str(entry(tmp_path).parent)).get("a") is None


def test_links_and_fifos_are_ignored(cache, tmp_path):
    cache.put("a", b"payload")
    entry(tmp_path, "b").symlink_to("a")
    assert cache.get("b") is None
    os.mkfifo(entry(tmp_path, "c"))
    assert cache.get("c") is None
    (tmp_path / "link").symlink_to(entry(tmp_path).parent)
    assert DiskCache(str(tmp_path / "link")).get("a") is None


def test_the_oldest_files_are_deleted_when_the_cache_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("sfsample.symbolize.disk_cache._MAX_BYTES", 1000)
    cache = DiskCache(str(tmp_path / "c"))
    for number, name in enumerate(("a", "b", "c")):
        cache.put(name, bytes(400))
        os.utime(tmp_path / "c" / name, (number, number))
    assert sorted(os.listdir(tmp_path / "c")) == ["b", "c"]
    assert cache.get("b") is not None  # and marks it as the newest
    os.utime(tmp_path / "c" / "c", (5, 5))
    cache.put("d", bytes(400))
    assert sorted(os.listdir(tmp_path / "c")) == ["b", "d"]
    cache.put("e", bytes(2000))
    assert sorted(os.listdir(tmp_path / "c")) == ["b", "d"]


def test_concurrent_writers_do_not_disturb_each_other(tmp_path):
    caches = [DiskCache(str(tmp_path / "c")) for _ in range(4)]
    letters_read = []

    def work(cache, letter):
        for _ in range(50):
            cache.put("a", letter * 10_000)
            data = cache.get("a")
            letters_read.append(None if data is None else set(bytes(data)))

    threads = [
        threading.Thread(target=work, args=(c, b))
        for c, b in zip(caches, (b"1", b"2", b"3", b"4"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in letters_read
    assert all(len(letters) == 1 for letters in letters_read)
    assert os.listdir(tmp_path / "c") == ["a"]


@pytest.mark.parametrize("directory", [None, "/proc/nowhere/sfsample", "/dev/null/sfsample"])
def test_a_cache_without_a_usable_directory_is_empty(directory):
    cache = DiskCache(directory)
    cache.put("a", b"x")
    assert cache.get("a") is None


def test_a_full_disk_is_not_an_error(cache, tmp_path, monkeypatch):
    cache.put("a", b"x")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put("b", b"x")
    assert os.listdir(entry(tmp_path).parent) == ["a"]
