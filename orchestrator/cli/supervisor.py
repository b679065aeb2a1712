"""Supervision of a sweep's driver: a parent process without Ray restarts the driver after a crash.

A process that uses Ray can be killed without a Python exception: by Ray's core worker if the raylet or GCS is lost, or
by the kernel if memory runs out. So `ctvr sweep`, `rerun` and `reproduce` run as a child process (`python -m ctvr` with
CTVR_SUPERVISED set). The parent restarts it with --resume as long as restarts finish tasks, and prints one line for
every event. If a disk is full or a store is unreachable, the parent waits before it restarts the child.

Output of the child's libraries on file descriptor 2 (state dumps, C++ lines, tracebacks) goes to a file, and the
child's own lines to the terminal; `--verbose` shows everything. Signals are forwarded, so that Ctrl-C, `ctvr runs
attach --stop` and Slurm's time limit stop a sweep cleanly. If the parent is killed, the child also dies.
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

from ctvr.orchestrator.cli.leftovers import TOKEN, end_leftovers
from ctvr.orchestrator.console import say
from ctvr.orchestrator.interpreter import child_environment, run_module
from ctvr.orchestrator.redaction import redact

CHILD = "CTVR_SUPERVISED"  # environment variable that only the child has
MAX_ATTEMPTS_WITHOUT_PROGRESS = 2  # consecutive attempts without a finished task before giving up
MAX_ATTEMPTS = 20
STOPPED = 130  # exit status
AWAY_SECONDS, LOOK_SECONDS = 3600.0, 20.0  # how long to wait for a disk or store, and how often to check it
ROOM = 500 * 10**6  # free bytes required to restart


@dataclass
class SupervisedCommand:
    """A command that runs in a supervised child process, and the state of its supervision.

    Attributes:
        words: the command and its arguments.
        runs: the runs folder.
        store: the store of the commits, if the user gave one.
        name: the sweep's name; empty until it is known.
        deadline: the end of --budget-hours, by `time.monotonic`.
        trust: the --trust options of the classes that the user named.
        attempts: the number of finished attempts.
        stopped: whether a signal stopped the command.
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
        """Return whether the command can be resumed."""
        return self.words[0] == "rerun" or bool(self.name and self._plan.is_file())

    @property
    def _plan(self) -> Path:
        return self.runs / "sweeps" / self.name / "plan.json"

    @property
    def resume_argv(self) -> list[str]:
        """Return the arguments that resume the command; a rerun resumes automatically."""
        if self.words[0] == "rerun" or "--resume" in self.words or not self.can_resume:
            return self.words
        place = [] if str(self.runs) == "runs" else ["--runs", str(self.runs)]
        return ["sweep", "--resume", self.name, *place, *self.trust]

    def command(self) -> list[str]:
        """Return the command line of the next attempt."""
        words = self.resume_argv if self.attempts else self.words
        if self.attempts and self.deadline is not None:  # argparse uses the last value
            words = [*words, "--budget-hours", f"{max(self.deadline - time.monotonic(), 1) / 3600:.6f}"]
        return run_module("ctvr", *words)


@dataclass(frozen=True)
class DriverExit:
    """The end of one attempt of the driver.

    Attributes:
        status: the exit status for the user.
        reported_status: the exit status that the driver wrote; None if it wrote none.
        why: the reason, for the user.
        is_unavailable: whether a store, disk or server did not respond but may respond later.
        is_final: whether another attempt would also fail.
    """

    status: int
    reported_status: int | None
    why: str = ""
    is_unavailable: bool = False
    is_final: bool = False


# ----------------------------------------------------------------------------------------------- the parent


def supervise(job: SupervisedCommand, verbose: bool = False) -> int:
    """Run a command, restart it after crashes until it ends, and return the exit status."""
    fruitless, commits = 0, _commits(job)
    while True:
        with tempfile.TemporaryDirectory(prefix="ctvr-") as folder:
            end = _run_attempt(job, Path(folder), verbose)
            job.attempts += 1
            if end.reported_status is not None:
                return end.status
            if job.stopped:
                say(f"ctvr: {job.what} was stopped; its finished tasks are kept. Resume with: {_resume_command(job)}")
                return STOPPED
            if end.is_unavailable and not job.can_resume:
                say(f"ctvr: {end.why}")
                return end.status
            log = _keep_log(job, Path(folder) / "log")
        before, commits = commits, _commits(job)
        fruitless = 0 if commits - before else fruitless + (not end.is_unavailable)
        line = f"{job.what}: {end.why}; finished tasks are kept ({len(commits)} in the store)"
        is_late = job.deadline is not None and time.monotonic() >= job.deadline
        if end.is_final or fruitless == MAX_ATTEMPTS_WITHOUT_PROGRESS or job.attempts == MAX_ATTEMPTS or is_late:
            many = "its time limit has passed" if is_late else f"{fruitless or job.attempts} attempts in a row ended so"
            many = "the next attempt would end the same way" if end.is_final else many
            say(f"ctvr: {line}. Not restarted: {many}. Log: {log}. Resume with: {_resume_command(job)}")
            return end.status
        if end.is_unavailable:
            say(f"{line}; waiting up to {AWAY_SECONDS / 60:.0f} min for it", with_time=True)
            if not _comes_back(job):
                say(
                    f"ctvr: {job.what}: still unavailable. Finished tasks are kept. Resume with: {_resume_command(job)}"
                )
                return end.status
            say(f"{job.what}: restarting", with_time=True)
            continue
        say(f"{line}; restarting", with_time=True)


