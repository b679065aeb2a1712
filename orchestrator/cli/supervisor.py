"""A sweep whose driver may die: this process holds no Ray, starts the one that does, and goes on where that ends.

Much of Ray ends the process that it runs in, past any `except`: the core worker of a driver whose raylet or GCS is
gone, the kernel when memory runs out. So `ctvr sweep`, `rerun` and `reproduce` run as a child (`python -m
orchestrator`, told by CTVR_SUPERVISED), and this parent starts it again with --resume while lives finish tasks. One
line for every event. A full disk and a store that is away are waited for.

What the child's libraries write to file descriptor 2 (state dumps, C++ lines, tracebacks) goes to a file, its own lines
to the terminal; `--verbose` lets everything through. Signals are handed on, so Ctrl-C, `ctvr attach --stop` and Slurm's
end of time end a sweep in order as ever; a parent that is killed takes its child with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ctvr.orchestrator.console import say
from ctvr.orchestrator.interpreter import child_environment, run_module
from ctvr.orchestrator.redaction import redact

CHILD, TOKEN = "CTVR_SUPERVISED", "CTVR_DRIVER"  # variables: of the child alone, and of everything that it starts
MAX_ATTEMPTS_WITHOUT_PROGRESS = 2  # lives in a row that finish no task, after which nothing is tried any more
MAX_ATTEMPTS = 20
STOPPED = 130  # exit status
AWAY_SECONDS, LOOK_SECONDS = 3600.0, 20.0  # how long a disk or store may be away, and how often it is looked at
ROOM = 500 * 10**6  # bytes that must be free to go on
GRACE_SECONDS = 10.0  # what the dead driver's processes get to end by themselves
RESOURCE_WATCHDOG = "ctvr.orchestrator.on_ray.resource_watchdog"  # outlives a driver on purpose, and ends by itself
# What the log of a dead driver says, the most telling first
CAUSES = (
    ("OutOfMemory", "Ray ended workers because memory ran out"),
    ("low on memory", "Ray ended workers because memory ran out"),
    ("Failed to connect to GCS", "Ray's GCS does not answer any more"),
    ("Raylet is terminated", "Ray's raylet has died"),
)


@dataclass
class SupervisedCommand:
    """A command that is supervised.

    Attributes:
        words: of the command.
        runs: the runs folder.
        store: of its commits, where the user named one.
        name: of the sweep; empty until it is known.
        deadline: of --budget-hours, by `time.monotonic`.
        trust: the options that name the classes which the user has named.
    """

    words: list[str]
    runs: Path
    store: str = ""
    name: str = ""
    deadline: float | None = None
    trust: list[str] = field(default_factory=list)
    attempts: int = field(default=0, init=False)
    stopped: bool = field(default=False, init=False)

    @property
    def what(self) -> str:
        return f"{self.words[0]} {self.name}".strip()

    @property
    def can_resume(self) -> bool:
        """Whether there is something to go on with."""
        return self.words[0] == "rerun" or bool(self.name and self._plan.is_file())

    @property
    def _plan(self) -> Path:
        return self.runs / "sweeps" / self.name / "plan.json"

    @property
    def resume_argv(self) -> list[str]:
        """The words that go on with it; a rerun takes what is finished over by itself."""
        if self.words[0] == "rerun" or "--resume" in self.words or not self.can_resume:
            return self.words
        place = [] if str(self.runs) == "runs" else ["--runs", str(self.runs)]
        return ["sweep", "--resume", self.name, *place, *self.trust]

    def command(self) -> list[str]:
        """The line of the next life."""
        words = self.resume_argv if self.attempts else self.words
        if self.attempts and self.deadline is not None:  # given last, it is the one that counts
            words = [*words, "--budget-hours", f"{max(self.deadline - time.monotonic(), 1) / 3600:.6f}"]
        return run_module("ctvr", *words)


@dataclass(frozen=True)
class DriverExit:
    """How a life of the driver ended.

    `reported_status` is the one that the driver wrote, None if it wrote none. `why` is for the user. `is_unavailable`:
    a store, disk or server that it writes to did not respond, and may later.
    """

    status: int
    reported_status: int | None
    why: str = ""
    is_unavailable: bool = False


# ----------------------------------------------------------------------------------------------- the parent


def supervise(job: SupervisedCommand, verbose: bool = False) -> int:
    """Run a job to its end, in as many lives as it takes; the exit status."""
    fruitless, commits = 0, _commits(job)
    while True:
        with tempfile.TemporaryDirectory(prefix="ctvr-") as folder:
            end = _live(job, Path(folder), verbose)
            job.attempts += 1
            if end.reported_status is not None:
                return end.status
            if job.stopped:
                say(f"ctvr: {job.what} was stopped; its finished tasks are kept. Go on with: {_said(job)}")
                return STOPPED
            if end.is_unavailable and not job.can_resume:
                say(f"ctvr: {end.why}")
                return end.status
            log = _keep_log(job, Path(folder) / "log")
        before, commits = commits, _commits(job)
        fruitless = 0 if commits - before else fruitless + (not end.is_unavailable)
        line = f"{job.what}: {end.why}; what is finished is kept ({len(commits)} tasks in the store)"
        is_late = job.deadline is not None and time.monotonic() >= job.deadline
        if fruitless == MAX_ATTEMPTS_WITHOUT_PROGRESS or job.attempts == MAX_ATTEMPTS or is_late:
            many = "its time is over" if is_late else f"{fruitless or job.attempts} starts in a row ended so"
            say(f"ctvr: {line}. Not started again: {many}. Its last words: {log}. Go on with: {_said(job)}")
            return end.status
        if end.is_unavailable:
            say(f"{line}; waiting for it, {AWAY_SECONDS / 60:.0f} min at most", with_time=True)
            if not _comes_back(job):
                say(f"ctvr: {job.what}: that did not change. What is finished is kept. Go on with: {_said(job)}")
                return end.status
            say(f"{job.what}: starting again", with_time=True)
            continue
        say(f"{line}; starting again", with_time=True)


def _comes_back(job: SupervisedCommand) -> bool:
    """Wait until store and MLflow answer and the runs folder has room; whether they came to that in time."""
    from ctvr.orchestrator.sweeps.committed_tasks import list_committed_tasks
    from ctvr.orchestrator.tracking.server import check, default_uri

    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        with contextlib.suppress(Exception):  # whatever a store says that is away
            list_committed_tasks(job.runs, job.name, job.store)
            check(default_uri(job.runs))
            if shutil.disk_usage(job.runs).free >= ROOM:
                return True
    return False


def _live(job: SupervisedCommand, folder: Path, verbose: bool) -> DriverExit:
    """One life of the driver, from its start to the end of the last process that it left behind."""
    token = secrets.token_hex(16)
    terminal = 2 if verbose else os.dup(2)
    state = {"folder": str(folder), "parent": os.getpid(), "stderr": terminal, "lives": job.attempts}
    environment = {**child_environment(), CHILD: json.dumps(state), TOKEN: token}
    with (folder / "log").open("wb") as log, _signals(job) as waiting:
        kept = [] if verbose else [terminal]
        process = subprocess.Popen(  # in a session of its own: Ctrl-C reaches it once, handed on by us
            job.command(), env=environment, stderr=None if verbose else log, pass_fds=kept, start_new_session=True
        )
        waiting.append(process)
        if job.stopped:  # before there was anybody to hand it on to
            process.send_signal(signal.SIGINT)
        status = process.wait()
    if not verbose:
        os.close(terminal)
    _end_leftovers(token)
    with contextlib.suppress(OSError):
        job.name = (folder / "name").read_text(encoding="utf-8")
    return _end_of(status, folder)


@contextlib.contextmanager
def _signals(job: SupervisedCommand) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Hand signals on to the process in the list that is given."""
    waiting: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: object) -> None:
        job.stopped = True
        for process in waiting:
            process.send_signal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            before[number] = signal.signal(number, hand_on)
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_of(status: int, folder: Path) -> DriverExit:
    """How a driver ended that gave this status."""
    told, fault = None, ""
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((folder / "end").read_text(encoding="utf-8"))
        told, fault = said["status"], said["fault"]
        if said["is_unavailable"]:
            return DriverExit(1, None, fault, is_unavailable=True)
    if told is not None:  # whatever the interpreter did afterwards
        return DriverExit(told, told)
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    cause = next((text for mark, text in CAUSES if mark in f"{fault}\n{log}"), "")
    if status < 0:
        name = signal.Signals(-status).name
        how = f"the driver was ended by {name}" + (" (memory may have run out)" if name == "SIGKILL" else "")
        return DriverExit(128 - status, None, cause or how)
    return DriverExit(status or 1, None, cause or fault or f"the driver ended with status {status}")


