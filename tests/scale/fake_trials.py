"""A trial that trains nothing: it waits, and writes to store and MLflow the objects and messages of a real one.

Everything around it is real: Ray Tune starts and stops it in a process of its own, the store syncs its objects,
MLflow's server takes its messages. Torch is not loaded, so that a process needs a tenth of the memory.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

from ctvr.orchestrator.on_ray.plan import GAIN, RunSpec, TrialPlan, run_name
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.outbox import Message
from ctvr.orchestrator.tracking.tracker import Tracker

TIMES = "times"  # folder of what each pretended run measured, one JSON file each


@dataclass(frozen=True)
class Pattern:
    """Messages and sizes recorded from a real trial.

    Attributes:
        opened: the message that opened its run.
        before: the messages to MLflow before the first task.
        tasks: the messages after each task; the last includes those that end a run.
        objects: kind -> bytes that a task puts into the store.
        commit: bytes of a task's commit.
    """

    opened: Message
    before: list[Message]
    tasks: list[list[Message]]
    objects: dict[str, int]
    commit: int


@dataclass
class Clock:
    """Seconds by category of work."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] = self.spent.get(what, 0.0) + time.monotonic() - started


def pattern_of(runs: Path, store: Path, num_tasks: int) -> Pattern:
    """Read the records of the one real run below `runs`."""
    told = list((runs / "told").glob("*.jsonl"))
    messages = sorted((json.loads(line) for path in told for line in path.read_text().splitlines()), key=_when)
    opened = next(message for message in messages if message["op"] == "open")
    tasks: list[list[Message]] = [[] for _ in range(num_tasks + 1)]
    done = 0
    for message in messages:
        if message["op"] in ("open", "is"):
            continue
        if message["op"] == "metrics":
            done = max([done, *(step for step, name, _ in message["values"] if name.startswith("stream/"))])
        tasks[done].append(message)
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // num_tasks
        for folder in store.iterdir()
        if folder.name in ("weights", "gallery", "commits")
    }
    return Pattern(opened, tasks[0], tasks[1:], {k: v for k, v in sizes.items() if k != "commits"}, sizes["commits"])


def _when(message: Mapping[str, Any]) -> float:
    return float(message["at"])


def value_of(point: Mapping[str, Any], task: int) -> float:
    """Compute a gain that grows with the tasks and depends only on them and the point."""
    place = int(hashlib.sha256(json.dumps(point, sort_keys=True, default=str).encode()).hexdigest()[:8], 16)
    return 10.0 * place / 2**32 + 0.5 * task


def trial(config: dict[str, Any], plans: Mapping[str, TrialPlan], pattern: Pattern, seconds: float) -> None:
    """Replacement for the trainable `ctvr.orchestrator.on_ray.tune._trial`.

    Args:
        config: of Tune.
        plans: row -> plan.
        pattern: messages and sizes to write.
        seconds: mean duration of a task.
    """
    plan, run = plans[config.get("row", "")], RunSpec(**config["run"])
    name, clock, began = run_name(plan, config), Clock(), time.time()
    tracker, store = Tracker(plan.tracking_uri, Path(plan.root)), Store.open(plan.store)
    base, done = f"{hashlib.sha256(name.encode()).hexdigest()[:16]}", 0
    last, task = run.stop_after_task or len(pattern.tasks), 0
    tags = {**pattern.opened["tags"], **plan.tags, **run.tags, "ctvr.sweep": plan.sweep, "ctvr.trial": name}
    tags["ctvr.identity"] = name
    try:
        with clock.on("store"):
            done = sum(store.has("commits", f"{base}/{task:03d}") for task in range(1, len(pattern.tasks) + 1))
        with clock.on("mlflow"):
            run_id = tracker.open_run(pattern.opened["stream"], name, pattern.opened["settings"], plan.parent, tags)
            for message in pattern.before if not done else ():
                tracker._tell(run_id, message)
        draw = random.Random(name)
        for task in range(1, last + 1):
            if task > done:
                time.sleep(seconds * draw.uniform(0.5, 1.5))
                with clock.on("store"):
                    _commit(store, base, task, pattern)
                with clock.on("mlflow"):
                    for message in pattern.tasks[task - 1]:
                        tracker._tell(run_id, message)
            gain = value_of(run.settings, task)
            with clock.on("search"):
                tune.report({"task": task, "seconds": seconds, "reused": 0, GAIN: gain, "stream/t2v/r1": gain})
    finally:  # the search ends a trial within its report
        about = {"name": name, "pid": os.getpid(), "node": ray.get_runtime_context().get_node_id(), "began": began}
        folder = Path(plan.root) / TIMES
        folder.mkdir(exist_ok=True)
        told = json.dumps({**about, "tasks": task - done, "ended": time.time(), **clock.spent})
        (folder / f"{name}-{last}-{os.getpid()}.json").write_text(told)


def _commit(store: Store, base: str, task: int, pattern: Pattern) -> None:
    """Return as many bytes as a real task's commit has, different in every run."""
    draw = np.random.default_rng(int(base, 16) + task)
    for kind, size in pattern.objects.items():
        store.put(kind, f"{base}{task:03d}", {"of": draw.integers(0, 256, size, dtype=np.uint8)})
    record = draw.integers(0, 10**6, pattern.commit // 8).tolist()
    store.create_json("commits", f"{base}/{task:03d}", {"record": record})
