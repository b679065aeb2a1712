"""Outbox for records that could not be sent to MLflow: an append-only file per run, sent later.

A record is one JSON line, which is on disk before `Outbox.add` returns. Sending is idempotent (tracker.py), so a file
is emptied only when all its records have been sent; until then, records are only appended.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from ctvr.orchestrator.errors import BadRecord, os_error_text
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.processes import hold_lock
from ctvr.orchestrator.tracking.messages import Message, copy_files, files_below, is_id, read_line

log = logging.getLogger(__name__)

OFFLINE = "offline-"  # prefix of run ids that were assigned while the server did not respond
REFUSED = "-refused"  # suffix of files of records with permanent errors; kept for inspection
RETRY_AFTER_S = 300.0  # waiting time in seconds after a failure, so that training does not wait for time-outs


def locked(path: Path, mode: str = "ab", wait: bool = True) -> AbstractContextManager[IO[bytes]]:
    """Create the folder of a file if it does not exist, and hold the lock of the file (see `hold_lock`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return hold_lock(path, mode, wait)


class Outbox:
    """A folder of unsent records, one file per run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, run_id: str, record: Message) -> None:
        """Append one record and sync it to disk; a file that the record names is copied into the outbox."""
        if record["op"] == "files" and Path(record["path"]).exists():
            record = {**record, "path": str(self._keep_files(run_id, Path(record["path"])))}
        self.add_line(run_id, json.dumps(record).encode())

    def add_line(self, run_id: str, line: bytes) -> None:
        """Append a raw line and sync it to disk."""
        with locked(self._path(run_id)) as file:
            file.write(b"\n" + line + b"\n")  # also ends a line that a crash truncated
            file.flush()
            os.fsync(file.fileno())

    def read(self, run_id: str) -> tuple[list[Message], int]:
        """Return the records of a run in order, and the number of bytes read (for `clear`)."""
        records, _, size = self.read_all(run_id)
        return records, size

    def read_all(self, run_id: str) -> tuple[list[Message], list[tuple[str, bytes]], int]:
        """Return the records of a run in order, the invalid lines with their reasons, and the number of bytes read.

        A line that a crash truncated is invalid: `add` had not returned yet.
        """
        path, records, bad = self._path(run_id), [], []
        if not path.is_file():
            return [], [], 0
        with locked(path, "rb") as file:
            content = file.read()
        for number, line in enumerate(content.split(b"\n"), start=1):
            try:
                if line.strip():
                    records.append(self._with_files(run_id, read_line(line)))
            except BadRecord as error:
                bad.append((f"{path}: line {number} {error}", line))
        return records, bad, len(content)

    def _with_files(self, run_id: str, record: Message) -> Message:
        """Return a record with the path of the copy that `add` stored, even if the runs folder was moved.

        Raises:
            BadRecord: if the record names a file outside the outbox, or a link.
        """
        if record["op"] != "files":
            return record
        *_, folder, number, name = ("", "", "", *Path(str(record.get("path"))).parts)
        kept = self._files(run_id) / number / name
        if folder != self._files(run_id).name or ".." in (number, name):
            raise BadRecord("names a file that is not in the outbox")
        for _ in files_below(kept):
            pass
        return {**record, "path": str(kept)}

    def clear(self, run_id: str, size: int) -> bool:
        """Empty a run's file unless records were added after `size` bytes were read; return whether it was emptied."""
        with locked(self._path(run_id), "r+b") as file:
            if file.seek(0, os.SEEK_END) != size:
                return False
            file.truncate(0)
        shutil.rmtree(self._files(run_id), ignore_errors=True)
        return True

    def pending(self) -> list[str]:
        """Return the ids of the runs with unsent records."""
        names = [path.stem for path in sorted(self.folder.glob("*.jsonl"))]
        return [name for name in names if is_id(name) and self.has(name)]

    def has(self, run_id: str) -> bool:
        """Return whether a run has unsent records."""
        path = self._path(run_id)
        return not run_id.endswith(REFUSED) and path.is_file() and path.stat().st_size > 0

    def set_server_id(self, offline_id: str, run_id: str) -> None:
        """Store the id that the server assigned to a run that was opened offline."""
        publish(self.folder / f"{offline_id}.run", run_id.encode())

    def server_id(self, run_id: str) -> str | None:
        """Return the server's id of a run; None if it was opened offline and has not been sent."""
        if not run_id.startswith(OFFLINE):
            return run_id
        path = self.folder / f"{file_name(run_id)}.run"
        text = path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""
        return text if is_id(text) else None

    def _keep_files(self, run_id: str, source: Path) -> Path:
        folder = self._files(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{len(list(folder.iterdir())):04d}" / source.name
        target.parent.mkdir()
        copy_files(source, target)
        return target

    def _path(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.jsonl"

    def _files(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.files"


class OutboxSender:
    """Sends records to MLflow, and stores unsent records in the outbox. Its methods never raise.

    Args:
        outbox: outbox for unsent records.
        send: sends one record; raises if it fails.
        refused: returns whether an error of `send` is permanent.
        reason: formats an error in one line.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Callable[[str, Message], None],
        refused: Callable[[Exception], bool],
        reason: Callable[[Exception], str],
    ) -> None:
        self.outbox, self._send, self._refused, self._reason = outbox, send, refused, reason
        self._quiet_until = 0.0
        self._warned = False
        self.set_aside = 0  # number of records with permanent errors, stored in separate files
        self.reasons: dict[str, None] = {}  # reasons why records are unsent, since the last `flush` began

    def deliver(self, run_id: str, record: Message, now: bool = False) -> bool:
        """Send a record after the unsent records of its run; return whether all records of the run are sent.

        Args:
            now: whether to send even during the waiting time after a failure; used for the last records of a run.
        """
        quiet = time.monotonic() < self._quiet_until and not now
        if not quiet and not self.outbox.has(run_id) and (record["op"] == "open" or self.outbox.server_id(run_id)):
            return self._try(run_id, record) or self._keep(run_id, record)
        self._keep(run_id, record)
        return not quiet and self.flush(run_id)[1] == 0

    def flush(self, run_id: str | None = None) -> tuple[int, int]:
        """Send the unsent records of one run or of all runs; return (records sent, records left)."""
        sent = left = 0
        self.reasons.clear()
        names: list[str] = []
        try:
            names = [run_id] if run_id else self.outbox.pending()
            with locked(self.outbox.folder / "flush.lock", wait=False):
                for name in names:
                    done, rest = self._flush_one(name)
                    sent, left = sent + done, left + rest
        except BlockingIOError:  # another process is sending its records
            left = sum(len(self.outbox.read(name)[0]) for name in names)
        except OSError as error:  # the folder is not writable, or is not a folder
            self.reasons[f"the outbox cannot be used: {os_error_text(error).rstrip('.')}"] = None
            left = len(names)  # at least one record is left
            log.error("tracking: the outbox cannot be used: %s", os_error_text(error))
        return sent, left

    def _flush_one(self, name: str, children: tuple[str, ...] = ()) -> tuple[int, int]:
        """Send a run's records after the records of its sweep; return (records sent, records left).

        Args:
            name: id of the run.
            children: ids of runs whose records wait for this run.
        """
        records, bad, size = self.outbox.read_all(name)
        parent = records[0].get("parent") if records and records[0]["op"] == "open" else None
        before = 0
        if parent in children:  # in a damaged file, runs could wait for each other
            records[0] = {**records[0], "parent": name}
        if is_id(parent) and parent not in (name, *children) and self.outbox.has(parent):
            before, _ = self._flush_one(parent, (name, *children))
        for record in records:
            if not self._try(name, record):
                return before, len(records)
        for reason, line in bad:
            log.warning("tracking: %s; the line is skipped and kept in %s%s.jsonl", reason, name, REFUSED)
            self.outbox.add_line(name + REFUSED, line)
            self.set_aside += 1
        return (before + len(records), 0) if self.outbox.clear(name, size) else (before, len(records))

    def _try(self, run_id: str, record: Message) -> bool:
        """Send a record; return whether it was sent or refused permanently, so that it need not be sent again."""
        try:
            self._send(run_id, record)
        except Exception as error:  # tracking must not end a training job
            if self._refused(error):
                log.warning(
                    "tracking: a record of run %s was refused permanently: %s. It is kept in %s%s.jsonl.",
                    *(run_id, self._reason(error), run_id, REFUSED),
                )
                self._keep(run_id + REFUSED, record)
                self.set_aside += 1
                return True
            self.reasons[self._reason(error)] = None
            if not self._warned:
                log.warning(
                    "tracking: %s. Training continues; records are kept in %s, and `ctvr runs sync` sends them.",
                    *(self._reason(error), self.outbox.folder),
                )
            self._warned, self._quiet_until = True, time.monotonic() + RETRY_AFTER_S
            return False
        self._warned, self._quiet_until = False, 0.0
        return True

    def _keep(self, run_id: str, record: Message) -> bool:
        try:
            self.outbox.add(run_id, record)
        except OSError as error:
            log.error(
                "tracking: a record of run %s is lost, because the outbox is not writable: %s",
                *(run_id, os_error_text(error)),
            )
        return False


def file_name(run_id: str) -> str:
    if not is_id(run_id):
        raise ValueError(f"run id {run_id!r}: only letters, digits, - and _ are allowed.")
    return run_id
