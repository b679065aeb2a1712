"""One attempt of a run that is killed repeatedly: a forked child that resumes from the stored commits (engine.py).

It adds three files to the run's own: `events` has a line for each task that begins or finishes, `digest` is written
once the end is reached, and `log` holds the output.
"""

import hashlib
import logging
import multiprocessing
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ctvr.methods.base import Method
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import MEASURED, RunState
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.training.epoch_timing import CLIPS, MEMORY, WAIT
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.tracking.recorder import Recorder
from ctvr.orchestrator.tracking.server import new_client
from ctvr.orchestrator.tracking.tracker import Tracker, create_store
from tests.chaos.cases import case_of
from tests.chaos.faults import Call, When, counted, killed_at

Tracked = Literal["away", "back", "sqlite"]  # MLflow: unreachable; reachable at the end; a file that exists
Points = dict[str, float | None]  # "key step" of a metric -> its value; None: a time, which differs
VIDEOS = {"train": 3, "searched": 2, "has_val": False}  # of a task
NOWHERE = "http://127.0.0.1:9"  # no server listens on the port called "discard"
TIMED = (
    *("cost/seconds_task", "cost/videos_per_second", "cost/peak_memory_mb"),
    *("cost/train_clips_per_second", "cost/train_memory_mb", CLIPS, WAIT, MEMORY),
)


@dataclass(frozen=True)
class Kill:
    """One planned SIGKILL: at a durable call, or after a fraction of the time of an unkilled run."""

    call: int | None = None
    when: When = "before"
    part: float = 0.0


@dataclass(frozen=True)
class Story:
    """Plan of the kills of one run; the same number and seed give the same story."""

    number: int
    method: str  # a name of cases.py
    tracked: Tracked
    is_cold: bool  # the videos are not decoded yet
    kills: tuple[Kill, ...]
    is_contested: bool = False  # by a second driver with other numbers (concurrent_writers.py)


# ---------------------------------------------------------------------------------------- one life


def fork(work: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_in_child, args=(work, *arguments))
    process.start()
    return process


def run_child(work: Callable[..., None], *arguments: Any) -> int:
    """Do `work` in a forked child, so that it leaves no trace in this process; return the exit status."""
    process = fork(work, *arguments)
    process.join()
    return int(process.exitcode)


def _in_child(work: Callable[..., None], home: Path, *arguments: Any) -> None:
    """Send a child's output to `<home>/log`."""
    out = (home / "log").open("a", buffering=1)  # lines: nothing is flushed when it is killed
    for descriptor in (1, 2):
        os.dup2(out.fileno(), descriptor)
    sys.stdout = sys.stderr = out
    logging.basicConfig(stream=out, level=logging.WARNING, force=True)
    work(home, *arguments)


def live(home: Path, manifest: Path, story: Story, kill: Kill | None = None, is_first: bool = False) -> None:
    """Run one attempt of a story: resume, record the events, and write the digest if the end is reached."""
    calls: list[Call] = []
    guard: Any = nullcontext()
    if is_first:
        guard = counted(home, calls)
    elif kill is not None and kill.call is not None:
        guard = killed_at(home, kill.call, kill.when)
    with guard:
        digest = go_on(home, manifest, story)
    if is_first:
        (home / "calls").write_text(str(len(calls)))
    (home / "digest").write_text(digest)


def go_on(home: Path, manifest: Path, story: Story, uri: str | None = None, folder: Path | None = None) -> str:
    """Resume from the store of `home` and run to the end; return the digest of the run's results.

    Args:
        home: the runs folder.
        manifest: of the stream.
        story: the story whose method is run.
        uri: of MLflow, if not the story's.
        folder: of the events, if not `home`.
    """
    log = folder or home
    case = case_of(story.method)
    manifest = manifest.with_name(case.stream)
    stream = load_stream(manifest, home)
    experiment = resolve({**case.settings, "method": case.method, "stream": str(manifest)}, stream.settings)
    recorder = Recorder(Tracker(uri or _uri(home, story), home), experiment, "the run")
    places = RunPaths(home)

    def ready(key: str, method: Method, data: StreamData, commits: Commits) -> None:
        batches, begun = data.train_batches, set[int]()

        def noted(tasks: Any, seed: int, task: int, *rest: Any) -> Any:
            if task not in begun:  # not each epoch
                note(log, "train", task)
            begun.add(task)
            return batches(tasks, seed, task, *rest)

        data.train_batches = noted  # type: ignore[assignment, method-assign]
        recorder.ready(key, method, data, commits)

    def report(task: Any, record: RunState, seconds: float) -> None:
        note(log, "task", task.index)
        recorder.report(task, record, seconds)

    result = execute(experiment, places, report=report, on_ready=ready)
    if result.resumed == len(stream.tasks):
        recorder.complete(result.record)
    galleries = Commits(places.open_store(), result.key).galleries(len(stream.tasks))
    note(log, "end", 0)
    return digest_of_run(result.record, result.method, galleries)


