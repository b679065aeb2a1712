"""Kills parts of a real nested sweep: workers, trial drivers, Ray, the whole driver, the MLflow server; then compares.

Ray runs in separate processes, which `ctvr sweep` starts as it does for a user. They are found by the titles that Ray
gives them; this module does not import Ray. A sweep whose driver was killed continues with `ctvr sweep --resume`. One
whose raylet or GCS was killed continues by itself, and reports it in one line. `ctvr runs sync` sends the values that
MLflow missed. Two things are compared with an unkilled sweep: the commits of all tasks of all trials (digests of
weights and galleries, matrices, metrics, ranks), and every metric of every trial in MLflow, exactly once.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ctvr.orchestrator.learning.record.run_state import MEASURED
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.tracker import create_store
from tests.chaos.lifecycle import TIMED, VIDEOS
from tests.chaos.watch import Server, Watch, below, wait_for
from tests.small_stream import write_stream

Metrics = dict[tuple[str, str, int], tuple[float, int]]
Victim = Literal["worker", "trial", "driver", "server", "raylet", "gcs", "controller", "memory"]
VICTIMS: tuple[Victim, ...] = ("worker", "trial", "driver", "server", "worker")  # of one sweep, in any order
# The same, without which Ray does not work. "memory": another process takes it, and Ray ends whom it chooses
OF_RAY: tuple[Victim, ...] = ("raylet", "controller", "server", "gcs", "memory")
TITLES = {"worker": "ray::RayTrainWorker", "trial": "ray::ImplicitFunc", "controller": "ray::TrainController"}
FILES = {"raylet": "/raylet/raylet ", "gcs": "/gcs/gcs_server "}  # in the command lines of programs
TRIALS, TASKS = 2, 4
RATES = "method.lr=0,4e-6"
SETTINGS = (
    *("backbone.name=tiny-clip", "backbone.weights=shipped", "data.num_frames=2", "data.batch_size=2"),
    *("optim.lr_scale=50", "optim.epochs=40", "evaluation.split=test", "optim.weight_decay=0.2"),
    *("method.train_scale=true", "method.frame_norm=none"),
)
FREE = 0.45  # share of the machine's memory that may be taken before Ray ends workers: two workers need a third
REFUSED = "connection refused. Start the server"  # a sweep that starts without its server
AWAY = (1.0, 15.0)  # seconds that the MLflow server stays down


@dataclass(frozen=True)
class Kill:
    """A planned kill after `commits` finished tasks of the sweep and `seconds` more."""

    victim: Victim
    commits: int
    seconds: float
    away: float  # the server's: seconds until it is started again


@dataclass
class Outcome:
    """Result of one sweep."""

    number: int
    kills: list[Kill] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)  # seconds from a kill to the next finished task
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Sweeps:
    """Sweeps below one folder, whose path must be short: Ray keeps its sockets there.

    Args:
        folder: everything is written here.
        seed: of the choice of victims and moments.
        workers: number of workers of each trial.
        victims: number of victims of each sweep.
    """

    def __init__(self, folder: Path, seed: int, workers: int = 1, victims: tuple[Victim, ...] = VICTIMS) -> None:
        self.folder, self.seed, self.workers, self.victims = folder, seed, workers, victims
        # a trial of one worker is one process
        self.titles = TITLES if workers > 1 else dict.fromkeys(TITLES, TITLES["trial"])
        self.manifest = folder / "small.json"
        self.server = Server(folder)
        self.commits: dict[str, Any] = {}  # of the unbroken sweep
        self.metrics: Metrics = {}
        self.seconds = 0.0
        self.sweep: subprocess.Popen[bytes] | None = None  # the one that runs
        self.threshold = 0.95  # of the machine's memory, above which Ray ends workers

    def prepare(self) -> None:
        """Render the stream, start MLflow, and run the unkilled sweep."""
        write_stream(self.folder, TASKS, **VIDEOS)
        create_store(f"sqlite:///{self.folder / 'mlflow.db'}", self.folder, "small")
        self.server.start()
        self.server.await_answer()
        outcome = self.tell(-1, ())
        if outcome.wrong:
            raise RuntimeError(f"the sweep that nobody kills failed: {outcome.wrong[0]}")
        self.commits, self.metrics = self._commits(-1), self._metrics(-1)
        self.seconds = outcome.seconds
        for kind in ("frames", "commits"):  # later sweeps find the videos decoded and the zero-shot curve there
            for path in (self._runs(-1) / "store" / kind).iterdir():
                if kind == "frames" or path.name.startswith("zero-"):
                    copy = shutil.copytree if path.is_dir() else shutil.copy2
                    target = self.folder / "ready" / kind / path.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copy(path, target)

    def kills(self, number: int) -> tuple[Kill, ...]:
        """Return the kills of the sweep with that number; they depend on the seed only."""
        rng = np.random.default_rng([self.seed, number])
        moments = sorted(int(moment) for moment in rng.integers(0, TRIALS * TASKS - 1, len(self.victims)))
        order = rng.permutation(len(self.victims))
        return tuple(
            Kill(self.victims[place], moment, float(rng.uniform(0, 1.5)), float(rng.uniform(*AWAY)))
            for place, moment in zip(order, moments)
        )

    # ------------------------------------------------------------------------------------ one sweep

    def tell(self, number: int, kills: tuple[Kill, ...]) -> Outcome:
        """Run a sweep to its end with the planned kills, and compare the result."""
        outcome, runs = Outcome(number), self._runs(number)
        if (self.folder / "ready").is_dir():
            shutil.copytree(self.folder / "ready", runs / "store")
        watch = Watch(runs)
        watch.start()
        started = time.monotonic()
        self.sweep, died, least = self._start(number, resume=False), [], 0
        for kill in kills:
            wait_for(partial(self._has_ended_or_reached, watch, max(kill.commits, least)))
            time.sleep(kill.seconds)
            self._follow_remedy(number)
            if self.sweep.poll() is not None:
                break
            if self._kill(kill, self.sweep):
                outcome.kills.append(kill)
                if kill.victim != "server":  # no trial waits for it
                    died.append(time.monotonic())
                if kill.victim in FILES:  # a sweep that Ray's end stops twice without a task between gives up
                    least = len(watch.seen)
                if kill.victim == "driver":
                    self.server.start()  # a resumed sweep needs it, and reports its absence
                    self.server.await_answer()
                    self.sweep = self._start(number, resume=True)
        wait_for(partial(self._has_ended_or_reached, watch, TRIALS * TASKS))
        if self._follow_remedy(number):
            wait_for(partial(self._has_ended_or_reached, watch, TRIALS * TASKS))
        outcome.seconds = time.monotonic() - started
        watch.stop()
        self.server.start()
        self.server.await_answer()
        outcome.recovery = [seconds for moment in died if (seconds := watch.recovery(moment)) is not None]
        outcome.wrong = [*watch.wrong, *self._check(number, self.sweep.returncode, outcome.kills)]
        return outcome

    def _follow_remedy(self, number: int) -> bool:
        """Resume a sweep that could not start while the server was down, as its last line says; tell whether it was."""
        assert self.sweep is not None
        if self.sweep.poll() != 2 or REFUSED not in (self._runs(number) / "log").read_text(errors="replace")[-500:]:
            return False
        self.server.start()
        self.server.await_answer()
        self.sweep = self._start(number, resume=True)
        return True

    def close(self) -> None:
        """End all processes."""
        if self.sweep is not None and self.sweep.poll() is None:
            self.sweep.kill()
            self.sweep.wait()
        self.server.close()

    def _has_ended_or_reached(self, watch: Watch, commits: int) -> bool:
        assert self.sweep is not None
        return self.sweep.poll() is not None or len(watch.seen) > commits

    def _kill(self, kill: Kill, sweep: subprocess.Popen[bytes]) -> bool:
        """Kill the victim; return whether it was found and is dead."""
        if kill.victim == "server":
            if self.server.process is None:
                return False
            self.server.kill()
            self.server.start_later(kill.away)
            return True
        if kill.victim == "driver":
            sweep.kill()
            sweep.wait()
            return True
        if kill.victim == "memory":
            exhaust_memory(self.threshold)
            return True
        found: list[int] = []

        def search() -> bool:
            found[:] = sorted(pid for pid, title in below(sweep.pid).items() if self._is(kill.victim, title))
            return bool(found) or sweep.poll() is not None

        wait_for(search)
        if not found:
            return False
        os.kill(found[kill.commits % len(found)], signal.SIGKILL)
        return True

    def _is(self, victim: Victim, title: str) -> bool:
        return FILES[victim] in title if victim in FILES else title.startswith(self.titles[victim])

    def _start(self, number: int, resume: bool) -> subprocess.Popen[bytes]:
        words = ["--resume", _name(number)] if resume else [*self._words(number), *SETTINGS]
        return self._ctvr(number, "sweep", *words)

    def _words(self, number: int) -> list[str]:
        search = ["--searcher", "grid", "--scheduler", "none", "--seeds", "0", "--confirm", "0", "--space", RATES]
        what = ["--name", _name(number), "--method", "clip4clip", "--stream", str(self.manifest)]
        places = [
            "--local-cpus",
            str(TRIALS),
            "--workers",
            str(self.workers),
            "--cpus-per-worker",
            f"{0.9 / self.workers}",
        ]
        return [*what, *search, *places]

    def _ctvr(self, number: int, command: str, *words: str) -> subprocess.Popen[bytes]:
        if "memory" in self.victims:
            self.threshold = min(0.95, taken() + FREE)
        environment = {
            **os.environ,
            "RAY_memory_usage_threshold": f"{self.threshold:.3f}",
            "RAY_TMPDIR": str(self.folder),
            "MLFLOW_TRACKING_URI": self.server.uri,
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "CTVR_CACHE": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        runs = self._runs(number)
        runs.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "ctvr", command, "--runs", str(runs), *words]
        with (runs / "log").open("ab") as out:
            return subprocess.Popen(line, env=environment, stdout=out, stderr=out)

    def _runs(self, number: int) -> Path:
        return self.folder / f"{_name(number)}"

    # ------------------------------------------------------------------------------------ comparing

    def _check(self, number: int, status: int, kills: list[Kill]) -> Iterator[str]:
        said = (self._runs(number) / "log").read_text(errors="replace")
        if status:
            yield f"the sweep ended with status {status}: {(said.strip().splitlines() or ['nothing was said'])[-1]}"
            return
        if "Traceback" in said:
            yield "a traceback was shown"
        again, engines = said.count("; restarting"), sum(kill.victim in FILES for kill in kills)
        is_told = again or any(kill.victim == "driver" for kill in kills)  # two deaths may end one life
        if again > engines or (engines and not is_told):
            yield f"Ray was killed {engines} times and {again} lines said so"
        self._ctvr(number, "runs", "sync").wait()
        if not self.commits:  # the unbroken sweep
            return
        commits = self._commits(number)
        yield from (f"commit {name} is lost" for name in sorted(self.commits.keys() - commits.keys()))
        yield from (f"commit {n} differs" for n in sorted(commits) if commits[n] != self.commits.get(n))
        yield from compare(self.metrics, self._metrics(number))

    def _commits(self, number: int) -> dict[str, Any]:
        """Return the commits of the trials, without the seconds that tasks took."""
        found = {}
        store = Store.open(self._runs(number) / "store")
        for key in store.list("commits"):
            commit = store.get_json("commits", key)
            for name in MEASURED:
                commit["record"].pop(name, None)
            if not key.startswith("zero-"):
                found[key] = commit
        return found

    def _metrics(self, number: int) -> Metrics:
        """Read a sweep's metrics from MLflow: (learning rate, key, step) -> value and number of entries."""
        query = (
            "select p.value, m.key, m.step, max(m.value), count(*) from metrics m "
            "join params p on p.run_uuid = m.run_uuid and p.key = 'method.lr' "
            "join tags k on k.run_uuid = m.run_uuid and k.key = 'ctvr.kind' and k.value = 'trial' "
            "join tags t on t.run_uuid = m.run_uuid and t.key = 'ctvr.sweep' and t.value = ? "
            "group by p.value, m.key, m.step"
        )
        with closing(sqlite3.connect(self.folder / "mlflow.db")) as database:
            rows = database.execute(query, (_name(number),)).fetchall()
        return {(rate, key, step): (value, count) for rate, key, step, value, count in rows}


