"""Files of a process that dies at a call are truncated, which reveals a rename before the sync."""

import multiprocessing
import signal
from pathlib import Path

from ctvr.orchestrator.store import local
from ctvr.orchestrator.store.store import Store
from tests.chaos.faults import killed_at


def write(root: Path) -> None:
    """One object and one record."""
    store = Store.open(root / "store")
    store.put_json("k", "a", {"x": 1})
    store.create_json("k", "b", {"x": 2})


def test_a_file_renamed_before_sync_is_cut_when_its_writer_dies(tmp_path, monkeypatch):
    def work() -> None:
        with killed_at(tmp_path / "killed", 5, "before"):  # long after the first record got its name
            write(tmp_path / "killed")

    monkeypatch.setattr(local, "_write_and_sync", lambda path, buffers, mode: path.write_bytes(b"".join(buffers)))
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    write(tmp_path / "whole")
    torn, whole = ((tmp_path / name / "store" / "k" / "a.json").read_bytes() for name in ("killed", "whole"))
    assert whole.startswith(torn)
    assert len(torn) < len(whole)
