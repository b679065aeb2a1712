"""Entry point of `ctvr`: parse the arguments, call one function, print its result.

Results go to stdout, logs to stderr. Exit status: 0 done, 1 runs failed, 2 bad usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ctvr.orchestrator import memo
from ctvr.orchestrator.cli import mistakes, supervisor
from ctvr.orchestrator.cli.data import add_cache, add_streams
from ctvr.orchestrator.cli.demo import add_demo
from ctvr.orchestrator.cli.examples import add_examples
from ctvr.orchestrator.cli.guide import guide
from ctvr.orchestrator.cli.logs import set_up_logging
from ctvr.orchestrator.cli.methods import add_methods
from ctvr.orchestrator.cli.migrate import add_migrate
from ctvr.orchestrator.cli.model import add_export, add_page, add_search, add_serve
from ctvr.orchestrator.cli.option_mistakes import check_options
from ctvr.orchestrator.cli.option_needs import without_effect
from ctvr.orchestrator.cli.other_words import correct
from ctvr.orchestrator.cli.plot import add_plot
from ctvr.orchestrator.cli.positional import (
    missing_value,
    move_action_first,
    move_arguments_first,
    place_names,
    surplus,
    unquoted,
    usage,
    with_usual_action,
)
from ctvr.orchestrator.cli.reproduce import add_reproduce
from ctvr.orchestrator.cli.rerun import add_rerun
from ctvr.orchestrator.cli.results import add_doctor, add_table, add_ui
from ctvr.orchestrator.cli.run import add_run
from ctvr.orchestrator.cli.runs import add_runs
from ctvr.orchestrator.cli.sweep import add_sweep, is_supervised, supervised_command
from ctvr.orchestrator.cli.trust import add_trust, trust_user
from ctvr.orchestrator.cli.user_errors import named_in_one_line
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.console import LAYOUT, escape_unknown_characters, printable, say
from ctvr.orchestrator.errors import (
    ConfigError,
    CtvrError,
    Interrupted,
    Mistakes,
    StoreError,
    TrackingUnavailable,
    os_error_text,
)
from ctvr.orchestrator.interpreter import name_every_file, name_home
from ctvr.orchestrator.processes import is_repeated
from ctvr.orchestrator.redaction import redact, traceback_text
from ctvr.orchestrator.streams.load import is_embedded

TRAINING = ("run", "sweep", "reproduce", "rerun", "demo")


class Parser(argparse.ArgumentParser):
    """Argument parser that reports all mistakes in a command, each with a corrected command line."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command, whose arguments may be before, between and after its options."""
        words = list(sys.argv[1:] if args is None else args)
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        every = next(a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)) or {}
        if words[:1] and words[0] in every:
            words[1:] = move_action_first(every[words[0]], words[1:])
            words = with_usual_action(every[words[0]], words)
        parser, at = self._find_command(words)
        takes_settings = any(action.dest == "overrides" for action in parser._actions)
        known = lambda: mistakes.setting_names(_names(words)) if takes_settings else []  # noqa: E731
        found, kept = check_options(parser, words[at:], known, every)
        found += without_effect(parser, kept)
        if parser is self and found:
            raise mistakes.tell(words, found)
        try:
            arguments, rest = self.parse_known_args([*words[:at], *move_arguments_first(parser, kept)], namespace)
        except ConfigError as error:  # an argument is missing, perhaps because its option is misspelled
            raise mistakes.tell(words, found or [missing_value(error, kept)]) from error
        found += [surplus(word, words, parser) for word in rest]
        if hasattr(arguments, "overrides"):
            found += place_names(arguments)
        found += unquoted(arguments.text) if arguments.command == "search" else []
        arguments.mistakes, arguments.words = found, words
        if found:
            raise mistakes.tell(words, mistakes.all_mistakes(arguments))
        return arguments

    def _find_command(self, words: Sequence[str]) -> tuple[argparse.ArgumentParser, int]:
        """Return the parser of the command or action, and the number of words up to and including its name."""
        parser: argparse.ArgumentParser = self
        for at, word in enumerate(words):
            choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
            if not choices or word.startswith("-"):
                return parser, at
            if word not in choices:
                meant = closest(word, choices)
                given = correct(words) or [*words[:at], *([meant] if meant else []), *words[at + 1 :]]
                if words[:at] == ["runs"] and is_embedded(word):
                    given = ["runs", "--stream", *words[at:]]
                elif words[:at] == ["streams"] and is_embedded(word):
                    given = ["streams", "check", *words[at:]]
                elif words[:at] == ["runs"] and len(given) < len(words) and re.fullmatch("[0-9a-f]{6,32}|.+-.+", word):
                    given = ["runs", "show", *words[at:]]
                is_clear = correct(words) is not None or given != [*words[:at], *words[at + 1 :]]
                line = f"Run: {shlex.join(['ctvr', *given])}"
                kind = "command" if parser is self else f"action of {' '.join(words[:at])}"
                every = f"`{parser.prog} --help` lists them." if parser is self else f"Use {' or '.join(choices)}."
                raise ConfigError(f"no such {kind}", word, remedy=line if is_clear else every)
            parser = choices[word]
        return parser, len(words)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version to stdout, as `_print` prints results."""
        if status := _print(message.removesuffix("\n")):
            raise SystemExit(status)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError for an error that argparse finds, such as a missing argument or option."""
        if choice := re.fullmatch(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            names = [name.strip(" '") for name in choice[3].split(",")]
            remedy = f"Use {closest(choice[2], names) or names[0]}."
            raise ConfigError(f"is not one of {', '.join(names)}", choice[1], choice[2], remedy)
        if pair := re.fullmatch(r"argument (\S+): not allowed with argument (\S+)", message):
            raise ConfigError(f"cannot be combined with {pair[2]}", pair[1], remedy="Omit one of them.")
        if of_type := re.fullmatch(r"argument (\S+): (.*\.)", message):  # an error of `user_path`
            raise ConfigError(of_type[2], of_type[1])
        missing, command = message.partition("are required: ")[2], self.prog.removeprefix("ctvr ")
        if missing:
            raise ConfigError(f"{missing} is missing", command, remedy=f"Usage: {usage(self)}", settings=(missing,))
        raise ConfigError(message, command, remedy=f"See {self.prog} --help")


def _names(words: Sequence[str]) -> dict[str, str]:
    """Find the command and the method in an unparsed command line, in order to suggest their settings."""
    from ctvr.orchestrator.sweeps.preflight import is_method

    named = [word.removeprefix("--method=") for word in words[1:] if not word.startswith("--")]
    return {"command": words[0] if words else "", "method": next(filter(is_method, named), "")}


def main(argv: list[str] | None = None) -> int:
    """Run one command; a user error is printed as one line and gives exit status 2."""
    if argv is None:  # called by the shell
        name_every_file()
        memo.enable()
    name_home()
    supervisor.init_child()
    escape_unknown_characters()
    try:
        status = _run(argv)
    except Exception as error:
        if not supervisor.is_child():
            raise
        text = printable(traceback_text(error), keep=LAYOUT)
        print(text, file=sys.__stderr__)  # to the log, or with --verbose to the terminal
        lines = (os_error_text(error) if isinstance(error, OSError) else str(error)).strip().splitlines()
        is_unavailable = _is_unavailable(error) or _is_full(error)
        named = lines[:1] if is_unavailable else [type(error).__name__, *lines[:1]]
        is_final = isinstance(error, (ImportError, NameError, SyntaxError))  # an error in our code or in a plug-in
        supervisor.report_exit(1, redact(": ".join(named)), is_unavailable, is_final)
        return 1
    supervisor.report_exit(status)
    return status


def _stop(number: int, frame: object) -> None:
    """Handle SIGTERM, SIGHUP and SIGUSR1 like Ctrl-C, even in a background job of a shell, which ignores SIGINT."""
    if is_repeated(number):
        return
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _run(argv: list[str] | None) -> int:
    set_up_logging()
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # sent by a scheduler or a closed terminal
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, _stop)
    arguments = None
    try:
        if argv is None and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # replaces ctvr/interrupt.py's
            signal.signal(signal.SIGINT, signal.default_int_handler)
        arguments = make_parser().parse_args(argv)
        if arguments.command is None:
            return _print(guide(Path(os.environ.get("CTVR_RUNS") or "runs")))
        trust_user(arguments, sys.argv[1:] if argv is None else argv)
        if argv is None and is_supervised(arguments) and not supervisor.is_child():  # called by the shell
            return supervisor.supervise(supervised_command(arguments, sys.argv[1:]), arguments.verbose)
        # Output of libraries is not a result; in a driver it goes to the log
        results_only = contextlib.redirect_stdout((supervisor.is_child() and sys.__stderr__) or sys.stderr)
        with results_only, named_in_one_line(arguments):
            text = arguments.run(arguments)
    except CtvrError as error:
        if supervisor.is_child() and _is_unavailable(error):
            raise  # the parent waits until it responds
        return _fail(_with_other_mistakes(error, arguments), error.status)
    except OSError as error:
        if supervisor.is_child() and (isinstance(error, (ConnectionError, TimeoutError)) or _is_full(error)):
            raise  # a dying cluster, or a full disk that may be cleared: the parent restarts this command
        return _fail(os_error_text(error), ConfigError.status)
    except ModuleNotFoundError as error:  # the core lacks what only some commands need
        package = str(error.name).partition(".")[0]
        if package in ("ctvr", "None"):  # a mistake of ours
            raise
        return _fail(f'{package}: this command needs the package. Run: pip install "ctvr[all]"', ConfigError.status)
    except MemoryError as error:
        if supervisor.is_child():
            raise
        return _fail(_no_memory(str(error)), CtvrError.status)
    except RuntimeError as error:  # raised by torch; before Python 3.13 also by Path.resolve
        if "can't allocate memory" in str(error) and not supervisor.is_child():
            return _fail(_no_memory(str(error).partition("memory: ")[2]), CtvrError.status)
        if not str(error).startswith("Symlink loop"):
            raise
        return _fail(f"{error}. Use another path.", ConfigError.status)
    except UnicodeEncodeError as error:
        return _fail(_describe_encoding_error(error), ConfigError.status)
    except KeyboardInterrupt:
        is_training = arguments is not None and arguments.command in TRAINING
        kept = " Finished tasks are kept; the same command resumes from them." if is_training else ""
        return _fail(f"stopped.{kept}", Interrupted.status)
    is_verbatim = getattr(arguments, "is_verbatim", False)  # a program text, which redaction would change
    status = _print(text if is_verbatim else redact(text)) if text else 0
    return status or int(getattr(arguments, "status", 0))  # a verdict of a command


