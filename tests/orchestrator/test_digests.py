"""Digests of values do not depend on order; digests of files are remembered but never stale."""

import hashlib
import os
import subprocess
import sys
import time

import pytest

from ctvr.orchestrator import digests
from ctvr.orchestrator.digests import cache_folder, canonical, digest_file, digest_of, source_digest


def age(path, seconds=100.0, monkeypatch=None):
    """Make a file look old enough to be remembered."""
    now = time.time_ns()
    monkeypatch.setattr(digests.time, "time_ns", lambda: now + int(seconds * 1e9))


@pytest.fixture
def hashed(monkeypatch):
    """The paths whose bytes were read."""
    paths = []
    original = digests._hash
    monkeypatch.setattr(digests, "_hash", lambda path: paths.append(path) or original(path))
    return paths


def test_digests_of_values_ignore_the_order_of_keys():
    assert digest_of({"a": 1, "b": [1.5, None]}) == digest_of({"b": (1.5, None), "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert canonical({"b": 2, "a": (1, None)}) == '{"a":[1,null],"b":2}'


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", {"a": {1}}])
def test_values_that_json_cannot_encode_have_no_digest(value):
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        digest_of(value)


def test_the_digest_of_a_file_is_its_sha256_and_is_computed_once(tmp_path, hashed, monkeypatch):
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc" * 100_000)
    age(file, monkeypatch=monkeypatch)
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert [digest_file(file, tmp_path / "cache") for _ in range(3)] == [expected] * 3
    assert len(hashed) == 1
    monkeypatch.setattr(digests._FileDigestCache, "_open", {})  # as another process would see it
    assert digest_file(file, tmp_path / "cache") == expected
    assert len(hashed) == 1


def test_a_changed_file_of_the_same_size_and_modification_time_is_noticed(tmp_path, monkeypatch):
    file = tmp_path / "a.bin"
    file.write_bytes(b"one")
    status = file.stat()
    age(file, monkeypatch=monkeypatch)
    before = digest_file(file, tmp_path)
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    file.write_bytes(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest_file(file, tmp_path) != before


def test_a_file_written_just_now_is_not_remembered(tmp_path, hashed):
    file = tmp_path / "a.bin"
    file.write_bytes(b"one")
    digest_file(file, tmp_path / "cache")
    digest_file(file, tmp_path / "cache")
    assert len(hashed) == 2


def test_damaged_and_unfinished_lines_of_the_memory_are_skipped(tmp_path, monkeypatch, hashed):
    file = tmp_path / "a.bin"
    file.write_bytes(b"one")
    age(file, monkeypatch=monkeypatch)
    memory = tmp_path / "digests.jsonl"
    memory.write_bytes(b'\x00\xff\n[]\n{"a"\n[1,2,3,4,5]\n' + b"[" * 100_000 + b'\n["/x", 1')
    assert digest_file(file, tmp_path) == hashlib.sha256(b"one").hexdigest()
    assert digest_file(file, tmp_path) == hashlib.sha256(b"one").hexdigest()
    assert len(hashed) == 1


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"one")
    (tmp_path / "blocked").touch()
    os.mkfifo(tmp_path / "digests.jsonl")
    assert digest_file(tmp_path / "a.bin", tmp_path) == hashlib.sha256(b"one").hexdigest()
    assert digest_file(tmp_path / "a.bin", tmp_path / "blocked") == hashlib.sha256(b"one").hexdigest()


def test_a_folder_has_the_digest_of_its_names_and_files(tmp_path):
    frames, cache = tmp_path / "frames", tmp_path / "cache"
    frames.mkdir()
    (frames / "1.png").write_bytes(b"1")
    (frames / "2.png").write_bytes(b"2")
    first = digest_file(frames, cache)
    (frames / "2.png").rename(frames / "3.png")
    second = digest_file(frames, cache)
    (frames / "3.png").write_bytes(b"3")
    assert len({first, second, digest_file(frames, cache)}) == 3


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        digest_file(tmp_path / "absent", tmp_path)


def test_the_cache_folder_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CTVR_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_source_digest_changes_with_every_edit(tmp_path):
    alone = subprocess.run([sys.executable, "-I", digests.__file__], capture_output=True, text=True, check=True).stdout
    assert alone == source_digest() + "\n"
    for package in digests.SOURCES:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "a.py").write_text("x = 1\n")
    seen = [source_digest(tmp_path)]
    (tmp_path / "methods" / "a.py").write_text("x = 2\n")
    seen.append(source_digest(tmp_path))
    (tmp_path / "methods" / "a.py").rename(tmp_path / "methods" / "b.py")
    seen.append(source_digest(tmp_path))
    assert len(set(seen)) == 3
    (tmp_path / "methods" / "__pycache__").mkdir()
    (tmp_path / "methods" / "__pycache__" / "b.pyc").touch()
    assert source_digest(tmp_path) == seen[-1]
