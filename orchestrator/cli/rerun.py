"""Command `ctvr rerun`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.cli.options import (
    add_direction,
    add_doubles,
    add_execution_options,
    add_task_orders,
    add_verbose,
    get_direction,
    get_existing_runs,
    split_commas,
)
from ctvr.orchestrator.errors import ConfigError, CtvrError, os_error_text

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig


def add_rerun(commands: Any) -> None:
    parser = commands.add_parser("rerun", help="rerun the best trials of a sweep over new seeds, and tabulate")
    parser.add_argument("name", nargs="?", metavar="NAME", help="sweep to rerun")
    add_doubles(parser, "sweep")
    parser.add_argument(
        "--top", type=int, default=1, metavar="N", help="number of best trials to rerun (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of new seeds (default: %(default)s)")
    add_task_orders(parser)
    parser.add_argument(
        "--baselines",
        default="",
        metavar="METHODS",
        help="methods to run next to the winner, comma-separated (default: none)",
    )
    add_direction(parser)
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    parser.set_defaults(run=_rerun)


def swept(arguments: argparse.Namespace) -> str:
    """Return the sweep named in the arguments of `ctvr rerun`.

    Raises:
        ConfigError: if two sweeps are named.
    """
    if arguments.name and arguments.sweep not in (None, arguments.name):
        raise ConfigError(
            f"{arguments.name} and --sweep {arguments.sweep} are two names", "rerun", remedy="Use one of them."
        )
    return arguments.name or arguments.sweep or ""


def with_page(text: str, name: str, execution: ExecutionConfig) -> str:
    """Write the report of a finished sweep or rerun; add its path, or the reason for a failure, to `text`."""
    from ctvr.orchestrator.jobs.report import open_line

    try:
        return f"{text}\n{open_line(name, execution)}"
    except (CtvrError, OSError, KeyboardInterrupt) as error:  # the sweep itself is complete
        reason = os_error_text(error) if isinstance(error, OSError) else str(error) or "stopped"
        return f"{text}\npage: was not written ({reason}). To write it, run: ctvr report {name}"


def _rerun(arguments: argparse.Namespace) -> str:
    if not (sweep := swept(arguments)):
        raise ConfigError("the name of the sweep is missing", "rerun", remedy="Usage: ctvr rerun NAME")
    execution = get_existing_runs(arguments, fills_store=True)
    execution.existing_tracker().require_sweep(sweep)  # before torch and Ray are imported
    from ctvr.orchestrator.sweeps.rerun import rerun
    from ctvr.orchestrator.sweeps.session import within_budget

    baselines, direction = split_commas(arguments.baselines), get_direction(arguments)
    with within_budget(arguments.budget_hours):
        counts = (arguments.top, arguments.seeds)
        text = rerun(sweep, execution, *counts, baselines, direction, arguments.task_orders)
        return with_page(text, sweep, execution)
