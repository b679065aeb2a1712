"""Progress of a sweep, read from its store by a process that imports neither Ray nor torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import read_plan
from ctvr.orchestrator.store.gc import OF_RUNS
from ctvr.orchestrator.store.store import Store


def list_committed_tasks(runs: Path, name: str, store: str = "") -> set[str]:
    """Return the names of all finished tasks in the store of a sweep, including tasks of other sweeps.

    Args:
        runs: the runs folder.
        name: name of the sweep, whose plan names its store.
        store: the store that the user gave, or "".

    Raises:
        CtvrError: if the store cannot be used.
    """
    place = store
    with contextlib.suppress(ConfigError):  # without a plan, the store in the runs folder is used
        place = place or read_plan(runs / "sweeps" / name, name)[0].store
    place = place or str(runs / "store")
    if "://" not in place and not Path(place).is_dir():
        return set()
    opened = Store.open(place)  # a mid-task checkpoint also counts as progress
    return {key for kind in OF_RUNS for key in opened.list(kind) if not key.startswith("zero-")}
