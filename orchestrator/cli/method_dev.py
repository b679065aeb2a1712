"""Commands `ctvr new` and `ctvr check-method`: write a new method, and check that a method satisfies the contract."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.options import add_settings, settings_of, split_commas, user_path
from ctvr.orchestrator.errors import ConfigError


def add_new(commands: Any) -> None:
    parser = commands.add_parser("new", help="write the files of a new method, in a package that runs")
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    method = kinds.add_parser("method", help="module, search space, test and pyproject.toml with its entry points")
    method.add_argument("name", metavar="NAME", help="name of the module and the method, e.g. my_idea")
    method.add_argument(
        "--into",
        type=user_path,
        default=Path(),
        metavar="FOLDER",
        help="parent of the new folder NAME (default: the current folder)",
    )
    method.set_defaults(run=_new_method)


def _new_method(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.catalog.new_method import new_method

    return new_method(arguments.name, arguments.into)


def add_check_method(commands: Any) -> None:
    parser = commands.add_parser(
        "check-method",
        help="check that a method satisfies the contract: losses, leakage, unused settings, resuming",
        description="Runs on noise and a small random backbone, without a stream, MLflow or Ray. Exit status 1 if a "
        "check fails.",
    )
    parser.add_argument("name", metavar="NAME", help="name of a method, or module:Class")
    add_settings(parser)
    parser.set_defaults(run=_check_method)


def _check_method(arguments: argparse.Namespace) -> str:
    settings = settings_of(arguments)
    for name in settings:
        if not name.startswith(("method.", "base.")):
            raise ConfigError(f"check-method: {name} is not a setting of the method. Give method.* and base.* only.")
    from ctvr.orchestrator.sweeps.preflight import check_methods

    check_methods([arguments.name])  # before torch is imported
    from ctvr.orchestrator.jobs.check_method import check_method

    return "\n".join(check_method(arguments.name, settings, split_commas(arguments.preset)))
