"""The same call is reached in every run, and files of a process that dies at it are truncated."""

import multiprocessing
import signal
from pathlib import Path

from ctvr.orchestrator.store import local
from ctvr.orchestrator.store.store import Store
from tests.chaos.faults import Call, When, counted, killed_at


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


def die_at(root: Path, number: int, when: When) -> int:
    """Return the exit status of a process that writes and is killed at a call."""

    def work() -> None:
        with killed_at(root, number, when):
            write(root)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return int(process.exitcode or 0)


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
