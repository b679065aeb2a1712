"""Kill the engine without Ray, over and over, and compare: one story is one run that is killed until it finishes.

Every life of a story is a forked child of this process, which has imported everything; it is killed from outside at
a moment, or kills itself at a durable call (chaos_faults.py). What is compared with the run that nobody killed:
the sha256 over all matrices, metrics, losses, ranks, galleries and final weights; the metrics that MLflow or
the outbox holds; and that no task with a commit was trained again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from methods.base import Method
from orchestrator.chaos_faults import WHENS, Call, When, counted, killed_at
from orchestrator.checkpoint import Commits, Record
from orchestrator.data import StreamData
from orchestrator.recorder import Recorder
from orchestrator.run import Places, execute, resolve
from orchestrator.shapes_files import Clip, render_files
from orchestrator.shapes_scenes import CATEGORIES, draw_scene
from orchestrator.store import Store, digest_of
from orchestrator.streams import load_stream
from orchestrator.tracking import Tracker, new_client, prepare

log = logging.getLogger(__name__)

Tracked = Literal["away", "back", "sqlite"]  # MLflow: never there; back when all is over; a file that is there
Points = dict[str, float | None]  # "key step" of a metric -> its value; None: a time, which differs
METHODS = ("framefusion_moe", "vr_lwf", "bmu_moco")  # experts that are added; a teacher and a memory; queues
TASKS, TRAIN, TEST = 3, 3, 2  # videos of a task
SETTINGS: dict[str, Any] = {
    "backbone.name": "tiny-clip",
    "backbone.weights": "shipped",
    "data.num_frames": 2,
    "data.batch_size": 2,
    "optim.epochs": 1,
    "optim.lr_scale": 50,
    "evaluation.split": "test",
}
NOWHERE = "http://127.0.0.1:9"  # nobody listens on the port called "discard"
MOST_KILLS = 4  # in one story: the third hits a recovery from a recovery
LIFE_SECONDS = 300.0  # a life that takes longer hangs
DIGEST_WITHOUT = {"seconds"}  # of a record: what differs between two runs of the same
TIMED = ("cost/seconds_task", "cost/videos_per_second", "cost/peak_memory_mb")


@dataclass(frozen=True)
class Kill:
    """One planned SIGKILL: at a durable call of the life, or when a part of an unbroken run's time is over."""

    call: int | None = None
    when: When = "before"
    part: float = 0.0


@dataclass(frozen=True)
class Story:
    """What happens to one run; the same number and seed tell the same story."""

    number: int
    method: str
    tracked: Tracked
    is_cold: bool  # the videos are not decoded yet
    kills: tuple[Kill, ...]


@dataclass
class Told:
    """How a story ended."""

    story: Story
    kills: list[Kill] = field(default_factory=list)  # those that hit
    recomputed: int = 0  # tasks begun more than once
    recovery: list[float] = field(default_factory=list)  # seconds from a kill to the next finished task
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Unbroken:
    """What the run that nobody kills gives."""

    digest: str
    metrics: Points
    calls: dict[Tracked, int]  # durable calls of one run
    seconds: float