def compare(expected: Metrics, found: Metrics) -> Iterator[str]:
    """Check that every metric exists once, with its value."""
    yield from (f"metric {point} is lost" for point in sorted(expected.keys() - found.keys()))
    for point, (value, count) in sorted(found.items()):
        if point not in expected:
            yield f"metric {point} should not be there"
        elif count != 1:
            yield f"metric {point} is there {count} times"
        elif point[1] not in TIMED and value != expected[point][0]:
            yield f"metric {point} is {value!r}, should be {expected[point][0]!r}"


def taken() -> float:
    """Return the share of the machine's memory that is in use."""
    import psutil

    memory = psutil.virtual_memory()
    return 1.0 - float(memory.available) / float(memory.total)


def exhaust_memory(threshold: float, seconds: float = 4.0) -> None:
    """Allocate memory in a separate process until more than `threshold` of the machine's is in use; hold it for a
    while.
    """
    program = (
        "import sys, time\n"
        "from tests.chaos.sweeps import taken\n"
        "held = []\n"
        "while taken() < float(sys.argv[1]) + 0.02:\n"
        "    held.append(bytearray(b'x') * 2**27)\n"
        "time.sleep(float(sys.argv[2]))\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program, str(threshold), str(seconds)], cwd=root, check=True)


def _name(number: int) -> str:
    return "unbroken" if number < 0 else f"sweep{number}"
