"""Construction of a bundle from the commits and the records of runs.

Shapes: R runs, T tasks, Q queries.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ctvr.orchestrator.bundles.bundle import ALL, FORMAT, OWN, Bundle, check_size
from ctvr.orchestrator.bundles.check import seal
from ctvr.orchestrator.bundles.from_ranks import TAGS, records_of
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.learning.record.commits import digest_of_commit
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import split_order
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.tables.build import PARAMETERS
from ctvr.orchestrator.tables.footnotes import has_access
from ctvr.orchestrator.tables.significance import Ranks, read_ranks
from ctvr.orchestrator.text_files import read_text
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

FACTS = ("is_joint", "keeps_videos", "trains_on_searched")  # of footnotes.has_access; older records lack the tags
VERSIONS = ("python", "packages", "system", "kernels", "gpus", "commit", "changed_since_commit")


def bundle_of(name: str, runs: Sequence[RunRecord], tracker: Tracker, store: Store) -> tuple[Bundle, list[str]]:
    """Return the bundle of complete runs of one stream, and a line for each run that it lacks, with the reason.

    Raises:
        ConfigError: if no run remains, or a recorded metric does not follow from the ranks of its run.
    """
    found: list[tuple[RunRecord, Ranks, list[dict[str, Any]]]] = []
    left_out, queries = list[str](), list[str]()
    for run in sorted(runs, key=lambda run: run.started):
        ranks = read_ranks(tracker, run.run_id)
        if ranks is None or not ranks.task:
            left_out.append(f"left out: run {run.name}, whose ranks are not stored")
            continue
        queries = queries or sorted(ranks.of, key=lambda query: (ranks.task[query], query))
        if set(queries) != set(ranks.of):
            left_out.append(f"left out: run {run.name}, which has other queries than the first run")
            continue
        try:
            found.append((run, ranks, commits_of(run, max(ranks.task.values()) + 1, store)))
        except MissingObject:
            left_out.append(f"left out: run {run.name}, whose commits are not in the store")
    if not found:
        reason = left_out[0].removeprefix("left out: ") if left_out else "no run"
        raise ConfigError(f"nothing can be published ({reason})", name, remedy="Run it again, or pass its --store.")
    check_size(len(found), max(len(commits) for _, _, commits in found), len(queries), f"bundle {name}")
    orders = [[ranks.task[query] for query in queries] for _, ranks, _ in found]
    different = [order for place, order in enumerate(orders) if order not in orders[:place]]
    states = [[RunState(**commit["record"]) for commit in commits] for _, _, commits in found]
    about = {
        "format": FORMAT,
        "name": name,
        "queries": queries,
        "orders": different,
        "runs": [
            {**describe_run(run, commits, tracker), "order": different.index(order)}
            for (run, _, commits), order in zip(found, orders)
        ],
    }
    bundle = seal(about, _arrays(states, orders, queries, found[0][0].tags.get("ctvr.protocol") == "cvlm"))
    _require_recorded(bundle, [run for run, _, _ in found])
    return bundle, left_out


def commits_of(run: RunRecord, num_tasks: int, store: Store) -> list[dict[str, Any]]:
    """Return the commits of a run after each task.

    Raises:
        MissingObject: if a commit is missing, or does not continue the commit before it.
    """
    key = run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    found = [_find_commit(key, done, num_tasks, store) for done in range(1, num_tasks + 1)]
    for before, commit in pairwise(found):
        if commit.get("parent", expected := digest_of_commit(before)) != expected:
            raise MissingObject("commits", key)
    return found


def _find_commit(key: str, done: int, newest: int, store: Store) -> dict[str, Any]:
    """Return the commit after `done` tasks; if the task was adopted, the commit of the run that trained it.

    A run that has adopted several tasks has only the commit of the last task, whose weights name the other run.
    """
    for later in range(done, newest + 1):
        if not store.has("commits", name := f"{key}/task_{later:03d}"):
            continue
        commit: dict[str, Any] = store.get_json("commits", name)
        if later == done:
            return commit
        return _find_commit(commit["weights"].partition("/")[0], done, later - 1, store)
    raise MissingObject("commits", f"{key}/task_{done:03d}")


def describe_run(run: RunRecord, commits: Sequence[dict[str, Any]], tracker: Tracker) -> dict[str, Any]:
    """Return the settings, digests and versions of a run as JSON values, without paths, users and hosts."""
    facts = {f"ctvr.{fact}": str(has_access(run, fact)).lower() for fact in FACTS}
    named = {f"ctvr.{tag}": run.tags[f"ctvr.{tag}"] for tag in TAGS if run.tags.get(f"ctvr.{tag}")}
    parameters = run.last(PARAMETERS)
    return {
        "id": run.run_id,
        "name": run.name,
        "key": run.tags.get("ctvr.result", ""),
        "settings": {name: without_folders(str(value)) for name, value in sorted(run.settings.items())},
        "tags": {**facts, **named},
        "parameters": None if parameters is None else parameters[1],
        "made_of": {name: str(value) for name, value in commits[-1].get("made_of", {}).items()},
        "commits": [digest_of_commit(commit) for commit in commits],
        "versions": _versions(run, tracker),
    }


def without_folders(value: str) -> str:
    """Return a setting in which each path is replaced by its last part and a digest that distinguishes paths.

    `/a/b.json@2` becomes `b.json#1a2b3c@2`: the task order remains readable.
    """
    return ",".join(_without_folder(piece) if re.search(r"[/\\~]", piece) else piece for piece in value.split(","))


def _without_folder(path: str) -> str:
    plain, order = split_order(path.strip())
    name = re.split(r"[/\\]", plain.rstrip("/\\"))[-1]
    return f"{name}#{digest_of(plain)[:6]}{f'@{order}' if order else ''}"


def _versions(run: RunRecord, tracker: Tracker) -> dict[str, Any]:
    try:
        stored = json.loads(read_text(tracker.download(run.run_id, "environment.json")))
        return {name: stored[name] for name in VERSIONS if name in stored}
    except (FileNotFoundError, ValueError, TypeError):  # an older or damaged record
        return {}


def _arrays(
    states: Sequence[Sequence[RunState]], orders: Sequence[Sequence[int]], queries: Sequence[str], is_own: bool
) -> dict[str, np.ndarray]:
    """Return gallery -> (R, 2, T, Q); without the own galleries if an older version did not store their ranks.

    Args:
        states: of each run, its state after each task.
        orders: of each run, the task of each query.
        is_own: whether the protocol searches own galleries only (CVLM).
    """
    after = {OWN: [[state.ranks for state in run] for run in states]}
    if not is_own:
        alone = [
            [state.own_ranks or (state.ranks if not done else {}) for done, state in enumerate(run)] for run in states
        ]
        after = {ALL: after[OWN], **({OWN: alone} if all(each for run in alone for each in run) else {})}
    return {
        gallery: np.array([_counts(*each, queries) for each in zip(runs, orders)]) for gallery, runs in after.items()
    }


def _counts(after: Sequence[dict[str, Rank]], tasks: Sequence[int], queries: Sequence[str]) -> np.ndarray:
    """Return the counts (2, T, Q) of a run.

    Raises:
        ConfigError: if a learned task lacks the rank of a query.
    """
    found = np.zeros((2, len(after), len(queries)), np.uint32)
    for done, ranks in enumerate(after):
        for place, (query, task) in enumerate(zip(queries, tasks)):
            if task <= done:
                if query not in ranks:
                    raise ConfigError(
                        f"query {query} has no rank after task {done + 1}", "publish", remedy="Run it again."
                    )
                found[:, done, place] = ranks[query][:2]
    return found


def _require_recorded(bundle: Bundle, runs: Sequence[RunRecord]) -> None:
    """Check that the metrics that follow from the ranks are those that were recorded."""
    for made, run in zip(records_of(bundle), runs):
        for metric, points in made.metrics.items():
            recorded = dict(run.metrics.get(metric, []))
            for step, value in points:
                if step in recorded and not math.isclose(recorded[step], value, rel_tol=1e-9, abs_tol=1e-9):
                    fault = f"{metric} after task {step} is {recorded[step]:.4f}, but its ranks give {value:.4f}"
                    raise ConfigError(fault, f"run {run.name}", remedy="Run it again with this version.")
