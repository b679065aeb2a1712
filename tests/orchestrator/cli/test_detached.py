"""A submitted sweep continues when the connection is lost, and can be found again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctvr.orchestrator.cli import detached
from tests.refusing import refuses

REPOSITORY = Path(__file__).resolve().parents[3]
FOLLOW = (  # as over ssh; children of a test run below nohup would inherit that the signal is ignored
    "import signal, sys; from ctvr.orchestrator.cli import detached; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "sys.exit(detached.follow(detached.find(None)))"
)


def wait_for(condition) -> None:
    until = time.monotonic() + 120
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    assert condition()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return tmp_path


def test_a_lost_connection_loses_nothing(home, capfdbinary):
    with refuses("`ray"):
        detached.find(None)
    driver = (
        "import pathlib, sys, time; print('first'); go = pathlib.Path(sys.argv[1])\n"
        "while not go.exists(): time.sleep(0.05)\n"
        "print('second'); sys.exit(3)"
    )
    place = detached.start([sys.executable, "-c", driver, str(home / "go")])
    watching = subprocess.Popen([sys.executable, "-c", FOLLOW], stdout=subprocess.PIPE, start_new_session=True)
    assert watching.stdout
    assert watching.stdout.readline() == b"first\n"
    os.killpg(watching.pid, signal.SIGHUP)  # what the end of an ssh connection does
    assert watching.wait(60) == -signal.SIGHUP
    assert detached.runs(place)
    (home / "go").touch()
    assert detached.follow(detached.find(None)) == 3
    assert capfdbinary.readouterr().out == b"first\nsecond\n"
    wait_for(lambda: not detached.runs(place))


def test_a_driver_is_ended_in_order_and_one_that_was_killed_says_so(home, capfdbinary):
    driver = "import time\ntry: print('on', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: print('in order')"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for what it starts in the background
    try:
        place = detached.start([sys.executable, "-c", driver])
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: (place / "log").read_bytes())
    assert detached.stop(place) == 0
    assert b"in order" in capfdbinary.readouterr().out
    place = detached.start([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    assert detached.follow(place) == 128 + signal.SIGKILL
    assert b"killed by SIGKILL. Finished tasks are kept" in capfdbinary.readouterr().out
    assert detached.find(place.name) == place


def test_control_characters_of_a_drivers_output_are_escaped(home, capfd):
    place = home / "ctvr_drivers" / "a"
    place.mkdir(parents=True)
    (place / "status").write_text("0")
    (place / "log").write_bytes("a\tb \x1b[2J\u202e\r é\n".encode() + b"\xff\n")
    assert detached.follow(place) == 0
    detached._say("c\x1b[2J")
    said = capfd.readouterr()
    assert said.out == "a\tb \\x1b[2J\\u202e\\r é\n\\udcff\n"
    assert said.err == "ctvr: c\\x1b[2J\n"


def test_a_pipe_that_its_reader_closes_ends_the_printing(home):
    place = home / "ctvr_drivers" / "a"
    place.mkdir(parents=True)
    for name, text in (("status", "0"), ("pid", "0"), ("log", "line\n" * 100_000)):
        (place / name).write_text(text)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ctvr", "runs", "attach"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=write, text=True)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, "")
