"""Names of output folders."""

import os

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
    left, new, own = tmp_path / ".a.csv.4711.tmp", tmp_path / ".b.csv.4712.tmp", tmp_path / ".notes.tmp"
    for file in (left, new, own):
        file.write_bytes(b"half")
    for file in (left, own):
        os.utime(file, (0, 0))
    assert publish(tmp_path / "a.csv", b"whole").read_bytes() == b"whole"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".b.csv.4712.tmp", ".notes.tmp", "a.csv"]
