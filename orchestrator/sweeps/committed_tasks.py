"""How far a sweep is, asked of its store alone: for the process that holds neither Ray nor torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.manifest import read_json


def list_committed_tasks(runs: Path, name: str, store: str = "") -> set[str]:
    """Names of all finished tasks in the store of a sweep; other sweeps may share it.

    Args:
        runs: the runs folder.
        name: of the sweep, whose plan names its store.
        store: the store that the user named, if any.

    Raises:
        CtvrError: if the store cannot be used.
    """
    place = store
    with contextlib.suppress(ConfigError, KeyError, TypeError):  # no plan: the store of the runs folder
        place = place or str(read_json(runs / "sweeps" / name / "plan.json")["plan"]["store"] or "")
    place = place or str(runs / "store")
    if "://" not in place and not Path(place).is_dir():
        return set()
    return {key for key in Store.open(place).list("commits") if not key.startswith("zero-")}
