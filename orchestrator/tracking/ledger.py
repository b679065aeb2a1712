"""What MLflow was told, kept beside the runs: a fresh MLflow can be made of it (`ctvr rebuild`, jobs/rebuild.py).

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

from orchestrator.tracking.outbox import Message, file_name, locked

log = logging.getLogger(__name__)

TOLD = "told"  # the folder below the runs folder
IS = "is"  # the message that says which id MLflow gave a run


class Ledger:
    """A folder of everything that was told. Writing never raises."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
    def alone(self, run_id: str) -> Iterator[None]:
        """Hold a run's file against other processes, where it can be written, so that two do not open one run twice."""
        with ExitStack() as stack:
            with suppress(OSError):
                stack.enter_context(locked(self.folder / f"{file_name(run_id)}.jsonl"))
            yield

    def is_called(self, name: str, run_id: str) -> None:
        """Keep the id that MLflow gave a run that was opened under a name of ours."""
        if name != run_id:
            self.add(name, {"op": IS, "run_id": run_id})

    def runs(self) -> list[tuple[set[str], list[Message]]]:
        """The names and messages of each run, in the order of their beginning: a sweep before its trials."""
        told = {path.stem: list(_lines(path)) for path in sorted(self.folder.glob("*.jsonl"))}
        names: dict[str, set[str]] = {name: {name} for name in told}
        for name, messages in told.items():
            for other in {message["run_id"] for message in messages if message["op"] == IS}:
                joined = names[name] | names.get(other, {other})
                names.update(dict.fromkeys(joined, joined))
        found = []
        for group in {id(group): group for group in names.values()}.values():
            messages = sorted((m for name in group for m in told.get(name, ())), key=lambda m: float(m["at"]))
            found.append((group, [message for message in messages if message["op"] != IS]))
        return sorted((each for each in found if each[1]), key=lambda each: float(each[1][0]["at"]))


def _lines(path: Path) -> Iterator[Message]:
    for line in path.read_bytes().split(b"\n"):
        try:
            message = json.loads(line)
        except ValueError:  # empty, or cut short
            continue
        if isinstance(message, dict) and {"op", "at"} <= message.keys():
            yield message


def replay(
    runs: list[tuple[set[str], list[Message]]], send: Callable[[str, Message], None], opened: dict[str, str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Tell an MLflow again; returns the id of each run there and its tags, under every name that it had.

    Args:
        runs: `Ledger.runs`.
        send: `Sender.send`; what it raises is not caught.
        opened: `Sender.opened`, which knows the id of a run that was opened.
    """
    ids: dict[str, tuple[str, dict[str, Any]]] = {}
    for names, messages in runs:
        first = next((message for message in messages if message["op"] == "open"), None)
        if first is None:
            continue  # of an earlier version, which kept only what came after an upgrade
        tags: dict[str, Any] = {}
        for message in messages:
            if message["op"] == "open":
                parent = message["parent"]
                known = ids[parent][0] if parent in ids else parent
                name = next(iter(sorted(names)))
                send(name, {**message, "parent": known})
                ids.update(dict.fromkeys(names, (opened[name], tags)))
            else:
                send(opened[next(iter(sorted(names)))], message)
            if message["op"] in ("open", "tags"):
                tags.update(message["tags"] if message["op"] == "open" else message["values"])
    return ids
