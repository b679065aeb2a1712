"""Verdicts on a bundle (`ctvr runs verify`): whether it is consistent, and whether this machine reproduces its ranks.

Consistency needs neither torch nor the runs. Reproduction ranks a random sample of queries again by the stored models.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctvr.orchestrator.bundles.bundle import ALL, OWN, Bundle, read_bundle, write_parquet
from ctvr.orchestrator.bundles.check import inconsistencies
from ctvr.orchestrator.bundles.from_commits import commits_of, describe_run
from ctvr.orchestrator.bundles.signature import signer_of
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError, CtvrError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

CONFIRMED, ONLY_CONSISTENT, INCONSISTENT = range(3)  # exit status
QUERIES = 100  # drawn by default
SHOWN = 10  # faults that are printed, at most
LIMIT = "Invented ranks can be consistent, too: ask for a reproduction or a signature"
ALWAYS = ("made_of", "commits", "parameters")  # facts of a run that must be equal here
COMPARED = (*ALWAYS, "settings", "tags")  # if it is the same run; a repeated one may have other names and files


@dataclass
class LocalRuns:
    """The part of a bundle that can be computed again on this machine."""

    stored: dict[int, tuple[RunRecord, Stream]] = field(default_factory=dict)  # place in the bundle -> its run
    tasks: dict[int, list[int]] = field(default_factory=dict)  # place -> numbers of learned tasks with weights
    absent: list[str] = field(default_factory=list)  # runs that cannot be computed again, with the reason
    unequal: list[str] = field(default_factory=list)  # facts that differ from the records here


def verify(
    file: Path,
    execution: ExecutionConfig,
    queries: int = QUERIES,
    signers: Path | None = None,
    parquet: Path | None = None,
) -> tuple[str, int]:
    """Return a line for each verdict, and the exit status.

    Args:
        file: the bundle.
        execution: runs folder, store and videos, from which ranks are computed again.
        queries: number of ranks in the random sample; 0: no reproduction.
        signers: file of allowed signers, if the signature `FILE.sig` is to be verified.
        parquet: file for the ranks of a consistent bundle as one table.

    Raises:
        ConfigError: for a file that is not a bundle, or a signature that is not accepted.
    """
    bundle = read_bundle(file)
    lines = [f"signed: yes, by {signer_of(file, signers)}"] if signers is not None else []
    if faults := inconsistencies(bundle):
        return "\n".join([*lines, *_list_faults(faults)]), INCONSISTENT
    lines.append(f"consistent: yes, {_count_cells(bundle.about)} (digest {bundle.about['digest'][:12]})")
    if parquet is not None:
        lines.append(f"written: {parquet} ({count(write_parquet(bundle, parquet), 'rank')})")
    if not queries:
        return "\n".join([*lines, f"reproduced: not requested. {LIMIT}."]), CONFIRMED
    is_same, text = _reproduce(bundle, execution, queries)
    return "\n".join([*lines, f"reproduced: {text}"]), CONFIRMED if is_same else ONLY_CONSISTENT


def _list_faults(faults: Sequence[str]) -> list[str]:
    told = f"{len(faults)} value{'s do' if len(faults) > 1 else ' does'} not follow from its ranks"
    more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    return [f"consistent: no, {told}", *(f"  {each}" for each in [*faults[:SHOWN], *more])]


def _count_cells(about: Mapping[str, Any]) -> str:
    rows, runs = about["table"], about["runs"]
    cells = sum(len(row["cells"]) for row in rows)
    return f"{count(cells, 'cell')} of {count(len(rows), 'row')} follow from the ranks of {count(len(runs), 'run')}"


def _reproduce(bundle: Bundle, execution: ExecutionConfig, queries: int) -> tuple[bool, str]:
    """Return whether a random sample of the ranks of all runs is reproduced, and the verdict as text."""
    try:
        tracker, store = execution.existing_tracker(), execution.existing_store()
    except ConfigError as error:
        return False, f"not tried ({error.described}). {LIMIT}."
    here = _find_runs(bundle, execution, tracker, store)
    if here.unequal:
        more = f", and {len(here.unequal) - 1} more" if here.unequal[1:] else ""
        return False, f"no, {here.unequal[0]}{more}"
    if not here.tasks:
        return False, f"not tried ({here.absent[0]}). {LIMIT}."
    drawn = _draw(bundle, here.tasks, queries)
    differing = _compare(bundle, execution, here, drawn)
    num_drawn = sum(len(asked) for (place, _), asked in drawn.items() if place in here.tasks)
    if differing:
        return False, f"no, {len(differing)} of {num_drawn} drawn ranks differ, for example {differing[0]}"
    if not here.tasks:
        return False, f"not tried ({here.absent[0]}). {LIMIT}."
    every = range(1, bundle.ranks[next(iter(bundle.ranks))].shape[2] + 1)
    missed = sorted({task for tasks in here.tasks.values() for task in every if task not in tasks})
    left = [f"the weights after task {', '.join(map(str, missed))} are not kept"] if missed else []
    told = "; ".join([*left, *here.absent[:1]])
    runs = f"{len(here.tasks)} of {count(len(bundle.about['runs']), 'run')}"
    return not here.absent, f"yes, {num_drawn} of {num_drawn} drawn ranks of {runs}{told and f' ({told})'}"


def _find_runs(bundle: Bundle, execution: ExecutionConfig, tracker: Tracker, store: Store) -> LocalRuns:
    here, found = LocalRuns(), tracker.find_runs(tags={"ctvr.complete": "true"})
    for place, stated in enumerate(bundle.about["runs"]):
        name, tasks = f"run {stated['name']}", dict(zip(bundle.about["queries"], bundle.tasks_of(place).tolist()))
        alike = [run for run in found if run.run_id == stated["id"]]
        alike += [run for run in found if stated["key"] and run.tags.get("ctvr.result") == stated["key"]]
        if not alike:
            here.absent.append(f"{name} is not in {execution.runs}")
            continue
        run, ranks = alike[0], read_ranks(tracker, alike[0].run_id)
        if ranks is None or ranks.task != tasks:
            here.unequal.append(f"{name}: it has other queries or tasks here")
            continue
        try:
            commits = commits_of(run, max(tasks.values()) + 1, store)
        except MissingObject:
            here.absent.append(f"{name} has no commits in the store")
            continue
        names = COMPARED if run.run_id == stated["id"] else ALWAYS
        recorded = describe_run(run, commits, tracker)
        here.unequal += [f"{name}: {each}" for part in names for each in _unequal(part, stated[part], recorded[part])]
        stream, own = execution.stream_of(run), run.tags.get("ctvr.commits", "")
        kept = [
            done
            for done, commit in enumerate(commits, 1)
            if store.has("commits", f"{own}/task_{done:03d}") and store.has("weights", commit["weights"])
        ]
        if stream is None or not kept:
            lack = "no weights in the store" if stream else "a stream that is not here, or has changed"
            here.absent.append(f"{name} has {lack}")
        else:
            here.stored[place], here.tasks[place] = (run, stream), kept
    return here


def _unequal(part: str, stated: Any, recorded: Any) -> list[str]:
    """Return a phrase for each fact that differs between the file and the records on this machine."""
    if isinstance(stated, list):
        stated, recorded = ({str(i): each for i, each in enumerate(values, 1)} for values in (stated, recorded))
    if not isinstance(stated, Mapping):
        part, stated, recorded = "its", {part: stated}, {part: recorded}
    return [
        f"{part} {name} is {stated.get(name, 'absent')} in the file and {recorded.get(name, 'absent')} here"
        for name in sorted({*stated, *recorded})
        if stated.get(name) != recorded.get(name)
    ]


def _draw(bundle: Bundle, tasks: Mapping[int, list[int]], number: int) -> dict[tuple[int, int], list[int]]:
    """Return (index of a run, learned tasks) -> sampled queries, which the bundle's author cannot foresee."""
    learned = {place: bundle.tasks_of(place) for place in tasks}
    every = [
        (place, done, query)
        for place, kept in tasks.items()
        for done in kept
        for query in (learned[place] < done).nonzero()[0].tolist()
    ]
    found = defaultdict(list)
    for place, done, query in random.SystemRandom().sample(every, min(number, len(every))):
        found[place, done].append(query)
    return found


