"""Reports of exceptions in a user's own code: one line with file and line number, and a file with the traceback."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import NO_SPACE, CtvrError, UserCodeFailed
from ctvr.orchestrator.redaction import traceback_text
from ctvr.orchestrator.sweeps.trust import place_in_user_code

SHOW = "CTVR_TRACEBACK"  # environment variable: 1 also prints the traceback


@contextlib.contextmanager
def named_in_one_line(arguments: Any) -> Iterator[None]:
    """Context manager that reports exceptions in the user's code, or in our code that it calls, as `UserCodeFailed`.

    Raises:
        UserCodeFailed: for such an exception. Our own errors, and a lack of memory or space, are not changed.
    """
    try:
        yield
    except (CtvrError, MemoryError):
        raise
    except Exception as error:
        is_of_machine = getattr(error, "errno", None) in NO_SPACE or "can't allocate memory" in str(error)
        if is_of_machine or not (place := place_in_user_code(error)):
            raise
        raise UserCodeFailed(_line(error, place, _keep(traceback_text(error), arguments))) from error


def _line(error: Exception, place: str, kept: str) -> str:
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said:.300}" if said else type(error).__name__
    return f"{place}: raised {what}. Correct that line and run the command again. {kept}"


def _keep(text: str, arguments: Any) -> str:
    """Write a traceback to the runs folder or, if this fails, to the temporary folder; return a sentence with its path.

    If `CTVR_TRACEBACK` is set, print the traceback instead.
    """
    if os.environ.get(SHOW):
        say(text)
        return f"{SHOW} printed the traceback above."
    runs = Path(getattr(arguments, "runs", None) or "runs")
    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (runs, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            return f"The whole traceback: {folder / name}"
    return f"{SHOW}=1 prints the whole traceback."
