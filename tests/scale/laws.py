"""Growth of a driver's work per trial with the number of trials and of nodes; without Ray's processes."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.on_ray.capacity import count_fitting_trials
from ctvr.orchestrator.on_ray.journal import Journal
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig, TrialPlan
from ctvr.orchestrator.on_ray.search import make_searcher
from ctvr.orchestrator.on_ray.search_space import SearchSpace
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving

TASKS = 10


def of_trials(folder: Path, trials: int, space: SearchSpace, given: Settings) -> dict[str, float]:
    """Measure a search of so many trials, each of which reports after every task.

    Returns:
        Seconds of one suggestion and of one report among the last 50 trials, and the size of the journal in bytes.
    """
    search = SearchConfig(trials=trials, scheduler="none", searcher="tpe", bracket_size=1)
    journal = Journal(folder / f"journal{trials}.json")

    def resolve(point: Mapping[str, Any]) -> Settings:
        return {**given, **point}

    made = SuccessiveHalving(make_searcher(search, space, TASKS), search, TASKS, resolve, journal)
    suggested, reported = list[float](), list[float]()
    for _ in range(trials):
        began = time.process_time()
        due = made.next_segments()
        suggested.append(time.process_time() - began)
        if not due:
            break
        trial, until = due[0]
        place = int(hashlib.sha256(repr(sorted(trial.point.items())).encode()).hexdigest()[:8], 16) / 2**32
        began = time.process_time()
        for task in range(1, TASKS + 1):
            made.report(trial, {"task": task, GAIN: place + task}, until)
        reported.append((time.process_time() - began) / TASKS)
        made.end(trial, until)
    assert journal.file is not None
    last = slice(-50, None)
    return {
        "suggestion, s": sum(suggested[last]) / len(suggested[last]),
        "report, s": sum(reported[last]) / len(reported[last]),
        "journal, bytes": float(journal.file.stat().st_size),
    }


def of_nodes(counts: tuple[int, ...] = (8, 64, 512)) -> Iterator[tuple[int, float]]:
    """Return the CPU seconds of one count of the trials of one GPU that fit nodes of 8 GPUs and 64 CPUs."""
    plan = TrialPlan("s", "/", "/", "sqlite://", None, "/", cpus_per_worker=1.0, gpus_per_worker=1.0)
    for count in counts:
        began = time.process_time()
        assert count_fitting_trials(plan, [{"CPU": 64.0, "GPU": 8.0}] * count) == 8 * count
        yield count, time.process_time() - began