def _comes_back(job: SupervisedCommand) -> bool:
    """Wait until store and MLflow respond and the runs folder has free space; return False on a timeout."""
    from ctvr.orchestrator.sweeps.committed_tasks import list_committed_tasks
    from ctvr.orchestrator.tracking.server import check, default_uri

    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        with contextlib.suppress(Exception):  # any error of an unreachable store
            list_committed_tasks(job.runs, job.name, job.store)
            check(default_uri(job.runs))
            if shutil.disk_usage(job.runs).free >= ROOM:
                return True
    return False


def _run_attempt(job: SupervisedCommand, folder: Path, verbose: bool) -> DriverExit:
    """Run one attempt of the driver, and end all processes that it left running."""
    token = secrets.token_hex(16)
    terminal = 2 if verbose else os.dup(2)
    state = {"folder": str(folder), "parent": os.getpid(), "stderr": terminal, "lives": job.attempts}
    environment = {**child_environment(), CHILD: json.dumps(state), TOKEN: token}
    with (folder / "log").open("wb") as log, _forward_signals(job) as waiting:
        kept = [] if verbose else [terminal]
        process = subprocess.Popen(  # in a new session: it receives Ctrl-C once, forwarded by this process
            job.command(), env=environment, stderr=None if verbose else log, pass_fds=kept, start_new_session=True
        )
        waiting.append(process)
        if job.stopped:  # the signal arrived before the process existed
            process.send_signal(signal.SIGINT)
        status = process.wait()
    if not verbose:
        os.close(terminal)
    end_leftovers(token)
    with contextlib.suppress(OSError):
        job.name = (folder / "name").read_text(encoding="utf-8")
    return _read_exit(status, folder)


@contextlib.contextmanager
def _forward_signals(job: SupervisedCommand) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Forward signals to the processes in the yielded list."""
    waiting: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: object) -> None:
        job.stopped = True
        for process in waiting:
            process.send_signal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            before[number] = signal.signal(number, hand_on)
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_exit(status: int, folder: Path) -> DriverExit:
    """Return the `DriverExit` for a process's exit status and the report in `folder`."""
    reported, fault, is_final = None, "", False
    with contextlib.suppress(OSError, ValueError):
        reported, fault, is_unavailable, is_final = json.loads((folder / "end").read_text(encoding="utf-8")).values()
        if is_unavailable:
            return DriverExit(1, None, fault, is_unavailable=True)
    if reported is not None:  # even if the interpreter's shutdown failed
        return DriverExit(reported, reported)
    if status < 0:
        name = signal.Signals(-status).name
        how = f"the driver was killed by {name}" + (" (memory may have run out)" if name == "SIGKILL" else "")
        return DriverExit(128 - status, None, how)
    return DriverExit(status or 1, None, fault or f"the driver exited with status {status}", False, is_final)


def _commits(job: SupervisedCommand) -> set[str]:
    """Return the names of the finished tasks in the store; empty if the store does not respond."""
    from ctvr.orchestrator.sweeps.committed_tasks import list_committed_tasks

    try:
        return list_committed_tasks(job.runs, job.name, job.store)
    except Exception as error:  # an unreachable store may respond to the next attempt
        say(f"{job.what}: finished tasks could not be counted ({type(error).__name__})")
        return set()


def _keep_log(job: SupervisedCommand, log: Path) -> Path:
    """Copy the log of a dead driver to the runs folder and redact secrets in the copy; return the path of the copy.

    If the copy cannot be written, return the path of the original log, which is not redacted.
    """
    kept = job.runs / "drivers" / f"{job.name or 'unnamed'}.log"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with log.open(errors="replace") as said, kept.open("w") as file:
            file.writelines(map(redact, said))
    except OSError:
        return log
    return kept


def _resume_command(job: SupervisedCommand) -> str:
    return shlex.join(["ctvr", *job.resume_argv])


# ----------------------------------------------------------------------------------------------- the child


_life: Path | None = None  # in the child: the folder for reports to its parent
_former = 0  # in the child: earlier attempts


def init_child() -> None:
    """Write our lines of a supervised child to the terminal, although descriptor 2 is its log; otherwise do nothing."""
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
    """Return whether this process is a later attempt of a supervised command."""
    return is_child() and _former > 0


def report_name(name: str) -> None:
    """Report the sweep's name to the parent."""
    _tell("name", name)


def report_exit(status: int, fault: str = "", is_unavailable: bool = False, is_final: bool = False) -> None:
    """Report the exit status, or the error `fault`, to the parent; the flags are described in `DriverExit`."""
    end = {"status": None if fault else status, "fault": fault, "is_unavailable": is_unavailable, "is_final": is_final}
    _tell("end", json.dumps(end))


def _tell(what: str, text: str) -> None:
    if _life is not None:
        with contextlib.suppress(OSError):
            (_life / what).write_text(text, encoding="utf-8", errors="backslashreplace")


def _set_parent_death_signal(parent: int) -> None:
    """Let the kernel kill this process when the parent dies, because a driver must not run without a supervisor."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
