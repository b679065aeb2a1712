"""Command `ctvr completion`: completion scripts for bash, zsh and fish, generated from the argument parsers.

The script does not call ctvr. The shell itself lists the streams in the current folder's `runs/streams`. zsh reads
the script of bash through `bashcompinit`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

SHELLS = ("bash", "zsh", "fish")
INSTALL = {
    "bash": 'eval "$(ctvr completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(ctvr completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "ctvr completion fish > ~/.config/fish/completions/ctvr.fish",
}
RUNS = "runs/streams"


@dataclass(frozen=True)
class Option:
    """An option and the values that may follow it: () for a file or a number, None for a flag."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] | None
    is_stream: bool = False


@dataclass(frozen=True)
class Command:
    """A command (`streams import`), its options, and the values of its arguments."""

    path: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    has_stream: bool = False


@dataclass(frozen=True)
class Names:
    """Names for completion: methods, streams, presets."""

    methods: tuple[str, ...]
    streams: tuple[str, ...]
    presets: tuple[str, ...]

    def of(self, action: argparse.Action, command: str) -> tuple[str, ...]:
        """Return the values of an option or an argument."""
        if action.choices is not None:
            return tuple(map(str, action.choices))
        if action.dest == "method" or (action.dest == "name" and command in ("methods", "check-method")):
            return self.methods
        return {"stream": self.streams, "preset": self.presets, "baselines": self.methods}.get(action.dest, ())


def add_completion(commands: Any, make_parser: Callable[[], argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description=" ".join(f"{shell}: {line}." for shell, line in INSTALL.items()),
    )
    parser.add_argument("shell", choices=SHELLS, help="shell")

    def run(arguments: argparse.Namespace) -> str:
        from ctvr.orchestrator.catalog.methods import all_names

        return script(arguments.shell, make_parser(), Names(*all_names()))

    parser.set_defaults(run=run)


def script(shell: str, parser: argparse.ArgumentParser, names: Names) -> str:
    """Return the completion script for a shell of SHELLS."""
    commands = list(commands_of(parser, names))
    if shell == "fish":
        return "\n".join(_fish(commands))
    head = ["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []
    return "\n".join([*head, *_bash(commands)])


def commands_of(parser: argparse.ArgumentParser, names: Names, path: str = "") -> Iterator[Command]:
    """Yield the parser's command (path "" for `ctvr` itself) and its subcommands."""
    options, words, below, has_stream = [], list[str](), dict[str, argparse.ArgumentParser](), False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
        elif action.option_strings:
            values = None if action.nargs == 0 else names.of(action, path)
            help_text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).split(";")[0]
            options.append(Option(tuple(action.option_strings), help_text, values, action.dest == "stream"))
        else:
            words += names.of(action, path)
            has_stream |= action.dest == "stream"
    yield Command(path, tuple(options), (*below, *words), has_stream)
    for name, child in below.items():
        yield from commands_of(child, names, f"{path} {name}".strip())


def _steps(commands: Iterable[Command]) -> list[str]:
    """Return `path word` of every subcommand; the path of `ctvr` itself is empty."""
    return [f"{' '.join(c.path.split()[:-1])} {c.path.split()[-1]}" for c in commands if c.path]


def _bash(commands: list[Command]) -> Iterator[str]:
    yield "_ctvr() {"
    yield "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' word words='' streams"
    yield f'  streams=$(for word in {RUNS}/*.json; do word=${{word##*/}}; echo "${{word%.json}}"; done)'
    yield '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield '    case "$at $word" in'
    yield f'      {"|".join(map(shlex.quote, _steps(commands)))}) at="${{at:+$at }}$word" ;;'
    yield "    esac"
    yield "  done"
    yield '  case "$at:$prev" in'
    for command in commands:
        for option in command.options:
            if option.values is None:
                continue
            patterns = "|".join(shlex.quote(f"{command.path}:{name}") for name in option.names)
            found = " ".join(option.values) + (" $streams" if option.is_stream else "")
            if not found:
                yield f"    {patterns}) return ;;"  # files
            else:
                yield f'    {patterns}) words="{found}" ;;'
    for command in commands:
        flags = [name for option in command.options for name in option.names]
        found = " ".join([*command.words, *flags]) + (" $streams" if command.has_stream else "")
        yield f'    {shlex.quote(command.path)}:*) words="{found}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _ctvr ctvr"


def _fish(commands: list[Command]) -> Iterator[str]:
    yield "function __ctvr_at"
    yield "  set -l words (commandline -opc)"
    yield "  set -l at ''"
    yield "  for word in $words[2..-1]"
    yield '    switch "$at $word"'
    yield f"      case {' '.join(map(_quoted, _steps(commands)))}"
    yield '        set at (string trim -- "$at $word")'
    yield "    end"
    yield "  end"
    yield '  test "$at" = "$argv[1]"'
    yield "end"
    yield "function __ctvr_streams"
    yield f"  for file in {RUNS}/*.json"
    yield "    basename $file .json"
    yield "  end"
    yield "end"
    for command in commands:
        start = f"complete -c ctvr -n {_quoted(f'__ctvr_at {_quoted(command.path)}')}"
        words = " ".join([*command.words, *(["(__ctvr_streams)"] if command.has_stream else [])])
        if words:
            yield f"{start} -f -a {_quoted(words)}"
        for option in command.options:
            flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            values = " ".join([*(option.values or ()), *(["(__ctvr_streams)"] if option.is_stream else [])])
            taken = "" if option.values is None else f" -x -a {_quoted(values)}" if values else " -r"
            yield f"{start} {flags}{taken} -d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    """Quote a word for fish, where only \\ and ' are special within single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
