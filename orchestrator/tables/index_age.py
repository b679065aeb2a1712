"""Columns on the age of the stored index: R@1 with and without re-encoding, intervals of the gap, and the cost.

The metrics are those of `evaluation.reencode` and `evaluation.unlearned_tasks` (learning/evaluation/index_age.py,
docs/protocol.md). A table shows these columns if a run measured them. These columns have neither bold values nor
comparisons between rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import Column, Difference, Row, Value

FRESH, GAP, COST, AREA = "index_fresh", "index_gap", "reencode_gmacs", "backfilling"
COLUMNS = {
    FRESH: (Column(FRESH, "R@1, index re-encoded"), "stream/index/r1_100"),
    GAP: (Column(GAP, "Gap"), "stream/index/gap"),
    "index_gained": (Column("index_gained", "Gained (%)"), "stream/index/gained"),
    "index_lost": (Column("index_lost", "Lost (%)"), "stream/index/lost"),
    "fwt": (Column("fwt", "FWT"), "stream/transfer/fwt"),
}
NOTE = (
    "R@1, P % re-encoded: R@1 if the model after the last task has re-encoded the oldest P % of the videos of earlier "
    "tasks. Index re-encoded: P is 100. Mean over shares: the area under the curve of R@1 over P (FastFill's measure "
    "of back-filling). Gap: R@1 with the index re-encoded minus R@1, in points; T1, T2, ...: the gap for the captions "
    "of one task. Brackets: 95 % interval of the gap over test videos and seeds (over videos only, if no row has "
    "several seeds), not corrected for the number of gaps. The variance over seeds is moderated toward the mean of "
    "the column. Gained, lost: percentage of captions that are correct only after, or only before, re-encoding. GMACs "
    "to re-encode: cost of re-encoding all videos of earlier tasks. FWT: R@1 of a task in its own gallery just before "
    "it is learned, minus R@1 of the untrained model, averaged over tasks; absent for an untrained row. These columns "
    "are not compared between rows."
)
UNSEEN_NOTE = (
    "Retention: R@1 after the last task on a stream that is never learned, as a percentage of the untrained model's "
    "R@1. R@1, + N videos: R@1 if N videos of another stream are added to the gallery. These columns are not compared "
    "between rows."
)
RETENTION, ADDED = re.compile(r"stream/also/(.+)/retention"), re.compile(r"stream/distractors/r1_(\d+)")
SHARE, OF_TASK = re.compile(r"stream/index/r1_(\d+)"), re.compile(r"task_(\d+)/index/gap")
MOST_TASKS = 10  # up to this many tasks, gaps of single tasks are columns; otherwise they are only in the CSV file


def age_values(means: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of a row: `index_P` is R@1 with P % of old videos re-encoded, `gap_NN` is the gap of task NN.

    Args:
        means: final metric -> mean over seeds.
    """
    found = {key: means[metric] for key, (_, metric) in COLUMNS.items() if metric in means}
    for metric, value in means.items():
        if (share := SHARE.fullmatch(metric)) and share[1] not in {"0", "100"}:
            found[f"index_{share[1]}"] = value
        if task := OF_TASK.fullmatch(metric):
            found[f"gap_{task[1]}"] = value
        if other := RETENTION.fullmatch(metric):
            found[f"retention_{other[1]}"] = value
        if (count := ADDED.fullmatch(metric)) and count[1] != "0":
            found[f"distractors_{count[1]}"] = value
    if (curve := reencoding_curve(means)) and FRESH in found:
        found[COST] = Value(curve[-1][0])
    if len(curve := share_curve(means)) > 2 and {curve[0][0], curve[-1][0]} == {0, 100}:
        found[AREA] = Value(float(np.trapezoid([r1 for _, r1, _ in curve], [share / 100 for share, *_ in curve])))
    return found


def age_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of index age, FWT and held-out streams for which a row has a value. R@1 and gap are first."""
    known = {key for row in rows for key in row.values}
    shares = sorted(int(key[6:]) for key in known if re.fullmatch(r"index_\d+", key))
    tasks = sorted(key for key in known if re.fullmatch(r"gap_\d+", key))
    found = [COLUMNS[key][0] for key in (FRESH, GAP) if key in known]  # first: a screen may drop later columns
    found += [Column(f"index_{share}", f"R@1, {share} % re-encoded") for share in shares]
    found += [Column(AREA, "R@1, mean over shares")] if AREA in known else []
    found += [Column(key, f"Gap T{int(key[4:])}") for key in tasks if len(tasks) <= MOST_TASKS]
    found += [COLUMNS[key][0] for key in ("index_gained", "index_lost") if key in known]
    if COST in known:
        smallest = min((row.values[COST].mean for row in rows if row.values.get(COST, Value(0)).mean), default=1.0)
        found.append(Column(COST, "GMACs to re-encode", digits=max(1, 1 - math.floor(math.log10(smallest)))))
    return found + [COLUMNS[key][0] for key in ("fwt",) if key in known] + unseen_columns(rows)


def unseen_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of streams that are never learned: retention on each, and R@1 by number of added videos."""
    known = {key for row in rows for key in row.values}
    streams = sorted(key for key in known if key.startswith("retention_"))
    counts = sorted(int(key[12:]) for key in known if key.startswith("distractors_"))
    found = [Column(key, f"Retention, {key[10:]} (%)") for key in streams]
    return [*found, *(Column(f"distractors_{count}", f"R@1, + {count} videos") for count in counts)]


