"""Paired comparison of two results query by query (`ctvr runs compare`): runs, bundles, or other CSV files."""

from __future__ import annotations

import csv
import os
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ctvr.orchestrator.bundles.bundle import read_bundle
from ctvr.orchestrator.bundles.check import inconsistencies
from ctvr.orchestrator.bundles.from_ranks import Positions, final_ranks
from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.runs import find_record
from ctvr.orchestrator.learning.evaluation import metrics
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.tables.build import PARAMETERS
from ctvr.orchestrator.tables.setting_diff import provenance_of
from ctvr.orchestrator.tables.significance import Ranks, read_ranks
from ctvr.orchestrator.text_files import MIB, read_text
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

MAX_CSV_BYTES = 64 * MIB  # bytes of a CSV file
HEAD = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "MedR", "meanr": "MeanR"}
Runs = list[dict[str, Rank]]  # query -> rank, of each run (seed)
Run = tuple[Ranks, str, float | None]  # ranks, protocol, number of trained parameters (None: not recorded)
SEEDS = "over test videos and seeds"
VIDEOS = "over test videos only: without several trained runs on a side, the variance over seeds is not known"
UNTRAINED = "over test videos: neither side has trained parameters, so seeds do not matter"
BY_TASK = "CVLM: each value is the mean over tasks, as in tables."
POOLED = "Each value is over all queries; tables of CVLM have means over tasks, but one side has no tasks of CVLM."
GALLERIES = "Each rank counts the videos of its own side's gallery; a smaller gallery has better ranks."


@dataclass(frozen=True)
class Side:
    """One of the two compared results."""

    name: str
    runs: Runs
    is_untrained: bool = False  # whether no run has trained parameters, so that all seeds give equal results
    task: Mapping[str, int] = field(default_factory=dict)  # query -> its task, if R@1 is the mean over tasks (CVLM)

    @property
    def queries(self) -> set[str]:
        return set.intersection(*map(set, self.runs))


def compare(first: str, second: str, execution: ExecutionConfig) -> str:
    """Return both sides' metrics on the queries that both have, and the paired difference of R@1 with interval and p.

    Args:
        first, second: a run, or several (comma-separated), which are seeds; a bundle FILE or FILE:ROW; or a CSV file
            with the columns query and rank.
        execution: the runs folder, for names of runs.

    Raises:
        ConfigError: if a side cannot be read, or both have fewer than two videos (CVLM: of a task) in common.
    """
    sides = [_read_side(text, execution) for text in (first, second)]
    shared = sorted(sides[0].queries & sides[1].queries)
    videos = [query.rpartition("#")[0] or query for query in shared]
    tasks = [sides[1].task[query] for query in shared] if all(side.task for side in sides) else None
    if (fewest := _fewest(videos, tasks or [0] * len(videos))) < 2:
        names = [f"{min(side.queries, default='none')!r:.80}" for side in sides]
        share = f"they have {count(fewest, 'video')} in common{' in a task' if tasks else ''}"
        fault = f"{share} (the first queries are {' and '.join(names)})"
        raise ConfigError(fault, "runs compare", remedy="Use equal names of queries, such as VIDEO#0.")
    from ctvr.orchestrator.tables.intervals import differences  # imports SciPy

    chances = [np.array([[run[query].first for query in shared] for run in side.runs]) for side in sides]
    has_seeds = any(len(side.runs) > 1 and not side.is_untrained for side in sides)
    fixed = [side.is_untrained or not has_seeds for side in sides]
    over = SEEDS if has_seeds else UNTRAINED if all(side.is_untrained for side in sides) else VIDEOS
    found = differences(chances, 1, videos, tasks, fixed=fixed)[0]
    dropped = [f"{len(side.queries) - len(shared)} of {letter}" for side, letter in zip(sides, "AB")]
    lines = [
        *(f"{letter}  {side.name}: {count(len(side.runs), 'run')}" for side, letter in zip(sides, "AB")),
        f"compared on {count(len(shared), 'query', 'queries')} of {len(set(videos))} videos that both have; "
        f"dropped: {', '.join(dropped)}",
        *_table([_means(side.runs, shared, tasks) for side in sides]),
        f"R@1 of A minus B: {found} (95 % interval {over})",
        *([BY_TASK] if tasks else [POOLED] if any(side.task for side in sides) else []),
    ]
    lines += [GALLERIES] if sides[0].queries != sides[1].queries else []
    return "\n".join([*lines, *filter(None, map(_beyond, sides, "AB"))])


