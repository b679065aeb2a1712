"""Paired comparison of two results query by query (`ctvr runs compare`): runs, bundles, or CSV files of anybody."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
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
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.text_files import MIB, read_text

MOST = 64 * MIB  # bytes of a CSV file
HEAD = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "MedR", "meanr": "MeanR"}
Runs = list[dict[str, Rank]]  # query -> rank, of each run (seed)
SEEDS = "over test videos and seeds"
VIDEOS = "over test videos only: with one run on each side, the variance over seeds is not known"
GALLERIES = "Each rank counts the videos of its own side's gallery; a smaller gallery has better ranks."


@dataclass(frozen=True)
class Side:
    """One of the two compared results."""

    name: str
    runs: Runs

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
        ConfigError: if a side cannot be read, or both have fewer than two videos in common.
    """
    sides = [_read_side(text, execution) for text in (first, second)]
    shared = sorted(sides[0].queries & sides[1].queries)
    videos = [query.rpartition("#")[0] or query for query in shared]
    if len(set(videos)) < 2:
        names = [f"{min(side.queries, default='none')!r:.80}" for side in sides]
        fault = f"they have {len(set(videos))} videos in common (the first queries are {' and '.join(names)})"
        raise ConfigError(fault, "runs compare", remedy="Use equal names of queries, such as VIDEO#0.")
    from ctvr.orchestrator.tables.intervals import differences  # imports SciPy

    chances = [np.array([[run[query].first for query in shared] for run in side.runs]) for side in sides]
    is_fixed = all(len(side.runs) == 1 for side in sides)
    found = differences(chances, 1, videos, fixed=[is_fixed] * 2)[0]
    dropped = [f"{len(side.queries) - len(shared)} of {letter}" for side, letter in zip(sides, "AB")]
    lines = [
        *(f"{letter}  {side.name}: {count(len(side.runs), 'run')}" for side, letter in zip(sides, "AB")),
        f"compared on {len(shared)} queries of {len(set(videos))} videos that both have; dropped: {', '.join(dropped)}",
        *_table([_means(side.runs, shared) for side in sides]),
        f"R@1 of A minus B: {found} (95 % interval {VIDEOS if is_fixed else SEEDS})",
    ]
    return "\n".join([*lines, *([GALLERIES] if sides[0].queries != sides[1].queries else [])])


def _means(runs: Runs, queries: Sequence[str]) -> list[float]:
    """Return the mean over runs of each metric of HEAD."""
    counts = [np.array([run[query][:2] for query in queries]).T for run in runs]
    found = [metrics.summary(Positions.of(each)) for each in counts]
    return [float(np.mean([each[name] for each in found])) for name in HEAD]


def _table(rows: Sequence[Sequence[float]]) -> list[str]:
    cells = [["", *HEAD.values()], *([letter, *(f"{each:.2f}" for each in row)] for letter, row in zip("AB", rows))]
    return ["  ".join(cell.rjust(8 if place else 1) for place, cell in enumerate(row)) for row in cells]


def _read_side(text: str, execution: ExecutionConfig) -> Side:
    ends = [len(text), *(place for place, sign in enumerate(text) if sign == ":")]  # a row may contain colons, too
    end = next((place for place in ends if Path(text[:place]).is_file()), None)
    if end is None:
        return Side(text, [_ranks_of_run(each.strip(), execution) for each in text.split(",")])
    path, row = Path(text[:end]), text[end + 1 :]
    return _read_row(path, row) if zipfile.is_zipfile(path) else Side(path.name, [read_csv(path)])


def _ranks_of_run(name: str, execution: ExecutionConfig) -> dict[str, Rank]:
    tracker = execution.existing_tracker()
    run = find_record(name, tracker, methods=True)
    if (ranks := read_ranks(tracker, run.run_id)) is None:
        raise ConfigError("its ranks are not stored", f"run {run.name}", remedy="Use a complete run of retrieval.")
    return dict(ranks.of)


def _read_row(path: Path, label: str) -> Side:
    """Return the runs of a row of a bundle, which needs no label if it is the only one."""
    bundle = read_bundle(path)
    if faults := inconsistencies(bundle):
        raise ConfigError(f"is inconsistent ({faults[0]})", path, remedy=f"See: ctvr runs verify {path}")
    ranks = final_ranks(bundle)
    rows = {str(row["label"]): [str(run) for run in row["runs"]] for row in bundle.about["table"]}
    rows |= {run["id"]: [run["id"]] for run in bundle.about["runs"]} if label not in rows else {}
    if not label and len(bundle.about["table"]) == 1:
        label = next(iter(rows))
    if label not in rows or not rows[label] or not set(rows[label]) <= set(ranks):
        labels = [str(row["label"]) for row in bundle.about["table"]]
        remedy = f"{suggest(label, labels)} Use {path}:ROW with one of {', '.join(labels)}.".strip()
        raise ConfigError(f"has no row {label!r}" if label else f"has {len(labels)} rows", path, remedy=remedy)
    return Side(f"{path.name}:{label}", [dict(ranks[run].of) for run in rows[label]])


def read_csv(path: Path) -> dict[str, Rank]:
    """Read the columns query and rank of a CSV file.

    A rank is 1 if the match is found first; x.5 is a tie with one other video.

    Raises:
        ConfigError: for a missing column, a query that occurs twice, or a value that is not a rank; it names the line.
    """
    lines, found = csv.reader(read_text(path, MOST).splitlines()), dict[str, Rank]()
    try:
        head = [cell.strip().lower() for cell in next(lines, [])]
        if not {"query", "rank"} <= set(head):
            raise ConfigError("lacks the columns query and rank", path, remedy="Add a first line with their names.")
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
    return found


def _rank(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (1 <= value <= 1e9 and (2 * value).is_integer()):
        raise ConfigError("is not a rank", where, text, "Use 1 for the first place, and x.5 for a tie of two.")
    return value
