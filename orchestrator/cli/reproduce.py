"""`ctvr reproduce`: a paper's table by its number. It hands over to `ctvr sweep --preset TABLE`."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, add_settings, get_execution, settings_of
from ctvr.orchestrator.cli.sweep import add_task_orders, add_verbose, request_table, run_table
from ctvr.orchestrator.errors import ConfigError


def add_reproduce(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="make a table or figure of a paper, or list them all",
        description="ctvr reproduce tempme/table2 is the command that --list shows beside it, with the paper's rows.",
    )
    parser.add_argument("item", nargs="?", metavar="PAPER/ITEM", help="e.g. tempme/table2")
    parser.add_argument("--list", action="store_true", help="every table and figure: the command, or why there is none")
    parser.add_argument("--plan", action="store_true", help="only say what it takes and what of it is here")
    parser.add_argument("--stream", help="a name from `ctvr streams` (the table's)")
    parser.add_argument("--name", help="of the sweep (table, stream and time)")
    parser.add_argument("--seeds", type=int, help="of every row (the table's)")
    add_task_orders(parser)
    parser.add_argument("--trials", type=int, help="of the search of every row (the table's)")
    parser.add_argument("--rows", default="", help="these rows only, by comma")
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    add_settings(parser)
    parser.set_defaults(run=_reproduce, method=None, baselines=None, space=[], vary=[], top=1, direction=None)


def _reproduce(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.tables.paper_items import find, text

    if arguments.list:
        if arguments.item:
            raise ConfigError(f"reproduce: --list names all items. Leave {arguments.item} out.")
        return text()
    if not arguments.item:
        raise ConfigError("reproduce: name an item, e.g. tempme/table2. All: ctvr reproduce --list.")
    if arguments.preset:
        raise ConfigError(f"--preset {arguments.preset}: the item names its table. Leave it out.")
    item = find(arguments.item)
    overrides = settings_of(arguments)
    arguments.preset, arguments.direction = item.preset, item.direction
    search = {} if arguments.trials is None else {"trials": arguments.trials}
    if arguments.plan:
        from ctvr.orchestrator.jobs.reproduce import plan_text

        return plan_text(item, request_table(arguments, search, overrides), get_execution(arguments))
    return run_table(arguments, search, overrides)
