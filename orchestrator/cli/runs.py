"""Command `ctvr runs`: list, show and remove recorded runs."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, get_existing_runs


def add_runs(commands: Any) -> None:
    parser = commands.add_parser("runs", help="list the recorded runs, show one, or remove some")
    parser.add_argument("--stream", metavar="NAME", help="stream whose runs are listed (default: all)")
    parser.add_argument("--all", dest="everything", action="store_true", help="list all, with the trials of searches")
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="show a run: results, files, and the command that repeats it")
    show.add_argument(
        "name", metavar="RUN", help="name of the run, 6 or more characters of its id, or a method (its newest run)"
    )
    add_execution_options(show, folders=("runs",))
    show.set_defaults(run=_show)
    remove = actions.add_parser("rm", help="remove the records of runs")
    remove.add_argument("names", nargs="+", metavar="RUN", help="names of runs, or 6 or more characters of their ids")
    remove.add_argument("--commits", action="store_true", help="also remove their finished tasks from the store")
    remove.add_argument("--force", action="store_true", help="also remove a run that a sweep or best-STREAM uses")
    add_execution_options(remove, folders=("runs", "store"))
    remove.set_defaults(run=_remove)


def _list(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.runs import list_runs

    return list_runs(execution, arguments.stream, arguments.everything)


def _show(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.runs import show_run

    return show_run(arguments.name, execution)


def _remove(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.runs import remove_runs

    return remove_runs(arguments.names, execution, arguments.commits, arguments.force)
