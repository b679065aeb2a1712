"""Option --trust of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ctvr.orchestrator.addresses import name_addresses
from ctvr.orchestrator.sweeps.trust import trust_config, trust_named, trust_typed


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust to a command and its actions; hide it if a command has neither --runs nor settings."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                add_trust(choice)
    reads = {"runs", "overrides"} & {action.dest for action in parser._actions}
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="allow a class MODULE:CLASS, SCHEME://HOST or folder that only a file names; may be repeated"
        if reads
        else argparse.SUPPRESS,
    )


def trust_user(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Trust the classes and addresses that the user names in the command, by --trust or in the --config file.

    Raises:
        ConfigError: for a --trust value that is neither a class nor an address, or an unreadable --config file.
    """
    trust_typed(words)
    name_addresses(getattr(arguments, option, None) for option in ("store", "address", "ray_storage", "videos"))
    trust_named(getattr(arguments, "trust", []))
    if getattr(arguments, "config", None):
        trust_config(arguments.config)
