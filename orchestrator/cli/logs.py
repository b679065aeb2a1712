"""Log records of a command on stderr: our records as plain lines, records of libraries with their level and logger."""

from __future__ import annotations

import logging
import os
import sys

from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.console import LAYOUT, printable
from ctvr.orchestrator.redaction import hide_secrets

# Loggers of the libraries that fetch and read weights; open_clip uses the root logger. The libraries also raise
# exceptions, whose text our error contains
_FETCHING = ("root", "open_clip", "huggingface_hub", "transformers", "urllib3", "httpx", "filelock")
_OWN_HANDLERS = ("HF_HUB_VERBOSITY", "TRANSFORMERS_VERBOSITY")  # verbosity of libraries that write to stderr themselves


def set_up_logging() -> None:
    """Set up the log of this process. The log of a driver (`--verbose`) has the records of all libraries."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
        if type(handler) is logging.StreamHandler and not supervisor.is_child():
            handler.addFilter(_is_shown)
    if not supervisor.is_child():
        for name in _OWN_HANDLERS:
            os.environ.setdefault(name, "critical")
        if sys.stderr is None or not sys.stderr.isatty():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("ctvr").setLevel(logging.INFO)
    hide_secrets()


def _is_shown(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in _FETCHING


class _Formatter(logging.Formatter):
    """Formatter of our records as plain lines, and of records of libraries with their level and logger."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.partition(".")[0] == "ctvr" and not record.exc_info:
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            text = f"{level}{record.getMessage()}"
        return printable(text, keep=LAYOUT)
