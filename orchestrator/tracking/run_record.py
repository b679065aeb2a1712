"""Runs and values as read from MLflow, and conversion of values to MLflow's formats."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ctvr.orchestrator.addresses import Place, is_allowed
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError

MAX_PARAM, MAX_TAG = 6000, 8000  # MLflow's limits, in characters per value


class Histories(Mapping[str, list[tuple[int, float]]]):
    """Map from metric key to (step, value) pairs by rising step. A history is read from MLflow on first access."""

    def __init__(self, latest: Mapping[str, tuple[int, float]], read: Callable[[str], list[tuple[int, float]]]) -> None:
        self.latest = dict(latest)  # (step, value) of the last step, known without a request
        self._read = read
        self._known: dict[str, list[tuple[int, float]]] = {}

    def __getitem__(self, key: str) -> list[tuple[int, float]]:
        if key not in self.latest:
            raise KeyError(key)
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.latest)

    def __len__(self) -> int:
        return len(self.latest)


class Texts(dict[str, Any]):
    """Recorded texts of a run by name. A missing text raises a one-line error instead of KeyError."""

    def __init__(self, found: Mapping[str, Any], run: str, kind: str) -> None:
        super().__init__(found)
        self.run, self.kind = run, kind

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"run {self.run}: its record has no {self.kind} {name}. Restore it (`ctvr runs sync --rebuild`), "
            f"or remove it: ctvr runs rm {self.run} --yes"
        )


@dataclass(frozen=True)
class RunRecord:
    """One run as read from MLflow."""

    run_id: str
    name: str
    settings: Settings  # flat dotted names -> text, as on the command line
    metrics: Mapping[str, list[tuple[int, float]]]  # key -> (step, value) by rising step
    tags: dict[str, str]
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    artifacts: str  # URI of its artifact folder
    started: int = 0  # milliseconds since 1970
    folder: Path | None = None  # the artifact folder, if it is on this machine and below the runs folder

    def last(self, key: str) -> tuple[int, float] | None:
        """Return (step, value) of a metric's last step; None if it was never recorded."""
        if isinstance(self.metrics, Histories):
            return self.metrics.latest.get(key)
        return self.metrics[key][-1] if self.metrics.get(key) else None


def as_text(value: Any) -> str:
    """Return a setting's value as typed on the command line; config.build can read it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def metric_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)  # MLflow refuses other characters, such as "@"


def artifact_folder(run_id: str, address: str, *places: Place) -> Path | None:
    """Return the local folder at a run's artifact address; None on a server, or if the folder is not the run's.

    Args:
        run_id: id of the run, which must be a part of the path.
        address: artifact address from a file that may be untrusted, so it may name any folder of the user.
        places: the runs folder and the address of the records, below which the folder may be.
    """
    place = urlsplit(address)
    path = Path(unquote(place.path) if place.scheme == "file" else address)
    is_local = place.scheme in ("", "file") and path.is_absolute() and run_id in path.parts
    return path if is_local and is_allowed(address, *places) else None


def is_count(text: str) -> bool:
    """Return whether a text of a record is a whole number of at most 18 digits (`²` is not one)."""
    return text.isdecimal() and len(text) <= 18


def number(value: float | None) -> float | None:
    """Return a value as a float; None for a missing, infinite or NaN value."""
    return None if value is None or not math.isfinite(value) else float(value)


def same(a: float, b: float) -> bool:
    """Return whether MLflow stores the value `b` as `a`; NaN equals NaN."""
    return a == b or (math.isnan(a) and math.isnan(b)) or (math.isinf(b) and abs(a) > 1e308)  # SQL lacks infinity


def short(text: str, limit: int) -> str:
    """Return a text within MLflow's limit; a longer text is truncated and ends with its SHA-256."""
    if len(text) <= limit:
        return text
    note = f"... [cut; {len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()}]"
    return text[: limit - len(note)] + note


def quoted(value: str) -> str:
    """Return a text in quotation marks for MLflow's search syntax.

    Raises:
        ConfigError: if the text has both single and double quotation marks.
    """
    quote = "'" if "'" not in value else '"'
    if quote in value:
        raise ConfigError("has both kinds of quotation marks", f"name {value!r}", remedy="Omit one kind.")
    return f"{quote}{value}{quote}"