class Engine:
    """Stories below one folder.

    Args:
        folder: everything is written here; short-lived.
        seed: of all stories.
        methods: take turns.
    """

    def __init__(self, folder: Path, seed: int, methods: tuple[str, ...] = METHODS) -> None:
        self.folder, self.seed, self.methods = folder, seed, methods
        self.manifest = folder / "stream.json"
        self.unbroken: dict[str, Unbroken] = {}

    # ------------------------------------------------------------------------------------ preparation

    def prepare(self) -> None:
        """Render and decode the stream, make MLflow's database, and run every method once unharmed."""
        _quiet(self.folder)
        write_stream(self.manifest)
        run_child(_make_database, self.folder)
        home = self._unharmed(Story(-1, self.methods[0], "away", True, ()))
        shutil.copytree(home / "store" / "frames", self._frames())
        for number, method in enumerate(self.methods, start=2):
            recorded = self._unharmed(Story(-number, method, "sqlite", False, ()))
            started = time.monotonic()
            waiting = self._unharmed(Story(-number, method, "away", False, ()))
            seconds = time.monotonic() - started
            digest = (recorded / "digest").read_text()
            metrics = {point: None if _is_time(point) else v for point, (v, _) in stored_metrics(recorded).items()}
            many, more = (int((home / "calls").read_text()) for home in (recorded, waiting))
            calls: dict[Tracked, int] = {"sqlite": many, "away": more, "back": more}
            self.unbroken[method] = Unbroken(digest, metrics, calls, seconds)

    def _unharmed(self, story: Story) -> Path:
        """The runs folder of a story in which nobody dies."""
        home = self._home(story)
        if run_child(_live, home, self.manifest, story, None, True):
            raise RuntimeError(f"{story.method}: the run that nobody kills failed: {_last_line(home / 'log')}")
        return home

    def _frames(self) -> Path:
        return self.folder / "frames"

    def _home(self, story: Story) -> Path:
        """A fresh runs folder for a story."""
        home = self.folder / f"story{story.number}-{story.tracked}"
        home.mkdir()
        if not story.is_cold:
            shutil.copytree(self._frames(), home / "store" / "frames", copy_function=os.link)
        if story.tracked != "away":
            shutil.copy2(self.folder / "empty.db", home / "mlflow.db")
        return home

    # ------------------------------------------------------------------------------------ the stories

    def story(self, number: int) -> Story:
        """The story of that number. Even ones begin at a durable call, each in turn; odd ones at any moment."""
        rng = np.random.default_rng([self.seed, number])
        method = self.methods[number // 2 % len(self.methods)]
        tracked: Tracked = "sqlite" if number % 8 < 2 else "back" if number % 8 < 4 else "away"
        calls = self.unbroken[method].calls[tracked]
        kills = [Kill(part=float(rng.random())) for _ in range(int(rng.integers(1, MOST_KILLS)))]
        if number % 2 == 0:
            order = np.random.default_rng([self.seed, 2**31]).permutation(calls)
            kills[0] = Kill(int(order[number // 2 % calls]), WHENS[int(rng.integers(len(WHENS)))])
            kills[1:] = [
                Kill(int(rng.integers(calls)), WHENS[int(rng.integers(3))]) if rng.random() < 0.5 else kill
                for kill in kills[1:]
            ]
        return Story(number, method, tracked, bool(rng.random() < 0.1), tuple(kills))

    def tell(self, story: Story, room: int) -> Told:
        """Live a story to its end with at most `room` kills, and compare."""
        told, home = Told(story), self._home(story)
        seen: dict[str, tuple[int, int]] = {}  # commit -> inode and time, as it was first found
        trained: Counter[int] = Counter()
        planned = iter(story.kills[:room])
        died: float | None = None
        while True:
            kill = next(planned, None)
            delay = None if kill is None or kill.call is not None else kill.part * self.unbroken[story.method].seconds
            is_dead, ended = _one_life(home, self.manifest, story, kill, delay)
            events = _read_events(home)
            told.wrong += _check_life(home, events, seen, trained)
            if died is not None and events:
                done = [at for what, _, at in events if what in ("task", "end") and at > died]
                if done:
                    told.recovery.append(done[0] - died)
                    died = None
            if is_dead:
                assert kill is not None
                told.kills.append(kill)
                died = ended
                continue
            break
        told.recomputed = sum(trained.values()) - TASKS
        told.wrong += self._check_end(story, home, told)
        if not told.wrong:
            shutil.rmtree(home)
        return told

    def _check_end(self, story: Story, home: Path, told: Told) -> Iterator[str]:
        if not (home / "digest").is_file():
            yield f"the run failed: {_last_line(home / 'log')}"
            return
        expected = self.unbroken[story.method]
        if (home / "digest").read_text() != expected.digest:
            yield "the digest differs from the unbroken run's"
        if not 0 <= told.recomputed <= len(told.kills):
            yield f"{told.recomputed} tasks were begun again after {len(told.kills)} kills"
        yield from (f"damaged object: {name}" for name, problem in Store.open(home / "store").verify() if problem)
        if story.tracked == "back":
            run_child(_flush, home)
        found = waiting_metrics(home) if story.tracked == "away" else stored_metrics(home)
        yield from compare(expected.metrics, found)


def compare(expected: Points, found: Mapping[str, tuple[float, int]]) -> Iterator[str]:
    """Every metric is there, with its value, and none twice."""
    for point in sorted(expected.keys() | found.keys()):
        if point not in found:
            yield f"metric {point} is lost"
        elif point not in expected:
            yield f"metric {point} should not be there"
        elif found[point][1] != 1:
            yield f"metric {point} is there {found[point][1]} times"
        elif expected[point] is not None and found[point][0] != expected[point]:
            yield f"metric {point} is {found[point][0]!r}, should be {expected[point]!r}"


def _check_life(
    home: Path, events: list[tuple[str, int, float]], seen: dict[str, tuple[int, int]], trained: Counter[int]
) -> Iterator[str]:
    """After each life: commits never change, and what was committed before it is not trained again."""
    finished = len(seen)
    begun = Counter(task for what, task, _ in events if what == "train") - trained
    yield from (f"task {task + 1} has a commit and was trained again" for task in begun if task < finished)
    trained.update(begun)
    for file in sorted((home / "store" / "commits").rglob("task_*.json")):
        if file.parent.name.startswith("zero-"):
            continue
        identity = (file.stat().st_ino, file.stat().st_mtime_ns)
        if seen.setdefault(str(file), identity) != identity:
            yield f"commit {file.name} was written again"


# ---------------------------------------------------------------------------------------- one life


def _one_life(home: Path, manifest: Path, story: Story, kill: Kill | None, delay: float | None) -> tuple[bool, float]:
    """Start a life; True if it was killed, and when it ended (monotonic seconds)."""
    (home / "digest").unlink(missing_ok=True)
    process = _fork(_live, home, manifest, story, kill)
    process.join(LIFE_SECONDS if delay is None else delay)
    if process.is_alive():
        process.kill()
        process.join()
        if delay is None:
            (home / "log").open("a").write(f"it hung for {LIFE_SECONDS:.0f} s\n")
            return False, time.monotonic()
    return process.exitcode == -9, time.monotonic()


def _fork(work: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_in_child, args=(work, *arguments))
    process.start()
    return process


def run_child(work: Callable[..., None], *arguments: Any) -> int:
    """Do something in a forked child, so that nothing of it stays in this process; its exit status."""
    process = _fork(work, *arguments)
    process.join()
    return int(process.exitcode)


def _in_child(work: Callable[..., None], home: Path, *arguments: Any) -> None:
    """What a child says goes into `<home>/log`."""
    with (home / "log").open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    work(home, *arguments)


def _live(home: Path, manifest: Path, story: Story, kill: Kill | None = None, is_first: bool = False) -> None:
    """One life of a story: go on from what is there, record it, and leave the digest if the end is reached."""
    calls: list[Call] = []
    guard: Any = nullcontext()
    if is_first:
        guard = counted(home, calls)
    elif kill is not None and kill.call is not None:
        guard = killed_at(home, kill.call, kill.when)
    with guard:
        stream = load_stream(manifest, home)
        experiment = resolve({**SETTINGS, "method": story.method, "stream": str(manifest)}, stream.settings)
        recorder = Recorder(Tracker(_uri(home, story), home), experiment, "the run")
        places = Places(home)

        def ready(key: str, method: Method, data: StreamData, commits: Commits) -> None:
            batches = data.train_batches

            def noted(tasks: Any, seed: int, task: int, *rest: Any) -> Any:
                _note(home, "train", task)
                return batches(tasks, seed, task, *rest)

            data.train_batches = noted  # type: ignore[assignment, method-assign]
            recorder.ready(key, method, data, commits)

        def report(task: Any, record: Record, seconds: float) -> None:
            _note(home, "task", task.index)
            recorder.report(task, record, seconds)

        result = execute(experiment, places, report=report, on_ready=ready)
        if result.resumed == len(stream.tasks):
            recorder.complete(result.record)
    galleries = Commits(places.open_store(), result.key).galleries(len(stream.tasks))
    _note(home, "end", 0)
    if is_first:
        (home / "calls").write_text(str(len(calls)))
    (home / "digest").write_text(digest_of_run(result.record, result.method, galleries))


def digest_of_run(record: Record, method: Method, galleries: list[Tensor]) -> str:
    """sha256 over everything that a run results in, times excepted."""
    numbers = {name: value for name, value in asdict(record).items() if name not in DIGEST_WITHOUT}
    tensors = {**method.state_dict(), **{f"gallery {i}": features for i, features in enumerate(galleries)}}
    held = {name: [str(t.dtype), list(t.shape), _sha(t)] for name, t in tensors.items()}
    return digest_of([numbers, held])


def _sha(tensor: Tensor) -> str:
    import hashlib

    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _uri(home: Path, story: Story) -> str:
    return f"sqlite:///{home / 'mlflow.db'}" if story.tracked == "sqlite" else NOWHERE


def _note(home: Path, what: str, task: int) -> None:
    """One line of the story, written in one call so that it is there whenever the process dies."""
    descriptor = os.open(home / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {task} {time.monotonic()}\n".encode())
    os.close(descriptor)


def _read_events(home: Path) -> list[tuple[str, int, float]]:
    try:
        lines = (home / "events").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(what, int(task), float(at)) for what, task, at in map(str.split, lines)]


def _last_line(log_file: Path) -> str:
    lines = log_file.read_text().strip().splitlines() if log_file.exists() else []
    return lines[-1] if lines else "it said nothing"


# ---------------------------------------------------------------------------------------- stream and metrics


def write_stream(manifest: Path, num_tasks: int = TASKS) -> None:
    """A stream of a few categories of the painted world, one a task, a few videos each, and its manifest."""
    clips, tasks = [], []
    for index in range(num_tasks):
        category = CATEGORIES[index].name
        task: dict[str, Any] = {"name": f"task_{index + 1:02d}", "categories": [category]}
        for split, count in (("train", TRAIN), ("test", TEST)):
            task[split] = []
            for number in range(count):
                scene = draw_scene(index, np.random.default_rng([index, len(split), number]))
                path = f"{split}/{category}_{number}.mp4"
                clips.append(Clip(path, scene, backward=False))
                item = {"video": path, "path": path, "category": category, "captions": [scene.captions[False]]}
                task[split].append(item)
        tasks.append(task)
    render_files(manifest.parent / "videos", clips, workers=1, progress=False)
    content = {"format": 1, "name": "chaos", "protocol": "ctvr", "videos": "videos", "tasks": tasks}
    manifest.write_text(json.dumps(content))


def _make_database(folder: Path) -> None:
    prepare(f"sqlite:///{folder / 'empty.db'}", folder)


def _flush(home: Path) -> None:
    """MLflow is back: a file takes the place of the server that did not answer."""
    Tracker(f"sqlite:///{home / 'mlflow.db'}", home).flush()


def stored_metrics(home: Path) -> dict[str, tuple[float, int]]:
    """ "key step" -> value and how often it is stored, over all runs of an MLflow database; and each run's status."""
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        rows = database.execute("select key, step, max(value), count(*) from metrics group by key, step").fetchall()
        rows += [(status, 0, 1.0, 1) for (status,) in database.execute("select status from runs")]
    return {f"{key} {step}": (value, count) for key, step, value, count in rows}


def waiting_metrics(home: Path) -> dict[str, tuple[float, int]]:
    """As `stored_metrics`, of the outbox: one point may wait several times, but with one value only."""
    outbox = Tracker(NOWHERE, home).outbox
    values: dict[str, set[float]] = {}
    for run in outbox.pending():
        for record in outbox.read(run)[0]:
            points = record["values"] if record["op"] == "metrics" else ()
            if record["op"] == "close":
                points = [[0, record["status"], 1.0]]
            for step, key, value in points:
                values.setdefault(f"{key} {step}", set()).add(value)
    return {point: (min(found), 1 if _is_time(point) else len(found)) for point, found in values.items()}


def _is_time(point: str) -> bool:
    return point.rpartition(" ")[0] in TIMED


def _quiet(folder: Path) -> None:
    """Settings of this process and its children: no waiting for a server that is not there."""
    os.environ["CTVR_CACHE"] = str(folder / "cache")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    new_client(NOWHERE)  # imports MLflow once, for all children
    from orchestrator import figures  # noqa: F401
