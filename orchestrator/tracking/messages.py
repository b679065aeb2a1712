"""Schema of records for MLflow, checked before they are sent, because files of a runs folder may be untrusted.

A record is one line of JSON in the event log or in the outbox. Its names become files below an artifact folder, and
its keys and values become rows of MLflow. A line that names a location outside that folder, or that lacks a field, is
refused here with one sentence.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import BadRecord
from ctvr.orchestrator.redaction import redact_data

Message = dict[str, Any]  # {"op": operation, ...}, JSON-able
IS = "is"  # operation that records the id that MLflow assigned to a run
IDENTITY = "ctvr.identity"  # tag of an opened run
ENDED = {"FINISHED", "FAILED", "KILLED"}
_LARGEST = 2**63  # limit of an integer in a database
_ID = re.compile(r"[\w-]{1,128}")
_PART = re.compile(r"[^./\\%~][^/\\%]*")  # part of an artifact's name; it cannot begin with a dot


def is_id(value: Any) -> TypeGuard[str]:
    """Return whether a value is a valid run id, which is also used as a file name."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def read_line(line: bytes) -> Message:
    """Return the record of a line of the event log or the outbox.

    Raises:
        BadRecord: if the line is not a record.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # truncated by a crash, damaged, or nested too deeply
        raise BadRecord("is not a line of JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise BadRecord("is not a record: it has no operation")
    return message


def without_secrets(message: Message) -> Message:
    """Return a record with its texts redacted; file paths and metric values are not changed."""
    if message["op"] in ("metrics", "heatmap", "files", "close"):
        return message
    found: Message = redact_data(message)
    return found


def check(message: Message) -> None:
    """Check that a record has the fields of its operation.

    Raises:
        BadRecord: if a field is missing or invalid.
    """
    fields = _FIELDS.get(message["op"])
    if fields is None:
        raise BadRecord(f"has the unknown operation {message['op'][:40]!r}")
    for name, fits in fields.items():
        if name not in message:
            raise BadRecord(f"lacks {name!r} (operation {message['op']!r})")
        if not fits(message[name]):
            raise BadRecord(f"has the invalid value {name} = {message[name]!r:.60} (operation {message['op']!r})")
    if message["op"] == "open" and not {"ctvr.kind", IDENTITY} <= message["tags"].keys():
        raise BadRecord("opens a run without the tags 'ctvr.kind' and 'ctvr.identity'")


def folder_of(name: str) -> str:
    """Return the folder name of an experiment: the experiment's name if it is safe, otherwise a slug with a digest."""
    if len(name.encode()) <= 128 and re.fullmatch(r"\w[\w .+=,@()-]*", name):
        return name
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] or "stream"
    return f"{slug}-{digest_of(name)[:12]}"


def files_below(path: Path) -> Iterator[Path]:
    """Yield a file, or every file below a folder.

    Raises:
        BadRecord: for other objects, such as a link or a pipe.
    """
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        raise BadRecord(f"names {path.name!r}, which is neither a regular file nor a folder")
    if path.is_file():
        yield path
        return
    for each in sorted(path.iterdir()):
        yield from files_below(each)


def copy_files(source: Path, target: Path) -> None:
    """Copy a file, or all files below a folder, without modes and times, which exFAT, vfat and CIFS may refuse to set.

    Raises:
        BadRecord: for other objects, such as a link or a pipe.
    """
    for file in files_below(source):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_name(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= 500 and value.isprintable()


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(key) and _is_text(text) for key, text in value.items())


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_LARGEST < value < _LARGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST if isinstance(value, int) else isinstance(value, float)


def _is_points(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(point, list)
        and len(point) == 3
        and _is_whole(point[0])
        and _is_name(point[1])
        and _is_number(point[2])
        for point in value
    )


def _is_artifact(value: Any) -> bool:
    return _is_name(value) and all(_PART.fullmatch(part) for part in value.split("/"))


def _is_matrix(value: Any) -> bool:
    rows = value if isinstance(value, list) else [None]
    return all(isinstance(row, list) and all(each is None or _is_number(each) for each in row) for row in rows)


def _is_matrices(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(_is_name(k) and _is_matrix(v) for k, v in value.items())


_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "open": {
        "stream": _is_name,
        "name": _is_name,
        "settings": _is_texts,
        "parent": lambda value: value is None or is_id(value),
        "tags": _is_texts,
    },
    "settings": {"values": _is_texts},
    "tags": {"values": _is_texts},
    "metrics": {"values": _is_points, "time": _is_whole},
    "files": {"path": _is_text, "into": lambda value: value == "" or _is_artifact(value)},
    "text": {"name": _is_artifact, "text": _is_text},
    "heatmap": {"name": _is_artifact, "matrices": _is_matrices},
    "name": {"name": _is_name},
    "dataset": {"dataset": _is_texts},
    "close": {"status": lambda value: isinstance(value, str) and value in ENDED, "time": _is_whole},
    IS: {"run_id": is_id},
}


def is_time(value: Any) -> bool:
    """Return whether a value is a valid time of a record (a finite number of seconds since 1970)."""
    return _is_number(value) and math.isfinite(value)
