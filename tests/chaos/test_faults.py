"""The same call is reached in every run, and a process that is to die there is gone at once."""

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import StoreError
from ctvr.orchestrator.store import local
from ctvr.orchestrator.store.store import Store
from tests.chaos.faults import WHENS, Call, When, counted, killed_at, no_space_from


def write(root: Path) -> None:
    """One object and one record."""
    store = Store.open(root / "store")
    store.put_json("k", "a", {"x": 1})
    store.create_json("k", "b", {"x": 2})


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "store" / "k").glob("*.json"))


def test_calls_are_counted_in_order_and_only_below_the_root(tmp_path):
    calls: list[Call] = []
    with counted(tmp_path / "in", calls):
        write(tmp_path / "in")
        write(tmp_path / "out")
    assert [call.number for call in calls] == list(range(len(calls)))
    kinds = [call.name for call in calls]
    assert kinds[1:] == ["fsync", "replace", "unlink", "fsync", "fsync", "link", "unlink", "fsync"]
    assert all(call.path.startswith(str(tmp_path / "in")) for call in calls)


def test_the_functions_of_os_are_as_before_whatever_happened(tmp_path):
    before = os.replace

    def fail() -> None:
        with counted(tmp_path, []):
            assert os.replace is not before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.replace is before


def die_at(root: Path, number: int, when: When) -> int:
    """Exit status of a process that writes and is killed at a call."""

    def work() -> None:
        with killed_at(root, number, when):
            write(root)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return int(process.exitcode or 0)


@pytest.mark.parametrize("when", WHENS)
def test_a_process_dies_before_within_or_after_a_call(tmp_path, when):
    """Call 2 gives the first record its name."""
    assert die_at(tmp_path, 2, when) == -signal.SIGKILL
    assert names(tmp_path) == (["a.json"] if when == "after" else [])


def test_a_write_within_which_a_process_dies_is_cut_short(tmp_path):
    assert die_at(tmp_path, 1, "before") == die_at(tmp_path / "other", 1, "within") == -signal.SIGKILL
    (whole,) = (tmp_path / "store" / ".tmp").iterdir()
    (torn,) = (tmp_path / "other" / "store" / ".tmp").iterdir()
    assert whole.read_bytes().startswith(torn.read_bytes())
    assert torn.stat().st_size < whole.stat().st_size


def test_a_file_renamed_before_sync_is_cut_when_its_writer_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_write_and_sync", lambda path, buffers, mode: path.write_bytes(b"".join(buffers)))
    assert die_at(tmp_path, 5, "before") == -signal.SIGKILL  # long after the first record got its name
    assert names(tmp_path) == ["a.json", "b.json"]
    whole = tmp_path / "whole"
    write(whole)
    torn = (tmp_path / "store" / "k" / "a.json").read_bytes()
    assert (whole / "store" / "k" / "a.json").read_bytes().startswith(torn)
    assert len(torn) < (whole / "store" / "k" / "a.json").stat().st_size


def test_a_call_that_fails_counts_too(tmp_path):
    write(tmp_path)
    assert die_at(tmp_path, 6, "after") == -signal.SIGKILL  # the link: the name is taken
    assert names(tmp_path) == ["a.json", "b.json"]


def test_a_run_with_fewer_calls_lives(tmp_path):
    assert die_at(tmp_path, 99, "before") == 0
    assert names(tmp_path) == ["a.json", "b.json"]


def test_a_full_disk_stays_full_but_files_can_be_removed(tmp_path):
    with no_space_from(tmp_path, 5):
        store = Store.open(tmp_path / "store")
        store.put_json("k", "a", 1)
        for key in "bc":
            with pytest.raises(StoreError, match="disk full"):
                store.put_json("k", key, 1)
        store.delete("k", "a")
        with pytest.raises(OSError) as error:
            os.replace(tmp_path / "x", tmp_path / "y")
    assert error.value.errno == errno.ENOSPC
    assert names(tmp_path) == []
