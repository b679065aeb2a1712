"""Sweeps on a cluster's head node that survive a lost ssh connection.

`ray submit` runs its script over ssh, and the script dies with the connection. So the submitted script starts a driver
in a new session and prints its output; a lost connection or Ctrl-C stops only the printing. `ctvr runs attach` prints
the output again, `ctvr runs attach --stop` stops the driver cleanly. Output, command and exit status are kept in
~/ctvr_drivers/TIME.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from ctvr.orchestrator.console import LAYOUT, printable, say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import child_environment, run_module
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.redaction import redact

POLL_SECONDS = 0.3
MODULE = "ctvr.orchestrator.cli.detached"


def folder() -> Path:
    """Return the folder of all drivers of this user on this machine."""
    return Path.home() / "ctvr_drivers"


def submit(words: Sequence[str]) -> int:
    """Start `ctvr sweep WORDS` in a new session, print its output, return its exit status."""
    try:
        place = start(run_module("ctvr", "sweep", *words))
    except OSError as error:  # the home folder is read-only, or the disk is full
        _say(f"{folder()}: cannot be written ({error.strerror}). Set HOME to a writable folder and run again.")
        return ConfigError.status
    _say("the sweep survives this connection; Ctrl-C only stops following it. To follow it again: ctvr runs attach")
    return follow(place)


def start(command: Sequence[str]) -> Path:
    """Run a command in a new session; return the folder for its output and exit status."""
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
    """Create a folder named after the current time, or the next free second."""
    at = time.time()
    while True:
        place = folder() / time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700)  # arguments may be private
            return place
        except FileExistsError:
            at += 1


def supervise(place: Path) -> int:
    """Run the command of a driver, forward signals to it, and store its exit status."""
    command = (place / "command").read_text(encoding="utf-8", errors="surrogateescape").split("\0")
    shown = redact("\0".join(command))  # from here on the file is only for people
    (place / "command").write_text(shown, encoding="utf-8", errors="surrogateescape")
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: object) -> None:
        for process in running:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):  # set first: a child inherits ignored signals
        signal.signal(number, hand_on)
    process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    running.append(process)
    status = process.wait()
    if status < 0:
        name = signal.Signals(-status).name
        _say(f"the driver was killed by {name}. Finished tasks are kept. Resume with: ctvr sweep --resume NAME")
        status = 128 - status
    publish(place / "status", str(status).encode())
    return status


def follow(place: Path) -> int:
    """Print a driver's output until it exits; return its exit status. Ctrl-C only stops the printing."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    try:
        with (place / "log").open("rb") as log:
            while True:
                status = _status(place)  # read before the log, so that no output is missed
                while part := log.read(2**16):  # also has output of libraries and other programs
                    sys.stdout.write(printable(decoder.decode(part), keep=LAYOUT))
                sys.stdout.flush()
                if status is not None:
                    return status
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        _say("the sweep continues. To follow it again: ctvr runs attach; to stop it: ctvr runs attach --stop")
        return 0
    except BrokenPipeError:  # `ctvr runs attach 2>&1 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # receives what is flushed at exit
        return 0


def _status(place: Path) -> int | None:
    """Return a driver's exit status, None while it runs. A driver without a status file was killed with its parent."""
    is_running = runs(place)
    try:
        return int((place / "status").read_text())
    except (OSError, ValueError):
        return None if is_running else 128 + signal.SIGKILL


def runs(place: Path) -> bool:
    """Return whether the process that supervises a driver is running."""
    try:
        words = psutil.Process(int((place / "pid").read_text())).cmdline()
    except (OSError, ValueError, psutil.Error):
        return False
    return not words or (MODULE in words and str(place) in words)  # empty during exec


def find(name: str | None) -> Path:
    """Return the folder of the driver `name`; if None, of the newest running driver, else of the newest driver.

    Raises:
        ConfigError: if no driver is found.
    """
    known = sorted(path for path in folder().glob("*") if (path / "pid").is_file())
    if name is not None:
        known = [path for path in known if path.name == name]
    if not known:
        raise ConfigError(
            f"runs attach: no sweep{f' {name!r}' if name else ''} was submitted to this machine. Use `ray submit`."
        )
    return next((path for path in reversed(known) if runs(path)), known[-1])


def stop(place: Path) -> int:
    """Stop a driver cleanly, and print its output until it exits."""
    if runs(place):
        os.kill(int((place / "pid").read_text()), signal.SIGINT)
    return follow(place)


def _say(line: str) -> None:
    say(f"ctvr: {line}")


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