def _no_memory(what: str) -> str:
    detail = f" ({what.strip().splitlines()[0].rstrip('.')})" if what.strip() else ""
    return (
        f"the memory does not suffice{detail}. Lower data.batch_size or evaluation.batch_size, raise the limit "
        "(`ulimit -v`, `ulimit -a` shows all), or use a larger machine."
    )


def _describe_encoding_error(error: UnicodeEncodeError) -> str:
    """Describe a text that cannot be encoded, because a file name is not UTF-8 or the locale lacks a character."""
    start, end = error.start, error.end
    word = error.object[:start].split("\n")[-1][-80:] + error.object[start:end] + error.object[end:].split("\n")[0][:80]
    if "\ud800" <= error.object[start] <= "\udfff":
        return f"{printable(word)}: its name is not UTF-8. Rename the file and run again."
    if error.encoding == sys.getfilesystemencoding():
        return f"{word!r}: the locale's encoding ({error.encoding}) lacks a character. Set PYTHONUTF8=1 and run again."
    return f"{word!r}: {error.encoding} lacks a character. Use ASCII characters."


def _print(text: str) -> int:
    """Print a result. A pipe that its reader closes early (`ctvr methods | head`) is not an error."""
    try:
        print(printable(text, keep=LAYOUT), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # receives what is flushed at exit
    except OSError as error:  # a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _fail(
            f"the result was not written to stdout: {error.strerror}. Redirect it to another file.", ConfigError.status
        )
    return 0


