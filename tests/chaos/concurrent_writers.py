"""Two concurrent drivers of one run that compute different numbers: the result is that of one of them, not a mixture.

Both have the same key and store. The second draws its batches from another seed, to simulate a GPU or another machine
with other numbers. They race from the first task on. In the other case one is stopped while one of its commits is
damaged, and the other trains that task again. In both, every commit must continue the one before it, and both drivers
must end with the same result.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.images import ImageData
from ctvr.orchestrator.learning.record.commits import objects_of
from ctvr.orchestrator.learning.training.loop import Loop
from ctvr.orchestrator.store.store import Store
from tests.chaos.cases import TASKS
from tests.chaos.lifecycle import (
    Kill,
    Points,
    Story,
    fork,
    go_on,
    is_time,
    last_line,
    make_database,
    run_child,
    stored_metrics,
    stored_runs,
)

if TYPE_CHECKING:
    from tests.chaos.engine import Engine

SECONDS = 300.0  # of a driver; one that takes longer hangs
CONTINUED = ("own", "union", "metrics", "training")  # of a record: a commit's begin with those of the one before it


def compete(home: Path, manifest: Path, story: Story, rival: int, stop_at: int | None, die_at: int | None) -> None:
    """Run one driver; its events and the digest of its result are written to `<home>/rival<n>`.

    Args:
        home: the runs folder of both.
        manifest: of the stream.
        story: the story whose method is run.
        rival: 0 has the numbers of a run alone, another has others.
        stop_at: a task (from 0) in whose training the process stops once, until SIGCONT arrives.
        die_at: a task in whose training it kills itself.
    """
    mine, seed, has_stopped = home / f"rival{rival}", Loop._seed, False
    batches = {kind: kind.train_batches for kind in (StreamData, ImageData)}
    mine.mkdir(exist_ok=True)

    def other_seed(self: Loop, *parts: object) -> None:
        seed(self, *parts, *([rival] if rival and parts[0] == "epoch" else []))

    def other_batches(self: StreamData, tasks: Any, number: int, task: int, *rest: Any) -> Any:
        nonlocal has_stopped
        if task == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if task == stop_at and not has_stopped:
            has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return batches[ImageData if isinstance(self, ImageData) else StreamData](
            self, tasks, number + rival, task, *rest
        )

    Loop._seed = other_seed  # type: ignore[method-assign]
    for kind in batches:
        kind.train_batches = other_batches  # type: ignore[method-assign]
    (mine / "digest").write_text(go_on(home, manifest, story, folder=mine))


def contest(engine: Engine, story: Story, home: Path, room: int) -> tuple[list[Kill], list[str]]:
    """Run one story; return the kills that took effect, and the faults in the drivers' results."""
    kill = story.kills[0]
    if story.number % 20 < 10 or room < 1:
        kills = _race(engine, story, home, kill if room else None)
    else:
        kills = _damage(engine, story, home, 1 + int(kill.part * (TASKS - 1)))
    wrong = [*_one_result(home), *one_trajectory(home)]
    if kills != [] and kills[0].call is not None:
        return kills, wrong  # a damaged task is reported as it was first, and the log states it
    return kills, [*wrong, *_metrics_of_the_winner(engine, story, home)]


def _race(engine: Engine, story: Story, home: Path, kill: Kill | None) -> list[Kill]:
    """Start both drivers at once; the first is killed midway and started again."""
    processes = [fork(compete, home, engine.manifest, story, rival, None, None) for rival in (0, 1)]
    hit = []
    if kill is not None:
        processes[0].join(kill.part * engine.unbroken[story.method].seconds)
        if processes[0].is_alive():
            processes[0].kill()
            hit = [Kill(part=kill.part)]
            processes[0].join()
            processes[0] = fork(compete, home, engine.manifest, story, 0, None, None)
    _join(*processes)
    return hit


def _damage(engine: Engine, story: Story, home: Path, task: int) -> list[Kill]:
    """Stop the first driver in `task` (from 1), damage the weights before it, and let the second train again and die.

    Then the first continues: its task would be the child of a commit that no longer exists.
    """
    first = fork(compete, home, engine.manifest, story, 0, task, None)
    if not _stands_still(first):
        return []
    store = Store.open(home / "store")
    (run,) = _runs(store)
    for kind, key in objects_of(store.get_json("commits", f"{run}/task_{task:03d}")):
        if kind == "weights":
            (file,) = (home / "store" / kind).glob(f"{key}*")
            file.write_bytes(b"\0" * file.stat().st_size)
    _join(fork(compete, home, engine.manifest, story, 1, None, task))
    os.kill(first.pid, signal.SIGCONT)
    _join(first)
    _join(fork(compete, home, engine.manifest, story, 1, None, None))
    return [Kill(call=0)]


def one_trajectory(home: Path) -> Iterator[str]:
    """Check that every commit continues the one before it: its record begins with that commit's record."""
    store = Store.open(home / "store")
    for run in _runs(store):
        records = [store.get_json("commits", f"{run}/task_{done:03d}")["record"] for done in range(1, TASKS + 1)]
        for done, (before, after) in enumerate(pairwise(records), start=1):
            if any(after[name][: len(before[name])] != before[name] for name in CONTINUED):
                yield f"task {done + 1} does not go on from the commit of task {done}: two drivers' numbers are mixed"


def _one_result(home: Path) -> Iterator[str]:
    digests = [home / f"rival{rival}" / "digest" for rival in (0, 1)]
    if missing := [file.parent.name for file in digests if not file.is_file()]:
        yield f"{' and '.join(missing)} failed: {last_line(home / 'log')}"
    elif len({file.read_text() for file in digests}) > 1:
        yield "the two drivers end with different results"


def _metrics_of_the_winner(engine: Engine, story: Story, home: Path) -> Iterator[str]:
    """Check that the MLflow run of both drivers holds the values that a third driver reads from the commits.

    Two drivers that end at once may both send a value (MLflow has no conditional write), and both send their times.
    """
    from tests.chaos.engine import compare

    other = home / "read again"
    other.mkdir()
    run_child(make_database, other)
    run_child(_read_again, home, engine.manifest, story, f"sqlite:///{other / 'empty.db'}", other)
    shutil.move(other / "empty.db", other / "mlflow.db")
    read = stored_metrics(other).items()
    expected: Points = {point: None if is_time(point) else value for point, (value, _) in read}
    if len(runs := stored_runs(home)) != 1:
        yield f"MLflow has {len(runs)} runs of one key"
    metrics = stored_metrics(home, once="distinct value").items()
    yield from compare(expected, {point: (value, 1 if is_time(point) else n) for point, (value, n) in metrics})


def _read_again(home: Path, manifest: Path, story: Story, uri: str, folder: Path) -> None:
    go_on(home, manifest, story, uri, folder)


def _runs(store: Store) -> list[str]:
    keys = {key.partition("/")[0] for key in store.list("commits")}
    return sorted(key for key in keys if not key.startswith("zero-"))


def _stands_still(process: Any) -> bool:
    """Wait until a process has stopped itself; return False if it ended instead."""
    until = time.monotonic() + SECONDS
    while process.is_alive():
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.01)
    return False


def _join(*processes: Any) -> None:
    until = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
