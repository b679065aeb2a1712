"""Command `ctvr demo`."""

from __future__ import annotations

import argparse
import webbrowser
from typing import Any

from ctvr.orchestrator.cli.options import SMOKE, add_execution_options, get_execution
from ctvr.orchestrator.console import say


def add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="render a small stream, train two methods for some seconds, and write their report",
        description="Trains clip4clip and er_ring on the embedded stream shapes-5, one epoch for each task. Needs no "
        "GPU and no download. Existing runs are not repeated.",
    )
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    add_execution_options(parser, folders=("runs", "store"))
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> str:
    execution = get_execution(arguments)
    execution.check()
    from ctvr.orchestrator.jobs.demo import demo  # imports torch

    text, page = demo(SMOKE, execution)
    if arguments.open and not webbrowser.open(page):
        say("no browser was found; open the URL yourself")
    return text
