"""Promotion of the best model of a stream, `best-STREAM`, by its results on validation videos.

At the end of a rerun, a run becomes the best of its stream if it is significantly better than the current best on the
same validation videos. The run's tags record the time (`ctvr.best`) and the comparison (`ctvr.best_by`), and aliases in
MLflow's model registry are moved to it. Test videos are not used if a stream has validation videos.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.settings.resolve import named_in, stored_capabilities
from ctvr.orchestrator.streams.metric_names import ACCURACY, ANSWERED
from ctvr.orchestrator.sweeps.comparison import compare
from ctvr.orchestrator.tables.footnotes import method_of
from ctvr.orchestrator.tables.selection import CHOSE, SPLITS, split_of
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.tables.table import LEVEL
from ctvr.orchestrator.tables.task_orders import content_of

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord
    from ctvr.orchestrator.tracking.tracker import Tracker

SINCE, BY = "ctvr.best", "ctvr.best_by"
R1 = "stream/t2v/r1"
FREE = {
    "seed",
    "workers",
    "evaluation.split",
    "evaluation.every_epoch",
    "evaluation.batch_size",
    "evaluation.query_chunk",
    "data.prefetch_threads",
}
FREE |= {"tracking.mirror", "tracking.keep_checkpoints"}  # settings that may differ between runs of one candidate


def best_of(stream: str, complete: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that searches chose last as the best of a stream; None if no search has chosen a run.

    A run whose method cannot be loaded on this machine is skipped, and the previous best is used.
    """
    known = [run for run in complete if run.tags.get(SINCE) and run.tags.get("ctvr.stream") == stream]
    return max(filter(can_be_asked, known), key=lambda run: float(run.tags[SINCE]), default=None)


def can_be_asked(run: RunRecord) -> bool:
    """Return whether a run's model can answer queries: its method can be loaded and is not an upper bound."""
    try:
        with named_in(f"run {run.name}"):
            return not stored_capabilities(run.settings).reencodes_gallery
    except ConfigError:
        return False


def promote(tracker: Tracker, chosen: RunRecord) -> tuple[bool, str]:
    """Promote a search's selected run if it is better than the current best on the videos that selected both.

    Returns:
        whether the run is now the best of its stream, and a sentence on the comparison.
    """
    stream = chosen.tags.get("ctvr.stream", "")
    complete = tracker.find_runs(stream=stream, tags={"ctvr.complete": "true"})
    holder = best_of(stream, complete)
    is_better, text = (
        (True, "the first run that a search chose") if holder is None else _beats(tracker, chosen, holder, complete)
    )
    if is_better:
        tracker.set_tags(chosen.run_id, {SINCE: f"{time.time():.6f}", BY: text})
    return is_better, f"best-{stream}: {chosen.name if is_better or holder is None else holder.name} ({text})"


def _beats(tracker: Tracker, chosen: RunRecord, holder: RunRecord, complete: Sequence[RunRecord]) -> tuple[bool, str]:
    if _candidate(chosen) == _candidate(holder):
        return True, f"the settings of {holder.name}, the previous best"
    new, old = (evidence(run, complete) for run in (chosen, holder))
    if not new or not old or (split_of(new[0]), content_of(new[0])) != (split_of(old[0]), content_of(old[0])):
        return False, f"{chosen.name} was not selected on the same videos, so the two are not compared"
    ranks = {run.run_id: found for run in (*old, *new) if (found := read_ranks(tracker, run.run_id))}
    metric = next((key for key in (R1, ACCURACY, ANSWERED) if new[0].last(key)), R1)
    (seen,) = compare(old, [new], ranks, (metric, "max"))
    where = f"on {SPLITS[split_of(new[0])]} videos, {len(new)} and {len(old)} seeds"
    said = f"{chosen.name} against {holder.name}: {seen} {where}"
    return seen.value > 0 and seen.p < LEVEL, said


def evidence(run: RunRecord, complete: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that selected a run's settings: those of its confirmation, else trials and validation runs."""
    alike = [other for other in complete if _candidate(other) == _candidate(run)]
    alike = [other for other in alike if split_of(other) == "val" or any(other.tags.get(tag) for tag in CHOSE)]
    confirmed = [other for other in alike if other.tags.get("ctvr.confirms")]
    return confirmed or alike


def _candidate(run: RunRecord) -> tuple[object, ...]:
    settings = sorted((name, str(value)) for name, value in run.settings.items() if name not in FREE)
    return method_of(run), content_of(run), tuple(settings)