def _fewest(videos: Sequence[str], tasks: Sequence[int]) -> int:
    """Return the smallest number of different videos of a task."""
    of_task = defaultdict(set)
    for video, task in zip(videos, tasks):
        of_task[task].add(video)
    return min(map(len, of_task.values()), default=0)


def _means(runs: Runs, queries: Sequence[str], tasks: Sequence[int] | None) -> list[float]:
    """Return the mean over runs, and over tasks if given, of each metric of HEAD."""
    counts = [np.array([run[query][:2] for query in queries]).T for run in runs]
    parts = [np.array(tasks) == task for task in sorted(set(tasks))] if tasks else [slice(None)]
    found = [metrics.summary(Positions.of(each[:, part])) for each in counts for part in parts]
    return [float(np.mean([each[name] for each in found])) for name in HEAD]


def _beyond(side: Side, letter: str) -> str:
    """Return a note if a rank is larger than the number of videos that the side's queries name, otherwise ""."""
    named = len({query.rpartition("#")[0] or query for query in side.queries})
    worst = max(rank.mean for run in side.runs for rank in run.values())
    said = f"{letter} has rank {worst:g}, but its queries name {count(named, 'video')}"
    return f"{said}: its gallery has others, too, or its ranks are wrong." if worst > named else ""


def _table(rows: Sequence[Sequence[float]]) -> list[str]:
    cells = [["", *HEAD.values()], *([letter, *(f"{each:.2f}" for each in row)] for letter, row in zip("AB", rows))]
    return ["  ".join(cell.rjust(8 if place else 1) for place, cell in enumerate(row)) for row in cells]


def _read_side(text: str, execution: ExecutionConfig) -> Side:
    ends = [len(text), *(place for place, sign in enumerate(text) if sign == ":")]  # a row may contain colons, too
    end = next((place for place in ends if Path(text[:place]).is_file()), None)
    if end is None and (text.endswith((".csv", ".zip")) or os.sep in text):
        raise ConfigError("no such file", text, remedy="Pass a CSV file, a bundle or the name of a run.")
    if end is None:
        return _read_seeds(text, execution)
    path, row = Path(text[:end]), text[end + 1 :]
    is_bundle = path.suffix == ".zip" or zipfile.is_zipfile(path)
    return _read_row(path, row) if is_bundle else Side(path.name, [read_csv(path)])


def _side(name: str, runs: Sequence[Run]) -> Side:
    task = runs[0][0].task if all(protocol == "cvlm" for _, protocol, _ in runs) else {}
    return Side(name, [dict(ranks.of) for ranks, _, _ in runs], all(trained == 0 for *_, trained in runs), task)


def _read_seeds(text: str, execution: ExecutionConfig) -> Side:
    """Read comma-separated runs, which must be seeds of one configuration."""
    tracker = execution.existing_tracker()
    records = [find_record(name.strip(), tracker, methods=True) for name in text.split(",")]
    if len({run.run_id for run in records}) < len(records):
        raise ConfigError("lists a run twice", text, remedy="Omit one of them.")
    if len(records) > 1:
        _check_seeds(text, records)
    return _side(text, [_read_run(run, tracker) for run in records])


def _check_seeds(text: str, records: Sequence[RunRecord]) -> None:
    """Check that runs have equal settings, streams and weights.

    Raises:
        ConfigError: for the first difference; `text` is the argument that names the runs.
    """
    from ctvr.orchestrator.keys.run_key import NON_IDENTITY_SETTINGS  # imports torch

    first, *others = (
        {name: value for name, value in run.settings.items() if name not in ("seed", *NON_IDENTITY_SETTINGS)}
        | {f"the {kind}": found for kind, found in provenance_of(run).items() if kind in ("stream", "weights")}
        for run in records
    )
    for own in others:  # a run of an older version lacks newer settings
        if other := next((name for name, value in own.items() if first.get(name, value) != value), None):
            values = f"{first[other]:.60} and {own[other]:.60}"
            remedy = "Use a comma for seeds of one configuration only, and compare two: ctvr runs compare A B."
            raise ConfigError(f"its runs have different values of {other}, {values}", text, remedy=remedy)


