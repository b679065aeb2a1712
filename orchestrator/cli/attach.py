"""Command `ctvr runs attach`."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_attach(actions: Any) -> None:
    parser = actions.add_parser("attach", help="follow a sweep that was submitted to this machine, or stop it")
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name of a folder in ~/ctvr_drivers (default: the running sweep, or the last one)",
    )
    parser.add_argument(
        "--stop", action="store_true", help="stop the sweep cleanly; `ctvr sweep --resume` can resume it"
    )
    parser.set_defaults(run=_attach)


def _attach(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.cli import detached

    place = detached.find(arguments.name)
    sys.exit((detached.stop if arguments.stop else detached.follow)(place))
