"""A sweep on a cluster's head that outlives the connection by which it was submitted.

`ray submit` runs its script at the end of an ssh connection, and with the connection the script dies. So the submitted
script starts a driver in a session of its own, and only shows what that says: a lost connection, a closed laptop or
Ctrl-C ends the showing. `ctvr attach` shows it again, `ctvr attach --stop` ends the driver in order. What it said, its
command and its exit status stay in ~/ctvr_drivers/TIME.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import child_environment, run_module
from ctvr.orchestrator.redaction import redact

POLL_SECONDS = 0.3
MODULE = "ctvr.orchestrator.cli.detached"


def folder() -> Path:
    """Of all drivers of this user on this machine."""
    return Path.home() / "ctvr_drivers"


def submit(words: Sequence[str]) -> int:
    """Start `ctvr sweep WORDS` apart from this connection, show what it says, return its exit status."""
    try:
        place = start(run_module("ctvr", "sweep", *words))
    except OSError as error:  # a home that is read-only, or full
        _say(f"{folder()}: cannot be written ({error.strerror}). Set HOME to a folder that can be, and run again.")
        return ConfigError.status
    _say("the sweep goes on without this connection; Ctrl-C ends only the watching. Here again: ctvr attach")
    return follow(place)


def start(command: Sequence[str]) -> Path:
    """Run a command in a session of its own; returns the folder that tells of it."""
    place = _new_folder()
    (place / "command").write_text("\0".join(command), encoding="utf-8", errors="surrogateescape")
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            run_module(MODULE, str(place)),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (place / "pid").write_text(str(process.pid))
    return place


def _new_folder() -> Path:
    """A folder named by the time; a second driver in the same second gets a later name."""
    at = time.time()
    while True:
        place = folder() / time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700)  # words of a command may be private
            return place
        except FileExistsError:
            at += 1


def supervise(place: Path) -> int:
    """The process between: runs the command, hands signals on to it, keeps its exit status."""
    command = (place / "command").read_text(encoding="utf-8", errors="surrogateescape").split("\0")
    shown = redact("\0".join(command))  # from here on it is for people
    (place / "command").write_text(shown, encoding="utf-8", errors="surrogateescape")
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: object) -> None:
        for process in running:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):  # first: what a shell ignores in the background, a child would too
        signal.signal(number, hand_on)
    process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    running.append(process)
    status = process.wait()
    if status < 0:
        name = signal.Signals(-status).name
        _say(f"the driver was ended by {name}. Finished tasks are kept; go on with: ctvr sweep --resume NAME")
        status = 128 - status
    temporary = place / "status.new"
    temporary.write_text(str(status))
    temporary.replace(place / "status")
    return status


def follow(place: Path) -> int:
    """Print what a driver said and says until it ends; its exit status. Ctrl-C ends the printing alone."""
    try:
        with (place / "log").open("rb") as log:
            while True:
                status = _status(place)  # before the last look, so that nothing said meanwhile is left out
                while part := log.read(2**16):
                    sys.stdout.buffer.write(part)
                sys.stdout.flush()
                if status is not None:
                    return status
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        _say("the sweep goes on. Here again: ctvr attach; end it in order: ctvr attach --stop")
        return 0


def _status(place: Path) -> int | None:
    """Exit status of a driver; none while it runs. One that left no status was killed together with its parent."""
    is_running = runs(place)
    try:
        return int((place / "status").read_text())
    except (OSError, ValueError):
        return None if is_running else 128 + signal.SIGKILL


def runs(place: Path) -> bool:
    """Whether the process that supervises a driver is there."""
    try:
        process = Path("/proc", (place / "pid").read_text().strip())
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if not any(words):  # between two programs, as it starts; or dead and not yet buried
            return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
    return MODULE in words and str(place) in words


def find(name: str | None) -> Path:
    """The folder of a driver: the one that is named, else the one that runs, else the last.

    Raises:
        ConfigError: if there is none.
    """
    known = sorted(path for path in folder().glob("*") if (path / "pid").is_file())
    if name is not None:
        known = [path for path in known if path.name == name]
    if not known:
        raise ConfigError(f"attach: no sweep was submitted to this machine{f' at {name}' if name else ''}.")
    return next((path for path in reversed(known) if runs(path)), known[-1])


def stop(place: Path) -> int:
    """End a driver in order, and show how it ends."""
    if runs(place):
        os.kill(int((place / "pid").read_text()), signal.SIGINT)
    return follow(place)


def _say(line: str) -> None:
    sys.stderr.write(f"ctvr: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