def _read_run(run: RunRecord, tracker: Tracker) -> Run:
    if (ranks := read_ranks(tracker, run.run_id)) is None:
        raise ConfigError("its ranks are not stored", f"run {run.name}", remedy="Use a complete run of retrieval.")
    trained = run.last(PARAMETERS)
    return ranks, run.tags.get("ctvr.protocol", ""), None if trained is None else trained[1]


def _read_row(path: Path, label: str) -> Side:
    """Return the runs of a row of a bundle, which needs no label if it is the only row."""
    bundle = read_bundle(path)
    if faults := inconsistencies(bundle):
        raise ConfigError(f"is inconsistent ({faults[0]})", path, remedy=f"See: ctvr runs verify {path}")
    ranks, labels = final_ranks(bundle), [str(row["label"]) for row in bundle.about["table"]]
    rows = {str(row["label"]): [str(run) for run in row["runs"]] for row in bundle.about["table"]}
    rows |= {run["id"]: [run["id"]] for run in bundle.about["runs"]} if label not in rows else {}
    if not label and len(labels) == 1:
        label = labels[0]
    if labels.count(label) > 1:
        alike = [run for row in bundle.about["table"] if str(row["label"]) == label for run in row["runs"]]
        remedy = f"Use the id of a run, {path}:ID with one of {', '.join(map(str, alike))}."
        raise ConfigError(f"has {labels.count(label)} rows {label!r}", path, remedy=remedy)
    if label not in rows or not rows[label] or not set(rows[label]) <= set(ranks):
        remedy = f"{suggest(label, labels)} Use {path}:ROW with one of {', '.join(labels)}.".strip()
        raise ConfigError(f"has no row {label!r}" if label else f"has {len(labels)} rows", path, remedy=remedy)
    facts = {run["id"]: (run["tags"].get("ctvr.protocol", ""), run["parameters"]) for run in bundle.about["runs"]}
    return _side(f"{path.name}:{label}", [(ranks[run], *facts[run]) for run in rows[label]])


def read_csv(path: Path) -> dict[str, Rank]:
    """Read the columns query and rank of a CSV file.

    A rank is 1 if the match is found first; x.5 is a tie with one other video.

    Raises:
        ConfigError: for a missing column, a query that occurs twice, or a value that is not a rank; it names the line.
    """
    lines, found = csv.reader(read_text(path, MAX_CSV_BYTES).splitlines()), dict[str, Rank]()
    try:
        head = [cell.strip().lower() for cell in next(lines, [])]
        if not {"query", "rank"} <= set(head):
            raise _wrong_head(head, path)
        for line in lines:
            where = f"{path}: line {lines.line_num}"
            if not line:
                continue
            if len(line) != len(head):
                raise ConfigError(f"has {len(line)} cells instead of {len(head)}", where, remedy="Correct it.")
            cells = dict(zip(head, line))
            if cells["query"] in found:
                raise ConfigError(f"query {cells['query']!r:.80} occurs twice", where, remedy="Keep one of them.")
            found[cells["query"]] = Rank.read(_rank(cells["rank"], where))
    except csv.Error as error:
        raise ConfigError(f"cannot be read as CSV ({error})", path, remedy="Save it as UTF-8 CSV.") from error
    if not found:
        raise ConfigError("has no queries after its first line", path, remedy="Add a line for each query.")
    return found


def _wrong_head(head: Sequence[str], path: Path) -> ConfigError:
    """Return the error for a first line without the columns query and rank."""
    if not head:
        return ConfigError("is empty", path, remedy="Add a line `query,rank`, and a line for each query.")
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if {"query", "rank"} <= {cell.strip('" ') for cell in ",".join(head).split(sign)}:
            return ConfigError(f"is separated by {name}", path, remedy="Save it with commas.")
    return ConfigError("lacks the columns query and rank", path, remedy="Add a first line with their names.")


def _rank(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (1 <= value <= 1e9 and (2 * value).is_integer()):
        raise ConfigError("is not a rank", where, text, "Use 1 for the first place, and x.5 for a tie of two.")
    return value