def digest_of_run(record: RunState, method: Method, galleries: list[Tensor]) -> str:
    """Return the sha256 over all results of a run, except times."""
    numbers = {name: value for name, value in asdict(record).items() if name not in MEASURED}
    tensors = {**method.state_dict(), **{f"gallery {i}": features for i, features in enumerate(galleries)}}
    held = {name: [str(t.dtype), list(t.shape), _sha(t)] for name, t in tensors.items()}
    return digest_of([numbers, held])


def _sha(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _uri(home: Path, story: Story) -> str:
    return f"sqlite:///{home / 'mlflow.db'}" if story.tracked == "sqlite" else NOWHERE


def note(home: Path, what: str, task: int) -> None:
    """Append one line of the story below `home` in one call, so that it survives the death of the process."""
    descriptor = os.open(home / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {task} {time.monotonic()}\n".encode())
    os.close(descriptor)


def read_events(home: Path) -> list[tuple[str, int, float]]:
    try:
        lines = (home / "events").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(what, int(task), float(at)) for what, task, at in map(str.split, lines)]


def last_line(log_file: Path) -> str:
    lines = log_file.read_text().strip().splitlines() if log_file.exists() else []
    return lines[-1] if lines else "it said nothing"


# ---------------------------------------------------------------------------------------- metrics


def make_database(folder: Path) -> None:
    create_store(f"sqlite:///{folder / 'empty.db'}", folder)


def flush(home: Path) -> None:
    """Send waiting records to MLflow: a file takes the place of the server that did not answer."""
    Tracker(f"sqlite:///{home / 'mlflow.db'}", home).flush()


def stored_metrics(home: Path, once: str = "*") -> dict[str, tuple[float, int]]:
    """Return "key step" -> value and number of entries over all runs of an MLflow file, and the status of the runs."""
    points = f"select key, step, max(value), count({once}) from metrics group by key, step"
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        rows = database.execute(points).fetchall()
        states = database.execute("select status from runs")
        rows += [(status, 0, 1.0, 1) for (status,) in states]
    return {f"{key} {step}": (value, count) for key, step, value, count in rows}


def stored_runs(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        return [run for (run,) in database.execute("select run_uuid from runs")]


def waiting_metrics(home: Path) -> dict[str, tuple[float, int]]:
    """Return the metrics of the outbox as `stored_metrics` does; one point may wait several times, with one value
    only.
    """
    outbox = Tracker(NOWHERE, home).outbox
    values: dict[str, set[float]] = {}
    for run in outbox.pending():
        for record in outbox.read(run)[0]:
            points = record["values"] if record["op"] == "metrics" else ()
            if record["op"] == "close":
                points = [[0, record["status"], 1.0]]
            for step, key, value in points:
                values.setdefault(f"{key} {step}", set()).add(value)
    return {point: (min(found), 1 if is_time(point) else len(found)) for point, found in values.items()}


def is_time(point: str) -> bool:
    return point.rpartition(" ")[0] in TIMED


def quiet(folder: Path) -> None:
    """Set this process and its children not to wait for an unreachable server."""
    os.environ["CTVR_CACHE"] = str(folder / "cache")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import open_clip  # noqa: F401  (seconds, once for all children; as MLflow in the next line)

    new_client(NOWHERE)
    from ctvr.orchestrator.figures import figures  # noqa: F401
