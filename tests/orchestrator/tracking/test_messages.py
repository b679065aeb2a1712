"""No line of a runs folder points outside it, uploads a file of the user, or stops its reader."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.errors import BadRecord
from ctvr.orchestrator.tracking.event_log import EventLog
from ctvr.orchestrator.tracking.messages import Message, check, folder_of, read_line
from ctvr.orchestrator.tracking.outbox import REFUSED, Outbox, OutboxSender
from tests.refusing import missing_from

OPEN: Message = {
    "op": "open",
    "stream": "s",
    "name": "n",
    "settings": {"a": "1"},
    "parent": None,
    "tags": {"ctvr.kind": "trial", "ctvr.identity": "n"},
    "at": 1.0,
}
METRICS: Message = {"op": "metrics", "values": [[1, "stream/t2v/r1", 5.0]], "time": 1, "at": 2.0}
CLOSE: Message = {"op": "close", "status": "FINISHED", "time": 5, "at": 4.0}
TEXT: Message = {"op": "text", "name": "failures/a (b=1)-0.txt", "text": "hi", "at": 1.5}
OUTSIDE = ["../x", "/x", "a/../../x", "a//b", "", ".", "..", "a\\..\\x", "%2e%2e/x", "~root", "a/.ssh", "a\nb", "\0"]
JUNK: list[Any] = [True, -1.5, 1e308, 10**30, "\0", "x" * 5000, [], [[]], {"": 0}, [None], "\ud800"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_artifact_outside_of_its_folder_is_refused(name):
    for message in (TEXT, {"op": "heatmap", "matrices": {"own": [[1.0]]}}):
        with pytest.raises(BadRecord, match="name ="):
            check({**message, "name": name})
    if name:
        with pytest.raises(BadRecord, match="into ="):
            check({"op": "files", "path": "x", "into": name})


def test_our_own_records_pass_the_check():
    for message in (OPEN, METRICS, CLOSE, TEXT, {"op": "files", "path": "x", "into": ""}):
        check(message)
    check({"op": "metrics", "values": [[0, "a", float("nan")], [2, "b", 3]], "time": 0})
    check({"op": "heatmap", "name": "matrices/own", "matrices": {"own": [[1.0, None], []]}})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in parts for place in places(part, (*path, key)))]


def with_junk(message: Message, path: tuple[Any, ...], junk: Any) -> Message:
    changed: Any = json.loads(json.dumps(message))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = junk
    return dict(changed)


@pytest.mark.parametrize("message", [OPEN, METRICS, CLOSE, TEXT], ids=lambda message: message["op"])
def test_any_value_in_any_place_is_taken_or_refused_in_one_line(message):
    said = []
    for path in places(message)[1:]:
        for junk in JUNK:
            try:
                check(read_line(json.dumps(with_junk(message, path, junk)).encode()))
            except BadRecord as error:
                said.append(str(error))
    assert said
    assert not [line for line in said if "\n" in line or len(line) > 200]


@pytest.mark.parametrize("name", ["shapes-5", "shapes-5@3", "my videos (2)", "視頻"])
def test_a_plain_stream_keeps_its_folder(name):
    assert folder_of(name) == name


@pytest.mark.parametrize("name", ["../../x", "/elsewhere/x", "a/b", "..", ".", "", ".hidden", "-x", "x" * 300, "a\\b"])
def test_any_other_stream_gets_one_folder_of_its_own(name):
    folder = folder_of(name)
    assert Path(folder).name == folder
    assert folder[0].isalnum()
    assert folder_of(name + "y") != folder


LINES = {
    "cut short": b'{"op": "metr',
    "deep": b"[" * 100_000,
    "no object": b"5",
    "operation is a list": b'{"op": [], "at": 1}',
    "private operation": b'{"op": "open_now", "at": 1}',
    "no field": b'{"op": "open", "at": 1}',
    "id is a list": b'{"op": "is", "run_id": [], "at": 1}',
    "time is text": json.dumps({**METRICS, "at": "x"}).encode(),
    "bytes": bytes(range(128, 256)),
    "file of the user": b'{"op": "files", "path": "/etc/hostname", "into": "", "at": 1}',
}


@pytest.mark.parametrize("kind", LINES)
def test_a_damaged_line_of_the_log_loses_only_that_line(tmp_path, kind):
    good = [json.dumps(message).encode() for message in (OPEN, METRICS, CLOSE)]
    file = tmp_path / "offline-1.jsonl"
    file.write_bytes(b"\n".join([good[0], LINES[kind], *good[1:]]) + b"\n")
    event_log = EventLog(tmp_path)
    assert event_log.runs() == [({"offline-1"}, [OPEN, METRICS, CLOSE])]
    (said,) = event_log.bad
    assert said.startswith(f"{file}: line 2 ")


def test_a_run_without_its_opening_line_is_reported(tmp_path):
    (tmp_path / "offline-1.jsonl").write_text(f"{json.dumps(OPEN)[:30]}\n{json.dumps(METRICS)}\n")
    event_log = EventLog(tmp_path)
    assert event_log.runs() == [({"offline-1"}, [METRICS])]
    assert event_log.bad == [
        f"{tmp_path}/offline-1.jsonl: line 1 is not a line of JSON",
        f"{tmp_path}/offline-1.jsonl: no line opens this run, so it cannot be rebuilt",
    ]


def test_a_log_that_is_far_too_large_is_named_and_the_others_are_read(tmp_path):
    (tmp_path / "offline-1.jsonl").write_text(f"{json.dumps(OPEN)}\n")
    (tmp_path / "offline-2.jsonl").touch()
    os.truncate(tmp_path / "offline-2.jsonl", 1 << 40)
    event_log = EventLog(tmp_path)
    assert event_log.runs() == [({"offline-1"}, [OPEN])]
    (large,) = event_log.bad
    assert not missing_from(large, f"{tmp_path}/offline-2.jsonl", 1024)


def test_files_that_are_none_of_ours_stop_nothing(tmp_path):
    (tmp_path / "a b.jsonl").write_text("x")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    assert EventLog(tmp_path).runs() == []
    courier = OutboxSender(Outbox(tmp_path), lambda run, record: None, lambda error: False, str)
    assert courier.flush() == (0, 0)


class Post:
    """Records what `Sender.send` would send."""

    def __init__(self, folder: Path) -> None:
        self.got: list[Message] = []
        self.courier = OutboxSender(Outbox(folder), self.send, lambda error: isinstance(error, BadRecord), str)

    def send(self, run_id: str, message: Message) -> None:
        check(message)
        self.got.append(message)


@pytest.mark.parametrize("kind", LINES)
def test_one_bad_line_that_waits_is_kept_aside_and_the_rest_is_sent(tmp_path, kind, caplog):
    post = Post(tmp_path)
    good = [json.dumps(message).encode() for message in (OPEN, METRICS)]
    (tmp_path / "run.jsonl").write_bytes(b"\n".join([good[0], LINES[kind], good[1]]) + b"\n")
    post.courier.flush()
    expected = [OPEN, METRICS, *([json.loads(LINES[kind])] if kind == "time is text" else [])]  # nothing asks for it
    assert sorted(post.got, key=str) == sorted(expected, key=str)
    assert post.courier.flush() == (0, 0)
    if kind != "time is text":
        assert post.courier.set_aside == 1
        kept = (tmp_path / f"run{REFUSED}.jsonl").read_bytes().strip()
        assert kept.replace(b" ", b"") == LINES[kind].replace(b" ", b"")
        assert REFUSED in caplog.text


@pytest.mark.parametrize("way", ["path", "dots", "link", "link within", "pipe"])
def test_no_file_of_the_user_leaves_by_the_outbox(tmp_path, way):
    secret = tmp_path / "secret"
    secret.write_text("TOPSECRET")
    post = Post(tmp_path / "outbox")
    kept = tmp_path / "outbox" / "run.files" / "0000"
    kept.mkdir(parents=True)
    named = kept / "model"
    if way == "path":
        named = secret
    elif way == "dots":
        named = kept / ".."
    elif way == "link":
        named.symlink_to(secret)
    elif way == "link within":
        named.mkdir()
        (named / "weights").symlink_to(secret)
    else:
        os.mkfifo(named)
    line = {"op": "files", "path": str(named), "into": ""}
    (tmp_path / "outbox" / "run.jsonl").write_text(json.dumps(line) + "\n")
    assert post.courier.flush() == (0, 0)
    assert post.got == []
    assert post.courier.set_aside == 1


def test_kept_files_are_found_after_the_runs_folder_was_moved(tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    (source / "weights").write_text("1")
    Outbox(tmp_path / "a").add("run", {"op": "files", "path": str(source), "into": "model"})
    (tmp_path / "a").rename(tmp_path / "b")
    post = Post(tmp_path / "b")
    post.courier.flush()
    (sent,) = post.got
    assert not Path(sent["path"]).exists()  # it was removed after it was sent
    assert Path(sent["path"]).is_relative_to(tmp_path / "b")


def test_runs_that_name_each_other_as_their_sweep_end(tmp_path):
    post = Post(tmp_path)
    for name, parent in (("offline-a", "offline-b"), ("offline-b", "offline-a")):
        post.courier.outbox.add(name, {**OPEN, "parent": parent})
    assert post.courier.flush() == (2, 0)
