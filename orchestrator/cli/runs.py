"""Command `ctvr runs`: list, show, explain, send, follow, publish, verify, compare and remove recorded runs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ctvr.orchestrator.cli.attach import add_attach
from ctvr.orchestrator.cli.bundles import add_bundles
from ctvr.orchestrator.cli.options import add_execution_options, get_execution, get_existing_runs
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError


def add_runs(commands: Any) -> None:
    parser = commands.add_parser("runs", help="list the recorded runs; show, explain or remove them")
    parser.add_argument("--stream", metavar="NAME", help="stream whose runs are listed (default: all)")
    parser.add_argument("--all", dest="everything", action="store_true", help="list all runs, trials included")
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
    remove.add_argument("--yes", action="store_true", help="remove the runs; without --yes, only list them")
    add_execution_options(remove, folders=("runs", "store"))
    remove.set_defaults(run=_remove)
    _add_explain(actions)
    _add_sync(actions)
    add_attach(actions)
    add_bundles(actions)


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

    return remove_runs(arguments.names, execution, arguments.commits, arguments.force, arguments.yes)


def _add_explain(actions: Any) -> None:
    parser = actions.add_parser(
        "explain",
        help="explain a run, the differences between two runs, or a number in a table",
        description="`ctvr runs explain RUN`, `ctvr runs explain RUN RUN`, or `ctvr runs explain TABLE ROW COLUMN`, "
        "for example `ctvr runs explain shapes-5 clip4clip R@1`.",
    )
    parser.add_argument(
        "key", metavar="KEY", help="name or id of a run, a method (its newest run), or the first characters of a key"
    )
    parser.add_argument("other", nargs="?", metavar="KEY", help="second run or key to compare with")
    parser.add_argument(
        "column", nargs="?", metavar="COLUMN", help="column of the explained value, after a table and a row"
    )
    add_execution_options(parser, folders=("runs", "store"))
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.explain import compare, explain

    store, tracker = execution.existing_store(), execution.existing_tracker()
    if arguments.column:
        from ctvr.orchestrator.jobs.explain_cell import explain_cell

        return explain_cell(arguments.key, arguments.other, arguments.column, execution)
    if arguments.other:
        return compare(arguments.key, arguments.other, store, tracker)
    return explain(arguments.key, store, tracker)


def _add_sync(actions: Any) -> None:
    parser = actions.add_parser("sync", help="send waiting records to MLflow, or rebuild lost ones")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="rebuild the records that MLflow has lost, from the runs folder and the commits: settings, tags, metrics "
        "and JSON files; run ids and start times are new, and records that are still in MLflow are kept",
    )
    add_execution_options(parser, folders=("runs", "store"))
    parser.set_defaults(run=_sync)


def _sync(arguments: argparse.Namespace) -> str:
    if arguments.rebuild:
        from ctvr.orchestrator.jobs.rebuild_tracking import rebuild

        execution = get_execution(arguments)
        if execution.store:
            execution.require_store()
        return rebuild(execution)
    if arguments.store and arguments.store != os.environ.get("CTVR_STORE"):
        raise ConfigError("requires --rebuild", f"--store {arguments.store}", remedy="Add --rebuild, or omit --store.")
    from ctvr.orchestrator.tracking.server import default_uri
    from ctvr.orchestrator.tracking.tracker import WRITTEN, Tracker, create_store

    if not any((arguments.runs / name).exists() for name in WRITTEN):
        raise ConfigError("has no runs", f"--runs {arguments.runs}", remedy="Pass the folder of earlier runs.")
    uri = default_uri(arguments.runs)
    if uri.startswith("sqlite:"):  # after a move of the folder, the file addresses are updated
        create_store(uri, arguments.runs)
    tracker = Tracker(uri, arguments.runs)
    sent, left = tracker.flush()
    if left:
        fault = f"{count(sent, 'record')} sent, {left} still waiting: {tracker.waits_because}"
        raise ConfigError(fault, "runs sync", remedy="Try again later.")
    aside = tracker.set_aside
    odd = f"; {aside} can never be accepted and are kept in {tracker.outbox.folder}/*-refused.jsonl" if aside else ""
    return f"{count(max(sent - aside, 0), 'record')} sent, none left{odd}"
