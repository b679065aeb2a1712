"""Importer of a user's table with one line per caption."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Builder, Manifest, empty_task
from ctvr.orchestrator.importers.cells import SPLIT_WORDS, captions_in, in_order, open_table, read_csv, segment_of
from ctvr.orchestrator.importers.task_clusters import cluster_tasks
from ctvr.orchestrator.importers.task_rules import CLUSTERS, RULES, check_rule, tasks_of
from ctvr.orchestrator.streams.captions import MISSING
from ctvr.orchestrator.streams.json_reader import Reader
from ctvr.orchestrator.streams.stream import SPLITS

REQUIRED = ("video", "caption", "split", "task")
OPTIONAL = ("category", "start", "end", "time", "caption_id")
OFFERS = {"split": "a column split with train, val or test", "task": f"a column task or the argument {RULES}"}
_TIMES = re.compile(r"(start|begin|end|stop)[ _]?(time|times|timestamp|sec|seconds|s)?", re.IGNORECASE)
MOST_TASKS = 50  # tasks listed in the report
ANY = "any"  # default category, for a table without that column


def import_csv(
    table: Path,
    videos: Path,
    out: Path | None,
    name: str | None = None,
    rule: str = "",
    vectors: Mapping[str, np.ndarray] | None = None,
) -> tuple[Manifest, str]:
    """Import a user's table with columns video, caption, split, task[, category, start, end, time].

    `split` is train, val or test, or a synonym in SPLIT_WORDS, in any letter case.

    Each row of a video (or of a segment) adds a caption to it; a cell with a list adds several. Tasks are
    ordered by their numbers, or by first appearance if a name is not a number. `video` is an id or a path below
    `videos`; start and end are seconds, mm:ss or hh:mm:ss. A `rule` (`tasks_of`, `cluster_tasks`) divides the videos
    into tasks instead of the column task; clusters need the `vectors` of each caption, (L, d).

    The return value and errors are those of `import_msrvtt`.
    """
    table = Path(table)
    read = read_table(table, needs_task=not rule)
    rows = [(line, row, captions, _segment(table, line, row)) for line, row, captions in read]
    for line, row, _, _ in rows:
        if row["split"] not in SPLITS:
            hint = suggest(row["split"], SPLITS)
            raise ConfigError(f"line {line}: split is {row['split']!r:.60}.{hint} Use train, val or test.", table)
    ordered = _apply(table, rows, rule, vectors) if rule else []
    ids = name_segments((row["video"], segment) for _, row, _, segment in rows)
    builder, reader = Builder(videos, out), Reader(str(table))
    seen: dict[tuple[str, Any], tuple[tuple[str, ...], dict[str, Any]]] = {}
    tasks: dict[str, dict[str, Any]] = {}
    for line, row, captions, segment in rows:
        place = (row["task"], row["split"], row["category"])
        key = (row["video"], segment)
        if key not in seen:
            item = builder.item(row["video"], row["category"], [], segment) | {"video": ids[key]}
            reader.path(item["path"], f"line {line}: video")
            reader.segment(item["segment"], f"line {line}: segment")
            task = tasks.setdefault(row["task"], empty_task())
            if row["category"] not in task["categories"]:
                task["categories"].append(row["category"])
            task[row["split"]].append(item)
            seen[key] = place, item
        if seen[key][0] != place:
            first = " ".join(seen[key][0])
            raise ConfigError(
                f"line {line}: {row['video']!r:.80} is also in {first!r:.200}", table, remedy="Keep one of them."
            )
        seen[key][1]["captions"] += captions
    if not rows:
        raise ConfigError("has a header but no rows", table, remedy="Add a row for each caption.")
    stem, names = name or (Path(out).stem if out else table.stem), ordered or in_order(tasks, table)
    manifest, report = builder.finish(stem, "ctvr", [tasks[task] for task in names], {}, [table])
    report += _describe_task_names(names)
    if rule.startswith(CLUSTERS):
        report += f"\nTraining videos of the clusters: {', '.join(str(len(tasks[task]['train'])) for task in names)}."
    header = open_table(table, REQUIRED).header
    if (times := [column for column in header if _TIMES.fullmatch(column)]) and "start" not in header:
        said = f"Not read: {', '.join(times)}. If they are segments of the videos, rename the columns to start and end."
        report = f"{report}\n{said}"
    return manifest, report


def _apply(
    table: Path,
    rows: Sequence[tuple[int, dict[str, str], list[str], object]],
    rule: str,
    vectors: Mapping[str, np.ndarray] | None,
) -> list[str]:
    """Set the task of each row by a rule; return the names of the tasks in order."""
    check_rule(rule)
    column = "category" if rule == "category" else "time"
    if rule.startswith(CLUSTERS):
        if vectors is None:
            remedy = "Use `ctvr streams import features` with text=, or tasks=month, tasks=category or tasks=4."
            raise ConfigError("clusters need vectors of the captions", f"tasks={rule}", remedy=remedy)
        of_rows = [(row, captions, (row["video"], at)) for _, row, captions, at in rows]
        names, ordered = cluster_tasks(table, of_rows, int(rule.removeprefix(CLUSTERS)), vectors)
    elif column not in open_table(table, REQUIRED).header:
        fault = f"line 1: no column {column!r}, which tasks={rule} needs"
        raise ConfigError(fault, table, remedy=f"Add it, or use {RULES}.")
    else:
        names, ordered = tasks_of(table, [(line, row, (row["video"], at)) for line, row, _, at in rows], rule)
    for (_, row, _, _), task in zip(rows, names):
        row["task"] = task
    return ordered


def _describe_task_names(names: Sequence[str]) -> str:
    """Return the report's line that maps our task names to the table's task names; "" if their numbers agree."""
    numbers = [name.removeprefix("task_") for name in names]
    if all(text.isdecimal() and text.lstrip("0") == str(number) for number, text in enumerate(numbers, start=1)):
        return ""
    shown = [f"task_{number:02d} is {name!r:.60}" for number, name in enumerate(names[:MOST_TASKS], start=1)]
    return f"\nTasks: {', '.join(shown)}{', ...' if len(names) > MOST_TASKS else ''}."


def ids_of(table: Path) -> list[str]:
    """Return the ids that `import_csv` gives the videos of a table, in the order of its lines."""
    return list(name_segments(key for key, _, _ in read_segments(table)).values())


def read_segments(table: Path) -> Iterator[tuple[tuple[str, Any], dict[str, str], list[str]]]:
    """Yield ((video, segment), cells, captions) for each row of a table; the segment of a whole video is None."""
    for line, row, captions in read_table(table):
        yield (row["video"], _segment(table, line, row)), row, captions


def name_segments(rows: Iterable[tuple[str, Any]]) -> dict[tuple[str, Any], str]:
    """Return the ID of each (video, segment); it includes the segment if the video has several."""
    keys = list(dict.fromkeys(rows))
    counts = Counter(video for video, _ in keys)
    return {
        (video, at): f"{video}@{at[0]:g}-{at[1]:g}" if at is not None and counts[video] > 1 else video
        for video, at in keys
    }


def read_table(table: Path, needs_task: bool = False) -> Iterator[tuple[int, dict[str, str], list[str]]]:
    """Read the rows of a user's table: yield line number, cells, and the captions of the row.

    Args:
        needs_task: whether a row without a task is refused.

    Raises:
        ConfigError: if the file or a row is malformed (see `read_csv`), or a caption is missing.
    """
    first = has_category = None
    reader = Reader(str(table))
    required = REQUIRED if needs_task else REQUIRED[:-1]
    for line, row in read_csv(table, required, (*OPTIONAL, "task"), OFFERS):
        first = line if first is None else first
        has_category = bool(row["category"]) if has_category is None else has_category
        if bool(row["category"]) != has_category:
            line = line if has_category else first or line
            raise ConfigError(f"line {line}: category is empty", table, remedy="Fill it in, or omit the column.")
        row["category"] = row["category"] or ANY
        named = ("video", "category", "split", *(("task",) if needs_task else ()))
        row["split"] = SPLIT_WORDS.get(row["split"].lower(), row["split"])
        if unknown := [name for name in named if row[name] in MISSING]:
            value = f"{unknown[0]} is {row[unknown[0]]!r}"
            raise ConfigError(f"line {line}: {value}, which marks a missing value", table, remedy="Fill it in.")
        for name in named:
            reader.text(row[name], f"line {line}: {name} {row[name]!r}")
        yield line, row, captions_in(f"{table}: line {line}", row["caption"])


def _segment(table: Path, line: int, row: Mapping[str, str]) -> tuple[float, float] | None:
    return segment_of(f"{table}: line {line}", row["start"], row["end"])
