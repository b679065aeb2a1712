"""`ctvr rebuild`: a fresh MLflow, or what one lacks, of what the runs folder and the store hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctvr.orchestrator.config import is_name
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.commits import Commits
from ctvr.orchestrator.on_ray.plan import read_plan
from ctvr.orchestrator.store.keys import is_key
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.event_log import EVENTS, EventLog
from ctvr.orchestrator.tracking.recorder import rows_of

SHOWN = 20  # lines that were passed over and are named


def rebuild(execution: ExecutionConfig) -> str:
    """Tell MLflow again what it was told, then what commits know besides; what is there already stays.

    Raises:
        ConfigError: if the runs folder holds nothing that was told.
        StoreError: if MLflow does not take it.
    """
    ledger = EventLog(execution.runs.resolve() / EVENTS)
    told = ledger.runs()
    if not told and not ledger.bad:
        raise ConfigError(
            f"rebuild: {ledger.folder} holds nothing that MLflow was told. Name the folder of earlier runs by "
            "--runs; runs of versions that did not keep it cannot be made again."
        )
    say(f"rebuild: {len(told)} runs")
    tracker = execution.tracker()
    runs = tracker.resend(told, ledger.bad)
    committed = 0
    for run_id, tags in runs.items():
        if rows := _committed(execution, tags):
            tracker.add_rows(run_id, rows)
            committed += 1
    for line in ledger.bad[:SHOWN]:
        say(f"rebuild: {line}; it is passed over")
    passed = f"; {len(ledger.bad)} lines were passed over and stay in {ledger.folder}" if ledger.bad else ""
    rebuilt = f"rebuilt {len(runs)} runs in {tracker.uri.split('@')[-1]}"
    return f"{rebuilt}, {committed} of them held against their commits{passed}"


def _committed(execution: ExecutionConfig, tags: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Every number of a run's newest commit, by step; empty where there is none."""
    key, sweep = str(tags.get("ctvr.commits") or ""), str(tags.get("ctvr.sweep") or "")
    if not is_key(key):  # it has none, or the line is of nobody's making
        return {}
    store = _store(execution, sweep if is_name(sweep) else "")
    for name in reversed(store.list("commits", f"{key}/")):
        try:
            return rows_of(Commits(store, key).record(int(name.rpartition("_")[2])))
        except MissingObject:
            continue
    return {}


def _store(execution: ExecutionConfig, sweep: str) -> Store:
    """The store that is named, else that of the sweep's plan, else that of the runs folder."""
    if not execution.store and sweep and (execution.folder(sweep) / "plan.json").is_file():
        return Store.open(read_plan(execution.folder(sweep), sweep)[0].store or execution.runs.resolve() / "store")
    return execution.places().open_store()
