"""A sweep has one driver."""

import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.sweeps.driver import only_driver
from tests.refusing import refuses

HOLD = """
import sys
from pathlib import Path
from ctvr.orchestrator.sweeps.driver import only_driver
with only_driver(Path(sys.argv[1]), "u"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_driver_is_refused_while_the_first_lives(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "u")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with refuses("u", first.pid), only_driver(tmp_path / "u", "u"):
            pytest.fail("two drivers")
        first.kill()
        first.wait()
        with only_driver(tmp_path / "u", "u"):
            pass


def test_a_driver_that_starts_a_moment_later_leaves_the_lock_of_the_first(tmp_path, monkeypatch):
    lock, mkdir = tmp_path / "u" / "driver.lock", Path.mkdir

    def mkdir_after_the_first(folder, **named):
        mkdir(folder, **named)
        fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)

    with ExitStack() as held:
        monkeypatch.setattr(Path, "mkdir", mkdir_after_the_first)
        with refuses("u"), only_driver(tmp_path / "u", "u"):
            pytest.fail("two drivers")
        assert lock.exists()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_lock_that_a_refused_driver_removes_is_taken_again(tmp_path, monkeypatch, what):
    lock, flock, mkdir = tmp_path / "u" / "driver.lock", fcntl.flock, Path.mkdir

    def without_the_file(descriptor, kind):
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(descriptor, kind)
        lock.unlink()

    def without_the_folder(folder, **_):
        monkeypatch.setattr(Path, "mkdir", mkdir)

    if what == "file":
        monkeypatch.setattr(fcntl, "flock", without_the_file)
    else:
        monkeypatch.setattr(Path, "mkdir", without_the_folder)
    with only_driver(tmp_path / "u", "u"), refuses("u", os.getpid()), only_driver(tmp_path / "u", "u"):
        pytest.fail("two drivers")


@pytest.mark.parametrize("held", ["", "5", '{"pid": Infinity, "host": "h"}', "[" * 1000, "\0"])
def test_a_damaged_lock_names_another_process(tmp_path, held):
    (tmp_path / "driver.lock").write_text(held)
    with (tmp_path / "driver.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refuses("u"), only_driver(tmp_path, "u"):
            pytest.fail("two drivers")


def test_ended_driver_releases_its_lock(tmp_path):
    for _ in range(2):
        with only_driver(tmp_path, "u"):
            assert str(os.getpid()) in (tmp_path / "driver.lock").read_text()


def test_a_pipe_in_place_of_the_lock_is_named(tmp_path):
    os.mkfifo(tmp_path / "driver.lock")
    with refuses(where="driver.lock"), only_driver(tmp_path, "u"):
        pytest.fail("a FIFO was taken for a lock")


def refuse(folder, *written):
    with only_driver(folder, "u"):
        for name in written:
            (folder / name).touch()
        raise ConfigError("no")


@pytest.mark.parametrize("written", [(), ("plan.json",)])
def test_a_refused_sweep_leaves_no_folder_and_what_was_written_stays(tmp_path, written):
    with pytest.raises(ConfigError, match="no"):
        refuse(tmp_path / "sweeps" / "u", *written)
    assert [file.name for file in tmp_path.rglob("*.json")] == list(written)
    assert (tmp_path / "sweeps").exists() == bool(written)
