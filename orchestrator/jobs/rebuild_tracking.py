"""Reconstruction of lost MLflow records from the runs folder and the store (`ctvr runs sync --rebuild`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.on_ray.plan import read_plan
from ctvr.orchestrator.on_ray.plan_places import OPTIONS, require_given
from ctvr.orchestrator.output_dir import is_name
from ctvr.orchestrator.store.keys import is_key
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.event_log import EVENTS, EventLog
from ctvr.orchestrator.tracking.recorder import rows_of

SHOWN = 20  # maximum number of listed lines that were skipped


def rebuild(execution: ExecutionConfig) -> str:
    """Send the event log to MLflow again, then the metrics of commits; existing records are kept.

    Raises:
        ConfigError: if the runs folder has no event log.
        StoreError: if MLflow does not accept the records.
    """
    event_log = EventLog(execution.runs.resolve() / EVENTS)
    logged = event_log.runs()
    if not logged and not event_log.bad:
        raise ConfigError(
            f"runs sync --rebuild: {event_log.folder} has no event log. Pass the folder of earlier runs by --runs; "
            "runs of versions without an event log cannot be rebuilt."
        )
    say(f"rebuild: {count(len(logged), 'run')}")
    tracker = execution.tracker()
    runs = tracker.resend(logged, event_log.bad)
    committed = 0
    for run_id, tags in runs.items():
        if rows := _read_committed(execution, tags):
            tracker.add_rows(run_id, rows)
            committed += 1
    for line in event_log.bad[:SHOWN]:
        say(f"rebuild: {line}; skipped")
    passed = (
        f"; {count(len(event_log.bad), 'line was skipped and remains', 'lines were skipped and remain')} in "
        f"{event_log.folder}"
        if event_log.bad
        else ""
    )
    rebuilt = f"rebuilt {count(len(runs), 'run')} in {tracker.uri.split('@')[-1]}"
    return f"{rebuilt}, {committed} of them completed from their commits{passed}"


def _read_committed(execution: ExecutionConfig, tags: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return all metrics of a run's newest commit, by step; empty without a commit."""
    key, sweep = str(tags.get("ctvr.commits") or ""), str(tags.get("ctvr.sweep") or "")
    if not is_key(key):  # the key is missing, or a line is damaged
        return {}
    store = _store(execution, sweep if is_name(sweep) else "")
    for name in reversed(store.list("commits", f"{key}/")):
        try:
            return rows_of(Commits(store, key).record(int(name.rpartition("_")[2])))
        except MissingObject:
            continue
    return {}


def _store(execution: ExecutionConfig, sweep: str) -> Store:
    """Open the store that the user gave, else the store in the sweep's plan, else the store in the runs folder."""
    if not execution.store and sweep and (execution.folder(sweep) / "plan.json").is_file():
        plan, kept = read_plan(execution.folder(sweep), sweep)
        require_given(sweep, kept, dict.fromkeys(set(OPTIONS.values()) - {"--store"}, "not used here"))
        return Store.open(plan.store or execution.runs.resolve() / "store")
    return execution.places().open_store()
