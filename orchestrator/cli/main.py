"""`ctvr`: parse, call one function, print. No logic here.

stdout carries results, stderr carries logs. Exit status: 0 done, 1 runs failed, 2 bad usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ctvr.orchestrator import renamed
from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.cli.completion import add_completion
from ctvr.orchestrator.cli.data import add_cache, add_streams
from ctvr.orchestrator.cli.frames import add_frames
from ctvr.orchestrator.cli.guide import guide
from ctvr.orchestrator.cli.method_dev import add_check_method, add_new
from ctvr.orchestrator.cli.model import add_export, add_page, add_schema, add_search
from ctvr.orchestrator.cli.options import add_trust, trust_user
from ctvr.orchestrator.cli.plot import add_plot
from ctvr.orchestrator.cli.reproduce import add_reproduce
from ctvr.orchestrator.cli.results import add_doctor, add_explain, add_methods, add_rebuild, add_sync, add_table, add_ui
from ctvr.orchestrator.cli.run import add_run
from ctvr.orchestrator.cli.sweep import add_attach, add_rerun, add_sweep, is_supervised, supervised_command
from ctvr.orchestrator.console import escape_unknown_characters, say
from ctvr.orchestrator.errors import ConfigError, CtvrError, Interrupted, StoreError, TrackingUnavailable
from ctvr.orchestrator.interpreter import name_every_file, name_home
from ctvr.orchestrator.redaction import hide_secrets, redact, traceback_text

log = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    exits: ClassVar[bool] = True

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Settings count wherever they stand: argparse gives up on them once an option follows the first words."""
        words = renamed.arguments(sys.argv[1:] if args is None else args)
        arguments, rest = self.parse_known_args(words, namespace)
        if hasattr(arguments, "overrides") and all("=" in word and not word.startswith("-") for word in rest):
            arguments.overrides, rest = [*arguments.overrides, *rest], []
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return arguments

    def error(self, message: str) -> NoReturn:
        message = redact(message)  # it repeats words of the command, which may hold a password
        if not self.exits:
            raise ConfigError(f"{message}.")
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help\n")


class RaisingParser(Parser):
    """Says it as an exception, for those who call from Python."""

    exits = False


def main(argv: list[str] | None = None) -> int:
    """Run one command; every mistake of the user becomes one line and exit status 2."""
    if argv is None:  # it was typed
        name_every_file()
    name_home()
    supervisor.init_child()
    escape_unknown_characters()
    try:
        status = _run(argv)
    except Exception as error:
        if not supervisor.is_child():
            raise
        print(traceback_text(error), file=sys.__stderr__)  # into the log, or to the terminal with --verbose
        lines = str(error).strip().splitlines()
        is_unavailable = _is_unavailable(error) or _is_full(error)
        named = lines[:1] if is_unavailable else [type(error).__name__, *lines[:1]]
        supervisor.report_exit(1, redact(": ".join(named)), is_unavailable)
        return 1
    supervisor.report_exit(status)
    return status


def _stop(number: int, frame: object) -> None:
    """End as by Ctrl-C, also where a shell has started us in the background, which ignores that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _run(argv: list[str] | None) -> int:
    _set_up_logging()
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):  # a scheduler's end, a terminal that is closed
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, _stop)
    try:
        arguments = make_parser().parse_args(argv)
        if arguments.command is None:
            return _print(guide(Path(os.environ.get("CTVR_RUNS") or "runs")))
        trust_user(arguments, sys.argv[1:] if argv is None else argv)
        if argv is None and is_supervised(arguments) and not supervisor.is_child():  # it was typed
            return supervisor.supervise(supervised_command(arguments, sys.argv[1:]), arguments.verbose)
        # Whatever libraries print is no result; of a driver it goes where they write by themselves
        with contextlib.redirect_stdout((supervisor.is_child() and sys.__stderr__) or sys.stderr):
            text = arguments.run(arguments)
    except CtvrError as error:
        if supervisor.is_child() and _is_unavailable(error):
            raise  # the parent waits for it
        return _fail(error, error.status)
    except OSError as error:
        if supervisor.is_child() and (isinstance(error, (ConnectionError, TimeoutError)) or _is_full(error)):
            raise  # of a cluster that is dying, of a disk that may get room: the parent goes on
        return _fail(f"{error}. Free some space and run again." if _is_full(error) else error, ConfigError.status)
    except UnicodeEncodeError as error:  # a path that the system's calls cannot take
        name, encoding = str(error.object)[:200], sys.getfilesystemencoding()
        reason = f"{name!r}: the locale's encoding ({encoding}) cannot name this. Set PYTHONUTF8=1 and run again."
        return _fail(reason, ConfigError.status)
    except KeyboardInterrupt:
        return _fail("stopped. Finished tasks are kept; the same command goes on from them.", Interrupted.status)
    return _print(redact(text)) if text else 0


def _print(text: str) -> int:
    """Print a result; whoever reads it may have had enough: `ctvr methods | head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the interpreter flushes at its end goes there
    return 0


def _is_unavailable(error: Exception) -> bool:
    """What the sweep writes to does not answer. A server that never did is a mistake in its address."""
    return isinstance(error, StoreError) or (isinstance(error, TrackingUnavailable) and supervisor.is_restart())


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _fail(reason: object, status: int) -> int:
    say(f"ctvr: {redact(str(reason))}")
    return status


def _set_up_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("ctvr").setLevel(logging.INFO)
    hide_secrets()
    logging.getLogger("root").addFilter(lambda record: "No pretrained weights loaded" not in record.getMessage())


def _version() -> str:
    try:
        return f"ctvr {importlib.metadata.version('ctvr')}"
    except importlib.metadata.PackageNotFoundError:
        return "ctvr, not installed"


def make_parser(exits: bool = True) -> argparse.ArgumentParser:
    """The parser of all commands; what it cannot parse ends the process, or is a ConfigError where not `exits`."""
    parser = (Parser if exits else RaisingParser)(
        prog="ctvr", description="Continual text-to-video retrieval experiments."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_sweep(commands)
    add_run(commands)
    add_reproduce(commands)
    add_rerun(commands)
    add_table(commands)
    add_rebuild(commands)
    add_search(commands)
    add_plot(commands)
    add_frames(commands)
    add_page(commands)
    add_export(commands)
    add_streams(commands)
    add_cache(commands)
    add_methods(commands)
    add_new(commands)
    add_check_method(commands)
    add_schema(commands)
    add_completion(commands, make_parser)
    add_ui(commands)
    add_doctor(commands)
    add_explain(commands)
    add_sync(commands)
    add_attach(commands)
    for command in commands.choices.values():
        add_trust(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
