"""Lines for the person who waits go to stderr."""

from __future__ import annotations

import math
import re

from ctvr.orchestrator.console import format_duration, printable, say


def test_a_line_goes_to_stderr_with_the_time_where_asked(capsys):
    say("decoded")
    say("task 1/2", with_time=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"decoded\n\d\d:\d\d:\d\d  task 1/2\n", said.err)


def test_durations_are_said_as_a_person_would():
    assert [format_duration(s) for s in (5.4, 99, 130, 5400, 7200)] == ["5 s", "99 s", "2 min", "90 min", "2.0 h"]
    assert format_duration(math.nan) == "n/a"


def test_names_of_files_neither_end_a_line_nor_move_the_cursor():
    assert printable("a\nb\x1b[31m\u2028\u202e\udce9.mp4") == r"a\nb\x1b[31m\u2028\u202e\udce9.mp4"
    assert printable("two words 你好 é.mp4") == "two words 你好 é.mp4"