def _is_unavailable(error: Exception) -> bool:
    """Return whether a store or server does not respond now. A tracking server must have responded once before."""
    return isinstance(error, StoreError) or (isinstance(error, TrackingUnavailable) and supervisor.is_restart())


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _with_other_mistakes(error: CtvrError, arguments: Any) -> CtvrError:
    """Return an error with this mistake, all other mistakes in the command, and the corrected command."""
    if type(error) is not ConfigError or arguments is None:
        return error
    return mistakes.tell(arguments.words, mistakes.all_mistakes(arguments, error))


def _fail(reason: object, status: int) -> int:
    for line in reason.args if isinstance(reason, Mistakes) else [reason]:
        say(f"ctvr: {redact(str(line))}")
    return status


def _version() -> str:
    try:
        return f"ctvr {importlib.metadata.version('ctvr')}"
    except importlib.metadata.PackageNotFoundError:
        return "ctvr, not installed"


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands. Its `parse_args` raises ConfigError for an invalid command line."""
    parser = Parser(prog="ctvr", description="Continual text-to-video retrieval experiments.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_sweep(commands)
    add_run(commands)
    add_reproduce(commands)
    add_rerun(commands)
    add_demo(commands)
    add_table(commands)
    add_runs(commands)
    add_search(commands)
    add_serve(commands)
    add_plot(commands)
    add_migrate(commands)
    add_page(commands)
    add_export(commands)
    add_streams(commands)
    add_cache(commands)
    add_methods(commands)
    add_ui(commands)
    add_doctor(commands)
    for command in commands.choices.values():
        add_trust(command)
    add_examples(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
