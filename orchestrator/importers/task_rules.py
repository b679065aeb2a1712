"""Rules that divide the videos of a user's table into tasks: by time, by category, or into equal parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError

UNITS = {"year": "%Y", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}
RULES = (
    "tasks=year, month, week or day (a column time), tasks=category, tasks=4 (equal parts by time), or, with text= of "
    "features, tasks=clusters:4"
)
CLUSTERS = "clusters:"
MOST_PARTS = 10_000
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,9}))?)?\s?(Z|UTC|[+-]\d\d:\d\d)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS = re.compile(r"\d{9,10}(?:\.\d+)?", re.ASCII)  # from 1973 to 2286
Row = tuple[int, Mapping[str, str], object]  # line, cells, video and segment


def check_rule(rule: str) -> None:
    """Check the value of `tasks=`.

    Raises:
        ConfigError: if it is neither a unit of time, `category`, a number nor `clusters:` and a number.
    """
    number = rule.removeprefix(CLUSTERS)
    is_number = number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= MOST_PARTS
    if rule not in UNITS and rule != "category" and not is_number:
        raise ConfigError("is not a rule for tasks", f"tasks={rule:.40}", remedy=f"Use {RULES}.")


def tasks_of(table: Path, rows: Sequence[Row], rule: str) -> tuple[list[str], list[str]]:
    """Return the name of the task of each row, and the names in the order of the stream.

    Args:
        table: the file, for messages.
        rows: line, cells, and the key of the video, for each row.
        rule: a unit of time; "category", in the order of the table; or a number of parts with equally many videos, in
            the order of time and, at equal times, of the table.

    Raises:
        ConfigError: if a cell of the rule's column is empty or not a time, or there are fewer videos than parts.
    """
    check_rule(rule)
    column = "category" if rule == "category" else "time"
    for line, cells, _ in rows:
        if not cells[column]:
            raise ConfigError(f"line {line}: {column} is empty, which tasks={rule} reads", table, remedy="Fill it in.")
    if rule == "category":
        names = [cells["category"] for _, cells, _ in rows]
        return names, list(dict.fromkeys(names))
    times = [_time(table, line, cells["time"]) for line, cells, _ in rows]
    if rule in UNITS:
        names = [time.strftime(UNITS[rule]) for time in times]
        return names, sorted(set(names))
    first: dict[object, datetime] = {}
    for (line, cells, key), time in zip(rows, times):
        if first.setdefault(key, time) != time:
            raise ConfigError(f"line {line}: {cells['video']!r:.80} has two times", table, remedy="Keep one of them.")
    parts, ordered = int(rule), sorted(first, key=lambda key: first[key])
    if parts > len(ordered):
        raise ConfigError(f"exceeds the {len(ordered)} videos", f"{table}: tasks={rule}", remedy="Use fewer tasks.")
    part = {key: str(place * parts // len(ordered) + 1) for place, key in enumerate(ordered)}
    return [part[key] for _, _, key in rows], [str(number + 1) for number in range(parts)]


def _time(table: Path, line: int, cell: str) -> datetime:
    """Read an ISO date, with or without a time and a zone (default: UTC), or seconds since 1970."""
    try:
        if _SECONDS.fullmatch(cell):
            return datetime.fromtimestamp(float(cell), timezone.utc)
        found = _ISO.fullmatch(cell)
        if found is None:
            raise ValueError
        day, minute, second, fraction, zone = found.groups()
        zone = zone if zone and zone[0] in "+-" else "+00:00"
        text = f"{day}T{minute or '00:00'}{second or ':00'}.{(fraction or '')[:6]:0<6}{zone}"
        return datetime.fromisoformat(text).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"line {line}: time {cell[:40]!r} is not a date", table, remedy="Use 2026-03-31 or 2026-03-31T23:59:00."
        ) from None
