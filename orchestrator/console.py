"""One line at a time for the person who waits, on stderr; stdout is for results."""

from __future__ import annotations

import io
import math
import sys
import time

from ctvr.orchestrator.redaction import redact


def escape_unknown_characters() -> None:
    """Have stdout and stderr write what their encoding lacks as escapes (\\u4e2d): names hold any character.

    A terminal of ASCII or Latin-1 (`LC_ALL=C`, `PYTHONIOENCODING`) would end the command with an exception.
    """
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            is_whole = stream.encoding.lower() in ("utf-8", "utf8")
            if stream.errors == "strict" or (stream.errors == "surrogateescape" and not is_whole):
                stream.reconfigure(errors="backslashreplace")


def say(line: str, with_time: bool = False) -> None:
    """Write one line to stderr at once, without secrets, after the time of day if `with_time`."""
    line = redact(line)
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n" if with_time else f"{line}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Escape what moves a terminal's cursor or ends a line: names of files may contain line breaks and escape codes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def format_duration(seconds: float) -> str:
    """Seconds as a person says them: "5 s", "12 min", "2.0 h"; `n/a` for what is not finite."""
    if not math.isfinite(seconds):
        return "n/a"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
