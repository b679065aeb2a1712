"""Messages to MLflow, kept with the runs: `ctvr rebuild` makes a lost MLflow again from them (rebuild_tracking.py).

A file per run in `<runs>/told`, one JSON line a message, as the outbox has them, appended before MLflow is asked. Lines
are not forced to disk one by one: numbers that a power cut takes are in the commits. Files (models) are left out: the
commits hold their weights.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import BadRecord
from ctvr.orchestrator.tracking.messages import IS, Message, check, is_id, is_time, read_line
from ctvr.orchestrator.tracking.outbox import file_name, locked

log = logging.getLogger(__name__)

EVENTS = "told"  # the folder below the runs folder
Runs = list[tuple[set[str], list[Message]]]  # the names of each run, and its messages


class EventLog:
    """A folder of everything that was told. Writing never raises.

    Attributes:
        bad: lines that `runs` passed over, each with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bad: list[str] = []
        self._warned = False

    def add(self, run_id: str, message: Message) -> None:
        """Append a message."""
        if message["op"] == "files":
            return
        try:
            with locked(self.folder / f"{file_name(run_id)}.jsonl") as file:
                file.write(json.dumps({**message, "at": time.time()}).encode() + b"\n")
        except OSError as error:
            if not self._warned:
                log.warning("tracking: %s cannot be written (%s); `ctvr rebuild` will lack it", self.folder, error)
            self._warned = True

    @contextmanager
    def hold_lock(self, run_id: str) -> Iterator[None]:
        """Hold a run's file against other processes, where it can be written, so that two do not open one run twice."""
        with ExitStack() as stack:
            with suppress(OSError):
                stack.enter_context(locked(self.folder / f"{file_name(run_id)}.jsonl"))
            yield

    def record_alias(self, name: str, run_id: str) -> None:
        """Keep the id that MLflow gave a run that was opened under a name of ours."""
        if name != run_id:
            self.add(name, {"op": IS, "run_id": run_id})

    def runs(self) -> Runs:
        """The names and messages of each run, in the order of their beginning: a sweep before its trials.

        A line that is not a record is passed over; it stays where it is, and `bad` says which it was and why.
        """
        files = [path for path in sorted(self.folder.glob("*.jsonl")) if path.is_file() and is_id(path.stem)]
        told = {path.stem: list(self._records(path)) for path in files}
        names: dict[str, set[str]] = {name: {name} for name in told}
        for name, messages in told.items():
            for other in {message["run_id"] for message in messages if message["op"] == IS}:
                joined = names[name] | names.get(other, {other})
                names.update(dict.fromkeys(joined, joined))
        found = []
        for group in {id(group): group for group in names.values()}.values():
            messages = sorted((m for name in group for m in told.get(name, ())), key=lambda m: float(m["at"]))
            messages = [message for message in messages if message["op"] != IS]
            first = next((message for message in messages if message["op"] == "open"), None)
            if first is not None:  # before all else, also where a clock was set back meanwhile
                messages = [first, *(message for message in messages if message is not first)]
            found.append((group, messages))
        return sorted((each for each in found if each[1]), key=lambda each: float(each[1][0]["at"]))

    def _records(self, path: Path) -> Iterator[Message]:
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                message = read_line(line)
                check(message)
                if message["op"] == "files":
                    raise BadRecord("names a file to upload, which no line here does")
                if not is_time(message.get("at")):
                    raise BadRecord("does not say when it was told")
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
    """Tell an MLflow again; returns the id of each run there and its tags, under every name that it had.

    Args:
        runs: `Ledger.runs`.
        send: `Sender.send`.
        opened: `Sender.opened`, which knows the id of a run that was opened.
        refused: gets the run, the message and the error where `send` fails; it raises what is to end all.
    """
    ids: dict[str, tuple[str, dict[str, Any]]] = {}
    for names, messages in runs:
        name = next(iter(sorted(names)))
        if messages[0]["op"] != "open":
            continue  # of an earlier version, which kept only what came after an upgrade
        tags: dict[str, Any] = {}
        for message in messages:
            try:
                if message["op"] == "open":
                    parent = message["parent"]
                    send(name, {**message, "parent": ids[parent][0] if parent in ids else parent})
                    ids.update(dict.fromkeys(names, (opened[name], tags)))
                elif name in ids:  # else its opening was refused, and that was said
                    send(opened[name], message)
            except Exception as error:  # `refused` judges
                refused(name, message, error)
                continue
            if message["op"] in ("open", "tags"):
                tags.update(message["tags"] if message["op"] == "open" else message["values"])
    return ids
