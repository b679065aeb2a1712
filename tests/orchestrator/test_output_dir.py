"""Names of output folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import check_name, nearest_name, publish


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
    with pytest.raises(ConfigError, match="^--name: is not a name for a folder .*, for example ") as refused:
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
