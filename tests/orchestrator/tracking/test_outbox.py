"""No record in the outbox is lost, and none can stop training."""

import logging
import os
from pathlib import Path

import pytest

from ctvr.orchestrator.tracking.outbox import REFUSED, Message, Outbox, OutboxSender


class Server:
    """Accepts records while it is up; refuses bad ones."""

    def __init__(self) -> None:
        self.up, self.got = True, []

    def send(self, run_id: str, record: Message) -> None:
        if not self.up:
            raise ConnectionError("connection refused")
        if record.get("bad"):
            raise ValueError("bad record")
        self.got.append((run_id, record["n"]))


@pytest.fixture
def office(tmp_path: Path) -> tuple[Server, OutboxSender]:
    server = Server()
    courier = OutboxSender(Outbox(tmp_path), server.send, lambda e: isinstance(e, ValueError), str)
    return server, courier


def record(n: int, **more: object) -> Message:
    return {"op": "metrics", "n": n, **more}


def test_records_pass_while_the_server_answers(office):
    server, courier = office
    assert courier.deliver("run", record(1))
    assert server.got == [("run", 1)]
    assert courier.outbox.pending() == []


def test_a_failure_warns_once_and_keeps_the_order(office, caplog):
    server, courier = office
    server.up = False
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            courier.deliver("run", record(n))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "ctvr runs sync" in caplog.text
    server.up = True
    courier.deliver("run", record(3), now=True)
    assert [n for _, n in server.got] == [0, 1, 2, 3]


def test_after_a_failure_nothing_is_tried_for_a_while(office):
    server, courier = office
    server.up = False
    courier.deliver("run", record(0))
    server.up = True
    courier.deliver("other", record(1))  # would wait for a time-out if the server were still down
    assert server.got == []
    assert courier.flush() == (2, 0)
    courier.deliver("other", record(2))
    assert sorted(server.got) == [("other", 1), ("other", 2), ("run", 0)]


def test_a_bad_record_does_not_block_later_ones_and_is_kept(office):
    server, courier = office
    server.up = False
    courier.deliver("run", record(0, bad=True))
    courier.deliver("run", record(1))
    server.up = True
    assert courier.flush() == (2, 0)
    assert server.got == [("run", 1)]
    assert courier.outbox.read("run" + REFUSED)[0] == [record(0, bad=True)]
    assert courier.flush() == (0, 0)


def test_a_flush_that_stops_halfway_loses_nothing(office):
    server, courier = office
    server.up = False
    courier.deliver("run", record(0))
    courier.deliver("run", record(1))
    assert courier.flush() == (0, 2)
    server.up = True
    assert courier.flush() == (2, 0)


def test_records_added_while_a_file_is_sent_are_kept(tmp_path):
    outbox = Outbox(tmp_path)
    outbox.add("run", record(0))
    _, size = outbox.read("run")
    outbox.add("run", record(1))
    assert not outbox.clear("run", size)
    assert [r["n"] for r in outbox.read("run")[0]] == [0, 1]


def test_files_are_kept_though_their_owner_deletes_them(tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    source = tmp_path / "ranks.json"
    source.write_text("1")
    outbox.add("run", {"op": "files", "path": str(source)})
    source.unlink()
    (kept,), size = outbox.read("run")
    assert Path(kept["path"]).read_text() == "1"
    outbox.clear("run", size)
    assert not Path(kept["path"]).exists()


def test_a_sweep_opened_offline_is_sent_before_its_trials(office):
    server, courier = office
    server.up = False
    courier.deliver("offline-a-trial", {"op": "open", "n": 1, "parent": "offline-b-sweep"})
    courier.deliver("offline-b-sweep", {"op": "open", "n": 0, "parent": None})
    server.up = True
    courier.flush()
    assert [n for _, n in server.got][:2] == [0, 1]


def test_an_outbox_that_cannot_be_written_does_not_raise(office, caplog, tmp_path):
    server, courier = office
    server.up = False
    courier.outbox.folder = tmp_path / "file"
    (tmp_path / "file").write_text("in the way")
    courier.deliver("run", record(0))
    assert "lost" in caplog.text


def test_a_run_id_cannot_leave_the_folder(tmp_path):
    with pytest.raises(ValueError, match="only letters"):
        Outbox(tmp_path).add("../escape", record(0))


def test_a_pipe_in_the_place_of_a_file_or_lock_is_not_waited_for(office, caplog):
    """Opening a pipe would wait for its other end."""
    _, courier = office
    folder = courier.outbox.folder
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "flush.lock")
    os.mkfifo(folder / "a.jsonl")
    with pytest.raises(OSError, match=r"No such device|is not a file"):
        courier.outbox.add("a", record(1))
    courier.outbox.add("b", record(1))
    assert courier.flush() == (0, 1)
    assert "cannot be used" in caplog.text
    (folder / "flush.lock").unlink()
    assert courier.flush() == (1, 0)
