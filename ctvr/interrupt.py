"""Handler of Ctrl-C during the imports of a command, which prints one line instead of a traceback.

Importing this module sets the handler, so that it is set before other imports.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

STATUS = 130  # exit status of shells after SIGINT


def _exit_at_interrupt() -> None:
    """Set a handler that exits at Ctrl-C, if this process is `ctvr` or `python -m ctvr`; `cli.main` replaces it later.

    The handler is not set in a process that ignores Ctrl-C, or in another program or a child process that imports ctvr.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    is_command = os.path.basename(script) == "ctvr" or (sys.argv[:1] == ["-m"] and "ctvr" in sys.orig_argv)
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: object) -> NoReturn:
    """Exit at once, because nothing has been created yet and libraries convert a KeyboardInterrupt to other errors."""
    try:
        os.write(2, b"ctvr: stopped.\n")
    finally:
        os._exit(STATUS)


_exit_at_interrupt()
