"""Findings of `ctvr doctor`'s report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]  # a note does not require action before a sweep


SHOWN = 5  # maximum number of names in a finding


@dataclass(frozen=True)
class Finding:
    """Result of one check, a line of the report.

    Attributes:
        level: severity.
        subject: checked part, for example "MLflow".
        text: result of the check.
        remedy: correction of the fault; empty if nothing is wrong.
        is_unavailable: whether the check may succeed later, for example because a server is down.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    is_unavailable: bool = False


def listed(names: list[str]) -> str:
    """Format a list of names: the first `SHOWN`, then the number of further names."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
