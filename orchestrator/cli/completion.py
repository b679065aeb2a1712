"""Command `ctvr completion`: completion scripts of shells, which `shtab` generates from the argument parsers.

A script does not call ctvr: the shell itself lists the streams in the current folder's `runs/streams`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

INSTALL = {
    "bash": 'eval "$(ctvr completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(ctvr completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "ctvr completion fish > ~/.config/fish/completions/ctvr.fish",
}
LIST_STREAMS = r"echo {}; ls runs/streams 2>/dev/null | sed -n 's/[.]json//p'"


def add_completion(commands: Any, make_parser: Callable[[], argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description=" ".join(f"{shell}: {line}." for shell, line in INSTALL.items()),
    )
    parser.add_argument("shell", choices=tuple(INSTALL), help="shell")

    def run(arguments: argparse.Namespace) -> str:
        from ctvr.orchestrator.catalog.methods import all_names

        return script(arguments.shell, make_parser(), *all_names())

    parser.set_defaults(run=run)


def script(
    shell: str, parser: argparse.ArgumentParser, methods: Sequence[str], streams: Sequence[str], presets: Sequence[str]
) -> str:
    """Return the completion script for a shell of INSTALL."""
    import shtab

    names = {"method": methods, "baselines": methods, "preset": presets}
    listing = LIST_STREAMS.format(" ".join(streams))
    # zsh would run shtab's own command once, when it reads the script, and not in the current folder
    at_each_tab = {**shtab.cmd(listing), "zsh": rf"{{compadd -- \$({listing})}}"}
    _declare(parser, "", names, at_each_tab, shtab.FILE)
    return shtab.complete(parser, shell)


def _declare(
    parser: argparse.ArgumentParser, command: str, names: Mapping[str, Sequence[str]], streams: Any, files: Any
) -> None:
    """Declare, for shtab, the values of every option and argument of a command and its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                _declare(child, name, names, streams, files)
        elif action.choices is None and action.nargs != 0:
            is_method = action.dest == "name" and command in ("methods", "check-method")
            action.choices = names.get("method" if is_method else action.dest)
            if action.choices is None:
                action.complete = streams if action.dest == "stream" else files  # type: ignore[attr-defined]
