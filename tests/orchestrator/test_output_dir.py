"""Names of output folders."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import check_name, nearest_name, new_folder, publish, require_new
from tests.in_subprocess import in_subprocess
from tests.refusing import refuses


@pytest.mark.wording
@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        ".hidden",
        "..",
        "a/b",
        "a\\b",
        "con",
        "Nul.txt",
        "com1",
        "LPT²",
        "a.",
        "a ",
        "a\n",
        "~",
        "a" * 101,
        "語" * 70,
    ],
)
def test_a_name_that_is_no_folder_on_every_system_is_refused(name):
    with pytest.raises(ConfigError, match="^--name: is not a valid folder name .*, for example ") as refused:
        check_name(name, "--name")
    check_name(str(refused.value).rpartition(", for example ")[2].removesuffix("."), "--name", is_ascii=True)


@pytest.mark.parametrize("name", ["a", "my-sweep_2.1", "console", "com10", "a" * 100, "語" * 50])
def test_a_name_that_is_a_folder_on_every_system_is_taken(name):
    check_name(name, "--name")


@pytest.mark.wording
@pytest.mark.parametrize(
    ("typed", "meant"),
    [("my sweep", "my-sweep"), ("café/1", "cafe-1"), ("run\n2", "run-2"), ("con", "my-con"), ("語", "my-name")],
)
def test_the_nearest_name_keeps_what_is_usable(typed, meant):
    assert nearest_name(typed) == meant


def test_files_of_killed_writers_go_at_the_next_writing(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = (f".b.csv.{ended.pid}.tmp", f".a.csv.{os.getppid()}.tmp", ".notes.tmp")
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    assert publish(tmp_path / "a.csv", b"whole").read_bytes() == b"whole"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*names[1:], "a.csv"])


def test_a_file_that_another_machine_removes_is_written_again(tmp_path, monkeypatch):
    real, calls = os.replace, list[Path]()

    def removed_once(source, target):
        calls.append(source)
        if len(calls) == 1:
            source.unlink()
        real(source, target)

    monkeypatch.setattr(os, "replace", removed_once)
    assert publish(tmp_path / "a.csv", b"whole").read_bytes() == b"whole"
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def die_while_writing(folder, done):
    with new_folder(folder) as new:
        for name in ("a", "b")[:done]:
            (new / name).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("done", [0, 2])
def test_a_folder_of_a_killed_process_is_written_by_the_next_call(tmp_path, exists, done):
    target = tmp_path / "out"
    target.mkdir() if exists else None
    with pytest.raises(BrokenProcessPool):
        in_subprocess(die_while_writing, target, done)
    assert len(list((target if exists else tmp_path).iterdir())) == 1  # the temporary folder
    require_new(target)
    with new_folder(target) as new:
        (new / "a").write_text("whole")
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("out"), Path("out/a")]
    with refuses(where="out", remedy=True):
        require_new(target)


def test_a_folder_is_written_in_a_container_where_each_process_has_one_id(tmp_path):
    (tmp_path / f".out.{os.getpid()}.tmp").mkdir()
    with new_folder(tmp_path / "out") as new:
        (new / "a").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_running_writer_and_foreign_folders_are_kept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = {f".out.{os.getppid()}.tmp", f".other.{ended.pid}.tmp", ".out.tmp"}
    for name in kept:
        (tmp_path / name).mkdir()
    with new_folder(tmp_path / "out"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "out"}


def fail_while_writing(folder, error):
    with new_folder(folder) as new:
        (new / "a").write_text("half")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_is_left_of_a_folder_that_fails(tmp_path, error):
    with pytest.raises(ConfigError if isinstance(error, OSError) else KeyboardInterrupt):
        fail_while_writing(tmp_path / "out", error)
    assert not list(tmp_path.iterdir())
