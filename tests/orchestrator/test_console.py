"""Progress lines for the user go to stderr."""

import math
import os
import re
import subprocess
import sys

import pytest

from ctvr.orchestrator.config import unknown_setting
from ctvr.orchestrator.console import LAYOUT, format_duration, printable, progress, say
from ctvr.orchestrator.interpreter import child_environment, run_module


def test_a_line_goes_to_stderr_with_the_time_where_asked(capsys):
    say("decoded")
    say("task 1/2", with_time=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"decoded\n\d\d:\d\d:\d\d  task 1/2\n", said.err)


@pytest.mark.parametrize("lost", ["2>&-", "2>/dev/full"])
def test_a_lost_terminal_ends_no_command(lost):
    code = "from ctvr.orchestrator.console import say; say('task 1/2'); print('goes on')"
    command = ["sh", "-c", f'exec "$0" -c "$1" {lost}', sys.executable, code]
    done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="not Linux")
@pytest.mark.parametrize("words", ["methods", "--help", "run --help", "--version"])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_result_that_cannot_be_written_is_one_line(words, is_buffered):
    environment = {**child_environment(), "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    with open("/dev/full", "w") as full:
        command = run_module("ctvr", *words.split())
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the result was not written to stdout: No space left on device" in done.stderr


@pytest.mark.parametrize("words", ["methods", "--help"])
def test_a_pipe_that_its_reader_closes_is_quiet(words):
    read, write = os.pipe()
    os.close(read)
    command = run_module("ctvr", words)
    environment = {**child_environment(), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_in_a_progress_bar_are_escaped(capsys):
    progress(1, "rendering a\x1b[2J").close()
    assert "rendering a\\x1b[2J" in capsys.readouterr().err


def test_durations_are_formatted_in_readable_units():
    assert [format_duration(s) for s in (5.4, 99, 130, 5400, 7200)] == ["5 s", "99 s", "2 min", "90 min", "2.0 h"]
    assert format_duration(math.nan) == "n/a"


def test_names_of_files_neither_end_a_line_nor_move_the_cursor(capsys):
    assert printable("a\nb\x1b[31m\u2028\u202e\udce9.mp4") == r"a\nb\x1b[31m\u2028\u202e\udce9.mp4"
    say("a\x1b[2J\u202e")
    assert capsys.readouterr().err == "a\\x1b[2J\\u202e\n"
    assert str(unknown_setting("a\nb", 1, [])).startswith(r"a\nb: ")
    for shown in ("two words 你好 é.mp4", "全角\u3000.mp4", "👩\u200d🚀.mp4", "می\u200cخواهم"):
        assert printable(shown) == shown
    assert printable("a\n\tb\x9b1m\r\u2066", keep=LAYOUT) == "a\n\tb\\x9b1m\\r\\u2066"
