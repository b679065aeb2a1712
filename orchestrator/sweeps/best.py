"""`best-STREAM`: the model that a search chose on validation videos. It stays until another is better on the same ones.

A run becomes the best of its stream at the end of a rerun. Tags of the run keep when (`ctvr.best`) and by which
comparison (`ctvr.best_by`); the aliases of MLflow's model registry follow them. Test videos decide nothing where a
stream has validation videos.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.resolve import get_method, named_in
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
    "evaluation.batch_size",
    "evaluation.query_chunk",
    "data.prefetch_threads",
}
FREE |= {"tracking.mirror", "tracking.keep_checkpoints"}  # settings in which runs of one candidate may differ


def best_of(stream: str, complete: Sequence[RunRecord]) -> RunRecord | None:
    """The run that is the best of its stream; None where no search has chosen one yet.

    A run whose method cannot be loaded here is passed over; the best before it stands again.
    """
    known = [run for run in complete if run.tags.get(SINCE) and run.tags.get("ctvr.stream") == stream]
    return max(filter(can_be_asked, known), key=lambda run: float(run.tags[SINCE]), default=None)


def can_be_asked(run: RunRecord) -> bool:
    """Whether a run kept to the protocol, which an upper bound does not, by a method that can be loaded here."""
    try:
        with named_in(f"run {run.name}"):
            return not get_method(str(run.settings["method"])).reencodes_gallery
    except ConfigError:
        return False


def promote(tracker: Tracker, chosen: RunRecord) -> tuple[bool, str]:
    """Make what a search chose the best of its stream, if it beats the present one on the videos that chose both.

    Returns:
        Whether it is the best now, and the sentence that says by which comparison.
    """
    stream = chosen.tags.get("ctvr.stream", "")
    complete = tracker.find_runs(stream=stream, tags={"ctvr.complete": "true"})
    holder = best_of(stream, complete)
    is_better, text = (
        (True, "the first that a search chose") if holder is None else _beats(tracker, chosen, holder, complete)
    )
    if is_better:
        tracker.set_tags(chosen.run_id, {SINCE: f"{time.time():.6f}", BY: text})
    return is_better, f"best-{stream}: {chosen.name if is_better or holder is None else holder.name} ({text})"


def _beats(tracker: Tracker, chosen: RunRecord, holder: RunRecord, complete: Sequence[RunRecord]) -> tuple[bool, str]:
    if _candidate(chosen) == _candidate(holder):
        return True, f"the settings of {holder.name}, which was it before"
    new, old = (evidence(run, complete) for run in (chosen, holder))
    if not new or not old or (split_of(new[0]), content_of(new[0])) != (split_of(old[0]), content_of(old[0])):
        return False, f"{chosen.name} was not chosen on the same videos, so the two are not compared"
    ranks = {run.run_id: found for run in (*old, *new) if (found := read_ranks(tracker, run.run_id))}
    metric = next((key for key in (R1, ACCURACY, ANSWERED) if new[0].last(key)), R1)
    (seen,) = compare(old, [new], ranks, (metric, "max"))
    where = f"on {SPLITS[split_of(new[0])]} videos, {len(new)} and {len(old)} seeds"
    said = f"{chosen.name} against {holder.name}: {seen} {where}"
    return seen.value > 0 and seen.p < LEVEL, said


def evidence(run: RunRecord, complete: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs by which a run's settings were chosen: of a confirmation, or else trials and runs on validation videos.

    The confirmation's seeds are fresh; a trial's was chosen together with its settings.
    """
    alike = [other for other in complete if _candidate(other) == _candidate(run)]
    alike = [other for other in alike if split_of(other) == "val" or any(other.tags.get(tag) for tag in CHOSE)]
    confirmed = [other for other in alike if other.tags.get("ctvr.confirms")]
    return confirmed or alike


def _candidate(run: RunRecord) -> tuple[object, ...]:
    settings = sorted((name, str(value)) for name, value in run.settings.items() if name not in FREE)
    return method_of(run), content_of(run), tuple(settings)
