"""One line of `ctvr doctor`'s report, and how many names a line shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]  # a note is worth knowing once, and no reason to act before a sweep


SHOWN = 5  # names in one finding


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `remedy` is empty if nothing is wrong. `is_unavailable`: the check may succeed later (a server that is down).
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    is_unavailable: bool = False


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
