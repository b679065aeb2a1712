"""Observation of a sweep from outside while its processes are killed, and the MLflow server that it reports to."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ctvr.orchestrator.tracking.server import ui_command

PATIENCE = 600.0  # seconds that anything may take on a loaded machine


class Server:
    """An MLflow server on a SQLite file, in a separate process group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._later: threading.Timer | None = None

    def start(self) -> None:
        """Start the server unless it runs; it answers some seconds later."""
        if self._later is not None:
            self._later.cancel()
        if self.process is not None:
            return
        command = ui_command(f"sqlite:///{self.folder / 'mlflow.db'}", port=self.port)
        with (self.folder / "server.log").open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def kill(self) -> None:
        """Send SIGKILL to the server and all its workers, and wait until its port is free."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            wait_for(self._is_free)  # a worker that still ends holds it

    def _is_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
            return True

    def start_later(self, seconds: float) -> None:
        self._later = threading.Timer(seconds, self.start)
        self._later.start()

    def close(self) -> None:
        """End the server's processes."""
        if self._later is not None:
            self._later.cancel()
        self.kill()

    def await_answer(self) -> None:
        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return True
            except OSError:
                return False

        wait_for(answers)


class Watch(threading.Thread):
    """Records when each commit of a sweep appears, and whether an existing one changes."""

    def __init__(self, runs: Path) -> None:
        super().__init__(daemon=True)
        self.folder = runs / "store" / "commits"
        self.seen: dict[str, float] = {}
        self.wrong: list[str] = []
        self._identity: dict[str, tuple[int, int]] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            for file in self.folder.glob("*/task_*.json"):
                if file.parent.name.startswith("zero-"):
                    continue
                name, status = f"{file.parent.name}/{file.name}", file.stat()
                self.seen.setdefault(name, time.monotonic())
                identity = (status.st_ino, status.st_mtime_ns)
                if self._identity.setdefault(name, identity) != identity:
                    self.wrong.append(f"commit {name} was written again")
                    self._identity[name] = identity

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def recovery(self, moment: float) -> float | None:
        """Return the seconds until each trial that was unfinished at a moment had finished one more task."""
        later: dict[str, float] = {}
        for name, seen in self.seen.items():
            if seen > moment:
                run = name.partition("/")[0]
                later[run] = min(seen, later.get(run, seen))
        return max(later.values()) - moment if later else None


def below(pid: int) -> dict[int, str]:
    """Return the descendants of a process with their full titles, which `ps` cuts at the width of a terminal."""
    import psutil

    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    found: dict[int, str] = {}
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
            found[process.pid] = " ".join(process.cmdline())
    return found


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: after PATIENCE seconds.
    """
    until = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > until:
            raise TimeoutError(f"what was waited for did not happen within {PATIENCE:.0f} s")
        time.sleep(0.1)
