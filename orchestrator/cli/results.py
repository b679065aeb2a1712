"""Commands `ctvr table`, `rebuild`, `methods`, `ui`, `doctor`, `explain` and `sync`."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ctvr.orchestrator.cli.options import (
    add_direction,
    add_execution_options,
    get_direction,
    get_execution,
    get_existing_runs,
)
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import child_environment


def add_table(commands: Any) -> None:
    parser = commands.add_parser(
        "table", help="write the table of finished runs: Markdown, LaTeX, CSV; with --figures also figures"
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="sweep, rerun (NAME-final-...), stream or streams to show"
    )
    parser.add_argument("--sweep", metavar="NAME", help="sweep whose runs are shown (a rerun is NAME-final-...)")
    parser.add_argument(
        "--stream",
        metavar="NAME",
        help="stream whose complete runs are shown, without trials; several (NAME,NAME): also a figure of their means",
    )
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="",
        help="videos of the shown metrics (default: test, if runs have them)",
    )
    parser.add_argument("--figures", action="store_true", help="draw the figures too, as PNG and PDF")
    parser.add_argument(
        "--pairs", action="store_true", help="also print R@1 of each row minus each other, with simultaneous intervals"
    )
    add_direction(parser)
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_table)


def _table(arguments: argparse.Namespace) -> str:
    name, sweep, stream = arguments.name, arguments.sweep, arguments.stream
    if not (name or sweep or stream):
        raise ConfigError("table: give the name of a sweep or a stream. Write for example: ctvr table shapes-5")
    if name and (sweep or stream):
        raise ConfigError(f"{name} and {sweep or stream} are two names", "table", remedy="Give one.")
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.sweeps.table import table

    if name:
        sweep, stream = (name, None) if execution.existing_tracker().find_sweep(name) else (None, name)
    direction, more = get_direction(arguments), {"figures": arguments.figures, "pairs": arguments.pairs}
    return table(execution, sweep, stream, direction, arguments.split, **more)


def add_rebuild(commands: Any) -> None:
    parser = commands.add_parser(
        "rebuild",
        help="rebuild lost records of MLflow from the runs folder and the commits",
        description="Restores every run with its settings, tags, metrics and JSON files; models are loaded from "
        "commits. Run ids and start times are new. Records that are still in MLflow are kept.",
    )
    add_execution_options(parser, folders=("runs", "store"))
    parser.set_defaults(run=_rebuild)


def _rebuild(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.rebuild_tracking import rebuild

    execution = get_execution(arguments)
    if execution.store:
        execution.require_store()
    return rebuild(execution)


def add_methods(commands: Any) -> None:
    parser = commands.add_parser("methods", help="list the methods, or one method's settings and presets")
    parser.add_argument("name", nargs="?", metavar="NAME", help="method whose settings are shown")
    parser.add_argument(
        "--preset", metavar="PRESET", help="preset whose changes to the recommended settings are shown, with sources"
    )
    parser.add_argument(
        "--verified", action="store_true", help="show the comparisons with the authors' code, and their tests"
    )
    parser.add_argument(
        "--cost", action="store_true", help="show multiply-adds and parameters next to the papers' figures"
    )
    parser.add_argument(
        "--tasks", type=int, metavar="N", help="with --cost, show instead the storage of growing methods after N tasks"
    )
    parser.set_defaults(run=_methods)


def _methods(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.catalog.methods import methods_text

    if arguments.verified:
        from ctvr.orchestrator.tables.verified import text

        return text()
    if arguments.cost and (arguments.name or arguments.preset):
        raise ConfigError("--cost shows all methods", "methods", remedy="Omit the name and --preset.")
    if arguments.tasks is not None and not arguments.cost:
        raise ConfigError("--tasks requires --cost", "methods", remedy="Write ctvr methods --cost --tasks 100.")
    if not (arguments.name or arguments.cost or arguments.preset):
        return methods_text()
    from ctvr.orchestrator.sweeps import search_spaces as catalogue

    if arguments.cost:
        return catalogue.cost_text(arguments.tasks)
    if arguments.preset and not arguments.name:
        raise ConfigError("--preset requires a method", "methods", remedy="Write ctvr methods NAME --preset PRESET.")
    if arguments.preset:
        return catalogue.preset_text(arguments.name, arguments.preset)
    return catalogue.method_text(arguments.name)


def add_ui(commands: Any) -> None:
    parser = commands.add_parser("ui", help="serve MLflow's web interface on this machine")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=5000, metavar="PORT", help="port to listen on (default: %(default)s)"
    )
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_ui)


def _ui(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.tracking.server import default_uri, require_records, ui_command
    from ctvr.orchestrator.tracking.tracker import Tracker, create_store

    if not 0 < arguments.port < 65536:
        raise ConfigError("is not a port", f"--port {arguments.port}", remedy="Give a number from 1 to 65535.")
    require_records(arguments.runs)
    uri = default_uri(arguments.runs)
    command = ui_command(uri, arguments.host, arguments.port)
    create_store(uri, arguments.runs)
    tracker = Tracker(uri, arguments.runs)
    tracker.artifacts.require_all()
    server = f"http://{arguments.host}:{arguments.port}/"
    page = "#/experiments?workflowType=machine_learning"  # else MLflow opens its pages for language models
    say(f"MLflow: {server}{page} (stop it with Ctrl-C)")
    for stream, page in tracker.pages():
        say(f"  {stream}: {server}{page}")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # its seven processes are not needed
    # This process becomes the server, so that a signal to it stops the server
    os.execve(command[0], command, child_environment())


def add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check versions, disk, store, MLflow and videos")
    parser.add_argument("--stream", metavar="NAME", help="stream whose videos are also checked")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="measure steps, store and decoding for about a minute instead, and report what limits training here",
    )
    add_execution_options(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> str:
    if arguments.gpu:
        from ctvr.orchestrator.jobs.gpu_probe import probe  # imports torch

        return probe(arguments.store, arguments.runs)
    from ctvr.orchestrator.doctor.run_checks import blocking, examine, to_text
    from ctvr.orchestrator.tracking.server import default_uri

    get_execution(arguments).check_videos()
    uri = default_uri(arguments.runs)
    found = examine(arguments.runs, arguments.store, arguments.stream, arguments.videos, uri)
    text = to_text(found)
    if blocking(found):
        count = len(blocking(found))
        raise ConfigError(f"{count} problem{'s' * (count > 1)}\n{text}", "doctor")
    return text


def add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain a run, the differences of two, or the origin of a number in a table",
        description="`ctvr explain RUN`, `ctvr explain RUN RUN`, or `ctvr explain TABLE ROW COLUMN`, for example "
        "`ctvr explain shapes-5 clip4clip R@1`.",
    )
    parser.add_argument(
        "key", metavar="KEY", help="name or id of a run, a method (its newest run), or the first characters of a key"
    )
    parser.add_argument("other", nargs="?", metavar="KEY", help="second run or key to compare with")
    parser.add_argument(
        "column", nargs="?", metavar="COLUMN", help="with TABLE ROW COLUMN: number of a table whose origin is shown"
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


def add_sync(commands: Any) -> None:
    parser = commands.add_parser("sync", help="send waiting records to MLflow")
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_sync)


def _sync(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.tracking.server import default_uri
    from ctvr.orchestrator.tracking.tracker import WRITTEN, Tracker, create_store

    if not any((arguments.runs / name).exists() for name in WRITTEN):
        raise ConfigError("has no runs", f"--runs {arguments.runs}", remedy="Give the folder of earlier runs.")
    uri = default_uri(arguments.runs)
    if uri.startswith("sqlite:"):  # its addresses follow a moved folder
        create_store(uri, arguments.runs)
    tracker = Tracker(uri, arguments.runs)
    sent, left = tracker.flush()
    if left:
        raise ConfigError(f"sync: {sent} records sent, {left} still wait: {tracker.waits_because}. Try again later.")
    aside = tracker.set_aside
    odd = f"; {aside} can never be accepted and are kept in {tracker.outbox.folder}/*-refused.jsonl" if aside else ""
    return f"{max(sent - aside, 0)} records sent, none left{odd}"
