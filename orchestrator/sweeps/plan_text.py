"""Text shared by the start-up summaries of sweeps and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.on_ray.plan import SearchConfig, SearchSpace
from ctvr.orchestrator.on_ray.search import is_grouped


def describe_confirmation(search: SearchConfig) -> str:
    """Describe how the best trials are confirmed."""
    if not search.confirm:
        return "nothing: the best trial is accepted without a test"
    return (
        f"the best {search.confirm} and the recommended settings over {search.confirm_seeds} new seeds on the same "
        "videos; the recommended settings are kept unless a trial wins"
    )


def describe_scheduler(search: SearchConfig) -> str:
    """Describe how trials are run and stopped."""
    size = search.bracket_size
    return f"scheduler {search.scheduler} in brackets of {size} (points that train the same model are one trial)"


def describe_decoding(decoded: int) -> str:
    return f"{decoded} decoded, the others were in the store" if decoded else "0 decoded: all are in the store"


def describe_groups(search: SearchConfig, searched: SearchSpace) -> str:
    """Return which trials of a grouped search share their first task, or why none do; empty for other searchers."""
    if search.searcher != "grouped_tpe":
        return ""
    if not is_grouped(search, searched):
        return " (as tpe: task 1 reads all or none of what is searched)"
    return f" (groups of {search.group_size} share task 1, and differ in {', '.join(searched.later)})"


def describe_rerun(top: int, seeds: int, baselines: Sequence[str]) -> str:
    """Return how the best trials are rerun after the search."""
    if not seeds:
        return "nothing is rerun"
    others = f", next to {', '.join(baselines)}" if baselines else ""
    return f"the best {top} over {seeds} seeds on test videos{others}"


def flat_search(search: SearchConfig) -> Settings:
    """Return the settings of a search by dotted name, as the parent run records them."""
    return {f"search.{name}": value for name, value in asdict(search).items()}
