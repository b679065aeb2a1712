"""Progress lines on stderr, and escaping of characters that control a terminal or reorder a line.

stdout is reserved for results.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
import time
from typing import TYPE_CHECKING

from ctvr.orchestrator.redaction import redact

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_SECONDS = 30.0  # seconds between two progress lines if stderr is not a terminal
LAYOUT = "\n\t"
# Control characters, line separators, controls of bidirectional text (UAX 9, section 2), and bytes that are not UTF-8,
# which Python represents as surrogates
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ud800-\udfff]")


def escape_unknown_characters() -> None:
    """Set stdout and stderr to escape characters that their encoding lacks, for example as \\u4e2d.

    Otherwise a file name on an ASCII or Latin-1 terminal (`LC_ALL=C`, `PYTHONIOENCODING`) raises an exception.
    """
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            is_whole = stream.encoding.lower() in ("utf-8", "utf8")
            if stream.errors == "strict" or (stream.errors == "surrogateescape" and not is_whole):
                stream.reconfigure(errors="backslashreplace")


def say(line: str, with_time: bool = False) -> None:
    """Write one redacted line to stderr and flush it; `with_time` prepends the time of day.

    A closed terminal or a full disk does not end the command.
    """
    line = printable(redact(line), keep=LAYOUT)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # lost, closed, or None (`2>&-`)
        sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n" if with_time else f"{line}\n")
        sys.stderr.flush()


def progress(total: int, what: str, unit: str = "video", is_shown: bool = True) -> tqdm:
    """Return a tqdm progress bar on stderr. If stderr is not a terminal, the bar prints a line every 30 s."""
    from tqdm import tqdm

    what = printable(what)
    if sys.stderr is None or sys.stderr.isatty() or not is_shown:
        return tqdm(total=total, desc=what, unit=unit, disable=not is_shown)
    return tqdm(total=total, desc=what, unit=unit, file=_Lines(), mininterval=LINE_SECONDS, maxinterval=LINE_SECONDS)


class _Lines:
    """Output file of a progress bar: writes each state as a line on stderr, without cursor movements."""

    def write(self, text: str) -> None:
        if line := text.strip():
            say(line)

    def flush(self) -> None:
        pass


def printable(text: str, keep: str = "") -> str:
    """Escape control and bidirectional characters, and bytes that are not UTF-8, except those in `keep`.

    File names, captions and records from elsewhere may contain such characters. Leave `keep` empty for a part of a line
    and for an ID made from a file name; pass LAYOUT for a whole result.
    """

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode("ascii")

    return _UNSAFE.sub(escaped, text)


def count(number: int, what: str, others: str = "") -> str:
    """Format a number of things: `1 run`, `2 runs`; `others` is the plural if it is more than an s: "videos are"."""
    return f"{number} {what if number == 1 else others or f'{what}s'}"


def format_duration(seconds: float) -> str:
    """Format seconds as "5 s", "12 min" or "2.0 h"; `n/a` if not finite."""
    if not math.isfinite(seconds):
        return "n/a"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
