"""Command `ctvr methods`: list methods, show a method, write a new method, and check the contract of a method."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.options import add_settings, settings_of, split_commas, user_path
from ctvr.orchestrator.errors import ConfigError


def add_methods(commands: Any) -> None:
    parser = commands.add_parser(
        "methods",
        help="list the methods; show, write or check one",
        description="`ctvr methods METHOD` is `ctvr methods show METHOD`, whose --help lists its options.",
    )
    parser.set_defaults(usual_action="show")  # `ctvr methods`, `ctvr methods NAME`
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_show(actions)
    _add_new(actions)
    _add_check(actions)


def _add_show(actions: Any) -> None:
    parser = actions.add_parser("show", help="list the methods, or show one method's settings and presets")
    parser.add_argument("name", nargs="?", metavar="METHOD", help="method whose settings are shown")
    parser.add_argument(
        "--preset", metavar="PRESET", help="preset whose changes to the recommended settings are shown, with sources"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--json",
        action="store_true",
        help="print all settings, or those of METHOD, as a JSON schema, for editors of --config files",
    )
    other.add_argument(
        "--verified", action="store_true", help="show the comparisons with the authors' code, and their tests"
    )
    other.add_argument(
        "--cost", action="store_true", help="show multiply-adds and parameters next to the papers' figures"
    )
    other.add_argument(
        "--backbone",
        metavar="NAME",
        help="show which methods a backbone supports, and what it lacks for the others",
    )
    parser.add_argument(
        "--tasks", type=int, metavar="N", help="number of tasks after which --cost shows the storage of growing methods"
    )
    parser.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> str:
    if arguments.tasks is not None and not arguments.cost:
        raise ConfigError("--tasks requires --cost", "methods", remedy="Run ctvr methods --cost --tasks 100.")
    options = {"--cost": arguments.cost, "--verified": arguments.verified, "--backbone": arguments.backbone}
    if (option := next((name for name, given in options.items() if given), "")) and (
        arguments.name or arguments.preset
    ):
        raise ConfigError(f"{option} shows all methods", "methods", remedy="Omit the name and --preset.")
    if arguments.json:
        from ctvr.orchestrator.catalog.schema import schema_text

        if arguments.preset:
            raise ConfigError("--json shows settings, not presets", "methods", remedy="Omit --preset.")
        return schema_text(arguments.name or "")
    if arguments.backbone:
        from ctvr.orchestrator.jobs.compatible_methods import compatible_methods_text
        from ctvr.orchestrator.sweeps.trust import trust_architectures

        trust_architectures([f"backbone.name={arguments.backbone}"])
        return compatible_methods_text(arguments.backbone)
    from ctvr.orchestrator.catalog.methods import methods_text

    if arguments.verified:
        from ctvr.orchestrator.tables.verified import text

        return text()
    if not (arguments.name or arguments.cost or arguments.preset):
        return methods_text()
    from ctvr.orchestrator.sweeps import search_spaces as catalogue

    if arguments.cost:
        return catalogue.cost_text(arguments.tasks)
    if arguments.preset and not arguments.name:
        raise ConfigError("--preset requires a method", "methods", remedy="Run ctvr methods NAME --preset PRESET.")
    if arguments.preset:
        return catalogue.preset_text(arguments.name, arguments.preset)
    return catalogue.method_text(arguments.name)


def _add_new(actions: Any) -> None:
    method = actions.add_parser(
        "new",
        help="write a package with a new method, ready to run",
        description="Writes a module, its search space, a test, and pyproject.toml with the entry points.",
    )
    method.add_argument("name", metavar="NAME", help="name of the module and the method, e.g. my_idea")
    method.add_argument(
        "--into",
        type=user_path,
        default=Path(),
        metavar="FOLDER",
        help="parent of the new folder NAME (default: the current folder)",
    )
    kind = method.add_mutually_exclusive_group()
    for name, what in (
        ("strategy", "a strategy that wraps any retriever"),
        ("analytic", "a retriever that learns without gradients, by sums over the pairs of a task"),
        ("features", "a head on frozen towers, which also learns on imported features"),
    ):
        kind.add_argument(
            f"--{name}",
            dest="kind",
            action="store_const",
            const=name,
            default="retriever",
            help=f"write {what} (default: a retriever that trains a part of CLIP)",
        )
    method.set_defaults(run=_new_method)


def _new_method(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.catalog.new_method import new_method

    return new_method(arguments.name, arguments.into, arguments.kind)


def _add_check(actions: Any) -> None:
    parser = actions.add_parser(
        "check",
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
            raise ConfigError("is not a setting of the method", name, remedy="Use method.* and base.* only.")
    from ctvr.orchestrator.sweeps.preflight import check_methods

    check_methods([arguments.name])  # before torch is imported
    from ctvr.orchestrator.jobs.check_method import check_method

    return "\n".join(check_method(arguments.name, settings, split_commas(arguments.preset)))