def _commits(job: SupervisedCommand) -> set[str]:
    """Names of the finished tasks in the job's store; none where it cannot be asked."""
    from ctvr.orchestrator.sweeps.committed_tasks import list_committed_tasks

    try:
        return list_committed_tasks(job.runs, job.name, job.store)
    except Exception as error:  # a store that is away now may be there for the next life
        say(f"{job.what}: finished tasks could not be counted ({type(error).__name__})")
        return set()


def _keep_log(job: SupervisedCommand, log: Path) -> Path:
    """Keep the last words of a dead driver, without secrets; return where they lie."""
    kept = job.runs / "drivers" / f"{job.name or 'unnamed'}.log"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with log.open(errors="replace") as said, kept.open("w") as file:
            file.writelines(map(redact, said))
    except OSError:
        return log
    return kept


def _said(job: SupervisedCommand) -> str:
    return shlex.join(["ctvr", *job.resume_argv])


def _end_leftovers(token: str) -> None:
    """End what a driver left running: processes that have its token, and nothing else."""
    left: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE_SECONDS
        for pid in (found := _with_token(token)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        left.update(found)
        while (left := {pid for pid in left if _runs(pid)}) and time.monotonic() < until:
            time.sleep(0.1)
            left.update(_with_token(token))


def _runs(pid: int) -> bool:
    """Whether a process is not over: one that ends loses its environment first, its files and locks only then."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _with_token(token: str) -> list[int]:
    """Processes of this user that a driver with this token has started, and that are not done."""
    mark, found = f"{TOKEN}={token}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or of somebody else
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if RESOURCE_WATCHDOG.encode() not in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


# ----------------------------------------------------------------------------------------------- the child


_life: Path | None = None  # in the child: the folder in which it tells its parent of itself
_former = 0  # in the child: lives before it


def init_child() -> None:
    """In the child: own lines to the terminal, whatever else is written to 2 to the log. Elsewhere nothing."""
    global _life, _former
    text = os.environ.pop(CHILD, "")
    if not text:
        return
    state = json.loads(text)
    _set_parent_death_signal(state["parent"])
    if state["stderr"] != 2:
        os.set_inheritable(state["stderr"], False)
        sys.stderr = os.fdopen(
            state["stderr"], "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
        )
    _life, _former = Path(state["folder"]), state["lives"]


def is_child() -> bool:
    return _life is not None


def is_restart() -> bool:
    """Whether this child goes on with what an earlier one has begun."""
    return is_child() and _former > 0


def report_name(name: str) -> None:
    """In the child: the name that the sweep got."""
    _tell("name", name)


def report_exit(status: int, fault: str = "", is_unavailable: bool = False) -> None:
    """In the child: that the end is in order (no `fault`), or what was raised; `is_unavailable`: as of `End`."""
    _tell("end", json.dumps({"status": None if fault else status, "fault": fault, "is_unavailable": is_unavailable}))


def _tell(what: str, text: str) -> None:
    if _life is not None:
        with contextlib.suppress(OSError):
            (_life / what).write_text(text, encoding="utf-8", errors="backslashreplace")


def _set_parent_death_signal(parent: int) -> None:
    """Be killed when the parent is: nobody would supervise, and whoever killed it wants the sweep gone."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
