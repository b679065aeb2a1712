"""Command `ctvr reproduce`, which runs the table preset of a paper's table or figure by its number."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import (
    add_execution_options,
    add_settings,
    add_sweep_name,
    add_task_orders,
    add_verbose,
    get_execution,
    settings_of,
)
from ctvr.orchestrator.cli.sweep import request_table, run_table
from ctvr.orchestrator.errors import ConfigError


def add_reproduce(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="reproduce a table or figure of a paper, or list them all",
        description="Searches and reruns the rows of a paper's table or figure, as `ctvr sweep` does for one method.",
    )
    parser.add_argument(
        "item",
        nargs="?",
        metavar="PAPER/ITEM",
        help="table or figure, e.g. tempme/table2, or `claims` for the claims of all papers",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list all tables and figures, each with its command or the reason why it lacks one",
    )
    parser.add_argument("--plan", action="store_true", help="print what the item requires and what is available")
    parser.add_argument("--stream", metavar="NAME", help="stream, a name of `ctvr streams` (default: the table's)")
    add_sweep_name(parser, "TABLE-STREAM-TIME")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds of every row (default: the table's)")
    add_task_orders(parser)
    parser.add_argument(
        "--trials", type=int, metavar="N", help="number of search trials of every row (default: the table's)"
    )
    parser.add_argument("--rows", default="", metavar="ROWS", help="rows to run, comma-separated (default: all)")
    parser.add_argument("--only", default="", metavar="CLAIMS", help="claims to test, comma-separated (default: all)")
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    add_settings(parser)
    parser.set_defaults(
        run=_reproduce, method=None, baselines=None, space=[], space_add=[], vary=[], top=1, direction=None
    )


def _reproduce(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.tables.paper_items import CLAIMS, find, text

    is_claims = arguments.item == CLAIMS.item
    if arguments.only and not is_claims:
        raise ConfigError(f"--only {arguments.only}: applies to claims only. Run: ctvr reproduce claims --only NAME")
    if arguments.list:
        if is_claims:
            from ctvr.orchestrator.tables.claims_text import list_text

            return list_text()
        if arguments.item:
            raise ConfigError("--list lists all items", "reproduce", remedy=f"Omit {arguments.item}.")
        return text()
    if not arguments.item:
        raise ConfigError(
            "the item is missing, e.g. tempme/table2", "reproduce", remedy="Run ctvr reproduce --list for all items."
        )
    if arguments.preset:
        raise ConfigError("the item determines the preset", f"--preset {arguments.preset}", remedy="Omit it.")
    item = find(arguments.item)
    if is_claims and arguments.trials:
        raise ConfigError("the rows of claims are not searched", f"--trials {arguments.trials}", remedy="Omit it.")
    if is_claims and arguments.task_orders != 1:
        raise ConfigError(f"--task-orders {arguments.task_orders}: claims are compared over seeds. Use --seeds N.")
    if is_claims and arguments.rows:
        raise ConfigError("the claims determine the rows", f"--rows {arguments.rows}", remedy="Use --only CLAIM.")
    overrides = settings_of(arguments)
    arguments.preset, arguments.direction = item.preset, item.direction
    search = {} if arguments.trials is None else {"trials": arguments.trials}
    if arguments.plan:
        from ctvr.orchestrator.jobs.reproduce import plan_text

        return plan_text(item, request_table(arguments, search, overrides), get_execution(arguments))
    return run_table(arguments, search, overrides)
