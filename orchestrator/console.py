"""One line at a time for the person who waits, on stderr; stdout is for results."""

from __future__ import annotations

import math
import sys
import time


def say(line: str, with_time: bool = False) -> None:
    """Write one line to stderr at once, after the time of day if `with_time`."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n" if with_time else f"{line}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Escape what moves a terminal's cursor or ends a line: names of files may contain line breaks and escape codes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def duration(seconds: float) -> str:
    """Seconds as a person says them: "5 s", "12 min", "2.0 h"; `n/a` for what is not finite."""
    if not math.isfinite(seconds):
        return "n/a"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
