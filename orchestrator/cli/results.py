"""Commands `ctvr table`, `ctvr ui` and `ctvr doctor`."""

from __future__ import annotations

import argparse
import os
import subprocess
from typing import Any

from ctvr.orchestrator.cli.options import (
    add_columns,
    add_direction,
    add_doubles,
    add_execution_options,
    get_direction,
    get_execution,
    get_existing_runs,
)
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import child_environment, run_module


def add_table(commands: Any) -> None:
    parser = commands.add_parser(
        "table", help="write the table of finished runs: Markdown, LaTeX, CSV; with --figures also figures"
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="sweep or rerun (NAME-final-...) whose runs are shown, or a stream whose complete runs are shown, without "
        "trials; several streams (NAME,NAME) add a figure of their means",
    )
    add_doubles(parser, "sweep", "stream")
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="",
        help="split of the videos on which the shown metrics were measured (default: test, if runs have such metrics)",
    )
    parser.add_argument("--figures", action="store_true", help="also draw the figures, as PNG and PDF")
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="also print the differences in R@1 of all pairs of rows, with simultaneous intervals",
    )
    add_direction(parser)
    add_columns(parser)
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_table)


def _table(arguments: argparse.Namespace) -> str:
    name, sweep, stream = arguments.name, arguments.sweep, arguments.stream
    if not (name or sweep or stream):
        raise ConfigError("table: the name of a sweep or a stream is missing. Run, for example: ctvr table shapes-5")
    if name and (sweep or stream):
        raise ConfigError(f"{name} and {sweep or stream} are two names", "table", remedy="Use one of them.")
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.sweeps.table import table

    if name:
        sweep, stream = (name, None) if execution.existing_tracker().find_sweep(name) else (None, name)
    direction, more = get_direction(arguments), {"figures": arguments.figures, "pairs": arguments.pairs}
    more |= {"columns": arguments.columns}
    return table(execution, sweep, stream, direction, arguments.split, **more)


def add_ui(commands: Any) -> None:
    parser = commands.add_parser("ui", help="serve MLflow's web interface on this machine")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="loopback address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=5000, metavar="PORT", help="port to listen on (default: %(default)s)"
    )
    parser.add_argument("--open", action="store_true", help="open the newest stream's page in a browser")
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_ui)


def _ui(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.tracking.server import default_uri, require_records, ui_command
    from ctvr.orchestrator.tracking.tracker import Tracker, create_store

    if not 0 < arguments.port < 65536:
        raise ConfigError("is not a port", f"--port {arguments.port}", remedy="Use a number from 1 to 65535.")
    require_records(arguments.runs)
    uri = default_uri(arguments.runs)
    command = ui_command(uri, arguments.host, arguments.port)
    create_store(uri, arguments.runs)
    tracker = Tracker(uri, arguments.runs)
    tracker.artifacts.require_all()
    every = (
        "all streams",
        "#/experiments?workflowType=machine_learning",
    )  # otherwise MLflow opens pages for language models
    words = [word for page in (*tracker.pages(), every) for word in page]
    say("MLflow is starting")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # the seven processes for jobs are not needed
    where = (str(os.getpid()), arguments.host, str(arguments.port), "open" if arguments.open else "")
    subprocess.Popen(run_module("ctvr.orchestrator.tracking.ui_ready", *where, *words), env=child_environment())
    # This process becomes the server, so that a signal to it stops the server
    os.execve(command[0], command, child_environment())


def add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check versions, disk, store, MLflow and videos")
    parser.add_argument("--stream", metavar="NAME", help="stream whose videos are also checked")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="measure steps, store and decoding for about a minute instead, and report the bottleneck of training",
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
