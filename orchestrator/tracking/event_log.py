"""Log of all messages to MLflow, stored with the runs.

`ctvr runs sync --rebuild` restores lost MLflow records from it (rebuild_tracking.py). The folder `EVENTS` has one file
per run, with one JSON line per message in the format of the outbox. A line is written before MLflow gets the message.
Lines are not synced to disk individually, since the commits also contain the metrics. Files (models) are omitted for
the same reason.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import BadRecord, ConfigError, os_error_text
from ctvr.orchestrator.text_files import read_bytes
from ctvr.orchestrator.tracking.messages import IS, Message, check, is_id, is_time, read_line
from ctvr.orchestrator.tracking.outbox import file_name, locked

log = logging.getLogger(__name__)

EVENTS = "told"  # name of the folder in the runs folder
Runs = list[tuple[set[str], list[Message]]]  # names of each run, and its messages


class EventLog:
    """A folder with the log of every run. Writing never raises.

    Attributes:
        bad: lines that `runs` skipped, each with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bad: list[str] = []
        self._warned = False

    def add(self, run_id: str, message: Message) -> None:
        """Append a message to the log of a run."""
        if message["op"] == "files":
            return
        try:
            with locked(self.folder / f"{file_name(run_id)}.jsonl") as file:
                file.write(json.dumps({**message, "at": time.time()}).encode() + b"\n")
        except OSError as error:
            if not self._warned:
                log.warning(
                    "tracking: the event log cannot be written, so `ctvr runs sync --rebuild` will miss records: %s",
                    os_error_text(error),
                )
            self._warned = True

    @contextmanager
    def hold_lock(self, run_id: str) -> Iterator[None]:
        """Lock a run's log, if it is writable, so that no two processes open the run."""
        with ExitStack() as stack:
            with suppress(OSError):
                stack.enter_context(locked(self.folder / f"{file_name(run_id)}.jsonl"))
            yield

    def record_alias(self, name: str, run_id: str) -> None:
        """Record the id that MLflow assigned to a run that was opened under another name."""
        if name != run_id:
            self.add(name, {"op": IS, "run_id": run_id})

    def runs(self) -> Runs:
        """Return the names and messages of each run, ordered by start, so that a sweep precedes its trials.

        Invalid lines are skipped but kept in the file; `bad` lists them with their reasons.
        """
        files = [path for path in sorted(self.folder.glob("*.jsonl")) if path.is_file() and is_id(path.stem)]
        records = {path.stem: list(self._records(path)) for path in files}
        names: dict[str, set[str]] = {name: {name} for name in records}
        for name, messages in records.items():
            for other in {message["run_id"] for message in messages if message["op"] == IS}:
                joined = names[name] | names.get(other, {other})
                names.update(dict.fromkeys(joined, joined))
        found = []
        for group in {id(group): group for group in names.values()}.values():
            messages = sorted((m for name in group for m in records.get(name, ())), key=lambda m: float(m["at"]))
            messages = [message for message in messages if message["op"] != IS]
            first = next((message for message in messages if message["op"] == "open"), None)
            if first is not None:  # the opening comes first, even if a clock was set back
                messages = [first, *(message for message in messages if message is not first)]
            elif messages:
                name = next(iter(sorted(group & records.keys())))
                self.bad.append(f"{self.folder / name}.jsonl: no line opens this run, so it cannot be rebuilt")
            found.append((group, messages))
        return sorted((each for each in found if each[1]), key=lambda each: float(each[1][0]["at"]))

    def _records(self, path: Path) -> Iterator[Message]:
        try:
            content = read_bytes(path)
        except ConfigError as error:  # the file is larger than a log can be
            self.bad.append(f"{error} Its run is left out.")
            return
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                message = read_line(line)
                check(message)
                if message["op"] == "files":
                    raise BadRecord("names a file to upload, which is not allowed in this log")
                if not is_time(message.get("at")):
                    raise BadRecord("does not contain the time of its message")
            except BadRecord as error:
                self.bad.append(f"{path}: line {number} {error}")
            else:
                yield message


def replay(
    runs: Runs,
    send: Callable[[str, Message], None],
    opened: dict[str, str],
    refused: Callable[[str, Message, Exception], None],
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Send all messages again; return, for every name of a run, the run's id in the target MLflow and its tags.

    Args:
        runs: result of `EventLog.runs`.
        send: `Sender.send` of the target.
        opened: `Sender.opened` of the target, which has the id of an opened run.
        refused: called with run, message and error if `send` fails; it may raise the error to end the replay.
    """
    ids: dict[str, tuple[str, dict[str, Any]]] = {}
    for names, messages in runs:
        name = next(iter(sorted(names)))
        if messages[0]["op"] != "open":
            continue  # a version that logged only new messages after an upgrade wrote this log
        tags: dict[str, Any] = {}
        for message in messages:
            try:
                if message["op"] == "open":
                    parent = message["parent"]
                    send(name, {**message, "parent": ids[parent][0] if parent in ids else parent})
                    ids.update(dict.fromkeys(names, (opened[name], tags)))
                elif name in ids:  # otherwise its opening was refused, which has been reported
                    send(opened[name], message)
            except Exception as error:  # `refused` may raise the error
                refused(name, message, error)
                continue
            if message["op"] in ("open", "tags"):
                tags.update(message["tags"] if message["op"] == "open" else message["values"])
    return ids
