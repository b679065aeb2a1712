"""How far a sweep is, asked of its store alone: for the process that holds neither Ray nor torch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from orchestrator.store.store import Store


def finished_tasks(runs: Path, name: str, store: str = "") -> set[str]:
    """Names of all finished tasks in the store of a sweep; other sweeps may share it.

    Args:
        runs: the runs folder.
        name: of the sweep, whose plan names its store.
        store: the store that the user named, if any.

    Raises:
        CtvrError: if the store cannot be used.
    """
    place = store
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        place = place or json.loads((runs / "sweeps" / name / "plan.json").read_text(encoding="utf-8"))["plan"]["store"]
    place = place or str(runs / "store")
    if "://" not in place and not Path(place).is_dir():
        return set()
    return {key for key in Store.open(place).list("commits") if not key.startswith("zero-")}