def age_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes that explain these columns, or [] if no row has a value in them."""
    notes = [NOTE] if any(key in row.values for row in rows for key in (GAP, "fwt")) else []
    return [*notes, *([UNSEEN_NOTE] if unseen_columns(rows) else [])]


def share_curve(means: Mapping[str, Value]) -> list[tuple[float, float, float]]:
    """Return (percent of old videos that are re-encoded, mean R@1, std), sorted by that percentage."""
    found = {int(match[1]): value for metric, value in means.items() if (match := SHARE.fullmatch(metric))}
    return [(float(share), found[share].mean, found[share].std) for share in sorted(found)]


def reencoding_curve(means: Mapping[str, Value]) -> list[tuple[float, float, float]]:
    """Return (10^9 multiply-adds spent on re-encoding, mean R@1, std) by share, or [] if a cost is unknown.

    A method that re-encodes old videos by itself has only one point, at the cost of re-encoding all old videos.
    """
    macs = means.get("cost/video_gmacs")
    shares = sorted(int(match[1]) for metric in means if (match := SHARE.fullmatch(metric)))
    if macs is None or any(f"stream/index/videos_{share}" not in means for share in shares):
        return []
    points = {}
    for share in shares:
        r1 = means[f"stream/index/r1_{share}"]
        points[means[f"stream/index/videos_{share}"].mean * macs.mean] = (r1.mean, r1.std)
    return [(cost, *r1) for cost, r1 in points.items()]


def with_gap_intervals(rows: Sequence[Row], ranks: Mapping[str, Ranks]) -> list[Row]:
    """Return the rows with an interval of each gap, if all runs of a row stored ranks before and after re-encoding.

    The variance over seeds is pooled over the rows of a column that have the same captions.

    Args:
        ranks: run id -> ranks.
    """
    found: dict[int, dict[str, Difference]] = {index: {} for index in range(len(rows))}
    pages: dict[tuple[str, ...], dict[int, list[Ranks]]] = {}
    for index, row in enumerate(rows):
        if runs := _aged(row, ranks):
            pages.setdefault(tuple(sorted(runs[0].reencoded["0"])), {})[index] = runs
    for queries, page in pages.items():
        for key, differences in _gaps(queries, page).items():
            for index, difference in zip(page, differences):
                if key in rows[index].values:
                    found[index][key] = difference
    return [replace(row, intervals={**row.intervals, **found[index]}) for index, row in enumerate(rows)]


def _aged(row: Row, ranks: Mapping[str, Ranks]) -> list[Ranks]:
    """Return the ranks of the runs of a row, or [] if a run lacks ranks of the stored or of the re-encoded index."""
    runs = [ranks[run] for run in row.runs if run in ranks]
    if any(run.counts_ties_as_misses for run in runs):  # these ranks would give another gap than the recorded R@1
        return []
    return runs if len(runs) == len(row.runs) and all({"0", "100"} <= set(run.reencoded) for run in runs) else []


def _gaps(queries: Sequence[str], page: Mapping[int, Sequence[Ranks]]) -> dict[str, list[Difference]]:
    """Return column -> gap of each row with its interval, over all captions and over the captions of each task."""
    from ctvr.orchestrator.tables.intervals import paired_changes  # SciPy takes a second to import

    changes = [
        [np.array([[run.reencoded[share][q].first for q in queries] for run in runs]) for share in ("0", "100")]
        for runs in page.values()
    ]
    videos = np.array([query.rpartition("#")[0] or query for query in queries])
    task = next(iter(page.values()))[0].task
    of_task = np.array([task.get(query, -1) for query in queries])
    parts = {GAP: np.full(len(queries), True)}
    parts |= {f"gap_{number + 1:02d}": of_task == number for number in sorted(set(of_task) - {-1})}
    return {
        key: paired_changes([(before[:, part], after[:, part]) for before, after in changes], videos[part])
        for key, part in parts.items()
        if len(set(videos[part])) > 1
    }