def _compare(
    bundle: Bundle, execution: ExecutionConfig, here: LocalRuns, drawn: Mapping[tuple[int, int], list[int]]
) -> list[str]:
    """Rank the sampled queries again; return a phrase for each query whose rank differs.

    A run whose model cannot be loaded or used here moves from `here.tasks` to `here.absent`.
    """
    from ctvr.orchestrator.jobs.load_model import load_task  # imports torch
    from ctvr.orchestrator.retrieval.rank_again import rank_again

    found, queries = [], bundle.about["queries"]
    for (place, done), asked in sorted(drawn.items()):
        run, stream = here.stored[place]
        if place not in here.tasks:
            continue
        try:
            model = load_task(run, execution, stream, done)
            again = rank_again(model, {queries[query] for query in asked}, run.tags.get("ctvr.protocol", ""))
        except CtvrError as error:  # for example an untrusted class, or a file that is gone
            del here.tasks[place]
            here.absent.append(f"run {run.name} cannot be ranked again: {str(error).rstrip('.')}")
            continue
        for query in asked:
            for gallery, rank in zip((ALL, OWN), again.get(queries[query], ())):
                if gallery not in bundle.ranks:
                    continue
                better, equal = bundle.ranks[gallery][place, :, done - 1, query].tolist()
                if (better, equal) != rank[:2]:
                    where = f"{queries[query]} of run {run.name} after task {done}, {gallery} videos"
                    found.append(
                        f"{where}: {better} better and {equal} equal in the file, {rank[0]} and {rank[1]} here"
                    )
                    break
            else:
                if queries[query] not in again:
                    found.append(f"{queries[query]} of run {run.name}: no such query here")
    return found
