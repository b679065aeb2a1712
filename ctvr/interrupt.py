"""Handle Ctrl-C during the imports of a command by one line instead of a traceback.

Importing this module sets the handler, so that it is set before other imports.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

STATUS = 130


def _exit_at_interrupt() -> None:
    """Exit at Ctrl-C, if this process is `ctvr` or `python -m ctvr`, until `cli.main` handles it.

    A process that ignores Ctrl-C, a program or a child process that imports ctvr is not changed.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    is_command = os.path.basename(script) == "ctvr" or (sys.argv[:1] == ["-m"] and "ctvr" in sys.orig_argv)
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: object) -> NoReturn:
    """Exit at once: nothing has been created yet, and libraries turn a KeyboardInterrupt in an import into errors."""
    try:
        os.write(2, b"ctvr: stopped.\n")
    finally:
        os._exit(STATUS)


_exit_at_interrupt()
